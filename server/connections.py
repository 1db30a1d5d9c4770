"""Connections of a server: how many there are, and how long a client may take to send a request or take an answer.

uvicorn ends a connection that is idle between requests. It waits forever for the rest of a request that has begun, and
for a client that does not read; here such a connection ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .limits import Limits

FULL = "TooManyConnections"
"""The problem of a connection beyond the limit."""
LINGER = 2.0
"""Seconds after the time for a body in which the refusal still reaches the client."""
SPARE_FILES = 256
"""Open files that are left to the memory beside the connections."""


def protocol_of(limits: Limits, refuse: Callable[[str], None] = lambda title: None) -> type[H11Protocol]:
    """The protocol that keeps a server's connections within its limits.

    `refuse` is told the problem of a connection that is turned away.
    """
    most = min(limits.connections, _raise_open_files(limits.connections))

    class Protocol(H11Protocol):
        """HTTP/1.1 within limits of time."""

        waiting: asyncio.TimerHandle | None = None
        reading: asyncio.TimerHandle | None = None
        for_body = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                refuse(FULL)
                transport.write(_FULL)
                transport.close()
            else:
                self.wait_for_request()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            self.wait_for_request()

        def wait_for_request(self) -> None:
            """Time the part of a request that is due: its head from the first byte on, then its body."""
            state = self.conn.their_state
            if state is h11.IDLE and self.reading is None:
                self.reading = self.loop.call_later(limits.head_seconds, self.transport.abort)
                self.for_body = False
            elif state is h11.SEND_BODY and not self.for_body:
                self.stop_reading()
                self.reading = self.loop.call_later(limits.body_seconds + LINGER, self.transport.abort)
                self.for_body = True
            elif state not in (h11.IDLE, h11.SEND_BODY):
                self.stop_reading()

        def stop_reading(self) -> None:
            if self.reading is not None:
                self.reading.cancel()
                self.reading = None
            self.for_body = False

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.for_body and self.conn.their_state is h11.IDLE:
                self.stop_reading()

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
