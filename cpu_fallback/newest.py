"""Queries whose scores decay, answered as a batch from the newest document to the oldest.

A segment is scored block by block, and the blocks grow. A query ends where no
older document can enter its k best. An older document wins ties, so its bound must be below the k-th key, not equal to
it (X05). The keys are the bits of the decayed scores, float64 numbers.

Within a block, most documents are left out by their quanta. A group of neighbours cannot exceed its largest sum at its
latest time, so only groups that reach the k-th key are read again, and only their documents get keys.
"""

from __future__ import annotations

import numpy as np

from ..engine.arrays import Floats, Integers
from ..engine.index.decay import TICKS, decay, ticks_of
from ..engine.index.segment import TIME_BLOCK
from ..engine.plan.plan import Plan, SegmentPlan
from ..engine.plan.verbs import Output
from .score import CHUNK_BYTES, score_chunk, workspace
from .segment_work import SegmentWork
from .select import GROUPS_PER_K, NO_KEY, Scores, best_wide, nonzero, store_wide

# Documents of the first block of a large batch, and how many times as long each further one is, up to the last.
FIRST_BLOCK = 1 << 12
GROWTH = 8
LAST_BLOCK = 1 << 18
# A block has at least so many documents for all its queries together: they take about as long as numpy's calls for a
# block, half a millisecond.
LEAST_WORK = 1 << 18
# Ticks added to an estimated age, as the table of decay and float64 round. A half-life has 65,536.
SPARE_TICKS = 3
# With fewer postings in a chunk, or fewer documents in a group, every document that matches gets a key at once: some
# 50 ns each. To look for groups takes 200 us, and the maximum of a short group more than 1 ns a document.
FEW_POSTINGS = 1 << 12
LEAST_MEMBERS = 8
# Keys of a row, as a multiple of k, that are ranked with those of other rows.
MANY = 8
# A quotient of two float64 numbers, times this, is at most the exact quotient, whatever was rounded.
BELOW = 1.0 - 2.0**-40

Candidates = tuple[Integers, Integers, Integers]
"""(row, document, key) of each, row-major."""


def search_newest(plan: Plan, queries: Integers, out: Output, exhaustive: bool) -> int:
    """Answer these queries, all of which decay. Returns how many postings were read."""
    wanted = plan.k[queries]
    best = _Best(wanted)
    postings = 0
    for number in reversed(plan.segment_numbers):
        least = None if exhaustive else best.least
        if least is not None and (plan.bounds_before(number, queries) < least).all():
            break
        part = plan.plan_segment(number)
        if part is None:
            continue
        bounds = segment_bounds(plan, part)[queries]
        low, high = part.low[queries], part.high[queries]
        high[bounds == 0] = 0
        length = FIRST_BLOCK
        while True:
            least = None if exhaustive else best.least
            if least is not None:
                low = _raise_low(plan, part, queries, bounds, low, least)
            active = np.flatnonzero(low < high)
            if not len(active):
                break
            end = int(high[active].max())
            length = max(length, LEAST_WORK // len(active))
            start = 0 if exhaustive else max(0, end - length)
            active = active[high[active] > start]
            ends = np.maximum(low[active], start), high[active]
            work = SegmentWork(plan, part, queries[active], *ends, block=TIME_BLOCK)
            best.add(active, _search_block(plan, work, wanted[active], best.kth[active]))
            postings += int(work.postings.sum())
            high = np.minimum(high, start)
            length = min(GROWTH * length, LAST_BLOCK)
    store_wide(best.documents, best.keys, plan.rows[queries], wanted, out)
    return postings


class _Best:
    """The best documents and keys so far of each query, [queries, k], best first."""

    def __init__(self, wanted: Integers) -> None:
        shape = len(wanted), int(wanted.max())
        self._last = np.arange(len(wanted)), wanted - 1
        self.documents = np.full(shape, -1, dtype=np.int64)
        self.keys = np.full(shape, NO_KEY, dtype=np.int64)

    @property
    def kth(self) -> Integers:
        """[queries] the key of the last hit wanted; `NO_KEY` while there are fewer."""
        return np.asarray(self.keys[self._last])

    @property
    def least(self) -> Integers | None:
        """`kth`, or None if no query has all its hits yet."""
        kth = self.kth
        return kth if (kth > NO_KEY).any() else None

    def add(self, rows: Integers, found: Candidates) -> None:
        """Adds what was found for these rows; row r of `found` is ``rows[r]``."""
        documents, keys = self.documents[rows], self.keys[rows]
        held, place = np.nonzero(documents >= 0)
        if len(held):
            joined = zip((held, documents[held, place], keys[held, place]), found, strict=True)
            row, document, key = (np.concatenate(columns) for columns in joined)
            found = row, document, key
        self.documents[rows], self.keys[rows] = best_wide(*found, *documents.shape)


# Sources: A034.
def segment_bounds(plan: Plan, part: SegmentPlan) -> Integers:
    """[queries] no document of the segment has a larger sum of contributions. Not for signed plans."""
    largest = float(part.contributions.saturated.max(initial=0.0))
    of_term = plan.snapshot.bm25.quanta(np.full(len(plan.idf), largest), plan.idf) * (part.ends > part.starts)
    return plan.summed(of_term[plan.slots] * plan.multiplicities)


def _raise_low(
    plan: Plan, part: SegmentPlan, queries: Integers, bounds: Integers, low: Integers, least: Integers
) -> Integers:
    """`low`, without leading blocks of `TIME_BLOCK` documents in which no key reaches that of `least`.

    The age at which the bound falls below the key is estimated, then tried: only what cannot matter is left out.
    """
    latest = part.segment.latest_before
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        halvings = np.log2(bounds / least.view(np.float64))
        too_old = plan.now[queries] - (halvings * TICKS + SPARE_TICKS) / plan.rates[queries]
    blocks = np.where(least > NO_KEY, np.searchsorted(latest, too_old, "right"), 0)
    certain = plan.keys(queries, bounds, latest[blocks - 1]) < least
    return np.asarray(np.maximum(low, np.where(certain, blocks, 0) * TIME_BLOCK))


def _search_block(plan: Plan, work: SegmentWork, wanted: Integers, least: Integers) -> Candidates:
    """What can be among the best ``wanted[r]`` of each row of `work`, and has a key of ``least[r]`` or more."""
    dtype = np.dtype(np.int64 if plan.large[work.queries[0]] else np.int32)
    rows = max(1, CHUNK_BYTES // (dtype.itemsize * int(work.width.max())))
    found = []
    for start in range(0, len(work.queries), rows):
        chunk = np.arange(start, min(start + rows, len(work.queries)))
        matrix = score_chunk(plan, work, chunk, dtype, workspace())
        row, document, key = _select(plan, work, chunk, matrix, wanted[chunk], least[chunk])
        found.append((row + start, document, key))
    row, document, key = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return row, document + work.part.first, key


def _select(
    plan: Plan, work: SegmentWork, chunk: Integers, scores: Scores, wanted: Integers, least: Integers
) -> Candidates:
    """`_search_block` of a chunk of the rows, whose scores are these."""
    queries, base = work.queries[chunk], work.base[chunk]
    rows, width = scores.shape
    k = int(wanted.max())
    members = TIME_BLOCK if work.postings[chunk].sum() > FEW_POSTINGS else 0
    while members >= LEAST_MEMBERS and width < members * GROUPS_PER_K * k:
        members >>= 1
    if members < LEAST_MEMBERS:
        row, column = nonzero(scores > 0)
    else:
        grouped = scores.reshape(rows, width // members, members)
        maxima = grouped.max(axis=2)
        factors = np.repeat(_largest_factors(plan, work, chunk, width), TIME_BLOCK // members, axis=1)
        # What a group's largest sum would score at the group's latest time: no document of the group scores more.
        bounds = maxima * factors
        least = _raise_least(plan, work, chunk, grouped, bounds, wanted, least)
        row, group = nonzero((bounds.view(np.int64) >= least[:, None]) & (maxima > 0))
        lowest = np.maximum(least[row].view(np.float64) / factors[row, group] * BELOW, 1.0).astype(scores.dtype)
        which, member = nonzero(grouped[row, group] >= lowest[:, None])
        row, column = row[which], group[which] * members + member
    document = base[row] + column
    key = _keys(plan, work.part, queries[row], document, scores[row, column])
    kept = key >= least[row]
    return _thin(row[kept], document[kept], key[kept], k)


def _largest_factors(plan: Plan, work: SegmentWork, chunk: Integers, width: int) -> Floats:
    """[rows, blocks] the factor of decay of the youngest document in each block of `TIME_BLOCK` columns."""
    queries = work.queries[chunk, None]
    blocks = work.base[chunk, None] // TIME_BLOCK + np.arange(width // TIME_BLOCK)
    latest = np.take(work.part.segment.latest_in, blocks, mode="clip")
    ticks = ticks_of(latest, plan.now[queries], plan.rates[queries])
    return decay(np.ones_like(ticks), ticks)


def _raise_least(
    plan: Plan, work: SegmentWork, chunk: Integers, grouped: Scores, bounds: Floats, wanted: Integers, least: Integers
) -> Integers:
    """`least`, or the k-th largest key of one document from each of the most promising groups, if that is larger."""
    rows, groups, members = grouped.shape
    k = int(wanted.max())
    best = np.argpartition(bounds, groups - k, axis=1)[:, groups - k :]
    picked = grouped[np.arange(rows)[:, None], best]
    member = picked.argmax(axis=2)
    sums = np.take_along_axis(picked, member[:, :, None], axis=2)[:, :, 0]
    # A group past the segment's end has no sum, so it does not matter which document stands for it.
    documents = np.minimum(work.base[chunk, None] + best * members + member, work.part.segment.size - 1)
    keys = np.where(sums > 0, _keys(plan, work.part, work.queries[chunk, None], documents, sums), NO_KEY)
    keys.sort(axis=1)
    return np.maximum(least, keys[np.arange(rows), k - wanted])


def _keys(plan: Plan, part: SegmentPlan, queries: Integers, documents: Integers, sums: Scores) -> Integers:
    times = np.full(documents.shape, np.inf) if part.segment.times is None else part.segment.times[documents]
    return plan.keys(queries, sums.astype(np.int64), times)


def _thin(row: Integers, document: Integers, key: Integers, k: int) -> Candidates:
    """The candidates without most of those that cannot be among their row's k best, where a row has many: ties."""
    counts = np.bincount(row)
    kept = np.ones(len(row), dtype=np.bool_)
    for crowded in np.flatnonzero(counts > MANY * k).tolist():
        own = slice(*np.searchsorted(row, (crowded, crowded + 1)))
        kth = np.partition(key[own], counts[crowded] - k)[counts[crowded] - k]
        above, equal = key[own] > kth, key[own] == kth
        # Of equal ones the first documents win.
        kept[own] = above | (equal & (np.cumsum(equal) <= k - np.count_nonzero(above)))
    return row[kept], document[kept], key[kept]
