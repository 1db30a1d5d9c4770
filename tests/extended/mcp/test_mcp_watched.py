"""Tools over HTTP are counted, traced and logged as requests are."""

from __future__ import annotations

import io
import json

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.mcp_client import ask, connected, refused, running

import fanrank as fr
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.logs import Log
from fanrank.server.mcp_run import make_part

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "Zanzibarov"


async def test_tools_are_seen_as_requests_are(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    engine, stream = fr.Engine(), io.StringIO()
    log = Log("json", stream=stream)
    ana = Principal("0123", ("users/ana",), label="ana")
    app = make_app(engine, admit=lambda request: ana, parts=[make_part(engine)], log=log)
    traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    async with running(app) as url, connected(url, **traced) as client:
        await ask(client, "remember", records=[{"text": f"tea of {SECRET}"}] * 2, namespace="users/ana")
        await ask(client, "search_memory", queries=["tea", "nothing", SECRET], namespace="users/ana")
        await refused(client, "search_memory", queries=["tea"], namespace="elsewhere")
    log.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["route"] for line in lines} == {"/mcp"}
    assert {line["key"] for line in lines} == {"ana"}
    assert len({line["request"] for line in lines}) == len(lines)
    assert [line["records"] for line in lines if "records" in line] == [1]
    assert [(line["queries"], line["hits"]) for line in lines if "queries" in line] == [(3, 2)]
    assert [line["problem"] for line in lines if "problem" in line] == ["NamespaceForbidden"]
    assert SECRET not in stream.getvalue()
    text = app.state.fanrank.metrics.write(0, 0, True)
    for sample in (
        'fanrank_queries_total{strategy="bm25"} 3\n',
        'fanrank_changed_records_total{operation="create_memory"} 1\n',
        'fanrank_rejected_total{reason="NamespaceForbidden"} 1\n',
    ):
        assert sample in text
    spans = {span.name: span for span in exporter.get_finished_spans()}
    for operation in ("create_memory", "search_memory"):
        context = spans[operation].context
        assert context is not None
        assert f"{context.trace_id:032x}" == TRACE
        assert dict(spans[operation].attributes or {})["gen_ai.memory.store.id"] == "users/ana"
