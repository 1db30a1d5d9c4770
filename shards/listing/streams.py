"""All records of a sharded memory in the order of their writes, as of one moment, while others write.

Each shard begins to read its store while writes are held off, so that all show one epoch. Then it gives its records a
page at a time, and the owner merges the pages by the numbers of the writes.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.arrays import Integers
from ...engine.errors import DamagedStoreError, FanrankError, ShardError
from ...engine.index.snapshot import Snapshot
from ...engine.records.record import Record
from ...engine.storage.row_codec import RECORDS, decode_data, decode_row
from ...engine.storage.sqlite import StoreMoment, named, rows_of, vectors_in
from ...engine.storage.state import MemoryState
from ..coordinator.coordinator import Coordinator
from ..processes.links import Link, Waiting, collect
from ..protocol.messages import Failure, Gone
from ..protocol.order import number_of, orders_of, strip
from ..shard.shard import OutdatedError, Shard

PAGE = 1_000
"""Records that a shard gives at a time."""

TRIES = 4
"""Attempts to begin beside a shard that deletes records which have expired."""


def stream_all(
    coordinator: Coordinator, namespace: str | None, *, vectors: bool = True
) -> Generator[Record, None, None]:
    """The records of one namespace or (None) of all, oldest first, expired ones too, as of the first step.

    With `vectors` false they have no embedding. Raises `ShardError` where a shard is started anew meanwhile.
    """
    key = secrets.token_hex(8)
    with coordinator.holding(None if namespace is None else [namespace]):
        view = coordinator.view
        shards = range(view.placement.shards) if namespace is None else view.placement.homes(namespace)
        links = [coordinator.links[shard] for shard in shards]
        try:
            left = links
            for _ in range(TRIES):
                asked = begin_stream, key, namespace, vectors
                sent = {link.number: link.send("begin", view.at(link.number), *asked) for link in left}
                begun = collect(sent, coordinator.until())
                for answer in begun.values():
                    if isinstance(answer, Failure):
                        raise answer.error
                left = [link for link in left if isinstance(begun[link.number], Gone)]
            if left:
                raise ShardError(f"shard {left[0].number} was started anew, or changes by itself; try again")
        except BaseException:
            _end_streams(links, key)
            raise
    try:
        streams = [_read_stream(coordinator, link, key) for link in links]
        yield from map(strip, heapq.merge(*streams, key=number_of))
    finally:
        _end_streams(links, key)


def _read_stream(coordinator: Coordinator, link: Link, key: str) -> Iterator[Record]:
    sent: Waiting = link.send("call", next_page, key)
    while True:
        page: list[Record] | None = sent.result(coordinator.until())
        if page is None:
            raise ShardError(
                f"shard {link.number} was started anew, and its records of the first moment are lost; begin anew"
            )
        if not page:
            return
        # The shard reads the next page while this one is used.
        sent = link.send("call", next_page, key)
        yield from page


def _end_streams(links: Sequence[Link], key: str) -> None:
    with suppress(FanrankError):
        collect({link.number: link.send("call", end_stream, key) for link in links}, None, missing=set())


def begin_stream(shard: Shard, state: MemoryState, key: str, namespace: str | None, vectors: bool) -> None:
    """Begin to read a shard's records of this moment. The caller lets nobody write meanwhile.

    Raises `OutdatedError` where the shard has deleted records that expired.
    """
    memory = shard.engine.index.memory
    snapshots = state.snapshots
    if namespace is not None:
        snapshots = {namespace: snapshots[namespace]} if namespace in snapshots else {}
    stream = Stream(state, *_in_order(snapshots), vectors)
    with memory.paused() as now:
        if now.sequence != state.sequence:
            raise OutdatedError
        if memory.store is not None:
            stream.path = memory.store.path
            stream.reader = stream.held.enter_context(memory.store.moment())
    shard.tasks[key] = stream


def next_page(shard: Shard, key: str) -> list[Record] | None:
    """The next records of a stream, stamped; [] at its end, None where the shard knows of none."""
    stream: Stream | None = shard.tasks.get(key)
    return None if stream is None else stream.read()


def end_stream(shard: Shard, key: str) -> None:
    """Let go of a stream, if it is there."""
    stream: Stream | None = shard.tasks.pop(key, None)
    if stream is not None:
        stream.held.close()


def _in_order(snapshots: Mapping[str, Snapshot]) -> tuple[list[str], npt.NDArray[np.int32], Integers]:
    """(the namespaces, the number of each record's namespace, its document), in the order of the writes.

    It takes 12 bytes a record, and 32 while they are sorted.
    """
    names, spaces, documents, orders = list(snapshots), [], [], []
    for number, snapshot in enumerate(snapshots.values()):
        own = [np.zeros(0, dtype=np.int64)]
        for place, segment in enumerate(snapshot.segments):
            alive = snapshot.alive(place)
            own.append(snapshot.firsts[place] + (np.arange(segment.size) if alive is None else np.flatnonzero(alive)))
        live = np.concatenate(own)
        documents.append(live)
        spaces.append(np.full(len(live), number, dtype=np.int32))
        orders.append(orders_of(snapshot, live))
    if not names:
        return names, np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    ranking = np.argsort(np.concatenate(orders), kind="stable")
    return names, np.concatenate(spaces)[ranking], np.concatenate(documents)[ranking]


@dataclass(eq=False)
class Stream:
    """A shard's records of one moment, from the next one on."""

    state: MemoryState
    names: list[str]
    spaces: npt.NDArray[np.int32]
    documents: Integers
    vectors: bool
    place: int = 0
    path: Path = field(default_factory=Path)
    reader: StoreMoment | None = None
    held: ExitStack = field(default_factory=ExitStack)

    def read(self) -> list[Record]:
        """The next page, in order."""
        stop = self.place + PAGE
        spaces, documents = self.spaces[self.place : stop], self.documents[self.place : stop]
        self.place = stop
        keys = [("", "")] * len(spaces)
        found: dict[tuple[str, str], Record] = {}
        for number in np.unique(spaces).tolist():
            name = self.names[number]
            places = np.flatnonzero(spaces == number)
            ids = self.state.snapshot(name).ids_of(documents[places]).tolist()
            for at, record_id in zip(places.tolist(), ids, strict=True):
                keys[at] = name, record_id
            found |= {(name, record.id): record for record in self._fetch(name, ids)}
        missing = next((key for key in keys if key not in found), None)
        if missing is not None:
            raise DamagedStoreError(
                f"{RECORDS}: the record with id {missing[1]!r} is not found, and the index holds it; restore the file "
                "from a copy, as records cannot be rebuilt"
            )
        return [found[key] for key in keys]

    def _fetch(self, name: str, ids: Sequence[str]) -> Iterator[Record]:
        if self.reader is None:
            kept = self.state.records_of(name, ids, vectors=self.vectors)
            yield from (record for record in kept if record is not None)
            return
        columns: Any = vectors_in(self.reader) if self.vectors else "NULL"
        with named(self.path):
            rows = rows_of(self.reader, f"id, checksum, data, {columns}", name, ids)
        for row in rows:
            yield decode_row(name, *row) if self.vectors else decode_data(name, *row[:3])[0]
