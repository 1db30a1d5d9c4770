"""A server on a free port of this machine, in a thread of the test."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import fanrank as fr
from fanrank.server.app import Admit, Part, ServerOptions
from fanrank.server.limits import Limits
from fanrank.server.run import Server, make_server, open_sockets
from fanrank.server.state import State
from fanrank.server.workers import Seat

from .threads import PATIENCE


@dataclass
class Live:
    """A server that answers."""

    port: int
    state: State
    server: Server

    def connect(self) -> socket.socket:
        """A connection to it. Whoever waits longer than `PATIENCE` fails."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def send(self, data: bytes) -> bytes:
        """Send bytes, and read until the server ends the connection."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def answers(self) -> bool:
        """Whether a search is answered."""
        return self.send(message(b'{"query": "tea"}')).startswith(b"HTTP/1.1 200")


def message(body: bytes, *, head: str = "", close: bool = True) -> bytes:
    """A search with this body as it goes over the wire."""
    ends = "Connection: close\r\n" if close else ""
    kind = "Content-Type: application/json\r\n"
    lines = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(body)}\r\n{ends}{head}\r\n"
    return lines.encode("latin-1") + body


def read_all(connection: socket.socket) -> bytes:
    """All that the server sends until it ends the connection."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@contextmanager
def serving(
    engine: fr.Engine,
    *,
    admit: Admit | None = None,
    limits: Limits | None = None,
    parts: Callable[[fr.Engine], Sequence[Part]] = lambda engine: (),
    seat: Seat | None = None,
    options: ServerOptions | None = None,
) -> Iterator[Live]:
    """Serve an engine meanwhile."""
    server = make_server(engine, admit, limits or Limits(), parts(engine), seat=seat, options=options)
    listeners = open_sockets("127.0.0.1", 0, loopback_only=True)
    thread = threading.Thread(target=server.run, kwargs={"sockets": listeners})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield Live(listeners[0].getsockname()[1], server.state, server)
    finally:
        server.state.stopping = True
        thread.join(300)
        assert not thread.is_alive()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
