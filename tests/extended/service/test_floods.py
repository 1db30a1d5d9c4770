"""Thousands of requests at once are answered or turned away, and the server answers afterwards."""

import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from support.live import message, serving

import fanrank as fr

PARALLEL = 2_000


def flood(port: int, requests: Sequence[bytes], seconds: float) -> Counter[str]:
    """How often each status came, and each error.

    Opens a connection for each request, all at once, and sends it as soon as the connection stands. Without asyncio:
    its clients take seconds from the connection to the request, and count as slow.
    """
    seen, until = Counter[str](), time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for sent in requests:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
            selector.register(connection, selectors.EVENT_WRITE, Waiting(connection, sent))
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                one: Waiting = key.data
                kind = one.advance()
                if kind is not None:
                    selector.unregister(one.connection)
                    one.end(kind, seen)
                elif one.sent:
                    selector.modify(one.connection, selectors.EVENT_READ, one)
        for key in list(selector.get_map().values()):
            key.data.end("no answer", seen)
    return seen


@dataclass
class Waiting:
    """A connection, the request that it sends, and the beginning of its answer."""

    connection: socket.socket
    request: bytes
    sent: bool = False
    answer: bytes = b""

    def advance(self) -> str | None:
        """Send the request, or read of the answer. Returns what came in the end, at the end."""
        try:
            if not self.sent:
                self.connection.send(self.request)
                self.sent = True
                return None
            part = self.connection.recv(65_536)
        except OSError as error:
            return type(error).__name__
        self.answer = (self.answer + part)[:16]
        return None if part else self.answer[9:12].decode() or "closed"

    def end(self, kind: str, seen: Counter[str]) -> None:
        seen[kind] += 1
        self.connection.close()


def test_thousands_of_requests_at_once_are_answered_or_turned_away() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    engine = fr.Engine()
    engine.add([{"id": str(place), "text": f"tea number {place}"} for place in range(100)])
    with serving(engine) as live:
        answers = flood(live.port, [message(b'{"query": "tea"}')] * PARALLEL, 600.0)
        assert answers["200"] > 0
        assert set(answers) <= {"200", "503"}
        assert answers.total() == PARALLEL
        assert live.answers()
