"""Queries whose scores decay, answered as a batch from the newest segment to the oldest.

The search ends where no older document can enter the k best. An older document wins ties, so its bound must be below
the k-th key, not equal to it (X05). The keys are the bits of the decayed scores, float64 numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..engine.arrays import Floats, Integers
from ..engine.index.decay import decay, ticks_of
from ..engine.plan.plan import Plan, SegmentPlan
from ..engine.plan.verbs import Output
from .score import CHUNK_BYTES, score_chunk, workspace
from .segment_work import SegmentWork
from .select import GROUPS_PER_K, NO_KEY, best_wide, nonzero, store_wide

# A product of float64 numbers, times this, is at most the exact product, whatever was rounded.
BELOW = 1.0 - 2.0**-40


# Sources: A034.
def search_newest(plan: Plan, queries: Integers, out: Output, exhaustive: bool) -> int:
    """Answer these queries, all of which decay. Returns how many postings were read."""
    wanted = plan.k[queries]
    last = np.arange(len(queries)), wanted - 1
    shape = len(queries), int(wanted.max())
    documents, keys = np.full(shape, -1, dtype=np.int64), np.full(shape, NO_KEY, dtype=np.int64)
    postings = 0
    for number in reversed(plan.segment_numbers):
        # The key of the last hit wanted of each query; `NO_KEY` while there are fewer.
        least = keys[last]
        if not exhaustive and (plan.bounds_before(number, queries) < least).all():
            break
        part = plan.plan_segment(number)
        if part is None:
            continue
        work = SegmentWork(plan, part, queries, part.low[queries], part.high[queries])
        postings += int(work.postings.sum())
        factors = _factors(plan, part)
        width = int(work.width.max())
        rows = max(1, CHUNK_BYTES // (8 * max(width, 1)))
        for start in range(0, len(queries) if width else 0, rows):
            chunk = np.arange(start, min(start + rows, len(queries)))
            row, document, key = _candidates(plan, work, chunk, factors, least[chunk], shape[1])
            held, place = np.nonzero(documents[chunk] >= 0)
            joined = (
                np.concatenate([held, row]),
                np.concatenate([documents[chunk][held, place], document]),
                np.concatenate([keys[chunk][held, place], key]),
            )
            documents[chunk], keys[chunk] = best_wide(*joined, len(chunk), shape[1])
    store_wide(documents, keys, plan.rows[queries], wanted, out)
    return postings


def _factors(plan: Plan, part: SegmentPlan) -> Callable[[int], Floats]:
    """What gives the factor by which a query fades each document of the segment, made once for queries of one age."""
    times, made = _times(part), dict[tuple[float, float], Floats]()

    def factors(query: int) -> Floats:
        now, rate = float(plan.now[query]), float(plan.rates[query])
        if (now, rate) not in made:
            made[now, rate] = decay(np.ones(len(times), np.int64), ticks_of(times, now, rate))
        return made[now, rate]

    return factors


def _candidates(
    plan: Plan, work: SegmentWork, chunk: Integers, factors: Callable[[int], Floats], least: Integers, k: int
) -> tuple[Integers, Integers, Integers]:
    """(row of the chunk, document, key) of all that can be among the k best and reach `least`, the last one's key."""
    queries = work.queries[chunk]
    dtype = np.dtype(np.int64 if plan.large[queries[0]] else np.int32)
    scores = score_chunk(plan, work, chunk, dtype, workspace())
    faded = np.zeros(scores.shape)
    for place, number in enumerate(chunk.tolist()):
        factor = factors(int(queries[place]))[work.base[number] : work.high[number]]
        np.multiply(scores[place, : len(factor)], factor, out=faded[place, : len(factor)])
    lowest = np.where(least > NO_KEY, least.view(np.float64), 0.0)
    members = scores.shape[1] // (GROUPS_PER_K * k)
    if members > 1:
        # So many groups hold a document as good as the k-th best of their maxima.
        groups = faded[:, : members * GROUPS_PER_K * k].reshape(len(chunk), members, -1).max(axis=1)
        lowest = np.maximum(lowest, np.partition(groups, -k, axis=1)[:, -k])
    row, column = nonzero((faded >= (lowest * BELOW)[:, None]) & (scores > 0))
    document = work.base[chunk][row] + column
    key = plan.keys(queries[row], scores[row, column].astype(np.int64), _times(work.part)[document])
    kept = key >= least[row]
    return row[kept], document[kept] + work.part.first, key[kept]


def _times(part: SegmentPlan) -> Floats:
    return np.full(part.segment.size, np.inf) if part.segment.times is None else part.segment.times
