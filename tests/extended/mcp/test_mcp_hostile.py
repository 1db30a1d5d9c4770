"""Clients of the tools that mean harm: their bodies are counted, timed and bounded as those of any request."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.live import Live, message, read_all, serving, status
from support.threads import until

import fanrank as fr
from fanrank.server.keys import Keyring, add_key
from fanrank.server.limits import Limits
from fanrank.server.mcp import LIMITS
from fanrank.server.mcp_run import make_part


def call(tool: str, **arguments: Any) -> bytes:
    """The body of a call."""
    parameters = {"name": tool, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": parameters}).encode()


def to_tools(body: bytes, *, close: bool = True) -> bytes:
    """A body as it goes over the wire."""
    sent = message(body, close=close, head="Accept: application/json, text/event-stream\r\n")
    return sent.replace(b"/v1/search", b"/mcp", 1)


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    engine = fr.Engine()
    engine.add([{"id": "a", "text": "green tea"}])
    return engine


@pytest.fixture
def live(engine: fr.Engine) -> Iterator[Live]:
    limits = Limits(body_bytes=100_000, bodies_bytes=150_000, body_seconds=600.0, queries=3)
    with serving(engine, limits=limits, parts=lambda engine: [make_part(engine, limits=limits)]) as made:
        yield made
        assert b"green tea" in made.send(to_tools(call("search_memory", queries=["tea"])))
        until(lambda: made.state.body_bytes == 0 and not made.state.in_flight_of)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 90_000, 400),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": ' + b'{"a":' * 9_000, 400),
        (b'{"query": "tea"}', 400),
        (b" " * 100_001, 413),
    ],
    ids=range(7),
)
def test_a_body_that_means_harm_is_refused(live: Live, body: bytes, expected: int) -> None:
    assert status(live.send(to_tools(body))) == expected


def test_bodies_for_the_tools_count_with_all_that_are_held(engine: fr.Engine) -> None:
    with serving(engine, limits=Limits(bodies_bytes=150_000), parts=lambda engine: [make_part(engine)]) as live:
        sent = to_tools(call("search_memory", queries=["tea"]) + b" " * 90_000)
        with live.connect() as first:
            first.sendall(sent[:-3])
            until(lambda: live.state.body_bytes > 80_000)
            assert status(live.send(sent)) == 503
            first.sendall(sent[-3:])
            assert status(read_all(first)) == 200
        until(lambda: live.state.body_bytes == 0)


def test_the_smaller_limits_of_the_tools_and_of_the_server_hold(engine: fr.Engine) -> None:
    with serving(engine, parts=lambda engine: [make_part(engine)]) as live:
        told = b"Content-Length: %d" % (LIMITS.body_bytes + 1)
        assert status(live.send(to_tools(b"").replace(b"Content-Length: 0", told))) == 413
        assert b'"isError":true' in live.send(to_tools(call("search_memory", queries=["tea"] * (LIMITS.queries + 1))))


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_there_is_no_stream_that_holds_a_place(live: Live, method: str) -> None:
    head = f"{method} /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n"
    assert status(live.send(head.encode())) == 405
    assert not live.state.in_flight


@pytest.mark.parametrize(
    ("line", "changed", "expected"),
    [
        (b"application/json\r\n", b"text/plain\r\n", 415),
        (b"Host: localhost", b"Host: evil.example", 403),
        (b"Host: localhost", b"Host: localhost\r\nOrigin: http://evil.example", 403),
    ],
)
def test_pages_of_other_sites_reach_no_tool(live: Live, line: bytes, changed: bytes, expected: int) -> None:
    assert status(live.send(to_tools(call("recent")).replace(line, changed, 1))) == expected


@pytest.mark.parametrize("tool", ["search_memory", "recent", "forgive"])
def test_a_plain_call_is_answered_as_by_the_packages_transport(live: Live, tool: str) -> None:
    """What a client adds for itself takes the transport's way."""
    body = json.loads(call(tool, queries=["tea"]))
    plain = json.loads(live.send(to_tools(json.dumps(body).encode())).partition(b"\r\n\r\n")[2])
    body["params"]["_meta"] = {"mine": 1}
    (line,) = re.findall(rb"^data: (.+)\r$", live.send(to_tools(json.dumps(body).encode())), re.MULTILINE)
    assert plain == json.loads(line)


def test_a_key_of_one_namespace_need_not_name_it(tmp_path: Path) -> None:
    keys = [add_key(tmp_path / "keys", namespaces) for namespaces in (["acme"], ["acme", "other"], ["acme/*"])]
    engine = fr.Engine.from_records([{"id": "a", "text": "green tea", "namespace": "acme"}])
    admit, found = Keyring(tmp_path / "keys"), []
    with serving(engine, admit=admit, parts=lambda engine: [make_part(engine)]) as live:
        for key in keys:
            said = f"\r\nAuthorization: Bearer {key}\r\n".encode()
            sent = to_tools(call("search_memory", queries=["tea"])).replace(b"\r\n", said, 1)
            found.append(b"green tea" in live.send(sent))
    assert found == [True, False, False]
