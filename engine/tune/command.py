"""The work of `fanrank tune`: reads labelled questions from a dataset or a file, tunes or checks a policy with them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ParameterError, PolicyFileError, RecordError, StorageError
from ..evaluate.command import open_models
from ..evaluate.encoders import describe_encoder
from ..evaluate.presets import LOADERS, check_reading, find_preset
from ..evaluate.protocol import engine_of, prepare_dataset
from ..evaluate.tables import table
from ..hybrid.strategy import BM25, NAMED, Strategy
from ..metrics.bootstrap import format_p
from ..records.jsonl import read_json_lines
from ..records.query_json import parse_query
from ..route import policy as policies
from ..route.policy import Answerer
from .drift import check
from .measure import Labelled, labelled_questions
from .parameters import tune_bm25, write_parameters
from .tuner import SLACK, SYSTEMS, tune
from .weights import fit_weights, write_weights

if TYPE_CHECKING:
    from ..memory import Memory

LABELS = 50
"""The number of labelled questions (SPEC A093)."""


@dataclass(frozen=True)
class Source:
    """Where questions and records come from.

    `kind` is the kind of a dataset (a key of `LOADERS`). If it is None, `engine` holds the records and the file
    `questions` the questions. Each line of the file is a JSON object: the fields of a query, ``relevant`` as a list of
    ids or a map from ids to grades, and ``type``, the kind of question.
    """

    path: str
    kind: str | None = None
    preset: str = "default"
    split: str = "test"
    encoder: str | None = None
    embeddings: str | None = None
    backend: str | None = None
    engine: Memory | None = None
    questions: str | None = None
    given: bool = False
    """Whether queries keep their type, so that no classifier has to predict it."""
    term_encoder: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Options of the dataset's loader, in place of the preset's."""

    @contextmanager
    def opened(
        self, answerers: Sequence[Answerer], progress: bool, vectors: bool = False
    ) -> Iterator[tuple[Memory, list[Labelled], dict[str, Any]]]:
        """(the engine, all questions in order, what a result says about them), closed at the end of the context.

        A dataset's records are encoded as `answerers` need it, and if a classifier reads `vectors`. Raises what reading
        and indexing raise.
        """
        if self.kind is None:
            if self.engine is None or self.questions is None:
                raise ParameterError("tuning an engine's own records needs --questions FILE")
            if self.reading:
                name = next(iter(self.reading))
                raise ParameterError(
                    f"{name!r} says how a dataset is read, and --questions are about an engine's records"
                )
            questions = [question for _, question in read_json_lines(self.questions, labelled_of)]
            yield self.engine, [self._set_type(question) for question in questions], {"source": self.path}
            return
        preset = find_preset(self.preset, self.kind)
        reading = {**preset.reading, **({"split": self.split} if self.kind == "beir" else {}), **self.reading}
        check_reading(self.kind, reading)
        dataset = prepare_dataset(LOADERS[self.kind](self.path, **reading), NAMED["agent_rrf"], "none")
        model, terms, _ = open_models(answerers, self.encoder, self.embeddings, self.term_encoder, vectors=vectors)
        labelled = [self._set_type(question) for question in labelled_questions(dataset)]
        models: dict[str, Any] = {"encoder": model, "term_encoder": terms}
        with engine_of(dataset, preset, **models, backend=self.backend, progress=progress) as engine:
            yield (
                engine,
                labelled,
                {"source": dataset.name, "preset": self.preset, "encoder": describe_encoder(model)},
            )

    def _set_type(self, question: Labelled) -> Labelled:
        return replace(question, query=replace(question.query, type=question.type if self.given else None))


def labelled_of(data: Any) -> Labelled:
    """The question in a JSON object of the file. Raises `RecordError`."""
    if not isinstance(data, dict):
        raise RecordError("a question must be a JSON object")
    relevant = data.get("relevant", [])
    if isinstance(relevant, list) and all(isinstance(name, str) for name in relevant):
        grades = dict.fromkeys(relevant, 1)
    elif isinstance(relevant, dict) and all(
        isinstance(grade, int) and not isinstance(grade, bool) for grade in relevant.values()
    ):
        grades = relevant
    else:
        raise RecordError("a question's 'relevant' must be a list of ids, or map ids to whole grades")
    query = parse_query({name: value for name, value in data.items() if name != "relevant"})
    return Labelled(query, grades, query.type)


def draw_questions(
    questions: Sequence[Labelled], labels: int | None, seed: int
) -> tuple[list[Labelled], list[Labelled]]:
    """(`labels` of the questions, drawn by `seed`; the others in their order).

    If there are no more than `labels` questions, or `labels` is None, the first list holds all, in their order.
    """
    if labels is None or labels >= len(questions):
        return list(questions), []
    order = np.random.default_rng(seed).permutation(len(questions))
    chosen = set(order[:labels].tolist())
    return [questions[position] for position in order[:labels].tolist()], [
        question for position, question in enumerate(questions) if position not in chosen
    ]


def tune_policy(
    source: Source,
    *,
    labels: int = LABELS,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    systems: Sequence[str] | None = None,
    progress: bool = False,
    **how: Any,
) -> dict[str, Any]:
    """Tune, and write the policy to `out`.

    Without ``bm25`` among `systems` it is added, since a policy falls back on it. Returns the object that
    ``fanrank tune --json`` prints. Without `out` the object holds the policy itself. `how` are
    arguments of `tune`. Raises what `tune` raises, and `ParameterError` for a question without a relevant record. If
    `out` cannot be written, it raises before anything runs.
    """
    started = time.perf_counter()
    if out is not None:
        _check_writable(out)
    if systems and BM25 not in systems:
        systems = (BM25, *systems)
    answerers = [policies.strategy_of(name) for name in systems or SYSTEMS]
    with source.opened(answerers, progress, bool(how.get("vectors"))) as (engine, questions, about):
        empty = next(
            (question for question in questions if not any(grade > 0 for grade in question.relevant.values())), None
        )
        if empty is not None:
            raise ParameterError(f"question {empty.query.text[:60]!r} has no relevant record to learn from; label it")
        labelled, others = draw_questions(questions, labels, seed)
        tuned = tune(
            engine,
            labelled,
            systems=systems,
            held_out=others,
            seed=seed,
            progress=progress,
            **how,
        )
    if out is not None:
        policies.save(out, tuned.policy, {**tuned.about, **about})
    return {
        **about,
        **tuned.to_dict(),
        **({"policy": policies.answerer_to_dict(tuned.policy)} if out is None else {"out": os.fspath(out)}),
        "seconds": time.perf_counter() - started,
    }


def tune_parameters(
    source: Source, *, metric: str, count: int, seed: int = 0, out: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Fit BM25's method, k1 and b, and write them to `out`.

    Returns the object that ``fanrank tune --bm25 --json`` prints. Raises what `tune_bm25` raises, and `StorageError` if
    `out` cannot be written, before anything runs.
    """
    fit = partial(tune_bm25, metric=metric, count=count, seed=seed)
    return _fitted(source, [], fit, write_parameters, out)[1]


def tune_weights(
    source: Source, strategy: str, *, metric: str, count: int, seed: int = 0, out: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Fit the weights of a strategy's linear fusion, and write the strategy to `out`.

    As `tune_parameters`, for ``fanrank tune --weights``. Raises what `fit_weights` raises.
    """
    fit = partial(fit_weights, strategy=strategy, metric=metric, count=count, seed=seed)
    fitted, result = _fitted(source, [Strategy.of(strategy)], fit, write_weights, out)
    return result if out is not None else {**result, "policy": policies.answerer_to_dict(fitted.chosen)}


def _fitted(
    source: Source,
    answerers: Sequence[Answerer],
    fit: Callable[[Any, Any], Any],
    write: Callable[[Any, Any], None],
    out: str | os.PathLike[str] | None,
) -> tuple[Any, dict[str, Any]]:
    """(what was fitted to all questions, and written to `out`; the object to print)."""
    started = time.perf_counter()
    if out is not None:
        _check_writable(out)
    with source.opened(answerers, False) as (engine, questions, about):
        fitted = fit(engine, questions)
    if out is not None:
        write(out, fitted)
    written = {} if out is None else {"out": os.fspath(out)}
    return fitted, {**about, **fitted.to_dict(), **written, "seconds": time.perf_counter() - started}


def check_policy(
    source: Source,
    path: str | os.PathLike[str],
    *,
    labels: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Check the policy in the file `path` for drift. Returns the object that ``fanrank tune --check --json`` prints."""
    policy, about = policies.load(path)
    with source.opened([policy], progress) as (engine, questions, source_about):
        if about.get("preset", source_about.get("preset")) != source_about.get("preset"):
            raise ParameterError(
                f"{os.fspath(path)}: tuned with --preset {about['preset']}, and these questions are read with "
                f"{source_about.get('preset')}; give the same"
            )
        try:
            drift = check(policy, about, engine, draw_questions(questions, labels, seed)[0], seed=seed)
        except PolicyFileError as error:
            raise PolicyFileError(f"{os.fspath(path)}: {error}") from None
    return {**source_about, "policy": os.fspath(path), **drift.to_dict()}


def _check_writable(path: str | os.PathLike[str]) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise StorageError(f"{os.fspath(path)}: cannot be written: there is no folder {folder}")
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise StorageError(f"{os.fspath(path)}: cannot be written: it is a folder, or in one that may not be written")


def render_tuned(result: Mapping[str, Any]) -> str:
    """A result of `tune_policy` as text."""
    model = result.get("encoder") or result.get("model")
    parts = [
        f"{result['source']}: {result['labelled']:,} labelled questions, {result['held_out']:,} others; "
        f"{result['metric']}{', encoder ' + model['name'] if model else ''}, backend {result['backend']}"
    ]
    front, chosen = set(result["front"]), result["chosen"]
    # Thresholds that were only tried are left out of the table, unless they are on the front or chosen.
    tried = {p["name"] for p in result["points"] if p["skip"] is not None and p["cross_validated"] is None}
    parts.append(
        table(
            ["", result["metric"], "unseen folds", "skip", "ms a question", "front", "chosen"],
            (
                [
                    point["name"],
                    f"{point['accuracy']:.4f}",
                    _format_or_dash(point["cross_validated"], ".4f"),
                    _format_or_dash(point["skip"], ".1%"),
                    f"{point['milliseconds']:.2f}",
                    "front" if point["name"] in front else "",
                    "chosen" if point["name"] == chosen["name"] else "",
                ]
                for point in result["points"]
                if point["name"] not in tried - front - {chosen["name"]}
            ),
        )
    )
    if not chosen["on_front"]:
        parts.append(
            f"the chosen point is off the front: {', '.join(chosen['beaten_by'])} (not up for choice, as nothing was "
            f"fitted or it is not sure, or cheaper by less than {SLACK:.0%} of the dearest system)"
        )
    if result["left_out"]:
        parts.append("\n".join(f"left out: {name}: {why}" for name, why in result["left_out"].items()))
    if result["types"]:
        parts.append(
            table(
                ["type", "n", "best", "threshold", "skip"],
                (
                    [
                        name,
                        str(entry["n"]),
                        entry["best"] or "-",
                        _format_or_dash(entry["tau"], ".2f"),
                        _format_or_dash(entry["skip"], ".1%"),
                    ]
                    for name, entry in result["types"].items()
                ),
            )
            + (
                f"\ntypes told right of unseen questions: {result['classifier']['accuracy']:.1%}"
                if result["classifier"]
                else ""
            )
        )
    parts.append(_chosen_table("on the labelled questions", chosen, result["systems"], result["parity"]))
    confirmed = result["confirmation"]
    if confirmed is not None:
        where = f"on {confirmed['n']:,} others"
        parts.append(_chosen_table(where, confirmed["chosen"], confirmed["systems"], confirmed["differences"]))
    parts.append(f"policy: {chosen['policy']}" + (f"\nwritten to {result['out']}" if "out" in result else ""))
    return "\n\n".join(parts)


def _chosen_table(
    where: str, chosen: Mapping[str, Any], systems: Mapping[str, Any], differences: Mapping[str, Mapping[str, float]]
) -> str:
    head = [f"chosen {where}", "accuracy", "difference", "95 %", "p", "ms a question"]
    first = ["chosen", f"{chosen['accuracy']:.4f}", "", "", "", f"{chosen['milliseconds']:.2f}"]
    rows = (
        [
            name,
            f"{systems[name]['accuracy']:.4f}",
            f"{difference['difference']:+.4f}",
            f"{difference['low']:+.4f} to {difference['high']:+.4f}",
            format_p(difference["p"]),
            f"{systems[name]['milliseconds']:.2f}",
        ]
        for name, difference in differences.items()
    )
    return table(head, [first, *rows])


def render_drift(result: Mapping[str, Any]) -> str:
    """A result of `check_policy` as text."""
    lines = [f"{result['policy']}: {result['n']:,} questions now, {result['reference']:,} when it was tuned"]
    if result["tests"]:
        lines.append(
            table(
                ["", "then", "now", "p"],
                ([t["name"], f"{t['then']:.4f}", f"{t['now']:.4f}", format_p(t["p"])] for t in result["tests"]),
            )
        )
    if result["model_changed"]:
        lines.append("the engine's vectors are of another model than the policy was tuned with")
    verdict = f"DRIFTED: tune again (p below {result['bound']:.4f})" if result["drifted"] else "no drift"
    return "\n".join([*lines, verdict])


def _format_or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
