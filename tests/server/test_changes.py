"""Records that are changed where they are, lists with a filter, and streams that are sent part by part."""

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from support import borders
from support.memories import KINDS, make_memory

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.server import search
from fanrank.server.access import Principal
from fanrank.server.app import make_app

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "Ana drinks tea", "role": "user"},
    {"id": "b", "text": "tea is a plant", "role": "tool"},
    {"id": "c", "text": "coffee too", "role": "tool"},
]


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> fr.Engine:
    engine = make_memory(request.param)
    engine.namespace("users/ana").add(RECORDS)
    engine.namespace("users/bo").add(RECORDS)
    return engine


def ask(client: TestClient, method: str, address: str, **body: Any) -> tuple[int, Any]:
    answer = client.request(method, address, json=body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"changes": {}}, "ids"),
        ({"ids": ["a"], "filter": {}, "changes": {}}, "ids"),
        ({"filter": {"role": "tool"}, "missing_ok": True, "changes": {}}, "missing_ok"),
        ({"ids": ["a"]}, "changes"),
        ({"ids": ["a", 1], "changes": {}}, "ids"),
        ({"ids": ["a"], "namespace": "users/ana", "changes": {"importance": 2}}, "changes"),
    ],
)
def test_a_mistake_in_a_patch_names_its_place(client: TestClient, body: dict[str, Any], field: str) -> None:
    status, problem = ask(client, "PATCH", "/v1/records", **body)
    assert (status, problem["field"]) == (422, field)


def test_no_patch_moves_a_record_to_another_namespace(client: TestClient, engine: fr.Engine) -> None:
    for name in ("namespace", "id"):
        body = {"ids": ["a"], "namespace": "users/ana", "changes": {name: "users/bo"}}
        assert ask(client, "PATCH", "/v1/records", **body)[0] == 422
    assert len(engine.namespace("users/bo")) == 3


def test_no_filter_that_says_nothing_deletes(client: TestClient, engine: fr.Engine) -> None:
    assert ask(client, "DELETE", "/v1/records", namespace="users/ana", filter={})[0] == 422
    assert len(engine.namespace("users/ana")) == 3


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"limt": "5"}, "limt"),
        ({"limit": "0"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"limit": ["1", "2"]}, "limit"),
        ({"reverse": "yes"}, "reverse"),
        ({"filter": "[]"}, "filter"),
        ({"filter": '{"importance": 1e999}'}, "filter"),
        ({"filter": "[" * 5_000}, "filter"),
    ],
)
def test_a_mistake_in_a_parameter_is_named(client: TestClient, parameters: dict[str, Any], field: str) -> None:
    answer = client.get("/v1/records", params=parameters)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_record_is_put_whole(client: TestClient, engine: fr.Engine) -> None:
    address = "/v1/records/notes%2F1?namespace=users/ana"
    assert ask(client, "PUT", address, text="one", importance=0.5) == (200, {"written": 1})
    assert ask(client, "PUT", address, text="two", id="notes/1") == (200, {"written": 1})
    assert client.get(address).json() == {"id": "notes/1", "text": "two", "namespace": "users/ana"}
    for field, value in (("id", "other"), ("namespace", "users/bo")):
        status, problem = ask(client, "PUT", address, text="three", **{field: value})
        assert (status, problem["field"]) == (422, field)
    assert ask(client, "PUT", address, importance=1)[1]["title"] == "RecordError"


def test_an_id_may_hold_what_a_path_may_not(client: TestClient) -> None:
    for name in ("a\nb", "a/", "/", "a?b#c", "é\n", "search", "\n"):
        address = f"/v1/records/{quote(name, safe='')}?namespace=users/ana"
        assert ask(client, "PUT", address, text="one") == (200, {"written": 1})
        assert client.get(address).json()["id"] == name
        assert client.delete(address).json() == {"deleted": 1}


def test_a_key_that_only_reads_changes_nothing(engine: fr.Engine) -> None:
    """test_leaks.py asks for namespaces that a key does not reach."""
    reader = Principal("ana", ("users/ana",), write=False)
    with TestClient(make_app(engine, admit=lambda request: reader)) as client:
        refused = [
            ask(client, "PATCH", "/v1/records", namespace="users/ana", ids=["a"], changes={}),
            ask(client, "PATCH", "/v1/records", namespace="users/ana", filter={"role": "tool"}, changes={}),
            ask(client, "DELETE", "/v1/records", namespace="users/ana", filter={"role": "tool"}),
            ask(client, "PUT", "/v1/records/a?namespace=users/ana", text="x"),
            ask(client, "DELETE", "/v1/namespaces/users/ana"),
        ]
        assert {status for status, _ in refused} == {403}
    assert len(engine.namespace("users/ana")) == 3


def test_scores_are_explained_and_add_up(client: TestClient) -> None:
    asked = {"query": "tea plant", "namespace": "users/ana"}
    found = ask(client, "POST", "/v1/search", explain=True, **asked)[1]["results"][0]["hits"][0]
    assert sum(term["quanta"] for term in found["explanation"]["terms"]) / 2**18 == found["score"]
    assert ask(client, "POST", "/v1/explain", id=found["id"], **asked)[1] == found["explanation"]


def test_a_number_beyond_float64_is_refused(client: TestClient) -> None:
    for number in ("1e999", "-1E400", "1" * 400 + ".0"):
        content = f'{{"records": [{{"id": "x", "text": "", "payload": {{"x": {number}}}}}]}}'
        answer = client.post("/v1/records", content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["title"]) == (400, "InvalidJson")
    assert client.post("/v1/search", json={"query": "a", "k": 10**4299, "offset": 10**4299}).status_code == 422


def test_a_stream_holds_the_rows_of_the_whole_batch(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"queries": ["tea", "nothing of this", "plant coffee", "tea"], "namespace": "users/ana", "explain": True}
    whole = client.post("/v1/search", json=body).json()["results"]
    for part in (1, 3, 4, 32):
        borders.shrink(monkeypatch, PART=part)
        answer = client.post("/v1/search", json=body, headers={"accept": search.NDJSON})
        assert answer.headers["content-type"].partition(";")[0] == search.NDJSON
        assert [json.loads(line) for line in answer.text.splitlines()] == whole
    empty = client.post("/v1/search", json={"queries": []}, headers={"accept": search.NDJSON})
    assert (empty.status_code, empty.text) == (200, "")


def test_an_error_is_a_problem_before_the_first_row_and_the_last_row_after_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, PART=1)
    wrong = {"text": "tea", "filter": {"nope": 1}}
    headers = {"accept": search.NDJSON}
    first = client.post("/v1/search", json={"queries": [wrong, "tea"]}, headers=headers)
    assert (first.status_code, first.headers["content-type"]) == (422, "application/problem+json")
    later = client.post("/v1/search", json={"queries": ["tea", wrong, "tea"]}, headers=headers)
    rows = [json.loads(line) for line in later.text.splitlines()]
    assert later.status_code == 200
    assert [*rows[0]] == ["id", "hits", "note"]
    assert [(row["problem"]["title"], row["problem"]["status"]) for row in rows[1:]] == [("UnknownColumnError", 422)]


def test_a_part_is_sent_before_the_next_is_searched(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    borders.shrink(monkeypatch, PART=1)
    events: list[str] = []
    plain = type(engine).asearch

    async def watched(self: fr.Engine, queries: Any, *rest: Any, **keywords: Any) -> Any:
        events.append(f"search {queries[0].text}")
        return await plain(self, queries, *rest, **keywords)

    async def run() -> None:
        body = json.dumps({"queries": ["tea", "plant"], "namespace": "users/ana"}).encode()
        sent = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            message = next(sent, None)
            if message is None:
                await asyncio.Event().wait()
            return message

        async def send(message: Any) -> None:
            if message.get("body"):
                events.append("send")

        scope = {"type": "http", "method": "POST", "path": "/v1/search", "query_string": b"", "http_version": "1.1"}
        headers = [(b"accept", search.NDJSON.encode()), (b"content-type", b"application/json")]
        scope |= {"headers": headers, "asgi": {"version": "3.0", "spec_version": "2.3"}}
        await make_app(engine)(scope, receive, send)

    monkeypatch.setattr(type(engine), "asearch", watched)
    asyncio.run(run())
    assert events == ["search tea", "send", "search plant", "send"]


def test_a_full_disk_is_told_until_a_write_succeeds(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path) as engine, TestClient(make_app(engine)) as client:

        def see() -> tuple[int, Any]:
            answer = client.put("/v1/records/a", json={"text": "tea"})
            return answer.status_code, client.get("/v1/ready").json().get("writes")

        failpoints.arm("write.commit", action=Mock(side_effect=OSError(errno.ENOSPC, "full")))
        assert see() == (507, "disk full")
        metrics = client.get("/metrics").text
        assert "fanrank_disk_full 1\n" in metrics
        assert "fanrank_refused_writes 1\n" in metrics
        failpoints.disarm()
        assert see() == (200, None)
