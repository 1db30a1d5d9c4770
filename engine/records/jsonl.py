"""Reads records from JSON lines files and from batches that a caller passes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import RecordError, StorageError
from ..moments import MAX_TIME, Span
from .checks import checked_span, shorten
from .record import Record

T = TypeVar("T")


def read_json_lines(path: str | os.PathLike[str], parse: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """Yields ``(position, parse(object))`` for each line of a JSON lines file. Blank lines are skipped.

    The position is ``file:line``. Raises `RecordError`, with the position, for a line that is not UTF-8 or not JSON.
    A `RecordError` that `parse` raises gets the position too. Raises `StorageError` if the file cannot be read.
    """
    path = Path(path)
    try:
        handle = path.open("rb")
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    with handle:
        yield from parse_lines(handle, path.name, parse)


def parse_lines(lines: Iterable[bytes], name: str, parse: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """As `read_json_lines`, for lines that come from anywhere; `name` is what positions call their source."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            data = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise RecordError(f"not UTF-8 at byte {error.start}", where=where) from None
        except ValueError as error:
            raise RecordError(f"not JSON: {error}", where=where) from None
        except RecursionError:
            raise RecordError("not usable JSON: nested too deeply", where=where) from None
        try:
            parsed = parse(data)
        except RecordError as error:
            raise error.at(where) from None
        yield where, parsed


def check_batch(records: object, verb: str) -> None:
    """Raises `RecordError` for a value that is not a batch of records, for example a single record."""
    if isinstance(records, (Record, Mapping, str)) or not isinstance(records, Iterable):
        raise RecordError(f"{verb} takes a batch: pass a list of records")


def checked_ids(ids: object, verb: str) -> list[str]:
    """A batch of ids as a list. Raises `RecordError` for a single id, and for an id that is no string."""
    if isinstance(ids, (str, bytes, Record, Mapping)) or not isinstance(ids, Iterable):
        raise RecordError(f"{verb} takes a batch: pass a list of ids")
    batch = list(ids)
    for record_id in batch:
        if not isinstance(record_id, str):
            raise RecordError(f"an id must be a string, not {shorten(record_id)}")
    return batch


def as_records(
    records: Iterable[Record | Mapping[str, Any]], searched: Collection[str] | None = None
) -> Iterator[Record]:
    """Yields the records; `Record.from_dict` reads those that are mappings. Raises `RecordError`.

    With `searched`, the text fields of an engine, a record that has another field is refused.
    """
    for number, record in enumerate(records, 1):
        try:
            checked = record if isinstance(record, Record) else Record.from_dict(record)
            if searched is not None and checked.fields:
                check_fields(checked, searched)
        except RecordError as error:
            raise error.at(f"record {number}") from None
        yield checked


def check_fields(record: Record, searched: Collection[str]) -> None:
    """Raise `RecordError` for a text field of the record that is none of the `searched` ones."""
    for name in record.fields:
        if name == "text":
            raise RecordError("field 'text' is the record's own text; give it another name", record_id=record.id)
        if name not in searched:
            weights = ", ".join(f"{field!r}: 1.0" for field in (*searched, name))
            raise RecordError(
                f"no search would find the field {name!r}: make the engine with fields={{{weights}}}, or keep the "
                "value in 'payload' or 'extra'",
                record_id=record.id,
            )


def expiring(records: Iterable[Record], ttl: Span | None) -> Iterator[Record]:
    """The records; those that do not say when they expire do so `ttl` after now. Raises `ParameterError`."""
    if ttl is None:
        return iter(records)
    expires = min(time.time() + checked_span("ttl", ttl, 0.0, MAX_TIME), MAX_TIME)
    return (record if record.expires is not None else record.with_expiry(expires) for record in records)


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yields the records of a JSON lines file, one object a line. Raises the same errors as `read_json_lines`."""
    for _, record in read_json_lines(path, Record.from_dict):
        yield record
