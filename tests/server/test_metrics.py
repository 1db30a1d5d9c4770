"""``/metrics``: what is counted, by which labels, and who may read it."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from support import source
from support.borders import shrink
from support.live import message, serving
from support.memories import make_memory

import fanrank as fr
from fanrank.server import metrics
from fanrank.server.app import make_app
from fanrank.server.connections import FULL
from fanrank.server.keys import Keyring, add_key
from fanrank.server.limits import Limits
from fanrank.server.openapi import problem_codes
from fanrank.server.seen import STRATEGY_NAMES
from fanrank.server.spans import WRITES

SECRET = "Zanzibarov"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> fr.Engine:
    shrink(monkeypatch, RESTS=0)
    engine = fr.Engine()
    engine.add([{"id": str(place), "text": f"tea number {place}"} for place in range(5)])
    return engine


def read(client: TestClient, **headers: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, as Prometheus' own parser reads them."""
    answer = client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, *(text for label, text in sample.labels.items() if label != "le")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.labels.get("le", "+Inf") == "+Inf"
    }


def post(client: TestClient, address: str, **body: Any) -> Any:
    return client.post(address, json=body)


def test_requests_are_counted_by_route_and_status(client: TestClient) -> None:
    body = b'{"query": "tea"}'
    typed = {"content-type": "application/json"}
    answers = [client.post("/v1/search", content=body, headers=typed) for _ in range(3)]
    client.get("/v1/records/1")
    client.get("/v1/records/nobody")
    client.get("/nowhere")
    found = read(client)
    assert found["fanrank_requests_total", "POST", "/v1/search", "200"] == 3
    assert found["fanrank_requests_total", "GET", "/v1/records/{id}", "200"] == 1
    assert found["fanrank_requests_total", "GET", "/v1/records/{id}", "404"] == 1
    assert found["fanrank_requests_total", "GET", "other", "404"] == 1
    assert found["fanrank_request_seconds_count", "/v1/search"] == 3
    assert found["fanrank_received_bytes_total", "/v1/search"] == 3 * len(body)
    assert found["fanrank_sent_bytes_total", "/v1/search"] == sum(len(answer.content) for answer in answers)
    # The request for the metrics is under way itself.
    assert found["fanrank_requests_in_flight",] == 1
    assert found["fanrank_ready",] == 1


def test_searches_and_launches_are_counted_by_strategy_and_phase(client: TestClient) -> None:
    post(client, "/v1/search", queries=["tea", "number"], k=3)
    post(client, "/v1/search", queries=["tea", {"text": "tea", "strategy": "rm3"}], k=1)
    post(client, "/v1/search", query="tea", k=2, strategy="rm3")
    post(client, "/v1/search", query="tea", k=2, strategy={"name": SECRET, "channels": [{"kind": "lexical"}]})
    found = read(client)
    assert found["fanrank_queries_total", "bm25"] == 2
    assert found["fanrank_hits_total", "bm25"] == 6
    assert found["fanrank_queries_total", "mixed"] == 2
    assert found["fanrank_hits_total", "rm3"] == 2
    for phase in ("read", "search", "answer"):
        assert found["fanrank_search_seconds_count", phase, "bm25"] == 1
    assert found["fanrank_launch_queries_count",] == found["fanrank_launches_total",] >= 3
    assert found["fanrank_launch_queries_sum",] == found["fanrank_launched_queries_total",] >= 5
    assert found["fanrank_launch_phase_seconds_count", "score and select", "bm25"] == 1
    assert found["fanrank_launch_phase_seconds_count", "bm25", "rm3"] == 1
    assert not any(SECRET in text for key in found for text in key)


def test_the_phases_add_up_to_the_request(client: TestClient) -> None:
    for _ in range(3):
        post(client, "/v1/search", queries=["tea"] * 5)
    found = read(client)
    parts = [found["fanrank_search_seconds_sum", phase, "bm25"] for phase in ("read", "search", "answer")]
    assert sum(parts) == pytest.approx(found["fanrank_request_seconds_sum", "/v1/search"])
    launched = sum(value for key, value in found.items() if key[0] == "fanrank_launch_phase_seconds_sum")
    assert 0 < launched < parts[1]


def test_a_stream_is_one_request_of_all_its_queries(client: TestClient) -> None:
    queries = ["tea"] * 70
    lines = client.post("/v1/search", json={"queries": queries}, headers={"accept": "application/x-ndjson"}).text
    assert len(lines.splitlines()) == 70
    found = read(client)
    assert found["fanrank_queries_total", "bm25"] == 70
    assert found["fanrank_search_seconds_count", "search", "bm25"] == 1
    assert found["fanrank_sent_bytes_total", "/v1/search"] == len(lines.encode())


@pytest.mark.parametrize("name", ["rm3", "decay", "recall", "dialogue-words", "auto", "graph", "temporal"])
def test_the_phases_of_every_strategy_are_known(client: TestClient, name: str) -> None:
    answer = post(client, "/v1/search", query={"text": "tea", "now": 1_790_000_000.0}, strategy=name)
    assert answer.status_code == 200, answer.text
    phases = {key[1] for key in read(client) if key[0] == "fanrank_launch_phase_seconds_count"}
    assert phases
    assert metrics.OTHER not in phases


def test_writes_and_the_state_of_the_memory(client: TestClient, tmp_path: Path, engine: fr.Engine) -> None:
    post(client, "/v1/records", records=[{"id": "new", "text": "a"}, {"id": "newer", "text": "b"}])
    post(client, "/v1/records", records=[{"id": "new", "text": "c"}], mode="upsert")
    client.patch("/v1/records", json={"ids": ["new"], "changes": {"importance": 0.5}})
    client.put("/v1/records/put", json={"text": "d"})
    client.delete("/v1/records/new")
    client.request("DELETE", "/v1/records", json={"filter": {"importance": {">": 2}}})
    client.delete("/v1/namespaces/users")
    found = read(client)
    written = {key[1]: value for key, value in found.items() if key[0] == "fanrank_changed_records_total"}
    assert written == {
        "create_memory": 2,
        "upsert_memory": 2,
        "update_memory": 1,
        "delete_memory": 1,
        "delete_memory_store": 0,
    }
    assert set(written) == set(WRITES)
    assert found["fanrank_write_seconds_count", "delete_memory"] == 2
    assert found["fanrank_records",] == len(engine) == 7
    assert found["fanrank_memory_bytes", "posting"] == engine.stats()["posting_bytes"]
    with fr.Engine.open(tmp_path / "memory") as durable, TestClient(make_app(durable)) as other:
        post(other, "/v1/records", records=[{"id": "new", "text": "a"}])
        found = read(other)
        assert found["fanrank_log_lag",] == durable.stats()["sequence"] > 0
        assert found["fanrank_segments",] == 1
        # Nothing of the first application.
        assert found["fanrank_changed_records_total", "create_memory"] == 1


def test_refusals_are_counted_by_reason(engine: fr.Engine) -> None:
    app = make_app(engine, limits=Limits(queries=1, in_flight=5))
    with TestClient(app) as client:
        post(client, "/v1/search", queries=["tea", "tea"])
        post(client, "/v1/search", query="tea", strategy=SECRET)
        app.state.fanrank.in_flight = 5
        post(client, "/v1/search", query="tea")
        # A full server still says how it is, and so does one that stops.
        app.state.fanrank.stopping = True
        found = read(client)
    assert {key[1]: value for key, value in found.items() if key[0] == "fanrank_rejected_total"} == {
        "TooManyQueries": 1,
        "ParameterError": 1,
        "OverloadedError": 1,
    }
    assert found["fanrank_ready",] == 0
    assert found["fanrank_requests_total", "POST", "/v1/search", "503"] == 1


def test_a_connection_that_is_turned_away_is_counted(engine: fr.Engine) -> None:
    with serving(engine, limits=Limits(connections=1)) as live, live.connect() as first:
        first.sendall(message(b'{"query": "tea"}', close=False))
        assert first.recv(12) == b"HTTP/1.1 200"
        assert live.send(message(b'{"query": "tea"}')).startswith(b"HTTP/1.1 503")
        assert f'fanrank_rejected_total{{reason="{FULL}"}} 1\n' in live.state.metrics.write(0, 0, True)


def test_labels_come_from_bounded_sets(client: TestClient) -> None:
    """Whatever clients send: not one series more, and nothing of theirs in a label."""
    for place in range(20):
        name = f'{SECRET}"\\\n{place}'
        client.request(f"{SECRET}{place}", f"/v1/records/{place}")
        client.get(f"/v1/records/{SECRET}{place}", params={"namespace": name})
        client.get(f"/{SECRET}{place}")
        client.post(f"/v1/vector_stores/{SECRET}{place}/search", json={"query": name})
        post(client, "/v1/search", query={"text": name, "namespace": name}, strategy=name)
        post(client, "/v1/search", query="tea", strategy={name: "bm25"}, namespace=name)
        post(client, "/v1/records", records=[{"id": name, "text": name, "namespace": name}], mode="upsert")
        client.delete(f"/v1/namespaces/{SECRET}{place}")
        if place == 0:
            # Reading them has series of its own, from the second time on.
            before = set(read(client)) and set(read(client))
    assert set(read(client)) == before
    assert SECRET not in client.get("/metrics").text
    allowed: dict[str, set[str]] = {
        "method": {*metrics.METHODS, metrics.OTHER},
        "route": {route.path_format for route in client.app.routes} | {metrics.OTHER},  # type: ignore[attr-defined]
        "strategy": set(STRATEGY_NAMES),
        "reason": {*problem_codes(), FULL, metrics.OTHER},
        "operation": set(WRITES),
        "part": set(metrics.PARTS),
        "backend": {"native", "numpy"},
        "phase": {"read", "search", "answer", *metrics.PHASES, metrics.OTHER},
    }
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            for label, text in sample.labels.items():
                assert label in ("le", "status") or text in allowed[label], sample


def test_who_may_read_them(engine: fr.Engine, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {
        "tenant": add_key(file, ["acme/*"], name="tenant"),
        "reader": add_key(file, ["acme", "other"], name="reader", write=False),
        "metrics": add_key(file, [], name="metrics", metrics=True),
        "owner": add_key(file, ["*"], name="owner", write=False),
    }
    with TestClient(make_app(engine, admit=Keyring(file))) as client:
        statuses = {
            name: client.get("/metrics", headers={"authorization": f"Bearer {key}"}).status_code
            for name, key in keys.items()
        }
        assert statuses == {"tenant": 403, "reader": 403, "metrics": 200, "owner": 200}
        refused = client.get("/metrics", headers={"authorization": f"Bearer {keys['tenant']}"})
        assert refused.json()["title"] == "MetricsForbidden"
        assert client.get("/metrics").status_code == 401
        # A key for metrics reads nothing else.
        mine = {"authorization": f"Bearer {keys['metrics']}"}
        assert client.post("/v1/search", json={"query": "tea"}, headers=mine).status_code == 403
        assert client.get("/v1/stats", headers=mine).status_code == 403
        assert client.get("/v1/namespaces", headers=mine).json() == {"namespaces": []}
    # Without keys the server is for this machine alone, and refuses what other sites' pages ask.
    with TestClient(make_app(engine, local=True), base_url="http://localhost") as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/metrics", headers={"origin": "https://elsewhere.example"}).status_code == 403
        assert client.get("/metrics", headers={"host": "elsewhere.example"}).status_code == 403


def test_the_sizes_of_the_memory_are_read_a_twentieth_of_the_time(
    client: TestClient, engine: fr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often somebody asks."""
    now, reads = [0.0], [0]
    stats = engine.stats

    def slow_stats() -> dict[str, Any]:
        reads[0] += 1
        now[0] += 1.0
        return stats()

    shrink(monkeypatch, RESTS=20)
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: 0.0))
    monkeypatch.setattr(engine, "stats", slow_stats)
    for _ in range(5):
        read(client)
    assert reads == [1]
    now[0] += 19.9
    read(client)
    assert reads == [1]
    now[0] += 0.2
    read(client)
    assert reads == [2]


def test_the_page_lists_every_metric() -> None:
    """A sharded memory has all."""
    page = (Path(source.ROOT) / "docs" / "server.md").read_text(encoding="utf-8")
    with TestClient(make_app(make_memory("shards"))) as client:
        text = client.get("/metrics").text
    assert set(re.findall(r"`(fanrank_\w+)`", page)) == set(re.findall(r"^# HELP (fanrank_\w+)", text, re.MULTILINE))
