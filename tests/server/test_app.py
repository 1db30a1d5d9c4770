"""The HTTP interface: what each endpoint answers, and which problem each mistake is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.memories import KINDS, make_memory

import fanrank as fr
from fanrank.server.app import make_app

RECORDS = [
    {"id": "a", "text": "Ana drinks tea", "namespace": "users/ana", "payload": {"from": "chat"}},
    {"id": "b", "text": "Bo drinks tea and coffee", "namespace": "users/bo"},
    {"id": "c", "text": "tea is a plant"},
]


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> fr.Engine:
    engine = make_memory(request.param, columns={"project": "category"})
    engine.add(RECORDS)
    return engine


@pytest.fixture
def client(engine: fr.Engine) -> Iterator[TestClient]:
    with TestClient(make_app(engine), raise_server_exceptions=False) as made:
        yield made


def post(client: TestClient, address: str, **body: Any) -> Any:
    return client.post(address, json=body)


def test_a_batch_is_answered_as_the_engine_answers_it(client: TestClient, engine: fr.Engine) -> None:
    queries = ["tea", {"text": "coffee", "namespace": "users/bo", "k": 1}, {"text": "drinks", "under": "users"}]
    answer = post(client, "/v1/search", queries=queries, k=2, texts=True).json()
    asked = ["tea", fr.Query("coffee", namespace="users/bo", k=1), fr.Query("drinks", under="users")]
    assert [row["hits"] for row in answer["results"]] == engine.search(asked, 2, texts=True).to_dicts()


def test_scores_are_explained_and_add_up(client: TestClient) -> None:
    found = post(client, "/v1/search", query={"text": "tea plant"}, explain=True).json()["results"][0]["hits"][0]
    assert sum(term["quanta"] for term in found["explanation"]["terms"]) / 2**18 == found["score"]
    assert post(client, "/v1/explain", query="tea plant", id="c").json() == found["explanation"]


def test_records_are_written_read_listed_and_deleted(client: TestClient, engine: fr.Engine) -> None:
    added = post(
        client, "/v1/records", namespace="users/ana", records=[{"id": "d/1", "text": "more tea", "project": "x"}]
    )
    assert (added.status_code, added.json()) == (201, {"written": 1})
    again = post(client, "/v1/records", namespace="users/ana", records=[{"id": "d/1", "text": "more tea"}])
    assert (again.status_code, again.json()["title"]) == (409, "DuplicateIdError")
    post(client, "/v1/records", namespace="users/ana", mode="upsert", records=[{"id": "d/1", "text": "no tea"}])
    one = client.get("/v1/records/d/1", params={"namespace": "users/ana"})
    assert one.json() == {"id": "d/1", "text": "no tea", "namespace": "users/ana"}
    page = client.get("/v1/records", params={"namespace": "users/ana", "limit": 1}).json()
    rest = client.get("/v1/records", params={"namespace": "users/ana", "after": page["after"]}).json()
    assert [row["id"] for row in page["records"] + rest["records"]] == ["a", "d/1"]
    assert (
        client.request("DELETE", "/v1/records", json={"ids": ["a", "nobody"], "namespace": "users/ana"}).status_code
        == 404
    )
    assert client.delete("/v1/records/d/1", params={"namespace": "users/ana"}).json() == {"deleted": 1}
    listed = client.get("/v1/namespaces").json()["namespaces"]
    assert listed == [{"namespace": name, "records": 1} for name in engine.namespaces]


def test_a_deadline_is_seconds(client: TestClient) -> None:
    for said, status in (("0", 422), ("x", 422), ("inf", 422), ("5", 200)):
        headers = {"fanrank-deadline": said}
        assert client.post("/v1/search", json={"query": "tea"}, headers=headers).status_code == status
