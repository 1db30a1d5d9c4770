"""`Listing`: the records of a memory one after another, page by page, while others write.

A page shows one moment. Its keys come from the snapshots, its records from the store. A row that was written after the
snapshots were published, or is gone, shows that a write came in between: the page is then read again from newer
snapshots, and after a few attempts while writes wait.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from ..arrays import Integers
from ..errors import DamagedStoreError, StorageError
from ..index.columns import ABSENT
from ..index.snapshot import Snapshot
from ..records.filters import Filter
from ..records.record import Record
from ..storage.row_codec import RECORDS
from ..storage.state import MemoryState
from ..storage.storage import Storage
from .cursor import Course, decode, encode
from .matching import compiled, snapshots_of
from .orders import Entry, Key, entries

# Records that are read at a time.
PAGE = 1_000
# How often a page is read again because of a write, before writes are held off.
WRITER_ATTEMPTS = 4
# As WRITER_ATTEMPTS, where the writer is another process and cannot be held off.
READER_ATTEMPTS = 40


class Source(Protocol):
    """The memory of an engine, which may be replaced while it is listed."""

    def ready(self) -> Storage: ...

    def refresh(self) -> None: ...


@dataclass(frozen=True)
class Wanted:
    """Which records are listed, and how."""

    filter: Filter | None
    namespace: str | None
    order: str
    reverse: bool
    texts: bool


class Pages(Protocol):
    """Reads the pages of a listing."""

    def read(self, after: Key | None, count: int) -> tuple[list[tuple[Key, Record]], bool]:
        """(the next `count` records behind the key `after`, each with its key; whether more follow).

        All are of one moment.
        """
        ...


class OutdatedRecordError(Exception):
    """A record was written since the snapshots were published."""


class Listing(Iterator[Record]):
    """An iterator of records, with the `cursor` at which another listing goes on. `Engine.records` makes it.

    Records are read a page of up to 1,000 at a time. A page shows one moment; the next one may show a later moment. A
    record that is live from the first page to the last, and keeps its place in the order, is given exactly once.
    """

    def __init__(self, pages: Pages, wanted: Wanted, secret: str, after: str | None, limit: int | None) -> None:
        """`secret` is what the cursors of the memory are sealed with."""
        self._pages = pages
        self._wanted = wanted
        self._left = limit
        self._course = Course(wanted.order, wanted.reverse, wanted.namespace)
        self._secret = secret
        self._key = None if after is None else decode(after, self._course, secret)
        self._page: deque[tuple[Key, Record]] = deque()
        self._more = True

    def __iter__(self) -> Listing:
        return self

    def __repr__(self) -> str:
        wanted = self._wanted
        parts = [f"order={wanted.order!r}", f"namespace={wanted.namespace!r}"]
        parts += ["reverse=True"] if wanted.reverse else []
        parts += [f"filter={wanted.filter!r}"] if wanted.filter is not None else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def __next__(self) -> Record:
        if not self._page and self._more and self._left != 0:
            count = PAGE if self._left is None else min(PAGE, self._left)
            page, self._more = self._pages.read(self._key, count)
            self._page.extend(page)
            self._left = None if self._left is None else self._left - len(page)
        if not self._page:
            raise StopIteration
        self._key, record = self._page.popleft()
        return record

    @property
    def cursor(self) -> str | None:
        """Where to go on behind the record that was given last: pass it as ``after``. It stays good while others write.

        None once nothing follows, and before the first record of a listing that was begun without ``after``: with
        ``limit=0`` it is `after` itself.
        """
        return self.position if self._page or self._more else None

    @property
    def position(self) -> str | None:
        """As `cursor`, at the end too: there records that are written later may follow. None before the first record
        of a listing that was begun without ``after``.
        """
        return None if self._key is None else encode(self._course, self._key, self._secret)


class MemoryPages:
    """The pages of a listing of one memory. Raises as `Engine.records`."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        self._source = source
        self._wanted = wanted
        # Of the last page: the snapshots and the entries behind it, which hold as long as nobody writes.
        self._snapshots: Mapping[str, Snapshot] = {}
        self._entries: Iterator[Entry] | None = None
        memory = source.ready()
        compiled(memory.state, wanted.filter)  # raises for a column that is not there
        if wanted.texts:
            memory.check_texts()

    def read(self, after: Key | None, count: int) -> tuple[list[tuple[Key, Record]], bool]:
        memory = self._source.ready()
        read_only = memory.store is not None and memory.store.read_only
        for _ in range(READER_ATTEMPTS if read_only else WRITER_ATTEMPTS):
            memory = self._source.ready()
            with suppress(OutdatedRecordError):
                return self._read(memory, memory.state, after, count)
            if read_only:
                self._source.refresh()
        if read_only:
            raise StorageError("the writer changes these records faster than they can be read; list them again later")
        with memory.paused() as state:
            try:
                return self._read(memory, state, after, count)
            except OutdatedRecordError as error:
                raise DamagedStoreError(
                    f"{RECORDS}: {error}; restore the file from a copy, as records cannot be rebuilt"
                ) from None

    def _read(
        self, memory: Storage, state: MemoryState, after: Key | None, count: int
    ) -> tuple[list[tuple[Key, Record]], bool]:
        wanted, snapshots = self._wanted, snapshots_of(state, self._wanted.namespace)
        entries_left = self._entries
        # Left behind only by a page that was read whole.
        self._entries = None
        if entries_left is None or not _same(snapshots, self._snapshots):
            arrivals = partial(_arrivals, memory, state)
            accepted = compiled(state, wanted.filter)
            entries_left = entries(wanted.order, snapshots, accepted, after, wanted.reverse, arrivals)
        page = list(islice(entries_left, count))
        following = list(islice(entries_left, 1))
        if wanted.texts:
            ids: dict[str, list[str]] = {}
            for entry in page:
                ids.setdefault(entry.namespace, []).append(entry.id)
            found = whole_records(memory, state, ids)
            records = [found[entry.namespace, entry.id] for entry in page]
        else:
            records = [indexed_record(state, snapshots, entry) for entry in page]
        self._snapshots, self._entries = snapshots, chain(following, entries_left)
        return [(entry.key, record) for entry, record in zip(page, records, strict=True)], bool(following)


def secret_of(memory: Storage) -> str:
    """What cursors of a memory are sealed with. That of a directory stays as long as its records do."""
    config = None if memory.store is None else memory.store.config
    return memory.secret if config is None else str(config["store"])


def _same(snapshots: Mapping[str, Snapshot], others: Mapping[str, Snapshot]) -> bool:
    return snapshots.keys() == others.keys() and all(others[name] is one for name, one in snapshots.items())


def _arrivals(
    memory: Storage, state: MemoryState, namespace: str, snapshot: Snapshot, documents: Integers
) -> Sequence[int]:
    """As `orders.Numbers`."""
    if snapshot.arrivals is not None:
        segments = np.searchsorted(snapshot.firsts, documents, "right") - 1
        positions = documents - np.array(snapshot.firsts)[segments]
        return [snapshot.arrivals.of(n, p) for n, p in zip(segments.tolist(), positions.tolist(), strict=True)]
    assert memory.store is not None
    ids = snapshot.ids_of(documents).tolist()
    sequences = memory.store.sequences(namespace, ids)
    return [_checked(sequence, record_id, state) for sequence, record_id in zip(sequences, ids, strict=True)]


def _checked(sequence: int | None, record_id: str, state: MemoryState) -> int:
    if sequence is None or sequence > state.sequence:
        raise OutdatedRecordError(f"the record with id {record_id!r} is not the one that the index holds")
    return sequence


def whole_records(
    memory: Storage, state: MemoryState, ids: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], Record]:
    """The records with these ids of a state as they were written, by (namespace, id); `ids` by namespace.

    Raises `OutdatedRecordError` where the store has another record than the state, or none.
    """
    records: dict[tuple[str, str], Record] = {}
    for namespace, some in ids.items():
        if memory.store is None:
            kept = zip(some, state.records_of(namespace, some), strict=True)
            records |= {(namespace, record_id): record for record_id, record in kept if record is not None}
            continue
        for record_id, row in zip(some, memory.store.rows(namespace, some), strict=True):
            _checked(None if row is None else row[0], record_id, state)
            assert row is not None
            records[namespace, record_id] = row[1]
    return records


def indexed_record(state: MemoryState, snapshots: Mapping[str, Snapshot], entry: Entry) -> Record:
    """The record of an entry as the index knows it: its id, namespace and columns."""
    columns = snapshots[entry.namespace].segments[entry.segment].columns
    values: dict[str, Any] = {}
    for name, codes in columns.categories.items():
        if (code := int(codes[entry.position])) != ABSENT:
            text = state.values[name].strings[code]
            values[name] = json.loads(text) if name in state.schema.json else text
    for name, numbers in columns.numbers.items():
        if not math.isnan(number := float(numbers[entry.position])):
            values[name] = number
    extra = {name: values.pop(name) for name in state.schema.declared() if name in values}
    return Record(entry.id, "", entry.namespace, extra=extra, **values)
