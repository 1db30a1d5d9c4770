"""`serve`: an engine's directory behind a socket, until a signal ends it."""

from __future__ import annotations

import ipaddress
import os

import uvicorn

from ..engine.engine import Engine
from ..engine.errors import ParameterError
from .app import Admit, make_app
from .limits import Limits

HOST, PORT = "127.0.0.1", 8765
GRACE = 30
"""Seconds that requests under way have to end once the server is asked to stop."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    path: str | os.PathLike[str],
    *,
    host: str = HOST,
    port: int = PORT,
    admit: Admit | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve the directory until SIGINT or SIGTERM; then answer what is under way and close it.

    Raises `ParameterError` for an address beyond this machine without `admit`, and as `Engine.open`.
    """
    if admit is None and not is_loopback(host):
        raise ParameterError(f"{host} is reached from other machines: give --keys, or serve on {HOST}")
    with Engine.open(path, wait=False) as engine:
        app = make_app(engine, admit=admit, limits=limits)
        config = uvicorn.Config(
            app, host, port, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE, server_header=False
        )
        uvicorn.Server(config).run()
