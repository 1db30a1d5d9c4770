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

Labels and keys are escaped so that any two stay apart and can be read back: ``%``, in labels ``/`` too, and lone
surrogates, which no file can hold, become ``%`` and four hexadecimal digits. An empty key becomes ``%``.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, cast

from ..engine.encoders.encoder import Encoder, OwnVectors
from ..engine.engine import Engine
from ..engine.errors import MissingExtraError, ParameterError, QueryError, RecordError, StorageError
from ..engine.namespace import Namespace
from ..engine.records.filters import Filter, col
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from ..engine.records.record import Record
from .shared import AnyEngine, metadata_filter, open_engine

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        IndexConfig,
        InvalidNamespaceError,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        ensure_embeddings,
        get_text_at_path,
        tokenize_path,
    )
    from langgraph.store.base.batch import AsyncBatchedBaseStore
    from langgraph.store.base.embed import EmbeddingsLambda
except ImportError:
    raise MissingExtraError("langgraph-checkpoint", "langgraph") from None

ROOT = "langgraph"
"""The namespace below which a store keeps its items."""

UNRANKED = "unranked"
"""The strategy that ignores the text of a search, as InMemoryStore does without an index."""

BARE = "bare"
"""`Record.type` of an item without a text or a vector, which only a search without a text finds."""

MINUTE = 60.0

Strategy = Any
"""What `Engine.search` takes as its strategy."""

Labels = tuple[str, ...]


class NamespaceError(QueryError, InvalidNamespaceError):
    """A namespace of an operation is empty or reserved, or one of its labels is not allowed."""


@dataclass
class _Work:
    """The operations of one batch by kind, checked, each with its position."""

    gets: list[tuple[int, GetOp]] = field(default_factory=list)
    searches: list[tuple[int, SearchOp]] = field(default_factory=list)
    lists: list[tuple[int, ListNamespacesOp]] = field(default_factory=list)
    puts: dict[tuple[str, str], PutOp] = field(default_factory=dict)
    """The last put of each (namespace, id)."""
    results: list[Result] = field(default_factory=list)
    refreshed: dict[tuple[str, str], None] = field(default_factory=dict)
    """The items whose time to live begins again."""


@dataclass(frozen=True)
class _Texts:
    """What is indexed of an item."""

    text: str
    passages: tuple[str, ...]
    """The texts that are embedded."""


class FanrankStore(BaseStore):
    """A store over an engine. A batch of operations is one launch for its searches, and one durable write.

    `engine` is an `Engine`, the path of a directory, or None for an engine in memory. The items of a store lie in the
    namespaces below `root`; stores with other roots, and other records, may share the engine.

    `index` is LangGraph's `IndexConfig`. ``embed`` and ``dims`` make vectors of the ``fields``. Without them, searches
    with a text rank by BM25 over the fields (by default the whole value), or by the encoder of an engine that has one.

    `strategy` is what `Engine.search` takes: by default ``auto`` where there are vectors, else ``bm25``. ``dense`` gives
    the scores of InMemoryStore, cosines, and lists the items without a vector last. ``unranked`` ignores the text of a
    search. A search without a text lists the items that pass its filter, the last updated first.

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
        if isinstance(engine, Namespace):
            raise ParameterError(
                "a store spans many namespaces, and a Namespace sees one: give the engine, and root=namespace.name"
            )
        if not isinstance(root, str) or not root or root != root.strip("/"):
            raise ParameterError(f"root must be a path of namespaces such as 'langgraph', not {root!r}")
        self.root = root
        self.ttl_config = ttl
        self.index_config = index
        self.embeddings = None if index is None or index.get("embed") is None else ensure_embeddings(index["embed"])
        if self.embeddings is not None and index is not None and "dims" not in index:
            raise ParameterError("index needs 'dims', the number of dimensions of the embeddings, beside 'embed'")
        self._fields = _tokenized((index or {}).get("fields") or ["$"])
        self._owns = not isinstance(engine, Engine)
        made = open_engine(engine, **({"encoder": _pinned(index)} if self._owns and self.embeddings else {}))
        self.engine = cast(Engine, made)
        try:
            self._check_dimension()
        except ParameterError:
            self.close()
            raise
        self.strategy = strategy if strategy is not None else "auto" if self.engine.pin is not None else "bm25"
        self._sweeper: tuple[threading.Event, Future[None]] | None = None

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

    @property
    def _own_encoder(self) -> Encoder | None:
        """The engine's encoder, where the store has no embeddings and it can encode."""
        encoder = self.engine.encoder
        return encoder if self.embeddings is None and getattr(encoder, "encodes", encoder is not None) else None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations; the results are in their order.

        Raises `NamespaceError`, `QueryError`, `RecordError`, `ParameterError`, and as `Engine.search` and
        `Engine.rewrite`.
        """
        work = self._sort(ops)
        self._read_items(work)
        if work.searches:
            texts = self._texts_of_queries(work)
            queries = self._queries(work, dict(zip(texts, self._embed_queries(texts), strict=True)))
            self._take(work, self.engine.search(queries, **self._keywords()))
            if fillers := self._fillers(work):
                self._fill(work, fillers, self.engine.search([*fillers.values()], **self._keywords()))
        if work.puts or work.refreshed:
            indexed = self._indexed(work)
            self.engine.rewrite(*self._change(work, indexed, self._embed(_passages(indexed))))
        return work.results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`, awaited. The searches of concurrent callers share a launch, and their writes a sync."""
        work = self._sort(ops)
        if work.gets or work.lists:
            await asyncio.to_thread(self._read_items, work)
        if work.searches:
            texts = self._texts_of_queries(work)
            queries = self._queries(work, dict(zip(texts, await self._aembed_queries(texts), strict=True)))
            self._take(work, await self.engine.asearch(queries, **self._keywords()))
            if fillers := self._fillers(work):
                self._fill(work, fillers, await self.engine.asearch([*fillers.values()], **self._keywords()))
        if work.puts or work.refreshed:
            indexed = self._indexed(work)
            passages = _passages(indexed)
            if self.embeddings is not None and passages:
                rows: Sequence[Any] = await self.embeddings.aembed_documents(passages)
            else:
                rows = await asyncio.to_thread(self._embed, passages) if passages else []
            await self.engine.arewrite(*self._change(work, indexed, rows))
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
                _check_labels(op.namespace)
                _check_key(op.key)
                work.gets.append((position, op))
            elif isinstance(op, SearchOp):
                _check_labels(op.namespace_prefix)
                work.searches.append((position, op))
            elif isinstance(op, ListNamespacesOp):
                for condition in op.match_conditions or ():
                    _check_labels(condition.path)
                    if condition.match_type not in ("prefix", "suffix"):
                        raise QueryError(f"a condition matches by 'prefix' or 'suffix', not {condition.match_type!r}")
                work.lists.append((position, op))
            elif isinstance(op, PutOp):
                _check_put(op)
                work.puts[self._path(op.namespace), _id_of(op.key)] = op
            else:
                raise QueryError(f"unknown operation type: {type(op)}")
            work.results.append(None)
        return work

    def _path(self, namespace: Labels) -> str:
        """The namespace of the engine that holds the items of this one."""
        return "/".join([self.root, *map(_escaped, namespace)])

    def _read_items(self, work: _Work) -> None:
        """Answer the operations that read without searching."""
        ids: dict[str, dict[str, Record | None]] = {}
        for _, op in work.gets:
            ids.setdefault(self._path(op.namespace), {})[_id_of(op.key)] = None
        for path, wanted in ids.items():
            wanted.update(zip(wanted, self.engine.fetch([*wanted], namespace=path), strict=True))
        given: set[int] = set()
        for position, op in work.gets:
            path, name = self._path(op.namespace), _id_of(op.key)
            record = ids[path][name]
            if record is None:
                continue
            if id(record) in given:  # two gets of one key share no value that a caller may change
                record = self.engine.get(name, namespace=path) or record
            given.add(id(record))
            work.results[position] = Item(
                value=_value_of(record),
                key=op.key,
                namespace=op.namespace,
                created_at=_created(record),
                updated_at=_moment(record.time),
            )
            if op.refresh_ttl and record.expires is not None:
                work.refreshed[path, name] = None
        if work.lists:
            start = self.root + "/"
            known = [_labels(name[len(start) :]) for name in self.engine.namespaces if name.startswith(start)]
            for position, listed in work.lists:
                work.results[position] = _listed(known, listed)

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

    def _queries(self, work: _Work, vectors: Mapping[str, Any]) -> list[Query]:
        now = None if self.strategy in ("bm25", "dense", UNRANKED) else time.time()
        queries = []
        for _, op in work.searches:
            passing = metadata_filter(op.filter, "langgraph")
            path = self._path(op.namespace_prefix)
            if not self._ranks(op):
                queries.append(Query(k=op.limit, offset=op.offset, under=path, filter=passing, newest=True))
                continue
            text = cast(str, op.query)
            # A page of a list that goes on with unranked items is cut from the list.
            k, offset = (op.limit + op.offset, 0) if self._appends else (op.limit, op.offset)
            queries.append(
                Query(text, k, under=path, filter=passing, offset=offset, vector=vectors.get(text), now=now)
            )
        return queries

    def _take(self, work: _Work, hits: Hits) -> None:
        """Make items of the hits of all searches."""
        for row, (position, op) in enumerate(work.searches):
            ranked = self._ranks(op)
            items = self._items(work, hits, row, op, ranked)
            work.results[position] = items[op.offset :] if ranked and self._appends else items

    def _items(self, work: _Work, hits: Hits, row: int, op: SearchOp, ranked: bool) -> list[SearchItem]:
        count = int(hits.counts[row])
        assert hits.records is not None
        records: list[Record] = hits.records[row, :count].tolist()
        scores = hits.scores[row, :count].tolist() if ranked else [None] * count
        skip = len(self.root) + 1
        items = []
        for record, score in zip(records, scores, strict=True):
            if op.refresh_ttl and record.expires is not None:
                work.refreshed[record.namespace, record.id] = None
            items.append(
                SearchItem(
                    _labels(record.namespace[skip:]),
                    _key_of(record.id),
                    _value_of(record),
                    _created(record),
                    _moment(record.time),
                    score,
                )
            )
        return items

    def _fillers(self, work: _Work) -> dict[int, Query]:
        """By position, the queries for the items without a vector that go on where the ranked ones end."""
        if not self._appends:
            return {}
        fillers = {}
        for position, op in work.searches:
            if not self._ranks(op):
                continue
            found = len(cast(list[SearchItem], work.results[position]))
            if found < op.limit:
                bare = col("type") == BARE
                passing = metadata_filter(op.filter, "langgraph")
                fillers[position] = Query(
                    k=op.limit + op.offset,
                    under=self._path(op.namespace_prefix),
                    filter=bare if passing is None else passing & bare,
                    newest=True,
                )
        return fillers

    def _fill(self, work: _Work, fillers: Mapping[int, Query], hits: Hits) -> None:
        raise NotImplementedError
