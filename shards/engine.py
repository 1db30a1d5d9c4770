"""`ShardedEngine`: the verbs of `Engine` over several shards."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial as bind
from pathlib import Path
from typing import Any

from ..engine.encoders.embed import Given
from ..engine.encoders.encoder import Encoder
from ..engine.encoders.patch import Patch, RecordFields
from ..engine.errors import ParameterError, RecordError, StorageError, UnknownIdError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.index.columns import ANY
from ..engine.moments import Moment, Span
from ..engine.monitor.health import HealthReport
from ..engine.monitor.monitor import checked_namespace
from ..engine.records.explanation import Explanation, FusedExplanation
from ..engine.records.filters import PAYLOAD, Filter, parse_filter
from ..engine.records.hits import Hits
from ..engine.records.jsonl import as_records, check_batch, checked_ids, expiring
from ..engine.records.query import DEFAULT_K
from ..engine.records.record import Record
from ..engine.rerank.reranker import DEPTH, CheckedReranker
from ..engine.route.by_namespace import ByNamespace
from ..engine.route.policy import Policy
from ..engine.search.batch import AnyQuery
from ..engine.serve.coalesce import Coalescer
from ..engine.signatures import EngineOptions, LaunchKeywords, check_engine_options
from ..engine.writing import AnyRecord
from .coordinator import Coordinator, View
from .launches import Launch
from .links import call_all
from .opening import Opened, Start, open_memory, start_local
from .order import strip
from .searching import PARTIAL, REFUSE, ShardedSearcher

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

LOCAL, RAY = "local", "ray"

DEADLINE = 30.0
"""Seconds that a shard has for an answer."""

WRITERS = 8
"""Threads of awaited writes."""


class ShardedEngine:
    """One memory over several shards. Each shard is an engine with a directory of its own, and an actor of Ray.

    Its answers are those of one `Engine` that holds all records: ids, scores and order, bit for bit. A namespace lies
    whole in one shard; one that outgrows a shard is split by record id, and scored by the statistics of all its parts.
    One process owns the memory. Others reach it through ``fanrank serve``.
    """

    def __init__(self, opened: Opened, partial: str) -> None:
        """Use `open`."""
        self._opened = opened
        self.coordinator: Coordinator = opened.coordinator
        self.searcher = ShardedSearcher(opened.template, opened.coordinator, partial)
        self._template = opened.template
        self._coalescer: Coalescer | None = None
        self._writers: ThreadPoolExecutor | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        address: str | None = None,
        transport: str = RAY,
        storage: str | os.PathLike[str] | None = None,
        split_at: int | None = None,
        whole_at: int | None = None,
        deadline: float = DEADLINE,
        partial: str = REFUSE,
        num_gpus: float = 0,
        num_cpus: float = 0,
        backend: str | None = None,
        **options: Unpack[EngineOptions],
    ) -> ShardedEngine:
        """The memory whose table lies in the directory `path`, which is made if it is not there.

        `shards` is how many it has; it is kept, and may be left out later. Each is an actor of Ray, on the cluster at
        `address` (``"auto"``, ``"ray://host:port"``); None: a Ray of this process alone, on this machine. With
        ``transport="local"`` the shards run in this process, without Ray.

        `storage` is the folder of the shards' directories, on the machines where they run; None: `path`. A namespace
        that begins with more than `split_at` records is split over shards. Strategies that read a split namespace as
        one are served from a whole copy in memory of at most `whole_at` records.

        A shard has `deadline` seconds for an answer. Where one does not answer, a search raises `DeadlineError` or
        `ShardError`; with ``partial="allow"`` it gives the hits of the others, and `Hits.missing_shards`. `num_gpus`
        and `num_cpus` are what each actor takes of its machine's GPUs and cores.

        `backend` and `options` are those of `Engine.open`. The owner's process holds the encoders, and shards open
        none.

        Raises as `Engine.open`, `ShardError`, `ShardVersionError`, `MissingExtraError` without Ray.
        """
        check_engine_options(options, "ShardedEngine.open")
        if partial not in PARTIAL:
            raise ParameterError(f"partial must be one of {', '.join(map(repr, PARTIAL))}, not {partial!r}")
        if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not deadline > 0:
            raise ParameterError(f"deadline must be seconds above 0, not {deadline!r}")
        if transport not in (LOCAL, RAY):
            raise ParameterError(f"transport must be {RAY!r} or {LOCAL!r}, not {transport!r}")
        start: Start = bind(start_local, backend=backend)
        release = None
        if transport == RAY:
            from .cluster import Cluster  # Ray takes half a second to import, and is an extra

            cluster = Cluster.connect(address, num_cpus=num_cpus)
            start = bind(cluster.start, backend=backend, num_gpus=num_gpus, num_cpus=num_cpus)
            release = cluster.close
        try:
            opened = open_memory(
                Path(path),
                shards,
                start,
                options,
                backend=backend,
                storage=None if storage is None else Path(storage),
                settings={"split_at": split_at, "whole_at": whole_at},
                deadline=float(deadline),
            )
        except BaseException:
            if release is not None:
                release()
            raise
        engine = cls(opened, partial)
        engine._release = release
        return engine

    _release: Any = None

    def __repr__(self) -> str:
        view = self.coordinator.view
        return f"{type(self).__name__}({view.placement.shards} shards, epoch {view.epoch})"

    def __len__(self) -> int:
        """The number of live records."""
        return sum(self._sizes().values())

    def __enter__(self) -> ShardedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def encoder(self) -> Encoder | None:
        """As `Engine.encoder`."""
        return self._template.encoder

    @property
    def pin(self) -> dict[str, Any] | None:
        """As `Engine.pin`."""
        return self._template.pin

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that hold live records, sorted."""
        return tuple(sorted(self._sizes()))

    def close(self) -> None:
        """Close all shards and release the directory. A second call does nothing. Raises `StorageError`."""
        if self._closed:
            return
        self._closed = True
        if self._coalescer is not None:
            self._coalescer.close()
        if self._writers is not None:
            self._writers.shutdown(wait=False)
        self.coordinator.close()
        try:
            self.coordinator.whole.clear()
            for link in self.coordinator.links:
                link.close()
        finally:
            self._opened.release()
            if self._release is not None:
                self._release()

    # Searching.

    def search(
        self,
        queries: Sequence[AnyQuery],
        k: int = DEFAULT_K,
        *,
        strategy: AnyStrategy | Policy | ByNamespace = "bm25",
        offset: int = 0,
        min_score: float | None = None,
        distinct: str | None = None,
        reranker: CheckedReranker | None = None,
        rerank_depth: int = DEPTH,
        threads: int = 1,
        execution: str = "auto",
        timing: bool = False,
        texts: bool = False,
        payload: bool = False,
        partial: str | None = None,
    ) -> Hits:
        """As `Engine.search`, over all shards at one epoch. `partial` is as in `open` (None: as it was opened).

        Raises as `Engine.search`, `DeadlineError` and `ShardError`.
        """
        self._check_open()
        searcher = self.searcher if partial is None else self.searcher.allowing(partial)
        return searcher.search(
            queries,
            k,
            {
                "strategy": strategy,
                "reranker": reranker,
                "rerank_depth": rerank_depth,
                "threads": threads,
                "execution": execution,
                "timing": timing,
                "texts": texts,
                "payload": payload,
                "offset": offset,
                "min_score": min_score,
                "distinct": distinct,
            },
        )

    @property
    def coalescer(self) -> Coalescer:
        """As `Engine.coalescer`: a launch of many callers is one message a shard."""
        if self._coalescer is None:
            self._coalescer = self.__dict__.setdefault("_shared", Coalescer(self))
            if self._closed:
                self._coalescer.close()
        return self._coalescer

    async def asearch(
        self, queries: Sequence[AnyQuery], k: int = DEFAULT_K, **keywords: Unpack[LaunchKeywords]
    ) -> Hits:
        """As `Engine.asearch`."""
        return await self.coalescer.asearch(queries, k, **keywords)

    def submit(
        self, queries: Sequence[AnyQuery], k: int = DEFAULT_K, **keywords: Unpack[LaunchKeywords]
    ) -> Future[Hits]:
        """As `Engine.submit`."""
        return self.coalescer.submit(queries, k, **keywords)

    def search_stream(
        self,
        batches: Iterable[Sequence[AnyQuery]],
        k: int = DEFAULT_K,
        *,
        ahead: int = 2,
        threads: int = 1,
        execution: str = "auto",
        timing: bool = False,
        texts: bool = False,
        payload: bool = False,
    ) -> Iterator[Hits]:
        """As `Engine.search_stream`: up to `ahead` batches (0 to 64) are on their way beyond the one handed out."""
        if isinstance(ahead, bool) or not isinstance(ahead, int) or not 0 <= ahead <= 64:
            raise ParameterError(f"ahead must lie in [0, 64], not {ahead!r}")
        search = bind(
            self.search, k=k, threads=threads, execution=execution, timing=timing, texts=texts, payload=payload
        )
        return _stream(search, batches, ahead)

    def explain(
        self, query: AnyQuery, document: str, *, strategy: AnyStrategy | Policy | ByNamespace = "bm25"
    ) -> Explanation | FusedExplanation:
        """As `Engine.explain`."""
        return self.search([query], strategy=strategy).explain(0, document)

    # Writing.

    def add(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        ttl: Span | None = None,
    ) -> int:
        """As `Engine.add`. A batch is in all its shards or in none."""
        check_batch(records, "add")
        models, fields = self.searcher.models, self._template.bm25.fields
        return self._write(added=list(models.encode(expiring(as_records(records, fields), ttl), vectors)))

    def update(
        self,
        records: Iterable[AnyRecord],
        *,
        insert: bool = False,
        vectors: Given = None,
        ttl: Span | None = None,
    ) -> int:
        """As `Engine.update`."""
        check_batch(records, "update")
        models, fields = self.searcher.models, self._template.bm25.fields
        batch = list(models.encode(expiring(as_records(records, fields), ttl), vectors))
        removed: dict[str, list[str]] = {}
        for record in batch:
            removed.setdefault(record.namespace, []).append(record.id)
        return self._write(removed=removed, added=batch, missing_ok=insert)

    def upsert(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        """As `Engine.upsert`."""
        return self.update(records, insert=True, vectors=vectors, ttl=ttl)

    def patch(
        self,
        ids: str | Sequence[str],
        changes: Mapping[str, Any] | None = None,
        *,
        namespace: str = "",
        missing_ok: bool = False,
        **fields: Unpack[RecordFields],
    ) -> int:
        """As `Engine.patch`."""
        batch = list(dict.fromkeys([ids] if isinstance(ids, str) else checked_ids(ids, "patch")))
        name, schema = checked_namespace(namespace), self._template.index.memory.schema
        columns = [column for column in schema.declared() if column != ANY and not column.startswith(PAYLOAD)]
        patch = Patch.of(changes, fields, columns, self._template.bm25.fields, self.searcher.models)
        with self.coordinator.paused():
            found = dict(zip(batch, self.fetch(batch, namespace=name), strict=True))
            missing = next((record_id for record_id in batch if found[record_id] is None), None)
            if missing is not None and not missing_ok:
                where = f" in namespace {name!r}" if name else ""
                raise UnknownIdError(f"no live record with id {missing!r}{where}; nothing was changed")
            records = [patch.apply(record) for record in found.values() if record is not None]
            removed = {name: [record.id for record in records]}
            return self._write(removed=removed, added=records, missing_ok=True)

    def delete(self, ids: Iterable[str], *, namespace: str = "", missing_ok: bool = False) -> int:
        """As `Engine.delete`."""
        batch = checked_ids(ids, "delete")
        return self._write(removed={checked_namespace(namespace): batch}, missing_ok=missing_ok)

    def drop(self, namespace: str) -> None:
        """As `Engine.drop`."""
        self._check_open()
        self.coordinator.drop(checked_namespace(namespace))
        self._template.drop(namespace)

    async def aadd(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        """As `Engine.aadd`."""
        return await self._awaited(bind(self.add, records, vectors=vectors, ttl=ttl))

    async def aupdate(
        self,
        records: Iterable[AnyRecord],
        *,
        insert: bool = False,
        vectors: Given = None,
        ttl: Span | None = None,
    ) -> int:
        """As `Engine.aupdate`."""
        return await self._awaited(bind(self.update, records, insert=insert, vectors=vectors, ttl=ttl))

    async def aupsert(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        """As `Engine.aupsert`."""
        return await self._awaited(bind(self.upsert, records, vectors=vectors, ttl=ttl))

    async def adelete(self, ids: Iterable[str], *, namespace: str = "", missing_ok: bool = False) -> int:
        """As `Engine.adelete`."""
        return await self._awaited(bind(self.delete, ids, namespace=namespace, missing_ok=missing_ok))

    async def _awaited(self, write: Any) -> int:
        self._check_open()
        if self._writers is None:
            self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="fanrank-write")
        return int(await asyncio.wrap_future(self._writers.submit(write)))

    def _write(
        self,
        *,
        removed: Mapping[str, Sequence[str]] | None = None,
        added: Sequence[Record] = (),
        missing_ok: bool = False,
    ) -> int:
        self._check_open()
        schema = self._template.index.memory.schema
        return self.coordinator.write(schema, removed=removed, added=added, missing_ok=missing_ok)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("the engine is closed")

    # Reading.

    def fetch(self, ids: Sequence[str], *, namespace: str = "") -> list[Record | None]:
        """As `Engine.fetch`, at one epoch in all shards."""
        self._check_open()
        batch, name = checked_ids(ids, "fetch"), checked_namespace(namespace)

        def read(view: View, until: float | None) -> dict[tuple[str, str], Record]:
            wanted: dict[int, list[str]] = {}
            for record_id in dict.fromkeys(batch):
                wanted.setdefault(view.placement.shard_of(name, record_id), []).append(record_id)
            links = self.coordinator.links
            launch = Launch(self.coordinator, view, until, None)
            sent = {shard: links[shard].send("fetch", view.epoch, {name: some}) for shard, some in wanted.items()}
            found: dict[tuple[str, str], Record] = {}
            for answer in launch.received(sent).values():
                found |= answer
            return found

        found = self.searcher.retry(read)
        stripped = {key: strip(record) for key, record in found.items()}
        return [stripped.get((name, record_id)) for record_id in batch]

    def get(self, id: str, *, namespace: str = "") -> Record | None:
        """As `Engine.get`."""
        if not isinstance(id, str):
            raise RecordError(f"an id must be a string, not {id!r}")
        return self.fetch([id], namespace=namespace)[0]

    def count(self, filter: Filter | Mapping[str, Any] | None = None, *, namespace: str | None = "") -> int:
        """As `Engine.count`."""
        answers = self._read("count", parse_filter(filter), namespace)
        return sum(answers.values())

    def ids(self, filter: Filter | Mapping[str, Any] | None = None, *, namespace: str = "") -> Iterator[str]:
        """As `Engine.ids`."""
        name = checked_namespace(namespace)
        answers = self._read("ids", parse_filter(filter), name)
        pairs = sorted(pair for answer in answers.values() for pair in answer.get(name, ()))
        return iter([record_id for _, record_id in pairs])

    def _read(self, verb: str, filter: Filter | None, namespace: str | None) -> dict[int, Any]:
        """What all shards that may hold such records answer to a verb that reads."""
        self._check_open()

        def read(view: View, until: float | None) -> dict[int, Any]:
            shards = range(view.placement.shards) if namespace is None else view.placement.homes(namespace)
            links = self.coordinator.links
            launch = Launch(self.coordinator, view, until, None)
            return launch.received({shard: links[shard].send(verb, view.epoch, filter, namespace) for shard in shards})

        return self.searcher.declaring(lambda: self.searcher.retry(read), [filter])

    def _sizes(self) -> dict[str, int]:
        self._check_open()
        return self.searcher.retry(lambda view, until: Launch(self.coordinator, view, until, None).sizes())

    def observe(
        self, ids: Iterable[str], *, namespace: str = "", now: Moment | None = None, windows: int | None = None
    ) -> None:
        """As `Engine.observe`."""
        batch, name = checked_ids(ids, "observe"), checked_namespace(namespace)
        view = self.coordinator.view
        links = [self.coordinator.links[shard] for shard in view.placement.homes(name)]
        call_all(links, self.coordinator.until(), "observe", batch, name, now, windows)

    def resolved(self, name: str, entity: str, *, namespace: str = "", times: int = 1) -> None:
        """As `Engine.resolved`."""
        view = self.coordinator.view
        links = [self.coordinator.links[shard] for shard in view.placement.homes(checked_namespace(namespace))]
        call_all(links, self.coordinator.until(), "resolved", name, entity, namespace, times)

    def health(self, namespace: str = "") -> HealthReport:
        """As `Engine.health`: of the searches that this process has asked since it opened the memory."""
        return self._template.health(namespace)

    def stats(self) -> dict[str, Any]:
        """As `Engine.stats`, added up over the shards, and ``shards``: the statistics of each."""
        self._check_open()
        own = call_all(self.coordinator.links, self.coordinator.until(), "stats")
        view = self.coordinator.view
        total: dict[str, Any] = {}
        for each in own.values():
            for name, value in each.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "bytes_per_posting":
                    total[name] = total.get(name, 0) + value
        total["namespaces"] = len(self._sizes())
        total["epoch"] = view.epoch
        total["split"] = {name: list(parts) for name, parts in view.placement.split.items()}
        total["shards"] = [own[number] for number in sorted(own)]
        return total

    def verify(self) -> dict[str, int]:
        """As `Engine.verify`, added up over the shards."""
        self._check_open()
        with self.coordinator.paused():
            answers = call_all(self.coordinator.links, None, "verify")
        return {name: sum(each[name] for each in answers.values()) for name in ("records", "missing", "extra")}

    def flush(self) -> None:
        """As `Engine.flush`."""
        self._check_open()
        call_all(self.coordinator.links, None, "flush")


def _stream(search: Any, batches: Iterable[Sequence[AnyQuery]], ahead: int) -> Iterator[Hits]:
    """The answers in order, with so many searches on their way beyond the one that is handed out."""
    if not ahead:
        for batch in batches:
            yield search(list(batch))
        return
    with ThreadPoolExecutor(ahead + 1, thread_name_prefix="fanrank-stream") as pool:
        waiting: list[Future[Hits]] = []
        try:
            for batch in batches:
                waiting.append(pool.submit(search, list(batch)))
                if len(waiting) > ahead:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()
