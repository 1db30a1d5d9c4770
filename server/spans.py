"""OpenTelemetry spans of searches and writes, by the conventions for memory and retrieval of generative AI.

Only the API is needed. Without an SDK no span is made: even one that goes nowhere costs 14 us. Texts of queries are in
a span only where the environment asks for them, as the conventions say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from ..engine.records.hits import Hits
from ..engine.records.query import Query
from .seen import common_namespace

SEARCH, RETRIEVAL = "search_memory", "retrieval"
CREATE, UPDATE, UPSERT, DELETE = "create_memory", "update_memory", "upsert_memory", "delete_memory"
DELETE_STORE = "delete_memory_store"
WRITES = (CREATE, UPDATE, UPSERT, DELETE, DELETE_STORE)
"""Operations of the conventions. A search in the form of OpenAI's vector stores is a retrieval."""
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The variable of the environment by which texts and hits are put into spans."""
CAPTURED = ("true", "1", "span_only", "span_and_event")


@lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer("fanrank")


def is_traced() -> bool:
    """Whether an SDK takes spans."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def operation_span(operation: str, namespace: str | None, name: str | None = None) -> Iterator[Span | None]:
    """The span of an operation in a namespace (None: in several) as the current one; None where nobody records it.

    `name` is the span's name where it is not the operation's.
    """
    span = _tracer_of(trace.get_tracer_provider()).start_span(name or operation, kind=SpanKind.INTERNAL)
    if not span.is_recording():
        yield None
        return
    span.set_attribute("gen_ai.operation.name", operation)
    span.set_attribute("gen_ai.provider.name", "fanrank")
    if namespace:
        span.set_attribute("gen_ai.data_source.id" if operation == RETRIEVAL else "gen_ai.memory.store.id", namespace)
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield span
    except BaseException as error:
        # The class alone: a message may quote a text.
        title = type(error).__name__
        span.set_attribute("error.type", title)
        span.set_status(StatusCode.ERROR, title)
        raise
    finally:
        span.end()


@contextmanager
def search_span(operation: str, queries: Sequence[Query], k: int, strategy: str) -> Iterator[Span | None]:
    """The span of a search for these queries; `strategy` is its name."""
    namespace = None
    if not any(query.namespaces is not None or query.under is not None for query in queries):
        namespace = common_namespace([query.namespace for query in queries])
    name = f"{RETRIEVAL} {namespace}" if operation == RETRIEVAL and namespace else None
    with operation_span(operation, namespace, name) as span:
        if span is not None:
            span.set_attribute("gen_ai.request.top_k", float(k))
            span.set_attribute("fanrank.queries", len(queries))
            span.set_attribute("fanrank.strategy", strategy)
            if captures():
                texts = [query.text or "" for query in queries]
                text = texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
                kind = "retrieval" if operation == RETRIEVAL else "memory"
                span.set_attribute(f"gen_ai.{kind}.query.text", text)
        yield span


def describe_hits(span: Span, operation: str, hits: Hits) -> None:
    """Put into a search's span what was found: how many hits, and their ids where texts are asked for."""
    span.set_attribute("fanrank.backend", hits.backend)
    if operation == SEARCH:
        span.set_attribute("gen_ai.memory.record.count", int(hits.counts.sum()))
    elif captures():
        found = [{"id": id, "score": score} for row in hits for id, score in row]
        span.set_attribute("gen_ai.retrieval.documents", json.dumps(found, ensure_ascii=False))


def captures() -> bool:
    """Whether the environment asks for texts in spans."""
    return os.environ.get(CAPTURE, "").lower() in CAPTURED
