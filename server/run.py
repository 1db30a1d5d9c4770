"""`serve`: an engine's directory behind a socket, until a signal ends it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType, MappingProxyType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..engine.errors import ParameterError, StorageError
from ..engine.memory import Memory
from ..shards.choosing import ShardSettings, is_sharded, is_sharded_memory, open_directory
from .app import Admit, Part, ServerOptions, make_app
from .connections import greeting, protocol_of
from .keys import Keyring, read_keys
from .limits import Limits
from .local import is_loopback
from .logs import Log, logging_to
from .state import State
from .team import Follower, Team
from .workers import Seat, Supervisor, check_workers

HOST, PORT = "127.0.0.1", 8765
LAST_SECONDS = 0.8
"""Seconds after the time for what is under way in which the process ends: half of them for the refusals of the rest."""
SWITCH_SECONDS = 0.0005
"""Seconds for which a thread that computes keeps the interpreter from others. The event loop gives it up with each call
of the system, and got it back after Python's own 5 ms."""
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
    options: ServerOptions | None = None,
) -> None:
    """Serve the directory until SIGINT or SIGTERM; then answer what is under way and close it.

    `keys` is a file of keys; None: everyone on this machine may do everything. Port 0 takes a free one. `announce` is
    called with the server's address once connections are accepted. `parts` makes the parts of `make_app` for the
    engine. `opening` are keywords of `Engine.open`. `shards` says how a sharded memory is opened, or made. `log` takes
    a line for each request, and is closed at the end. `options` are the operator's. A second signal ends the process at
    once.

    Raises `ParameterError` for an address beyond this machine without `keys`, as `read_keys`, as `Engine.open`, and
    `StorageError` for an address that cannot be taken.
    """
    limits, options, seat = limits or Limits(), options or ServerOptions(), Seat.taken()
    keyring = None if keys is None else Keyring(keys)
    if seat is None:
        listeners, reads = open_sockets(host, port, loopback_only=keyring is None), False
    else:
        listeners, announce, reads = seat.listeners(), seat.watch(), not seat.writes
    reads = reads or options.read_only
    try:
        with (
            End(limits) as end,
            nullcontext() if log is None else logging_to(log),
            open_directory(path, shards, wait=False, read_only=reads, **opening) as engine,
        ):
            about: dict[str, Any] = {"log": log, "end": end, "seat": seat, "options": options}
            run_app(engine, listeners, keyring, limits, announce, parts(engine), **about)
    finally:
        for listener in listeners:
            listener.close()


def serve_with_workers(
    path: str | os.PathLike[str],
    workers: int,
    *,
    host: str = HOST,
    port: int = PORT,
    keys: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
    announce: Callable[[str], None] = lambda url: None,
    shards: ShardSettings | None = None,
    secure: bool = False,
) -> int:
    """As `serve`, by several processes, each of which runs this process' command and comes to `serve` in it.

    `secure`: they speak TLS. Returns the exit code. Raises as `serve` what can be told before a worker begins, and
    `ParameterError` for a sharded memory and for a system that has no such sockets.
    """
    check_workers(is_sharded(path) or (shards or ShardSettings()).shards is not None)
    if keys is not None:
        read_keys(keys)
    # A port that another server has is refused, though that one may let others listen there too.
    first = open_sockets(host, port, loopback_only=keys is None)
    url, port = url_of(first, secure), first[0].getsockname()[1]
    for listener in first:
        listener.close()
    bind = partial(open_sockets, host, port, loopback_only=keys is None, shared=True)
    return Supervisor(workers, bind, (limits or Limits()).stop_seconds, partial(announce, url)).run()


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
    seat: Seat | None = None,
    options: ServerOptions | None = None,
) -> None:
    """Serve an engine on bound sockets until a signal. `end` begins with the signal; the others as in `make_server`."""
    server = make_server(engine, admit, limits, parts, rest, log, seat, options)
    server.end = end
    # From here on a connection waits until it is accepted; whoever is told the address may use it.
    for listener in listeners:
        listener.listen(BACKLOG)
    announce(url_of(listeners, options is not None and options.certificate is not None))
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        server.run(sockets=listeners)
    finally:
        sys.setswitchinterval(before)


def make_server(
    engine: Memory,
    admit: Admit | None,
    limits: Limits,
    parts: Sequence[Part] = (),
    rest: bool = True,
    log: Log | None = None,
    seat: Seat | None = None,
    options: ServerOptions | None = None,
) -> Server:
    """What serves an engine. `admit` None: to this machine's own programs and pages.

    `parts`, `rest`, `log` and `options` as in `make_app`. `seat`: as one of several workers, of which this one may only
    read. Raises `ParameterError` for a certificate that cannot be read.
    """
    options = options or ServerOptions()
    follows = (seat is not None and not seat.writes) or (options.read_only and not is_sharded_memory(engine))
    follower = Follower(engine) if follows else None
    if follows:
        options = replace(options, journal=None)  # the one that writes tells of the keys
    if seat is not None and seat.writes:
        engine.monitor.shared = True
    app = make_app(
        engine,
        admit=admit,
        limits=limits,
        local=admit is None,
        parts=parts if follower is None else (*parts, follower.part()),
        rest=rest,
        log=log,
        fresh=None if follower is None else follower.fresh,
        options=options,
    )
    state, protocol = app.state.fanrank, protocol_of(limits, app.state.fanrank.metrics.count_rejected)
    if seat is None:
        return Server(make_config(app, protocol, options), state)
    server = Server(make_config(Team(app, seat, state), protocol, options), state)
    server.inner = seat.inner_socket(), make_config(app, protocol)
    return server


def url_of(listeners: Sequence[socket.socket], secure: bool = False) -> str:
    """The address at which a server is reached; `secure`: by TLS."""
    host, port = listeners[0].getsockname()[:2]
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def make_config(
    app: ASGIApp, protocol: type[HttpToolsProtocol], options: ServerOptions | None = None
) -> uvicorn.Config:
    """How uvicorn serves the application. Raises `ParameterError`."""
    options = options or ServerOptions()
    config = uvicorn.Config(
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
        ssl_certfile=options.certificate,
        ssl_keyfile=options.private_key,
    )
    if options.certificate is not None:
        try:
            config.load()
        except OSError as error:  # an SSLError too
            files = ", ".join(file for file in (options.certificate, options.private_key) if file)
            problem = error.strerror or error
            raise ParameterError(f"{files}: cannot be used for TLS: {problem}; give PEM files of one pair") from None
    return config


class Server(uvicorn.Server):
    """Stops in two steps: what is under way is answered while all else is refused, then the sockets close."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self.state = state
        self.end: End | None = None
        self.stop_at = float("inf")
        self.inner: tuple[socket.socket, uvicorn.Config] | None = None
        """Where other workers of the memory reach this one, and what they reach."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if self.inner is not None:
            inner, config = self.inner
            config.load()
            protocol: Callable[..., asyncio.Protocol] = greeting(config.http_protocol_class)  # type: ignore[arg-type]
            state = self.lifespan.state
            make = partial(protocol, config=config, server_state=self.server_state, app_state=state)
            self.servers.append(await asyncio.get_running_loop().create_server(make, sock=inner))

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


def open_sockets(host: str, port: int, *, loopback_only: bool, shared: bool = False) -> list[socket.socket]:
    """Sockets bound to each address of a host. The addresses are looked up once, and those are the ones bound.

    `shared`: other sockets of this user may be bound to them too, and each gets a part of the connections.

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
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
