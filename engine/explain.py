"""Why a document scored as it did: each term's contribution, adding up to the score exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .bm25 import SCALE
from .index import Place
from .plan import Plan, SegmentPlan, decayed_total, segment_plan
from .request import Request, Requests


@dataclass(frozen=True)
class TermContribution:
    """One query term in one document."""

    term: str
    multiplicity: int  # how often the query holds the term, as far as it counts
    document_frequency: int
    idf: float
    frequencies: dict[str, int]  # field -> raw count in the document
    quanta: int  # multiplicity times the posting's contribution
    score: float  # quanta / 2**18


@dataclass(frozen=True)
class Explanation:
    """The score of one document for one query.

    ``sum(term.score for term in terms) == score``, exactly, where the query does not decay; else `score` is that sum as
    `engine/decay.py` lets it fade, about `decay` times it.
    """

    query: int
    id: str
    document: int
    matched: bool  # whether it holds a query term
    passed: bool  # whether it passes the query's filter and time range; if not it is no hit, whatever its score
    score: float
    decay: float  # the factor of its age; 1 where the query does not decay
    quanta: int
    length: dict[str, int]  # field -> kept tokens of the document
    terms: tuple[TermContribution, ...]

    def at(self, query: int) -> Explanation:
        """The same, of the query at this position."""
        return replace(self, query=query)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        faded = f" x {self.decay!r}" if self.decay != 1.0 else ""
        lines = [f"{self.id}: {self.score!r} = {self.quanta} quanta{faded} / 2**18"]
        lines += [
            f"  {term.score!r:>22}  {term.term} x{term.multiplicity}  tf {term.frequencies}  "
            f"df {term.document_frequency}  idf {term.idf:.6f}"
            for term in self.terms
        ]
        if not self.matched:
            lines.append("  holds no term of the query")
        if not self.passed:
            lines.append("  does not pass the query's filter or time range")
        return "\n".join(lines)


@dataclass(frozen=True)
class ChannelShare:
    """What one channel says of a record, and what that adds to the fused score."""

    channel: str
    rank: int | None  # from 1; None: not in the channel's list
    score: float | None  # None: the channel does not score the record
    share: float


@dataclass(frozen=True)
class FusedExplanation:
    """The score of one document for one query under a strategy of several channels.

    The shares, added one after another in that order, are the score, exactly (`functools.reduce` with `operator.add`;
    Python's `sum` compensates from 3.12 on). What a fusion adds of its own, as for recency, is a channel without rank
    and score.
    """

    query: int
    id: str
    document: int
    strategy: str
    score: float | None  # None: no candidate, which no channel listed
    channels: tuple[ChannelShare, ...]
    lexical: Explanation | None  # the BM25 score, term by term, where that is a channel

    def at(self, query: int) -> FusedExplanation:
        """The same, of the query at this position."""
        return replace(self, query=query, lexical=None if self.lexical is None else self.lexical.at(query))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        score = "no candidate" if self.score is None else repr(self.score)
        lines = [f"{self.id}: {score} by {self.strategy}"]
        for share in self.channels:
            rank = "-" if share.rank is None else str(share.rank)
            own = "-" if share.score is None else repr(share.score)
            lines.append(f"  {share.share!r:>24}  {share.channel:12} rank {rank:>5}  score {own}")
        if self.lexical is not None:
            lines += ["  " + line for line in str(self.lexical).splitlines()]
        return "\n".join(lines)


def explain(
    plan: Plan,
    row: int,
    query: int,
    record_id: str,
    place: Place | None,
    passed: bool,
    terms: list[str],
    fields: list[str],
) -> Explanation:
    """Explain the document at `place` of the plan's snapshot (None: it is not among them) for the plan's query `row`.

    `terms` names the plan's distinct terms; `query` is the query's position in the batch; `passed` as
    `Explanation.passed`.
    """
    # Not the plan's own part, which may leave out what the query's filter and time range keep out.
    every = Requests.of([Request(0, (), 0)])
    part = None if place is None else segment_plan(plan.snapshot, place.segment, every, plan.terms)
    contributions = []
    total, score, decay = 0, 0.0, 1.0
    if place is not None and part is not None:
        contributions = _contributions(plan, part, row, place.position, terms, fields)
        total = sum(contribution.quanta for contribution in contributions)
    segment = None if place is None else plan.snapshot.segments[place.segment]
    if place is not None and segment is not None:
        # Also where the segment holds no term of the plan: what it holds is up to the other queries of the batch.
        score, decay = decayed_total(plan, row, segment, place.position, total)
    lengths = [] if segment is None or place is None else segment.lengths[:, place.position].tolist()
    return Explanation(
        query=query,
        id=record_id,
        document=-1 if place is None else plan.snapshot.firsts[place.segment] + place.position,
        matched=bool(contributions),
        passed=passed,
        score=score / SCALE,
        decay=decay,
        quanta=total,
        length=dict(zip(fields, lengths, strict=False)),
        terms=tuple(sorted(contributions, key=lambda contribution: -contribution.quanta)),
    )


def _contributions(
    plan: Plan, part: SegmentPlan, row: int, position: int, terms: list[str], fields: list[str]
) -> list[TermContribution]:
    found = []
    start, end = plan.offsets[row : row + 2].tolist()
    for slot in range(start, end):
        term, multiplicity = int(plan.slots[slot]), int(plan.multiplicities[slot])
        first, last = int(part.starts[term]), int(part.ends[term])
        place = first + int(np.searchsorted(part.segment.documents[first:last], position))
        if place == last or part.segment.documents[place] != position:
            continue
        where = np.array([place])
        quanta = int(part.contributions.at(where, plan.idf[[term]])[0]) * multiplicity
        found.append(
            TermContribution(
                term=terms[term],
                multiplicity=multiplicity,
                document_frequency=int(plan.document_frequencies[term]),
                idf=float(plan.idf[term]),
                frequencies=dict(zip(fields, part.segment.frequencies(where)[:, 0].tolist(), strict=True)),
                quanta=quanta,
                score=quanta / SCALE,
            )
        )
    return found
