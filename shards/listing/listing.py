"""Pages of a listing over shards, and what a shard holds of the records that pass a filter.

Each shard says which of its records come next, and the first of all make the page. Then the shards that hold these give
them whole. All of one page is read at one epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ...engine.index.columns import ORDER
from ...engine.index.masks import CompiledFilter
from ...engine.index.snapshot import Snapshot
from ...engine.listing.listing import Wanted, indexed_record
from ...engine.listing.matching import compiled, passing, read_matching, snapshots_of
from ...engine.listing.orders import Key, entries, merge
from ...engine.records.filters import Filter
from ...engine.records.record import Record
from ...engine.search.events import events_in
from ...engine.storage.state import MemoryState
from ..protocol.order import entries_written, orders_of, strip
from ..search.launches import Launch, ids_by_namespace
from ..search.searcher import ShardedSearcher
from ..shard.records import find_having, read_records
from ..shard.shard import Shard


class Place(NamedTuple):
    """A record that a shard holds, and where it stands in the order of a listing."""

    key: Key
    namespace: str
    id: str
    record: Record | None
    """None where it is yet to be read."""


class ShardedPages:
    """The pages of a listing of all shards, as `listing.Pages`."""

    def __init__(self, searcher: ShardedSearcher, wanted: Wanted) -> None:
        self._searcher = searcher
        self._wanted = wanted
        # Shards have a column more, which a filter is not to name. So it is compiled without them first.
        compiled(searcher.template.index.memory.state, wanted.filter)

    def read(self, after: Key | None, count: int) -> tuple[list[tuple[Key, Record]], bool]:
        return self._searcher.retry(lambda launch: self._read(launch, after, count))

    def _read(self, launch: Launch, after: Key | None, count: int) -> tuple[list[tuple[Key, Record]], bool]:
        wanted = self._wanted
        shards = launch.view.placement.holders(wanted.namespace)
        found: dict[int, list[Place]] = launch.read(dict.fromkeys(shards, (list_places, wanted, after, count + 1)))
        ranked = [place for places in found.values() for place in places]
        ranked.sort(key=itemgetter(0), reverse=wanted.reverse)
        # Records without a time come last in both directions. Sorting is stable.
        ranked.sort(key=lambda place: int(place.key[0]))
        page = ranked[:count]
        if wanted.texts:
            ids = ids_by_namespace((place.namespace, place.id) for place in page)
            records = launch.read_records(read_records, ids)
            made = [records[place.namespace, place.id] for place in page]
        else:
            made = [place.record for place in page if place.record is not None]
        return [(place.key, record) for place, record in zip(page, made, strict=True)], len(ranked) > count


def list_places(shard: Shard, state: MemoryState, wanted: Wanted, after: Key | None, count: int) -> list[Place]:
    """The next records of a shard in the order of a listing. They are whole here where no texts are wanted."""
    snapshots, accepted = snapshots_of(state, wanted.namespace), compiled(state, wanted.filter)
    if wanted.order == "written":
        behind = None if after is None else int(after[1])
        runs = [entries_written(name, own, accepted, behind, wanted.reverse) for name, own in snapshots.items()]
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


def matching_in(
    shard: Shard,
    state: MemoryState,
    read: Callable[..., Any],
    filter: Filter | None,
    namespace: str | None,
    *arguments: Any,
) -> Any:
    """What a function gives for the records of a shard that pass, as `read_matching`."""
    return read_matching(read, state, filter, namespace, *arguments)


def ids_written(
    state: MemoryState, snapshots: Mapping[str, Snapshot], accepted: CompiledFilter
) -> dict[str, list[tuple[int, str]]]:
    """(order, id) of the records that pass, by namespace, in the order of their writes."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name, snapshot in snapshots.items():
        for number, segment in enumerate(snapshot.segments):
            mask = passing(snapshot, number, accepted)
            own = np.arange(segment.size) if mask is None else np.flatnonzero(mask)
            orders = segment.columns.numbers[ORDER][own].astype(np.int64).tolist()
            found.setdefault(name, []).extend(zip(orders, segment.ids.strings.take(own), strict=True))
    return {name: pairs for name, pairs in found.items() if pairs}


def events_written(
    state: MemoryState, snapshots: Mapping[str, Snapshot], accepted: CompiledFilter, *asked: Any
) -> list[tuple[float, int, str]]:
    """(minus time, minus order, id) of the events that `events_in` finds: ascending, they are newest first."""
    ((_, snapshot),) = snapshots.items()
    documents, times = events_in(state, snapshot, accepted, *asked)
    orders, ids = orders_of(snapshot, documents), snapshot.ids_of(documents).tolist()
    return list(zip(np.negative(times).tolist(), np.negative(orders).tolist(), ids, strict=True))


def ids_having(launch: Launch, texts: Mapping[str, Sequence[str]]) -> dict[str, list[list[str]]]:
    """The ids of the live records that have each of these texts, by namespace, in the order of their writes."""
    wanted: dict[int, dict[str, Sequence[str]]] = {}
    for name, some in texts.items():
        for shard in launch.view.placement.holders(name):
            wanted.setdefault(shard, {})[name] = some
    pairs: dict[str, list[list[tuple[int, str]]]] = {name: [[] for _ in some] for name, some in texts.items()}
    for answer in launch.read({shard: (find_having, own) for shard, own in wanted.items()}).values():
        for name, found in answer.items():
            for place, order, record_id in found:
                pairs[name][place].append((order, record_id))
    return {name: [[own for _, own in sorted(some)] for some in found] for name, found in pairs.items()}
