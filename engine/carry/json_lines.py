"""Records as JSON lines: one object a line, in the order of arrival."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import IO

from ..errors import RecordError, StorageError
from ..records.jsonl import parse_lines
from ..records.record import Record
from ..storage.row_codec import JSON
from .files import AnyFile, name_of, opened
from .rows import Carried, from_json, to_json


def write_lines(handle: IO[bytes], records: Iterable[Record], model: str | None) -> int:
    """Write the records; returns how many."""
    count = 0
    for record in records:
        handle.write(JSON.encode(to_json(record, model)).encode() + b"\n")
        count += 1
    return count


def split_lines(parts: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The lines of a stream that comes in parts. Raises `RecordError` for one of more than `most` bytes."""
    held = bytearray()
    for part in parts:
        # Of a long line each part is looked at once.
        *lines, rest = part.split(b"\n")
        if lines:
            held += lines[0]
            yield bytes(held)
            yield from lines[1:]
            held.clear()
        held += rest
        if len(held) > most:
            raise RecordError(f"a line may have {most:,} bytes")
    if held:
        yield bytes(held)


def read_lines(file: AnyFile) -> Iterator[Carried]:
    """The records of a file, one line at a time. Raises `RecordError` with file and line, and `StorageError`."""
    name = name_of(file)
    with opened(file) as handle:
        try:
            for where, (record, model) in parse_lines(handle, name, from_json):
                yield Carried(where, record, model)
        except zlib.error:
            raise StorageError(f"{name}: the compressed file is damaged; get it again") from None
