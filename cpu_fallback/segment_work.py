"""How a batch reads one segment: which part of each posting list, in which form, for which query.

Each query reads the documents [low, high) alone. All lists of the batch are cut to such ranges by one binary search
that runs over them together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Flags, Integers, lower_bounds, offsets_of, ranges
from ..engine.plan.plan import Plan, SegmentPlan

Quanta = npt.NDArray[np.signedinteger[Any]]

# A list is derived for the whole epoch once a batch reads one in so many of its postings. Below that the contributions
# of the postings read are computed and not kept. Either takes about 10 ns a posting, a derived one is read in 1.
DERIVE_SHARE = 8


class Pairs:
    """(row, list) pairs, those of a row next to each other."""

    def __init__(self, rows: int, owners: Integers, numbers: Integers, multiplicities: Integers) -> None:
        self._owners, self._numbers, self._multiplicities = owners, numbers, multiplicities
        self._offsets: list[int] = np.searchsorted(owners, np.arange(rows + 1)).tolist()

    def of(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """(position in `rows`, list, multiplicity) of each pair of these rows (ascending)."""
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):
            pairs = slice(self._offsets[first], self._offsets[last + 1])
            return self._owners[pairs] - first, self._numbers[pairs], self._multiplicities[pairs]
        offsets = np.array(self._offsets)
        starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
        scattered = ranges(starts, lengths)
        return np.repeat(np.arange(len(rows)), lengths), self._numbers[scattered], self._multiplicities[scattered]


class SegmentWork:
    """How queries of a plan (ascending) read one segment: decided once for the batch. Row r is ``queries[r]``.

    Its scores begin with document ``base[r]`` and have ``width[r]`` columns.
    """

    def __init__(self, plan: Plan, part: SegmentPlan, queries: Integers, low: Integers, high: Integers) -> None:
        self.part, self.queries = part, queries
        self.base, self.high = low, np.maximum(low, high)
        self.width = self.high - self.base
        self.whole = not low.any() and bool((high == part.segment.size).all())
        counts = np.diff(plan.offsets)
        slots, multiplicities = plan.slots, plan.multiplicities
        if len(queries) < len(counts):
            counts = counts[queries]
            pairs = ranges(plan.offsets[queries], counts)
            slots, multiplicities = slots[pairs], multiplicities[pairs]
        owners = np.repeat(np.arange(len(queries)), counts)
        terms, firsts, lasts, numbers = self._cut(owners, slots)
        self.lengths = lasts - firsts
        derived = self._derive(plan, terms, numbers)
        ends = zip(firsts.tolist(), lasts.tolist(), strict=True)
        self.documents = [part.segment.documents[first:last] for first, last in ends]
        self.quanta = self._quanta(plan, terms, firsts, derived)
        dense = part.dense_rows[terms]
        # A contribution of 0 is a match in a signed plan, which a dense row cannot tell from an absent document.
        dense[~derived | (self.lengths == 0) | plan.signed] = -1
        dense = dense[numbers]
        added = dense >= 0
        scattered = (self.lengths[numbers] > 0) & ~added
        self.scattered = Pairs(len(queries), owners[scattered], numbers[scattered], multiplicities[scattered])
        self.added = Pairs(len(queries), owners[added], dense[added], multiplicities[added])
        self.postings = np.bincount(owners, self.lengths[numbers], len(queries)).astype(np.int64)
        """[rows] how many are read for each."""

    def _cut(self, owners: Integers, slots: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """(distinct term, first posting, last posting + 1) of each list to read, and the list of each pair."""
        part, size = self.part, self.part.segment.size
        if self.whole:
            return np.arange(len(part.starts)), part.starts, part.ends, slots
        keys = self.base * (size + 1) + self.high
        if (keys == keys[0]).all():
            # One range for all, as of a batch with one `since`. Flags are ten times as fast as sorting.
            used = np.zeros(len(part.starts), dtype=np.bool_)
            used[slots] = True
            terms, numbers = np.flatnonzero(used), (np.cumsum(used) - 1)[slots]
            low, high = np.full_like(terms, self.base[0]), np.full_like(terms, self.high[0])
        else:
            bounds, of_row = np.unique(keys, return_inverse=True)
            lists, numbers = np.unique(slots * len(bounds) + of_row.reshape(-1)[owners], return_inverse=True)
            terms, of_range = np.divmod(lists, len(bounds))
            low, high = (each[of_range] for each in np.divmod(bounds, size + 1))
        firsts, lasts = part.starts[terms], part.ends[terms]
        for ends, targets, cut in ((firsts, low, low > 0), (lasts, high, high < size)):
            chosen = np.flatnonzero(cut)
            of_cut = terms[chosen]
            ends[chosen] = lower_bounds(part.segment.documents, part.starts[of_cut], part.ends[of_cut], targets[chosen])
        return terms, firsts, lasts, numbers.reshape(-1)

    def _derive(self, plan: Plan, terms: Integers, numbers: Integers) -> Flags:
        """Derives the lists that are read in large part. Returns which are derived."""
        part = self.part
        used = np.zeros(len(terms), dtype=np.bool_)
        used[numbers] = True
        used &= part.positions[terms] >= 0
        if self.whole:
            part.contributions.derive(part.positions[used], plan.idf[used])
            return used
        large = used & (self.lengths * DERIVE_SHARE >= (part.ends - part.starts)[terms])
        wanted = np.zeros(len(plan.terms), dtype=np.bool_)
        wanted[terms[large]] = True
        part.contributions.derive(part.positions[wanted], plan.idf[wanted])
        return used & part.contributions.derived(part.positions[terms])

    def _quanta(self, plan: Plan, terms: Integers, firsts: Integers, derived: Flags) -> list[Quanta]:
        """The contributions of the postings of each list."""
        contributions, lengths = self.part.contributions, self.lengths
        whole = contributions.quanta if derived.any() else np.zeros(0, dtype=np.int64)
        ends = zip(firsts.tolist(), (firsts + lengths).tolist(), strict=True)
        quanta = [whole[first:last] for first, last in ends]
        others = np.flatnonzero(~derived & (lengths > 0)) if not self.whole else firsts[:0]
        if len(others):
            where = ranges(firsts[others], lengths[others])
            computed = contributions.at(where, np.repeat(plan.idf[terms[others]], lengths[others]))
            edges = offsets_of(lengths[others]).tolist()
            for number, first, last in zip(others.tolist(), edges, edges[1:], strict=False):
                quanta[number] = computed[first:last]
        return quanta
