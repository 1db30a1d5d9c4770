"""The HTTP interface: what each endpoint answers, and which problem each mistake is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.memories import KINDS, make_memory

import fanrank as fr
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.limits import Limits

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


def test_the_rows_of_a_batch_can_be_streamed(client: TestClient) -> None:
    body = {"queries": ["tea", "nothing of this"]}
    lines = client.post("/v1/search", json=body, headers={"accept": "application/x-ndjson"}).text.splitlines()
    assert [json.loads(line) for line in lines] == post(client, "/v1/search", **body).json()["results"]


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


@pytest.mark.parametrize(
    ("body", "status", "title", "field"),
    [
        ({}, 422, "InvalidBody", "queries"),
        ({"query": "a", "queries": []}, 422, "InvalidBody", "queries"),
        ({"queries": ["a"] * 4}, 422, "TooManyQueries", "queries"),
        ({"queries": ["a"], "k": 51}, 422, "TooManyHits", "k"),
        ({"queries": [{"text": "a", "k": 40, "offset": 20}]}, 422, "TooManyHits", "queries[0].k"),
        ({"queries": ["a" * 101]}, 422, "TextTooLong", "queries[0].text"),
        ({"queries": ["a", {"text": 5}]}, 422, "QueryError", "queries[1]"),
        ({"queries": [{"text": "a", "filter": {"nope": 1}}]}, 422, "UnknownColumnError", None),
        ({"queries": ["a"], "k": True}, 422, "InvalidField", "k"),
        ({"queries": ["a"], "strategy": "nope"}, 422, "ParameterError", None),
        ({"queries": ["a"], "kk": 1}, 422, "UnknownField", "kk"),
    ],
)
def test_a_mistake_is_a_problem_that_names_its_place(
    engine: fr.Engine, body: dict[str, Any], status: int, title: str, field: str | None
) -> None:
    with TestClient(make_app(engine, limits=Limits(queries=3, k=50, text=100))) as client:
        answer = client.post("/v1/search", json=body)
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert (answer.status_code, document["status"], document["title"], document.get("field")) == (
        status,
        status,
        title,
        field,
    )


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff{}", 400),
        (b"[" * 100_000, 400),
        (b'{"k": NaN}', 400),
        (b"[]", 422),
        (b" " * 2_000, 413),
    ],
)
def test_a_body_that_cannot_be_read(engine: fr.Engine, content: bytes, status: int) -> None:
    limit = 1_000 if status == 413 else 1 << 20
    with TestClient(make_app(engine, limits=Limits(body_bytes=limit))) as client:
        assert (
            client.post("/v1/search", content=content, headers={"content-type": "application/json"}).status_code
            == status
        )


def test_a_caller_sees_its_namespaces_alone(engine: fr.Engine) -> None:
    ana = Principal("ana", ("users/ana", "teams/*"), write=False)
    with TestClient(make_app(engine, admit=lambda request: ana)) as client:
        assert post(client, "/v1/search", query="tea", namespace="users/ana").status_code == 200
        refused = [
            post(client, "/v1/search", query="tea"),
            post(client, "/v1/search", query={"text": "tea", "namespaces": ["users/ana", "users/bo"]}),
            post(client, "/v1/search", query={"text": "tea", "under": "users"}),
            post(client, "/v1/search", query={"text": "tea", "namespace": "users/nobody"}),
            client.get("/v1/records"),
            client.get("/v1/records/b", params={"namespace": "users/bo"}),
            client.get("/v1/stats"),
            post(client, "/v1/records", namespace="users/ana", records=[{"id": "x", "text": "y"}]),
            client.delete("/v1/records/a", params={"namespace": "users/ana"}),
        ]
        assert {answer.status_code for answer in refused} == {403}
        assert client.get("/v1/namespaces").json() == {"namespaces": [{"namespace": "users/ana", "records": 1}]}


def test_a_full_server_turns_callers_away_and_still_says_that_it_lives(engine: fr.Engine) -> None:
    app = make_app(engine, limits=Limits(in_flight=1))
    app.state.fanrank.in_flight = 1
    with TestClient(app) as client:
        answer = post(client, "/v1/search", query="tea")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.get("/v1/health").status_code == 200


def test_a_deadline_is_seconds(client: TestClient) -> None:
    for said, status in (("0", 422), ("x", 422), ("inf", 422), ("5", 200)):
        headers = {"fanrank-deadline": said}
        assert client.post("/v1/search", json={"query": "tea"}, headers=headers).status_code == status
