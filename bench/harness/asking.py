"""Clients that ask: each sends a fan-out, waits for the answer, and sends the next. Over HTTP they do little more."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

K, FAN_OUT = 10, 20
WARM_SECONDS = 0.3

Ask = Callable[[Sequence[int]], Awaitable[Any]]


async def fire(
    asks: Sequence[Ask], questions: int, seconds: float, seed: int, least: int = FAN_OUT
) -> tuple[list[float], int]:
    """Milliseconds of the fan-outs that all clients had answered within `seconds`, after a warm-up; their queries.

    A fan-out has `least` to `FAN_OUT` queries.
    """
    since = time.perf_counter() + WARM_SECONDS
    until, ms, queries = since + seconds, list[float](), 0

    async def run(number: int, ask: Ask) -> None:
        nonlocal queries
        drawn = random.Random(seed * 10_007 + number)
        while (began := time.perf_counter()) < until:
            size = FAN_OUT if least == FAN_OUT else drawn.randint(least, FAN_OUT)
            await ask(drawn.sample(range(questions), size))
            ended = time.perf_counter()
            if since <= ended < until:
                ms.append(1e3 * (ended - began))
                queries += size

    await asyncio.gather(*(run(number, ask) for number, ask in enumerate(asks)))
    return ms, queries


class Connection(asyncio.Protocol):
    """One connection, and one request at a time on it. It finds where an answer ends, and reads no more of it."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._needed = 0
        self._parts = False
        self._answered: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Any loop's transport.
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._needed and not self._parts:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._data[:end]).lower()
            if b"content-length:" in head:
                self._needed = end + 4 + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            else:
                self._parts = True
        ended = self._data.endswith(b"0\r\n\r\n") if self._parts else len(self._data) >= self._needed
        if ended and self._answered is not None:
            answer, answered = bytes(self._data), self._answered
            self._data.clear()
            self._needed, self._parts, self._answered = 0, False, None
            answered.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionError("the server closed the connection"))

    async def ask(self, request: bytes) -> bytes:
        """The answer, with its head. Raises `RuntimeError` for a status that is no success."""
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._answered
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(answer[:600].decode(errors="replace"))
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Address:
    """Where requests go, and what each says of itself."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        lines = {"Host": f"{parts.hostname}:{parts.port}", "Content-Type": "application/json", **(headers or {})}
        self._head = f"POST {parts.path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in lines.items()
        )

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self.host, self.port)
        return connection

    def request(self, body: str) -> bytes:
        """The bytes of a request."""
        content = body.encode()
        return f"{self._head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def body_of(answer: bytes) -> Any:
    """The JSON of an answer, whole, in parts, or as an event."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"content-length:" not in head.lower():
        whole = b""
        while True:
            size, _, rest = rest.partition(b"\r\n")
            if not int(size, 16):
                break
            whole, rest = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        rest = whole
    if b"text/event-stream" in head.lower():
        rest = b"".join(line[5:] for line in rest.splitlines() if line.startswith(b"data:"))
    return json.loads(rest)
