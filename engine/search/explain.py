"""Why a document scored as it did: each term's contribution, adding up to the score exactly."""

from __future__ import annotations

import numpy as np

from ..index.bm25 import SCALE
from ..index.snapshot import Place
from ..plan.plan import Plan, SegmentPlan, decayed_total, segment_plan
from ..plan.requests import Request, Requests
from ..records.explanation import Explanation, TermContribution


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
