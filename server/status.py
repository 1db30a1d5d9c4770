"""The state of the server and of what the caller may read: sizes, counts, drift, strategies."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ..engine.route.policy import MENU
from .access import check_metrics, check_read, check_write, principal_of
from .bodies import read_json, read_parameters, take
from .cancelling import in_thread
from .encoding import json_response
from .exposition import CONTENT_TYPE
from .problems import Problem
from .state import state_of

DRIFT_FIELDS = ("namespace",)


async def stats(request: Request) -> Response:
    """Sizes and work: of one namespace, or of the whole memory for a key that reaches all of it."""
    state, principal = state_of(request), principal_of(request)
    namespace = read_parameters(request, ("namespace",)).get("namespace")
    if namespace is None:
        if principal.patterns is not None:
            raise Problem(403, "NamespaceForbidden", "this key reaches some namespaces; name one", field="namespace")
        answer = await in_thread(request, state.engine.stats)
    else:
        check_read(principal, namespace, "namespace")
        answer = await in_thread(request, partial(state.engine.stats, namespace=namespace))
        # Where a namespace lies depends on what other tenants wrote.
        answer.pop("shards", None)
    answer["pin"] = state.engine.pin
    return Response(json.dumps(answer, default=str), media_type="application/json")


async def columns(request: Request) -> Response:
    """The declared columns and their kinds. They belong to the memory, and every key sees them."""
    state, _ = state_of(request), principal_of(request)
    read_parameters(request, ())
    declared = await in_thread(request, lambda: state.engine.columns)
    return json_response({"columns": declared})


async def metrics(request: Request) -> Response:
    """Counts and times of the whole server, in Prometheus' text format.

    For a server without keys, a key that reaches everything, and a key that was made for it.
    """
    state = state_of(request)
    check_metrics(principal_of(request))
    read_parameters(request, ())
    ready = not state.stopping and not state.engine.opening
    # A thread that no tenant waits for.
    text = await run_in_threadpool(state.metrics.write, state.in_flight, state.body_bytes, ready)
    return Response(text, media_type=CONTENT_TYPE)


async def monitor(request: Request) -> Response:
    """Counts of a namespace's searches since the server began: latencies, hits, fallbacks, failures, backends."""
    state, principal = state_of(request), principal_of(request)
    namespace = read_parameters(request, ("namespace",)).get("namespace", "")
    check_read(principal, namespace, "namespace")
    return json_response(state.engine.health(namespace=namespace).to_dict())


async def drift(request: Request) -> Response:
    """How far a namespace's most frequent terms have moved since the last call.

    The terms of this call are what the next compares with, so it takes a key that may write.
    """
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    body = await read_json(request, state.limits, DRIFT_FIELDS)
    namespace = take(body, "namespace", str, "")
    check_write(principal, namespace, "namespace")
    report = await in_thread(request, partial(state.engine.drift, namespace=namespace))
    return json_response(asdict(report))


async def list_strategies(request: Request) -> Response:
    """The strategies that somebody should pick, each in a few words. A search may name others."""
    principal_of(request)
    read_parameters(request, ())
    listed = [{"name": name, "about": str(one).removeprefix(f"{name}: ")} for name, one in MENU.items()]
    return json_response({"strategies": listed})


async def health(request: Request) -> Response:
    """Whether the process answers. It says nothing of the memory, so it needs no key."""
    return Response('{"status": "alive"}', media_type="application/json")


async def ready(request: Request) -> Response:
    """Whether searches are answered from the index: 503 while it is built, and while the server stops.

    ``writes`` says that the last write was refused, as the disk was full. Searches go on then.
    """
    state = state_of(request)
    if state.stopping or state.engine.opening:
        word = "stopping" if state.stopping else "opening"
        return Response(f'{{"status": "{word}"}}', 503, headers={"Retry-After": "1"}, media_type="application/json")
    full = {"writes": "disk full"} if state.metrics.disk_full else {}
    return json_response({"status": "ready", **full})
