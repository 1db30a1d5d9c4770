"""Why a document scored as it did: each term's contribution, adding up to the score exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import QueryError, UnknownIdError
from ..index.bm25 import SCALE
from ..index.masks import EVERYTHING
from ..index.snapshot import Place, Snapshot
from ..plan.plan import Plan, decayed_total, segment_plan
from ..plan.requests import Request, Requests
from ..records.explanation import Explanation, NeighbourShare, TermContribution
from ..records.neighbours import STEPS
from ..storage.state import MemoryState
from .batch import Batch, Corpus, PreparedQuery


def explain(
    plan: Plan,
    row: int,
    query: int,
    record_id: str,
    place: Place | None,
    passed: bool,
    strings: Sequence[str],
    fields: list[str],
) -> Explanation:
    """Explain the document at `place` of the plan's snapshot (None: it is not among them) for the plan's query `row`.

    `strings` are the memory's terms by number; `query` is the query's position in the batch; `passed` as
    `Explanation.passed`.
    """
    contributions = [] if place is None else _contributions(plan, row, place, strings, fields)
    total, score, decay = sum(contribution.quanta for contribution in contributions), 0.0, 1.0
    segment = None if place is None else plan.snapshot.segments[place.segment]
    shares = () if place is None else _shares(plan, row, place, strings, fields)
    if shares:
        total = total * STEPS + sum([round(share.weight * STEPS) * share.quanta for share in shares])
    if place is not None and segment is not None:
        # Also where the segment holds no term of the plan: what it holds is up to the other queries of the batch.
        score, decay = decayed_total(plan, row, segment, place.position, total)
        score = score / STEPS if shares else score
    lengths = [] if segment is None or place is None else segment.lengths[:, place.position].tolist()
    return Explanation(
        query=query,
        id=record_id,
        document=-1 if place is None else plan.snapshot.firsts[place.segment] + place.position,
        matched=bool(contributions),
        passed=passed,
        score=score / SCALE,
        decay=decay,
        quanta=sum(contribution.quanta for contribution in contributions),
        length=dict(zip(fields, lengths, strict=False)),
        terms=tuple(sorted(contributions, key=lambda contribution: -contribution.quanta)),
        neighbours=shares,
    )


def _shares(
    plan: Plan, row: int, place: Place, strings: Sequence[str], fields: list[str]
) -> tuple[NeighbourShare, ...]:
    """What the neighbours of the document at `place` lend it for the plan's query `row`."""
    from ..index.neighbours import links_of

    snapshot = plan.snapshot
    lent = plan.requests.settings[int(plan.requests.setting[row])].lent
    document = np.array([snapshot.firsts[place.segment] + place.position])
    shares = []
    for column, neighbour in enumerate(links_of(snapshot).around(document, len(lent))[0].tolist() if lent else ()):
        if neighbour < 0:
            continue
        number = int(np.searchsorted(np.array(snapshot.firsts), neighbour, side="right")) - 1
        own = _contributions(plan, row, Place(number, neighbour - snapshot.firsts[number]), strings, fields)
        distance, after = column // 2 + 1, column % 2
        weight, quanta = lent[column // 2] / STEPS, sum(contribution.quanta for contribution in own)
        name = str(snapshot.ids_of(np.array([neighbour]))[0])
        shares.append(NeighbourShare(name, distance if after else -distance, weight, quanta, weight * quanta / SCALE))
    return tuple(shares)


def _contributions(
    plan: Plan, row: int, place: Place, strings: Sequence[str], fields: list[str]
) -> list[TermContribution]:
    """What each term of the plan's query `row` adds to the document at `place`. Terms that it lacks are left out."""
    start, end = plan.offsets[row : row + 2].tolist()
    slots = plan.slots[start:end]
    # The plan's own segment plan may leave out documents that the query's filter and time range exclude.
    every = Requests.of([Request(0, (), 0)])
    part = segment_plan(plan.snapshot, place.segment, every, plan.terms[slots])
    if part is None:
        return []
    documents, found, postings = part.segment.documents, [], []
    for number, (first, last) in enumerate(zip(part.starts.tolist(), part.ends.tolist(), strict=True)):
        posting = first + int(documents[first:last].searchsorted(place.position))
        if posting < last and documents[posting] == place.position:
            found.append(number)
            postings.append(posting)
    # All terms at once: alone each takes 30 us, and a query may have thousands.
    where, slots = np.array(postings, dtype=np.int64), slots[found]
    multiplicities = plan.multiplicities[start:end][found]
    quanta = part.contributions.at(where, plan.idf[slots]) * multiplicities
    frequencies = part.segment.frequencies(where).T.tolist()
    return [
        TermContribution(
            term=strings[term],
            multiplicity=multiplicity,
            document_frequency=document_frequency,
            idf=idf,
            frequencies=dict(zip(fields, counts, strict=True)),
            quanta=amount,
            score=amount / SCALE,
        )
        for term, multiplicity, document_frequency, idf, counts, amount in zip(
            plan.terms[slots].tolist(),
            multiplicities.tolist(),
            plan.document_frequencies[slots].tolist(),
            plan.idf[slots].tolist(),
            frequencies,
            quanta.tolist(),
            strict=True,
        )
    ]


@dataclass(frozen=True, eq=False)
class Explainer:
    """Explains a record's BM25 score for a query of a batch. It holds only what it needs of the batch."""

    memory: MemoryState
    asked: Sequence[PreparedQuery] | Mapping[int, PreparedQuery]
    """By row that was searched."""
    source: Sequence[int]
    rows_of: Mapping[Corpus, list[int]]
    plans: Mapping[Corpus, Plan]

    def __call__(self, position: int, record_id: str) -> Explanation:
        position = position_of(self.source, position)
        worked_out = self.source[position]
        asked = self.asked[worked_out]
        if asked.corpus not in self.plans:
            raise unknown_id_error(record_id, asked.query.namespace)
        row = self.rows_of[asked.corpus].index(worked_out)
        return _explain(self.memory, self.plans[asked.corpus], row, position, record_id, asked)

    def slice(self, start: int, stop: int) -> Explainer:
        """The explainer of the queries at [start, stop) alone. It holds nothing of other tenants."""
        source = self.source[start:stop]
        asked = {row: self.asked[row] for row in source}
        # By identity first, as in `_batch`.
        every = {id(prepared.corpus): prepared.corpus for prepared in asked.values()}.values()
        planned = [corpus for corpus in every if corpus in self.plans]
        return Explainer(
            self.memory,
            asked,
            source,
            {corpus: self.rows_of[corpus] for corpus in planned},
            {corpus: self.plans[corpus] for corpus in planned},
        )


def explainer_of(batch: Batch, plans: Mapping[Corpus, Plan]) -> Explainer:
    return Explainer(batch.memory, batch.asked, batch.source, batch.rows_of, plans)


def position_of(batch: Batch | Sequence[int], position: int) -> int:
    """The position in the batch, counted from its start. Raises `QueryError`."""
    if not -len(batch) <= position < len(batch):
        raise QueryError(f"no query {position} in a batch of {len(batch)}")
    return position % len(batch)


def number_of(batch: Batch, position: int, record_id: str) -> int:
    """The document number of a record in the namespace of a query. Raises `UnknownIdError`."""
    asked = batch.asked[position]
    snapshot, place = asked.snapshot, _find(asked.snapshot, record_id)
    if place is None:
        raise unknown_id_error(record_id, asked.query.namespace)
    return snapshot.firsts[place.segment] + place.position


def _find(snapshot: Snapshot, record_id: object) -> Place | None:
    if not isinstance(record_id, str):
        raise QueryError(f"a record's id is text, not {record_id!r}")
    return snapshot.find(record_id)


def _explain(
    memory: MemoryState,
    plan: Plan,
    row: int,
    query: int,
    record_id: str,
    asked: PreparedQuery,
) -> Explanation:
    searched = asked.snapshot
    live = _find(searched, record_id)
    if live is None:
        raise unknown_id_error(record_id, asked.query.namespace)
    place = _find(plan.snapshot, record_id)
    passed = place is not None and _passes(plan.snapshot, place, asked)
    strings = memory.indexer.vocabulary.strings
    fields = list(memory.bm25.fields)
    explained = explain(plan, row, query, record_id, place, passed, strings, fields)
    # The number in all that is searched, as the hits have it, also where the plan is over the filtered records alone.
    return replace(explained, document=searched.firsts[live.segment] + live.position)


def _passes(snapshot: Snapshot, place: Place, asked: PreparedQuery) -> bool:
    """Whether the document passes the query's filter and time range."""
    segment = snapshot.segments[place.segment]
    settings = asked.settings
    if settings.filter is not EVERYTHING and not segment.mask(settings.filter)[place.position]:
        return False
    if not settings.ranged:
        return True
    return segment.times is not None and bool(settings.since <= segment.times[place.position] <= settings.until)


def unknown_id_error(record_id: str, namespace: str) -> UnknownIdError:
    where = f" in namespace {namespace!r}" if namespace else ""
    return UnknownIdError(f"no live record with id {record_id!r}{where}")
