"""``GET /v1/export`` and ``POST /v1/import``: records as JSON lines, in streams of any length.

A thread writes or reads the memory, the event loop sends or receives; each waits for the other where a few parts lie
between them, so neither holds more of a stream than that. Whoever waits for a slow client holds one of few threads,
which are for nothing else.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from json import dumps
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..engine.carry.importing import read
from ..engine.carry.json_lines import split_lines
from ..engine.carry.rows import Carried
from ..engine.errors import QuotaError, RecordError
from ..engine.records.record import Record
from .access import check_reach, principal_of
from .bodies import read_filter, read_parameters
from .cancelling import hung_up, in_thread
from .encoding import encode
from .journal import journaled
from .limits import Limits
from .problems import Problem, as_problem
from .quotas import Hold, counted
from .record_limits import check_record
from .search import NDJSON
from .seen import note_problem
from .state import state_of

EXPORT_PARAMETERS = ("namespace", "filter", "vectors")
IMPORT_PARAMETERS = ("namespace", "upsert", "resume")
SENT = 64 << 10
"""Bytes that an export sends at once."""
BETWEEN = 4
"""Parts that lie between a thread and the event loop."""


class Outlet:
    """A file that a thread writes, and whose parts the event loop takes."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.room = threading.Semaphore(BETWEEN)
        self.ended = False
        self._held = bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        if len(self._held) >= SENT:
            self.flush()
        return len(data)

    def flush(self) -> None:
        self.room.acquire()
        if self.ended:
            raise hung_up()
        self.loop.call_soon_threadsafe(self.parts.put_nowait, bytes(self._held))
        self._held.clear()

    def close(self, written: asyncio.Future[None]) -> None:
        """Let nothing follow."""
        if not written.cancelled():
            written.exception()  # else it would be printed where the client has hung up, and nobody asks
        self.parts.put_nowait(None)

    def end(self) -> None:
        """Nobody takes parts any more: let the thread that writes fail."""
        self.ended = True
        self.room.release()

    async def take(self) -> bytes | None:
        """The next part; None where nothing follows."""
        part = await self.parts.get()
        self.room.release()
        return part


class Inlet:
    """A file that the event loop fills, and whose lines a thread reads."""

    def __init__(self, limits: Limits) -> None:
        self.loop, self.limits = asyncio.get_running_loop(), limits
        self.parts: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        self.room = asyncio.Semaphore(BETWEEN)

    def __iter__(self) -> Iterator[bytes]:
        return split_lines(iter(self.read, b""), self.limits.body_bytes)

    def read(self) -> bytes:
        """The next part, empty at the end. Raises what the filling raised."""
        part = self.parts.get()
        if isinstance(part, Exception):
            raise part
        with suppress(RuntimeError):  # the loop is closed, and nobody fills
            self.loop.call_soon_threadsafe(self.room.release)
        return part

    async def fill(self, request: Request) -> None:
        """Put the body of the request here, to its end."""
        ended: bytes | Exception = b""
        try:
            stream = request.stream()
            while part := await asyncio.wait_for(anext(stream), self.limits.body_seconds):
                await self.room.acquire()
                self.parts.put(part)
        except ClientDisconnect:
            ended = hung_up()
        except asyncio.TimeoutError:
            seconds = self.limits.body_seconds
            ended = RecordError(f"the next part of the body did not arrive within {seconds:g} s")
        except asyncio.CancelledError:
            ended = hung_up()
            raise
        finally:
            self.parts.put(ended)


class _Stream(StreamingResponse):
    """Lets the thread behind it end, however the connection does."""

    def __init__(self, content: AsyncIterator[bytes], outlet: Outlet) -> None:
        super().__init__(content, media_type=NDJSON)
        self.outlet = outlet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.outlet.end()


async def export(request: Request) -> Response:
    """All records of a namespace, or of the memory, oldest first and as of one moment, each a line with all its fields.

    An error before the first record is a problem; a later one is the last line, under `problem`.
    """
    state, principal = state_of(request), principal_of(request)
    given = read_parameters(request, EXPORT_PARAMETERS)
    namespace = given.get("namespace")
    check_reach(principal, namespace, write=False)
    filter = read_filter(given["filter"], state.limits) if "filter" in given else None
    options: dict[str, Any] = {"namespace": namespace, "filter": filter, "vectors": _flag(given, "vectors", True)}
    outlet = Outlet()

    def work() -> None:
        state.engine.export(outlet, **options)  # type: ignore[arg-type]
        outlet.flush()

    task = asyncio.ensure_future(in_thread(request, work, threads=state.carriers, finish=True, watched=False))
    task.add_done_callback(outlet.close)
    try:
        head = await outlet.take()
    except BaseException:
        outlet.end()
        raise
    if head is None:
        await task

    async def parts() -> AsyncIterator[bytes]:
        part = head
        while part is not None:
            yield part
            part = await outlet.take()
        try:
            await task
        except Exception as error:
            problem = as_problem(error)
            note_problem(problem.code)
            yield encode({"problem": problem.document(request)}) + b"\n"

    return _Stream(parts(), outlet)


async def import_records(request: Request) -> Response:
    """Add the records of a stream of lines, as an export gives them, in durable batches.

    A record that is there as it is is passed over, so that an import that broke is simply sent again. An error stops it
    at its record; the problem says how many were written before.
    """
    state, principal = state_of(request), principal_of(request)
    given = read_parameters(request, IMPORT_PARAMETERS)
    namespace = given.get("namespace")
    check_reach(principal, namespace, write=True)
    options: dict[str, Any] = {"upsert": _flag(given, "upsert", False), "resume": _flag(given, "resume", True)}
    sent = request.headers.getlist("content-type")
    if len(sent) != 1 or sent[0].partition(";")[0].strip().lower() != NDJSON:
        raise Problem(415, "UnsupportedMediaType", f"send the body with Content-Type: {NDJSON}")
    inlet = Inlet(state.limits)
    hold, count = Hold(), None
    if state.quotas.bind(principal):
        count = partial(counted, state.quotas, principal, hold)
    records = _checked(read(inlet, "jsonl"), namespace, state.limits, count)  # type: ignore[arg-type]
    work = partial(state.engine.import_records, records, **options)
    filling = asyncio.ensure_future(inlet.fill(request))
    try:
        with journaled("import", (namespace,)) as line:
            done = await in_thread(request, work, threads=state.carriers, finish=True, watched=False)
            line |= asdict(done)
    finally:
        filling.cancel()
        # Where it broke off, some of it is written.
        state.quotas.settle(hold, True)
    return Response(dumps(asdict(done)), media_type="application/json")


def _flag(given: dict[str, str], name: str, default: bool) -> bool:
    said = given.get(name, str(default).lower())
    if said not in ("true", "false"):
        raise Problem(422, "InvalidField", f"{name} must be true or false", field=name)
    return said == "true"


def _checked(
    records: Iterator[Carried], namespace: str | None, limits: Limits, count: Callable[[Record], None] | None
) -> Iterator[Carried]:
    """The records, within the limits; those that name no namespace belong to the one that is given.

    `count` raises where there is a quota that a record would exceed.
    """
    for carried in records:
        record = carried.record
        if namespace is not None and record.namespace not in ("", namespace):
            raise RecordError(f"names another namespace than {namespace!r}", where=carried.where, record_id=record.id)
        if namespace and not record.namespace:
            record = replace(record, namespace=namespace)
        try:
            check_record(record, None, limits, payload=True)
        except Problem as problem:
            raise RecordError(problem.detail, where=carried.where, record_id=record.id) from None
        if count is not None:
            try:
                count(record)
            except QuotaError as error:
                raise QuotaError(str(error), where=carried.where, record_id=record.id) from None
        yield carried._replace(record=record)
