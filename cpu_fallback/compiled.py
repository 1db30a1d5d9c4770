"""The search verb in loops that numba compiles: the same answer as `search.py`, without the interpreter's lock.

A query is scored tile by tile in one reused row of scores; blocks of the row whose largest score is too small to enter
the k best are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import numpy.typing as npt

from ..engine.plan import Plan, SegmentPlan
from ..engine.timing import Phases
from . import search as vectorised
from .search import Output, groups, in_threads

Integers = npt.NDArray[np.int64]
Reads = tuple[Integers, npt.NDArray[np.bool_]]
"""The dense rows of a segment's terms, and the masks of the plan's filters over its documents."""

# Documents of a tile: 128 KiB of scores, a part of the second-level cache.
TILE = 1 << 15
# Scores whose largest is found at once; a block that cannot enter the k best is passed over. Blocks of 16, 32, 64 and
# 128 took .21, .14, .14 and .09 ms a query on SGD at k 10.
BLOCK = 128
# Groups of scores whose maxima give the first floor, as a multiple of k, and at least.
GROUPS_PER_K = 4
MIN_GROUPS = 256
# Candidates kept before the k best of them are picked out, as a multiple of k (above 1), and at least.
ROOM = 4
MIN_ROOM = 128


def search(
    plans: Sequence[Plan],
    batch: int,
    k: int,
    *,
    threads: int = 1,
    strategy: str = "auto",
    phases: Phases | None = None,
) -> Output:
    """As `fanrank.cpu_fallback.search.search`, which also serves what is rare here: signed plans, queries that may
    leave int32, and the strategy ``pruned``.
    """
    rare = [plan for plan in plans if strategy == "pruned" or _rare(plan)]
    phases = phases or Phases()
    out = vectorised.search(rare, batch, k, threads=threads, strategy=strategy, phases=phases)
    tasks = []
    for plan in plans if k and strategy != "pruned" else ():
        if not _rare(plan):
            with phases("derive"):
                plan.derive()
            reads = [(part.dense_rows, _masks(part)) for part in plan.segments]
            tasks += [(plan, group, reads) for _, group in groups(plan, threads)]

    def run(task: tuple[Plan, Integers, Sequence[Reads]]) -> None:
        _search_group(*task, out)

    with phases("score and select"):
        in_threads(run, tasks, threads)
    return out


def _rare(plan: Plan) -> bool:
    return plan.signed or bool(plan.wide.any()) or plan.snapshot.long


def _search_group(plan: Plan, group: Integers, reads: Sequence[Reads], out: Output) -> None:
    k = plan.k[group]
    keys = np.empty((len(group), max(ROOM * int(k.max()), MIN_ROOM)), dtype=np.int64)
    found = np.zeros(len(group), dtype=np.int64)
    floors = np.ones(len(group), dtype=np.int64)
    for part, (rows, masks) in zip(plan.segments, reads, strict=True):
        _score_segment(
            group, plan.offsets, plan.slots, plan.multiplicities, plan.filters, k,
            part.starts, part.ends, part.segment.documents, part.contributions.quanta, rows, part.contributions.dense,
            masks, part.segment.first, TILE, keys, found, floors,
        )  # fmt: skip
    scores, documents, counts = out
    _store(keys, found, k, plan.rows[group], scores, documents, counts)


def _masks(part: SegmentPlan) -> npt.NDArray[np.bool_]:
    return np.stack(part.passing) if part.passing else np.zeros((0, part.segment.size), dtype=np.bool_)


@numba.njit(nogil=True, cache=True)
def _score_segment(
    group, offsets, slots, multiplicities, filters, k, starts, ends, documents, quanta, dense_rows, dense,
    masks, first, tile, keys, found, floors,
):  # fmt: skip
    """Score one segment for a group of queries; `keys`, `found`, `floors` carry each one's best between segments."""
    size = masks.shape[1]
    scores = np.zeros(tile, dtype=np.int32)
    maxima = np.empty(tile, dtype=np.int32)
    cursors = np.empty(len(slots), dtype=np.int64)
    for row in range(len(group)):
        query, wanted, count, floor = group[row], k[row], found[row], floors[row]
        mask = filters[query]
        for slot in range(offsets[query], offsets[query + 1]):
            cursors[slot] = starts[slots[slot]]
        for low in range(0, size, tile):
            high = min(low + tile, size)
            touched = False
            for slot in range(offsets[query], offsets[query + 1]):
                term, weight = slots[slot], np.int32(multiplicities[slot])
                if dense_rows[term] >= 0:
                    _add_row(scores, dense[dense_rows[term], low:high], weight)
                    touched = True
                elif cursors[slot] < ends[term]:
                    p = _add_list(scores, documents, quanta, cursors[slot], ends[term], low, high, weight)
                    touched = touched or p > cursors[slot]
                    cursors[slot] = p
            if not touched:
                continue
            if count < wanted and mask < 0:
                floor = max(floor, np.int64(_first_floor(scores[: high - low], maxima, wanted)))
            for start in range(0, high - low, BLOCK):
                stop = min(start + BLOCK, high - low)
                if _largest(scores[start:stop]) < floor:
                    continue
                for d in range(start, stop):
                    if scores[d] < floor or (mask >= 0 and not masks[mask, low + d]):
                        continue
                    keys[row, count] = (np.int64(scores[d]) << 32) + (np.int64(0xFFFFFFFF) - (first + low + d))
                    count += 1
                    if count == keys.shape[1]:
                        # Younger documents must beat the k-th score, not equal it.
                        floor = max(floor, (_keep_largest(keys[row], count, wanted) >> 32) + 1)
                        count = wanted
            scores[: high - low] = 0
            if count >= wanted:
                floor = max(floor, (_keep_largest(keys[row], count, wanted) >> 32) + 1)
                count = wanted
        floors[row], found[row] = floor, count


@numba.njit(nogil=True, cache=True)
def _add_row(scores, values, weight):
    for d in range(len(values)):
        scores[d] += values[d] * weight


@numba.njit(nogil=True, cache=True)
def _add_list(scores, documents, quanta, start, end, low, high, weight):
    """Add a list's postings of documents in [low, high); returns the place of the first beyond."""
    # Unsigned places spare the test for negative indices.
    p = np.uint64(start)
    stop = np.uint64(end)
    if start < end and documents[end - 1] >= high:
        stop = np.uint64(_seek(documents, start, end, high))
    while p < stop:
        scores[np.uint64(documents[p] - low)] += quanta[p] * weight
        p += np.uint64(1)
    return np.int64(p)


@numba.njit(nogil=True, cache=True)
def _first_floor(scores, maxima, k):
    """A score that at least k documents reach: the k-th largest maximum of strided groups; 0 if there are too few."""
    groups = min(max(GROUPS_PER_K * k, MIN_GROUPS), len(scores))
    if groups < k:
        return np.int32(0)
    maxima[:groups] = scores[:groups]
    for start in range(groups, len(scores), groups):
        _raise(maxima, scores[start : start + groups])
    return _keep_largest(maxima, groups, k)


@numba.njit(nogil=True, cache=True)
def _raise(maxima, scores):
    for i in range(len(scores)):
        maxima[i] = max(maxima[i], scores[i])


@numba.njit(nogil=True, cache=True)
def _largest(scores):
    largest = np.int32(0)
    for d in range(len(scores)):
        largest = max(largest, scores[d])
    return largest


@numba.njit(nogil=True, cache=True)
def _seek(documents, start, end, wanted):
    """The first place in [start, end) whose document is at least `wanted`, or end. Gallops, as places lie near."""
    step = 1
    low = start
    while low + step < end and documents[low + step] < wanted:
        low += step
        step *= 2
    high = min(low + step, end)
    while low < high:
        middle = (low + high) >> 1
        if documents[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(nogil=True, cache=True)
def _keep_largest(keys, count, k):
    """Move the k largest of ``keys[:count]`` to the front; returns the smallest of them. 0 < k <= count."""
    low, high = 0, count - 1
    while low < high:
        middle = keys[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while keys[i] > middle:
                i += 1
            while keys[j] < middle:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return keys[k - 1]


@numba.njit(nogil=True, cache=True)
def _store(keys, found, k, rows, scores, documents, counts):
    for row in range(len(rows)):
        count = found[row]
        if count > k[row]:
            _keep_largest(keys[row], count, k[row])
            count = k[row]
        own = np.sort(keys[row, :count])
        for place in range(count):
            key = own[count - 1 - place]
            scores[rows[row], place] = key >> 32
            documents[rows[row], place] = np.int64(0xFFFFFFFF) - (key & np.int64(0xFFFFFFFF))
        counts[rows[row]] = count
