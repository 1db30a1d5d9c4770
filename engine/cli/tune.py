"""`fanrank tune`: makes a policy from labelled questions, or checks whether a policy still fits them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from typing import Any

import click

from ..errors import ParameterError
from ..evaluate.presets import LOADERS
from ..route.confidence import CONFIDENCES
from ..tune import command as tuning
from ..tune.parameters import METRIC, render_bm25
from ..tune.thresholds import MARGIN
from ..tune.tuner import SYSTEMS
from ..tune.weights import METRIC as WEIGHTS_METRIC
from ..tune.weights import render_weights
from .evaluate import ReadingOptions, preset_option, reading_options, split_option
from .options import (
    Models,
    backend_option,
    bundle,
    is_given,
    json_option,
    list_option,
    model_options,
    open_engine,
)
from .output import print_result
from .values import detect_kind


@dataclass(frozen=True)
class QuestionOptions:
    """Where the labelled questions come from."""

    kind: str | None
    questions: str | None
    types_given: bool
    preset: str
    split: str

    def source(self, path: str, models: Models, backend: str | None, reading: dict[str, Any]) -> tuning.Source:
        """The records at `path` and the questions about them. Raises `ParameterError` where none are found."""
        kind, engine = self.kind, None
        if self.questions is not None:
            kind, engine = None, open_engine(path, backend=backend, **models.load())
        elif kind is None:
            if os.path.isdir(path) and not os.path.exists(os.path.join(path, "queries.jsonl")):
                raise ParameterError(
                    f"{path}: no BEIR directory; for an index or an engine's directory give --questions"
                )
            kind = detect_kind(path)
            if kind == "records":
                raise ParameterError(f"{path}: records without questions; build an index of them and give --questions")
        return tuning.Source(
            path,
            kind,
            self.preset,
            self.split,
            models.encoder,
            models.embeddings,
            backend,
            engine,
            self.questions,
            self.types_given,
            models.term_encoder,
            reading,
        )


@dataclass(frozen=True)
class FitOptions:
    """How a policy is fitted: arguments of `fanrank.engine.tune.tuner.tune`."""

    metric: str
    confidence: str
    margin: float
    folds: int
    vectors: bool


question_options = bundle(
    "source_options",
    QuestionOptions,
    click.option(
        "--kind", type=click.Choice(list(LOADERS)), help="Kind of dataset at PATH. Default: told by its content."
    ),
    click.option(
        "--questions",
        type=click.Path(),
        help="File with questions about PATH, which is then an index or an engine's directory: JSON lines with "
        '"text", "relevant" (ids, or a map from ids to grades) and, if wanted, "type", "namespace", "now", "filter".',
    ),
    click.option(
        "--types-given",
        is_flag=True,
        help="Queries will tell their type, so that no classifier has to be fitted to predict it.",
    ),
    preset_option,
    split_option,
)

fit_options = bundle(
    "fit",
    FitOptions,
    click.option(
        "--metric",
        default="hit@5",
        show_default=True,
        help="Quality that the policy keeps, such as hit@1, mrr, recall@5 or ndcg@10.",
    ),
    click.option(
        "--confidence",
        type=click.Choice(list(CONFIDENCES)),
        default="margin",
        show_default=True,
        help="Measure of BM25's confidence that a cascade compares with its threshold.",
    ),
    click.option(
        "--margin",
        default=MARGIN,
        show_default=True,
        help="How much of the metric may be given up for a lower cost, from 0 to 1.",
    ),
    click.option(
        "--folds",
        type=click.IntRange(2),
        default=5,
        show_default=True,
        help="Number of folds of the cross-validation.",
    ),
    click.option(
        "--vectors",
        is_flag=True,
        help="Tell the type of a question by its vector too, not by its words alone. A policy that does so encodes "
        "every query.",
    ),
)


@click.command()
@click.argument("path", type=click.Path())
@question_options
@click.option(
    "--labels",
    type=click.IntRange(2),
    help=f"Number of questions to tune on; the others confirm the policy. Default: {tuning.LABELS}, or all with "
    "--check.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Random seed for drawing questions, folds and resamples.",
)
@click.option("--out", type=click.Path(), help="Write the policy to this file.")
@click.option(
    "--check", "policy", type=click.Path(), help="Tune nothing; exit 1 if the questions have drifted from this policy."
)
@click.option(
    "--system",
    "systems",
    multiple=True,
    help=f"Strategy to choose from beside bm25 (see --list-strategies); repeatable. Default: {', '.join(SYSTEMS)}.",
)
@list_option
@click.option(
    "--bm25",
    is_flag=True,
    help="Fit BM25's method, k1 and b instead of a policy, by cross-validation over all questions; --out writes them "
    "as JSON, whose items are options of an engine. --metric is map then, unless it is given.",
)
@click.option(
    "--weights",
    is_flag=True,
    help="Fit the weights of a linear fusion instead of a policy, those of --system (default: dialogue, or "
    "dialogue-words without --encoder); --out writes a strategy that `fanrank search --policy` takes. --metric is "
    "ndcg@10 then, unless it is given.",
)
@fit_options
@reading_options
@model_options
@backend_option
@json_option
@click.pass_context
def tune(
    context: click.Context,
    /,
    path: str,
    source_options: QuestionOptions,
    labels: int | None,
    seed: int,
    out: str | None,
    policy: str | None,
    systems: tuple[str, ...],
    bm25: bool,
    weights: bool,
    fit: FitOptions,
    reading: ReadingOptions,
    models: Models,
    backend: str | None,
    as_json: bool,
) -> None:
    """Make a policy for the dataset or the records at PATH from labelled questions.

    Every system answers all questions and is timed. The policy is the cheapest way to answer that stays within
    --margin of the best system. Use it with `fanrank search --policy`. Leave the machine idle meanwhile, because times
    are compared.
    """
    if policy is not None:
        # Options that only tuning uses, if the command line names them; a default does not count.
        wishes = {"out": "out", "systems": "system"}
        wishes |= {field.name: field.name for field in fields(FitOptions)}
        given = [f"--{option}" for name, option in wishes.items() if is_given(context, name)]
        if given:
            raise click.UsageError(f"--check tunes nothing: leave out {', '.join(given)}")
    if bm25:
        given = [name for name in ("labels", "check", "system", "confidence", "margin") if _named(context, name)]
        if given:
            raise click.UsageError(f"--bm25 fits no policy: leave out {', '.join(f'--{name}' for name in given)}")
    if weights:
        given = [name for name in ("labels", "check", "bm25", "confidence", "margin") if _named(context, name)]
        if given:
            raise click.UsageError(f"--weights fits no policy: leave out {', '.join(f'--{name}' for name in given)}")
        if len(systems) > 1:
            raise click.UsageError("--weights fits one strategy: give --system once")
    source = source_options.source(path, models, backend, reading.keywords())
    if weights:
        metric = fit.metric if is_given(context, "metric") else WEIGHTS_METRIC
        system = systems[0] if systems else "dialogue" if models.encoder is not None else "dialogue-words"
        result = tuning.tune_weights(source, system, metric=metric, count=fit.folds, seed=seed, out=out)
        print_result(result, as_json, render_weights(result))
        return
    if bm25:
        metric = fit.metric if is_given(context, "metric") else METRIC
        fitted = tuning.tune_parameters(source, metric=metric, count=fit.folds, seed=seed, out=out)
        print_result(fitted, as_json, render_bm25(fitted))
        return
    if policy is not None:
        report = tuning.check_policy(source, policy, labels=labels, seed=seed, progress=True)
        print_result(report, as_json, tuning.render_drift(report))
        if report["drifted"]:
            sys.exit(1)
        return
    result = tuning.tune_policy(
        source,
        labels=labels or tuning.LABELS,
        seed=seed,
        out=out,
        systems=systems or None,
        progress=True,
        **vars(fit),
    )
    print_result(result, as_json, tuning.render_tuned(result))


def _named(context: click.Context, option: str) -> bool:
    """Whether the command line names the option."""
    parameters = {"check": "policy", "system": "systems"}
    return is_given(context, parameters.get(option, option))
