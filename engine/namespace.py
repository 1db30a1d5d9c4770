"""`Namespace`: a tenant's view of an engine, which sees one namespace and no other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from .carry.files import AnyFile
from .encoders.embed import Given
from .encoders.encoder import Encoder
from .encoders.patch import RecordFields
from .errors import QueryError, RecordError
from .hybrid.evidence import Evidence
from .hybrid.strategy import AnyStrategy
from .index.segment import evidence_stats
from .index.snapshot import Snapshot
from .listing.listing import Listing
from .moments import Moment, Span
from .monitor.health import DriftReport, HealthReport
from .monitor.recency import Recency
from .opening import OpenIndex
from .records.explanation import Explanation, FusedExplanation
from .records.filters import Filter
from .records.hits import Hits
from .records.jsonl import as_records, check_batch
from .records.query import DEFAULT_K, Query
from .records.record import Record
from .route.by_namespace import ByNamespace
from .route.policy import Policy
from .search.batch import AnyBatch, AnyQuery, own_queries, queries_in
from .signatures import CandidateKeywords, LaunchKeywords, SearchKeywords, split_defaults
from .storage.sizes import sizes_in

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

AnyRecord = Record | Mapping[str, Any]
AnyFilter = Filter | Mapping[str, Any]
ENGINE = "the engine"
"""What is asked of several namespaces."""


class Verbs(Protocol):
    """The verbs of `Engine` that a namespace passes on; `engine/engine.py` says what each promises."""

    @property
    def index(self) -> OpenIndex: ...

    @property
    def encoder(self) -> Encoder | None: ...

    @property
    def pin(self) -> dict[str, Any] | None: ...

    def add(
        self, records: Iterable[AnyRecord], *, vectors: Given, progress: bool, threads: int | None, ttl: Span | None
    ) -> int: ...

    def update(self, records: Iterable[AnyRecord], *, insert: bool, vectors: Given, ttl: Span | None) -> int: ...

    def upsert(self, records: Iterable[AnyRecord], *, vectors: Given, ttl: Span | None) -> int: ...

    def patch(
        self,
        ids: str | Sequence[str],
        changes: Mapping[str, Any] | None,
        *,
        namespace: str,
        missing_ok: bool,
        **fields: Unpack[RecordFields],
    ) -> int: ...

    def update_where(
        self,
        filter: AnyFilter,
        changes: Mapping[str, Any] | Callable[[Record], Record] | None,
        *,
        namespace: str,
        **fields: Unpack[RecordFields],
    ) -> int: ...

    def delete(self, ids: Iterable[str], *, namespace: str, missing_ok: bool) -> int: ...

    def delete_where(self, filter: AnyFilter, *, namespace: str) -> int: ...

    async def aadd(
        self, records: Iterable[AnyRecord], *, vectors: Given, threads: int | None, ttl: Span | None
    ) -> int: ...

    async def aupdate(self, records: Iterable[AnyRecord], *, insert: bool, vectors: Given, ttl: Span | None) -> int: ...

    async def aupsert(self, records: Iterable[AnyRecord], *, vectors: Given, ttl: Span | None) -> int: ...

    async def adelete(self, ids: Iterable[str], *, namespace: str, missing_ok: bool) -> int: ...

    def drop(self, namespace: str) -> None: ...

    def fetch(self, ids: Sequence[str], *, namespace: str) -> list[Record | None]: ...

    def get(self, id: str, *, namespace: str) -> Record | None: ...

    def records(
        self,
        *,
        filter: AnyFilter | None,
        namespace: str,
        order: str,
        reverse: bool,
        after: str | None,
        limit: int | None,
        texts: bool,
    ) -> Listing: ...

    def count(self, filter: AnyFilter | None, *, namespace: str) -> int: ...

    def ids(self, filter: AnyFilter | None, *, namespace: str) -> Iterator[str]: ...

    def distinct(self, column: str, filter: AnyFilter | None, *, namespace: str) -> dict[str | float | None, int]: ...

    def search(self, queries: AnyBatch, k: int, **keywords: Unpack[SearchKeywords]) -> Hits: ...

    async def asearch(self, queries: AnyBatch, k: int, **keywords: Unpack[LaunchKeywords]) -> Hits: ...

    def submit(self, queries: AnyBatch, k: int, **keywords: Unpack[LaunchKeywords]) -> Future[Hits]: ...

    def candidates(
        self, queries: AnyBatch, strategy: AnyStrategy, **keywords: Unpack[CandidateKeywords]
    ) -> Evidence: ...

    def explain(
        self, query: AnyQuery, document: str, *, strategy: AnyStrategy | Policy | ByNamespace
    ) -> Explanation | FusedExplanation: ...

    def events(
        self,
        since: Moment,
        until: Moment,
        *,
        type: str | None,
        filter: Filter | Mapping[str, Any] | None,
        namespace: str,
    ) -> list[tuple[str, float]]: ...

    def export(
        self,
        file: AnyFile,
        *,
        format: str | None,
        namespace: str,
        filter: Filter | Mapping[str, Any] | None,
        vectors: bool,
        progress: bool,
    ) -> int: ...

    def observe(self, ids: Iterable[str], *, namespace: str, now: Moment | None, windows: int | None) -> None: ...

    def resolved(self, name: str, entity: str, *, namespace: str, times: int) -> None: ...

    def recency(self, namespace: str) -> Recency: ...

    def health(self, namespace: str) -> HealthReport: ...

    def drift(self, namespace: str) -> DriftReport: ...


class Namespace:
    """One namespace of an engine, with its own records, segments, statistics and counts.

    Records and queries that name no namespace belong to this one; those that name another are refused. The methods are
    those of `Engine`, which says what they promise and raise. `Engine.namespace` makes it. That costs nothing, so a
    server can make one for each request.
    """

    def __init__(self, engine: Verbs, name: str) -> None:
        if not isinstance(name, str):
            raise QueryError(f"a namespace's name must be a string, not {type(name).__name__}")
        self._engine = engine
        self.name = name

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    def __len__(self) -> int:
        """The number of live records."""
        return self._snapshot().size

    def __bool__(self) -> bool:
        return True

    @property
    def encoder(self) -> Encoder | None:
        return self._engine.encoder

    @property
    def pin(self) -> dict[str, Any] | None:
        return self._engine.pin

    def _snapshot(self) -> Snapshot:
        return self._engine.index.ready().snapshot(self.name).at(time.time())

    def add(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        progress: bool = False,
        threads: int | None = None,
        ttl: Span | None = None,
    ) -> int:
        checked = self._own_records(records, "add")
        return self._engine.add(checked, vectors=vectors, progress=progress, threads=threads, ttl=ttl)

    def update(
        self,
        records: Iterable[AnyRecord],
        *,
        insert: bool = False,
        vectors: Given = None,
        ttl: Span | None = None,
    ) -> int:
        return self._engine.update(self._own_records(records, "update"), insert=insert, vectors=vectors, ttl=ttl)

    def upsert(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        return self._engine.upsert(self._own_records(records, "upsert"), vectors=vectors, ttl=ttl)

    def patch(
        self,
        ids: str | Sequence[str],
        changes: Mapping[str, Any] | None = None,
        *,
        missing_ok: bool = False,
        **fields: Unpack[RecordFields],
    ) -> int:
        return self._engine.patch(ids, changes, namespace=self.name, missing_ok=missing_ok, **fields)

    def update_where(
        self,
        filter: AnyFilter,
        changes: Mapping[str, Any] | Callable[[Record], Record] | None = None,
        **fields: Unpack[RecordFields],
    ) -> int:
        return self._engine.update_where(filter, changes, namespace=self.name, **fields)

    def delete(self, ids: Iterable[str], *, missing_ok: bool = False) -> int:
        return self._engine.delete(ids, namespace=self.name, missing_ok=missing_ok)

    def delete_where(self, filter: AnyFilter) -> int:
        return self._engine.delete_where(filter, namespace=self.name)

    async def aadd(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        threads: int | None = None,
        ttl: Span | None = None,
    ) -> int:
        return await self._engine.aadd(self._own_records(records, "add"), vectors=vectors, threads=threads, ttl=ttl)

    async def aupdate(
        self, records: Iterable[AnyRecord], *, insert: bool = False, vectors: Given = None, ttl: Span | None = None
    ) -> int:
        return await self._engine.aupdate(self._own_records(records, "update"), insert=insert, vectors=vectors, ttl=ttl)

    async def aupsert(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        return await self._engine.aupsert(self._own_records(records, "upsert"), vectors=vectors, ttl=ttl)

    async def adelete(self, ids: Iterable[str], *, missing_ok: bool = False) -> int:
        return await self._engine.adelete(ids, namespace=self.name, missing_ok=missing_ok)

    def drop(self) -> None:
        self._engine.drop(self.name)

    def fetch(self, ids: Sequence[str]) -> list[Record | None]:
        return self._engine.fetch(ids, namespace=self.name)

    def get(self, id: str) -> Record | None:
        return self._engine.get(id, namespace=self.name)

    def records(
        self,
        *,
        filter: AnyFilter | None = None,
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
        texts: bool = True,
    ) -> Listing:
        return self._engine.records(
            filter=filter, namespace=self.name, order=order, reverse=reverse, after=after, limit=limit, texts=texts
        )

    def count(self, filter: AnyFilter | None = None) -> int:
        return self._engine.count(filter, namespace=self.name)

    def ids(self, filter: AnyFilter | None = None) -> Iterator[str]:
        return self._engine.ids(filter, namespace=self.name)

    def distinct(self, column: str, filter: AnyFilter | None = None) -> dict[str | float | None, int]:
        return self._engine.distinct(column, filter, namespace=self.name)

    def search(self, queries: AnyBatch, k: int = DEFAULT_K, **keywords: Unpack[SearchKeywords]) -> Hits:
        """As `Engine.search`, with its keywords."""
        checked, rest = self._own_batch(queries, keywords)
        return self._engine.search(checked, k, **rest)

    async def asearch(self, queries: AnyBatch, k: int = DEFAULT_K, **keywords: Unpack[LaunchKeywords]) -> Hits:
        """As `Engine.asearch`, with its keywords; launches are shared with other namespaces, answers are not."""
        checked, rest = self._own_batch(queries, keywords)
        return await self._engine.asearch(checked, k, **rest)

    def submit(self, queries: AnyBatch, k: int = DEFAULT_K, **keywords: Unpack[LaunchKeywords]) -> Future[Hits]:
        """As `Engine.submit`, with its keywords; launches are shared with other namespaces, answers are not."""
        checked, rest = self._own_batch(queries, keywords)
        return self._engine.submit(checked, k, **rest)

    def candidates(self, queries: AnyBatch, strategy: AnyStrategy, **keywords: Unpack[CandidateKeywords]) -> Evidence:
        """As `Engine.candidates`, with its keywords."""
        checked = own_queries(queries, self.name, {}, ENGINE, "candidates")
        return self._engine.candidates(checked, strategy, **keywords)

    def explain(
        self, query: AnyQuery, document: str, *, strategy: AnyStrategy | Policy | ByNamespace = "bm25"
    ) -> Explanation | FusedExplanation:
        (checked,) = own_queries([query], self.name, {}, ENGINE)
        return self._engine.explain(checked, document, strategy=strategy)

    def events(
        self,
        since: Moment,
        until: Moment,
        *,
        type: str | None = "Event",
        filter: Filter | Mapping[str, Any] | None = None,
    ) -> list[tuple[str, float]]:
        return self._engine.events(since, until, type=type, filter=filter, namespace=self.name)

    def export(
        self,
        file: AnyFile,
        *,
        format: str | None = None,
        filter: Filter | Mapping[str, Any] | None = None,
        vectors: bool = True,
        progress: bool = False,
    ) -> int:
        return self._engine.export(
            file, format=format, namespace=self.name, filter=filter, vectors=vectors, progress=progress
        )

    def observe(self, ids: Iterable[str], *, now: Moment | None = None, windows: int | None = None) -> None:
        self._engine.observe(ids, namespace=self.name, now=now, windows=windows)

    def resolved(self, name: str, entity: str, *, times: int = 1) -> None:
        self._engine.resolved(name, entity, namespace=self.name, times=times)

    def health(self) -> HealthReport:
        return self._engine.health(self.name)

    def drift(self) -> DriftReport:
        return self._engine.drift(self.name)

    def stats(self) -> dict[str, Any]:
        """Sizes of this namespace's part of the index, and its k* rule."""
        return {**snapshot_stats(self._snapshot()), "recency": self._engine.recency(self.name).to_dict()}

    def _own_records(self, records: Iterable[AnyRecord], verb: str) -> Iterator[Record]:
        check_batch(records, verb)
        for record in as_records(records):
            if record.namespace not in ("", self.name):
                raise RecordError("the record names another namespace than the one it is given to", record_id=record.id)
            yield record if record.namespace == self.name else replace(record, namespace=self.name)

    def _own_batch(self, queries: AnyBatch, keywords: Mapping[str, Any]) -> tuple[Sequence[Query], Any]:
        """The queries, which no keyword leads to another namespace, and the keywords that are not theirs."""
        defaults, rest = split_defaults(keywords)
        if not defaults and isinstance(queries, (list, tuple)) and {*map(type, queries)} == {str}:
            return queries_in(self.name, queries), rest
        return own_queries(queries, self.name, defaults, ENGINE), rest


def snapshot_stats(snapshot: Snapshot) -> dict[str, int]:
    """Sizes of a namespace's part of the index."""
    sizes = sizes_in([snapshot])
    return {
        "documents": snapshot.size,
        "deleted": snapshot.numbers - snapshot.size,
        "segments": len(snapshot.segments),
        "postings": sum(segment.postings for segment in snapshot.segments),
        "index_bytes": sum(sizes.values()),
        **sizes,
        **evidence_stats(snapshot.segments),
    }
