"""How many of fanrank's own functions a small request calls, and how soon its event loop has the interpreter again."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.calls import counted

import fanrank as fr
from fanrank.server import run
from fanrank.server.app import make_app
from fanrank.server.limits import Limits

RECORDS = [fr.Record(f"r{n}", f"alpha beta w{n % 7} gamma") for n in range(500)]


def own_calls(app: Any, method: str, path: str, bodies: list[dict[str, Any]]) -> float:
    """The calls of a request, on its event loop: the mean of all but the first."""

    async def ask(body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        sent = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
        await app(scope, receive, send)
        assert sent[0]["status"] < 300

    async def ask_all() -> int:
        first, *others = bodies
        await ask(first)
        with counted() as calls:
            for body in others:
                await ask(body)
        return calls["own"]

    return asyncio.run(ask_all()) / (len(bodies) - 1)


def test_a_small_write_takes_at_most_91_calls(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add(RECORDS)
        bodies = [{"records": [{"id": f"new{n}", "text": "alpha new thing"}]} for n in range(9)]
        assert own_calls(make_app(engine, local=True), "POST", "/v1/records", bodies) <= 91


def test_a_search_of_one_text_takes_at_most_148_calls() -> None:
    engine = fr.Engine.from_records(RECORDS)
    if engine.backend.name != "native":
        pytest.skip("the compiled loops are not there")
    bodies = [{"query": f"alpha w{n % 7}", "k": 3} for n in range(9)]
    assert own_calls(make_app(engine, local=True), "POST", "/v1/search", bodies) <= 148


def test_threads_of_a_server_change_places_ten_times_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(run.Server, "run", lambda self, sockets: seen.append(sys.getswitchinterval()))
    before, listeners = sys.getswitchinterval(), run.open_sockets(run.HOST, 0, loopback_only=True)
    try:
        run.run_app(fr.Engine(), listeners, None, Limits())
    finally:
        for listener in listeners:
            listener.close()
    assert seen == [pytest.approx(run.SWITCH_SECONDS)]
    assert sys.getswitchinterval() == before
