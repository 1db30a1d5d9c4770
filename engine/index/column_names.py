"""Which names a user's columns may have, and which of them the records have as keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ..errors import ParameterError
from ..records.filters import PAYLOAD
from ..records.record import Record
from .columns import ORDER

LONGEST_NAME = 200
"""Bytes that the name of a declared column may have. Files are named by it, with up to 36 bytes more."""


def check_names(columns: Mapping[str, str], *, of_shard: bool = False) -> None:
    """Raise `ParameterError` for a column whose name is kept for shards, or too long to name files by."""
    if not of_shard:
        check_free(columns)
    for name, kind in columns.items():
        # Those of kind json may be any key of a payload, and are hashed where they are long.
        if kind != "json" and (size := len(name.encode())) > LONGEST_NAME:
            raise ParameterError(
                f"column {name[:20] + '...'!r}: its name has {size} bytes, and at most {LONGEST_NAME} can name "
                "files; choose a shorter one"
            )


def check_free(columns: Iterable[str]) -> None:
    """Raise `ParameterError` for the name that shards keep for themselves."""
    if ORDER in columns:
        raise ParameterError(f"column {ORDER!r} is kept for shards, which number writes in it; choose another name")


def noting_keys(records: Iterable[Record], keys: set[str]) -> Iterator[Record]:
    """The records; the keys of their `extra` and payloads go into `keys`. What is nested in values is left out."""
    for record in records:
        keys.update(record.extra)
        if record.payload is not None:
            keys.update(record.payload)
        yield record


def keys_of(records: Iterable[Record]) -> set[str]:
    """The keys of the records, as `noting_keys` gathers them."""
    keys: set[str] = set()
    for _ in noting_keys(records, keys):
        pass
    return keys


def may_hold(keys: Collection[str], name: str) -> bool:
    """Whether a record with one of these keys may hold a value for a column of this name (`columns.value_in`)."""
    name = name.removeprefix(PAYLOAD)
    parts = name.split(".")
    return any(".".join(parts[:number]) in keys for number in range(1, len(parts) + 1))
