"""All records of a store in the order in which they were written, as of one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice

from ..records.copies import own_copy
from ..records.record import Record
from .record_store import RecordStore
from .row_codec import UNPACKED, decode_data, decode_row, name_of
from .sqlite import named, open_reader, vectors_in
from .state import MemoryState

# Rows that are in memory at a time.
STREAM_ROWS = 1_000


def in_groups(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    """The records, in lists of at most `size`."""
    source = iter(records)
    while group := list(islice(source, size)):
        yield group


def stream_records(store: RecordStore | None, state: MemoryState, *, vectors: bool = True) -> Iterator[Record]:
    """The live records, oldest first. All show the store at the moment of the first step; writers go on meanwhile.

    Where there is no store, they are those that the segments of `state` keep, one namespace after another. With
    `vectors` false the records have no embedding. Raises `StorageError` for a closed store, `DamagedStoreError` for a
    record that was altered.
    """
    return _kept(state, vectors) if store is None else stream_stored(store, vectors=vectors)


def stream_stored(store: RecordStore, *, vectors: bool = True) -> Iterator[Record]:
    """As `stream_records`, of a store."""
    # A closed store raises here.
    assert store.config is not None
    with named(store.path), closing(open_reader(store.path)) as reader:
        reader.execute("BEGIN")
        column = vectors_in(reader) if vectors else "NULL"
        names = {number: name_of(name) for number, name in reader.execute("SELECT number, name FROM namespaces")}
        rows = reader.execute(f"SELECT namespace, id, checksum, {UNPACKED}, {column} FROM records ORDER BY sequence")
        while chunk := rows.fetchmany(STREAM_ROWS):
            for number, *row in chunk:
                # A number without a name, after damage, fails the check of the row's checksum.
                name = names.get(number, "")
                yield decode_row(name, *row) if vectors else decode_data(name, *row[:3])[0]


def _kept(state: MemoryState, vectors: bool) -> Iterator[Record]:
    for snapshot in state.snapshots.values():
        for number, segment in enumerate(snapshot.segments):
            assert segment.records is not None
            alive = snapshot.alive(number)
            for position, record in enumerate(segment.records):
                if alive is None or alive[position]:
                    yield own_copy(record, vectors=vectors)


def count_records(store: RecordStore | None, state: MemoryState) -> int:
    """The number of records that `stream_records` gives."""
    if store is None:
        return sum(snapshot.size for snapshot in state.snapshots.values())
    return count_stored(store)


def count_stored(store: RecordStore) -> int:
    """The number of records that `stream_stored` gives."""
    return sum(store.count(name) for name in store.namespaces())
