"""Serves the tools of `server/mcp.py`: over the pipe of the process that began this one, or over HTTP at ``/mcp``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import anyio
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..client.opening import open_with
from ..engine.errors import ParameterError
from ..engine.memory import Memory
from ..shards.choosing import ShardSettings, is_address
from .app import Part
from .bodies import check_json, read_bytes
from .keys import Keyring
from .limits import Limits
from .mcp import Settings, make_mcp
from .run import HOST, End, open_sockets, run_app
from .state import state_of

ADDRESS = "/mcp"


def serve_stdio(
    path: str | os.PathLike[str],
    settings: Settings,
    *,
    opening: Mapping[str, Any] = MappingProxyType({}),
    shards: ShardSettings | None = None,
) -> None:
    """Answer on standard input and output until the input ends. Nothing else is printed there.

    With ``settings.read_only`` the directory is only read, so that any number of processes may serve it, but for a
    sharded memory, which has one owner. `opening` are keywords of `Engine.open`, and `shards` says how a sharded memory
    is opened, or made. Raises as `open_directory`.
    """
    with _open(path, settings, opening, shards) as engine:
        server = make_mcp(engine, replace(settings, refresh=settings.read_only), local=True)
        anyio.run(server.run_stdio_async)


def serve_http(
    path: str | os.PathLike[str],
    settings: Settings,
    *,
    port: int,
    keys: str | os.PathLike[str] | None = None,
    announce: Callable[[str], None] = lambda url: None,
    opening: Mapping[str, Any] = MappingProxyType({}),
    shards: ShardSettings | None = None,
) -> None:
    """Answer on this machine's own address until SIGINT or SIGTERM. `announce` is called with the tools' address.

    `keys` is a file of keys; None: everyone on this machine may do everything. `opening` and `shards` are as
    in `serve_stdio`. Raises as `read_keys`, as `open_directory`, and `StorageError` for a port that cannot be taken.
    """
    if keys is not None and is_address(path):
        raise ParameterError(f"{path}: --keys is for a directory; the server at an address checks its own: say --key")
    keyring = None if keys is None else Keyring(keys)
    listeners = open_sockets(HOST, port, loopback_only=True)
    try:
        with End(settings.limits) as end, _open(path, settings, opening, shards) as engine:
            part = make_part(engine, replace(settings, refresh=settings.read_only))
            run_app(
                engine,
                listeners,
                keyring,
                settings.limits,
                lambda url: announce(url + ADDRESS),
                parts=[part],
                rest=False,
                end=end,
            )
    finally:
        for listener in listeners:
            listener.close()


def make_part(engine: Memory, settings: Settings | None = None, *, limits: Limits | None = None) -> Part:
    """The tools as a part of `make_app`, whose gate says who asks and from where. It may run once.

    `limits` are those of the server beside it, of which the smaller hold.
    """
    settings = settings or Settings()
    if limits is not None:
        settings = replace(settings, limits=settings.limits.least(limits))
    server = make_mcp(engine, settings)
    # Without sessions: each request carries its own key, and nothing is kept between two of them.
    app = server.streamable_http_app(
        streamable_http_path=ADDRESS,
        stateless_http=True,
        max_request_body_size=settings.limits.body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    (route,) = app.routes
    assert isinstance(route, Route)
    # A stream by GET would bring nothing, and hold a place among the requests under way until its client leaves.
    return Part([Route(ADDRESS, WholeBodies(route.app, settings.limits), methods=["POST"])], running)


class WholeBodies:
    """Reads the body of a request within the server's limits before the tools see it.

    The transport of the package mcp does not end a request whose connection breaks within its body.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        check_json(request)
        body = await read_bytes(request, self.limits.least(state_of(request).limits))
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, receive_again, send)


def _open(
    path: str | os.PathLike[str], settings: Settings, opening: Mapping[str, Any], shards: ShardSettings | None
) -> Memory:
    return open_with(path, shards, read_only=settings.read_only, wait=False, **opening)
