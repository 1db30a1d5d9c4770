"""Pages of a listing over shards.

Each shard says which of its records come next, and the first of all make the page. Then the shards that hold these give
them whole. All of one page is read at one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ...engine.errors import DamagedStoreError
from ...engine.index.columns import ORDER
from ...engine.index.masks import CompiledFilter
from ...engine.index.snapshot import Snapshot
from ...engine.listing.listing import OutdatedRecordError, Wanted, indexed_record, whole_records
from ...engine.listing.matching import compiled, passing, snapshots_of
from ...engine.listing.orders import Entry, Key, entries, merge
from ...engine.records.record import Record
from ...engine.storage.row_codec import RECORDS
from ...engine.storage.state import MemoryState
from ..coordinator.coordinator import Coordinator
from ..coordinator.holding import View
from ..protocol.order import orders_of, strip
from ..search.launches import Launch
from ..search.searcher import ShardedSearcher
from ..shard.shard import OutdatedError, Shard

# Positions of a segment that are read at a time.
BLOCK = 1_024


class Place(NamedTuple):
    """A record that a shard holds, and where it stands in the order of a listing."""

    key: Key
    namespace: str
    id: str
    record: Record | None
    """None where it is yet to be read."""


class ShardedPages:
    """The pages of a listing of all shards, as `listing.Pages`."""

    def __init__(self, searcher: ShardedSearcher, coordinator: Coordinator, wanted: Wanted) -> None:
        self._searcher = searcher
        self._coordinator = coordinator
        self._wanted = wanted
        # Shards have a column more, which a filter is not to name. So it is compiled without them first.
        compiled(searcher.template.index.memory.state, wanted.filter)

    def read(self, after: Key | None, count: int) -> tuple[list[tuple[Key, Record]], bool]:
        return self._searcher.retry(lambda view, until: self._read(view, until, after, count))

    def _read(
        self, view: View, until: float | None, after: Key | None, count: int
    ) -> tuple[list[tuple[Key, Record]], bool]:
        launch, links, wanted = Launch(self._coordinator, view, until, None), self._coordinator.links, self._wanted
        whole = wanted.namespace is None
        shards = range(view.placement.shards) if whole else view.placement.homes(wanted.namespace or "")
        asked = list_places, wanted, after, count + 1
        sent = {shard: links[shard].send("read", view.at(shard), *asked) for shard in shards}
        found: dict[int, list[Place]] = launch.receive(sent)
        ranked = [(place.key, shard, place) for shard, places in found.items() for place in places]
        ranked.sort(key=itemgetter(0), reverse=wanted.reverse)
        # Records without a time come last in both directions. Sorting is stable.
        ranked.sort(key=lambda each: int(each[0][0]))
        page = ranked[:count]
        if wanted.texts:
            ids: dict[int, dict[str, list[str]]] = {}
            for _, shard, place in page:
                ids.setdefault(shard, {}).setdefault(place.namespace, []).append(place.id)
            sent = {shard: links[shard].send("read", view.at(shard), read_records, own) for shard, own in ids.items()}
            records: dict[tuple[str, str], Record] = {}
            for answer in launch.receive(sent).values():
                records |= answer
            made = [records[place.namespace, place.id] for _, _, place in page]
        else:
            made = [place.record for _, _, place in page if place.record is not None]
        return [(each[0], record) for each, record in zip(page, made, strict=True)], len(ranked) > count


def list_places(shard: Shard, state: MemoryState, wanted: Wanted, after: Key | None, count: int) -> list[Place]:
    """The next records of a shard in the order of a listing. They are whole here where no texts are wanted."""
    snapshots, accepted = snapshots_of(state, wanted.namespace), compiled(state, wanted.filter)
    if wanted.order == "written":
        runs = [_entries_of_namespace(name, each, accepted, after, wanted.reverse) for name, each in snapshots.items()]
        found = merge(runs, wanted.reverse)
    else:
        found = entries(wanted.order, snapshots, accepted, after, wanted.reverse, _no_arrivals)
    return [
        Place(
            entry.key,
            entry.namespace,
            entry.id,
            None if wanted.texts else strip(indexed_record(state, snapshots, entry)),
        )
        for entry in islice(found, count)
    ]


def _no_arrivals(namespace: str, snapshot: Snapshot, documents: object) -> Sequence[int]:
    raise NotImplementedError("shards number writes by a column")


def _entries_of_namespace(
    namespace: str, snapshot: Snapshot, accepted: CompiledFilter, after: Key | None, reverse: bool
) -> Iterator[Entry]:
    """The entries of a namespace in the order of its writes, which the numbers of its segments ascend in."""
    places = range(len(snapshot.segments))
    return chain.from_iterable(
        _entries_of_segment(namespace, snapshot, place, accepted, after, reverse)
        for place in (reversed(places) if reverse else places)
    )


def _entries_of_segment(
    namespace: str, snapshot: Snapshot, place: int, accepted: CompiledFilter, after: Key | None, reverse: bool
) -> Iterator[Entry]:
    segment = snapshot.segments[place]
    numbers = segment.columns.numbers[ORDER]
    start, stop = 0, segment.size
    if after is not None:
        bound = int(np.searchsorted(numbers, after[1], "left" if reverse else "right"))
        start, stop = (0, bound) if reverse else (bound, stop)
    if start == stop:
        return
    mask = passing(snapshot, place, accepted)
    positions = np.arange(start, stop) if mask is None else start + np.flatnonzero(mask[start:stop])
    if reverse:
        positions = positions[::-1]
    for first in range(0, len(positions), BLOCK):
        block = positions[first : first + BLOCK]
        orders = orders_of(snapshot, block + snapshot.firsts[place]).tolist()
        ids = segment.ids.strings.take(block)
        for order, record_id, position in zip(orders, ids, block.tolist(), strict=True):
            yield Entry((0, order), namespace, record_id, place, position)


def read_records(shard: Shard, state: MemoryState, ids: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Record]:
    """The records with these ids of a state, whole, by (namespace, id).

    Raises `OutdatedError`, and `DamagedStoreError` for one that is gone although nobody wrote.
    """
    memory = shard.engine.index.memory
    try:
        found = whole_records(memory, state, ids)
    except OutdatedRecordError:
        with memory.paused() as now:
            if now.sequence != state.sequence:
                raise OutdatedError from None
            try:
                found = whole_records(memory, state, ids)
            except OutdatedRecordError as error:
                raise DamagedStoreError(
                    f"{RECORDS}: {error}; restore the file from a copy, as records cannot be rebuilt"
                ) from None
    return {key: strip(record) for key, record in found.items()}
