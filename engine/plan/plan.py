"""Plans: what scoring needs to know about a batch, computed once before any backend scores it.

One `Plan` holds the queries of a batch that search the same snapshot: document frequencies, posting lists, ranges of
documents and bounds. The plan numbers its *distinct terms*. Each query is a row of a CSR over them, in the order of
their posting lists, longest first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import Integers, offsets_of
from ..errors import QueryError
from ..index.bm25 import DOT, INT32_MAX, FloatArray
from ..index.contributions import Contributions
from ..index.decay import decay, decayed_bits, ticks_of
from ..index.masks import EVERYTHING
from ..index.segment import Segment
from ..index.snapshot import Snapshot
from ..locks import once
from .requests import Request, Requests

# The terms of a batch are sorted where the highest term id is above this many times their number. Else flags mark them.
SPARSE = 16


@dataclass(frozen=True, eq=False)
class SegmentPlan:
    """What the batch needs of one segment. The postings of distinct term t are ``[starts[t], ends[t])``."""

    number: int  # in the snapshot
    segment: Segment
    first: int  # number of its first document
    contributions: Contributions  # a backend derives the lists that it reads
    positions: Integers  # [distinct terms] position in the segment's terms, or -1
    starts: Integers  # [distinct terms]
    ends: Integers  # [distinct terms] equal to starts where the segment lacks the term
    passing: tuple[npt.NDArray[np.bool_], ...]  # masks [documents]
    filters: Integers  # [queries] position in `passing`, or -1: every document passes
    low: Integers  # [queries] only documents in [low, high) count
    high: Integers

    @property
    def dense_rows(self) -> Integers:
        """[distinct terms] row in `Contributions.dense`, or -1."""
        rows = np.full(len(self.positions), -1, dtype=np.int64)
        present = self.positions >= 0
        rows[present] = self.segment.dense_row[self.positions[present]]
        return rows

    def mask(self, query: int) -> npt.NDArray[np.bool_] | None:
        """The query's filter as a mask over the segment's documents, or None. Does not include `low` and `high`."""
        number = int(self.filters[query])
        return None if number < 0 else self.passing[number]


@dataclass(frozen=True, eq=False)
class Plan:
    """The queries of one batch over one snapshot."""

    snapshot: Snapshot
    rows: Integers  # [queries] row in the batch's answer
    k: Integers  # [queries]
    terms: npt.NDArray[np.int32]  # [distinct terms] vocabulary ids
    document_frequencies: Integers  # [distinct terms] at least 1
    idf: npt.NDArray[np.float64]  # [distinct terms]
    offsets: Integers  # [queries + 1] into slots
    slots: Integers  # distinct term of each (query, term) pair
    multiplicities: Integers  # of each slot: how often the query holds the term, or its weight
    large: npt.NDArray[np.bool_]  # [queries] a sum of contributions may leave int32
    signed: bool  # contributions may be 0 or negative, so a sum does not tell whether a document matched
    reads_all: bool  # whether every live document may be a hit of every query, undecayed
    newest_first: npt.NDArray[np.bool_]  # [queries] decayed or limited in time: older documents may be skipped
    now: npt.NDArray[np.float64]  # [queries]
    rates: npt.NDArray[np.float64]  # [queries] 0: no decay
    requests: Requests
    segment_numbers: tuple[int, ...]  # the segments whose times overlap a query's range, in order of arrival

    @once
    def segments(self) -> tuple[SegmentPlan, ...]:
        """The plans of the segments that can hold a hit, in order of arrival."""
        plans = (self.plan_segment(number) for number in self.segment_numbers)
        return tuple(plan for plan in plans if plan is not None)

    def plan_segment(self, number: int) -> SegmentPlan | None:
        """The plan of one of `segment_numbers`, made at the first call. None if the segment can hold no hit."""
        if number not in self._segment_plans:
            self._segment_plans[number] = segment_plan(self.snapshot, number, self.requests, self.terms)
        return self._segment_plans[number]

    @once
    def _segment_plans(self) -> dict[int, SegmentPlan | None]:
        return {}

    def bounds_before(self, number: int, queries: Integers) -> Integers:
        """[queries] keys that no document exceeds in the segment with this number or in an older one."""
        return self.keys(queries, self._bounds[queries], np.full(len(queries), self.snapshot.latest_upto[number]))

    def keys(self, queries: Integers | int, sums: Integers, times: npt.NDArray[np.float64]) -> Integers:
        """The keys by which documents with these sums and times are ordered: the sums, or the bits of decayed sums.

        `queries` has the query of each document, or is one query for all.
        """
        rates = self.rates[queries]
        if not rates.any():
            return sums
        return np.where(rates > 0, decayed_bits(sums, times, self.now[queries], rates), sums)

    def summed(self, of_slot: Integers) -> Integers:
        """[queries] the sum over the (query, term) pairs of each query. `of_slot` has a number for each pair."""
        sums = offsets_of(of_slot)
        return np.asarray(sums[self.offsets[1:]] - sums[self.offsets[:-1]])

    @once
    def _bounds(self) -> Integers:
        """[queries] an upper bound of the sum of contributions, for any document lengths and term frequencies."""
        bounds = np.ceil(_term_bounds(self.snapshot, self.idf)).astype(np.int64)
        return self.summed(bounds[self.slots] * self.multiplicities)

    @once
    def answerable(self) -> Integers:
        """Positions of the queries that can have hits. They have a term that the namespace holds, and k above 0."""
        return np.flatnonzero((np.diff(self.offsets) > 0) & (self.k > 0))


def make_plan(snapshot: Snapshot, requests: Sequence[Request]) -> Plan:
    """The plan for these queries. Raises as `Requests.of` and `plan_of`."""
    return plan_of(snapshot, Requests.of(requests))


def plan_of(snapshot: Snapshot, requests: Requests) -> Plan:
    """The plan for these queries. Raises `QueryError` for weights of one term that add up beyond 2**31 - 1."""
    bm25, count = snapshot.bm25, len(requests)
    terms, token_slots = _number_terms(requests.terms)
    df = snapshot.document_frequencies(terms)
    # Terms are numbered by the length of their lists, longest first, so sorting pairs puts them in a query's order.
    by_length = np.argsort(-df, kind="stable")
    ranks = np.empty(len(terms), dtype=np.int64)
    ranks[by_length] = np.arange(len(terms))
    pairs = np.repeat(np.arange(count) << 32, np.diff(requests.offsets)) | ranks[token_slots]
    pairs, multiplicities = _count_pairs(pairs, requests, bm25.query_tf == "unique")
    owners, slots = pairs >> 32, by_length[pairs & 0xFFFFFFFF]
    if len(df) and not df.all():
        # A term that no live document of this namespace holds matches nothing.
        present = df > 0
        keep = present[slots]
        owners, multiplicities, slots = owners[keep], multiplicities[keep], (np.cumsum(present) - 1)[slots[keep]]
        terms, df = terms[present], df[present]
    idf = bm25.idf(df, snapshot.statistics) if len(df) else np.zeros(0)

    highest: npt.NDArray[np.float64] = np.zeros(count)
    if len(df):
        bounds = _term_bounds(snapshot, idf)[slots] * multiplicities
        highest = np.bincount(owners, weights=bounds, minlength=count).astype(np.float64)
    settings, setting = requests.settings, requests.setting
    newest_first = np.array([each.ranged or each.rate > 0 for each in settings], dtype=np.bool_)[setting]
    return Plan(
        snapshot=snapshot,
        rows=requests.rows,
        k=np.minimum(requests.k, snapshot.size),
        terms=terms,
        document_frequencies=df,
        idf=idf,
        offsets=offsets_of(np.bincount(owners, minlength=count)),
        slots=slots,
        multiplicities=multiplicities,
        large=highest >= INT32_MAX,
        signed=bm25.signed,
        reads_all=not newest_first.any() and all(each.filter is EVERYTHING for each in settings),
        newest_first=newest_first,
        now=np.array([each.now for each in settings], dtype=np.float64)[setting],
        rates=np.array([each.rate for each in settings], dtype=np.float64)[setting],
        requests=requests,
        segment_numbers=_select_segments(snapshot, requests),
    )


def _number_terms(terms: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], Integers]:
    """The distinct terms, ascending, and the position of each term among them."""
    width = int(terms.max(initial=-1)) + 1
    if width > SPARSE * len(terms):
        distinct, positions = np.unique(terms, return_inverse=True)
        return distinct, positions.reshape(-1).astype(np.int64)
    # Flags over the vocabulary take 0.4 ms for 90,000 terms; sorting them takes 8 ms.
    present = np.zeros(width, dtype=np.bool_)
    present[terms] = True
    return np.flatnonzero(present).astype(np.int32), (np.cumsum(present) - 1)[terms]


def _count_pairs(pairs: Integers, requests: Requests, once: bool) -> tuple[Integers, Integers]:
    """The distinct (query, term) pairs, ascending, and how often each occurs, or the sum of its weights.

    With `once`, a repeated term of a query without weights counts once.
    """
    weights, weighted = requests.weights, requests.weighted
    if weights is None or weighted is None:
        pairs, counts = np.unique(pairs, return_counts=True)
        return pairs, np.ones_like(counts) if once else counts
    pairs, positions = np.unique(pairs, return_inverse=True)
    sums = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(sums, positions.reshape(-1), weights)
    if once:
        sums[~weighted[pairs >> 32]] = 1
    if sums.max(initial=0) > INT32_MAX:
        raise QueryError(f"the weights of a query's term add up to {sums.max():,}, beyond 2**31 - 1")
    return pairs, sums


def _term_bounds(snapshot: Snapshot, idf: FloatArray) -> FloatArray:
    """Bounds in quanta on the absolute contributions of terms with these idfs: float64, same shape.

    A method that does not saturate is bounded by the largest frequency in the snapshot. With that bound, the sums of
    learned queries of 60 terms, and of hundreds, stay in int32. With the largest possible frequency they would not.
    """
    if snapshot.bm25.method != DOT:
        return snapshot.bm25.bounds(idf)
    return snapshot.bm25.bounds(idf, snapshot.largest_frequency)


def _select_segments(snapshot: Snapshot, requests: Requests) -> tuple[int, ...]:
    """Numbers of the segments whose times overlap the range of a query."""
    if not all(each.ranged for each in requests.settings):
        return tuple(range(len(snapshot.segments)))
    earliest, latest = snapshot.spans
    overlaps = np.zeros(len(earliest), dtype=np.bool_)
    for since, until in {(each.since, each.until) for each in requests.settings}:
        overlaps |= (latest >= since) & (earliest <= until)
    return tuple(np.flatnonzero(overlaps).tolist())


def segment_plan(
    snapshot: Snapshot, number: int, requests: Requests, terms: npt.NDArray[np.int32]
) -> SegmentPlan | None:
    """The plan of one segment for these requests. None if the segment can hold no hit."""
    segment = snapshot.segments[number]
    alive = snapshot.alive(number)
    settings = requests.settings
    # low, high, filters: [settings]
    low, high = np.zeros(len(settings), dtype=np.int64), np.full(len(settings), segment.size, dtype=np.int64)
    ranges = {(each.since, each.until) for each in settings if each.ranged}
    time_masks: dict[tuple[float, float], npt.NDArray[np.bool_] | None] = {}
    if ranges:
        documents = {times: document_range(segment, *times) for times in ranges}
        time_masks = {times: mask for times, (_, _, mask) in documents.items() if mask is not None}
        for position, each in enumerate(settings):
            if each.ranged:
                low[position], high[position], _ = documents[each.since, each.until]
        if not (low < high).any():
            return None
    positions = segment.locate(terms)
    present = positions >= 0
    if not present.any():
        return None
    located = positions[present]
    starts, ends = np.zeros(len(terms), dtype=np.int64), np.zeros(len(terms), dtype=np.int64)
    starts[present], ends[present] = segment.offsets[located], segment.offsets[located + 1]

    filters = np.full(len(settings), -1, dtype=np.int64)
    masks: list[npt.NDArray[np.bool_]] = []
    numbers: dict[tuple[object, ...], int] = {}
    for position, each in enumerate(settings):
        time_mask = time_masks.get((each.since, each.until)) if each.ranged else None
        if alive is None and time_mask is None and each.filter is EVERYTHING:
            continue
        key = (each.filter, (each.since, each.until) if time_mask is not None else None)
        if key not in numbers:
            conditions = [condition for condition in (alive, time_mask) if condition is not None]
            if each.filter is not EVERYTHING:
                conditions.append(segment.mask(each.filter))
            numbers[key] = len(masks)
            masks.append(conditions[0] if len(conditions) == 1 else np.logical_and.reduce(conditions))
        filters[position] = numbers[key]
    return SegmentPlan(
        number,
        segment,
        snapshot.firsts[number],
        snapshot.contributions[number],
        positions,
        starts,
        ends,
        tuple(masks),
        filters[requests.setting],
        low[requests.setting],
        high[requests.setting],
    )


def document_range(segment: Segment, since: float, until: float) -> tuple[int, int, npt.NDArray[np.bool_] | None]:
    """The documents with ``since <= time <= until``: the range [low, high), and a mask if not all in the range are."""
    times = segment.times
    if times is None or segment.span is None or segment.span[0] > until or segment.span[1] < since:
        return 0, 0, None
    if segment.in_order:
        return int(np.searchsorted(times, since, "left")), int(np.searchsorted(times, until, "right")), None
    mask = (times >= since) & (times <= until)
    inside = np.flatnonzero(mask)
    if not len(inside):
        return 0, 0, None
    low, high = int(inside[0]), int(inside[-1]) + 1
    return low, high, None if high - low == len(inside) else mask


def decayed_total(plan: Plan, query: int, segment: Segment, position: int, total: int) -> tuple[float, float]:
    """(the document's decayed score in quanta, the decay factor), for one query."""
    rate = float(plan.rates[query])
    if not rate:
        return float(total), 1.0
    time = math.inf if segment.times is None else float(segment.times[position])
    ticks = ticks_of(np.array([time, time]), float(plan.now[query]), rate)
    score, factor = decay(np.array([total, 1], dtype=np.int64), ticks).tolist()
    return score, factor
