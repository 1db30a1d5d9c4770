"""The outermost layer of the application: a request's id, its trace, its counts and its line in the log."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

from opentelemetry import context, propagate, trace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .journal import Journal
from .logs import Log
from .metrics import METHODS, OTHER, Metrics
from .problems import answer_problem
from .seen import SEEN, Seen
from .spans import is_traced

REQUEST_ID = "X-Request-Id"
"""The header by which a caller names its request, and by which each answer says the name."""
ABORTED = "none"
"""In place of a status, where a request ended without an answer."""
_NAME = REQUEST_ID.lower().encode()
_SANE = re.compile(rb"[A-Za-z0-9._:-]{1,64}")


class Watch:
    """Sees every request from its head to the end of its answer.

    An error that nothing else answers ends here: further out, uvicorn would print its message, which may quote a text.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        route_of: Callable[[Scope], str | None],
        log: Log | None,
        journal: Journal | None = None,
    ) -> None:
        self.app, self.metrics, self.route_of, self.log, self.journal = app, metrics, route_of, log, journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given, traced = _read_headers(scope)
        seen = Seen(given, keeps_texts=self.log is not None and self.log.texts, journal=self.journal)
        header = (_NAME, given.encode("ascii"))
        status, received, sent = ABORTED, 0, 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def send_counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = str(message["status"])
                message["headers"] = [*message.get("headers", ()), header]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        mine = SEEN.set(seen)
        parent = None
        if traced and is_traced() and not trace.get_current_span().get_span_context().is_valid:
            parent = context.attach(propagate.extract(Request(scope).headers))
        try:
            await self.app(scope, receive_counted, send_counted)
        except Exception as error:
            answer = answer_problem(Request(scope), error)
            if status != ABORTED:
                # A part of the answer is sent. uvicorn ends the connection, and prints this in place of the error.
                raise RuntimeError("an answer ended early; the server's log says why") from None
            await answer(scope, receive_counted, send_counted)
        finally:
            if parent is not None:
                context.detach(parent)
            SEEN.reset(mine)
            self._end(scope, seen, status, received, sent)

    def _end(self, scope: Scope, seen: Seen, status: str, received: int, sent: int) -> None:
        now = time.perf_counter()
        seen.route = self.route_of(scope)
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self.metrics.count_request(seen, method, status, received, sent, now)
        if self.log is not None and not self.log.silent:
            self.log.put_request(seen, method, status, now)


def _read_headers(scope: Scope) -> tuple[str, bool]:
    """The id of a request, its own where it is sane, and whether it says of which trace it is a part."""
    ids, traced = [], False
    for name, value in scope["headers"]:
        if name == _NAME:
            ids.append(value)
        elif name == b"traceparent":
            traced = True
    if len(ids) == 1 and _SANE.fullmatch(ids[0]):
        return ids[0].decode("ascii"), traced
    return os.urandom(8).hex(), traced


def routes_of(app: Starlette) -> Callable[[Scope], str | None]:
    """What tells the template of a request's address: a bounded set, without ids or namespaces."""
    templates: dict[int, str] = {}
    fixed: set[str] = set()

    def route_of(scope: Scope) -> str | None:
        if not templates:
            # The endpoint as a request has it, which is the route's own.
            templates.update(
                {id(route.endpoint): route.path_format for route in app.router.routes if isinstance(route, Route)}
            )
            fixed.update(
                template for route in app.router.routes if "{" not in (template := getattr(route, "path", "{"))
            )
        # The files of the page have one endpoint, and each an address.
        if scope["path"] in fixed:
            return str(scope["path"])
        endpoint = scope.get("endpoint")
        if endpoint is None:
            # Turned away before it was routed.
            found = [route for route in app.router.routes if route.matches(scope)[0] is not Match.NONE]
            endpoint = getattr(found[0], "endpoint", None) if found else None
        return templates.get(id(endpoint))

    return route_of
