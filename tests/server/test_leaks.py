"""A key of one tenant never shows a byte of another: each endpoint, asked within and beyond what the key reaches.

Each address of the application has rows here. One without a row fails.
"""

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote, unquote

import pytest
from starlette.routing import Match
from starlette.testclient import TestClient
from support.leaks import BEYOND, OTHERS, OWN, SECRETS, Request, make_client, seen
from support.memories import KINDS

from fanrank.server import page
from fanrank.server.limits import Limits
from fanrank.server.operations import Operation, operations
from fanrank.server.search import NDJSON
from fanrank.server.verbs import ROUTES

STRATEGIES: list[Any] = [
    *("lexical", "auto", "recall", "decay", "rm3", "dense", "fused", "sparse", "graph", "temporal", "conversation"),
    {"globex/bob": "lexical", "acme/ana": "recall"},
    {"": "bm25", "globex/bob": "decay"},
    {"name": "deep", "channels": [{"kind": "lexical"}], "depth": 1_000},
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str) -> Iterator[TestClient]:
    with make_client(kind, [*OTHERS, *OWN]) as made:
        yield made


WITHOUT_NAMESPACE = {
    ("GET", "/v1/health"), ("GET", "/v1/ready"), ("GET", "/openapi.json"), ("GET", "/v1/namespaces"),
    ("GET", "/v1/strategies"),
    ("GET", "/metrics"), ("GET", "/v1/columns"), ("POST", "/v1/backup"), ("GET", "/v1/backups"),
}  # fmt: skip
"""Endpoints that are asked for no namespace, and so have no row of `requests_of`."""


BY_DECLARATION = [one for one in operations(Limits()) if one.path in ROUTES]


def requests_of(namespace: str) -> list[Request]:
    """Each endpoint, asked for this namespace."""
    record = {"id": "shared-id", "text": "tea"}
    inside = {"namespace": namespace}
    path = quote(namespace, safe="")
    named = [
        ("DELETE", f"/v1/namespaces/{path}", {}),
        ("POST", f"/v1/vector_stores/{path}/search", {"json": {"query": "tea"}}),
    ]
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
        ("GET", "/v1/monitor", {"params": inside}),
        ("POST", "/v1/drift", {"json": inside}),
        ("POST", "/v1/search", {"json": {"query": "tea", **inside, "timing": True}}),
        ("POST", "/v1/search", {"json": {"query": "tea", **inside, "form": "columns"}}),
        ("POST", "/v1/records/fetch", {"json": {"ids": ["shared-id"], **inside}}),
        ("GET", "/v1/count", {"params": inside}),
        ("GET", "/v1/count", {"params": {**inside, "filter": '{"project": "secretproject"}'}}),
        ("PATCH", "/v1/records", {"json": {"ids": ["shared-id"], "changes": {"text": "x"}, **inside}}),
        ("PATCH", "/v1/records", {"json": {"filter": {"role": "x"}, "changes": {"text": "x"}, **inside}}),
        ("DELETE", "/v1/records", {"json": {"filter": {"project": "secretproject"}, **inside}}),
        ("PUT", "/v1/records/shared-id", {"json": {"text": "tea"}, "params": inside}),
        *named,
        *(("POST", one.path, {"json": _placed(one, namespace)}) for one in BY_DECLARATION),
        ("GET", "/v1/export", {"params": inside}),
        post("/v1/restore", name="x", **inside),
        imported(inside, id="shared-id"),
    ]


def _placed(verb: Operation, namespace: str) -> dict[str, Any]:
    """The example of a verb that is offered by its declaration, in this namespace if it is of one."""
    return {name: namespace if name == "namespace" else value for name, value in verb.example.body.items()}


def post(address: str, **body: Any) -> Request:
    """A request with this body."""
    return "POST", address, {"json": body}


def imported(parameters: dict[str, str], **record: Any) -> Request:
    """A request that imports a record."""
    content = json.dumps({"text": "mine", **record})
    return "POST", "/v1/import", {"content": content, "params": parameters, "headers": {"content-type": NDJSON}}


OWN_REQUESTS: list[Request] = [
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
            {"namespace": "acme/ana", "collapse": "project"},
            *(
                {"namespace": "acme/ana", "strategy": strategy, "vector": vector, "weights": {"secretterm": 1.0}}
                for strategy in ("dense", "fused", "sparse", "recall", "dialogue", "softcentroid")
                for vector in ([1.0, 0.0, 0.0], [1.0, 0.0])
            ),
        )
    ),
    ("POST", "/v1/explain", {"json": {"query": "tea secretword", "id": "own", "namespace": "acme/ana"}}),
    ("POST", "/v1/explain", {"json": {"query": "tea", "id": "4-secretid", "namespace": "acme/ana"}}),
    post("/v1/explain", query="tea secretword", id="own", namespace="acme/ana", strategy="recall"),
    *(
        post("/v1/search", queries=["tea secretword", "tea"], form="columns", texts=True, payload=True, **named)
        for named in ({"namespace": "acme/ana"}, {"namespace": "acme/nobody"})
    ),
    post("/v1/search", form="columns", query={"text": "tea", "namespaces": ["acme/ana", "acme/team"]}),
    post("/v1/records/fetch", ids=["own", "4-secretid", "shared-id"], namespace="acme/ana"),
    *(
        ("GET", "/v1/count", {"params": {"namespace": "acme/ana", "filter": filter}})
        for filter in ("{}", '{"project": "secretproject"}', '{"project": {"!=": "secretproject"}}', '{"nothing": 1}')
    ),
    *(
        post(f"/v1/vector_stores/{store}/search", query=["tea secretword", "Zanzibarov"], **more)
        for store in ("acme/ana", "acme%2Fana", "acme/nobody")
        for more in ({}, {"filters": {"type": "ne", "key": "project", "value": "secretproject"}})
    ),
    ("GET", "/v1/records/4-secretid", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/records", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/records", {"params": {"namespace": "acme/ana", "order": "time", "limit": "1"}}),
    ("GET", "/v1/records", {"params": {"namespace": "acme/ana", "order": "nothing"}}),
    ("GET", "/v1/namespaces", {}),
    ("GET", "/v1/stats", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/stats", {"params": {"namespace": "acme/nobody"}}),
    ("GET", "/v1/monitor", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/monitor", {"params": {"namespace": "acme/nobody"}}),
    ("GET", "/v1/strategies", {}),
    *(post(one.path, **_placed(one, space)) for one in BY_DECLARATION for space in ("acme/ana", "acme/nobody")),
    post("/v1/distinct", column="project", namespace="acme/ana"),
    ("GET", "/v1/columns", {}),
    post("/v1/backup", name="x"),
    ("GET", "/v1/backups", {}),
    post("/v1/restore", name="x", namespace="acme/ana"),
    *(("GET", "/v1/export", {"params": {"namespace": space}}) for space in ("acme/ana", "acme/nobody")),
    ("GET", "/v1/export", {}),
    imported({"namespace": "acme/ana"}, id="7-secretid"),
    imported({"namespace": "acme/ana"}, id="own"),
    post("/v1/drift", namespace="acme/ana"),
    post("/v1/drift", namespace="acme/nobody"),
    post("/v1/search", query="tea secretword", namespace="acme/ana", timing=True),
    ("GET", "/v1/stats", {}),
    ("GET", "/metrics", {}),
    ("GET", "/v1/health", {}),
    ("GET", "/v1/ready", {}),
    ("GET", "/openapi.json", {}),
    ("PUT", "/v1/records/5-secretid", {"json": {"text": "mine"}, "params": {"namespace": "acme/ana"}}),
    ("PATCH", "/v1/records", {"json": {"ids": ["6-secretid"], "changes": {"text": "x"}, "namespace": "acme/ana"}}),
    (
        "PATCH",
        "/v1/records",
        {"json": {"filter": {"project": "secretproject"}, "changes": {"importance": 1.0}, "namespace": "acme/ana"}},
    ),
    ("DELETE", "/v1/records", {"json": {"filter": {"project": "secretproject"}, "namespace": "acme/ana"}}),
    ("POST", "/v1/records", {"json": {"records": [{"id": "4-secretid", "text": "mine"}], "namespace": "acme/ana"}}),
    ("POST", "/v1/records", {"json": {"records": [{"id": "shared-id", "text": "mine"}], "namespace": "acme/ana"}}),
    post("/v1/records", records=[{"id": "5-secretid", "text": "x"}], namespace="acme/ana", mode="update"),
    ("DELETE", "/v1/records", {"json": {"ids": ["6-secretid"], "namespace": "acme/ana"}}),
    ("DELETE", "/v1/records/own", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/stats", {"params": {"namespace": "acme/ana"}}),
    ("GET", "/v1/namespaces", {}),
    ("DELETE", "/v1/namespaces/acme/nobody", {}),
    ("DELETE", "/v1/namespaces/acme/team", {}),
    ("GET", "/v1/namespaces", {}),
]  # fmt: skip


@pytest.mark.parametrize("namespace", BEYOND)
def test_what_a_key_does_not_reach_is_refused_alike_whether_it_exists_or_not(
    client: TestClient, namespace: str
) -> None:
    for (method, address, request), (_, _, absent) in zip(
        requests_of(namespace), requests_of("absent/one"), strict=True
    ):
        answer = client.request(method, address, **request)
        if not namespace and ("under" in str(request) or address.startswith("/v1/namespaces")):
            # No path is empty, and the namespace without a name is not dropped.
            assert answer.status_code in (403, 422)
            continue
        assert answer.status_code == 403, (method, address, request, answer.text)
        assert seen(answer) == seen(client.request(method, address, **absent))
        # Its own address is told back to who asks.
        assert not any(secret in json.dumps(seen(answer)) for secret in SECRETS)


def test_what_others_wrote_changes_no_byte_of_an_answer(client: TestClient, kind: str) -> None:
    statuses = set()
    with make_client(kind, OWN) as alone:
        for method, address, request in OWN_REQUESTS:
            answer = client.request(method, address, **request)
            assert seen(answer) == seen(alone.request(method, address, **request)), (method, address, request)
            statuses.add(answer.status_code)
    assert statuses == {200, 201, 403, 404, 409, 422}


def route_of(client: TestClient, method: str, address: str) -> tuple[str, str]:
    """The method and the route's own path that answer a request."""
    scope = {"type": "http", "method": method, "path": unquote(address), "root_path": ""}
    for route in client.app.routes:  # type: ignore[attr-defined]
        if route.matches(scope)[0] is Match.FULL:
            return method, route.path.replace(":any", "")
    raise AssertionError(f"{method} {address} is no route")


def test_every_endpoint_has_rows(client: TestClient) -> None:
    routes = {
        (method, route.path.replace(":any", ""))
        for route in client.app.routes  # type: ignore[attr-defined]
        for method in route.methods - {"HEAD"}
        if route.path not in page.FILES  # They are the same for everybody.
    }
    assert routes >= {(one.method, one.path) for one in operations(Limits())}
    beyond = {route_of(client, *row[:2]) for row in requests_of("globex/bob")}
    within = {route_of(client, *row[:2]) for row in OWN_REQUESTS}
    assert routes - beyond - WITHOUT_NAMESPACE == set()
    assert routes - within == set()


def test_a_cursor_leads_through_its_own_listing_alone(client: TestClient) -> None:
    engine = client.app.state.fanrank.engine  # type: ignore[attr-defined]
    cursor = engine.records(namespace="globex/bob", order="written", reverse=False, limit=1)
    list(cursor)
    for given in (cursor.cursor, "x", json.dumps({"key": 0})):
        answer = client.get("/v1/records", params={"namespace": "acme/ana", "after": given})
        assert answer.status_code == 422
        assert not any(secret in answer.text for secret in (*SECRETS, "globex"))


def test_an_error_of_the_server_says_nothing_of_the_memory(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Mock(side_effect=RuntimeError("secret of globex/bob"))
    monkeypatch.setattr(client.app.state.fanrank.engine, "count", failing)  # type: ignore[attr-defined]
    answer = client.get("/v1/namespaces")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "globex" not in answer.text
