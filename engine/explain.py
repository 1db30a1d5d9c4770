"""Why a document scored as it did: each term's contribution, adding up to the score exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .bm25 import SCALE
from .plan import Plan


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
    """The score of one document for one query. ``sum(term.score for term in terms) == score``, exactly."""

    query: int
    id: str
    document: int
    matched: bool  # whether it holds a query term
    passed: bool  # whether it passes the query's filter; if not it is no hit, whatever its score
    score: float
    quanta: int
    length: dict[str, int]  # field -> kept tokens of the document
    terms: tuple[TermContribution, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.id}: {self.score!r} = {self.quanta} quanta / 2**18"]
        lines += [
            f"  {term.score!r:>22}  {term.term} x{term.multiplicity}  tf {term.frequencies}  "
            f"df {term.document_frequency}  idf {term.idf:.6f}"
            for term in self.terms
        ]
        if not self.matched:
            lines.append("  holds no term of the query")
        if not self.passed:
            lines.append("  does not pass the query's filter")
        return "\n".join(lines)


def explain(
    plan: Plan, row: int, query: int, record_id: str, segment: int, position: int, terms: list[str], fields: list[str]
) -> Explanation:
    """Explain the document at `position` of the plan's segment for the plan's query `row`.

    `terms` names the plan's distinct terms; `query` is the query's position in the batch.
    """
    plan.derive()
    part = plan.segments[segment]
    contributions = []
    start, end = plan.offsets[row : row + 2].tolist()
    for slot in range(start, end):
        term, multiplicity = int(plan.slots[slot]), int(plan.multiplicities[slot])
        first, last = int(part.starts[term]), int(part.ends[term])
        place = first + int(np.searchsorted(part.segment.documents[first:last], position))
        if place == last or part.segment.documents[place] != position:
            continue
        quanta = int(part.contributions.quanta[place]) * multiplicity
        contributions.append(
            TermContribution(
                term=terms[term],
                multiplicity=multiplicity,
                document_frequency=int(plan.document_frequencies[term]),
                idf=float(plan.idf[term]),
                frequencies=dict(zip(fields, part.segment.frequencies[:, place].tolist(), strict=True)),
                quanta=quanta,
                score=quanta / SCALE,
            )
        )
    total = sum(contribution.quanta for contribution in contributions)
    accepted = int(plan.filters[row])
    return Explanation(
        query=query,
        id=record_id,
        document=part.segment.first + position,
        matched=bool(contributions),
        passed=accepted < 0 or bool(part.passing[accepted][position]),
        score=total / SCALE,
        quanta=total,
        length=dict(zip(fields, part.segment.lengths[:, position].tolist(), strict=True)),
        terms=tuple(sorted(contributions, key=lambda contribution: -contribution.quanta)),
    )
