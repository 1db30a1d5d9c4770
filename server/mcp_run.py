"""Serves the tools of `server/mcp.py`: over the pipe of the process that began this one, or over HTTP at ``/mcp``."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from ..engine.engine import Engine
from ..engine.errors import ParameterError
from .app import Admit, Part, make_app
from .mcp import Settings, make_mcp
from .run import GRACE, HOST

ADDRESS = "/mcp"


def serve_stdio(path: str | os.PathLike[str], settings: Settings) -> None:
    """Answer on standard input and output until the input ends. Nothing else is printed there.

    With ``settings.read_only`` the directory is only read, so that any number of processes may serve it. Raises as
    `Engine.open`.
    """
    with _open(path, settings) as engine:
        server = make_mcp(engine, replace(settings, refresh=settings.read_only), local=True)
        anyio.run(server.run_stdio_async)


def serve_http(
    path: str | os.PathLike[str],
    settings: Settings,
    *,
    port: int,
    admit: Admit | None = None,
    listening: Callable[[str], None] = lambda url: None,
) -> None:
    """Answer on this machine's own address until SIGINT or SIGTERM. `listening` is called with the URL.

    Raises `ParameterError` for a port that is taken, and as `Engine.open`.
    """
    try:
        bound = socket.create_server((HOST, port))
    except OSError as error:
        raise ParameterError(f"port {port}: {error.strerror or error}; choose another with --port") from None
    with bound, _open(path, settings) as engine:
        part = make_part(engine, replace(settings, refresh=settings.read_only), local_host=True)
        app = make_app(engine, admit=admit, limits=settings.limits, parts=[part], rest=False)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE, server_header=False
        )
        listening(f"http://{HOST}:{bound.getsockname()[1]}{ADDRESS}")
        uvicorn.Server(config).run(sockets=[bound])


def make_part(engine: Engine, settings: Settings, *, local_host: bool) -> Part:
    """The tools as a part of `make_app`, which says who asks. It may run once.

    `local_host`: only requests that name this machine as their host are answered, so that no web page reaches it
    through a name of its own (DNS rebinding).
    """
    server = make_mcp(engine, settings)
    own = [f"{name}:*" for name in ("127.0.0.1", "localhost", "[::1]")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=local_host,
        allowed_hosts=own,
        allowed_origins=[f"http://{host}" for host in own],
    )
    # Without sessions: each request carries its own key, and nothing is kept between two of them.
    app = server.streamable_http_app(
        streamable_http_path=ADDRESS,
        stateless_http=True,
        max_request_body_size=settings.limits.body_bytes,
        transport_security=security,
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    return Part(app.routes, running)


def _open(path: str | os.PathLike[str], settings: Settings) -> Engine:
    return Engine.open(path, read_only=settings.read_only, wait=False)
