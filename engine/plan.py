"""A batch made ready to score: distinct terms located once, document frequencies, bounds.

One `Plan` holds the queries of a batch that search the same namespace. Terms are numbered within the plan (its
*distinct terms*); each query is a row of a CSR over them, largest posting list first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from .bm25 import INT32_MAX
from .columns import Filter, passing
from .index import Contributions, Snapshot
from .segment import Segment


@dataclass(frozen=True, eq=False)
class SegmentPlan:
    """What the batch needs of one segment. The postings of distinct term t are ``[starts[t], ends[t])``."""

    segment: Segment
    contributions: Contributions  # of the lists of the distinct terms once `Plan.derive` was called
    positions: npt.NDArray[np.int64]  # [distinct terms] position in the segment's terms, or -1
    starts: npt.NDArray[np.int64]  # [distinct terms]
    ends: npt.NDArray[np.int64]  # [distinct terms] equal to starts where the segment lacks the term
    passing: tuple[npt.NDArray[np.bool_], ...]  # per filter of the plan: bool [documents]

    @property
    def dense_rows(self) -> npt.NDArray[np.int64]:
        """[distinct terms] row in `Contributions.dense`, or -1."""
        rows = np.full(len(self.positions), -1, dtype=np.int64)
        present = self.positions >= 0
        rows[present] = self.contributions.dense_row[self.positions[present]]
        return rows


@dataclass(frozen=True, eq=False)
class Plan:
    """The queries of one batch over one namespace."""

    snapshot: Snapshot
    rows: npt.NDArray[np.int64]  # [queries] row in the batch's answer
    k: npt.NDArray[np.int64]  # [queries]
    terms: npt.NDArray[np.int32]  # [distinct terms] vocabulary ids
    document_frequencies: npt.NDArray[np.int64]  # [distinct terms] at least 1
    idf: npt.NDArray[np.float64]  # [distinct terms]
    offsets: npt.NDArray[np.int64]  # [queries + 1] into slots
    slots: npt.NDArray[np.int64]  # distinct term of each (query, term) pair
    multiplicities: npt.NDArray[np.int64]  # how often the query holds it
    wide: npt.NDArray[np.bool_]  # [queries] a score may leave int32
    filters: npt.NDArray[np.int64]  # [queries] which of `SegmentPlan.passing` applies, or -1
    signed: bool  # contributions may be 0 or negative: "matched" is kept apart from the sum
    segments: tuple[SegmentPlan, ...]

    @property
    def answerable(self) -> npt.NDArray[np.int64]:
        """Positions of the queries that can have hits: a term that the namespace holds, and a k above 0."""
        return np.flatnonzero((np.diff(self.offsets) > 0) & (self.k > 0))

    def derive(self) -> None:
        """Make the contributions of every posting list of the plan ready on the host."""
        for part in self.segments:
            present = part.positions >= 0
            part.contributions.derive(part.positions[present], self.idf[present])


def make_plan(
    snapshot: Snapshot,
    rows: Sequence[int],
    queries: Sequence[Sequence[int]],
    k: Sequence[int],
    filters: Sequence[Filter],
) -> Plan:
    """The plan for queries given as vocabulary ids (repeats count), each with its k and its compiled filter."""
    bm25 = snapshot.bm25
    lengths = np.array([len(query) for query in queries], dtype=np.int64)
    flat = np.fromiter(chain.from_iterable(queries), dtype=np.int64, count=int(lengths.sum()))
    pairs = np.repeat(np.arange(len(queries)), lengths) << 32 | flat
    pairs, multiplicities = np.unique(pairs, return_counts=True)
    if bm25.query_tf == "unique":
        multiplicities = np.ones_like(multiplicities)
    owners, vocabulary_ids = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
    terms, slots = np.unique(vocabulary_ids, return_inverse=True)
    slots = slots.reshape(-1)

    located = [segment.locate(terms) for segment in snapshot.segments]
    df = snapshot.document_frequencies(located)
    if len(df) and not df.all():
        # Terms of the vocabulary that this namespace lacks match nothing.
        held = df > 0
        renumbered = np.cumsum(held) - 1
        keep = held[slots]
        owners, multiplicities, slots = owners[keep], multiplicities[keep], renumbered[slots[keep]]
        terms, df, located = terms[held], df[held], [positions[held] for positions in located]
    idf = bm25.idf(df, snapshot.statistics) if len(df) else np.zeros(0)

    order = np.lexsort((-df[slots], owners)) if len(df) else np.zeros(0, dtype=np.int64)
    owners, slots, multiplicities = owners[order], slots[order], multiplicities[order]

    distinct_filters = sorted(set(filters))
    segments = []
    for segment, contributions, positions in zip(snapshot.segments, snapshot.contributions, located, strict=True):
        present = positions >= 0
        found = positions[present]
        starts, ends = (np.zeros(len(terms), dtype=np.int64) for _ in range(2))
        starts[present], ends[present] = segment.offsets[found], segment.offsets[found + 1]
        masks = tuple(passing(accepted, segment.categories, segment.size) for accepted in distinct_filters if accepted)
        segments.append(SegmentPlan(segment, contributions, positions, starts, ends, masks))

    bounds = bm25.bounds(idf)
    highest = np.bincount(owners, weights=bounds[slots] * multiplicities, minlength=len(queries)) if len(df) else None
    numbered = {accepted: number for number, accepted in enumerate(f for f in distinct_filters if f)}
    return Plan(
        snapshot=snapshot,
        rows=np.array(rows, dtype=np.int64),
        k=np.minimum(np.array(k, dtype=np.int64), snapshot.size),
        terms=terms,
        document_frequencies=df,
        idf=idf,
        offsets=np.searchsorted(owners, np.arange(len(queries) + 1)),
        slots=slots,
        multiplicities=multiplicities,
        wide=np.zeros(len(queries), dtype=np.bool_) if highest is None else highest >= INT32_MAX,
        filters=np.array([numbered.get(accepted, -1) for accepted in filters], dtype=np.int64),
        signed=bm25.signed,
        segments=tuple(segments),
    )
