"""Searches and writes of the engine as every endpoint and tool makes them: each with its span and its counts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from opentelemetry.trace import Span

from ..engine.memory import Memory
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from ..engine.records.record import Record
from .journal import journaled
from .seen import SEEN, common_namespace, name_strategy
from .spans import DELETE_STORE, SEARCH, describe_hits, is_traced, operation_span, search_span

NO_SPAN = nullcontext[Span | None](None)


async def search_engine(
    engine: Memory, queries: Sequence[Query], k: int, *, operation: str = SEARCH, **keywords: Any
) -> Hits:
    """As `Engine.asearch`. `operation` is how the conventions of traces call it. Raises as `Engine.asearch`."""
    work = engine.asearch(queries, k, **keywords)
    return await watch_search(work, queries, k, keywords.get("strategy", "bm25"), operation=operation)


async def watch_search(
    work: Awaitable[Hits], queries: Sequence[Query], k: int, strategy: Any, *, operation: str = SEARCH
) -> Hits:
    """Await a search for these queries. `operation` as in `search_engine`. Raises as the search."""
    strategy = name_strategy(strategy, queries)
    began = time.perf_counter()
    with search_span(operation, queries, k, strategy) if is_traced() else NO_SPAN as span:
        hits = await work
        if span is not None:
            describe_hits(span, operation, hits)
    seen = SEEN.get()
    if seen is not None:
        seen.search_ended = time.perf_counter()
        seen.search_seconds += seen.search_ended - began
        seen.search_began = seen.search_began or began
        seen.strategy = strategy
        seen.queries += len(queries)
        seen.hits += int(hits.counts.sum())
        if seen.keeps_texts:
            seen.texts += [query.text for query in queries]
    return hits


async def write_engine(
    operation: str,
    namespaces: Iterable[str],
    work: Awaitable[int],
    *,
    records: int | None = None,
    id: str | None = None,
    ids: Sequence[str] = (),
    written: Sequence[Record] = (),
    **said: Any,
) -> int:
    """Await a write and return how many records it changed.

    `operation` is how the conventions of traces call it. `records` are those that it is asked to change, where that is
    known before, and `id` the one record. `ids`, `written` and what is `said` are as in `journaled`.

    Raises as the write.
    """
    began, namespaces = time.perf_counter(), tuple(namespaces)
    with operation_span(operation, common_namespace(namespaces)) if is_traced() else NO_SPAN as span:
        if span is not None and id is not None:
            span.set_attribute("gen_ai.memory.record.id", id)
        if span is not None and records is not None:
            span.set_attribute("gen_ai.memory.record.count", records)
        with journaled(operation, namespaces, ids=ids, written=written, **said) as line:
            line["records"] = changed = await work
        if span is not None and records is None and operation != DELETE_STORE:
            span.set_attribute("gen_ai.memory.record.count", changed)
    seen = SEEN.get()
    if seen is not None:
        seen.records = (seen.records or 0) + changed
        seen.writes.append((operation, changed, time.perf_counter() - began))
    return changed
