"""LangGraph: `FanrankStore`, the long-term memory of a graph (`langgraph.store.base.BaseStore`).

An item is a record:

| of the item | in the engine |
|---|---|
| namespace ``("users", "ana")`` | the namespace ``langgraph/users/ana``, below the store's `root` |
| key | the id |
| value | the payload, so a filter reads its keys |
| the texts of the indexed fields | the text, for BM25, and one vector for each, for embeddings |
| updated_at | the time |
| created_at, ttl | `Record.extra` |

Labels and keys are escaped (`langgraph_items.py`), so any two stay apart and can be read back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

from ..engine.encoders.encoder import OwnVectors
from ..engine.errors import MissingExtraError, ParameterError, QueryError
from ..engine.memory import Memory
from ..engine.records.filters import Filter, col
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from ..engine.records.record import Record
from .langgraph_items import (
    BARE,
    MINUTE,
    Embedder,
    Labels,
    check_key,
    check_labels,
    check_put,
    created_at,
    escaped,
    id_of,
    items_of,
    labels_at,
    listed_namespaces,
    moment,
    passages_of,
    record_of,
    texts_of,
    tokenized_paths,
    value_of,
)
from .shared import AnyEngine, check_memory, metadata_filter, open_engine

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        IndexConfig,
        Item,
        ListNamespacesOp,
        Op,
        PutOp,
        Result,
        SearchOp,
        TTLConfig,
        ensure_embeddings,
    )
    from langgraph.store.base.batch import AsyncBatchedBaseStore
except ImportError:
    raise MissingExtraError("langgraph-checkpoint", "langgraph") from None

ROOT = "langgraph"
"""The namespace below which a store keeps its items."""

UNRANKED = "unranked"
"""The strategy that ignores the text of a search, as InMemoryStore does without an index."""

Strategy = Any
"""What `Engine.search` takes as its strategy."""


@dataclass
class _Work:
    """The operations of one batch by kind, checked, each with its position."""

    gets: list[tuple[int, GetOp]] = field(default_factory=list)
    searches: list[tuple[int, SearchOp]] = field(default_factory=list)
    lists: list[tuple[int, ListNamespacesOp]] = field(default_factory=list)
    puts: dict[tuple[str, str], PutOp] = field(default_factory=dict)
    """The last put of each (namespace, id)."""
    results: list[Result] = field(default_factory=list)
    found: dict[int, list[tuple[Record, float | None]]] = field(default_factory=dict)
    """The records that each search found, with their scores."""
    refreshed: dict[tuple[str, str], None] = field(default_factory=dict)
    """The items whose time to live begins again."""


Change = Callable[[Mapping[tuple[str, str], Record]], Iterable[Record]]


class FanrankStore(BaseStore):
    """A store over an engine. A batch of operations is one launch for its searches, and one durable write.

    `engine` is an `Engine`, the path of a directory, or None for an engine in memory. The items of a store lie in the
    namespaces below `root`; stores with other roots, and other records, may share the engine.

    `index` is LangGraph's `IndexConfig`. ``embed`` and ``dims`` make vectors of the ``fields``. Without them, searches
    with a text rank by BM25 over the fields (by default the whole value), or by the encoder of an engine that has one.

    `strategy` is what `Engine.search` takes: by default ``auto`` where there are vectors, else ``bm25``. ``dense``
    gives the scores of InMemoryStore, cosines, and lists the items without a vector last. ``unranked`` ignores the text
    of a search. A search without a text lists the items that pass its filter, the last updated first.

    `ttl` is LangGraph's `TTLConfig`. An item that has expired is in no answer, whether it was swept or not; the engine
    sweeps after writes, and `sweep_ttl` does at once.

    Reads of a batch see the state before it. Of puts to one key the last counts. All operations are checked before any
    is run, and the puts are written whole or not at all. Any thread may use the store.

    Raises `ParameterError`, and as `Engine.open`.
    """

    supports_ttl = True

    def __init__(
        self,
        engine: AnyEngine = None,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        strategy: Strategy | None = None,
        root: str = ROOT,
    ) -> None:
        if isinstance(engine, Memory) and engine.space is not None:
            raise ParameterError(
                "a store spans many namespaces, and a Namespace sees one: give the engine, and root=namespace.name"
            )
        if not isinstance(root, str) or not root or root != root.strip("/"):
            raise ParameterError(f"root must be a path of namespaces such as 'langgraph', not {root!r}")
        self.root = root
        self._sweeper: tuple[threading.Event, Future[None]] | None = None
        self.ttl_config = ttl
        self.index_config = index
        self.embeddings = None if index is None or index.get("embed") is None else ensure_embeddings(index["embed"])
        if self.embeddings is not None and index is not None and "dims" not in index:
            raise ParameterError("index needs 'dims', the number of dimensions of the embeddings, beside 'embed'")
        self._fields = tokenized_paths((index or {}).get("fields") or ["$"])
        self._owns = not isinstance(engine, Memory)
        vectors = None if self.embeddings is None or index is None else _pinned(index)
        self.engine = open_engine(engine, encoder=vectors) if self._owns and vectors else open_engine(engine)
        check_memory(self.engine, "rewrite", "arewrite", "sweep")
        try:
            self._check_dimension()
        except ParameterError:
            self.close()
            raise
        self._embedder = Embedder(self.embeddings, self.engine.encoder)
        self.strategy = strategy if strategy is not None else "auto" if self.engine.pin is not None else "bm25"

    def _check_dimension(self) -> None:
        if self.embeddings is None or self.index_config is None:
            return
        pin, dims = self.engine.pin, self.index_config["dims"]
        if pin is None:
            raise ParameterError(
                f"the engine takes no vectors; make it with encoder=fr.OwnVectors({dims}), or leave 'embed' out"
            )
        if pin["dimension"] != dims:
            raise ParameterError(f"the engine's vectors have {pin['dimension']} dimensions, and index says {dims}")

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations; the results are in their order.

        Raises `NamespaceError`, `QueryError`, `RecordError`, `ParameterError`, and as `Engine.search` and
        `Engine.rewrite`.
        """
        work = self._sort(ops)
        self._read_items(work)
        if work.searches:
            texts = self._texts_of_queries(work)
            queries = self._queries(work, texts, self._embedder.queries(texts))
            self._rank(work, self.engine.search(queries, **self._keywords()))
            if rest := self._rest(work):
                self._append(work, rest, self.engine.search([*rest.values()], **self._keywords()))
            self._answer(work)
        if work.puts or work.refreshed:
            indexed = self._indexed(work)
            self.engine.rewrite(*self._change(work, indexed, self._embedder.documents(passages_of(indexed))))
        return work.results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`, awaited. The searches of concurrent callers share a launch, and their writes a sync."""
        work = self._sort(ops)
        if work.gets or work.lists:
            await asyncio.to_thread(self._read_items, work)
        if work.searches:
            texts = self._texts_of_queries(work)
            queries = self._queries(work, texts, await self._embedder.aqueries(texts))
            self._rank(work, await self.engine.asearch(queries, **self._keywords()))
            if rest := self._rest(work):
                self._append(work, rest, await self.engine.asearch([*rest.values()], **self._keywords()))
            self._answer(work)
        if work.puts or work.refreshed:
            indexed = self._indexed(work)
            vectors = await self._embedder.adocuments(passages_of(indexed))
            await self.engine.arewrite(*self._change(work, indexed, vectors))
        return work.results

    def sweep_ttl(self) -> int:
        """Delete the items, and other records of the engine, that have expired. Returns how many."""
        return self.engine.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep every so many minutes (None: what `ttl` says, else 5), in a thread, until `stop_ttl_sweeper`.

        The engine sweeps after writes by itself; this is for a store that is only read. Returns a future that is done
        when the thread has ended. A second call returns the first one's.
        """
        if self._sweeper is not None and not self._sweeper[1].done():
            return self._sweeper[1]
        minutes = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes") or 5
        stopped, done = threading.Event(), Future[None]()

        def sweep() -> None:
            try:
                while not stopped.wait(minutes * MINUTE):
                    self.sweep_ttl()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._sweeper = stopped, done
        threading.Thread(target=sweep, name="fanrank-ttl", daemon=True).start()
        return done

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the thread of `start_ttl_sweeper`. Returns whether it has ended, within `timeout` seconds."""
        if self._sweeper is None:
            return True
        stopped, done = self._sweeper
        stopped.set()
        try:
            done.exception(timeout)
        except TimeoutError:
            return False
        self._sweeper = None
        return True

    def close(self) -> None:
        """Stop the sweeper, and close the engine if the store opened it."""
        self.stop_ttl_sweeper()
        if self._owns:
            self.engine.close()

    def __enter__(self) -> FanrankStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sort(self, ops: Iterable[Op]) -> _Work:
        """The operations by kind, checked."""
        work = _Work()
        for position, op in enumerate(ops):
            if isinstance(op, GetOp):
                check_labels(op.namespace)
                check_key(op.key)
                work.gets.append((position, op))
            elif isinstance(op, SearchOp):
                check_labels(op.namespace_prefix)
                work.searches.append((position, op))
            elif isinstance(op, ListNamespacesOp):
                for condition in op.match_conditions or ():
                    check_labels(condition.path)
                    if condition.match_type not in ("prefix", "suffix"):
                        raise QueryError(f"a condition matches by 'prefix' or 'suffix', not {condition.match_type!r}")
                work.lists.append((position, op))
            elif isinstance(op, PutOp):
                check_put(op)
                work.puts[self._path(op.namespace), id_of(op.key)] = op
            else:
                raise QueryError(f"unknown operation type: {type(op)}")
            work.results.append(None)
        return work

    def _path(self, namespace: Labels) -> str:
        """The namespace of the engine that holds the items of this one."""
        return "/".join([self.root, *map(escaped, namespace)])

    def _read_items(self, work: _Work) -> None:
        """Answer the operations that read without searching."""
        ids: dict[str, dict[str, Record | None]] = {}
        for _, op in work.gets:
            ids.setdefault(self._path(op.namespace), {})[id_of(op.key)] = None
        for path, wanted in ids.items():
            wanted.update(zip(wanted, self.engine.fetch([*wanted], namespace=path), strict=True))
        given: set[int] = set()
        for position, op in work.gets:
            path, name = self._path(op.namespace), id_of(op.key)
            record = ids[path][name]
            if record is None:
                continue
            if id(record) in given:  # two gets of one key share no value that a caller may change
                record = self.engine.get(name, namespace=path) or record
            given.add(id(record))
            work.results[position] = Item(
                value=value_of(record),
                key=op.key,
                namespace=op.namespace,
                created_at=created_at(record),
                updated_at=moment(record.time),
            )
            if op.refresh_ttl and record.expires is not None:
                work.refreshed[path, name] = None
        if work.lists:
            start = self.root + "/"
            known = [labels_at(name[len(start) :]) for name in self.engine.namespaces if name.startswith(start)]
            for position, listed in work.lists:
                work.results[position] = listed_namespaces(known, listed)

    def _ranks(self, op: SearchOp) -> bool:
        return bool(op.query) and self.strategy != UNRANKED

    @property
    def _appends(self) -> bool:
        """Whether items without a vector come after those that a search ranked."""
        return self.strategy == "dense"

    def _keywords(self) -> dict[str, Any]:
        return {"strategy": "bm25" if self.strategy == UNRANKED else self.strategy, "texts": True, "payload": True}

    def _texts_of_queries(self, work: _Work) -> list[str]:
        """The texts to embed, each once."""
        if self.embeddings is None or self.strategy == "bm25":
            return []
        return list(dict.fromkeys([op.query for _, op in work.searches if op.query and self._ranks(op)]))

    def _queries(self, work: _Work, texts: Sequence[str], vectors: Sequence[Any]) -> list[Query]:
        vector_of = dict(zip(texts, vectors, strict=True)) if vectors else {}
        # Fusions that look at ages and at times in the text need to know when they are asked.
        now = None if self.strategy in ("bm25", "dense", UNRANKED) else time.time()
        queries = []
        for _, op in work.searches:
            passing, path = _filter_of(op), self._path(op.namespace_prefix)
            if not self._ranks(op):
                queries.append(Query(k=op.limit, offset=op.offset, under=path, filter=passing, newest=True))
                continue
            text = cast(str, op.query)
            # A list that goes on with items without a vector is cut into pages when it is whole.
            k, offset = (op.limit + op.offset, 0) if self._appends else (op.limit, op.offset)
            queries.append(
                Query(text, k, under=path, filter=passing, offset=offset, vector=vector_of.get(text), now=now)
            )
        return queries

    def _rank(self, work: _Work, hits: Hits) -> None:
        for row, (position, op) in enumerate(work.searches):
            count = int(hits.counts[row])
            assert hits.records is not None
            scores = hits.scores[row, :count].tolist() if self._ranks(op) else [None] * count
            work.found[position] = [*zip(hits.records[row, :count].tolist(), scores, strict=True)]

    def _rest(self, work: _Work) -> dict[int, Query]:
        """The queries for items without a vector, by the position of the search whose list goes on with them."""
        rest = {}
        for position, op in work.searches if self._appends else ():
            missing = op.limit + op.offset - len(work.found[position])
            if self._ranks(op) and missing > 0:
                passing, bare = _filter_of(op), col("type") == BARE
                rest[position] = Query(
                    k=missing,
                    under=self._path(op.namespace_prefix),
                    filter=bare if passing is None else passing & bare,
                    newest=True,
                )
        return rest

    def _append(self, work: _Work, rest: Iterable[int], hits: Hits) -> None:
        assert hits.records is not None
        for position, count, records in zip(rest, hits.counts.tolist(), hits.records.tolist(), strict=True):
            known = {(record.namespace, record.id) for record, _ in work.found[position]}
            # A write between the two searches may have taken an item's vector away.
            more = [one for one in records[:count] if (one.namespace, one.id) not in known]
            work.found[position] += [(record, None) for record in more]

    def _answer(self, work: _Work) -> None:
        """Make the items of the records that each search found."""
        skip = len(self.root) + 1
        for position, op in work.searches:
            found = work.found[position]
            if self._appends and self._ranks(op):
                found = found[op.offset :]
            if op.refresh_ttl:
                for record, _ in found:
                    if record.expires is not None:
                        work.refreshed[record.namespace, record.id] = None
            work.results[position] = items_of(found, skip)

    def _indexed(self, work: _Work) -> dict[tuple[str, str], list[str]]:
        """The texts of each item that is put."""
        return {
            place: texts_of(op, self._fields if op.index is None else tokenized_paths(op.index or ()))
            for place, op in work.puts.items()
            if op.value is not None
        }

    def _change(
        self, work: _Work, indexed: Mapping[tuple[str, str], list[str]], vectors: Sequence[Any]
    ) -> tuple[dict[str, list[str]], Change]:
        """What `Engine.rewrite` takes to write the puts, and to begin the times to live anew."""
        texts = passages_of(indexed)
        row_of = dict(zip(texts, vectors, strict=True)) if len(vectors) else {}
        now = time.time()
        records: dict[tuple[str, str], tuple[Record, dict[str, Any]] | None] = {}
        for place, op in work.puts.items():
            records[place] = None if op.value is None else record_of(place, op, indexed[place], row_of, now)
        ids: dict[str, list[str]] = {}
        for path, name in (*work.puts, *work.refreshed):
            ids.setdefault(path, []).append(name)

        def change(live: Mapping[tuple[str, str], Record]) -> Iterator[Record]:
            for place, record in live.items():
                if place not in records:
                    ttl = record.extra.get("ttl")
                    yield record if ttl is None else record.with_expiry(now + ttl * MINUTE)
            for place, written in records.items():
                if written is not None:
                    record, extra = written
                    if place in live:
                        # A record that another wrote here has none, and becomes an item now.
                        extra["created_at"] = live[place].extra.get("created_at", now)
                    yield record

        return ids, change


class AsyncFanrankStore(AsyncBatchedBaseStore):
    """A `FanrankStore` for one event loop: what its tasks ask in one tick becomes one batch, with one durable write.

    It takes what `FanrankStore` takes, or one as `store`, and is made while the loop runs. A batch is checked as a
    whole, so one task's bad operation fails those of all tasks of the tick; the awaited methods of `FanrankStore`
    itself share launches without that.
    """

    supports_ttl = True

    def __init__(self, *args: Any, store: FanrankStore | None = None, **options: Any) -> None:
        super().__init__()
        if store is not None and (args or options):
            raise ParameterError("give a store, or what a FanrankStore takes")
        self.store = FanrankStore(*args, **options) if store is None else store
        self.ttl_config = self.store.ttl_config

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `FanrankStore.abatch`."""
        return await self.store.abatch(ops)


def _pinned(index: IndexConfig) -> OwnVectors:
    """The encoder of an engine that keeps the vectors of these embeddings. A model that is named is pinned."""
    embed = index["embed"]
    return OwnVectors(index["dims"], embed) if isinstance(embed, str) else OwnVectors(index["dims"])


def _filter_of(op: SearchOp) -> Filter | None:
    return metadata_filter(op.filter, "langgraph") if op.filter else None
