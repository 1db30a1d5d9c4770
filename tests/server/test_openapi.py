"""/openapi.json says what the server does: its routes, fields, statuses, problems and examples."""

import ast
import json
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import jsonschema
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient
from support import source
from support.memories import KINDS, make_memory

import fanrank as fr
from fanrank.server import backups, changes, page, records, search, status, vector_stores
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.limits import Limits
from fanrank.server.openapi import make_document, problem_codes
from fanrank.server.operations import Operation, operations
from fanrank.server.problems import Problem

ALL = operations(Limits())
OPERATIONS = [one for one in ALL if one.endpoint.__module__ != backups.__name__]
"""Those of backups, which need a directory, are in test_operating.py."""
DOCUMENT = make_document(Limits())
ELSEWHERE = {403, 408, 429, 507}
"""Statuses that a server answers only with keys, without them, to a slow client, or with a full disk: other tests meet
them."""


def ask(client: TestClient, operation: Operation, **changed: Any) -> Any:
    """The answer to an operation's example, with other parts of the request where `changed` says so."""
    example = operation.example
    path = operation.path
    for name, value in example.path.items():
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    request: dict[str, Any] = {"params": dict(example.parameters)}
    if operation.sent == search.NDJSON:
        request |= {"content": json.dumps(example.body), "headers": {"content-type": search.NDJSON}}
    elif operation.body is not None:
        request["json"] = example.body
    return client.request(operation.method, path, **{**request, **changed})


def check_answer(operation: Operation, answer: Any, document: dict[str, Any] = DOCUMENT) -> None:
    """Raises `AssertionError` for a status, content type or answer that the document does not have."""
    described = document["paths"][operation.path][operation.method.lower()]["responses"]
    assert str(answer.status_code) in described, f"{operation.name}: {answer.status_code} is not in the document"
    response = described[str(answer.status_code)]
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in response["content"], f"{operation.name}: {kind} is not in the document"
    schema = {**response["content"][kind]["schema"], "components": document["components"]}
    rows = answer.text.splitlines() if kind == search.NDJSON else [answer.text]
    for row in rows:
        errors = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(json.loads(row))]
        assert not errors, f"{operation.name}: {errors}"


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> fr.Engine:
    engine = make_memory(request.param)
    engine.namespace("users/ana").add([*OPERATIONS[0].example.body["records"], fr.Record("notes/1", "A note")])
    return engine


def test_the_served_document_has_the_limits_of_its_server(engine: fr.Engine) -> None:
    with TestClient(make_app(engine, limits=Limits(queries=7))) as client:
        served = client.get("/openapi.json").json()
    body = served["paths"]["/v1/search"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["queries"]["maxItems"] == 7


def test_every_route_is_an_operation(engine: fr.Engine) -> None:
    routes = {
        (method, route.path.replace(":any", ""), route.endpoint)
        for route in make_app(engine).routes
        if isinstance(route, Route) and route.path not in ("/openapi.json", "/metrics", *page.FILES)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert routes == {(one.method, one.path, one.endpoint) for one in ALL}


def test_every_schema_is_one_and_is_there() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for name in set(references(DOCUMENT)):
        part: Any = DOCUMENT
        for step in name.removeprefix("#/").split("/"):
            assert step in part, name
            part = part[step]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (inner for name, inner in value.items() if name == "$ref")
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_field_is_in_the_document() -> None:
    bodies = {one.name: one.body for one in OPERATIONS if one.body is not None}
    known = {
        "writeRecords": records.WRITE_FIELDS,
        "deleteRecords": records.DELETE_FIELDS,
        "patchRecords": changes.PATCH_FIELDS,
        "fetchRecords": records.FETCH_FIELDS,
        "search": search.SEARCH_FIELDS,
        "explain": search.EXPLAIN_FIELDS,
        "drift": status.DRIFT_FIELDS,
    }
    assert {name: set(bodies[name]["properties"]) for name in known} == {name: {*known[name]} for name in known}
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["VectorStoreSearch"]["properties"]) == set(vector_stores.FIELDS)
    for name in ("Record", "OneRecord", "StoredRecord"):
        assert set(schemas[name]["properties"]) == set(fr.Record.__dataclass_fields__), name
    parameters = {one.name: {p["name"] for p in one.parameters if p["in"] == "query"} for one in OPERATIONS}
    assert parameters["countRecords"] == set(records.COUNT_PARAMETERS)
    assert parameters["listRecords"] == set(records.LIST_PARAMETERS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_examples_work_as_written_one_after_another(kind: str) -> None:
    with TestClient(make_app(make_memory(kind))) as client:
        for operation in OPERATIONS:
            answer = ask(client, operation)
            assert answer.status_code in operation.answers, (operation.name, answer.text)
            check_answer(operation, answer)
            if operation.stream is not None:
                check_answer(operation, ask(client, operation, headers={"accept": search.NDJSON}))


def statuses_met(operation: Operation, engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The statuses of the mistakes, refusals and failures that every endpoint may meet; each answer is checked."""

    def no_key(request: Any) -> Principal:
        raise Problem(401, "KeyRequired", "give a key")

    met: list[Any] = []
    for admit in (no_key, lambda request: Principal("nobody", ())):
        with TestClient(make_app(engine, admit=admit)) as client:
            met.append(ask(client, operation))
    full = make_app(engine, limits=Limits(in_flight=1, body_bytes=1_000))
    with TestClient(full) as client:
        met.append(ask(client, operation, params={"unheard": "of"}))
        met.append(ask(client, operation, headers={"fanrank-deadline": "1e-9"}))
        if operation.body is not None:
            typed = {"content-type": "application/json"}
            wrong = (b"{", b" " * 2_000, b"[]")
            met += [ask(client, operation, json=None, content=body, headers=typed) for body in wrong]
            met.append(ask(client, operation, json=None, content=b"{}"))
        full.state.fanrank.in_flight = 1
        met.append(ask(client, operation))
        full.state.fanrank.stopping = True
        met.append(ask(client, operation))
    with monkeypatch.context() as patched, TestClient(make_app(engine), raise_server_exceptions=False) as client:
        # Every endpoint that asks for a key reads who asks, and what it shares with others, first.
        for failing in (None, Mock(side_effect=fr.errors.DeadlineError("shard 1 did not answer by the deadline"))):
            patched.setattr("fanrank.server.access.isinstance", failing, raising=False)
            met.append(ask(client, operation))
    for answer in met:
        check_answer(operation, answer)
    return {answer.status_code for answer in met}


def absent(operation: Operation, client: TestClient) -> Any:
    """The answer where a record is not there, or is there already."""
    body = operation.example.body
    if operation.name == "writeRecords":
        return ask(client, operation, json={**body, "mode": "update", "records": [{"id": "x", "text": ""}]})
    if operation.name == "deleteRecords":
        return ask(client, operation, json={"ids": ["x"]})
    if operation.name == "patchRecords":
        return ask(client, operation, json={**body, "ids": ["x"]})
    if operation.name in ("receipts", "forget"):
        return ask(client, operation, json={"ids": ["x"]})
    if operation.name == "explain":
        return ask(client, operation, json={**body, "id": "x"})
    if operation.name == "importRecords":
        return ask(client, operation, content=json.dumps({**body, "text": "Other words"}))
    if operation.name == "dropColumn":
        client.post("/v1/add_column", json={"name": "project", "kind": "category"})
        return ask(client, operation)
    return ask(client, operation, params={"namespace": "elsewhere"})


@pytest.mark.parametrize("operation", OPERATIONS, ids=attrgetter("name"))
def test_the_document_has_the_statuses_that_the_server_answers_and_no_others(
    operation: Operation, engine: fr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = statuses_met(operation, engine, monkeypatch)
    with TestClient(make_app(engine)) as client:
        for answer in (ask(client, operation), absent(operation, client)):
            check_answer(operation, answer)
            met.add(answer.status_code)
        if operation.name == "writeRecords":
            upsert = {**operation.example.body, "mode": "upsert"}
            met.add(ask(client, operation, json=upsert).status_code)
            met.add(ask(client, operation, json={"records": [{"id": "new", "text": ""}]}).status_code)
    assert met - ELSEWHERE == {*operation.answers, *operation.statuses} - ELSEWHERE


def test_every_problem_is_listed_with_its_status() -> None:
    codes = problem_codes()
    missing = sorted(
        f"{path.name}: {status} {code}"
        for path in (Path(source.ROOT) / "server").glob("*.py")
        for status, code in problems_raised(ast.parse(path.read_text(encoding="utf-8")))
        if code not in codes or status not in codes[code][0]
    )
    assert missing == []
    listed = {status for statuses, _ in codes.values() for status in statuses}
    assert listed >= {status for one in OPERATIONS for status in one.statuses} - ELSEWHERE


def problems_raised(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Status and code of each ``Problem(...)`` that states both."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
            status, code = (part.value if isinstance(part, ast.Constant) else None for part in node.args[:2])
            if isinstance(status, int) and isinstance(code, str):
                yield status, code
