"""Spans of searches and writes: their names, attributes and parents, and that they hold no text unless asked."""

import json
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.testclient import TestClient

import fanrank as fr
from fanrank.server.app import make_app
from fanrank.server.spans import CAPTURE

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "Zanzibarov"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Takes all spans of the test, as an SDK that the owner of the server has set up would."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.delenv(CAPTURE, raising=False)
    return exporter


@pytest.fixture
def engine() -> fr.Engine:
    engine = fr.Engine()
    engine.add([{"id": "a", "text": f"tea of {SECRET}", "namespace": "users/ana"}, {"id": "b", "text": "tea"}])
    return engine


def only(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, Any]]:
    """The one span since the last call, and its attributes."""
    (span,) = exporter.get_finished_spans()
    exporter.clear()
    return span, dict(span.attributes or {})


def test_a_search_of_the_memory(client: TestClient, exporter: InMemorySpanExporter) -> None:
    client.post("/v1/search", json={"queries": [f"tea {SECRET}", "of"], "namespace": "users/ana", "k": 7})
    span, attributes = only(exporter)
    assert (span.name, span.kind, span.status.status_code) == ("search_memory", SpanKind.INTERNAL, StatusCode.UNSET)
    assert attributes == {
        "gen_ai.operation.name": "search_memory",
        "gen_ai.provider.name": "fanrank",
        "gen_ai.memory.store.id": "users/ana",
        "gen_ai.memory.record.count": 1,
        "gen_ai.request.top_k": 7.0,
        "fanrank.queries": 2,
        "fanrank.strategy": "bm25",
        "fanrank.backend": "native",
    }
    # There is no one store.
    client.post("/v1/search", json={"queries": ["tea", {"text": "tea", "namespace": "users/ana"}]})
    assert "gen_ai.memory.store.id" not in only(exporter)[1]
    client.post("/v1/search", json={"query": {"text": "tea", "under": "users"}})
    assert "gen_ai.memory.store.id" not in only(exporter)[1]


def test_a_retrieval(client: TestClient, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> tuple[str, dict[str, Any]]:
        client.post("/v1/vector_stores/users%2Fana/search", json={"query": f"tea {SECRET}"})
        span, attributes = only(exporter)
        return span.name, attributes

    name, attributes = ask()
    assert name == "retrieval users/ana"
    assert attributes["gen_ai.data_source.id"] == "users/ana"
    assert attributes["gen_ai.operation.name"] == "retrieval"
    assert SECRET not in str(attributes)
    monkeypatch.setenv(CAPTURE, "true")
    _, attributes = ask()
    assert attributes["gen_ai.retrieval.query.text"] == f"tea {SECRET}"
    (found,) = json.loads(attributes["gen_ai.retrieval.documents"])
    assert found["id"] == "a"
    assert found["score"] > 0


@pytest.mark.parametrize(("said", "kept"), [("", False), ("false", False), ("true", True), ("SPAN_ONLY", True)])
def test_texts_of_queries_are_opt_in(
    client: TestClient, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, said: str, kept: bool
) -> None:
    monkeypatch.setenv(CAPTURE, said)
    client.post("/v1/search", json={"query": SECRET})
    assert only(exporter)[1].get("gen_ai.memory.query.text") == (SECRET if kept else None)
    client.post("/v1/search", json={"queries": [SECRET, "tea"]})
    texts = only(exporter)[1].get("gen_ai.memory.query.text")
    assert texts == (json.dumps([SECRET, "tea"]) if kept else None)


def test_writes(client: TestClient, exporter: InMemorySpanExporter) -> None:
    records = [{"id": "x", "text": SECRET}, {"id": "y", "text": SECRET}]
    mine = {"namespace": "users/bo"}
    steps = [
        (client.post("/v1/records", json={"records": records, **mine}), "create_memory", 2, None),
        (client.post("/v1/records", json={"records": records, "mode": "update", **mine}), "update_memory", 2, None),
        (client.post("/v1/records", json={"records": records, "mode": "upsert", **mine}), "upsert_memory", 2, None),
        (client.put("/v1/records/x", params=mine, json={"text": SECRET}), "upsert_memory", 1, "x"),
        (
            client.patch("/v1/records", json={"ids": ["x", "y"], "changes": {"importance": 1}, **mine}),
            "update_memory",
            2,
            None,
        ),
        (client.delete("/v1/records/x", params=mine), "delete_memory", 1, "x"),
        (client.request("DELETE", "/v1/records", json={"filter": {"importance": 1}, **mine}), "delete_memory", 1, None),
        (client.delete("/v1/namespaces/users/bo"), "delete_memory_store", None, None),
    ]
    spans = exporter.get_finished_spans()
    assert len(spans) == len(steps)
    for span, (answer, operation, count, id) in zip(spans, steps, strict=True):
        assert answer.status_code in (200, 201), answer.text
        attributes = dict(span.attributes or {})
        assert (span.name, attributes["gen_ai.operation.name"]) == (operation, operation)
        assert attributes["gen_ai.memory.store.id"] == "users/bo"
        assert attributes.get("gen_ai.memory.record.count") == count
        assert attributes.get("gen_ai.memory.record.id") == id
        assert SECRET not in str(attributes)


def test_an_error_is_named_and_not_quoted(client: TestClient, exporter: InMemorySpanExporter) -> None:
    answer = client.post("/v1/search", json={"query": "tea", "strategy": SECRET})
    assert (answer.status_code, SECRET in answer.text) == (422, True)
    span, attributes = only(exporter)
    assert attributes["error.type"] == "ParameterError"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ParameterError")
    client.post("/v1/records", json={"records": [{"id": "b", "text": SECRET}]})
    span, attributes = only(exporter)
    assert attributes["error.type"] == "DuplicateIdError"
    assert SECRET not in span.to_json()
    assert not span.events


def test_the_caller_names_the_trace(client: TestClient, exporter: InMemorySpanExporter) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    client.post("/v1/search", json={"query": "tea"}, headers=headers)
    span, _ = only(exporter)
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    # The next request is no part of it, nor one whose header is none.
    for wrong in ({}, {"traceparent": "00-xyz"}):
        client.post("/v1/search", json={"query": "tea"}, headers=wrong)
        span, _ = only(exporter)
        assert span.parent is None


def test_a_span_of_http_goes_before_the_header(engine: fr.Engine, exporter: InMemorySpanExporter) -> None:
    """As the instrumentation of an ASGI server makes one, from the same header."""
    app = make_app(engine)

    async def traced(scope: Any, receive: Any, send: Any) -> None:
        with trace.get_tracer_provider().get_tracer("asgi").start_as_current_span("POST"):
            await app(scope, receive, send)

    TestClient(traced).post("/v1/search", json={"query": "tea"}, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    search, outer = exporter.get_finished_spans()
    assert search.parent.span_id == outer.context.span_id


def test_without_an_sdk_nothing_is_made(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a span was begun")

    monkeypatch.setattr(trace.ProxyTracer, "start_span", refuse)
    monkeypatch.setattr(trace.NoOpTracer, "start_span", refuse)
    assert client.post("/v1/search", json={"query": "tea"}).status_code == 200
    assert client.delete("/v1/records/b").status_code == 200
