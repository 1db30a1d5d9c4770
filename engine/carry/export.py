"""Writes the records of a store to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..index.columns import Columns, Schema
from ..index.masks import compile_filter
from ..records.filters import Filter, columns_in
from ..records.record import Record
from ..storage.failpoints import reach
from ..storage.record_stream import count_records, in_groups, stream_records
from ..storage.row_codec import check_objects
from ..storage.storage import Storage
from ..text.vocabulary import Vocabulary
from .files import AnyFile, format_of, written
from .json_lines import write_lines
from .progress import counted
from .rows import model_of
from .tables import write_table

# Records that a filter looks at together.
FILTER_RECORDS = 1_000


Source = tuple[Callable[[], AbstractContextManager[Iterable[Record]]], Callable[[], int]]
"""What gives all records of a moment, and what says how many they are, for the bar."""


def source_of(memory: Storage, vectors: bool) -> Source:
    """The records of a memory. With `vectors` false they have no embedding."""

    def read() -> AbstractContextManager[Iterable[Record]]:
        memory.check_texts()
        held = stream_records(memory.store, memory.state, vectors=vectors)
        return nullcontext(held if memory.store is not None else _checked(held))

    return read, lambda: count_records(memory.store, memory.state)


def export_records(
    source: Source,
    schema: Schema,
    file: AnyFile,
    *,
    format: str | None,
    namespace: str | None,
    filter: Filter | None,
    pin: Mapping[str, Any] | None,
    progress: bool,
) -> int:
    """Write those of the records that are asked for, as `Engine.export`; `pin` names the model of the vectors."""
    read, count = source
    write = {"jsonl": write_lines, "parquet": write_table}[format_of(file, format)]
    if filter is not None:
        # A filter that does not fit the columns fails here, before a file is made.
        schema = schema.reaching(columns_in(filter))
        compile_filter(filter, schema, {name: Vocabulary() for name in schema.categories})
    with read() as held:
        if progress:
            held = counted(held, "exporting", count(), progress)
        if namespace is not None:
            held = (record for record in held if record.namespace == namespace)
        if filter is not None:
            held = _passing(held, filter, schema)
        with written(file) as handle:
            return write(handle, _reached(held), model_of(pin))


def _checked(records: Iterable[Record]) -> Iterator[Record]:
    """The records of an engine in memory, where `extra` may hold what no file can."""
    for record in records:
        check_objects(record, "extra", "payload")
        yield record


def _reached(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        reach("export.record")
        yield record


def _passing(records: Iterable[Record], filter: Filter, schema: Schema) -> Iterator[Record]:
    """The records that pass the filter, by what they hold themselves: the index may know later writes."""
    for chunk in in_groups(records, FILTER_RECORDS):
        values = {name: Vocabulary() for name in schema.categories}
        columns = Columns.of(chunk, schema, values)
        accepted = compile_filter(filter, schema, values)
        for record, passes in zip(chunk, accepted.mask(columns).tolist(), strict=True):
            if passes:
                yield record
