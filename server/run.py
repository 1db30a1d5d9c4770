"""`serve`: an engine's directory behind a socket, until a signal ends it."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import FrameType, MappingProxyType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..engine.errors import ParameterError, StorageError
from ..engine.memory import Memory
from ..shards.choosing import ShardSettings, open_directory
from .app import Admit, Part, make_app
from .connections import protocol_of
from .keys import Keyring
from .limits import Limits
from .local import is_loopback
from .logs import Log, logging_to
from .state import State

HOST, PORT = "127.0.0.1", 8765
LAST_SECONDS = 0.8
"""Seconds after the time for what is under way in which the process ends: half of them for the refusals of the rest."""
BACKLOG = 2_048
"""Connections that wait to be accepted. The system may have a lower limit of its own."""


def serve(
    path: str | os.PathLike[str],
    *,
    host: str = HOST,
    port: int = PORT,
    keys: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
    announce: Callable[[str], None] = lambda url: None,
    parts: Callable[[Memory], Sequence[Part]] = lambda engine: (),
    opening: Mapping[str, Any] = MappingProxyType({}),
    shards: ShardSettings | None = None,
    log: Log | None = None,
) -> None:
    """Serve the directory until SIGINT or SIGTERM; then answer what is under way and close it.

    `keys` is a file of keys; None: everyone on this machine may do everything. Port 0 takes a free one. `announce` is
    called with the server's address once connections are accepted. `parts` makes the parts of `make_app` for the
    engine. `opening` are keywords of `Engine.open`. `shards` says how a sharded memory is opened, or made. `log` takes
    a line for each request, and is closed at the end. A second signal ends the process at once.

    Raises `ParameterError` for an address beyond this machine without `keys`, as `read_keys`, as `Engine.open`, and
    `StorageError` for an address that cannot be taken.
    """
    limits = limits or Limits()
    keyring = None if keys is None else Keyring(keys)
    listeners = open_sockets(host, port, loopback_only=keyring is None)
    try:
        with (
            End(limits) as end,
            nullcontext() if log is None else logging_to(log),
            open_directory(path, shards, wait=False, **opening) as engine,
        ):
            run_app(engine, listeners, keyring, limits, announce, parts(engine), log=log, end=end)
    finally:
        for listener in listeners:
            listener.close()


class End:
    """Ends the process in time once it is asked to stop, whatever its threads do.

    What was acknowledged is on disk, and the store is whole at any moment, as after a crash.
    """

    def __init__(self, limits: Limits) -> None:
        self.timer = threading.Timer(limits.stop_seconds + LAST_SECONDS, os._exit, [0])
        self.timer.daemon = True

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()


def run_app(
    engine: Memory,
    listeners: list[socket.socket],
    admit: Admit | None,
    limits: Limits,
    announce: Callable[[str], None] = lambda url: None,
    parts: Sequence[Part] = (),
    rest: bool = True,
    log: Log | None = None,
    end: End | None = None,
) -> None:
    """Serve an engine on bound sockets until a signal. `admit` None: to this machine's own programs and pages.

    `parts`, `rest` and `log` as in `make_app`. `end` begins with the signal.
    """
    app = make_app(engine, admit=admit, limits=limits, local=admit is None, parts=parts, rest=rest, log=log)
    # From here on a connection waits until it is accepted; whoever is told the address may use it.
    for listener in listeners:
        listener.listen(BACKLOG)
    host, port = listeners[0].getsockname()[:2]
    announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    config = make_config(app, protocol_of(limits, app.state.fanrank.metrics.count_rejected))
    Server(config, app.state.fanrank, end).run(sockets=listeners)


def make_config(app: Starlette, protocol: type[HttpToolsProtocol]) -> uvicorn.Config:
    """How uvicorn serves the application."""
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_level="error",
        access_log=False,
        # Its own would print the messages of errors, which may quote texts.
        log_config=None,
        timeout_graceful_shutdown=LAST_SECONDS / 2,  # type: ignore[arg-type]
        server_header=False,
        backlog=BACKLOG,
        # An address that a client claims is not believed.
        proxy_headers=False,
    )


class Server(uvicorn.Server):
    """Stops in two steps: what is under way is answered while all else is refused, then the sockets close."""

    def __init__(self, config: uvicorn.Config, state: State, end: End | None = None) -> None:
        super().__init__(config)
        self.state, self.end = state, end
        self.stop_at = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. A second signal ends the process; every write that was acknowledged is on disk by then."""
        if self.state.stopping:
            os._exit(128 + sig)
        self.state.stopping = True
        if self.end is not None:
            self.end.timer.start()
        self.stop_at = time.monotonic() + self.state.limits.stop_seconds

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether the sockets close now."""
        leaves = await super().on_tick(counter)
        ended = self.state.stopping and (self.state.in_flight == 0 or time.monotonic() >= self.stop_at)
        self.should_exit = leaves or ended
        if ended:
            self.state.end()
        return self.should_exit


def open_sockets(host: str, port: int, *, loopback_only: bool) -> list[socket.socket]:
    """Sockets bound to each address of a host. The addresses are looked up once, and those are the ones bound.

    Raises `ParameterError` for an address beyond this machine where `loopback_only`, and `StorageError` where one
    cannot be taken.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ParameterError(f"{host!r} has no address: {error.strerror or error}") from None
    addresses = list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))
    beyond = [address for _, address in addresses if not is_loopback(address)]
    if loopback_only and beyond:
        raise ParameterError(
            f"{host!r} ({beyond[0]}) is reached from other machines: give --keys FILE, which `fanrank keys add` makes, "
            f"or serve on {HOST}"
        )
    listeners: list[socket.socket] = []
    try:
        for family, address in addresses:
            listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # A name with several addresses has one port.
            listener.bind((address, port or listeners[0].getsockname()[1]))
    except OSError as error:
        for listener in listeners:
            listener.close()
        do = "; choose another --port (0: a free one)" if error.errno in (errno.EADDRINUSE, errno.EACCES) else ""
        raise StorageError(f"{host}:{port}: cannot be listened on: {error.strerror or error}{do}") from None
    return listeners
