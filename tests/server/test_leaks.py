"""A key of one tenant never shows a byte of another: each endpoint, asked within and beyond what the key reaches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

import fanrank as fr
from fanrank.server.access import Principal
from fanrank.server.app import make_app

OWN = [
    {"id": "shared-id", "text": "Ana drinks green tea", "namespace": "acme/ana", "session": "s", "time": 86400.0},
    {"id": "own", "text": "the tea of Ana is cold", "namespace": "acme/ana", "session": "s", "project": "tea"},
    {"id": "team", "text": "a team drinks tea on Monday", "namespace": "acme/team", "payload": {"n": 1}},
]
# "acme" and "acmecorp" begin like what the key reaches, and are others'.
OTHERS = [
    {"id": f"{place}-secretid", "text": f"tea secretword Zanzibarov drinks tea {place}", "namespace": name,
     "project": "secretproject", "session": "secretsession", "time": 99.0 + place, "payload": {"secretkey": "x"}}
    for place, name in enumerate(
        ["", "acme", "acmecorp", "acmecorp/ana", "globex/bob", "globex/bob", "globex/secretns"]
    )
]  # fmt: skip
OTHERS += [{"id": "shared-id", "text": "secretword", "namespace": "globex/bob"}]
BEYOND = ["", "acme", "acmecorp", "acmecorp/ana", "globex/bob", "globex/secretns", "nobody", "globex"]
STRATEGIES: list[Any] = ["lexical", "auto", "recall", "decay", "rm3", {"globex/bob": "lexical", "acme/ana": "recall"}]
SECRETS = ("secret", "Zanzibarov")
KEY = Principal("a", ("acme/*",))


def make_client(records: list[dict[str, Any]], principal: Principal = KEY) -> TestClient:
    engine = fr.Engine(columns={"project": "category"})
    engine.add(records)
    return TestClient(make_app(engine, admit=lambda request: principal), raise_server_exceptions=False)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with make_client([*OTHERS, *OWN]) as made:
        yield made


def requests_of(namespace: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Each endpoint, asked for this namespace."""
    record = {"id": "shared-id", "text": "tea"}
    inside = {"namespace": namespace}
    return [
        ("POST", "/v1/search", {"json": {"query": "tea", **inside, "explain": True, "texts": True, "payload": True}}),
        ("POST", "/v1/search", {"json": {"queries": [{"text": "tea", **inside}]}}),
        ("POST", "/v1/search", {"json": {"queries": ["tea", {"text": "tea", **inside}], "namespace": "acme/ana"}}),
        ("POST", "/v1/search", {"json": {"query": {"text": "tea", "namespaces": ["acme/ana", namespace]}}}),
        ("POST", "/v1/search", {"json": {"query": {"text": "tea", "under": namespace}}}),
        ("POST", "/v1/search", {"json": {"query": {"text": "tea", "under": f"{namespace}/"}}}),
        ("POST", "/v1/search", {"json": {"query": {"text": "", "newest": True, **inside}}}),
        ("POST", "/v1/explain", {"json": {"query": "tea", "id": "shared-id", **inside}}),
        ("POST", "/v1/explain", {"json": {"query": {"text": "tea", "under": namespace}, "id": "shared-id"}}),
        ("POST", "/v1/records", {"json": {"records": [record], **inside}}),
        ("POST", "/v1/records", {"json": {"records": [{**record, **inside}], "namespace": "acme/ana"}}),
        ("POST", "/v1/records", {"json": {"records": [record], "mode": "update", **inside}}),
        ("POST", "/v1/records", {"json": {"records": [], **inside}}),
        ("DELETE", "/v1/records", {"json": {"ids": ["shared-id"], **inside}}),
        ("DELETE", "/v1/records", {"json": {"ids": ["shared-id"], "missing_ok": True, **inside}}),
        ("DELETE", "/v1/records/shared-id", {"params": inside}),
        ("GET", "/v1/records/shared-id", {"params": inside}),
        ("GET", "/v1/records", {"params": inside}),
        ("GET", "/v1/stats", {"params": inside}),
    ]


def post(address: str, **body: Any) -> tuple[str, str, dict[str, Any]]:
    """A request with this body."""
    return "POST", address, {"json": body}


OWN_REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    *(
        post("/v1/search", queries=["tea secretword", "Who is Zanzibarov?", "what did Ana drink last time?"],
             namespace="acme/ana", strategy=strategy, explain=True, texts=True)
        for strategy in STRATEGIES
    ),
    *(
        post("/v1/search", query={"text": "tea secretword", "now": 100000.0, **query}, explain=True)
        for query in (
            {"namespaces": ["acme/ana", "acme/team"]},
            {"namespaces": ["acme/ana", "acme/nobody"]},
            {"under": "acme/ana"},
            {"under": "acme/nobody"},
            {"namespace": "acme/nobody"},
            {"namespace": "acme/ana", "newest": True},
            {"namespace": "acme/ana", "windows": "auto"},
            {"namespace": "acme/ana", "half_life": "1d"},
            {"namespace": "acme/ana", "session": "secretsession"},
            {"namespace": "acme/ana", "filter": {"project": "secretproject"}},
            {"namespace": "acme/ana", "filter": {"project": {"not in": ["secretproject"]}}},
            {"namespace": "acme/ana", "filter": {"project": {"<": 5}}},
            {"namespace": "acme/ana", "filter": {"nothing": 5}},
            {"namespace": "acme/ana", "filter": {"project": "secretproject"}, "statistics": "filtered"},
            {"namespace": "acme/ana", "neighbours": {"window": 2, "weight": 0.5}},
            {"namespace": "acme/ana", "strategy": "recall"},
            {"namespace": "acme/ana", "strategy": {"globex/bob": "lexical"}},
            {"namespace": "acme/ana", "strategy": {"name": "globex/bob", "channels": []}},
            {"namespace": "acme/ana", "distinct": "project"},
        )
    ),
    ("POST", "/v1/explain", {"json": {"query": "tea secretword", "id": "own", "namespace": "acme/ana"}}),
    ("POST", "/v1/explain", {"json": {"query": "tea", "id": "4-secretid", "namespace": "acme/ana"}}),
    post("/v1/explain", query="tea secretword", id="own", namespace="acme/ana", strategy="recall"),
    ("GET", "/v1/records/4-secretid", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/records", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/records", {"params": {"namespace": "acme/ana", "order": "time", "limit": "1"}}),
    ("GET", "/v1/records", {"params": {"namespace": "acme/ana", "order": "nothing"}}),
    ("GET", "/v1/namespaces", {}),
    ("GET", "/v1/stats", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/stats", {"params": {"namespace": "acme/nobody"}}),
    ("GET", "/v1/stats", {}),
    ("GET", "/v1/health", {}),
    ("GET", "/v1/ready", {}),
    ("POST", "/v1/records", {"json": {"records": [{"id": "4-secretid", "text": "mine"}], "namespace": "acme/ana"}}),
    ("POST", "/v1/records", {"json": {"records": [{"id": "shared-id", "text": "mine"}], "namespace": "acme/ana"}}),
    post("/v1/records", records=[{"id": "5-secretid", "text": "x"}], namespace="acme/ana", mode="update"),
    ("DELETE", "/v1/records", {"json": {"ids": ["6-secretid"], "namespace": "acme/ana"}}),
    ("DELETE", "/v1/records/own", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/stats", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/namespaces", {}),
]  # fmt: skip


def without_times(value: Any) -> Any:
    """An answer without what differs from one run to the next: the time it took, and the bytes of a sealed cursor."""
    if isinstance(value, dict):
        kept = {name: without_times(inner) for name, inner in value.items() if name != "milliseconds"}
        if kept.get("after") is not None:
            kept["after"] = len(kept["after"])
        return kept
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def seen(answer: httpx.Response) -> tuple[int, dict[str, str], Any]:
    """All that a caller sees of an answer, without the number that every request has."""
    varies = ("content-length", "x-request-id")
    headers = {name: value for name, value in answer.headers.items() if name not in varies}
    return answer.status_code, headers, without_times(answer.json())


@pytest.mark.parametrize("namespace", BEYOND)
def test_what_a_key_does_not_reach_is_refused_alike_whether_it_exists_or_not(
    client: TestClient, namespace: str
) -> None:
    for (method, address, request), (_, _, absent) in zip(
        requests_of(namespace), requests_of("absent/one"), strict=True
    ):
        answer = client.request(method, address, **request)
        if not namespace and "under" in str(request):
            # No path is empty.
            assert answer.status_code in (403, 422)
            continue
        assert answer.status_code == 403, (method, address, request, answer.text)
        assert seen(answer) == seen(client.request(method, address, **absent))
        assert not any(secret in answer.text for secret in SECRETS)


def test_what_others_wrote_changes_no_byte_of_an_answer(client: TestClient) -> None:
    with make_client(OWN) as alone:
        statuses = set()
        for method, address, request in OWN_REQUESTS:
            answer = client.request(method, address, **request)
            assert seen(answer) == seen(alone.request(method, address, **request)), (method, address, request)
            statuses.add(answer.status_code)
    assert statuses == {200, 201, 403, 404, 409, 422}


def test_a_key_that_reaches_everything_sees_the_secrets(client: TestClient) -> None:
    """The matrix can fail: the same requests of a key with all rights show what it looks for."""
    with make_client([*OTHERS, *OWN], Principal("all")) as whole:
        texts = [whole.request(*named[:2], **named[2]).text for named in requests_of("globex/bob")[:7]]
    assert any(secret in text for text in texts for secret in SECRETS)


def test_a_cursor_leads_through_its_own_listing_alone(client: TestClient) -> None:
    engine = client.app.state.fanrank.engine  # type: ignore[attr-defined]
    cursor = engine.records(namespace="globex/bob", order="written", reverse=False, limit=1)
    list(cursor)
    for given in (cursor.cursor, "x", json.dumps({"key": 0})):
        answer = client.get("/v1/records", params={"namespace": "acme/ana", "after": given})
        assert answer.status_code == 422
        assert not any(secret in answer.text for secret in (*SECRETS, "globex"))


def test_an_error_of_the_server_says_nothing_of_the_memory(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*arguments: object, **keywords: object) -> None:
        raise RuntimeError("secret of globex/bob")

    monkeypatch.setattr(client.app.state.fanrank.engine, "count", break_off)  # type: ignore[attr-defined]
    answer = client.get("/v1/namespaces")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "globex" not in answer.text
