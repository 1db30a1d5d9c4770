"""`AsyncClient`: a server's memory with the verbs of `Engine`, awaited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from ..engine.encoders.patch import RecordFields
from ..engine.errors import QueryError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.moments import Span
from ..engine.namespace import AnyFilter, AnyRecord
from ..engine.records.explanation import Explanation, FusedExplanation
from ..engine.records.hits import Hits
from ..engine.records.query import DEFAULT_K
from ..engine.records.record import Record
from ..engine.route.by_namespace import ByNamespace
from ..engine.route.policy import Policy
from ..engine.search.batch import AnyQuery
from . import answers, calls
from .answers import Page
from .calls import Call, SearchOptions
from .sending import RETRIES, TIMEOUT, Attempt, Target, load_httpx

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack


class AsyncClient:
    """As `Client`, but its verbs are awaited, and `records` is an asynchronous iterator.

    ``hits.explain`` cannot be awaited and raises `QueryError`: await ``client.explain`` instead. One event loop uses a
    client; close it there, or use it in an ``async with`` block.
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: float = TIMEOUT, retries: int = RETRIES) -> None:
        self._target = Target(url, key, timeout, retries)
        self._pool = load_httpx().AsyncClient(**self._target.options())
        self._space: str | None = None

    def __repr__(self) -> str:
        space = "" if self._space is None else f", namespace={self._space!r}"
        return f"{type(self).__name__}({self._target.url!r}{space})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, also those of handles on namespaces."""
        await self._pool.aclose()

    def namespace(self, name: str) -> AsyncClient:
        """A handle on one namespace, over the same connections: its records and queries belong to this namespace."""
        handle = object.__new__(type(self))
        handle.__dict__.update(self.__dict__, _space=calls.checked_name(name))
        return handle

    async def _send(self, call: Call, deadline: float | None = None) -> Any:
        attempt = Attempt(self._target, call, deadline)
        while True:
            try:
                response = await self._pool.request(**attempt.arguments())
            except load_httpx().TransportError as error:
                pause = attempt.pause_after(error)
                if pause is None:
                    raise attempt.error(error) from error
            else:
                pause = attempt.pause_after(response) if response.status_code >= 400 else None
                if pause is None:
                    return attempt.read(response)
            await asyncio.sleep(pause)

    async def search(
        self,
        queries: Sequence[AnyQuery],
        k: int = DEFAULT_K,
        *,
        batch: int | None = None,
        deadline: float | None = None,
        **options: Unpack[SearchOptions],
    ) -> Hits:
        """As `Engine.search`: `options` are strategy, texts, payload, offset, min_score and distinct."""
        asked = calls.search(queries, k, options, self._space, batch)

        def explain(position: int, document: str) -> Explanation | FusedExplanation:
            raise QueryError("hits of an AsyncClient explain no scores: await client.explain(query, id)")

        return answers.read_hits([await self._send(call, deadline) for call in asked.calls], asked, explain)

    async def explain(
        self, query: AnyQuery, document: str, *, strategy: AnyStrategy | Policy | ByNamespace = "bm25"
    ) -> Explanation | FusedExplanation:
        """As `Engine.explain`."""
        (asked,) = calls.own_queries([query], self._space)
        return answers.read_explanation(await self._send(calls.explain(asked, document, strategy)), 0)

    async def add(self, records: Iterable[AnyRecord], *, ttl: Span | None = None, batch: int | None = None) -> int:
        """As `Engine.add`. Vectors travel with their records, in `Record.embedding`."""
        return await self._write(records, "add", ttl, batch)

    async def update(
        self,
        records: Iterable[AnyRecord],
        *,
        insert: bool = False,
        ttl: Span | None = None,
        batch: int | None = None,
    ) -> int:
        """As `Engine.update`."""
        return await self._write(records, "upsert" if insert else "update", ttl, batch)

    async def upsert(self, records: Iterable[AnyRecord], *, ttl: Span | None = None, batch: int | None = None) -> int:
        """As `Engine.upsert`."""
        return await self._write(records, "upsert", ttl, batch)

    async def _write(self, records: Iterable[AnyRecord], mode: str, ttl: Span | None, batch: int | None) -> int:
        parts = calls.write(records, mode, ttl, self._space, batch)
        return sum([int((await self._send(call))["written"]) for call in parts])

    async def delete(self, ids: Iterable[str], *, namespace: str | None = None, missing_ok: bool = False) -> int:
        """As `Engine.delete`."""
        return int((await self._send(calls.delete(ids, self._named(namespace), missing_ok)))["deleted"])

    async def delete_where(self, filter: AnyFilter, *, namespace: str | None = None) -> int:
        """As `Engine.delete_where`, in one namespace."""
        return int((await self._send(calls.delete_where(filter, self._named(namespace))))["deleted"])

    async def patch(
        self,
        ids: str | Sequence[str],
        changes: Mapping[str, Any] | None = None,
        *,
        namespace: str | None = None,
        missing_ok: bool = False,
        **fields: Unpack[RecordFields],
    ) -> int:
        """As `Engine.patch`."""
        call = calls.patch(ids, changes, fields, self._named(namespace), missing_ok)
        return int((await self._send(call))["patched"])

    async def update_where(
        self,
        filter: AnyFilter,
        changes: Mapping[str, Any] | None = None,
        *,
        namespace: str | None = None,
        **fields: Unpack[RecordFields],
    ) -> int:
        """As `Engine.update_where`, in one namespace. `changes` is a mapping: a function cannot be sent."""
        call = calls.update_where(filter, changes, fields, self._named(namespace))
        return int((await self._send(call))["patched"])

    async def drop(self, namespace: str | None = None) -> None:
        """As `Engine.drop`, or as `Namespace.drop` of a handle."""
        await self._send(calls.drop(self._named(namespace)))

    async def fetch(self, ids: Sequence[str], *, namespace: str | None = None) -> list[Record | None]:
        """As `Engine.fetch`."""
        return answers.read_records((await self._send(calls.fetch(ids, self._named(namespace))))["records"])

    async def get(self, id: str, *, namespace: str | None = None) -> Record | None:
        """As `Engine.get`."""
        return (await self.fetch(calls.one_id(id), namespace=namespace))[0]

    async def page(
        self,
        *,
        filter: AnyFilter | None = None,
        namespace: str | None = None,
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> Page:
        """A page of at most `limit` records (None: 1,000) and where the next one begins, as `Engine.records`."""
        return answers.read_page(
            await self._send(calls.page(self._named(namespace), filter, order, reverse, after, limit))
        )

    async def records(
        self,
        *,
        filter: AnyFilter | None = None,
        namespace: str | None = None,
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Record]:
        """As `Engine.records`, in one namespace: an asynchronous iterator that asks for page after page."""
        while limit is None or limit > 0:
            page = await self.page(
                filter=filter, namespace=namespace, order=order, reverse=reverse, after=after, limit=limit
            )
            for record in page.records:
                yield record
            after, limit = page.after, None if limit is None else limit - len(page.records)
            if after is None:
                return

    async def count(self, filter: AnyFilter | None = None, *, namespace: str | None = None) -> int:
        """As `Engine.count`, in one namespace."""
        return int((await self._send(calls.count(filter, self._named(namespace))))["count"])

    async def namespaces(self) -> tuple[str, ...]:
        """The namespaces that hold live records and that the key reaches, as `Engine.namespaces`."""
        return tuple([row["namespace"] for row in (await self._send(calls.namespaces()))["namespaces"]])

    async def stats(self, *, namespace: str | None = None) -> dict[str, Any]:
        """As `Engine.stats`, or as `Namespace.stats` of a handle or of a namespace that is named."""
        values: dict[str, Any] = await self._send(calls.stats(self._space if namespace is None else namespace))
        return values

    def _named(self, namespace: str | None) -> str:
        return calls.named(namespace, self._space)
