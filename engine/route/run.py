"""Answers a batch under a policy: each query by the strategy that the policy chooses for it, over one snapshot.

::

    batch ─┬─ bm25 ── confident ────────────────────────────────┐
           │       └─ the rest, one smaller batch ── escalate ──┼─ hits in the batch's order
           └─ those that search dialogues ────────── dialogue ──┘

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

from ..arrays import Flags, Floats, Integers
from ..backends.choose import Backend
from ..errors import ModelMismatchError, QueryError
from ..hybrid import search as hybrid
from ..hybrid.rerank import rerank_hits
from ..hybrid.sources import NO_VECTORS, Sources, check_vectors, has_vector, query_vectors
from ..hybrid.strategy import Strategy
from ..records.decision import Decision
from ..records.explanation import Explanation, FusedExplanation
from ..records.hits import Hits, join_names
from ..records.query import Query
from ..search import lexical
from ..search.batch import Batch, PreparedQuery
from ..search.explain import position_of
from ..search.notes import Notes
from ..search.options import SearchOptions
from ..search.shaping import is_shaped, unshaped
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
        dimension = check_vectors(batch, sources, needed=not isinstance(policy, Cascade) or policy.needs_vectors)
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
    classifiers = [policy.classifier, inner.classifier if isinstance(inner, Router) else None]
    return [classifier for classifier in classifiers if classifier is not None]


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

    def take(self, rows: Sequence[int], hits: Hits, limits: Sequence[int]) -> None:
        """Take the hits of a part for these rows of the batch. Each query is cut at its own k."""
        width = min(self.scores.shape[1], hits.scores.shape[1])
        within = np.arange(width) < np.array(limits, dtype=np.int64)[:, None]
        at = np.array(rows, dtype=np.int64)
        self.scores[at, :width] = np.where(within, hits.scores[:, :width], -np.inf)
        self.documents[at, :width] = np.where(within, hits.documents[:, :width], -1)
        self.counts[at] = np.minimum(hits.counts, limits)
        if hits.reranked is not None:
            if self.reranked is None:
                self.reranked = np.full(self.scores.shape, np.nan)
            self.reranked[at, :width] = np.where(within, hits.reranked[:, :width], np.nan)
        for position, row in enumerate(rows):
            self.explainers[row] = hits.explainer, position
        self.served.append(hits.backend)

    def hits(self, batch: Batch, run: _Run) -> Hits:
        source = np.array(batch.source, dtype=np.int64)
        explainers = self.explainers

        def explain(position: int, record_id: str) -> Explanation | FusedExplanation:
            position = position_of(batch, position)
            explainer, index = explainers[batch.source[position]]
            return explainer(index, record_id).at(position)

        return Hits(
            self.scores[source],
            self.documents[source],
            self.counts[source],
            batch.queries,
            join_names(self.served),
            batch.resolver(),
            explain,
            run.milliseconds if run.options.timing else None,
            reranked=None if self.reranked is None else self.reranked[source],
            decisions=tuple(self.decisions[row] for row in batch.source),
            source=batch.source,
            annotator=Notes(batch.memory.indexer, batch.asked),
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
        self, policy: Policy, rows: Sequence[int], prepared: Sequence[PreparedQuery], batch: Batch, answers: _Answers
    ) -> None:
        if not rows:
            return
        if isinstance(policy, Router):
            self._route(policy, rows, prepared, batch, answers)
            return
        left = self._dialogues(policy, rows, prepared, batch, answers)
        if left:
            self._cascade(policy, [rows[place] for place in left], [prepared[place] for place in left], batch, answers)

    def _dialogues(
        self, policy: Cascade, rows: Sequence[int], prepared: Sequence[PreparedQuery], batch: Batch, answers: _Answers
    ) -> Sequence[int]:
        """Answer the rows that search dialogues and for which the cascade has a strategy; the places of the others."""
        if policy.costly == (policy.escalate,):
            return range(len(rows))
        from .dialogues import dialogue_strategy  # here, as a first search waits for its imports

        parts: dict[Strategy | None, list[int]] = {None: []}
        for place, (row, query) in enumerate(zip(rows, prepared, strict=True)):
            chosen = dialogue_strategy(policy, query, row, batch.memory, self.sources)
            parts.setdefault(chosen, []).append(place)
        left = parts.pop(None)
        for strategy, places in parts.items():
            assert strategy is not None
            own = [rows[place] for place in places]
            self._strategy(strategy, own, [prepared[place] for place in places], batch, answers)
            if strategy is policy.dialogue_words:
                for row in own:
                    answers.decisions[row] = replace(answers.decisions[row], skipped=NO_VECTORS)
        return left

    def _cascade(
        self, policy: Cascade, rows: Sequence[int], prepared: Sequence[PreparedQuery], batch: Batch, answers: _Answers
    ) -> None:
        spent = _Clock(self, rows)
        # The margin needs two scores, other measures need more. Hits are cut at each query's own k afterwards.
        top = [unshaped(query) for query in prepared]
        deeper = [query if query.k >= policy.looks_at else query._replace(k=policy.looks_at) for query in top]
        first = self._search_part(_PLAIN, deeper, batch, stage="first bm25")
        each = spent.lap()
        prepared, typed, types, _ = self._predict_types(policy.classifier, prepared, batch)
        confidence, threshold, skipped = policy.decide(first.scores, first.counts.astype(np.int64), types)
        without = None if policy.needs_vectors else self._without_vectors(prepared)
        if without is not None:
            skipped = skipped | without
        each += spent.lap("decide")
        sure = skipped.tolist()
        known = [None if math.isnan(value) else value for value in confidence.tolist()]
        decided = [
            Decision(_PLAIN.name, each, kind, value, limit, not skip)
            for kind, value, limit, skip in zip(types, known, threshold.tolist(), sure, strict=True)
        ]
        if without is not None:
            for index in np.flatnonzero(without).tolist():
                decided[index] = replace(decided[index], skipped=NO_VECTORS)
        escalated = [index for index, skip in enumerate(sure) if not skip]
        if escalated:
            chosen = policy.escalate
            # A single strategy takes the predicted type. A soft router weighs all types, so it gets the query without.
            from_types = prepared if isinstance(chosen, Router) and chosen.soft else typed
            part, ask = [rows[index] for index in escalated], [from_types[index] for index in escalated]
            if isinstance(chosen, Router):
                classifier = chosen.classifier or policy.classifier
                self.answer(replace(chosen, classifier=classifier), part, ask, batch, answers)
            else:
                self._strategy(chosen, part, ask, batch, answers)
            for index, row in zip(escalated, part, strict=True):
                decided[index] = _join_decisions(answers.decisions[row], decided[index])
        # Where a reranker reads the hits, or a query keeps a part of them, BM25 is asked again.
        again = np.array([self.options.reranker is not None or is_shaped(query.query) for query in prepared])
        confident, others = np.flatnonzero(skipped & ~again), np.flatnonzero(skipped & again)
        if len(confident):
            part = [rows[index] for index in confident.tolist()]
            limits = [prepared[index].k for index in confident.tolist()]
            answers.take(part, _select_rows(first, confident), limits)
        if len(others):
            part = [rows[index] for index in others.tolist()]
            self._strategy(_PLAIN, part, [prepared[index] for index in others.tolist()], batch, answers)
            for index, row in zip(others.tolist(), part, strict=True):
                decided[index] = _join_decisions(answers.decisions[row], decided[index])
        answers.decisions |= zip(rows, decided, strict=True)

    def _without_vectors(self, prepared: Sequence[PreparedQuery]) -> Flags:
        """[queries] whether nothing can be compared by vectors for the query."""
        return np.array([not has_vector(query, self.sources) for query in prepared], dtype=np.bool_)

    def _route(
        self, router: Router, rows: Sequence[int], prepared: Sequence[PreparedQuery], batch: Batch, answers: _Answers
    ) -> None:
        spent = _Clock(self, rows)
        known = [query.query.type for query in prepared]
        _, prepared, types, probabilities = self._predict_types(router.classifier, prepared, batch)
        weights = router.weights(probabilities if router.soft else None, known if router.soft else types)
        prepared = self._encode_reused(prepared, [dict(by_name) for by_name in weights], router.strategies, batch)
        each = spent.lap("decide")
        if router.soft:
            self._soft(router, rows, prepared, weights, batch, answers)
        else:
            parts: dict[str, list[int]] = {}
            for index, by_name in enumerate(weights):
                parts.setdefault(next(iter(by_name)), []).append(index)
            for name, places in parts.items():
                self._strategy(
                    router.strategies[name],
                    [rows[index] for index in places],
                    [prepared[index] for index in places],
                    batch,
                    answers,
                )
        for index, row in enumerate(rows):
            before = answers.decisions[row]
            answers.decisions[row] = replace(before, milliseconds=before.milliseconds + each, type=types[index])

    # Sources: A097.
    def _soft(
        self,
        router: Router,
        rows: Sequence[int],
        prepared: Sequence[PreparedQuery],
        weights: Sequence[Mapping[str, float]],
        batch: Batch,
        answers: _Answers,
    ) -> None:
        """Answer by ``sum_s w(s) / (k + rank_s(d))`` over the strategies' lists, added in the table's order."""
        costs = dict.fromkeys(rows, 0.0)
        lists: dict[str, tuple[list[int], Hits]] = {}
        for name, strategy in router.strategies.items():
            places = [index for index, strategy_weights in enumerate(weights) if name in strategy_weights]
            if not places:
                continue
            own_rows = [rows[index] for index in places]
            spent = _Clock(self, own_rows)
            ask = [unshaped(prepared[index])._replace(k=max(prepared[index].k, SOFT_DEPTH)) for index in places]
            lists[name] = places, self._search_part(strategy, ask, batch, reranked=False)
            each = spent.lap()
            for row in own_rows:
                costs[row] += each
        spent = _Clock(self, rows)
        part = batch.select(prepared)
        hits = SoftAnswer(part, weights, lists, router).hits(self.sources.records)
        each = spent.lap("fuse")
        if self.options.reranker is not None:
            vectors = query_vectors(part, self.sources) if router.dense else None
            hits = rerank_hits(hits, part, self.sources, self.options.reranker, self.options.rerank_depth, vectors)
            each += spent.lap("rerank")
        answers.take(rows, hits, [query.k for query in prepared])
        for index, row in enumerate(rows):
            answers.decisions[row] = Decision(router.name, costs[row] + each, weights=dict(weights[index]))

    def _strategy(
        self,
        strategy: Strategy,
        rows: Sequence[int],
        prepared: Sequence[PreparedQuery],
        batch: Batch,
        answers: _Answers,
    ) -> None:
        spent = _Clock(self, rows)
        hits = self._search_part(strategy, prepared, batch)
        answers.take(rows, hits, [query.k for query in prepared])
        each = spent.lap()
        if hits.decisions is None:
            answers.decisions |= dict.fromkeys(rows, Decision(strategy.name, each))
        else:
            answers.decisions |= zip(rows, hits.decisions, strict=True)

    def _search_part(
        self,
        strategy: Strategy,
        prepared: Sequence[PreparedQuery],
        batch: Batch,
        *,
        reranked: bool = True,
        stage: str | None = None,
    ) -> Hits:
        started = time.perf_counter()
        part = batch.select(prepared)
        options = self.options if reranked else replace(self.options, reranker=None)
        if strategy.plain and (options.reranker is None or stage is not None):
            hits = lexical.answer_lexical(part, self.backend, options, records=self.sources.records)
        else:
            hits = hybrid.answer(part, self.backend, self.sources, strategy, options)
        if stage is not None:
            self._add(stage, (time.perf_counter() - started) * 1e3)
        elif self.options.timing:
            for name, spent in (hits.timing or {}).items():
                self._add(name, spent)
        return hits

    def _predict_types(
        self, classifier: Classifier | None, prepared: Sequence[PreparedQuery], batch: Batch
    ) -> tuple[Sequence[PreparedQuery], Sequence[PreparedQuery], list[str | None], Floats | None]:
        """Predict the types of queries: (the queries, the same with their types, the types, the probabilities).

        A query that gives its type keeps it. If the classifier needs vectors, the queries get those of their texts. The
        probabilities are None if nothing was predicted.
        """
        known = [item.query.type for item in prepared]
        if classifier is None or all(name is not None for name in known):
            return prepared, prepared, known, None
        vectors = None
        if classifier.dimension:
            prepared = self._attach_vectors(prepared, batch)
            vectors = np.stack([_vector_of(item.query, classifier.dimension) for item in prepared])
        probabilities = classifier.probabilities([item.query.text for item in prepared], vectors)
        likeliest = probabilities.argmax(axis=1).tolist()
        types = [
            classifier.labels[best] if known_type is None else known_type
            for known_type, best in zip(known, likeliest, strict=True)
        ]
        typed = [
            item._replace(query=replace(item.query, type=name)) for item, name in zip(prepared, types, strict=True)
        ]
        return prepared, typed, types, probabilities

    def _encode_reused(
        self,
        prepared: Sequence[PreparedQuery],
        weights: Sequence[Mapping[str, float]],
        strategies: Mapping[str, Strategy],
        batch: Batch,
    ) -> list[PreparedQuery]:
        """The queries, with vectors for those that several dense strategies, or one and a reranker, will need."""
        prepared = list(prepared)
        uses = [sum(bool(strategies[name].dense) for name in query_weights) for query_weights in weights]
        reranks = self.options.reranker is not None
        often = [index for index, count in enumerate(uses) if count > 1 or (count and reranks)]
        if often:
            encoded = self._attach_vectors([prepared[index] for index in often], batch)
            for index, query in zip(often, encoded, strict=True):
                prepared[index] = query
        return prepared

    def _attach_vectors(self, prepared: Sequence[PreparedQuery], batch: Batch) -> list[PreparedQuery]:
        """The queries with the vectors of their texts, so that no text is encoded twice."""
        part = batch.select(prepared)
        vectors, has = query_vectors(part, self.sources)
        return [
            item._replace(query=replace(item.query, vector=vectors[index]))
            if has[index] and item.query.vector is None
            else item
            for index, item in enumerate(prepared)
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


def _select_rows(hits: Hits, places: Integers) -> Hits:
    """The hits of some queries of a part. Explanations still go to the queries' positions in that part."""
    numbers = places.tolist()

    def explain(position: int, record_id: str) -> Any:
        return hits.explainer(numbers[position], record_id)

    return replace(
        hits,
        scores=hits.scores[places],
        documents=hits.documents[places],
        counts=hits.counts[places],
        queries=tuple(hits.queries[number] for number in numbers),
        explainer=explain,
    )


def _vector_of(query: Query, dimension: int) -> Floats:
    """A query's own vector, or zeros if it has none."""
    if query.vector is None:
        return np.zeros(dimension)
    vector: Floats = query.vector[0].astype(np.float64)
    return vector
