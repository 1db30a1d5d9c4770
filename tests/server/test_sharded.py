"""A server over a sharded memory, where shards do not answer; and what it tells of each of them."""

import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest
from starlette.testclient import TestClient
from support.borders import shrink
from support.memories import make_memory
from support.sharding import sharded

import fanrank as fr
from fanrank.server.app import make_app
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.processes.links import Done

RECORDS = [fr.Record(f"r{number}", f"tea {number % 3}", "big") for number in range(20)]
SECRET = "/home/secret/shard-0001"


@pytest.fixture
def memory() -> ShardedEngine:
    engine = sharded(3, split=["big"], settings={"whole_at": 5})
    engine.add([*RECORDS, fr.Record("own", "tea", "small")])
    return engine


@pytest.fixture
def client(memory: ShardedEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    shrink(monkeypatch, RESTS=0)
    with TestClient(make_app(cast(fr.Engine, memory)), raise_server_exceptions=False) as made:
        yield made


def lose(memory: ShardedEngine, number: int, error: fr.FanrankError) -> None:
    """Let a shard answer nothing but this error."""
    link: Any = memory.coordinator.links[number]
    link.send = lambda *arguments, **keywords: Done(error=error)


def search(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/search", json={"query": {"text": "tea", "namespace": "big"}, "k": 20, **body})


@pytest.mark.parametrize(
    ("error", "status"), [(fr.errors.ShardError(SECRET), 503), (fr.errors.DeadlineError("shard 1 is late"), 504)]
)
def test_a_shard_that_does_not_answer_is_a_problem(
    memory: ShardedEngine, client: TestClient, error: fr.FanrankError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(search(client).json()["results"][0]["hits"]) == 20
    lose(memory, 1, error)
    asked = [
        search(client),
        client.get("/v1/records", params={"namespace": "big"}),
        client.get("/v1/count", params={"namespace": "big"}),
        client.post("/v1/records/fetch", json={"namespace": "big", "ids": [record.id for record in RECORDS]}),
        client.get("/v1/stats"),
    ]
    with caplog.at_level(logging.ERROR, "fanrank.server"):
        caplog.clear()
        asked.append(client.get("/v1/namespaces"))
    for answer in asked:
        assert (answer.status_code, answer.json()["title"]) == (status, type(error).__name__), answer.text
        assert SECRET not in answer.text
        assert ("Retry-After" in answer.headers) == (status == 503)
    assert len(caplog.records) == (status == 503)
    # Others answer.
    own = client.post("/v1/search", json={"query": {"text": "tea", "namespace": "small"}})
    assert memory.coordinator.placement.home("small") == 1 or own.status_code == 200


def test_a_search_may_ask_for_the_hits_of_the_others(memory: ShardedEngine, client: TestClient) -> None:
    whole = search(client, partial="allow").json()
    assert whole["missing_shards"] == []
    assert whole["results"] == search(client).json()["results"]
    lose(memory, 1, fr.errors.ShardError("shard 1 ended"))
    assert search(client, partial="refuse").status_code == 503
    for form in ("hits", "columns"):
        part = search(client, partial="allow", form=form).json()
        assert part["missing_shards"] == [1]
    kept = [hit["id"] for hit in search(client, partial="allow").json()["results"][0]["hits"]]
    placement = memory.coordinator.placement
    assert kept
    assert all(placement.finder()("big", name) != 1 for name in kept)
    assert search(client, partial="some").json()["field"] == "partial"
    streamed = client.post(
        "/v1/search", json={"query": "tea", "partial": "allow"}, headers={"accept": "application/x-ndjson"}
    )
    assert streamed.json()["field"] == "partial"
    with TestClient(make_app(make_memory("engine"))) as one:
        assert one.post("/v1/search", json={"query": "tea", "partial": "allow"}).json()["missing_shards"] == []


def test_a_strategy_that_a_split_namespace_is_too_large_for_is_a_mistake_of_the_request(client: TestClient) -> None:
    answer = search(client, strategy="rm3")
    assert (answer.status_code, answer.json()["title"]) == (422, "SplitNamespaceError")
    assert "use bm25" in answer.json()["detail"]


def test_metrics_are_by_shard(memory: ShardedEngine, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        search(client)
    text = client.get("/metrics").text
    assert 'fanrank_backend_info{backend="' in text
    for number in range(3):
        assert f'fanrank_shard_queries_total{{shard="{number}"}} 3' in text
        assert f'fanrank_shard_seconds{{shard="{number}",quantile="0.99"}} 0.' in text
        assert f'fanrank_shard_lag{{shard="{number}"}} 0' in text
    records = [line for line in text.splitlines() if line.startswith("fanrank_shard_records{")]
    assert sum(int(line.split()[-1]) for line in records) == 21
    assert "fanrank_records 21\n" in text
    assert "fanrank_sizes_late 0\n" in text
    assert "big" not in text
    shrink(monkeypatch, LATE_PAUSE=0)
    lose(memory, 1, fr.errors.ShardError(SECRET))
    text = client.get("/metrics").text
    assert "fanrank_sizes_late 1\n" in text
    assert "fanrank_records 21\n" in text
    with TestClient(make_app(make_memory("engine"))) as one:
        assert "fanrank_shard_" not in one.get("/metrics").text
