"""How a request passes through one of several workers: read here, carried to the one that writes, or asked of all."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial

import httptools
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..engine.errors import DeadlineError
from ..engine.memory import Memory
from ..engine.offered import TOOL, offered_at
from .app import METRICS, OPEN, Part
from .cancelling import late
from .connections import GREETING
from .encoding import decode
from .problems import Problem, answer_problem, stopping
from .state import BEGAN, DEADLINE, STATE, State, seconds_left
from .workers import Seat

FOLLOW = 0.05
"""Seconds after which a worker without requests looks for writes."""
READ_BY_POST = ("/v1/search", "/v1/explain", "/v1/records/fetch")
"""Addresses whose POST reads."""
READ_BY_GET = ("/v1/records", "/v1/count", "/v1/namespaces", "/v1/strategies")
"""Addresses whose GET any worker answers. What is below `READ_BY_GET[0]` are records."""
STORES = "/v1/vector_stores/"
TOOLS = "/mcp"
WRITING_TOOLS = frozenset(("remember", "forget", *(verb.name for verb in offered_at(TOOL) if verb.writes)))
PEEKED = 64 << 10
"""Bytes of a call of a tool that are looked at. A larger one is carried."""
HOP = frozenset((b"connection", b"keep-alive", b"te", b"upgrade", b"expect", b"transfer-encoding", b"date"))
"""Headers of one connection, not of a request or an answer; and the one that each server writes itself."""
PATIENCE = 2.0
"""Seconds for which another worker's counts are waited for."""


class Follower:
    """Keeps a reading engine up to date: a search that begins after a write was acknowledged sees it."""

    def __init__(self, engine: Memory) -> None:
        self.engine = engine
        self.begun = 0
        self.running: asyncio.Future[None] | None = None

    async def fresh(self, seconds: Callable[[], float | None] = lambda: None) -> None:
        """Return once the engine holds all that was committed when this was called.

        Raises `DeadlineError` after so many seconds, and as `refresh`.
        """
        begun = self.begun
        while self.running is not None or self.behind():
            running = self.running or self.begin()
            # One that was under way may have read before the write, and is no more than the time until the next.
            enough = self.begun > begun
            await asyncio.wait([running], timeout=seconds())
            if not running.done():
                raise late()
            if enough:
                running.result()
                return

    def behind(self) -> bool:
        """Whether something was committed. Searches wait for an index that is loaded, which is up to date then."""
        return not self.engine.opening and self.engine.index.behind()

    def begin(self) -> asyncio.Future[None]:
        self.begun += 1
        self.running = asyncio.ensure_future(asyncio.to_thread(self.engine.refresh))
        self.running.add_done_callback(self.over)
        return self.running

    def over(self, done: asyncio.Future[None]) -> None:
        self.running = None
        if not done.cancelled():
            # Else it would be printed where nobody waits. The next request tries again.
            done.exception()

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow as long as the application runs."""

        async def follow() -> None:
            while True:
                await asyncio.sleep(FOLLOW)
                with suppress(Exception):
                    await self.fresh()

        task = asyncio.ensure_future(follow())
        try:
            yield
        finally:
            task.cancel()

    def part(self) -> Part:
        return Part((), self.following)


class Team:
    """The outermost layer of a worker's application, for what comes from outside: not from another worker."""

    def __init__(self, app: ASGIApp, seat: Seat, state: State) -> None:
        self.app, self.seat, self.state = app, seat, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
        elif scope["path"] == METRICS and scope["method"] == "GET":
            await self.answer_metrics(scope, receive, send)
        elif self.seat.writes or reads(scope["method"], scope["path"]):
            await self.app(scope, receive, send)
        elif scope["path"] == TOOLS:
            peeked, receive_again = await peek(receive)
            await (self.app if calls_reader(peeked) else self.carry)(scope, receive_again, send)
        else:
            await self.carry(scope, receive, send)

    async def carry(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the worker that writes answer. It checks and counts the request as one of its own."""
        self.state.in_flight += 1
        scope[STATE], scope[BEGAN] = self.state, time.monotonic()
        try:
            await carry(self.seat.addresses[0], scope, receive, send, partial(seconds_left, Request(scope)))
        except (Problem, DeadlineError) as error:
            await answer_problem(Request(scope), error)(scope, receive, send)
        finally:
            self.state.in_flight -= 1

    async def answer_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The counts of all workers that answer, each under its number."""

        async def ask(address: str) -> Answer | None:
            answer = Answer()
            with suppress(Problem, DeadlineError, RuntimeError, asyncio.TimeoutError):
                await asyncio.wait_for(carry(address, scope, answer.receive, answer.put, lambda: PATIENCE), PATIENCE)
                return answer
            return None

        answers = dict(enumerate(await asyncio.gather(*map(ask, self.seat.addresses))))
        own = answers[self.seat.number]
        if own is None:
            await answer_problem(Request(scope), stopping())(scope, receive, send)
            return
        if own.status == 200:
            texts = {str(number): one.text for number, one in answers.items() if one is not None and one.status == 200}
            own.text = merge(texts)
        body = own.text.encode()
        headers = [(name, value) for name, value in own.headers if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": own.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def reads(method: str, path: str) -> bool:
    """Whether any worker answers such a request. What is not known to read is carried to the one that writes."""
    if method == "GET":
        return path in READ_BY_GET or path.startswith(f"{READ_BY_GET[0]}/")
    return method == "POST" and (path in READ_BY_POST or (path.startswith(STORES) and path.endswith("/search")))


async def peek(receive: Receive) -> tuple[bytes | None, Receive]:
    """The body of a request, None for a large or broken one; and what receives the same again."""
    messages: list[Message] = []
    size, more = 0, True
    while more and size <= PEEKED:
        messages.append(message := await receive())
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    whole = not more and all(message["type"] == "http.request" for message in messages)
    body = b"".join(message["body"] for message in messages) if whole and size <= PEEKED else None

    async def receive_again() -> Message:
        return messages.pop(0) if messages else await receive()

    return body, receive_again


def calls_reader(body: bytes | None) -> bool:
    """Whether a message to the tools is one that any worker answers."""
    decoded = None if body is None else decode(body)
    message = None if decoded is None else decoded[0]
    if not isinstance(message, dict):
        return False
    parameters = message.get("params")
    name = parameters.get("name") if isinstance(parameters, dict) else None
    return message.get("method") != "tools/call" or name not in WRITING_TOOLS


@dataclass
class Answer:
    """An answer that another worker gave, kept."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    text: str = ""
    asked: bool = False

    async def receive(self) -> Message:
        """An empty body, and a client that never hangs up."""
        if self.asked:
            await asyncio.get_running_loop().create_future()
        self.asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def put(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
        else:
            self.text += message["body"].decode()


class _Parts:
    """What the parser tells of an answer: its head, and the parts of its body."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = self.ended = False
        self.parts: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in HOP:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.begun = True

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.ended = True


async def carry(address: str, scope: Scope, receive: Receive, send: Send, seconds: Callable[[], float]) -> None:
    """Send a request to another worker as it comes, and its answer as it comes back.

    A connection for each: one that is kept may end while a write is sent, which could not be sent again. Nothing is
    sent before the other worker has accepted it. Raises `DeadlineError` where it has not within so many `seconds`,
    `Problem` where no answer begins, and `RuntimeError` where it ends early.
    """
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.setblocking(False)
        try:
            await asyncio.wait_for(_reach(other, address), seconds())
        except asyncio.TimeoutError:
            raise late() from None
        except OSError:
            raise stopping() from None
        await _pass_on(other, scope, receive, send, seconds)


async def _reach(other: socket.socket, address: str) -> None:
    """Return once another worker has accepted the connection. Raises `OSError` where it never will."""
    loop = asyncio.get_running_loop()
    await loop.sock_connect(other, address)
    if await loop.sock_recv(other, len(GREETING)) != GREETING:
        raise ConnectionResetError


async def _pass_on(
    other: socket.socket, scope: Scope, receive: Receive, send: Send, seconds: Callable[[], float]
) -> None:
    loop = asyncio.get_running_loop()
    chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    head = [scope["method"].encode(), b" ", path, b" HTTP/1.1\r\nconnection: close\r\n"]
    for name, value in scope["headers"]:
        if name == DEADLINE.encode():
            # What is left of it.
            value = b"%.9f" % seconds()
        if name not in HOP:
            head += [name, b": ", value, b"\r\n"]
    if chunked:
        head.append(b"transfer-encoding: chunked\r\n")

    async def pump() -> None:
        # An answer may come, and its connection end, before the body is sent. Then the rest of it goes nowhere.
        with suppress(ConnectionError):
            await loop.sock_sendall(other, b"".join(head) + b"\r\n")
        more = True
        while more:
            message = await receive()
            body, more = message.get("body", b""), message.get("more_body", False)
            if message["type"] == "http.disconnect":
                other.shutdown(socket.SHUT_RDWR)
                return
            if body:
                with suppress(ConnectionError):
                    await loop.sock_sendall(other, b"%x\r\n%b\r\n" % (len(body), body) if chunked else body)
        if chunked:
            with suppress(ConnectionError):
                await loop.sock_sendall(other, b"0\r\n\r\n")
        while (await receive())["type"] != "http.disconnect":
            pass
        other.shutdown(socket.SHUT_RDWR)

    pumping = asyncio.ensure_future(pump())
    try:
        await _relay(other, send, body=scope["method"] != "HEAD")
    except RuntimeError:
        # Else the client has hung up, and so the other worker has ended.
        if not pumping.done():
            raise
    finally:
        pumping.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await pumping


async def _relay(other: socket.socket, send: Send, *, body: bool) -> None:
    """`body`: whether one follows the head of the answer. Of HEAD none does, whatever length its headers say."""
    answer = _Parts()
    parser, started = httptools.HttpResponseParser(answer), False
    while not (answer.ended or (started and not body)):
        try:
            data = await asyncio.get_running_loop().sock_recv(other, 1 << 16)
        except ConnectionError:
            data = b""
        if not data and started:
            # uvicorn ends the connection, so that nobody takes the answer for whole.
            raise RuntimeError("the worker that writes ended within an answer")
        if not data:
            detail = "the process that writes ended; whether a write was done is not known"
            raise Problem(503, "WriterLost", detail, headers={"Retry-After": "1"})
        parser.feed_data(data)
        if answer.begun and not started:
            started = True
            status = parser.get_status_code()
            await send({"type": "http.response.start", "status": status, "headers": answer.headers})
        parts, answer.parts = answer.parts, []
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def merge(texts: Mapping[str, str]) -> str:
    """Metrics of several workers as one text, each series with the label of its worker."""
    families: dict[str, list[str]] = {}
    for worker, text in texts.items():
        name, first = "", False
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                first = name not in families
                families.setdefault(name, [])
            if line.startswith("#"):
                if first:
                    families[name].append(line)
                continue
            place = min(found for found in (line.find("{"), line.find(" ")) if found > 0)
            rest = line[place + 1 :] if line[place] == "{" else "} " + line[place + 1 :]
            comma = "," if line[place] == "{" else ""
            families[name].append(f'{line[:place]}{{worker="{worker}"{comma}{rest}')
    return "".join(f"{line}\n" for lines in families.values() for line in lines)
