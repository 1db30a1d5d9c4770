"""What a shard holds of the records that pass a filter: functions as `engine/listing/matching.py` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...engine.index.columns import ORDER
from ...engine.index.masks import CompiledFilter
from ...engine.index.snapshot import Snapshot
from ...engine.listing.matching import passing, read_matching
from ...engine.records.filters import Filter
from ...engine.search.events import events_in
from ...engine.storage.state import MemoryState
from ..protocol.order import orders_of
from ..shard.shard import Shard


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
