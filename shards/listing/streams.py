"""All records of a sharded memory in the order of their writes, as of one moment, while others write.

Each shard begins to read its store while writes are held off, so that all show one epoch. Then it gives its records a
page at a time, and the owner merges the pages by the numbers of the writes.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

from ...engine.errors import DamagedStoreError
from ...engine.index.masks import EVERYTHING
from ...engine.records.record import Record
from ...engine.storage.row_codec import RECORDS, decode_data, decode_row
from ...engine.storage.sqlite import named, rows_of, vectors_in
from ..coordinator.coordinator import Coordinator
from ..processes.tasks import Tasks
from ..protocol.order import entries_written, strip
from ..shard.shard import Shard

PAGE = 1_000
"""Records that a shard gives at a time."""


def stream_all(
    coordinator: Coordinator, namespace: str | None, *, vectors: bool = True
) -> Generator[Record, None, None]:
    """The records of one namespace or (None) of all, oldest first, expired ones too, as of the first step.

    With `vectors` false they have no embedding. Raises `ShardError` where a shard is started anew meanwhile.
    """
    with Tasks(coordinator.deadline) as tasks:
        with coordinator.holding(None if namespace is None else [namespace]):
            shards = coordinator.placement.holders(namespace)
            tasks.begin([coordinator.links[shard] for shard in shards], Stream, namespace, vectors)
        streams = [_read_stream(tasks, shard) for shard in shards]
        # No two records have one number.
        yield from (record for _, record in heapq.merge(*streams))


def _read_stream(tasks: Tasks, shard: int) -> Iterator[tuple[int, Record]]:
    sent = tasks.send(shard)
    while page := tasks.receive(shard, sent):
        # The shard reads the next page while this one is used.
        sent = tasks.send(shard)
        yield from page


class Stream:
    """A shard's records of the moment at which it starts. The caller lets nobody write meanwhile."""

    def __init__(self, shard: Shard, namespace: str | None, vectors: bool) -> None:
        self._shard, self._namespace = shard, namespace
        self._vectors = vectors
        self._held = ExitStack()

    def start(self) -> None:
        shard, namespace = self._shard, self._namespace
        memory = shard.engine.index.ready()
        self._store = memory.store
        # The shard itself deletes what has expired.
        with memory.paused():
            self._state = shard.shown()
            if memory.store is not None:
                self._reader = self._held.enter_context(memory.store.moment())
        snapshots = self._state.snapshots
        names = snapshots if namespace is None else {namespace}.intersection(snapshots)
        self._entries = heapq.merge(*(entries_written(name, snapshots[name], EVERYTHING) for name in names))

    def go_on(self) -> list[tuple[int, Record]]:
        """The next records, each with the number of its write; [] at the end."""
        page = list(islice(self._entries, PAGE))
        ids: dict[str, list[str]] = {}
        for entry in page:
            ids.setdefault(entry.namespace, []).append(entry.id)
        found = {(name, record.id): record for name, own in ids.items() for record in self._fetch(name, own)}
        try:
            return [(entry.key[1], strip(found[entry.namespace, entry.id])) for entry in page]
        except KeyError as missing:
            raise DamagedStoreError(
                f"{RECORDS}: the record with id {missing.args[0][1]!r} is not found, and the index holds it; restore "
                "the file from a copy, as records cannot be rebuilt"
            ) from None

    def end(self) -> None:
        self._held.close()

    def _fetch(self, name: str, ids: Sequence[str]) -> Iterator[Record]:
        if self._store is None:
            kept = self._state.records_of(name, ids, vectors=self._vectors)
            yield from (record for record in kept if record is not None)
            return
        columns: Any = vectors_in(self._reader) if self._vectors else "NULL"
        with named(self._store.path):
            rows = rows_of(self._reader, f"id, checksum, data, {columns}", name, ids)
        for row in rows:
            yield decode_row(name, *row) if self._vectors else decode_data(name, *row[:3])[0]
