"""Queries that decay or are limited in time, searched from the newest document to the oldest.

Each block of documents is twice as long as the one before. The search of a segment ends where no older document in it
can enter the k best. An older document wins ties, so its bound must be below the k-th score, not equal to it (X05).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Integers, ranges
from ..engine.index.segment import TIME_BLOCK
from ..engine.plan.plan import Plan, SegmentPlan
from ..engine.timing import Phases
from .select import best_wide

# Documents of the first block; each further one is twice as long, up to the last.
FIRST_BLOCK = 1 << 12
LAST_BLOCK = 1 << 18


def search_newest(
    plan: Plan, out: tuple[Integers, Integers, npt.NDArray[np.int32]], execution: str, phases: Phases
) -> None:
    """Answer the plan's `newest_first` queries. The scores of decayed ones are the bits of float64 numbers."""
    scores, documents, counts = out
    for query in plan.newest.tolist():
        best_scores, best_documents, postings = _search(plan, query, execution == "exhaustive")
        row, count = plan.rows[query], len(best_documents)
        scores[row, :count], documents[row, :count], counts[row] = best_scores, best_documents, count
        phases.count("postings", postings)


def _search(plan: Plan, query: int, exhaustive: bool) -> tuple[Integers, Integers, int]:
    """(scores, documents) of the k best, best first, and how many postings were scored."""
    k = int(plan.k[query])
    best_keys = np.zeros(0, dtype=np.int64)
    best_documents = np.zeros(0, dtype=np.int64)
    postings = 0
    may_stop = not exhaustive and not plan.signed
    for number in reversed(plan.segment_numbers):
        if may_stop and len(best_keys) == k and plan.bounds_before(number, np.array([query]))[0] < best_keys[-1]:
            break
        part = plan.plan_segment(number)
        if part is None:
            continue
        low, high = int(part.low[query]), int(part.high[query])
        bound = segment_bounds(plan, part)[query]
        length = FIRST_BLOCK
        while low < high:
            start = low if exhaustive else max(low, high - length)
            if may_stop and len(best_keys) == k:
                latest = part.segment.latest_before[(high - 1) // TIME_BLOCK]
                if plan.keys(query, np.array([bound]), np.array([latest]))[0] < best_keys[-1]:
                    break
            documents, sums, read = _score(plan, part, query, start, high)
            postings += read
            times = np.full(len(documents), math.inf) if part.segment.times is None else part.segment.times[documents]
            keys = plan.keys(query, sums, times)
            best_documents, best_keys = best_wide(
                np.concatenate([best_documents, documents + part.first]), np.concatenate([best_keys, keys]), k
            )
            high, length = start, min(2 * length, LAST_BLOCK)
    return best_keys, best_documents, postings


# Sources: A034.
def segment_bounds(plan: Plan, part: SegmentPlan) -> Integers:
    """[queries] no document of the segment has a larger sum of contributions. Not for signed plans."""
    largest = float(part.contributions.saturated.max(initial=0.0))
    of_term = plan.snapshot.bm25.quanta(np.full(len(plan.idf), largest), plan.idf) * (part.ends > part.starts)
    return plan.summed(of_term[plan.slots] * plan.multiplicities)


def _score(plan: Plan, part: SegmentPlan, query: int, start: int, end: int) -> tuple[Integers, Integers, int]:
    """(documents, sums) of those in [start, end) that match and pass, and how many postings were read."""
    slots = slice(plan.offsets[query], plan.offsets[query + 1])
    terms, multiplicities = plan.slots[slots], plan.multiplicities[slots]
    firsts, lengths = np.zeros(len(terms), dtype=np.int64), np.zeros(len(terms), dtype=np.int64)
    for number, (first, last) in enumerate(zip(part.starts[terms].tolist(), part.ends[terms].tolist(), strict=True)):
        cuts = np.searchsorted(part.segment.documents[first:last], (start, end))
        firsts[number], lengths[number] = first + cuts[0], cuts[1] - cuts[0]
    postings = ranges(firsts, lengths)
    quanta = part.contributions.at(postings, np.repeat(plan.idf[terms], lengths)) * np.repeat(multiplicities, lengths)
    sums = np.zeros(end - start, dtype=np.int64)
    matched = np.zeros(end - start, dtype=np.bool_)
    places = part.segment.documents[postings].astype(np.int64) - start
    np.add.at(sums, places, quanta)
    matched[places] = True
    mask = part.mask(query)
    if mask is not None:
        matched &= mask[start:end]
    hits = np.flatnonzero(matched)
    return hits + start, sums[hits], len(postings)
