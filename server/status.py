"""``/v1/stats``, ``/metrics``, ``/v1/health``, ``/v1/ready``: the state of the server and of what a caller may read."""

from __future__ import annotations

import json

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from .access import check_metrics, check_read, principal_of
from .bodies import read_parameters
from .exposition import CONTENT_TYPE
from .problems import Problem
from .state import state_of


async def stats(request: Request) -> Response:
    """Sizes and work: of one namespace, or of the whole memory for a key that reaches all of it."""
    state, principal = state_of(request), principal_of(request)
    namespace = read_parameters(request, ("namespace",)).get("namespace")
    if namespace is None:
        if principal.patterns is not None:
            raise Problem(403, "NamespaceForbidden", "this key reaches some namespaces; name one", field="namespace")
        answer = await run_in_threadpool(state.engine.stats)
    else:
        check_read(principal, namespace, "namespace")
        answer = await run_in_threadpool(state.engine.namespace(namespace).stats)
    return Response(json.dumps(answer, default=str), media_type="application/json")


async def metrics(request: Request) -> Response:
    """Counts and times of the whole server, in Prometheus' text format.

    For a server without keys, a key that reaches everything, and a key that was made for it.
    """
    state = state_of(request)
    check_metrics(principal_of(request))
    read_parameters(request, ())
    ready = not state.stopping and not state.engine.opening
    text = await run_in_threadpool(state.metrics.write, state.in_flight, state.body_bytes, ready)
    return Response(text, media_type=CONTENT_TYPE)


async def health(request: Request) -> Response:
    """Whether the process answers. It says nothing of the memory, so it needs no key."""
    return Response('{"status": "alive"}', media_type="application/json")


async def ready(request: Request) -> Response:
    """Whether searches are answered from the index: 503 while it is built, and while the server stops."""
    state = state_of(request)
    if state.stopping or state.engine.opening:
        word = "stopping" if state.stopping else "opening"
        return Response(f'{{"status": "{word}"}}', 503, headers={"Retry-After": "1"}, media_type="application/json")
    return Response('{"status": "ready"}', media_type="application/json")
