"""The application: which endpoint answers which address, and what every request passes through on its way.

::

    request ─ admit (who asks, how many are under way) ─ endpoint ─ asearch, awaited writes ─ response
                 │                                          │
                 └────────────── errors ────────────────────┴── problem document (RFC 9457)

Starlette and not FastAPI: the engine checks what it is given and names what is wrong, so a second model of every
request would only repeat that, and cost time for each query.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..engine.engine import Engine
from ..engine.errors import FanrankError
from . import records, search, status
from .access import ANYONE, PRINCIPAL, Principal
from .limits import Limits
from .problems import RETRY_AFTER, Problem, answer_problem
from .state import State

Endpoint = Callable[[Request], Awaitable[Response]]
Admit = Callable[[Request], Principal]
"""Says who asks. Raises `Problem` for who may not."""

OPEN = ("/v1/health", "/v1/ready")
"""Addresses that answer without a key, also while the server is full."""


def make_app(engine: Engine, *, admit: Admit | None = None, limits: Limits | None = None) -> Starlette:
    """The ASGI application over an engine. `admit` says who asks; None: everyone may do everything."""
    state = State(engine, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        state.stopping = True

    app = Starlette(
        routes=[
            Route("/v1/search", search.search, methods=["POST"]),
            Route("/v1/explain", search.explain, methods=["POST"]),
            Route("/v1/records", records.write, methods=["POST"]),
            Route("/v1/records", records.list_records, methods=["GET"]),
            Route("/v1/records", records.remove, methods=["DELETE"]),
            Route("/v1/records/fetch", records.fetch_many, methods=["POST"]),
            Route("/v1/records/{id:path}", records.fetch, methods=["GET"]),
            Route("/v1/records/{id:path}", records.remove_one, methods=["DELETE"]),
            Route("/v1/count", records.count, methods=["GET"]),
            Route("/v1/namespaces", records.list_namespaces, methods=["GET"]),
            Route("/v1/stats", status.stats, methods=["GET"]),
            Route("/v1/health", status.health, methods=["GET"]),
            Route("/v1/ready", status.ready, methods=["GET"]),
        ],
        exception_handlers={
            Problem: answer_problem,
            FanrankError: answer_problem,
            HTTPException: answer_problem,
            Exception: answer_problem,
        },
        lifespan=lifespan,
    )
    app.state.fanrank = state
    app.add_middleware(Gate, state=state, admit=admit)
    return app


class Gate:
    """What every request passes first: the count of those under way, and who asks."""

    def __init__(self, app: ASGIApp, *, state: State, admit: Admit | None) -> None:
        self.app, self.state, self.admit = app, state, admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        scope["fanrank.began"] = time.monotonic()
        request = Request(scope, receive)
        try:
            if self.state.in_flight >= self.state.limits.in_flight:
                headers = {"Retry-After": RETRY_AFTER}
                raise Problem(503, "OverloadedError", "too many requests are under way; come back", headers=headers)
            scope[PRINCIPAL] = ANYONE if self.admit is None else self.admit(request)
        except Problem as problem:
            await answer_problem(request, problem)(scope, receive, send)
            return
        self.state.in_flight += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.state.in_flight -= 1
