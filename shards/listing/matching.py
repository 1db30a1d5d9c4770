"""What a shard holds at an epoch of the records that pass a filter: functions that `Shard.read` is given.

`namespace` is one, or None: all.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...engine.index.time_order import documents_between
from ...engine.listing import matching
from ...engine.records.filters import Filter
from ...engine.storage.state import MemoryState
from ..protocol.order import orders_of
from ..shard.shard import Shard

Value = str | float | None


def count_passing(shard: Shard, state: MemoryState, filter: Filter | None, namespace: str | None) -> int:
    """How many live records pass."""
    return matching.count(matching.snapshots_of(state, namespace), matching.compiled(state, filter))


def ids_passing(
    shard: Shard, state: MemoryState, filter: Filter | None, namespace: str | None
) -> dict[str, list[tuple[int, str]]]:
    """(order, id) of the live records that pass, by namespace, in the order of their writes."""
    accepted = matching.compiled(state, filter)
    found = {}
    for name, snapshot in matching.snapshots_of(state, namespace).items():
        pairs: list[tuple[int, str]] = []
        for number, segment in enumerate(snapshot.segments):
            mask = matching.passing(snapshot, number, accepted)
            own = np.arange(segment.size) if mask is None else np.flatnonzero(mask)
            orders = orders_of(snapshot, own + snapshot.firsts[number])
            pairs += zip(orders.tolist(), segment.ids.strings.take(own), strict=True)
        if pairs:
            found[name] = pairs
    return found


def values_passing(
    shard: Shard, state: MemoryState, filter: Filter | None, namespace: str | None, column: str
) -> Counter[Value]:
    """How many live records that pass have each value of a column."""
    snapshots = matching.snapshots_of(state, namespace)
    return Counter(matching.distinct(state, snapshots, column, matching.compiled(state, filter)))


def events_passing(
    shard: Shard,
    state: MemoryState,
    filter: Filter | None,
    namespace: str,
    kind: str | None,
    since: float,
    until: float,
) -> list[tuple[float, int, str]]:
    """(minus time, minus order, id) of the live records of a type in a time: ascending, they are newest first."""
    code = None if kind is None else state.values["type"].ids.get(kind)
    if kind is not None and code is None:
        return []
    snapshot = matching.searched(state.snapshot(namespace))
    documents, times = documents_between(snapshot, code, matching.compiled(state, filter), since, until)
    orders = orders_of(snapshot, documents)
    ids = snapshot.ids_of(documents).tolist()
    return [(-time, -order, name) for time, order, name in zip(times.tolist(), orders.tolist(), ids, strict=True)]
