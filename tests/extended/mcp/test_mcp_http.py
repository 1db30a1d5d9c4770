"""The tools over HTTP: what holds no place among the requests under way, and no memory."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx2
from starlette.applications import Starlette
from support.serving import running

import fanrank as fr
from fanrank.server.app import make_app
from fanrank.server.limits import Limits
from fanrank.server.mcp_run import make_part

WAIT = 30
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "recent", "arguments": {}}}


def make(**limits: Any) -> Starlette:
    engine = fr.Engine()
    return make_app(engine, local=True, limits=Limits(**limits), parts=[make_part(engine)])


def wait_until_idle(app: Starlette) -> None:
    """Until no request is under way and no body is held."""
    until = time.monotonic() + WAIT
    while app.state.fanrank.in_flight or app.state.fanrank.body_bytes:
        assert time.monotonic() < until, app.state.fanrank
        time.sleep(0.01)


def test_a_connection_that_breaks_within_its_body_ends_its_request() -> None:
    app = make(in_flight=4)
    with running(app) as url, httpx2.Client(trust_env=False, timeout=WAIT) as http:
        where = urlsplit(url)
        head = f"POST /mcp HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: 1000\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        for _ in range(8):
            with socket.create_connection((where.hostname, where.port)) as connection:
                connection.sendall(f"{head}\r\n{{".encode())
                until = time.monotonic() + WAIT
                while not app.state.fanrank.body_bytes:
                    assert time.monotonic() < until
                    time.sleep(0.01)
            wait_until_idle(app)
        assert http.post(f"{url}/mcp", json=CALL, headers=HEADERS).status_code == 200
        wait_until_idle(app)


def test_there_is_no_stream_that_holds_a_place() -> None:
    app = make()
    with running(app) as url, httpx2.Client(trust_env=False, timeout=WAIT) as http:
        for method in ("GET", "DELETE", "PUT"):
            answer = http.request(method, f"{url}/mcp", headers={"accept": "text/event-stream"})
            assert answer.status_code == 405
        wait_until_idle(app)


def test_a_body_is_held_within_the_limits_of_the_server() -> None:
    with running(make(body_bytes=500)) as url, httpx2.Client(trust_env=False, timeout=WAIT) as http:
        large = json.dumps(CALL) + " " * 500
        for headers, body, status in (
            (HEADERS, large, 413),
            ({**HEADERS, "content-type": "text/plain"}, json.dumps(CALL), 415),
            (HEADERS, json.dumps(CALL), 200),
        ):
            assert http.post(f"{url}/mcp", content=body, headers=headers).status_code == status
    with running(make(bodies_bytes=10)) as url, httpx2.Client(trust_env=False, timeout=WAIT) as http:
        assert http.post(f"{url}/mcp", json=CALL, headers=HEADERS).status_code == 503
