"""The application: which endpoint answers which address, and what every request passes through on its way.

::

    request ─ watch ─ admit ─ endpoint ─ asearch, awaited writes ─ response
                         │        │
                         └────────┴─ errors ─ problem document (RFC 9457)

`Watch` gives a request its id, and sees its counts, its trace and its line in the log; `Gate` says who asks, and how
many are under way.

Starlette and not FastAPI: the engine checks what it is given and names what is wrong, so a second model of every
request would only repeat that, and cost time for each query.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..engine.errors import FanrankError
from ..engine.memory import Memory
from . import backups, carry, changes, openapi, page, records, search, status, vector_stores, verbs
from .access import ANYONE, PRINCIPAL, UNBOUNDED, Principal, Quota
from .bodies import HELD
from .connections import FULL
from .journal import Journal
from .keys import Keyring
from .limits import Limits
from .local import check_local
from .logs import Log
from .metrics import Metrics
from .problems import RETRY_AFTER, Problem, answer_problem, stopping
from .quotas import Quotas
from .seen import SEEN
from .state import BEGAN, STATE, State, seconds_left
from .watch import Watch, routes_of

Endpoint = Callable[[Request], Awaitable[Response]]
Admit = Callable[[Request], Principal]
"""Says who asks. Raises `Problem` for who may not."""
Fresh = Callable[[Callable[[], float]], Awaitable[None]]
"""Brings an engine that follows another process up to date."""

ALIVE = ("/v1/health", "/v1/ready")
"""Addresses of every application, whatever it serves."""
DIRECT: dict[tuple[str, str], Endpoint] = {
    ("POST", "/v1/search"): search.search,
    ("POST", "/v1/records"): records.write,
}
"""Requests that do not pass the router, which costs 60 calls of functions. Their errors are answered by `Watch`."""
ONE_RECORD = "/v1/records/"
DIRECT_BY_ID: dict[str, Endpoint] = {"PUT": changes.put, "GET": records.fetch, "DELETE": records.remove_one}
"""The same, at the address of one record, whose id follows `ONE_RECORD`."""
METRICS = "/metrics"
"""An address of every application too. It answers those who may ask also while the server is full or stops."""
OPEN = (*ALIVE, "/openapi.json", *page.FILES)
"""Addresses that answer without a key, also while the server is full."""


class AnyText(Convertor[str]):
    """A part of a path with whatever it holds: slashes, and line feeds, which Starlette's own ``path`` leaves out."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", AnyText())


@dataclass(frozen=True)
class Part:
    """Further addresses, behind the same gate, and what runs as long as the application does."""

    routes: Sequence[BaseRoute]
    running: Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class ServerOptions:
    """What an operator sets beside limits and keys."""

    quota: Quota = UNBOUNDED
    """What each namespace may hold."""
    journal: Journal | None = None
    backups: Path | None = None
    """The directory of backups; None: none are made."""
    read_only: bool = False
    """Answer what reads, and refuse what writes."""
    certificate: str | None = None
    """A file in PEM, with the chain. With it the server speaks TLS."""
    private_key: str | None = None
    """Its key, where the same file does not hold it."""


def make_app(
    engine: Memory,
    *,
    admit: Admit | None = None,
    limits: Limits | None = None,
    local: bool = False,
    parts: Sequence[Part] = (),
    rest: bool = True,
    log: Log | None = None,
    fresh: Fresh | None = None,
    options: ServerOptions | None = None,
) -> Starlette:
    """The ASGI application over an engine. `admit` says who asks; None: everyone may do everything.

    `local` refuses what pages of other sites ask for in a browser of this machine. It is for a server without keys.
    `parts` are served as well. Without `rest` they take the place of all but health, readiness and metrics. `log` takes
    a line for each request. `fresh` is awaited before a request, with what says for how many seconds it may take.
    """
    options = options or ServerOptions()
    metrics = Metrics(engine, (*openapi.problem_codes(), FULL))
    state = State(engine, limits or Limits(), metrics, Quotas(engine, options.quota), options.backups)
    journal = options.journal
    if journal is not None and isinstance(admit, Keyring):
        admit.changed = lambda what, name: journal.put({"operation": what, "key": name})
    engine.coalescer.on_launch = metrics.count_launch
    if admit is not None:
        engine.searcher.keep_columns()
    if log is not None:
        metrics.dropped_lines = lambda: log.dropped

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(part.running())
            yield
            state.stopping = True

    app = App(
        routes=[
            Route("/v1/search", search.search, methods=["POST"]),
            Route("/v1/explain", search.explain, methods=["POST"]),
            Route("/v1/records", records.write, methods=["POST"]),
            Route("/v1/records", records.list_records, methods=["GET"]),
            Route("/v1/records", records.remove, methods=["DELETE"]),
            Route("/v1/records", changes.patch, methods=["PATCH"]),
            Route("/v1/records/fetch", records.fetch_many, methods=["POST"]),
            Route("/v1/records/{id:any}", changes.put, methods=["PUT"]),
            Route("/v1/records/{id:any}", records.fetch, methods=["GET"]),
            Route("/v1/records/{id:any}", records.remove_one, methods=["DELETE"]),
            Route("/v1/count", records.count, methods=["GET"]),
            Route("/v1/namespaces", records.list_namespaces, methods=["GET"]),
            Route("/v1/namespaces/{namespace:any}", changes.drop, methods=["DELETE"]),
            Route("/v1/vector_stores/{namespace:any}/search", vector_stores.search, methods=["POST"]),
            Route("/v1/stats", status.stats, methods=["GET"]),
            Route("/v1/export", carry.export, methods=["GET"]),
            Route("/v1/import", carry.import_records, methods=["POST"]),
            Route("/v1/backup", backups.backup, methods=["POST"]),
            Route("/v1/backups", backups.list_backups, methods=["GET"]),
            Route("/v1/restore", backups.restore, methods=["POST"]),
            Route("/v1/columns", status.columns, methods=["GET"]),
            Route(METRICS, status.metrics, methods=["GET"]),
            Route("/v1/monitor", status.monitor, methods=["GET"]),
            Route("/v1/drift", status.drift, methods=["POST"]),
            Route("/v1/strategies", status.list_strategies, methods=["GET"]),
            *(Route(address, endpoint, methods=["POST"]) for address, endpoint in verbs.ROUTES.items()),
            Route("/openapi.json", openapi.serve_document, methods=["GET"]),
            Route("/v1/health", status.health, methods=["GET"]),
            Route("/v1/ready", status.ready, methods=["GET"]),
            *(Route(address, page.serve_page, methods=["GET"]) for address in page.FILES),
        ],
        exception_handlers={
            Problem: answer_problem,
            FanrankError: answer_problem,
            HTTPException: answer_problem,
        },
        lifespan=lifespan,
    )
    if not rest:
        kept = (*ALIVE, METRICS)
        app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) in kept]
    app.router.routes += [route for part in parts for route in part.routes]
    # A redirect would send a body twice, and is a status that no client of an interface expects.
    app.router.redirect_slashes = False
    app.state.fanrank = state
    inner = ExceptionMiddleware(app.router, handlers=app.exception_handlers)
    ways: dict[str, Any] = {"direct": rest, "parts": parts, "read_only": options.read_only}
    gate = Gate(inner, state=state, admit=admit, local=local, fresh=fresh, **ways)
    app.layers = Watch(gate, metrics=metrics, route_of=routes_of(app), log=log, journal=journal)
    return app


class App(Starlette):
    """Starlette with layers of its own. Its outermost one would answer errors, which `Watch` has answered by then."""

    layers: ASGIApp

    def build_middleware_stack(self) -> ASGIApp:
        return self.layers


class Gate:
    """What every request passes first: who asks, and the count of those under way."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        state: State,
        admit: Admit | None,
        local: bool,
        fresh: Fresh | None = None,
        direct: bool = True,
        parts: Sequence[Part] = (),
        read_only: bool = False,
    ) -> None:
        self.app, self.state, self.admit, self.local = app, state, admit, local
        self.fresh, self.direct, self.read_only = fresh, direct, read_only
        routes = [route for part in parts for route in part.routes if isinstance(route, Route)]
        self.parts = {(method, route.path): route.app for route in routes for method in route.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        scope[BEGAN] = time.monotonic()
        request, state = Request(scope, receive), self.state
        try:
            principal = self._admit(request)
        except Problem as problem:
            await answer_problem(request, problem)(scope, receive, send)
            return
        scope[PRINCIPAL], scope[STATE] = principal, state
        seen = SEEN.get()
        if seen is not None:
            seen.key = principal.label or principal.name
        state.in_flight += 1
        state.in_flight_of[principal.name] += 1
        try:
            if self.fresh is not None:
                await self.fresh(partial(seconds_left, request))
            endpoint = _direct_endpoint(scope) if self.direct else None
            if endpoint is None:
                await self.parts.get((scope["method"], scope["path"]), self.app)(scope, receive, send)
            else:
                scope["endpoint"] = endpoint
                await (await endpoint(request))(scope, receive, send)
        finally:
            held = scope.get(HELD, 0)
            state.body_bytes -= held
            state.body_bytes_of[principal.name] -= held
            state.in_flight -= 1
            state.in_flight_of[principal.name] -= 1
            if not state.in_flight_of[principal.name]:
                del state.in_flight_of[principal.name], state.body_bytes_of[principal.name]

    def _admit(self, request: Request) -> Principal:
        """Who asks, if the request may begin. Raises `Problem`."""
        state = self.state
        if self.local:
            check_local(request)
        principal = ANYONE if self.admit is None else self.admit(request)
        if self.read_only:
            principal = replace(principal, write=False, refusal=("ReadOnlyServer", "this server reads alone"))
        if request.scope["path"] == METRICS:
            return principal
        # Of a full server only callers with a key learn.
        headers = {"Retry-After": RETRY_AFTER}
        if state.stopping:
            raise stopping()
        if state.in_flight >= state.limits.in_flight:
            raise Problem(503, "OverloadedError", "too many requests are under way; come back", headers=headers)
        if self.admit is not None and state.in_flight_of[principal.name] >= state.limits.in_flight_per_key:
            detail = "too many requests with this key are under way; come back"
            raise Problem(429, "TooManyRequests", detail, headers=headers)
        return principal


def _direct_endpoint(scope: Scope) -> Endpoint | None:
    """The endpoint of a request that does not pass the router."""
    method, path = scope["method"], scope["path"]
    endpoint = DIRECT.get((method, path))
    if endpoint is None and path.startswith(ONE_RECORD) and (endpoint := DIRECT_BY_ID.get(method)) is not None:
        scope["path_params"] = {"id": path[len(ONE_RECORD) :]}
    return endpoint
