"""Connections of a server: how many there are, and how long a client may take to send a request or take an answer.

uvicorn ends a connection that is idle between requests. It waits forever for the rest of a request that has begun, and
for a client that does not read; here such a connection ends.

httptools parses, and not h11: a request and its answer of 10 KB take 60 us, not 152. It sets no bound on the size of a
head, takes requests that name no host or two, reads trailers as headers, and ends its work at a wish for another
protocol. That is all done here.
"""

from __future__ import annotations

import asyncio
import enum
import json
import sys
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .limits import Limits

FULL = "TooManyConnections"
"""The problem of a connection beyond the limit."""
LINGER = 2.0
"""Seconds after the time for a body in which the refusal still reaches the client."""
LARGE = 64 << 10
"""Bytes of a part of an answer that is not copied behind its head."""
GREETING = b"\n"
"""What a worker says to another one that has reached it."""
SPARE_FILES = 256
"""Open files that are left to the memory beside the connections."""


class Due(enum.Enum):
    """The part of a request that a connection waits for."""

    HEAD = enum.auto()
    BODY = enum.auto()
    NOTHING = enum.auto()
    """The last request is whole, and no byte of another has come."""


def protocol_of(limits: Limits, refuse: Callable[[str], None] = lambda title: None) -> type[HttpToolsProtocol]:
    """The protocol that keeps a server's connections within its limits.

    `refuse` is told the problem of a connection that is turned away.
    """
    most = min(limits.connections, _raise_open_files(limits.connections))

    class Protocol(HttpToolsProtocol):
        """HTTP/1.1 within limits of time and size."""

        joined: Joined
        due = Due.HEAD
        timed = Due.NOTHING
        """What `reading` is the time of."""
        reading: asyncio.TimerHandle | None = None
        waiting: asyncio.TimerHandle | None = None
        head_size = 0
        """Bytes of the address and headers so far."""
        held = 0
        """Bytes that the parser may hold: of those that came, it has passed nothing on since."""
        wished = False
        """Whether the request asks for another protocol, which the parser then waits for."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.joined = self.transport = Joined(transport)  # type: ignore[assignment]
            if len(self.connections) > most:
                refuse(FULL)
                transport.write(_FULL)
                transport.close()
            else:
                self.time_reading()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self.due is Due.NOTHING:
                self.due = Due.HEAD
            if self.timeout_keep_alive_task is not None:
                self.timeout_keep_alive_task.cancel()
                self.timeout_keep_alive_task = None
            self.held += len(data)
            try:
                self.parse(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self.send_400_response("Invalid HTTP request received.")
            if self.held > limits.head_bytes and not self.transport.is_closing():
                self.send_400_response("Invalid HTTP request received.")
            self.time_reading()

        def parse(self, data: bytes) -> None:
            """Read what came. Raises `HttpParserError`, and `HttpParserUpgrade` for a second wish in one piece."""
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                # Java's client wishes for HTTP/2 with its first request. A new parser reads the request without that.
                head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
                for name, value in self.headers:
                    if name != b"connection":
                        head += [name, b": ", value, b"\r\n"]
                    elif b"close" in value.lower():
                        head.append(b"connection: close\r\n")
                self.wished = False
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(b"".join(head) + b"\r\n" + data[stopped.args[0] :])

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.due = Due.HEAD
            self.head_size = 0

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            self.count_head(len(url))

        def on_header(self, name: bytes, value: bytes) -> None:
            # A field that comes after the body is a trailer. RFC 9110, 6.5.1, forbids to read it as a header, which a
            # proxy before the server may have checked.
            if self.due is Due.HEAD:
                name = name.lower()
                if name == b"expect" and value.lower() == b"100-continue":
                    self.expect_100_continue = True
                self.headers.append((name, value))
            # As `count_head`. A request has ten headers, so a call of each counts.
            self.held = 0
            self.head_size += len(name) + len(value)
            if self.head_size > limits.head_bytes:
                raise ValueError("the head is too large")

        def count_head(self, size: int) -> None:
            """Count a part of the head that is whole. What is raised within the parser is answered by 400."""
            self.held = 0
            self.head_size += size
            if self.head_size > limits.head_bytes:
                raise ValueError("the head is too large")

        def on_headers_complete(self) -> None:
            version = self.parser.get_http_version()
            hosts = [name for name, _ in self.headers].count(b"host")
            if version not in ("1.0", "1.1") or hosts > 1 or (version == "1.1" and not hosts):
                raise ValueError("the request names no host, or two")
            self.wished = self.parser.should_upgrade()
            if not self.wished:
                super().on_headers_complete()
                self.due = Due.BODY

        def on_body(self, body: bytes) -> None:
            self.held = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self.held = 0
            if not self.wished:
                super().on_message_complete()
                self.due = Due.NOTHING

        def time_reading(self) -> None:
            """Time the part of a request that is due: its head from the first byte on, then its body."""
            if self.due is self.timed:
                return
            self.stop_reading()
            if self.due is not Due.NOTHING:
                seconds = limits.head_seconds if self.due is Due.HEAD else limits.body_seconds + LINGER
                self.reading = self.loop.call_later(seconds, self.transport.abort)
            self.timed = self.due

        def stop_reading(self) -> None:
            if self.reading is not None:
                self.reading.cancel()
                self.reading = None
            self.timed = Due.NOTHING

        def on_response_complete(self) -> None:
            # An answer to HEAD has no body.
            self.joined.flush()
            super().on_response_complete()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self.loop.call_later(limits.answer_seconds, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            self.waiting = self.loop.call_later(limits.answer_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self.stop_waiting()

        def stop_waiting(self) -> None:
            if self.waiting is not None:
                self.waiting.cancel()
                self.waiting = None

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_reading()
            self.stop_waiting()
            super().connection_lost(exc)

    return Protocol


class Joined:
    """A transport that sends the head of an answer with the first part of its body: one call of the system, not two.

    Each takes 20 to 70 us, and wakes the client.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if len(data) > LARGE:
                self._transport.write(head)
            else:
                data = head + data
        elif data.startswith(_HEAD) and not data.startswith(_CONTINUE):
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send a head without a body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


_HEAD, _CONTINUE = b"HTTP/1.1 ", b"HTTP/1.1 100 "


def greeting(protocol: type[HttpToolsProtocol]) -> type[HttpToolsProtocol]:
    """The protocol by which other workers reach this one: a byte says that a connection was accepted.

    The system accepts for a process that is gone, and keeps what it is sent for the one in its place.
    """

    class Greeting(protocol):  # type: ignore[valid-type, misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            transport.write(GREETING)
            super().connection_made(transport)

    return Greeting


def _raise_open_files(wanted: int) -> int:
    """Let the process open files for so many connections, and return how many connections it can have.

    A memory that cannot open its files refuses writes, so connections must not use them up.
    """
    if sys.platform == "win32":
        return wanted
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    limit = wanted + SPARE_FILES if hard == resource.RLIM_INFINITY else min(wanted + SPARE_FILES, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(1, max(soft, limit) - SPARE_FILES)


def _full() -> bytes:
    document: dict[str, Any] = {
        "type": f"urn:fanrank:{FULL}",
        "title": FULL,
        "status": 503,
        "detail": "the server has as many connections as it may; come back",
    }
    body = json.dumps(document).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_FULL = _full()
