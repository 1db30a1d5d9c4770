"""A key of one tenant never shows a byte of another by a tool or a resource. One without a row here fails."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from support.leaks import BEYOND, OTHERS, OWN, Request, content_of, make_client, seen
from support.memories import KINDS

from fanrank.server.mcp_run import make_part


def with_tools(kind: str, records: list[dict[str, Any]]) -> TestClient:
    return make_client(kind, records, parts=lambda engine: [make_part(engine)])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str) -> Iterator[TestClient]:
    with with_tools(kind, [*OTHERS, *OWN]) as made:
        yield made


MCP_HEAD = {"accept": "application/json, text/event-stream"}


def tool(name: str, **arguments: Any) -> Request:
    """A call of a tool."""
    return message("tools/call", {"name": name, "arguments": arguments})


def resource(namespace: str, name: str) -> Request:
    """A record as a resource."""
    return message("resources/read", {"uri": f"memory://{quote(namespace, safe='')}/{quote(name, safe='')}"})


def message(method: str, parameters: dict[str, Any]) -> Request:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
    return "POST", "/mcp", {"json": message, "headers": MCP_HEAD}


def calls_of(namespace: str) -> list[Request]:
    """Each tool, and a resource, asked for this namespace."""
    inside = {"namespace": namespace}
    return [
        tool("search_memory", queries=["tea", "secretword"], payload=True, **inside),
        tool("recent", payload=True, **inside),
        tool("explain", query="tea", id="shared-id", **inside),
        tool("remember", records=[{"id": "shared-id", "text": "x"}], **inside),
        tool("remember", records=[{"id": "shared-id", "text": "x"}], replace=True, **inside),
        tool("forget", ids=["shared-id", "4-secretid"], **inside),
        *(tool(name, **about, **inside) for name, about in BY_DECLARATION.items()),
        resource(namespace, "shared-id"),
    ]


BY_DECLARATION: dict[str, Any] = {
    "audit": {},
    "distinct": {"column": "project"},
    "update_where": {"filter": {"project": "secretproject"}, "changes": {"importance": 1.0}},
    "delete_where": {"filter": {"project": "secretproject"}},
}

OWN_CALLS: list[Request] = [
    message("tools/list", {}),
    message("resources/list", {}),
    message("resources/templates/list", {}),
    *(
        tool("search_memory", queries=["tea secretword", "Zanzibarov"], namespace="acme/ana", **more)
        for more in ({}, {"payload": True}, {"strategy": "recall"}, {"strategy": "dense"},
                     {"filter": {"project": "secretproject"}}, {"since": "1970-01-01"})
    ),
    tool("recent", namespace="acme/ana", n=50, payload=True),
    tool("recent", namespace="acme/nobody"),
    *(tool(name, **about, namespace="acme/ana") for name, about in BY_DECLARATION.items()),
    tool("explain", query="tea secretword", id="own", namespace="acme/ana"),
    tool("explain", query="tea", id="4-secretid", namespace="acme/ana"),
    resource("acme/ana", "own"),
    resource("acme/ana", "4-secretid"),
    tool("remember", records=[{"id": "4-secretid", "text": "mine", "time": "2026-01-01"}], namespace="acme/ana"),
    tool("forget", ids=["5-secretid", "own"], namespace="acme/ana"),
    tool("recent", namespace="acme/ana"),
]  # fmt: skip


def test_what_others_wrote_changes_no_byte_of_a_tools_answer(client: TestClient, kind: str) -> None:
    with with_tools(kind, OWN) as alone:
        for method, address, request in OWN_CALLS:
            answer = client.request(method, address, **request)
            assert answer.status_code == 200, answer.text
            assert seen(answer) == seen(alone.request(method, address, **request)), request


@pytest.mark.parametrize("namespace", BEYOND)
def test_a_tool_refuses_what_a_key_does_not_reach_alike_whether_it_exists_or_not(
    client: TestClient, namespace: str
) -> None:
    for (method, address, request), (_, _, absent) in zip(calls_of(namespace), calls_of("absent/one"), strict=True):
        answer = client.request(method, address, **request)
        assert "this key reaches acme/* alone" in answer.text, answer.text
        assert seen(answer) == seen(client.request(method, address, **absent))


def test_every_tool_and_resource_has_rows(client: TestClient) -> None:
    def names(method: str, kind: str) -> set[str]:
        answer = client.request("POST", "/mcp", **message(method, {})[2])
        return {one["name"] for one in content_of(answer)["result"][kind]}

    for rows in (calls_of("globex/bob"), OWN_CALLS):
        messages = [row[2]["json"] for row in rows]
        assert {one["params"]["name"] for one in messages if one["method"] == "tools/call"} == names(
            "tools/list", "tools"
        )
        assert any(one["method"] == "resources/read" for one in messages)
    assert names("resources/templates/list", "resourceTemplates") == {"record"}
    assert names("resources/list", "resources") == set()
