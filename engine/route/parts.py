"""A batch whose queries have different strategies: divided into parts of one strategy each, and joined again.

::

    batch ─┬─ bm25 ────┐
           ├─ recall ──┼─ rows in the batch's order
           └─ newest ──┘

Each part is one launch over the same state of the memory, so a row has the bits that its query has alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..errors import FanrankError, QueryError
from ..records.decision import Decision
from ..records.explanation import Explanation, FusedExplanation
from ..records.hits import Annotator, Hits, Resolver, join_names
from ..records.query import Query
from ..search.batch import check_places
from ..search.explain import position_of
from .by_namespace import AnyAnswerer, ByNamespace, same_answerer
from .policy import Answerer, strategy_of


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of a batch that one strategy or policy answers; `answerer` None: the rows for the newest records."""

    answerer: Answerer | None
    rows: list[int]


def needs_parts(queries: Sequence[Query], answerer: AnyAnswerer) -> bool:
    """Whether queries of the batch may be answered in different ways."""
    if isinstance(answerer, ByNamespace):
        return True
    # Compared all at once, as most batches have none: a call for each query would show in a fan-out.
    return True in map(_newest, queries) or [*map(_strategy, queries)].count(None) < len(queries)


_newest, _strategy = attrgetter("newest"), attrgetter("strategy")


def divide(queries: Sequence[Query], answerer: AnyAnswerer) -> list[Part]:
    """The parts of a batch, in the order of their first rows; one without rows for an empty batch.

    `answerer` is for queries without a strategy of their own. Raises `QueryError`.
    """
    parts: list[Part] = []
    # By identity first: many queries are given one object.
    known: dict[int, Part] = {}
    for row, query in enumerate(queries):
        given = query.strategy
        if query.newest:
            given = None
        elif given is None:
            given = answerer.answerer(query, row) if isinstance(answerer, ByNamespace) else answerer
        # The batch or the answerer holds the object, so no other object can have its id meanwhile.
        part = known.get(id(given))
        if part is None:
            chosen = None if given is None else _check_strategy(given, row)
            part = next((part for part in parts if _same(part.answerer, chosen)), None)
            if part is None:
                part = Part(chosen, [])
                parts.append(part)
            known[id(given)] = part
        part.rows.append(row)
    if not parts:
        parts.append(Part(answerer.default if isinstance(answerer, ByNamespace) else answerer, []))
    return parts


def join(queries: tuple[Query, ...], parts: Sequence[Part], answers: Sequence[Hits]) -> Hits:
    """The answer to the batch from those to its parts."""
    size = len(queries)
    width = max(hits.scores.shape[1] for hits in answers)
    check_places(size, width)
    scores = np.full((size, width), -np.inf)
    documents = np.full((size, width), -1, dtype=np.int64)
    counts = np.zeros(size, dtype=np.int32)
    source = np.zeros(size, dtype=np.int64)
    reranked = None
    if any(hits.reranked is not None for hits in answers):
        reranked = np.full((size, width), np.nan)
    decisions: list[Decision | None] | None = None
    if any(hits.decisions is not None for hits in answers):
        decisions = [None] * size
    records = None
    if any(hits.records is not None for hits in answers):
        records = np.full((size, width), None, dtype=object)
    place = np.zeros((size, 2), dtype=np.int64)  # the part of each row, and its position there
    for number, (part, hits) in enumerate(zip(parts, answers, strict=True)):
        rows = np.array(part.rows, dtype=np.int64)
        columns = hits.scores.shape[1]
        scores[rows, :columns], documents[rows, :columns], counts[rows] = hits.scores, hits.documents, hits.counts
        source[rows] = _first_rows(rows, hits)
        place[rows] = np.stack([np.full(len(rows), number), np.arange(len(rows))], axis=1)
        if reranked is not None and hits.reranked is not None:
            reranked[rows, :columns] = hits.reranked
        if records is not None and hits.records is not None:
            records[rows, :columns] = hits.records
        if decisions is not None:
            plain = Decision("newest" if part.answerer is None else part.answerer.name)
            for row, decision in zip(part.rows, hits.decisions or [plain] * len(rows), strict=True):
                decisions[row] = decision
    resolvers = tuple(
        PartIds(
            np.array(part.rows, dtype=np.int64),
            hits.resolver,
            hits.namespace,
            hits.backend,
            hits.decisions is not None,
            hits.reranked is not None,
        )
        for part, hits in zip(parts, answers, strict=True)
    )
    return Hits(
        scores,
        documents,
        counts,
        queries,
        join_names(hits.backend for hits in answers),
        PartResolver(resolvers),
        PartExplainer(place, tuple(hits.explainer for hits in answers)),
        _add_times(answers),
        sum(hits.postings or 0 for hits in answers) if all(hits.postings is not None for hits in answers) else None,
        reranked=reranked,
        decisions=None if decisions is None else tuple(decision for decision in decisions if decision is not None),
        source=source,
        annotator=PartAnnotator(place, tuple(hits.annotator for hits in answers)),
        records=records,
        texts=any(hits.texts for hits in answers),
        payload=any(hits.payload for hits in answers),
    )


class PartIds(NamedTuple):
    """What names the documents of one part, and what answered it."""

    rows: Integers
    """The rows of the part, ascending."""
    resolver: Resolver
    namespace: str | None
    """The namespace that all its queries search; None where they search several."""
    backend: str
    decided: bool
    """Whether its queries were decided on by themselves (`Hits.decisions`)."""
    reranked: bool
    """Whether a reranker decided its order."""


@dataclass(frozen=True, eq=False)
class PartResolver:
    """Turns document numbers [B, n] into record ids: each row by the resolver of its part."""

    parts: tuple[PartIds, ...]

    def __call__(self, documents: Integers) -> npt.NDArray[np.object_]:
        ids = np.full(documents.shape, None, dtype=object)
        for part in self.parts:
            ids[part.rows] = part.resolver(documents[part.rows])
        return ids

    def namespaces(self, documents: Integers) -> npt.NDArray[np.object_]:
        """The namespace of each document, same shape; None for -1."""
        names = np.full(documents.shape, None, dtype=object)
        for part in self.parts:
            numbers = documents[part.rows]
            # A resolver that serves a single namespace has no such method.
            resolve = getattr(part.resolver, "namespaces", None)
            if resolve is None:
                single = np.array([part.namespace, None], dtype=object)
                names[part.rows] = single[(numbers < 0).astype(np.int64)]
            else:
                names[part.rows] = resolve(numbers)
        return names

    def exchanges(self, documents: Integers) -> npt.NDArray[np.object_]:
        """The ids of each document's exchange, same shape; None for -1, and where no query of a part asks for them."""
        return self._resolve("exchanges", documents)

    def copies(self, documents: Integers) -> npt.NDArray[np.object_]:
        """As `exchanges`, the ids of the records that each document stands for."""
        return self._resolve("copies", documents)

    def _resolve(self, name: str, documents: Integers) -> npt.NDArray[np.object_]:
        found = np.full(documents.shape, None, dtype=object)
        for part in self.parts:
            numbers = documents[part.rows]
            resolve = getattr(part.resolver, name, None)
            if resolve is not None and (numbers >= 0).any():
                found[part.rows] = resolve(numbers)
        return found

    def slice(self, start: int, stop: int) -> PartResolver:
        parts = []
        for part in self.parts:
            first, last = np.searchsorted(part.rows, [start, stop]).tolist()
            if last > first:
                rows = part.rows[first:last] - start
                parts.append(part._replace(rows=rows, resolver=part.resolver.slice(first, last)))
        # In the order of their first rows, as they are in a batch of these queries alone.
        return PartResolver(tuple(sorted(parts, key=lambda part: int(part.rows[0]))))


@dataclass(frozen=True, eq=False)
class PartExplainer:
    """Explains scores: each row by the explainer of its part."""

    place: Integers  # [B, 2] the part of each row, and its position there
    explainers: tuple[Any, ...]

    def __call__(self, position: int, record_id: str) -> Explanation | FusedExplanation:
        position = position_of(range(len(self.place)), position)
        part, index = self.place[position].tolist()
        explanation: Explanation | FusedExplanation = self.explainers[part](index, record_id)
        return explanation.at(position)

    def slice(self, start: int, stop: int) -> PartExplainer:
        """The explainer of the queries at [start, stop) alone. It holds nothing of the parts without such a query."""
        return PartExplainer(*_slice_parts(self.place, self.explainers, start, stop))


@dataclass(frozen=True, eq=False)
class PartAnnotator:
    """Says why queries have no hits: of each row what its part says."""

    place: Integers  # as in `PartExplainer`
    annotators: tuple[Annotator | None, ...]

    def __call__(self, position: int, query: Query) -> str | None:
        part, index = self.place[position].tolist()
        annotator = self.annotators[part]
        return None if annotator is None else annotator(index, query)

    def slice(self, start: int, stop: int) -> PartAnnotator:
        """As `PartExplainer.slice`."""
        return PartAnnotator(*_slice_parts(self.place, self.annotators, start, stop))


def _slice_parts(place: Integers, wholes: Sequence[Any], start: int, stop: int) -> tuple[Integers, tuple[Any, ...]]:
    """`place` of the rows at [start, stop) alone, and of each of their parts what belongs to these rows."""
    place = place[start:stop].copy()
    slices: list[Any] = []
    for part in np.unique(place[:, 0]).tolist():
        rows = np.flatnonzero(place[:, 0] == part)
        first, last = int(place[rows[0], 1]), int(place[rows[-1], 1]) + 1
        whole = wholes[part]
        if hasattr(whole, "slice"):
            whole = whole.slice(first, last)
        else:
            first = 0
        place[rows] = np.stack([np.full(len(rows), len(slices)), place[rows, 1] - first], axis=1)
        slices.append(whole)
    return place, tuple(slices)


def _check_strategy(value: Any, row: int) -> Answerer:
    try:
        return strategy_of(value)
    except FanrankError as error:
        raise QueryError(f"query {row}: {error}") from None


def renumber(error: FanrankError, part: Part) -> None:
    """Let an error of a part that names a query name its row in the batch."""
    if error.args and isinstance(error.args[0], str):
        message = re.sub(r"^query (\d+)\b", lambda found: f"query {part.rows[int(found[1])]}", error.args[0])
        error.args = (message, *error.args[1:])


def _same(one: Answerer | None, other: Answerer | None) -> bool:
    return one is other or (one is not None and other is not None and same_answerer(one, other))


def _first_rows(rows: Integers, hits: Hits) -> Integers:
    """For each row of a part, the first row of the batch whose query is equal."""
    if hits.source is None:
        return rows
    _, first, numbers = np.unique(np.array(hits.source), return_index=True, return_inverse=True)
    return rows[first][numbers.reshape(-1)]


def _add_times(answers: Sequence[Hits]) -> dict[str, float] | None:
    timing: dict[str, float] = {}
    for hits in answers:
        for name, spent in (hits.timing or {}).items():
            timing[name] = timing.get(name, 0.0) + spent
    return timing if any(hits.timing is not None for hits in answers) else None
