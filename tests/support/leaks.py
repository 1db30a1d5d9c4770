"""Two memories that differ in what other tenants wrote, and all that a caller sees of an answer."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from starlette.testclient import TestClient
from support.memories import make_memory

import fanrank as fr
from fanrank.server.access import Principal
from fanrank.server.app import Part, make_app

Request = tuple[str, str, dict[str, Any]]
"""Method, address, and what else the client is told."""
OWN = [
    {"id": "shared-id", "text": "Ana drinks green tea", "namespace": "acme/ana", "session": "s", "time": 86400.0},
    {"id": "own", "text": "the tea of Ana is cold", "namespace": "acme/ana", "session": "s", "project": "tea"},
    {"id": "team", "text": "a team drinks tea on Monday", "namespace": "acme/team", "payload": {"n": 1}},
]
# "acme" and "acmecorp" begin like what the key reaches, and are others'.
OTHERS = [
    {"id": f"{place}-secretid", "text": f"tea secretword Zanzibarov drinks tea {place}", "namespace": name,
     "project": "secretproject", "session": "secretsession", "time": 99.0 + place, "payload": {"secretkey": "x"},
     "type": "Event", "entities": {"Zanzibarov": "secretentity"}, "importance": 0.9, "nothing": "secretvalue",
     "embedding": [0.1, 0.2, 0.3], "weights": {"secretterm": 1.0}}
    for place, name in enumerate(
        ["", "acme", "acmecorp", "acmecorp/ana", "globex/bob", "globex/bob", "globex/secretns"]
    )
]  # fmt: skip
OTHERS += [{"id": "shared-id", "text": "secretword", "namespace": "globex/bob"}]
BEYOND = ["", "acme", "acmecorp", "acmecorp/ana", "globex/bob", "globex/secretns", "nobody", "globex"]
SECRETS = ("secret", "Zanzibarov")
KEY = Principal("a", ("acme/*",))


def make_client(
    kind: str,
    records: list[dict[str, Any]],
    principal: Principal = KEY,
    parts: Callable[[Any], Sequence[Part]] = lambda engine: (),
) -> TestClient:
    engine = make_memory(kind, columns={"project": "category"}, encoder=fr.OwnVectors(3))
    engine.add(records)
    app = make_app(engine, admit=lambda request: principal, parts=parts(engine))
    return TestClient(app, raise_server_exceptions=False)


def without_times(value: Any) -> Any:
    """An answer without what differs from one run to the next: the time it took, the bytes of a sealed cursor, and the
    address that was asked for.
    """
    if isinstance(value, dict):
        left_out = ("milliseconds", "instance", "uri", "timing", "p50", "p95", "p99", "buckets")
        kept = {name: without_times(inner) for name, inner in value.items() if name not in left_out}
        if kept.get("after") is not None:
            kept["after"] = len(kept["after"])
        return kept
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def seen(answer: httpx.Response) -> tuple[int, dict[str, str], Any]:
    """All that a caller sees of an answer, without the number that every request has."""
    varies = ("content-length", "x-request-id")
    headers = {name: value for name, value in answer.headers.items() if name not in varies}
    return answer.status_code, headers, without_times(content_of(answer))


def content_of(answer: httpx.Response) -> Any:
    """The JSON of an answer, which a tool sends as an event, and of each line of a stream."""
    if "ndjson" in answer.headers["content-type"]:
        return [json.loads(line) for line in answer.content.splitlines()]
    return json.loads(answer.text.partition("data: ")[2] if answer.text.startswith("event:") else answer.text)
