"""Answers a batch under a policy: each query by the strategy that the policy chooses for it, over one snapshot.

::

    batch ── bm25 ── confident ─────────────────────────────┐
                  └─ the rest, one smaller batch ─ escalate ─┴─ hits in the batch's order

Each part of the batch is answered as `Engine.search` would answer it alone. So an escalated query has the bits of its
strategy, and a skipped one the bits of BM25. Equal queries are decided and answered once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import Floats, Integers
from ..backends.choose import Backend
from ..errors import ModelMismatchError, QueryError
from ..hybrid import search as hybrid
from ..hybrid.rerank import rerank_hits
from ..hybrid.sources import Sources, check_vectors, query_vectors
from ..hybrid.strategy import Strategy
from ..records.decision import Decision
from ..records.explanation import Explanation, FusedExplanation
from ..records.hits import Hits
from ..records.query import Query
from ..search import lexical
from ..search.batch import Batch, PreparedQuery
from ..search.explain import position_of
from ..search.options import SearchOptions
from .cascade import Cascade
from .classifier import Classifier
from .policy import Policy
from .router import Router
from .soft import SoftAnswer

SOFT_DEPTH = 100
"""How many hits of each strategy a soft router fuses; RRF's lists have the same length (A060, B050)."""

_PLAIN = Strategy("bm25")


def answer(batch: Batch, backend: Backend, sources: Sources, policy: Policy, options: SearchOptions) -> Hits:
    """The hits of a batch under a policy. `Hits.decisions` holds the policy's decision for each query.

    The batch must have been prepared with the policy's `aged`. Raises `QueryError` and `ModelMismatchError`.
    """
    _check(batch, sources, policy)
    run = _Run(backend, sources, options, np.bincount(np.array(batch.source, dtype=np.int64), minlength=len(batch)))
    rows = sorted(set(batch.source))
    answers = _Answers(len(batch), batch.width)
    run.answer(policy, rows, [batch.asked[row] for row in rows], batch, answers)
    return answers.hits(batch, run)


def _check(batch: Batch, sources: Sources, policy: Policy) -> None:
    """Raise what any of the policy's strategies may raise for these queries, whichever strategy is chosen later.

    So the contents of the memory never decide whether a batch fails.
    """
    if policy.dense:
        dimension = check_vectors(batch, sources)
        for classifier in _classifiers(policy):
            _check_classifier(classifier, dimension, sources)
    for row, query in enumerate(batch.queries):
        if query.now is None and policy.needs_now(query.type):
            raise QueryError(
                f"query {row}: policy {policy.name!r} may weigh by age, so it needs the query's own time, `Query.now` "
                "or --now; or take a policy that escalates to a strategy other than agent_rrf and decay"
            )


def _classifiers(policy: Policy) -> list[Classifier]:
    """The classifiers of the policy and of the router to which a cascade escalates."""
    inner = policy.escalate if isinstance(policy, Cascade) else None
    found = [policy.classifier, inner.classifier if isinstance(inner, Router) else None]
    return [own for own in found if own is not None]


def _check_classifier(classifier: Classifier, dimension: int, sources: Sources) -> None:
    """Raise `ModelMismatchError` if the classifier was fitted to vectors of another model than the engine's."""
    if not classifier.dimension:
        return
    pin = sources.pin or {}
    model = f"{pin.get('name')}@{pin.get('version')}"
    if classifier.dimension != dimension or classifier.model not in (None, pin.get("name"), model):
        raise ModelMismatchError(
            f"the policy's classifier was fitted to vectors of {classifier.model or 'an unnamed model'} with "
            f"{classifier.dimension} dimensions, and the engine's are of {model} with {dimension}; tune a policy anew"
        )


class _Answers:
    """The batch's answer, filled part by part."""

    def __init__(self, queries: int, width: int) -> None:
        self.scores = np.full((queries, width), -np.inf)
        self.documents = np.full((queries, width), -1, dtype=np.int64)
        self.counts = np.zeros(queries, dtype=np.int32)
        self.reranked: Floats | None = None
        self.explainers: dict[int, tuple[Callable[[int, str], Explanation | FusedExplanation], int]] = {}
        self.decisions: dict[int, Decision] = {}
        self.served: list[str] = []

    def take(self, rows: Sequence[int], found: Hits, limits: Sequence[int]) -> None:
        """Take the hits of a part for these rows of the batch. Each query is cut at its own k."""
        width = min(self.scores.shape[1], found.scores.shape[1])
        within = np.arange(width) < np.array(limits, dtype=np.int64)[:, None]
        at = np.array(rows, dtype=np.int64)
        self.scores[at, :width] = np.where(within, found.scores[:, :width], -np.inf)
        self.documents[at, :width] = np.where(within, found.documents[:, :width], -1)
        self.counts[at] = np.minimum(found.counts, limits)
        if found.reranked is not None:
            if self.reranked is None:
                self.reranked = np.full(self.scores.shape, np.nan)
            self.reranked[at, :width] = np.where(within, found.reranked[:, :width], np.nan)
        for place, row in enumerate(rows):
            self.explainers[row] = found.explainer, place
        self.served.append(found.backend)

    def hits(self, batch: Batch, run: _Run) -> Hits:
        source = np.array(batch.source, dtype=np.int64)
        explainers = self.explainers

        def explain(position: int, record_id: str) -> Explanation | FusedExplanation:
            position = position_of(batch, position)
            explainer, place = explainers[batch.source[position]]
            return explainer(place, record_id).at(position)

        return Hits(
            self.scores[source],
            self.documents[source],
            self.counts[source],
            batch.queries,
            ", ".join(dict.fromkeys(name for served in self.served for name in served.split(", "))),
            batch.resolver(),
            explain,
            run.milliseconds if run.options.timing else None,
            reranked=None if self.reranked is None else self.reranked[source],
            decisions=tuple(self.decisions[row] for row in batch.source),
            source=batch.source,
        )


class _Run:
    """Answers parts of the batch and adds up the time of each stage."""

    def __init__(self, backend: Backend, sources: Sources, options: SearchOptions, repeats: Integers) -> None:
        self.backend = backend
        self.sources = sources
        self.options = options
        self.repeats = repeats  # [queries of the batch] how many equal queries each answered row stands for
        self.milliseconds: dict[str, float] = {}

    def answer(
        self, policy: Policy, rows: Sequence[int], asked: Sequence[PreparedQuery], batch: Batch, answers: _Answers
    ) -> None:
        if not rows:
            return
        if isinstance(policy, Router):
            self._route(policy, rows, asked, batch, answers)
        else:
            self._cascade(policy, rows, asked, batch, answers)

    def _cascade(
        self, policy: Cascade, rows: Sequence[int], asked: Sequence[PreparedQuery], batch: Batch, answers: _Answers
    ) -> None:
        spent = _Clock(self, rows)
        # The margin needs two scores, other measures need more. Hits are cut at each query's own k afterwards.
        deeper = [one if one.k >= policy.looks_at else one._replace(k=policy.looks_at) for one in asked]
        first = self._part(_PLAIN, deeper, batch, stage="first bm25")
        each = spent.lap()
        asked, typed, types, _ = self._typed(policy.classifier, asked, batch)
        confidence, threshold, skipped = policy.decide(first.scores, first.counts.astype(np.int64), types)
        each += spent.lap("decide")
        sure = skipped.tolist()
        known = [None if math.isnan(own) else own for own in confidence.tolist()]
        decided = [
            Decision(_PLAIN.name, each, kind, own, limit, not skip)
            for kind, own, limit, skip in zip(types, known, threshold.tolist(), sure, strict=True)
        ]
        escalated = [place for place, skip in enumerate(sure) if not skip]
        if escalated:
            chosen = policy.escalate
            # A single strategy takes the predicted type. A soft router weighs all types, so it gets the query without.
            from_types = asked if isinstance(chosen, Router) and chosen.soft else typed
            own, ask = [rows[place] for place in escalated], [from_types[place] for place in escalated]
            if isinstance(chosen, Router):
                told = chosen.classifier or policy.classifier
                self.answer(replace(chosen, classifier=told), own, ask, batch, answers)
            else:
                self._strategy(chosen, own, ask, batch, answers)
            for place, row in zip(escalated, own, strict=True):
                decided[place] = _join_decisions(answers.decisions[row], decided[place])
        confident = np.flatnonzero(skipped)
        if len(confident):
            own = [rows[place] for place in confident.tolist()]
            ask = [asked[place] for place in confident.tolist()]
            if self.options.reranker is None:
                answers.take(own, _rows(first, confident), [one.k for one in ask])
            else:  # searched again, as deep as the reranker reads; BM25 costs nothing compared with the reranker
                self._strategy(_PLAIN, own, ask, batch, answers)
                for place, row in zip(confident.tolist(), own, strict=True):
                    decided[place] = _join_decisions(answers.decisions[row], decided[place])
        answers.decisions |= zip(rows, decided, strict=True)

    def _route(
        self, router: Router, rows: Sequence[int], asked: Sequence[PreparedQuery], batch: Batch, answers: _Answers
    ) -> None:
        spent = _Clock(self, rows)
        known = [one.query.type for one in asked]
        _, asked, types, probabilities = self._typed(router.classifier, asked, batch)
        weights = router.weights(probabilities if router.soft else None, known if router.soft else types)
        asked = self._encoded(asked, [dict(own) for own in weights], router.strategies, batch)
        each = spent.lap("decide")
        if router.soft:
            self._soft(router, rows, asked, weights, batch, answers)
        else:
            parts: dict[str, list[int]] = {}
            for place, own in enumerate(weights):
                parts.setdefault(next(iter(own)), []).append(place)
            for name, places in parts.items():
                self._strategy(
                    router.strategies[name],
                    [rows[place] for place in places],
                    [asked[place] for place in places],
                    batch,
                    answers,
                )
        for place, row in enumerate(rows):
            before = answers.decisions[row]
            answers.decisions[row] = replace(before, milliseconds=before.milliseconds + each, type=types[place])

    # Sources: A097.
    def _soft(
        self,
        router: Router,
        rows: Sequence[int],
        asked: Sequence[PreparedQuery],
        weights: Sequence[Mapping[str, float]],
        batch: Batch,
        answers: _Answers,
    ) -> None:
        """Answer by ``sum_s w(s) / (k + rank_s(d))`` over the strategies' lists, added in the table's order."""
        costs = dict.fromkeys(rows, 0.0)
        lists: dict[str, tuple[list[int], Hits]] = {}
        for name, strategy in router.strategies.items():
            places = [place for place, own in enumerate(weights) if name in own]
            if not places:
                continue
            own_rows = [rows[place] for place in places]
            spent = _Clock(self, own_rows)
            ask = [asked[place]._replace(k=max(asked[place].k, SOFT_DEPTH)) for place in places]
            lists[name] = places, self._part(strategy, ask, batch, reranked=False)
            each = spent.lap()
            for row in own_rows:
                costs[row] += each
        spent = _Clock(self, rows)
        part = batch.select(asked)
        found = SoftAnswer(part, weights, lists, router).hits()
        each = spent.lap("fuse")
        if self.options.reranker is not None:
            vectors = query_vectors(part, self.sources) if router.dense else None
            found = rerank_hits(found, part, self.sources, self.options.reranker, self.options.rerank_depth, vectors)
            each += spent.lap("rerank")
        answers.take(rows, found, [one.k for one in asked])
        for place, row in enumerate(rows):
            answers.decisions[row] = Decision(router.name, costs[row] + each, weights=dict(weights[place]))

    def _strategy(
        self, strategy: Strategy, rows: Sequence[int], asked: Sequence[PreparedQuery], batch: Batch, answers: _Answers
    ) -> None:
        spent = _Clock(self, rows)
        found = self._part(strategy, asked, batch)
        answers.take(rows, found, [one.k for one in asked])
        each = spent.lap()
        if found.decisions is None:
            answers.decisions |= dict.fromkeys(rows, Decision(strategy.name, each))
        else:
            answers.decisions |= zip(rows, found.decisions, strict=True)

    def _part(
        self,
        strategy: Strategy,
        asked: Sequence[PreparedQuery],
        batch: Batch,
        *,
        reranked: bool = True,
        stage: str | None = None,
    ) -> Hits:
        started = time.perf_counter()
        part = batch.select(asked)
        options = self.options if reranked else replace(self.options, reranker=None)
        if strategy.plain and (options.reranker is None or stage is not None):
            found = lexical.answer_lexical(part, self.backend, options)
        else:
            found = hybrid.answer(part, self.backend, self.sources, strategy, options)
        if stage is not None:
            self._add(stage, (time.perf_counter() - started) * 1e3)
        elif self.options.timing:
            for name, spent in (found.timing or {}).items():
                self._add(name, spent)
        return found

    def _typed(
        self, classifier: Classifier | None, asked: Sequence[PreparedQuery], batch: Batch
    ) -> tuple[Sequence[PreparedQuery], Sequence[PreparedQuery], list[str | None], Floats | None]:
        """Predict the types of queries: (the queries, the same with their types, the types, the probabilities).

        A query that gives its type keeps it. If the classifier needs vectors, the queries get those of their texts. The
        probabilities are None if nothing was predicted.
        """
        known = [one.query.type for one in asked]
        if classifier is None or all(name is not None for name in known):
            return asked, asked, known, None
        vectors = None
        if classifier.dimension:
            asked = self._with_vectors(asked, batch)
            vectors = np.stack([_vector(one.query, classifier.dimension) for one in asked])
        probabilities = classifier.probabilities([one.query.text for one in asked], vectors)
        likeliest = probabilities.argmax(axis=1).tolist()
        types = [classifier.labels[best] if own is None else own for own, best in zip(known, likeliest, strict=True)]
        typed = [one._replace(query=replace(one.query, type=name)) for one, name in zip(asked, types, strict=True)]
        return asked, typed, types, probabilities

    def _encoded(
        self,
        asked: Sequence[PreparedQuery],
        weights: Sequence[Mapping[str, float]],
        strategies: Mapping[str, Strategy],
        batch: Batch,
    ) -> list[PreparedQuery]:
        """The queries, with vectors for those that several dense strategies, or one and a reranker, will need."""
        asked = list(asked)
        uses = [sum(bool(strategies[name].dense) for name in own) for own in weights]
        often = [place for place, own in enumerate(uses) if own > 1 or (own and self.options.reranker is not None)]
        if often:
            for place, one in zip(often, self._with_vectors([asked[place] for place in often], batch), strict=True):
                asked[place] = one
        return asked

    def _with_vectors(self, asked: Sequence[PreparedQuery], batch: Batch) -> list[PreparedQuery]:
        """The queries with the vectors of their texts, so that no text is encoded twice."""
        part = batch.select(asked)
        vectors, has = query_vectors(part, self.sources)
        return [
            one._replace(query=replace(one.query, vector=vectors[place]))
            if has[place] and one.query.vector is None
            else one
            for place, one in enumerate(asked)
        ]

    def _add(self, stage: str, spent: float) -> None:
        self.milliseconds[stage] = self.milliseconds.get(stage, 0.0) + spent


class _Clock:
    """Measures wall-clock time and divides it by the number of queries that a stage works on."""

    def __init__(self, run: _Run, rows: Sequence[int]) -> None:
        self.run = run
        self.queries = max(int(run.repeats[list(rows)].sum()), 1)
        self.last = time.perf_counter()

    def lap(self, stage: str | None = None) -> float:
        """Milliseconds for each query since the last lap. With `stage`, the whole time is added to that stage."""
        now = time.perf_counter()
        spent, self.last = (now - self.last) * 1e3, now
        if stage is not None:
            self.run._add(stage, spent)
        return spent / self.queries


def _join_decisions(answered: Decision, cascade: Decision) -> Decision:
    """The decision of the strategy or router that answered, joined with that of the cascade before it."""
    return replace(
        answered,
        milliseconds=answered.milliseconds + cascade.milliseconds,
        type=cascade.type if answered.type is None else answered.type,
        confidence=cascade.confidence,
        threshold=cascade.threshold,
        escalated=cascade.escalated,
    )


def _rows(found: Hits, places: Integers) -> Hits:
    """The hits of some queries of a part. Explanations still go to the queries' positions in that part."""
    numbers = places.tolist()

    def explain(position: int, record_id: str) -> Any:
        return found.explainer(numbers[position], record_id)

    return replace(
        found,
        scores=found.scores[places],
        documents=found.documents[places],
        counts=found.counts[places],
        queries=tuple(found.queries[place] for place in numbers),
        explainer=explain,
    )


def _vector(query: Query, dimension: int) -> Floats:
    """A query's own vector, or zeros if it has none."""
    if query.vector is None:
        return np.zeros(dimension)
    vector: Floats = query.vector[0].astype(np.float64)
    return vector
