"""`fanrank search`: answers queries from the command line or a file in one batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import click

from ..errors import StorageError
from ..plan.options import EXECUTIONS
from ..records.decision import Decision
from ..records.declared import declared
from ..records.hit import Hit
from ..records.hits import Hits
from ..records.jsonl import read_json_lines
from ..records.query import DEFAULTS, Query
from ..records.query_json import QUERY_FIELDS, SCOPES, parse_query
from ..records.record import CATEGORIES, NUMBERS
from ..route import policy as policies
from ..route.by_namespace import AnyAnswerer
from ..route.parts import divide
from .options import (
    Models,
    NeighbourOptions,
    backend_option,
    bundle,
    declared_option,
    is_given,
    json_option,
    list_option,
    model_options,
    neighbour_options,
    open_engine,
    parse_answerer,
    read_value,
    served_argument,
    threads_option,
)
from .output import cut_to, one_line, print_json, print_text, shown_time, terminal_width
from .values import FILTER_HELP, parse_filters, parse_windows

_OFFERED = {name: each for name, each in declared(Query, DEFAULTS).items() if each.kind != "other"}
"""The fields of a query that are options by their declaration."""


@dataclass(frozen=True)
class QueryOptions:
    """Options that apply to each query on the command line, as they are written there."""

    filters: tuple[str, ...]
    windows: str | None
    others: Mapping[str, Any]

    @classmethod
    def of(cls, filters: tuple[str, ...], windows: str | None, **others: Any) -> QueryOptions:
        return cls(filters, windows, others)

    def keywords(self) -> dict[str, Any]:
        """Keywords of `Query`, without its text and filter. Raises `ParameterError` for a value that cannot be read."""
        values = {name: read_value(_OFFERED[name], value) for name, value in self.others.items()}
        return {**values, "windows": parse_windows(self.windows)}


query_options = bundle(
    "query_options",
    QueryOptions.of,
    click.option(
        "--filter",
        "filters",
        multiple=True,
        metavar="COLUMN=VALUE",
        help=f"Search only records {FILTER_HELP} Columns: {', '.join((*CATEGORIES, *NUMBERS))} and the engine's own. "
        "Repeatable: all must hold, but several = on one column are alternatives.",
    ),
    click.option(
        "--windows",
        help="Search only this many of the newest time windows; 'auto' lets the engine choose. Without it, all.",
    ),
    *map(declared_option, _OFFERED.values()),
    names=("filters", "windows", *_OFFERED),
)


@click.command()
@served_argument
@click.argument("query", nargs=-1)
@click.option(
    "--queries",
    type=click.Path(),
    help=f"File with more queries, JSON lines with any of: {', '.join((*QUERY_FIELDS, *SCOPES))}.",
)
@click.option("-k", default=10, show_default=True, help="Number of hits per query.")
@query_options
@neighbour_options
@click.option("--trec", type=click.Path(), help="Write a TREC run to this file instead of printing hits; - prints it.")
@click.option("--explain", is_flag=True, help="Show what each term adds to the best hit of each query.")
@click.option(
    "--strategy",
    help="How queries are answered: a name (see --list-strategies) or JSON, also of a strategy for each "
    'namespace: {"tenant": "recall", "": "bm25"}. A query of a --queries file may bring its own. Default: bm25, or '
    "auto with --encoder or where a query brings its vector.",
)
@list_option
@click.option(
    "--policy", type=click.Path(), help="File of `fanrank tune` that chooses a strategy for each query, not --strategy."
)
@click.option(
    "--execution",
    type=click.Choice(EXECUTIONS),
    default="auto",
    show_default=True,
    help="Score every posting (exhaustive), or skip those that cannot reach the best k (pruned). Hits are the same.",
)
@model_options
@threads_option
@backend_option
@json_option
@click.pass_context
def search(
    context: click.Context,
    /,
    path: str,
    query: tuple[str, ...],
    queries: str | None,
    k: int,
    query_options: QueryOptions,
    borrowed: NeighbourOptions,
    trec: str | None,
    explain: bool,
    strategy: str | None,
    policy: str | None,
    execution: str,
    models: Models,
    threads: int,
    backend: str | None,
    as_json: bool,
) -> None:
    """Search MEMORY for each QUERY, all in one batch.

    Options such as --filter and --now hold for the QUERY arguments; queries of a --queries file bring their own.

    Each line shows a hit's rank, score, id, namespace, time and text. On a terminal it is cut to the width. MEMORY may
    also be a saved index (`Engine.save`), which holds no texts.
    """
    keywords = {**query_options.keywords(), "neighbours": borrowed.read()}
    batch = [Query(text, **keywords) for text in query]
    if queries is not None:
        batch += [parsed for _, parsed in read_json_lines(queries, parse_query)]
    if not batch:
        raise click.UsageError("nothing to search: give queries, or --queries FILE")
    if policy is not None and is_given(context, "strategy"):
        raise click.UsageError("--policy says which strategies answer; give --strategy or --policy, not both")
    if policy is not None:
        chosen: AnyAnswerer = policies.load(policy)[0]
    elif strategy is not None:
        chosen = parse_answerer(strategy)
    else:
        vectors = models.encoder is not None or any(asked.vector is not None for asked in batch)
        chosen = policies.strategy_of("auto" if vectors else "bm25")
    answerers = [part.answerer for part in divide(batch, chosen)]
    dense = any(answerer is not None and answerer.dense for answerer in answerers)
    learned = any(answerer is not None and answerer.learned for answerer in answerers)
    # A model takes seconds to load, so only those that the strategies need are loaded.
    needed = Models(
        encoder=models.encoder if dense else None,
        embeddings=models.embeddings if models.encoder is None or dense else None,
        term_encoder=models.term_encoder if learned else None,
    )
    with open_engine(path, backend=backend, **needed.load()) as engine:
        filter = parse_filters(query_options.filters, engine.columns)
        batch[: len(query)] = [replace(asked, filter=filter) for asked in batch[: len(query)]]
        started = time.perf_counter()
        # A run holds ids and scores alone.
        texts = engine.keeps_texts and trec is None
        hits = engine.search(
            batch, k, strategy=chosen, threads=threads, execution=execution, texts=texts, payload=texts
        )
        elapsed = time.perf_counter() - started
        if trec is not None:
            _write_trec(hits, trec)
            return
        explanations = [
            hits.explain(row, row_hits[0][0]) if explain and row_hits else None for row, row_hits in enumerate(hits)
        ]
        decisions = hits.decisions or (None,) * len(hits)
        if as_json:
            print_json(
                {
                    "backend": hits.backend,
                    "strategy": chosen.to_dict(),
                    "seconds": elapsed,
                    "queries": _json_rows(batch, hits, decisions, explanations),
                }
            )
            return
        width = terminal_width()
        for asked_query, row, note, decision, explanation in zip(
            batch, hits, hits.notes, decisions, explanations, strict=True
        ):
            print_text(f"? {asked_query.text}" + (f"  ({_describe(decision)})" if decision else ""))
            for hit in row:
                print_text(cut_to(_line_of(hit, texts), width))
            if not row:
                print_text(f"      no hits: {note}" if note else "      no hits")
            if explanation:
                print_text(str(explanation))
        asked = "1 query" if len(batch) == 1 else f"{len(batch)} queries"
        click.echo(f"{asked} in {elapsed * 1e3:.2f} ms on {hits.backend}", err=True)


def _line_of(hit: Hit, texts: bool) -> str:
    """Rank, score, id or those of the exchange, namespace, time and text; what the hit does not have is left out."""
    parts = [*(hit.exchange or (hit.id,))]
    if hit.namespace:
        parts.append(hit.namespace)
    if texts:
        parts += [shown_time(hit.record.time)] if hit.record.time is not None else []
        parts.append(hit.text)
    return "  ".join([f"{hit.rank:4}", f"{hit.score:9.4f}", *map(one_line, parts)])


def _write_trec(hits: Hits, path: str) -> None:
    # All lines are made before the file is opened: click puts an atomic file in place even if the block raises.
    text = "".join(line + "\n" for line in hits.to_trec())
    try:
        with click.open_file(path, "w", encoding="utf-8", atomic=path != "-") as file:
            file.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error


def _json_rows(
    batch: Sequence[Query], hits: Hits, decisions: Sequence[Decision | None], explanations: Sequence[Any]
) -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "text": query.text,
            "hits": row,
            **({"note": note} if note else {}),
            **({"decision": decision.to_dict()} if decision else {}),
            **({"explain": explanation.to_dict()} if explanation else {}),
        }
        for name, query, row, note, decision, explanation in zip(
            hits.query_ids(), batch, hits.to_dicts(), hits.notes, decisions, explanations, strict=True
        )
    ]


def _describe(decision: Decision) -> str:
    """Which strategy answered a query, and why, in one line."""
    parts = [decision.strategy]
    if decision.escalated is not None:
        confidence = "no confidence" if decision.confidence is None else f"confidence {decision.confidence:.3f}"
        parts.append(f"{confidence}, threshold {decision.threshold:g}")
    if decision.type is not None:
        parts.append(f"type {decision.type}")
    if decision.when is not None:
        first, last = (datetime.fromtimestamp(end, timezone.utc) for end in (decision.when.start, decision.when.end))
        parts.append(f"{decision.when.expression!r} is {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC")
    if decision.entities:
        parts.append("about " + ", ".join(f"{name} ({score:.2f})" for name, score in decision.entities.items()))
    if decision.hints:
        parts.append(f"asks for {' or '.join(decision.hints)}{', widened to all' if decision.widened else ''}")
    parts += [f"without {channel}: {why}" for channel, why in decision.skipped.items()]
    return f"{'; '.join(parts)}; {decision.milliseconds:.2f} ms"
