"""`AsyncClient`: a server's memory with the verbs of `Engine`, awaited."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.carry.files import AnyFile
from ..engine.carry.importing import Imported
from ..engine.encoders.embed import Given
from ..engine.encoders.patch import RecordFields
from ..engine.errors import QueryError, UnreachableError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.memory import Memory
from ..engine.moments import Span
from ..engine.offered import REST, Offered, awaited, offered_at
from ..engine.records.explanation import Explanation, FusedExplanation
from ..engine.records.filters import AnyFilter
from ..engine.records.hits import Hits
from ..engine.records.query import DEFAULT_K
from ..engine.records.record import Record
from ..engine.route.by_namespace import ByNamespace
from ..engine.route.policy import Policy
from ..engine.search.batch import AnyBatch, AnyQuery
from ..engine.signatures import hinting
from ..engine.writing import AnyRecord
from . import answers, calls
from .answers import Page
from .calls import Call, SentKeywords
from .sending import RETRIES, TIMEOUT, Attempt, Limit, Target, load_httpx
from .synchronous import Client

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack


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
        self._target = Target(url, key, timeout, retries)
        self._pools = Pools(self._target.options())
        self.space: str | None = None

    def __repr__(self) -> str:
        space = "" if self.space is None else f", namespace={self.space!r}"
        return f"{type(self).__name__}({self._target.url!r}{space})"

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

    async def _send(self, call: Call, limit: Limit | None = None) -> dict[str, Any]:
        attempt = Attempt(self._target, call, limit)
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

    async def search(
        self,
        queries: AnyBatch,
        k: int = DEFAULT_K,
        *,
        batch: int | None = None,
        deadline: float | None = None,
        **options: Unpack[SentKeywords],
    ) -> Hits:
        """As `Engine.search`: `options` are strategy, texts, payload, timing, its `defaults` for queries, and `partial`
        of a server over shards."""
        asked = calls.search(queries, k, options, self.space, batch)
        # One limit for all parts, where the caller asked for one.
        limit = None if deadline is None else self._target.limit(deadline)

        def explain(position: int, document: str) -> Explanation | FusedExplanation:
            raise QueryError("hits of an AsyncClient explain no scores: await client.explain(query, id)")

        return answers.read_hits([await self._send(call, limit) for call in asked.calls], asked, explain)

    async def explain(
        self, query: AnyQuery, document: str, *, strategy: AnyStrategy | Policy | ByNamespace = "bm25"
    ) -> Explanation | FusedExplanation:
        """As `Engine.explain`."""
        (asked,) = calls.asked_queries([query], self.space)
        return answers.read_explanation(await self._send(calls.explain(asked, document, strategy)), 0)

    async def add(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        ttl: Span | None = None,
        batch: int | None = None,
    ) -> int:
        """As `Memory.add`."""
        return await self._write(records, "add", vectors, ttl, batch)

    async def update(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        ttl: Span | None = None,
        batch: int | None = None,
    ) -> int:
        """As `Engine.update`."""
        return await self._write(records, "update", vectors, ttl, batch)

    async def upsert(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        ttl: Span | None = None,
        batch: int | None = None,
    ) -> int:
        """As `Memory.upsert`."""
        return await self._write(records, "upsert", vectors, ttl, batch)

    async def _write(
        self, records: Iterable[AnyRecord], mode: str, vectors: Given, ttl: Span | None, batch: int | None
    ) -> int:
        parts = calls.write(records, mode, vectors, ttl, self.space, batch)
        return sum([answers.read_number(await self._send(call), "written") for call in parts])

    async def delete(self, ids: Iterable[str], *, namespace: str = "", missing_ok: bool = False) -> int:
        """As `Engine.delete`."""
        return answers.read_number(await self._send(calls.delete(ids, self._named(namespace), missing_ok)), "deleted")

    async def delete_where(self, filter: AnyFilter, *, namespace: str = "") -> int:
        """As `Engine.delete_where`, in one namespace."""
        return answers.read_number(await self._send(calls.delete_where(filter, self._named(namespace))), "deleted")

    async def patch(
        self,
        ids: str | Sequence[str],
        changes: Mapping[str, Any] | None = None,
        *,
        namespace: str = "",
        missing_ok: bool = False,
        **fields: Unpack[RecordFields],
    ) -> int:
        """As `Engine.patch`."""
        call = calls.patch(ids, changes, fields, self._named(namespace), missing_ok)
        return answers.read_number(await self._send(call), "patched")

    async def update_where(
        self,
        filter: AnyFilter,
        changes: Mapping[str, Any] | None = None,
        *,
        namespace: str = "",
        **fields: Unpack[RecordFields],
    ) -> int:
        """As `Engine.update_where`, in one namespace. A function cannot be sent."""
        call = calls.update_where(filter, changes, fields, self._named(namespace))
        return answers.read_number(await self._send(call), "patched")

    async def drop(self, namespace: str = "") -> None:
        """As `Engine.drop`. On a handle it drops the namespace of the handle."""
        await self._send(calls.drop(self._named(namespace)))

    async def fetch(self, ids: Sequence[str], *, namespace: str = "") -> list[Record | None]:
        """As `Engine.fetch`."""
        return answers.read_records(await self._send(calls.fetch(ids, self._named(namespace))))

    async def get(self, id: str, *, namespace: str = "") -> Record | None:
        """As `Engine.get`."""
        return (await self.fetch(calls.one_id(id), namespace=namespace))[0]

    async def page(
        self,
        *,
        filter: AnyFilter | None = None,
        namespace: str = "",
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> Page:
        """A page of at most `limit` records (None: 1,000) and where the next one begins, as `Engine.records`."""
        return answers.read_page(
            await self._send(calls.page(self._named(namespace), filter, order, reverse, after, limit))
        )

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

    async def count(self, filter: AnyFilter | None = None, *, namespace: str = "") -> int:
        """As `Engine.count`, in one namespace."""
        return answers.read_number(await self._send(calls.count(filter, self._named(namespace))), "count")

    async def namespaces(self) -> tuple[str, ...]:
        """The namespaces that hold live records and that the key reaches, as `Engine.namespaces`."""
        found, after = answers.read_namespaces(await self._send(calls.namespaces(None)))
        while after is not None:
            page, after = answers.read_namespaces(await self._send(calls.namespaces(after)))
            found += page
        return tuple(found)

    async def stats(self, *, namespace: str | None = None) -> dict[str, Any]:
        """As `Engine.stats`, or as `Namespace.stats` of a handle or of a namespace that is named."""
        return await self._send(calls.stats(self.space if namespace is None else namespace))

    async def export(self, file: AnyFile, **options: Any) -> int:
        """As `Client.export`, by a thread with connections of its own."""
        return int(await asyncio.to_thread(self._carry, "export", file, options))

    async def import_records(self, file: AnyFile, **options: Any) -> Imported:
        """As `Client.import_records`, by a thread with connections of its own."""
        done: Imported = await asyncio.to_thread(self._carry, "import_records", file, options)
        return done

    def _carry(self, verb: str, file: AnyFile, options: dict[str, Any]) -> Any:
        target = self._target
        with Client(target.url, target.key, timeout=target.timeout, retries=target.retries) as client:
            return getattr(client if self.space is None else client.namespace(self.space), verb)(file, **options)

    async def columns(self) -> dict[str, str]:
        """The declared columns of the server's memory, as `Engine.columns`."""
        columns: dict[str, str] = (await self._send(calls.columns()))["columns"]
        return columns

    def _named(self, namespace: str) -> str:
        return calls.named(namespace, self.space)

    if TYPE_CHECKING:
        distinct, events = awaited(Memory.distinct), awaited(Memory.events)
        add_column, drop_column = awaited(Memory.add_column), awaited(Memory.drop_column)
        change_columns = awaited(Memory.change_columns)
        observe, resolved = awaited(Memory.observe), awaited(Memory.resolved)
        audit, receipts = awaited(Memory.audit), awaited(Memory.receipts)
        forget = awaited(Memory.forget)


def _sent(verb: Offered) -> Any:
    @wraps(verb.function)
    async def ask(self: AsyncClient, *given: Any, **keywords: Any) -> Any:
        return answers.read_offered(await self._send(calls.offered(verb, given, keywords, self.space)), verb)

    return ask


for _verb in offered_at(REST):
    setattr(AsyncClient, _verb.name, _sent(_verb))
