"""Loads, indexes, searches and measures a dataset: what ``fanrank eval`` prints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..encoders.encoder import Encoder
from ..encoders.sparse import SparseSentenceEncoder, TermEncoder
from ..errors import ParameterError
from ..hybrid.strategy import AnyStrategy, Strategy
from ..metrics.answers import ANSWER_DEPTHS
from ..metrics.ranking import cutoff, trec_eval
from ..metrics.runs import read_run
from ..records.neighbours import Neighbours
from ..route.cascade import Cascade
from ..route.policy import Answerer, Policy, load, strategy_of
from .answering import ANSWER_DEPTH, AnswerJudge, JudgedAnswers, QuestionAnswerer, answers_in_context, judge_answers
from .comparison import study_strategies
from .dataset import Dataset
from .encoders import RememberedQueries, default_encoder, describe_encoder, open_encoder
from .presets import LOADERS, Preset, check_reading, find_preset
from .protocol import Evaluation, default_depth, measure, open_engine, prepare_dataset, run, warm_up
from .runs import check_folder, judge_run, write_run


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
    latency: int | None = 0,
    metrics: Sequence[str] = (),
    write_runs: str | os.PathLike[str] | None = None,
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
    - `metrics` are the only ones that are wanted, such as ``p@5`` or ``bpref``; none means `METRICS`.
    - `write_runs` is a folder, in which the ranking is written as a TREC run, ``NAME.run``.
    - `answering` also answers and judges questions. It needs a dataset with gold answers.

    If `latency` is not 0, ``ms_per_query`` is the wall-clock time of the search over all queries as one batch, encoding
    included, divided by the number of queries, ``stages_ms`` holds the milliseconds of each stage, for the batch and
    for a query, and ``latency`` the fields of `Latency`. With a policy, ``skip`` is the share of queries that a cascade
    answered by BM25 alone, and ``answered_by`` counts queries by strategy. With gold answers ``answers`` says whether
    they stand in what was found; with `answering`, ``judged`` holds the accuracies and every answer.

    Raises `ParameterError`, `DatasetError`, `RecordError`, `MissingExtraError`, `PolicyFileError`, `AnswerError` and
    what the engine raises.
    """
    chosen = _choose_preset(dataset_kind, preset, analyzer, method, k1, b)
    answerer = _choose_answerer(strategy, policy, tau)
    check_folder(write_runs)
    model, terms, by_default = open_models([answerer], encoder, embeddings, term_encoder)
    options = _reading_of(chosen, dataset_kind, split, reading)
    started = time.perf_counter()
    dataset = _load(dataset_kind, path, options, neighbours)
    if answering is not None and not (dataset.answers or dataset.unanswerable):
        raise ParameterError(f"{dataset.name} has no gold answers, so nothing can be judged")
    loaded = time.perf_counter() - started
    started = time.perf_counter()
    dataset = prepare_dataset(dataset, answerer, types, encoder=model)
    typed = time.perf_counter() - started if types == "predicted" else 0.0
    depth = _depth_of(dataset, k, metrics)
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
        metrics=metrics,
        progress=progress,
    )
    written = None if write_runs is None else write_run(write_runs, answerer.name, evaluation)
    count = max(len(dataset.queries), 1)
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
            **_parameters_of(chosen, options, depth, threads, types, neighbours),
            "strategy": answerer.to_dict(),
        },
        "seconds": {"load": loaded, **({"types": typed} if typed else {}), **evaluation.seconds},
        **({} if written is None else {"run": written}),
    }
    if evaluation.latency is not None:
        result["ms_per_query"] = 1e3 * (typed + evaluation.seconds["search"]) / count
        result["stages_ms"] = {
            "batch": evaluation.stages,
            "per_query": {stage: spent / count for stage, spent in evaluation.stages.items()},
        }
        result["latency"] = evaluation.latency.to_dict()
    if dataset.clusters and not metrics:
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
    if dataset.answers and not metrics:
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
    latency: int | None = 0,
    metrics: Sequence[str] = (),
    runs: Sequence[str | os.PathLike[str]] = (),
    write_runs: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Several strategies over one index of a dataset, as one object of plain JSON values. `render` shows it as text.

    The arguments are those of `evaluate`, `embeddings`, `types` and `split` among them; `write_runs` gets a file for
    each strategy. `runs` are TREC run files of other systems, each named by its file's name; one alone needs no
    strategy. Each system after the first is compared with the first by a paired bootstrap over questions, whose draws
    follow `seed`, in the first of `metrics`, or in nDCG@10 on documents and Hit@5 on conversations. p is two-sided, and
    ``p_holm`` corrected for their number. ``latency`` holds the times of each strategy on the warm engine, unless it
    was called with 0; then a query is encoded once for all of them.

    Raises `ParameterError` for no run and fewer than two strategies, or two systems of one name, and what `evaluate`
    raises.
    """
    answerers = {answerer.name: answerer for answerer in map(strategy_of, strategies)}
    files = {Path(file).name.removesuffix(".run"): file for file in runs}
    if len(files.keys() | answerers.keys()) != len(strategies) + len(runs) or (len(answerers) < 2 and not runs):
        raise ParameterError("a comparison needs two systems or more, each of another name; a run's is its file's")
    chosen = _choose_preset(dataset_kind, preset, analyzer, method, k1, b)
    options = _reading_of(chosen, dataset_kind, split, reading)
    read = {name: read_run(file) for name, file in files.items()}
    check_folder(write_runs)
    model, terms, _ = open_models(list(answerers.values()), encoder, embeddings, term_encoder)
    if model is not None and latency == 0:
        model = RememberedQueries(model)
    dataset = _load(dataset_kind, path, options, neighbours)
    depth = _depth_of(dataset, k, metrics)
    models: dict[str, Any] = {"encoder": model, "term_encoder": terms}
    evaluations: dict[str, Evaluation] = {}
    how: dict[str, Any] = {"k": depth, "threads": threads, "latency": latency, "metrics": metrics, "progress": progress}
    if answerers:
        with open_engine(dataset, chosen, answerers.values(), **models, backend=backend, progress=progress) as engine:
            for name, answerer in answerers.items():
                asked = prepare_dataset(dataset, answerer, types, encoder=model)
                if latency != 0:
                    warm_up(engine, asked, answerer, depth)
                evaluations[name] = measure(engine, asked, chosen, answerer, **how)
            backend = engine.backend.name
    written = {name: write_run(write_runs, name, each) for name, each in evaluations.items() if write_runs is not None}
    evaluations.update((name, judge_run(dataset, name, found, depth, metrics)) for name, found in read.items())
    metric = metrics[0] if metrics else "ndcg@10" if dataset_kind == "beir" else "hit@5"
    compared = study_strategies(evaluations, metric=metric, against=list(evaluations)[:1], seed=seed)
    timed = {name: each.latency.to_dict() for name, each in evaluations.items() if each.latency is not None}
    if not timed:
        del compared["stages_ms"]
    return {
        **compared,
        "preset": preset,
        # Nothing is analysed where all systems are runs of others.
        **({"analyzer": chosen.analyzer} if answerers else {}),
        "parameters": _parameters_of(chosen, options, depth, threads, types, neighbours)
        if answerers
        else {**options, "k": depth, "types": types},
        "backend": backend,
        "encoder": describe_encoder(model),
        **({"metrics": list(metrics)} if metrics else {}),
        **({"runs": written} if written else {}),
        **({"latency": timed} if timed else {}),
    }


def _choose_preset(
    dataset_kind: str, preset: str, analyzer: str | None, method: str | None, k1: float | None, b: float | None
) -> Preset:
    """The preset with what the caller gives instead. Raises for a missing extra now and not after a long search."""
    trec_eval()
    given: dict[str, Any] = {"analyzer": analyzer, "method": method, "k1": k1, "b": b}
    return replace(
        find_preset(preset, dataset_kind), **{name: value for name, value in given.items() if value is not None}
    )


def open_models(
    answerers: Sequence[Answerer],
    encoder: str | Encoder | None,
    embeddings: str | os.PathLike[str] | None,
    term_encoder: str | TermEncoder | None,
    *,
    vectors: bool = False,
) -> tuple[Encoder | None, TermEncoder | None, bool]:
    """(the encoder, the term encoder, whether the encoder is the default one) that these strategies need.

    With `vectors` a given encoder is needed anyway. Raises `ParameterError` for one that is needed and not given.
    """
    dense = next((answerer.name for answerer in answerers if answerer.dense), None)
    learned = next((answerer.name for answerer in answerers if answerer.learned), None)
    by_default = encoder is None and dense is not None
    if by_default:
        encoder = default_encoder(f"strategy {dense!r} has a dense channel")
    elif encoder is None and embeddings is not None:
        raise ParameterError("embeddings keeps what an encoder makes; give both")
    if term_encoder is None and learned is not None:
        raise ParameterError(f"strategy {learned!r} has a channel of learned weights: give a term encoder")
    if dense is None and not vectors:
        encoder = None
    model = None if encoder is None else open_encoder(encoder, embeddings, queries=False)
    if learned is None:
        term_encoder = None
    terms = SparseSentenceEncoder(term_encoder) if isinstance(term_encoder, str) else term_encoder
    return model, terms, by_default


def _depth_of(dataset: Dataset, k: int | None, metrics: Sequence[str]) -> int:
    """The depth of the lists: k, or what the dataset and the metrics need."""
    deepest = max((cutoff(metric) or 1 for metric in metrics), default=1)
    return max(default_depth(dataset), min(deepest, max(dataset.sizes().values(), default=1))) if k is None else k


def _parameters_of(
    preset: Preset, options: dict[str, Any], depth: int, threads: int, types: str, neighbours: Neighbours | None
) -> dict[str, Any]:
    return {
        **preset.scoring(),
        "query_tf": preset.query_tf,
        "complete": preset.complete,
        **options,
        "k": depth,
        "threads": threads,
        "types": types,
        **({} if neighbours is None else {"neighbours": neighbours.to_dict()}),
    }


def _reading_of(preset: Preset, dataset_kind: str, split: str, reading: dict[str, Any] | None) -> dict[str, Any]:
    """The loader's options: the preset's, and what the caller gives instead."""
    return {**preset.reading, **({"split": split} if dataset_kind == "beir" else {}), **(reading or {})}


def _load(
    kind: str, path: str | os.PathLike[str], options: Mapping[str, Any], neighbours: Neighbours | None
) -> Dataset:
    check_reading(kind, options)
    dataset: Dataset = LOADERS[kind](path, **options, **({"stream": True} if kind == "beir" else {}))
    if neighbours is None:
        return dataset
    return replace(dataset, queries=[replace(query, neighbours=neighbours) for query in dataset.queries])


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
