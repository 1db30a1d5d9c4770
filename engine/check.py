"""Every road over real records against the oracle: the contract, checked where it is used."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import backend as backends
from .bm25 import BM25, SCALE
from .engine import Engine
from .errors import QueryError
from .oracle import Oracle
from .records import Hits, Query, Record
from .text import Analyzer

# Queries of the road that asks one at a time, and records a piece of the road that grows: enough to see a difference.
ONE_BY_ONE = 50
PIECES = 7

Answer = list[tuple[str, int]]


@dataclass(frozen=True)
class RoadResult:
    """How many queries one road answered, and at how many it differs from the oracle."""

    name: str
    queries: int
    differences: int


def oracle_answers(
    records: Sequence[Record],
    queries: Sequence[Query],
    k: int,
    analyzer: Analyzer,
    bm25: BM25,
    *,
    progress: bool = False,
) -> list[Answer]:
    """The oracle's hits for each query as (id, quanta). Queries with filters are not taken (`QueryError`)."""
    if any(query.filter is not None for query in queries):
        raise QueryError("the check does not take queries with filters")
    names = list(bm25.fields)
    by_namespace: dict[str, list[Record]] = {}
    for record in records:
        by_namespace.setdefault(record.namespace, []).append(record)
    needed = {query.namespace for query in queries}
    oracles = {
        namespace: Oracle(
            [[analyzer(r.text if name == "text" else r.fields.get(name, "")) for name in names] for r in own],
            method=bm25.method,
            k1=bm25.k1,
            b=bm25.b,
            delta=bm25.delta or 0.0,
            query_tf=bm25.query_tf,
            weights=list(bm25.fields.values()),
        )
        for namespace, own in by_namespace.items()
        if namespace in needed
    }
    answers: list[Answer] = []
    for query in tqdm(queries, "oracle", unit=" queries", disable=not (progress and sys.stderr.isatty())):
        if query.namespace not in oracles:
            answers.append([])
            continue
        terms = list(query.terms) if query.terms is not None else analyzer(query.text)
        own = by_namespace[query.namespace]
        found = oracles[query.namespace].search(terms, k if query.k is None else query.k)
        answers.append([(own[document].id, quanta) for document, quanta in found])
    return answers


def engine_answers(hits: Hits) -> list[Answer]:
    """A batch's hits as (id, quanta), comparable with the oracle's."""
    return [
        list(
            zip(
                hits.ids[row, :count].tolist(),
                np.rint(hits.scores[row, :count] * SCALE).astype(np.int64).tolist(),
                strict=True,
            )
        )
        for row, count in enumerate(hits.counts.tolist())
    ]


def check(
    records: Sequence[Record],
    queries: Sequence[Query],
    *,
    corpus: str,
    k: int = 100,
    backend: str | None = None,
    progress: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Run every road of every usable backend (or of `backend`) and compare each with the oracle.

    `options` are the engine's. Returns ``{"corpus", "queries", "roads": [{"name", "queries", "differences"}],
    "differences"}``: a difference is a query whose ids, scores or order are not the oracle's.
    """
    if not queries:
        raise QueryError(f"{corpus}: no queries to check with")
    names = [s.name for s in backends.statuses() if s.usable and not s.by_name] if backend is None else [backend]
    results: list[RoadResult] = []
    expected: list[Answer] | None = None
    for name in names:
        engine = Engine.from_records(records, backend=name, progress=progress, **options)
        if expected is None:
            expected = oracle_answers(records, queries, k, engine.analyzer, engine.bm25, progress=progress)
        for road, ask in _roads(engine, records, name, options):
            asked = queries[:ONE_BY_ONE] if road == "one by one" else queries
            got = ask(asked, k)
            wrong = sum(a != b for a, b in zip(got, expected[: len(asked)], strict=True))
            results.append(RoadResult(f"{name}: {road}", len(asked), wrong))
    return {
        "corpus": corpus,
        "queries": len(queries),
        "roads": [vars(result) for result in results],
        "differences": sum(result.differences for result in results),
    }


Ask = Callable[[Sequence[Query], int], list[Answer]]


def _roads(
    engine: Engine, records: Sequence[Record], backend: str, options: dict[str, Any]
) -> Iterator[tuple[str, Ask]]:
    def batch(own: Engine, **how: Any) -> Ask:
        return lambda queries, k: engine_answers(own.search(queries, k, **how))

    for execution in backends.EXECUTIONS:
        yield f"batch, {execution}", batch(engine, execution=execution)
    yield "batch, 2 threads", batch(engine, threads=2)
    yield "one by one", lambda queries, k: [answer for q in queries for answer in engine_answers(engine.search([q], k))]
    yield (
        "terms reversed",
        lambda queries, k: engine_answers(engine.search([_reversed(engine, query) for query in queries], k)),
    )
    grown = Engine(backend=backend, **options)
    piece = max(1, len(records) // PIECES)
    for start in range(0, len(records), piece):
        grown.add(records[start : start + piece])
    yield f"grown in {len(range(0, len(records), piece))} pieces", batch(grown)
    with tempfile.TemporaryDirectory() as folder:
        engine.save(Path(folder) / "index")
        yield "saved and loaded", batch(Engine.load(Path(folder) / "index", backend=backend))


def _reversed(engine: Engine, query: Query) -> Query:
    terms = engine.analyzer(query.text) if query.terms is None else list(query.terms)
    return replace(query, terms=tuple(terms[::-1]))
