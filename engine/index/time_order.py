"""Documents in order of time, by segment: what an interval holds is two binary searches, not a scan (SPEC B034).

An order belongs to a segment, which never changes. It is made at the first use and kept, 12 bytes a document. Deleted
documents stay in it and are passed over where they are read.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers
from .masks import EVERYTHING, CompiledFilter
from .segment import Segment
from .snapshot import Snapshot

# Orders that a segment keeps: those of types, and of types under the filters of batches.
KEPT_ORDERS = 16
# Below this share of an order, a filter is applied to the documents between the first and the last moment asked for.
# Above it, the filter is applied to all, and the narrower order is kept. For 1,000,000 documents that takes 5 ms.
BLOCK_SHARE = 8
# Cells of the matrices in which documents that are not deleted are counted: 8 bytes each.
CELLS = 1 << 20


@dataclass(frozen=True, eq=False)
class TimeOrder:
    """Some documents of a segment by time, ascending; of equal times, the highest position first."""

    positions: npt.NDArray[np.int32]  # [documents]
    times: Floats  # [documents]

    def among(self, segment: Segment, accepted: CompiledFilter, low: int, high: int) -> TimeOrder:
        """The documents of the places [low, high) that pass the filter."""
        positions = self.positions[low:high]
        if high - low == len(self.positions):
            mask = segment.mask(accepted)[positions]
        else:
            mask = accepted.mask(segment.columns.take(positions.astype(np.int64)))
        return TimeOrder(positions[mask], self.times[low:high][mask])


def order_of(segment: Segment, kind: int | None) -> TimeOrder:
    """The documents of a type (its code; None: of any type) that have a time. Kept."""
    known: TimeOrder | None = segment.time_orders.get(kind)
    return _keep(segment, kind, _make_order(segment, kind)) if known is None else known


def _make_order(segment: Segment, kind: int | None) -> TimeOrder:
    times, codes = segment.times, segment.columns.categories.get("type")
    if times is None or (kind is not None and codes is None):
        return TimeOrder(np.zeros(0, dtype=np.int32), np.zeros(0))
    timed = ~np.isnan(times)
    if kind is not None:
        timed &= codes == kind
    positions = np.flatnonzero(timed)[::-1].astype(np.int32)
    # Read from the end, a stable sort leaves equal times with the highest position first.
    order = np.argsort(times[positions], kind="stable")
    return TimeOrder(positions[order], times[positions[order]])


def _keep(segment: Segment, key: Hashable, order: TimeOrder) -> TimeOrder:
    if len(segment.time_orders) >= KEPT_ORDERS:
        segment.time_orders.clear()
    segment.time_orders[key] = order
    return order


def _covering(segment: Segment, kind: int | None, accepted: CompiledFilter, since: float, until: float) -> TimeOrder:
    """An order that holds all documents of a type that pass the filter with ``since <= time <= until``.

    It may hold others of the type that pass.
    """
    order = order_of(segment, kind)
    if accepted is EVERYTHING or not len(order.positions):
        return order
    known: TimeOrder | None = segment.time_orders.get((kind, accepted))
    if known is not None:
        return known
    low, high = int(np.searchsorted(order.times, since, "left")), int(np.searchsorted(order.times, until, "right"))
    if (high - low) * BLOCK_SHARE <= len(order.positions):
        return order.among(segment, accepted, low, max(low, high))
    return _keep(segment, (kind, accepted), order.among(segment, accepted, 0, len(order.positions)))


def documents_between(
    snapshot: Snapshot, kind: int | None, accepted: CompiledFilter, since: float, until: float
) -> tuple[Integers, Floats]:
    """(documents, times) of the live documents of a type that pass the filter with ``since <= time <= until``.

    The latest come first; of equal times, the highest number.
    """
    numbers, moments = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for number, (first, segment) in enumerate(zip(snapshot.firsts, snapshot.segments, strict=True)):
        if not _meets(segment, since, until):
            continue
        order = _covering(segment, kind, accepted, since, until)
        inside = slice(np.searchsorted(order.times, since, "left"), np.searchsorted(order.times, until, "right"))
        positions, times = order.positions[inside].astype(np.int64), order.times[inside]
        alive = snapshot.alive(number)
        if alive is not None:
            kept = alive[positions]
            positions, times = positions[kept], times[kept]
        numbers.append(first + positions)
        moments.append(times)
    documents, times = np.concatenate(numbers), np.concatenate(moments)
    latest = np.lexsort((-documents, -times))
    return documents[latest], times[latest]


def newest_between(
    snapshot: Snapshot, kind: int | None, accepted: CompiledFilter, since: Floats, until: Floats, count: int
) -> tuple[Integers, Floats]:
    """(documents, times) [intervals, width]: the latest documents in each closed interval, at most `count`.

    As `documents_between`, except that of equal times the lowest number comes first. Padding is -1 and -inf.
    """
    parts: dict[int, tuple[Integers, Floats]] = {-1: (np.full((len(since), 0), -1), np.full((len(since), 0), -np.inf))}
    earliest, latest = float(since.min(initial=np.inf)), float(until.max(initial=-np.inf))
    # The largest segments come first. What is older than the last of `count` documents of one cannot be among the
    # latest of all: with ten segments that leaves a fifth of the documents to sort.
    since = since.copy()
    for number in sorted(range(len(snapshot.segments)), key=lambda number: -snapshot.segments[number].size):
        segment = snapshot.segments[number]
        if not _meets(segment, earliest, latest):
            continue
        order = _covering(segment, kind, accepted, earliest, latest)
        low, high = np.searchsorted(order.times, since, "left"), np.searchsorted(order.times, until, "right")
        places = _last_places(order, snapshot.alive(number), low, high, count)
        if not places.shape[1]:
            continue
        found = places >= 0
        documents = np.where(found, snapshot.firsts[number] + order.positions[places].astype(np.int64), -1)
        times = np.where(found, order.times[places], -np.inf)
        parts[number] = documents, times
        if places.shape[1] == count:
            since = np.maximum(since, times[:, -1])
    # Parts stand in order of number, so a stable sort leaves equal times with the lowest number first.
    documents, times = (np.concatenate([parts[number][side] for number in sorted(parts)], axis=1) for side in (0, 1))
    if len(parts) > 2:
        ranks = np.argsort(-times, axis=1, kind="stable")[:, :count]
        documents, times = np.take_along_axis(documents, ranks, axis=1), np.take_along_axis(times, ranks, axis=1)
    return documents, times


def _meets(segment: Segment, since: float, until: float) -> bool:
    span = segment.span
    return span is not None and span[0] <= until and span[1] >= since


def _last_places(order: TimeOrder, alive: Flags | None, low: Integers, high: Integers, count: int) -> Integers:
    """[intervals, width] the last `count` places in each [low, high) with live documents, descending; padding -1."""
    longest = int((high - low).max(initial=0))
    width = max(min(longest, count), 0)
    steps = np.arange(width)
    if alive is None or not width:
        places = high[:, None] - 1 - steps
        return np.where(places >= low[:, None], places, -1)
    found = np.full((len(low), width), -1, dtype=np.int64)
    waiting = np.flatnonzero(high > low)
    reach = 2 * width
    while len(waiting):
        reach = min(reach, longest)
        rows_at_once = max(CELLS // reach, 1)
        for start in range(0, len(waiting), rows_at_once):
            rows = waiting[start : start + rows_at_once]
            places = high[rows, None] - 1 - np.arange(reach)
            inside = places >= low[rows, None]
            live = inside & alive[order.positions[np.where(inside, places, 0)]]
            rank = np.cumsum(live, axis=1) - 1
            row, column = np.nonzero(live & (rank < width))
            found[rows[row], rank[row, column]] = places[row, column]
        waiting = waiting[(found[waiting, -1] < 0) & (high - low > reach)[waiting]]
        reach *= 4
    return found
