"""`AsyncClient`: a server's memory with the verbs of `Engine`, awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..engine.carry.files import AnyFile
from ..engine.carry.importing import Imported
from ..engine.encoders.embed import Given
from ..engine.errors import QueryError, UnreachableError
from ..engine.memory import Memory
from ..engine.moments import Span
from ..engine.offered import awaited
from ..engine.records.explanation import Explanation, FusedExplanation
from ..engine.records.filters import AnyFilter
from ..engine.records.record import Record
from ..engine.signatures import KEEP, Twins, hinting
from ..engine.writing import AnyRecord
from . import calls
from .calls import Asked, Call
from .sending import RETRIES, TIMEOUT, Attempt, Target, load_httpx
from .steps import Steps, advance
from .synchronous import Client, every_namespace, write_parts

R = TypeVar("R")

AT_ONCE = 16
"""Requests of an event loop that are under way at once; others wait. For each request httpx looks at all connections:
of 100 fan-outs of 20 at once it brings 1,300 queries a second, of 16 at a time 3,900 (2 cores)."""


class Pool(NamedTuple):
    """The connections of one event loop, and whose turn it is to use them."""

    connections: Any
    turns: asyncio.Semaphore

    async def request(self, attempt: Attempt) -> Any:
        """The response. The time limit goes on while the request waits for its turn."""
        async with self.turns:
            return await self.connections.request(**attempt.arguments())


class Pools:
    """The connections of each event loop. Those of one loop do not work in another."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self.loops: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._closed = False

    def take(self) -> Pool:
        """Those of the loop that runs. Raises `UnreachableError` once they are closed."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise UnreachableError("this client is closed")
            if loop not in self.loops:
                # A loop that is closed cannot close its connections. They end when nothing holds them.
                self.loops = {one: pool for one, pool in self.loops.items() if not one.is_closed()}
                self.loops[loop] = Pool(load_httpx().AsyncClient(**self._options), asyncio.Semaphore(AT_ONCE))
            return self.loops[loop]

    async def close(self) -> None:
        """Close those of the loop that runs, let go of the others, and give out none from now on."""
        with self._lock:
            self._closed = True
            pool = self.loops.pop(asyncio.get_running_loop(), None)
            self.loops = {}
        if pool is not None:
            await pool.connections.aclose()


class AsyncClient:
    """As `Client`, but its verbs are awaited, and `records` is an asynchronous iterator.

    ``hits.explain`` cannot be awaited and raises `QueryError`: await ``client.explain`` instead. Several event loops
    may use a client. Each has connections of its own, and at most 16 requests under way at once. Close the client in
    the last of them.
    """

    @hinting()
    def __init__(self, url: str, key: str | None = None, *, timeout: float = TIMEOUT, retries: int = RETRIES) -> None:
        self._server = Target(url, key, timeout, retries)
        self._pools = Pools(self._server.options())
        self.space: str | None = None

    def __repr__(self) -> str:
        space = "" if self.space is None else f", namespace={self.space!r}"
        return f"{type(self).__name__}({self._server.url!r}{space})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, also those of handles on namespaces. The client is of no use from then on."""
        await self._pools.close()

    def namespace(self, name: str) -> AsyncClient:
        """A handle on one namespace, over the same connections: its records and queries belong to this namespace."""
        handle = object.__new__(type(self))
        handle.__dict__.update(self.__dict__, space=calls.checked_name(name))
        return handle

    async def _run(self, verb: Steps[R]) -> R:
        call, result = advance(verb)
        while call is not None:
            call, result = advance(verb, await self._send(call))
        answer: R = result
        return answer

    def _explain_hit(self, asked: Asked, position: int, document: str) -> Explanation | FusedExplanation:
        raise QueryError("hits of an AsyncClient explain no scores: await client.explain(query, id)")

    async def _send(self, call: Call) -> dict[str, Any]:
        attempt = Attempt(self._server, call)
        httpx, pool = load_httpx(), self._pools.take()
        while True:
            try:
                # httpx limits the time of each read, and not of all of them.
                response = await asyncio.wait_for(pool.request(attempt), attempt.seconds_left())
            except asyncio.TimeoutError:
                raise attempt.late() from None
            except (httpx.RequestError, httpx.InvalidURL) as error:
                pause = attempt.pause_after(error)
                if pause is None:
                    raise attempt.error(error) from error
            else:
                pause = attempt.pause_after(response) if response.status_code >= 400 else None
                if pause is None:
                    return attempt.read(response, response.content)
            await asyncio.sleep(pause)

    async def add(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        ttl: Span | None = None,
        twins: Twins = KEEP,
        batch: int | None = None,
    ) -> int:
        """As `Memory.add`."""
        return await self._run(write_parts(calls.write(records, "add", vectors, ttl, self.space, batch, twins), twins))

    def records(
        self,
        *,
        filter: AnyFilter | None = None,
        namespace: str = "",
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Record]:
        """As `Engine.records`, in one namespace: an asynchronous iterator that asks for page after page."""
        calls.check_order(order, limit)
        return self._pages(limit, after, filter=filter, namespace=self._named(namespace), order=order, reverse=reverse)

    async def _pages(self, limit: int | None, after: str | None, **listing: Any) -> AsyncIterator[Record]:
        while limit is None or limit > 0:
            page = await self.page(**listing, after=after, limit=limit)
            for record in page.records:
                yield record
            after, limit = page.after, None if limit is None else limit - len(page.records)
            if after is None:
                return

    async def namespaces(self) -> tuple[str, ...]:
        """The namespaces that hold live records and that the key reaches, as `Engine.namespaces`."""
        return await self._run(every_namespace())

    async def export(self, file: AnyFile, **options: Any) -> int:
        """As `Client.export`, by a thread with connections of its own."""
        return int(await asyncio.to_thread(self._carry, "export", file, options))

    async def import_records(self, file: AnyFile, **options: Any) -> Imported:
        """As `Client.import_records`, by a thread with connections of its own."""
        done: Imported = await asyncio.to_thread(self._carry, "import_records", file, options)
        return done

    def _carry(self, verb: str, file: AnyFile, options: dict[str, Any]) -> Any:
        server = self._server
        with Client(server.url, server.key, timeout=server.timeout, retries=server.retries) as client:
            return getattr(client if self.space is None else client.namespace(self.space), verb)(file, **options)

    async def columns(self) -> dict[str, str]:
        """The declared columns of the server's memory, as `Engine.columns`."""
        columns: dict[str, str] = (await self._send(calls.columns()))["columns"]
        return columns

    def _named(self, namespace: str) -> str:
        return calls.named(namespace, self.space)

    if TYPE_CHECKING:
        search, explain = awaited(Client.search), awaited(Client.explain)
        page, stats = awaited(Client.page), awaited(Client.stats)
        update, upsert = awaited(Client.update), awaited(Client.upsert)
        delete, delete_where, drop = awaited(Client.delete), awaited(Client.delete_where), awaited(Client.drop)
        patch, update_where = awaited(Client.patch), awaited(Client.update_where)
        fetch, get, count = awaited(Client.fetch), awaited(Client.get), awaited(Client.count)
        distinct, events = awaited(Memory.distinct), awaited(Memory.events)
        add_column, drop_column = awaited(Memory.add_column), awaited(Memory.drop_column)
        change_columns = awaited(Memory.change_columns)
        observe, resolved = awaited(Memory.observe), awaited(Memory.resolved)
        audit, receipts = awaited(Memory.audit), awaited(Memory.receipts)
        forget = awaited(Memory.forget)


def _awaited(verb: Any) -> Any:
    """The awaited twin of a verb that `steps` made."""

    @wraps(verb)
    async def run(self: AsyncClient, *given: Any, **keywords: Any) -> Any:
        return await self._run(verb.steps(self, *given, **keywords))

    return run


for _name, _verb in [*vars(Client).items()]:
    if hasattr(_verb, "steps"):
        setattr(AsyncClient, _name, _awaited(_verb))
