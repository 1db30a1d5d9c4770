"""Runs a dataset through the engine under a published protocol and reports what its paper reported.

========= =============== =========================================================================================
preset    datasets        what it fixes
========= =============== =========================================================================================
default   all             the engine's defaults; LoCoMo as ``Speaker: text`` lines with strict gold, LongMemEval as
                          ``role: content`` lines
agentir   locomo,         SPEC R40: turn texts, lenient gold; analyzer minimal, okapi, k1 1.5, b .75. LongMemEval
          longmemeval     with its abstention questions (A115)
opsem     locomo,         SPEC R10, R41, R12: ``Speaker: text`` or ``role: content`` lines, strict gold; analyzer
          longmemeval     opsem, lucene, k1 1.5, b .75, a query's terms as a set
========= =============== =========================================================================================

The two published protocols rank *all* sessions of a conversation by a stable sort of the scores, where a session
without a query term scores 0. The engine returns no such session, so these presets complete its list. For plain BM25,
the sessions that are missing get score 0, and equal scores stand in document order. Any other strategy runs in its
complete form, and sessions without evidence come last. Under a policy, the queries that a cascade did not escalate are
completed as for plain BM25, and the others as for their strategy. The default preset uses the engine's list as it is.

The margin sweep varies the threshold of the cascade (SPEC A075, A087). With the two best scores s0 and s1, the margin
is c = (s0 - s1) / s0, and the second stage is skipped if c >= tau. It is never skipped for a query with fewer than two
matched sessions (X04).
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..encoders.encoder import Encoder
from ..encoders.sparse import TermEncoder
from ..engine import Engine
from ..errors import ParameterError, choices
from ..hybrid.strategy import Strategy
from ..memory import Memory
from ..metrics.bootstrap import Comparison, cluster_bootstrap, paired_bootstrap
from ..metrics.ranking import HIGHEST_GRADE, METRICS, cutoff, means, per_query
from ..opening import shows_progress
from ..records.decision import Decision, skip_share
from ..records.hits import Hits
from ..records.query import RECORD, Query, check_k
from ..route.cascade import Cascade
from ..route.classifier import Classifier
from ..route.policy import Answerer
from ..route.router import Router
from .dataset import Dataset, RecordStream
from .latency import Latency, measure_latency
from .presets import Preset
from .progress import announced, counted

TAUS_A087 = (0.0, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50, 1.0)
"""The thresholds of AgentIR's sweeps (SPEC A086, A087)."""

BEIR_DEPTH = 100  # hits that BEIR's metrics read (SPEC T001)

TYPES = ("none", "oracle", "predicted")
"""Where the types of an evaluation's queries may come from."""
TYPE_OF = {"temporal": "temporal-reasoning", "multi-hop": "multi-session"}
"""LoCoMo's categories as the question types of `agent_rrf` (A063)."""


class Searcher(Protocol):
    """The part of an engine that a protocol uses."""

    def search(
        self,
        queries: Sequence[Query],
        k: int = ...,
        *,
        strategy: Answerer = ...,
        threads: int = ...,
        timing: bool = ...,
    ) -> Hits: ...


@dataclass(frozen=True)
class Evaluation:
    """One run. `ranked` and `values` follow the dataset's queries. `confidence` is NaN if fewer than two matched."""

    dataset: Dataset
    ranked: dict[str, list[str]]
    confidence: npt.NDArray[np.float64]  # [queries]
    values: dict[str, npt.NDArray[np.float64]]  # metric -> [queries]
    backend: str
    seconds: dict[str, float]
    stages: dict[str, float] = field(default_factory=dict)
    """Milliseconds of each stage of the search, for the batch."""
    decisions: tuple[Decision, ...] | None = None
    """[queries] where a policy decided."""
    latency: Latency | None = None
    """On the engine when it was warm; None where it was not measured."""
    scores: dict[str, list[float]] = field(default_factory=dict)
    """Those of `ranked`; 0 for records that only complete a list."""

    @property
    def skip(self) -> float | None:
        """The share of queries that a cascade answered by BM25 alone; None where no cascade decided."""
        return skip_share(self.decisions or ())

    def answered_by(self) -> dict[str, int]:
        """``{strategy: queries}`` of a policy's decisions, the most frequent first; empty without a policy."""
        return dict(Counter(decision.strategy for decision in self.decisions or ()).most_common())

    def metrics(self) -> dict[str, float]:
        """The mean of each metric."""
        return means(self.values)

    def per_category(self) -> dict[str, dict[str, float]]:
        """``{category: {"n": questions, metric: mean}}``; empty if the dataset has no categories."""
        rows: dict[str, list[int]] = {}
        for row, query in enumerate(self.dataset.relevant):
            if query in self.dataset.categories:
                rows.setdefault(self.dataset.categories[query], []).append(row)
        return {
            category: {"n": len(of), **means({metric: column[of] for metric, column in self.values.items()})}
            for category, of in sorted(rows.items())
        }

    def margin_sweep(self, taus: Sequence[float] = TAUS_A087) -> list[dict[str, float]]:
        """For each tau, the share of queries whose second stage is skipped, also in percent with one decimal."""
        skipped = [float(np.mean(self.confidence >= tau)) for tau in taus]
        return [
            {"tau": tau, "skip": share, "skip_percent": round(100.0 * share, 1)}
            for tau, share in zip(taus, skipped, strict=True)
        ]


def rank(
    searcher: Searcher,
    dataset: Dataset,
    *,
    k: int,
    complete: bool,
    threads: int = 1,
    strategy: Answerer | None = None,
    metrics: Sequence[str] = (),
) -> Evaluation:
    """Search all queries as one batch and compute the metrics. For `complete` see the module's docstring.

    A `strategy` of None is plain BM25. The confidence is that of the policy's decision, or the margin if no policy
    decided. `metrics` are those of `measurable`. Raises `ParameterError` for k below 1.
    """
    if check_k(k) < 1:
        raise ParameterError("an evaluation needs k of 1 or more")
    if complete and any(query.unit != RECORD for query in dataset.queries):
        raise ParameterError("this protocol ranks all records, and exchanges are not; take the preset 'default'")
    started = time.perf_counter()
    depth = k + 1 if dataset.own else k
    answerer = _answerer_of(strategy, complete)
    plain = isinstance(answerer, Strategy) and answerer.plain
    hits = searcher.search(dataset.queries, k=depth, strategy=answerer, threads=threads, timing=True)
    searched = time.perf_counter()
    decisions = hits.decisions
    members = dataset.members() if complete else {}
    ranked: dict[str, list[str]] = {}
    scored: dict[str, list[float]] = {}
    confidence = np.full(len(dataset.queries), np.nan)
    for row, (query, found) in enumerate(zip(dataset.queries, hits, strict=True)):
        self_id = dataset.own.get(str(query.id))
        pairs: Iterable[tuple[str, float]] = found
        if query.unit != RECORD:
            pairs = [(hit.exchange[0] if hit.exchange else hit.id, hit.score) for hit in found]
        scores = {name: score for name, score in pairs if name != self_id}
        listed = list(scores)
        # A full list may have been cut, so a session outside it may have matched. Such a list is not completed.
        if complete and len(found) < depth:
            others = [name for name in members.get(query.namespace, []) if name != self_id]
            if plain or (decisions is not None and decisions[row].escalated is False):
                listed = sorted(others, key=lambda name: -scores.get(name, 0.0))
            else:
                listed += [name for name in others if name not in scores]
        ranked[str(query.id)] = listed[:k]
        scored[str(query.id)] = [scores.get(name, 0.0) for name in listed[:k]]
        if decisions is None:
            confidence[row] = _confidence(list(scores.values()))
        elif (decided := decisions[row].confidence) is not None:
            confidence[row] = decided
    values = per_query(ranked, dataset.relevant, measurable(dataset, k, metrics))
    seconds = {"search": searched - started, "metrics": time.perf_counter() - searched}
    stages = dict(hits.timing or {})
    return Evaluation(dataset, ranked, confidence, values, hits.backend, seconds, stages, decisions, scores=scored)


def measurable(dataset: Dataset, k: int, metrics: Sequence[str] = ()) -> list[str]:
    """`metrics`, or without any those of `METRICS` that lists of k hits can have.

    Where lists may be cut at k, metrics with a cutoff beyond k are left out, and ``ndcg_exp`` if a grade is too high
    for it. Raises `ParameterError` for one of `metrics` that is unknown or reads more than k hits.
    """
    cut = k < max(dataset.sizes().values(), default=0)
    for metric in metrics:
        if cut and (cutoff(metric) or 0) > k:
            raise ParameterError(f"{metric} reads {cutoff(metric)} hits a query, and lists have {k}: give a larger k")
    if metrics:
        return list(metrics)
    known = [metric for metric in METRICS if not cut or (cutoff(metric) or 0) <= k]
    if max((grade for grades in dataset.relevant.values() for grade in grades.values()), default=0) > HIGHEST_GRADE:
        return [metric for metric in known if not metric.startswith("ndcg_exp")]
    return known


def _answerer_of(strategy: Answerer | None, complete: bool) -> Answerer:
    """What a protocol searches with: None is plain BM25, and other strategies run in their complete form if asked."""
    answerer: Answerer = Strategy("bm25") if strategy is None else strategy
    plain = isinstance(answerer, Strategy) and answerer.plain
    return answerer.deep(complete=True) if complete and not plain else answerer


def _confidence(scores: Sequence[float]) -> float:
    # A variant with negative contributions may match with a score of 0 or below; then there is no margin.
    if len(scores) < 2 or scores[0] <= 0.0:
        return math.nan
    return (scores[0] - scores[1]) / scores[0]


def default_depth(dataset: Dataset) -> int:
    """The depth of lists: 100 for a dataset of one namespace, else the size of the largest namespace (full lists)."""
    sizes = dataset.sizes().values()
    return BEIR_DEPTH if len(sizes) <= 1 else max(sizes)


def engine_of(
    dataset: Dataset,
    preset: Preset,
    *,
    encoder: Encoder | None = None,
    term_encoder: TermEncoder | None = None,
    folder: str | None = None,
    keep_texts: bool = True,
    backend: str | None = None,
    progress: bool = False,
) -> Engine:
    """An engine over the dataset's records with the preset's parameters.

    With `folder` the engine is opened there, so that it keeps the records' texts. Without one it holds the records in
    memory, unless `keep_texts` is False.
    """
    options: dict[str, Any] = {
        "analyzer": preset.analyzer,
        "method": preset.method,
        "k1": preset.k1,
        "b": preset.b,
        "query_tf": preset.query_tf,
        "encoder": encoder,
        "term_encoder": term_encoder,
        "backend": backend,
    }
    engine = Engine(**options, keep_texts=keep_texts) if folder is None else Engine.open(folder, **options)
    # With a terminal the engine shows a bar.
    lines = progress and not shows_progress(progress)
    engine.add(counted(dataset.records) if lines else dataset.records, progress=progress)
    return engine


def classifier_of(answerer: Answerer) -> Classifier | None:
    """The classifier of a policy, or None. A cascade without one has that of the router to which it escalates."""
    if isinstance(answerer, Strategy):
        return None
    if answerer.classifier is None and isinstance(answerer, Cascade) and isinstance(answerer.escalate, Router):
        return answerer.escalate.classifier
    return answerer.classifier


# Sources: X07.
def prepare_dataset(dataset: Dataset, strategy: Answerer, types: str, *, encoder: Encoder | None = None) -> Dataset:
    """The dataset with the times and types that a strategy needs in its queries.

    If the strategy uses ages, a query without a time gets that of its namespace's latest record, or 0 if no record has
    a time. `types` says which types queries get:

    - ``none``: no type
    - ``oracle``: their true category, which no user has
    - ``predicted``: the prediction of the policy's classifier from their text, and from the vector by `encoder` if the
      classifier reads vectors

    Raises `ParameterError`.
    """
    if types not in TYPES:
        raise ParameterError(f"unknown types {types!r}{choices(types, TYPES)}")
    queries = dataset.queries
    if types == "oracle":
        known = {name: TYPE_OF.get(category, category) for name, category in dataset.categories.items()}
        queries = [replace(query, type=known.get(str(query.id))) for query in queries]
    if types == "predicted":
        classifier = classifier_of(strategy)
        if classifier is None:
            raise ParameterError(
                f"types 'predicted' are those of a policy's classifier, and {strategy.name!r} has none; tune a policy "
                "that has one, or leave the types out"
            )
        if classifier.dimension and encoder is None:
            raise ParameterError(f"the classifier of {strategy.name!r} looks at query vectors: give an encoder")
        texts = [query.text for query in queries]
        vectors = encoder.queries(texts) if encoder is not None and classifier.dimension else None
        predicted = classifier.predict(texts, vectors)
        queries = [replace(query, type=type) for query, type in zip(queries, predicted, strict=True)]
    if strategy.aged:
        latest: dict[str, float] = {}
        for record in dataset.records:
            if record.time is not None:
                latest[record.namespace] = max(latest.get(record.namespace, record.time), record.time)
        queries = [
            query if query.now is not None else replace(query, now=latest.get(query.namespace, 0.0))
            for query in queries
        ]
    return replace(dataset, queries=queries)


def warm_up(engine: Memory, dataset: Dataset, strategy: Answerer, k: int) -> None:
    """Search with the first query of every namespace, so that the engine derives nothing during the measurement."""
    first: dict[str, Query] = {}
    for query in dataset.queries:
        first.setdefault(query.namespace, query)
    # For a cascade both ways are warmed up, whether or not these few queries escalate.
    answerers: list[Answerer] = [strategy]
    if isinstance(strategy, Cascade):
        answerers = [Strategy("bm25"), strategy.escalate]
    for answerer in answerers:
        engine.search(list(first.values()), k, strategy=answerer)


def run(
    dataset: Dataset,
    preset: Preset,
    *,
    k: int | None = None,
    encoder: Encoder | None = None,
    term_encoder: TermEncoder | None = None,
    strategy: Answerer | None = None,
    backend: str | None = None,
    threads: int = 1,
    latency: int | None = 0,
    metrics: Sequence[str] = (),
    progress: bool = False,
) -> Evaluation:
    """Index the dataset with the preset's parameters, search it, and compute the metrics.

    k is the depth of the lists (default: `default_depth`). `latency` is the number of queries that are also timed on
    the warm engine, one at a time and as a batch; None takes up to 1,000, or 100 where texts are encoded. Then what the
    engine derives at its first search counts as indexing. `metrics` are as in `rank`.
    """
    depth = default_depth(dataset) if k is None else k
    started = time.perf_counter()
    with open_engine(
        dataset,
        preset,
        [strategy],
        encoder=encoder,
        term_encoder=term_encoder,
        backend=backend,
        progress=progress,
    ) as engine:
        if latency != 0:
            warm_up(engine, dataset, Strategy("bm25") if strategy is None else strategy, depth)
        indexed = time.perf_counter() - started
        how: dict[str, Any] = {"threads": threads, "latency": latency, "metrics": metrics, "progress": progress}
        evaluation = measure(engine, dataset, preset, strategy, k=depth, **how)
    return replace(evaluation, seconds={"index": indexed, **evaluation.seconds})


@contextmanager
def open_engine(
    dataset: Dataset, preset: Preset, strategies: Iterable[Answerer | None], **options: Any
) -> Iterator[Engine]:
    """An engine over the dataset for these strategies, closed at the end. `options` are those of `engine_of`."""
    # A list of records is in memory anyway. Texts of a stream are not kept for BM25, and go to a directory for others.
    stream = isinstance(dataset.records, RecordStream)
    plain = all(each is None or (isinstance(each, Strategy) and each.plain) for each in strategies)
    with ExitStack() as after:
        folder = after.enter_context(tempfile.TemporaryDirectory()) if stream and not plain else None
        engine = engine_of(dataset, preset, folder=folder, keep_texts=not stream, **options)
        after.callback(engine.close)
        yield engine


def measure(
    engine: Memory,
    dataset: Dataset,
    preset: Preset,
    strategy: Answerer | None,
    *,
    k: int,
    threads: int = 1,
    latency: int | None = 0,
    metrics: Sequence[str] = (),
    progress: bool = False,
) -> Evaluation:
    """`rank` under the preset, and `measure_latency` unless `latency` is 0."""
    how: dict[str, Any] = {"k": k, "complete": preset.complete, "threads": threads, "metrics": metrics}
    with announced(f"questions by {'bm25' if strategy is None else strategy.name}", len(dataset.queries), progress):
        evaluation = rank(engine, dataset, strategy=strategy, **how)
    if latency == 0:
        return evaluation
    answerer = _answerer_of(strategy, preset.complete)
    timed = measure_latency(engine, dataset.queries, answerer, k, threads=threads, sample=latency)
    return replace(evaluation, latency=timed)


def compare(first: Evaluation, second: Evaluation, metric: str, *, seed: int = 0) -> dict[str, Comparison]:
    """Compare `first` minus `second`: ``{"questions": paired bootstrap, "clusters": cluster bootstrap}``.

    ``clusters`` is present if the dataset has clusters. `seed` is that of both bootstraps. Raises `ParameterError` if
    the two evaluations ran over different queries or did not both measure `metric`.
    """
    if list(first.dataset.relevant) != list(second.dataset.relevant):
        raise ParameterError("the two evaluations ran over different queries")
    for evaluation in (first, second):
        if metric not in evaluation.values:
            raise ParameterError(f"{metric!r} was not measured{choices(metric, evaluation.values)}")
    left, right = first.values[metric], second.values[metric]
    comparisons = {"questions": paired_bootstrap(left, right, seed=seed)}
    clusters = first.dataset.clusters
    if clusters:
        comparisons["clusters"] = cluster_bootstrap(
            left, right, [clusters[query] for query in first.dataset.relevant], seed=seed
        )
    return comparisons
