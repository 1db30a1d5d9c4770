"""Loads, indexes, searches and measures a dataset: what ``fanrank eval`` prints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..encoders.encoder import Encoder
from ..encoders.sparse import SparseSentenceEncoder, TermEncoder
from ..errors import ParameterError
from ..hybrid.strategy import AnyStrategy, Strategy
from ..metrics.answers import ANSWER_DEPTHS
from ..metrics.ranking import trec_eval
from ..records.neighbours import Neighbours
from ..route.cascade import Cascade
from ..route.policy import Answerer, Policy, load, strategy_of
from .answering import ANSWER_DEPTH, AnswerJudge, JudgedAnswers, QuestionAnswerer, answers_in_context, judge_answers
from .dataset import Dataset
from .encoders import default_encoder, describe_encoder, open_encoder
from .hybrid import study_strategies
from .presets import LOADERS, Preset, check_reading, find_preset
from .protocol import Evaluation, default_depth, measure, open_engine, prepare_dataset, run, warm_up


@dataclass(frozen=True)
class Answering:
    """How questions are answered and judged: the arguments of `judge_answers`. Raises `ParameterError`."""

    answerer: QuestionAnswerer
    judge: AnswerJudge
    depth: int = ANSWER_DEPTH
    per_category: int | None = None
    seed: int = 0
    workers: int = 1
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        if not callable(self.answerer) or not callable(self.judge):
            raise ParameterError(f"an answerer and a judge must be callables, not {self.answerer!r}, {self.judge!r}")
        for name in ("depth", "per_category", "workers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not (
                (isinstance(value, int) and value > 0) or (value is None and name == "per_category")
            ):
                raise ParameterError(f"{name} must be 1 or more, not {value!r}")

    def judge_answers(self, evaluation: Evaluation) -> JudgedAnswers:
        """Answer and judge the evaluation's questions. Raises what `judge_answers` raises."""
        return judge_answers(evaluation, **vars(self))


def evaluate(
    dataset_kind: str,
    path: str | os.PathLike[str],
    *,
    preset: str = "default",
    analyzer: str | None = None,
    method: str | None = None,
    k1: float | None = None,
    b: float | None = None,
    k: int | None = None,
    encoder: str | Encoder | None = None,
    embeddings: str | os.PathLike[str] | None = None,
    term_encoder: str | TermEncoder | None = None,
    strategy: AnyStrategy | Policy | None = None,
    policy: str | os.PathLike[str] | None = None,
    tau: float | None = None,
    types: str = "none",
    neighbours: Neighbours | None = None,
    backend: str | None = None,
    threads: int = 1,
    split: str = "test",
    reading: dict[str, Any] | None = None,
    latency: int | None = None,
    answering: Answering | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Load a dataset, index it, search it and compute the metrics. Returns what ``fanrank eval --json`` prints.

    - `dataset_kind` is beir, locomo or longmemeval; `split` is for beir only.
    - `analyzer`, `method`, `k1` and `b` override the preset's; `reading` overrides the loader's options, for example
      ``{"date": True}``. A BEIR corpus is streamed: no more than the index is held.
    - `strategy` is what `strategy_of` takes (None: BM25). Instead `policy` may name a policy's file. `tau` replaces a
      cascade's threshold. `types` is as in `prepare_dataset`. `neighbours` is that of every query.
    - `encoder`, a model's name or an `Encoder`, is for a strategy with a dense channel. None means `DEFAULT_ENCODER`,
      if that is installed; the result then says so. `embeddings` names a file that caches the vectors of records;
      queries are encoded each time.
    - `term_encoder` is for a strategy with learned weights.
    - `latency` is the number of queries that are also timed on the warm engine, as in `run`; 0 for none.
    - `answering` also answers and judges questions. It needs a dataset with gold answers.

    In the result, ``ms_per_query`` is the wall-clock time of the search over all queries as one batch, encoding
    included, divided by the number of queries. ``stages_ms`` holds the milliseconds of each stage, for the batch and
    for a query. With a policy, ``skip`` is the share of queries that a cascade answered by BM25 alone, and
    ``answered_by`` counts queries by strategy. ``latency`` holds the fields of `Latency`. With gold answers ``answers``
    says whether they stand in what was found; with `answering`, ``judged`` holds the accuracies and every answer.

    Raises `ParameterError`, `DatasetError`, `RecordError`, `MissingExtraError`, `PolicyFileError`, `AnswerError` and
    what the engine raises.
    """
    trec_eval()  # raises for a missing extra now and not after a long search
    chosen = find_preset(preset, dataset_kind)
    answerer = _choose_answerer(strategy, policy, tau)
    by_default = encoder is None and bool(answerer.dense)
    if by_default:
        encoder = default_encoder(f"strategy {answerer.name!r} has a dense channel")
    elif encoder is None and embeddings is not None:
        raise ParameterError("embeddings keeps what an encoder makes; give both")
    if term_encoder is None and answerer.learned:
        raise ParameterError(f"strategy {answerer.name!r} has a channel of learned weights: give a term encoder")
    chosen = _override(chosen, analyzer, method, k1, b)
    options = _reading_of(chosen, dataset_kind, split, reading)
    started = time.perf_counter()
    dataset = _load(dataset_kind, path, options, neighbours)
    if answering is not None and not (dataset.answers or dataset.unanswerable):
        raise ParameterError(f"{dataset.name} has no gold answers, so nothing can be judged")
    loaded = time.perf_counter() - started
    model = None if encoder is None else open_encoder(encoder, embeddings, queries=False)
    started = time.perf_counter()
    dataset = prepare_dataset(dataset, answerer, types, encoder=model)
    typed = time.perf_counter() - started if types == "predicted" else 0.0
    depth = default_depth(dataset) if k is None else k
    terms = SparseSentenceEncoder(term_encoder) if isinstance(term_encoder, str) else term_encoder
    evaluation = run(
        dataset,
        chosen,
        k=depth,
        encoder=model,
        term_encoder=terms,
        strategy=answerer,
        backend=backend,
        threads=threads,
        latency=latency,
        progress=progress,
    )
    result: dict[str, Any] = {
        "dataset": dataset.name,
        "preset": preset,
        "analyzer": chosen.analyzer,
        "strategy": answerer.name,
        "encoder": {**(describe_encoder(model) or {}), "default": True} if by_default else describe_encoder(model),
        **({} if terms is None else {"term_encoder": describe_encoder(terms)}),
        "backend": evaluation.backend,
        "n": len(dataset.queries),
        "metrics": evaluation.metrics(),
        "parameters": {
            "method": chosen.method,
            "k1": chosen.k1,
            "b": chosen.b,
            "query_tf": chosen.query_tf,
            "complete": chosen.complete,
            **options,
            "k": depth,
            "threads": threads,
            "types": types,
            **_shown(neighbours),
            "strategy": answerer.to_dict(),
        },
        "seconds": {"load": loaded, **({"types": typed} if typed else {}), **evaluation.seconds},
        "ms_per_query": 1e3 * (typed + evaluation.seconds["search"]) / max(len(dataset.queries), 1),
        "stages_ms": {
            "batch": evaluation.stages,
            "per_query": {stage: spent / max(len(dataset.queries), 1) for stage, spent in evaluation.stages.items()},
        },
    }
    if dataset.clusters:
        # A margin, as a share of the best score, is meaningful for BM25 only.
        margin = (
            answerer.plain
            if isinstance(answerer, Strategy)
            else isinstance(answerer, Cascade) and answerer.confidence == "margin"
        )
        result["margin_sweep"] = evaluation.margin_sweep() if margin else None
    if evaluation.decisions is not None:
        result["answered_by"] = evaluation.answered_by()
    if evaluation.skip is not None:
        result["skip"] = evaluation.skip
    if dataset.categories:
        result["per_category"] = evaluation.per_category()
    if evaluation.latency is not None:
        result["latency"] = evaluation.latency.to_dict()
    if dataset.answers:
        cut = depth < max(dataset.sizes().values())
        depths = [at for at in ANSWER_DEPTHS if at <= depth or not cut]
        result["answers"] = answers_in_context(evaluation, depths or [depth])
    if answering is not None:
        result["judged"] = answering.judge_answers(evaluation).to_dict()
    return result


def compare_strategies(
    dataset_kind: str,
    path: str | os.PathLike[str],
    strategies: Sequence[AnyStrategy | Policy],
    *,
    preset: str = "default",
    analyzer: str | None = None,
    method: str | None = None,
    k1: float | None = None,
    b: float | None = None,
    k: int | None = None,
    encoder: str | Encoder | None = None,
    embeddings: str | os.PathLike[str] | None = None,
    term_encoder: str | TermEncoder | None = None,
    types: str = "none",
    neighbours: Neighbours | None = None,
    backend: str | None = None,
    threads: int = 1,
    split: str = "test",
    reading: dict[str, Any] | None = None,
    latency: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Several strategies over one index of a dataset, as one object of plain JSON values. `render` shows it as text.

    The arguments are those of `evaluate`, `embeddings`, `types` and `split` among them. Each strategy after the first
    is compared with the first by a paired bootstrap over questions, whose draws follow `seed`, in nDCG@10 on documents
    and in Hit@5 on conversations; p is two-sided. ``latency`` holds the times of each strategy on the warm engine,
    unless it was called with 0.

    Raises `ParameterError` for fewer than two strategies, or two of one name, and what `evaluate` raises.
    """
    trec_eval()
    answerers = {answerer.name: answerer for answerer in map(strategy_of, strategies)}
    if len(answerers) != len(strategies) or len(answerers) < 2:
        raise ParameterError("a comparison needs two strategies or more, each of another name")
    chosen = _override(find_preset(preset, dataset_kind), analyzer, method, k1, b)
    options = _reading_of(chosen, dataset_kind, split, reading)
    dense = next((name for name, answerer in answerers.items() if answerer.dense), None)
    if encoder is None and dense is not None:
        encoder = default_encoder(f"strategy {dense!r} has a dense channel")
    elif encoder is None and embeddings is not None:
        raise ParameterError("embeddings keeps what an encoder makes; give both")
    learned = next((name for name, answerer in answerers.items() if answerer.learned), None)
    if term_encoder is None and learned is not None:
        raise ParameterError(f"strategy {learned!r} has a channel of learned weights: give a term encoder")
    dataset = _load(dataset_kind, path, options, neighbours)
    depth = default_depth(dataset) if k is None else k
    model = None if encoder is None else open_encoder(encoder, embeddings, queries=False)
    terms = SparseSentenceEncoder(term_encoder) if isinstance(term_encoder, str) else term_encoder
    models: dict[str, Any] = {"encoder": model, "term_encoder": terms}
    evaluations = {}
    with open_engine(dataset, chosen, answerers.values(), **models, backend=backend, progress=progress) as engine:
        for name, answerer in answerers.items():
            asked = prepare_dataset(dataset, answerer, types, encoder=model)
            warm_up(engine, asked, answerer, depth)
            evaluations[name] = measure(engine, asked, chosen, answerer, k=depth, threads=threads, latency=latency)
        backend = engine.backend.name
    metric = "ndcg@10" if dataset_kind == "beir" else "hit@5"
    compared = study_strategies(evaluations, metric=metric, against=list(answerers)[:1], seed=seed)
    timed = {name: each.latency.to_dict() for name, each in evaluations.items() if each.latency is not None}
    parameters = {**options, "k": depth, "types": types, **_shown(neighbours)}
    shared = {"preset": preset, "parameters": parameters, "backend": backend}
    return {**compared, **shared, "encoder": describe_encoder(model), **({"latency": timed} if timed else {})}


def _reading_of(preset: Preset, dataset_kind: str, split: str, reading: dict[str, Any] | None) -> dict[str, Any]:
    """The loader's options: the preset's, and what the caller gives instead."""
    return {**preset.reading, **({"split": split} if dataset_kind == "beir" else {}), **(reading or {})}


def _override(preset: Preset, analyzer: str | None, method: str | None, k1: float | None, b: float | None) -> Preset:
    given: dict[str, Any] = {"analyzer": analyzer, "method": method, "k1": k1, "b": b}
    return replace(preset, **{name: value for name, value in given.items() if value is not None})


def _load(
    kind: str, path: str | os.PathLike[str], options: Mapping[str, Any], neighbours: Neighbours | None
) -> Dataset:
    check_reading(kind, options)
    dataset: Dataset = LOADERS[kind](path, **options, **({"stream": True} if kind == "beir" else {}))
    if neighbours is None:
        return dataset
    return replace(dataset, queries=[replace(query, neighbours=neighbours) for query in dataset.queries])


def _shown(neighbours: Neighbours | None) -> dict[str, Any]:
    """The parameter of a result."""
    return {} if neighbours is None else {"neighbours": neighbours.to_dict()}


def _choose_answerer(
    strategy: AnyStrategy | Policy | None, policy: str | os.PathLike[str] | None, tau: float | None
) -> Answerer:
    if policy is None:
        answerer = strategy_of("bm25" if strategy is None else strategy)
    elif strategy is not None:
        raise ParameterError("a policy says which strategies answer; give a strategy or a policy, not both")
    else:
        answerer, _ = load(policy)
    if tau is None:
        return answerer
    if not isinstance(answerer, Cascade):
        raise ParameterError(
            f"tau is a cascade's threshold, and {answerer.name!r} is none; take the strategy 'cascade'"
        )
    return replace(answerer, tau=tau)
