"""A batch made ready to score: distinct terms located once, document frequencies, ranges of documents, bounds.

One `Plan` holds the queries of a batch that search the same snapshot. Terms are numbered within the plan (its
*distinct terms*); each query is a row of a CSR over them, largest posting list first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
from ..timing import Phases
from .requests import Request, Requests

# The vocabulary may hold this many terms for each of a batch before the batch's terms are sorted, not counted.
SPARSE = 16


@dataclass(frozen=True, eq=False)
class SegmentPlan:
    """What the batch needs of one segment. The postings of distinct term t are ``[starts[t], ends[t])``."""

    number: int  # in the snapshot
    segment: Segment
    first: int  # number of its first document
    contributions: Contributions  # of the lists of the distinct terms once `Plan.derive` was called
    positions: Integers  # [distinct terms] position in the segment's terms, or -1
    starts: Integers  # [distinct terms]
    ends: Integers  # [distinct terms] equal to starts where the segment lacks the term
    passing: tuple[npt.NDArray[np.bool_], ...]  # masks [documents]
    filters: Integers  # [queries] which of `passing` applies, or -1: every document passes
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
        """The query's filter over the segment's documents, or None. Says nothing of `low` and `high`."""
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
    multiplicities: Integers  # how often the query holds it, or with what weight
    large: npt.NDArray[np.bool_]  # [queries] a sum of contributions may leave int32
    signed: bool  # contributions may be 0 or negative: "matched" is kept apart from the sum
    reads_all: bool  # whether every live document may be a hit of every query, undecayed
    newest_first: npt.NDArray[np.bool_]  # [queries] decayed or limited in time: older documents may not matter
    now: npt.NDArray[np.float64]  # [queries]
    rates: npt.NDArray[np.float64]  # [queries] 0: no decay
    requests: Requests
    segment_numbers: tuple[int, ...]  # numbers of the segments whose times suit a query, in order of arrival

    @cached_property
    def segments(self) -> tuple[SegmentPlan, ...]:
        """What the batch needs of the segments that can hold a hit, in order of arrival."""
        return tuple(part for number in self.segment_numbers if (part := self.plan_segment(number)) is not None)

    def plan_segment(self, number: int) -> SegmentPlan | None:
        """What the batch needs of one of the candidates, made when first asked for; None if it can hold no hit."""
        if number not in self._parts:
            self._parts[number] = segment_plan(self.snapshot, number, self.requests, self.terms)
        return self._parts[number]

    @cached_property
    def _parts(self) -> dict[int, SegmentPlan | None]:
        return {}

    def bounds_before(self, number: int, queries: Integers) -> Integers:
        """Keys that no document reaches in the segment with this number or an older one, for each of these queries."""
        return self.keys(queries, self._bounds[queries], np.full(len(queries), self.snapshot.latest_upto[number]))

    def keys(self, queries: Integers | int, sums: Integers, times: npt.NDArray[np.float64]) -> Integers:
        """What orders documents with these sums and times: the sums, or the bits of what decay makes of them.

        `queries` is each one's own, or one for all.
        """
        rates = self.rates[queries]
        if not rates.any():
            return sums
        return np.where(rates > 0, decayed_bits(sums, times, self.now[queries], rates), sums)

    def summed(self, of_slot: Integers) -> Integers:
        """[queries] the sums of numbers given for each (query, term) pair."""
        sums = offsets_of(of_slot)
        return np.asarray(sums[self.offsets[1:]] - sums[self.offsets[:-1]])

    @cached_property
    def _bounds(self) -> Integers:
        """[queries] a bound of the sum of contributions under any lengths and frequencies."""
        bounds = np.ceil(_term_bounds(self.snapshot, self.idf)).astype(np.int64)
        return self.summed(bounds[self.slots] * self.multiplicities)

    @cached_property
    def answerable(self) -> Integers:
        """Positions of the queries that can have hits: a term that the namespace holds, and a k above 0."""
        return np.flatnonzero((np.diff(self.offsets) > 0) & (self.k > 0))

    @cached_property
    def newest(self) -> Integers:
        """Those of `answerable` that go from the newest document to the oldest."""
        return self.answerable[self.newest_first[self.answerable]]

    @cached_property
    def wide(self) -> npt.NDArray[np.bool_]:
        """[queries] whether scores need int64, as the bits of decayed ones always do."""
        return self.large | (self.rates > 0)

    def derive(self, chosen: npt.NDArray[np.bool_] | None = None) -> None:
        """Make the contributions of every posting list of the plan ready on the host, or of the chosen queries'."""
        used = np.ones(len(self.terms), dtype=np.bool_)
        if chosen is not None:
            used[:] = False
            used[self.slots[np.repeat(chosen, np.diff(self.offsets))]] = True
        for part in self.segments if used.any() else ():
            present = used & (part.positions >= 0)
            part.contributions.derive(part.positions[present], self.idf[present])

    def count_postings(self, phases: Phases, queries: npt.NDArray[np.bool_]) -> None:
        """Count all postings of these queries' lists as scored."""
        chosen = self.slots[np.repeat(queries, np.diff(self.offsets))]
        for part in self.segments if len(chosen) else ():
            phases.count("postings", int((part.ends - part.starts)[chosen].sum()))


def make_plan(snapshot: Snapshot, requests: Sequence[Request]) -> Plan:
    """The plan for these queries. Raises as `Requests.of` and `plan_of`."""
    return plan_of(snapshot, Requests.of(requests))


def plan_of(snapshot: Snapshot, requests: Requests) -> Plan:
    """The plan for these queries. Raises `QueryError` for weights of one term that add up beyond 2**31 - 1."""
    bm25, count = snapshot.bm25, len(requests)
    terms, token_slots = _distinct(requests.terms)
    df = snapshot.document_frequencies(terms)
    # Numbered by the length of their lists, so that sorted pairs are in a query's order already.
    by_length = np.argsort(-df, kind="stable")
    places = np.empty(len(terms), dtype=np.int64)
    places[by_length] = np.arange(len(terms))
    pairs = np.repeat(np.arange(count) << 32, np.diff(requests.offsets)) | places[token_slots]
    pairs, multiplicities = _counted(pairs, requests, bm25.query_tf == "unique")
    owners, slots = pairs >> 32, by_length[pairs & 0xFFFFFFFF]
    if len(df) and not df.all():
        # Terms of the vocabulary that no live document of this namespace holds match nothing.
        held = df > 0
        keep = held[slots]
        owners, multiplicities, slots = owners[keep], multiplicities[keep], (np.cumsum(held) - 1)[slots[keep]]
        terms, df = terms[held], df[held]
    idf = bm25.idf(df, snapshot.statistics) if len(df) else np.zeros(0)

    highest: npt.NDArray[np.float64] = np.zeros(count)
    if len(df):
        bounds = _term_bounds(snapshot, idf)[slots] * multiplicities
        highest = np.bincount(owners, weights=bounds, minlength=count).astype(np.float64)
    settings, setting = requests.settings, requests.setting
    newest_first = np.array([own.ranged or own.rate > 0 for own in settings], dtype=np.bool_)[setting]
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
        reads_all=not newest_first.any() and all(own.filter is EVERYTHING for own in settings),
        newest_first=newest_first,
        now=np.array([own.now for own in settings], dtype=np.float64)[setting],
        rates=np.array([own.rate for own in settings], dtype=np.float64)[setting],
        requests=requests,
        segment_numbers=_select_segments(snapshot, requests),
    )


def _distinct(terms: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], Integers]:
    """The distinct terms, ascending, and the place of each term among them."""
    width = int(terms.max(initial=-1)) + 1
    if width > SPARSE * len(terms):
        distinct, places = np.unique(terms, return_inverse=True)
        return distinct, places.reshape(-1).astype(np.int64)
    # Flags over the vocabulary: a sort of 90,000 terms takes 8 ms, this 0.4.
    held = np.zeros(width, dtype=np.bool_)
    held[terms] = True
    return np.flatnonzero(held).astype(np.int32), (np.cumsum(held) - 1)[terms]


def _counted(pairs: Integers, requests: Requests, once: bool) -> tuple[Integers, Integers]:
    """The distinct (query, term) pairs, ascending, and how often each is there, or with what weight.

    `once`: terms without weights count once.
    """
    weights, weighted = requests.weights, requests.weighted
    if weights is None or weighted is None:
        pairs, counts = np.unique(pairs, return_counts=True)
        return pairs, np.ones_like(counts) if once else counts
    pairs, places = np.unique(pairs, return_inverse=True)
    sums = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(sums, places.reshape(-1), weights)
    if once:
        sums[~weighted[pairs >> 32]] = 1
    if sums.max(initial=0) > INT32_MAX:
        raise QueryError(f"the weights of a query's term add up to {sums.max():,}, beyond 2**31 - 1")
    return pairs, sums


def _term_bounds(snapshot: Snapshot, idf: FloatArray) -> FloatArray:
    """Quanta that no contribution of terms with these idfs exceeds in absolute value, float64, same shape.

    What does not saturate is bounded by the largest frequency there is: learned queries of 60 terms, and of hundreds,
    stay in int32 by it, and would leave it by the largest that there may be.
    """
    if snapshot.bm25.method != DOT:
        return snapshot.bm25.bounds(idf)
    return snapshot.bm25.bounds(
        idf, max((int(s.class_frequencies.max(initial=0)) for s in snapshot.segments), default=0)
    )


def _select_segments(snapshot: Snapshot, requests: Requests) -> tuple[int, ...]:
    if not all(own.ranged for own in requests.settings):
        return tuple(range(len(snapshot.segments)))
    earliest, latest = snapshot.spans
    suits = np.zeros(len(earliest), dtype=np.bool_)
    for since, until in {(own.since, own.until) for own in requests.settings}:
        suits |= (latest >= since) & (earliest <= until)
    return tuple(np.flatnonzero(suits).tolist())


def segment_plan(
    snapshot: Snapshot, number: int, requests: Requests, terms: npt.NDArray[np.int32]
) -> SegmentPlan | None:
    """What the requests need of a segment; None if it can hold no hit."""
    segment = snapshot.segments[number]
    alive = snapshot.alive(number)
    settings = requests.settings
    # [settings]
    low, high = np.zeros(len(settings), dtype=np.int64), np.full(len(settings), segment.size, dtype=np.int64)
    ranges = {(own.since, own.until) for own in settings if own.ranged}
    inside: dict[tuple[float, float], npt.NDArray[np.bool_] | None] = {}
    if ranges:
        found = {times: document_range(segment, *times) for times in ranges}
        inside = {times: mask for times, (_, _, mask) in found.items() if mask is not None}
        for place, own in enumerate(settings):
            if own.ranged:
                low[place], high[place], _ = found[own.since, own.until]
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
    numbered: dict[tuple[object, ...], int] = {}
    for place, own in enumerate(settings):
        mask = inside.get((own.since, own.until)) if own.ranged else None
        if alive is None and mask is None and own.filter is EVERYTHING:
            continue
        key = (own.filter, (own.since, own.until) if mask is not None else None)
        if key not in numbered:
            parts = [part for part in (alive, mask) if part is not None]
            if own.filter is not EVERYTHING:
                parts.append(segment.mask(own.filter))
            numbered[key] = len(masks)
            masks.append(parts[0] if len(parts) == 1 else np.logical_and.reduce(parts))
        filters[place] = numbered[key]
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
    """The documents with ``since <= time <= until`` as [low, high), and a mask where not all between are."""
    times = segment.times
    if times is None or segment.span is None or segment.span[0] > until or segment.span[1] < since:
        return 0, 0, None
    if segment.in_order:
        return int(np.searchsorted(times, since, "left")), int(np.searchsorted(times, until, "right")), None
    mask = (times >= since) & (times <= until)
    held = np.flatnonzero(mask)
    if not len(held):
        return 0, 0, None
    low, high = int(held[0]), int(held[-1]) + 1
    return low, high, None if high - low == len(held) else mask


def decayed_total(plan: Plan, query: int, segment: Segment, position: int, total: int) -> tuple[float, float]:
    """(the document's score in quanta as the query decays it, the factor)."""
    rate = float(plan.rates[query])
    if not rate:
        return float(total), 1.0
    time = math.inf if segment.times is None else float(segment.times[position])
    ticks = ticks_of(np.array([time, time]), float(plan.now[query]), rate)
    score, factor = decay(np.array([total, 1], dtype=np.int64), ticks).tolist()
    return score, factor
