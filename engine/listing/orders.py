"""The orders of a listing: the records of many segments merged into one sorted stream that begins behind any key.

::

    segment ─ positions sorted once ─ bisected at the key ─ masked, block by block ─┐
    segment ─ positions sorted once ─ bisected at the key ─ masked, block by block ─┴ heapq.merge ─ entries

A key is made of what a record keeps while it lives: its id and namespace, its time, or the number of its last write.
So a listing goes on behind a key although segments were merged and records were written in between.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..errors import ParameterError, choices
from ..index.columns import Strings
from ..index.masks import CompiledFilter
from ..index.segment import Segment
from ..index.snapshot import Snapshot
from .matching import passing

ORDERS = ("time", "id", "written")

# Positions of a segment that are read at a time: few at first, as a page of many namespaces reads few of each.
LEAST_ENTRIES, MOST_ENTRIES = 16, 1024
# Ids up to this many bytes, padded to one length, are sorted by numpy, beside which other threads run. Sorting a
# million ids as objects would keep searches waiting for a second.
PADDED_BYTES = 1 << 28

Key = tuple[Any, ...]
"""Where an entry stands in its order. The first element is the part of the order: 1 for records without a time."""


class Entry(NamedTuple):
    """A record in its order."""

    key: Key
    namespace: str
    id: str
    segment: int
    position: int


Numbers = Callable[[str, Snapshot, Integers], Sequence[int]]
"""The numbers of the last writes of documents of a namespace's snapshot; they grow with the document numbers."""


def entries(
    order: str,
    snapshots: Mapping[str, Snapshot],
    accepted: CompiledFilter,
    after: Key | None,
    reverse: bool,
    arrivals: Numbers,
) -> Iterator[Entry]:
    """The records that pass, in their order, from behind the key `after` (None: from the start)."""
    part = 0 if after is None else int(after[0])
    if order == "written":
        runs = [
            _written(namespace, snapshot, accepted, after, reverse, arrivals)
            for namespace, snapshot in snapshots.items()
        ]
        return merge(runs, reverse)
    if order == "id":
        return merge(_runs(by_id, 0, snapshots, accepted, after, reverse), reverse)
    if order != "time":
        raise ParameterError(f"unknown order {order!r}{choices(order, ORDERS)}")
    # Records without a time come last in both directions.
    streams = [partial(_timed, 0, snapshots, accepted, after, reverse)] if part == 0 else []
    streams.append(partial(_timed, 1, snapshots, accepted, after if part == 1 else None, reverse))
    return chain.from_iterable(stream() for stream in streams)


def _timed(
    part: int,
    snapshots: Mapping[str, Snapshot],
    accepted: CompiledFilter,
    after: Key | None,
    reverse: bool,
) -> Iterator[Entry]:
    return merge(_runs(with_time if part == 0 else without_time, part, snapshots, accepted, after, reverse), reverse)


def merge(runs: Sequence[Iterator[Entry]], reverse: bool) -> Iterator[Entry]:
    return runs[0] if len(runs) == 1 else heapq.merge(*runs, key=itemgetter(0), reverse=reverse)


def _runs(
    sorted_positions: Callable[[Segment], npt.NDArray[np.int32]],
    part: int,
    snapshots: Mapping[str, Snapshot],
    accepted: CompiledFilter,
    after: Key | None,
    reverse: bool,
) -> list[Iterator[Entry]]:
    runs = []
    for namespace, snapshot in snapshots.items():
        for number, segment in enumerate(snapshot.segments):
            positions = sorted_positions(segment)
            if not len(positions):
                continue
            times = segment.times if sorted_positions is with_time else None
            key_of = partial(_key_of, part, namespace, segment.ids.strings, times)
            positions = _behind(positions, after, reverse, key_of)
            if len(positions):
                mask = passing(snapshot, number, accepted)
                runs.append(_walk(namespace, number, segment, part, times, positions, mask))
    return runs


def _key_of(part: int, namespace: str, ids: Strings, times: npt.NDArray[np.float64] | None, position: int) -> Key:
    record_id = ids[position]
    return (part, record_id, namespace) if times is None else (part, float(times[position]), record_id, namespace)


def _behind(
    positions: npt.NDArray[Any], after: Key | None, reverse: bool, key_of: Callable[[int], Key]
) -> npt.NDArray[Any]:
    """The positions whose keys lie behind `after`, in the direction of the listing. `positions` ascend by key."""
    if after is None:
        return positions[::-1] if reverse else positions
    numbers = range(len(positions))
    if reverse:
        return positions[: bisect_left(numbers, after, key=lambda number: key_of(int(positions[number])))][::-1]
    return positions[bisect_right(numbers, after, key=lambda number: key_of(int(positions[number]))) :]


def blocks(positions: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The positions in runs, as they are read."""
    start, size = 0, LEAST_ENTRIES
    while start < len(positions):
        yield positions[start : start + size]
        start, size = start + size, min(size * 2, MOST_ENTRIES)


def _walk(
    namespace: str,
    number: int,
    segment: Segment,
    part: int,
    times: npt.NDArray[np.float64] | None,
    positions: npt.NDArray[np.int32],
    mask: npt.NDArray[np.bool_] | None,
) -> Iterator[Entry]:
    """The entries at these positions of a segment, without those that the mask leaves out."""
    for block in blocks(positions):
        kept = block if mask is None else block[mask[block]]
        ids = segment.ids.strings.take(kept.astype(np.int64))
        keys: list[Key] = (
            [(part, record_id, namespace) for record_id in ids]
            if times is None
            else [(part, time, i, namespace) for time, i in zip(times[kept].tolist(), ids, strict=True)]
        )
        for key, record_id, position in zip(keys, ids, kept.tolist(), strict=True):
            yield Entry(key, namespace, record_id, number, position)


def _written(
    namespace: str,
    snapshot: Snapshot,
    accepted: CompiledFilter,
    after: Key | None,
    reverse: bool,
    arrivals: Numbers,
) -> Iterator[Entry]:
    """The entries of a namespace in the order of their last write."""
    parts = [np.zeros(0, dtype=np.int64)]
    for number, (first, segment) in enumerate(zip(snapshot.firsts, snapshot.segments, strict=True)):
        mask = passing(snapshot, number, accepted)
        parts.append(first + (np.arange(segment.size) if mask is None else np.flatnonzero(mask)))
    documents = np.concatenate(parts)

    def key_of(document: int) -> Key:
        return 0, arrivals(namespace, snapshot, np.array([document]))[0]

    firsts = np.array(snapshot.firsts, dtype=np.int64)
    for block in blocks(_behind(documents, after, reverse, key_of)):
        numbers = np.searchsorted(firsts, block, "right") - 1
        places = zip(
            arrivals(namespace, snapshot, block),
            snapshot.ids_of(block).tolist(),
            numbers.tolist(),
            (block - firsts[numbers]).tolist(),
            strict=True,
        )
        for arrival, record_id, number, position in places:
            yield Entry((0, arrival), namespace, record_id, number, position)


def by_id(segment: Segment) -> npt.NDArray[np.int32]:
    """All positions of a segment, sorted by id."""
    order = segment.derived.get("by id")
    if order is None:
        order = segment.derived["by id"] = _sort_ids(segment.ids.strings)
    return order


def with_time(segment: Segment) -> npt.NDArray[np.int32]:
    """The positions that have a time, sorted by time, then by id."""
    return _by_time(segment)[0]


def without_time(segment: Segment) -> npt.NDArray[np.int32]:
    """The positions that have no time, sorted by id."""
    return _by_time(segment)[1]


def _by_time(segment: Segment) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    order = segment.derived.get("by time")
    if order is None:
        order = segment.derived["by time"] = _sort_times(segment)
    return order


def _sort_times(segment: Segment) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    times = segment.times
    if times is None:
        return np.zeros(0, dtype=np.int32), by_id(segment)
    order = np.argsort(times, kind="stable").astype(np.int32)
    ascending = times[order]
    timed = int(np.searchsorted(ascending, np.nan))  # NaN sorts behind all numbers
    equal = ascending[1:timed] == ascending[: max(timed - 1, 0)]
    if equal.any() or len(order) - timed > 1:
        # Sorted by id first, a stable sort by time leaves equal times in the order of their ids.
        ids = by_id(segment)
        order = ids[np.argsort(times[ids], kind="stable")]
    return order[:timed], order[timed:]


def _sort_ids(ids: Strings) -> npt.NDArray[np.int32]:
    lengths = np.diff(ids.offsets)
    width = int(lengths.max(initial=1))
    block = ids.block[ids.offsets[0] : ids.offsets[-1]]
    # The order of UTF-8 bytes is that of characters. Padding is a byte 0, so an id that holds one is not padded.
    if width * len(ids) <= PADDED_BYTES and block.all():
        padded = np.zeros((len(ids), width), dtype=np.uint8)
        padded[np.arange(width) < lengths[:, None]] = block
        return np.argsort(padded.view(f"S{width}").ravel(), kind="stable").astype(np.int32)
    strings = ids.tolist()
    return np.array(sorted(range(len(strings)), key=strings.__getitem__), dtype=np.int32)
