"""Which names a user's columns may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import ParameterError
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
