"""Haystack's document store and retrievers over an engine.

`FanrankDocumentStore` keeps Haystack's documents, in memory or in a directory. The retrievers are components of
pipelines; each asks the engine once for all that it was given. Their asynchronous forms share launches with each other.

Long because files of pipelines name these classes by their module, and all of them belong to one.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet, WeakValueDictionary

from ..engine import errors
from ..engine.errors import MissingExtraError, ParameterError, QueryError, RecordError
from ..engine.hybrid.strategy import Strategy
from ..engine.memory import Memory
from ..engine.records.filters import Filter, all_of, parse_filter
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from ..engine.records.record import Record
from .shared import AnyEngine, metadata_filter, open_engine, path_of

try:
    from haystack import component, default_from_dict, default_to_dict
    from haystack.dataclasses import Document
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError as HaystackFilterError
except ImportError as error:
    raise MissingExtraError("haystack-ai", "haystack") from error

from .haystack_documents import document_of, record_of

DIMENSION = 768
"""Components of the embeddings of a new store that is told no `embedding_dimension`."""
STORE = "records.sqlite"
"""The file that a directory of an engine has from its first opening on."""
BM25_SCALE = 8.0
"""What a BM25 score is divided by before the logistic function scales it, as in Haystack's store in memory."""

AnyFilters = dict[str, Any] | None
AnyStrategy = str | dict[str, Any] | Strategy
Component = TypeVar("Component", bound="_Retriever")
P = ParamSpec("P")
R = TypeVar("R")


class DuplicateIdError(errors.DuplicateIdError, DuplicateDocumentError):
    """A document's id is in the store already, or occurs twice among the documents that are written."""


class FilterError(QueryError, HaystackFilterError):
    """A filter is not of Haystack's form, or compares what cannot be compared."""


class _Opened:
    """An engine that stores of this process share."""

    def __init__(self, engine: Memory, settings: dict[str, Any], *, given: bool = False) -> None:
        self.engine, self.settings, self.given = engine, settings, given
        self.users: WeakSet[FanrankDocumentStore] = WeakSet()


# By what they hold. Pipelines that write and pipelines that ask are loaded each with a store of its own, and one
# process may open a directory once only.
_OPENED: WeakValueDictionary[str, _Opened] = WeakValueDictionary()
_LOCK = threading.Lock()


def _awaited(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The twin of a verb that does its work in a thread."""

    @wraps(verb)
    async def twin(self: Any, *given: P.args, **named: P.kwargs) -> R:
        return await asyncio.to_thread(getattr(self, verb.__name__), *given, **named)

    twin.__name__, twin.__qualname__ = f"{verb.__name__}_async", f"{verb.__qualname__}_async"
    twin.__doc__ = f"As `{verb.__name__}`, in a thread."
    made: Any = twin
    return made  # type: ignore[no-any-return]


class FanrankDocumentStore:
    """A document store of Haystack over an engine.

    `engine` is the path of a directory, an `Engine`, a `Namespace`, or None for an engine in memory. It is opened when
    it is first used. Stores of one process with the same path, or in memory with the same `index` (None: a new one),
    share an engine. An engine in memory lives as long as one of its stores.

    `namespace` is the namespace of the documents. `embedding_dimension` is the number of components of their embeddings
    (None: 768 in a new store, and what it was made with in one that exists). `return_embedding` says whether
    `filter_documents` gives embeddings back. `engine_options` are those of `Engine` for a new one, such as
    ``{"analyzer": "english-porter"}``; an ``encoder`` there embeds documents and queries that bring no embedding.

    Raises `ParameterError`, and where it is first used as `Engine.open`.
    """

    def __init__(
        self,
        engine: AnyEngine = None,
        *,
        namespace: str = "",
        index: str | None = None,
        embedding_dimension: int | None = None,
        return_embedding: bool = True,
        engine_options: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(engine, Memory) and (embedding_dimension is not None or engine_options):
            raise ParameterError(
                "embedding_dimension and engine_options are for an engine that is made here, and one is given"
            )
        if engine is not None and index is not None:
            raise ParameterError("index names an engine in memory, and another engine is given")
        if isinstance(engine, Memory) and engine.space is not None and namespace:
            raise ParameterError(f"the engine is the namespace {engine.space!r} already; leave out 'namespace'")
        self.engine: Memory | str | None
        self.engine = engine if engine is None or isinstance(engine, Memory) else os.fspath(engine)
        self.namespace = namespace
        self.index = index or (str(uuid.uuid4()) if engine is None else None)
        self.embedding_dimension = embedding_dimension
        self.return_embedding = return_embedding
        self.engine_options = dict(engine_options or {})
        self._opened: _Opened | None = None
        # Copies that are made of a pipeline in this process share the engine.
        if isinstance(engine, Memory) and (path := _path_of(engine)) is not None:
            with _LOCK:
                self._opened = _OPENED[_key_of(path)] = _Opened(engine, {}, given=True)

    @property
    def memory(self) -> Memory:
        """The engine, or its namespace, that holds the documents."""
        engine = self.engine
        if not isinstance(engine, Memory):
            engine = (self._opened or self._open()).engine
        return engine.namespace(self.namespace) if self.namespace else engine

    def _open(self) -> _Opened:
        path = self.engine
        assert path is None or isinstance(path, str)
        key = f"index:{self.index}" if path is None else _key_of(path)
        settings = dict(self.engine_options)
        if self.embedding_dimension is not None:
            settings.setdefault("encoder", f"own:{self.embedding_dimension}")
        with _LOCK:
            opened = _OPENED.get(key)
            if opened is None:
                fresh = path is None or not os.path.exists(os.path.join(path, STORE))
                options = {"encoder": f"own:{DIMENSION}", **settings} if fresh else settings
                opened = _OPENED[key] = _Opened(open_engine(path, **options), settings)
            elif settings and settings != opened.settings:
                raise ParameterError(
                    f"{path or self.index}: another store of this process has it open with {opened.settings}, not with "
                    f"{settings}; give both the same embedding_dimension and engine_options"
                )
            opened.users.add(self)
            self._opened = opened
        return opened

    def warm_up(self) -> None:
        """Open the engine, which the first use does otherwise."""
        _ = self.memory

    def close(self) -> None:
        """Close a directory that no other store of this process uses; the next use opens it again.

        An engine that was given stays open, and one in memory keeps its documents. Raises `StorageError`.
        """
        with _LOCK:
            opened = self._opened
            if opened is None or not isinstance(self.engine, str):
                return
            self._opened = None
            opened.users.discard(self)
            if not opened.users and not opened.given and _OPENED.get(_key_of(self.engine)) is opened:
                del _OPENED[_key_of(self.engine)]
                opened.engine.close()

    close_async = _awaited(close)

    def to_dict(self) -> dict[str, Any]:
        """The store as Haystack writes it into a pipeline's file: a path or an index, and settings; no documents.

        Raises `ParameterError` for a `Namespace`, and for an engine in memory that was made elsewhere.
        """
        engine = self.engine
        path = _path_of(engine) if isinstance(engine, Memory) else engine
        if isinstance(engine, Memory) and path is None:
            raise ParameterError(
                "a file of a pipeline cannot name this engine: give the store the path of a directory, and a namespace"
            )
        return default_to_dict(
            self,
            engine=path,
            namespace=self.namespace,
            index=self.index,
            embedding_dimension=self.embedding_dimension,
            return_embedding=self.return_embedding,
            engine_options=dict(self.engine_options),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FanrankDocumentStore:
        """The store that `to_dict` wrote."""
        return default_from_dict(cls, data)

    def count_documents(self) -> int:
        """The number of documents."""
        return self.memory.count()

    def filter_documents(self, filters: AnyFilters = None) -> list[Document]:
        """The documents that pass the filters, in the order of their last write. Raises `FilterError`.

        Filters are on ``meta.KEY``. Here alone one may be on ``id``, by itself, with ``==``.
        """
        records: Iterable[Record | None]
        if isinstance(filters, Mapping) and filters.get("field") == "id" and filters.get("operator") == "==":
            # Haystack's components ask so for single documents. The engine finds an id without a filter.
            value = filters.get("value")
            records = self.memory.fetch([value]) if isinstance(value, str) else []
        else:
            records = self._records(filters)
        return [document_of(one, embedding=self.return_embedding) for one in records if one is not None]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents, all or none, as one durable batch; returns how many were written.

        A document whose id is in the store already, or earlier in the batch, raises `DuplicateIdError` under the
        policies ``FAIL`` and ``NONE``, is left out under ``SKIP``, and takes the place of the other under
        ``OVERWRITE``. Raises `ValueError` for anything but documents, and `RecordError` for what no record can hold.
        """
        if isinstance(documents, (str, bytes)) or not isinstance(documents, Iterable):
            raise RecordError(f"documents must be a list of Documents, not {type(documents).__name__}")
        batch = list(documents)
        wrong = next((one for one in batch if not isinstance(one, Document)), None)
        if wrong is not None:
            raise RecordError(f"documents must be a list of Documents, and one is a {type(wrong).__name__}")
        records, memory = [*map(record_of, batch)], self.memory
        if policy == DuplicatePolicy.OVERWRITE:
            # The last of each id, in its place.
            last = {record.id: number for number, record in enumerate(records)}
            memory.upsert([record for number, record in enumerate(records) if last[record.id] == number])
            return len(records)
        if policy == DuplicatePolicy.SKIP:
            first = {record.id: record for record in reversed(records)}
            fresh = [record for record in records if first[record.id] is record]
            while True:
                present = memory.fetch([record.id for record in fresh])
                fresh = [record for record, held in zip(fresh, present, strict=True) if held is None]
                try:
                    return memory.add(fresh)
                except errors.DuplicateIdError:
                    continue  # another writer came in between
        try:
            return memory.add(records)
        except errors.DuplicateIdError as error:
            raise DuplicateIdError(error.message, where=error.where, record_id=error.record_id) from error

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete the documents with these ids; ids that are not there have no effect."""
        self.memory.delete(list(dict.fromkeys(document_ids)), missing_ok=True)

    def delete_all_documents(self) -> None:
        """Delete all documents."""
        self.memory.drop("")

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that pass the filters, all or none; returns how many. Raises `FilterError`."""
        return self.memory.delete_where(_needed(filters))

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set these keys of ``meta`` in the documents that pass the filters, all or none; returns how many.

        The documents become the youngest, in their former order. No other write comes in between. Raises `FilterError`.
        """

        def merged(record: Record) -> Record:
            return replace(record, payload={**(record.payload or {}), **meta})

        return self.memory.update_where(_needed(filters), merged)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """The number of documents that pass the filters. Raises `FilterError`."""
        return self.memory.count(_filter_of(filters))

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """For each field of ``meta``, the number of its values among the documents that pass the filters.

        Values that Python calls equal count once. None is no value. Raises `FilterError`.
        """
        names = [_bare(field) for field in metadata_fields]
        values: dict[str, set[Any]] = {name: set() for name in names}
        for record in self._records(filters):
            meta = record.payload or {}
            for name in names:
                if meta.get(name) is not None:
                    values[name].add(_hashable(meta[name]))
        return {name: len(values[name]) for name in names}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """The fields of ``meta`` that hold a value, each with its type: boolean, int, float or keyword (all others).

        Of a field with values of several types, that of the last document counts.
        """
        types = {bool: "boolean", int: "int", float: "float"}
        return {
            name: {"type": kind}
            for name, kind in {
                name: types.get(type(value), "keyword")
                for record in self._records(None)
                for name, value in (record.payload or {}).items()
                if value is not None
            }.items()
        }

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """The smallest and the largest value of a field of ``meta``; None where there are none, or they have no order.

        Numbers, booleans and strings count.
        """
        name = _bare(metadata_field)
        held = ((record.payload or {}).get(name) for record in self._records(None))
        values = [value for value in held if isinstance(value, (int, float, str))]
        try:
            return {"min": min(values, default=None), "max": max(values, default=None)}
        except TypeError:
            return {"min": None, "max": None}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: AnyFilters = None,
    ) -> tuple[list[Any], int]:
        """A page of the values of a field of ``meta``, sorted as strings, and the number of all of them.

        1, 1.0, True and "1" are different values. With `search_term` only values whose string contains it count,
        whatever its case. Raises `FilterError`.
        """
        name, term = _bare(metadata_field), (search_term or "").lower()
        values: dict[tuple[str, Any], Any] = {}
        for record in self._records(filters):
            value = (record.payload or {}).get(name)
            if value is not None and term in str(value).lower():
                values.setdefault((type(value).__name__, _hashable(value)), value)
        ordered = [values[key] for key in sorted(values, key=lambda key: (str(values[key]), key[0]))]
        return ordered[from_ : from_ + size], len(ordered)

    # Writes that wait at the same time share one sync of the disk.
    count_documents_async = _awaited(count_documents)
    filter_documents_async = _awaited(filter_documents)
    write_documents_async = _awaited(write_documents)
    delete_documents_async = _awaited(delete_documents)
    delete_all_documents_async = _awaited(delete_all_documents)
    delete_by_filter_async = _awaited(delete_by_filter)
    update_by_filter_async = _awaited(update_by_filter)
    count_documents_by_filter_async = _awaited(count_documents_by_filter)
    count_unique_metadata_by_filter_async = _awaited(count_unique_metadata_by_filter)
    get_metadata_fields_info_async = _awaited(get_metadata_fields_info)
    get_metadata_field_min_max_async = _awaited(get_metadata_field_min_max)
    get_metadata_field_unique_values_async = _awaited(get_metadata_field_unique_values)

    def search(
        self,
        queries: Sequence[str | Query],
        filters: AnyFilters = None,
        top_k: int = 10,
        *,
        strategy: AnyStrategy = "bm25",
        scale_score: bool = False,
        return_embedding: bool = False,
    ) -> list[list[Document]]:
        """The documents that answer each query, best first, from one search of the engine for the whole batch.

        A query is a text, or a `Query` such as ``Query("tea", vector=embedding)``. Only documents that pass `filters`
        are searched; a `Query` with a filter of its own keeps it beside them. `strategy` is as in `Engine.search`. Of
        equal scores the document that was written first comes first. With `scale_score` scores lie between 0 and 1:
        those of ``bm25`` by the logistic function of score / 8, those of ``dense`` as (score + 1) / 2.

        Raises `FilterError`, `ParameterError` for scaled scores of another strategy, and as `Engine.search`.
        """
        scale = _scale(strategy) if scale_score else None
        filtered = _queries(queries, _filter_of(filters))
        hits = self.memory.search(filtered, top_k, strategy=strategy, texts=True, payload=True)
        return _lists(hits, scale, return_embedding)

    async def search_async(
        self,
        queries: Sequence[str | Query],
        filters: AnyFilters = None,
        top_k: int = 10,
        *,
        strategy: AnyStrategy = "bm25",
        scale_score: bool = False,
        return_embedding: bool = False,
    ) -> list[list[Document]]:
        """As `search`, awaited; concurrent callers share a launch."""
        scale = _scale(strategy) if scale_score else None
        filtered = _queries(queries, _filter_of(filters))
        hits = await self.memory.asearch(filtered, top_k, strategy=strategy, texts=True, payload=True)
        return _lists(hits, scale, return_embedding)

    def _records(self, filters: AnyFilters) -> Iterable[Record]:
        return self.memory.records(filter=_filter_of(filters))


def _path_of(engine: Memory) -> str | None:
    path = path_of(engine)
    return None if path is None else str(path)


def _key_of(path: str) -> str:
    return f"path:{os.path.realpath(path)}"


def _filter_of(filters: AnyFilters) -> Filter | None:
    if not filters:
        return None
    try:
        return metadata_filter(filters, "haystack")
    except QueryError as error:
        raise FilterError(str(error)) from error


def _needed(filters: AnyFilters) -> Filter:
    parsed = _filter_of(filters)
    if parsed is None:
        raise FilterError("give a filter that says something; delete_all_documents deletes all documents")
    return parsed


def _bare(field: str) -> str:
    return field.removeprefix("meta.")


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return frozenset((name, _hashable(inner)) for name, inner in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


def _queries(queries: Sequence[str | Query], filter: Filter | None) -> list[str | Query]:
    if filter is None:
        return list(queries)
    return [
        replace(query, filter=all_of(parse_filter(query.filter), filter))
        if isinstance(query, Query)
        else Query(query, filter=filter)
        for query in queries
    ]


def _scale(strategy: AnyStrategy) -> Callable[[float], float]:
    if strategy == "bm25":
        return lambda score: 1.0 / (1.0 + math.exp(-score / BM25_SCALE))
    if strategy == "dense":
        return lambda score: (score + 1.0) / 2.0
    raise ParameterError(f"scale_score is for the strategies 'bm25' and 'dense', not for {strategy!r}")


def _lists(hits: Hits, scale: Callable[[float], float] | None, embedding: bool) -> list[list[Document]]:
    assert hits.records is not None
    counts, lists = hits.counts.tolist(), []
    for records, scores, count in zip(hits.records.tolist(), hits.scores.tolist(), counts, strict=True):
        scored = zip(records[:count], map(scale, scores[:count]) if scale else scores, strict=False)
        lists.append([document_of(record, score, embedding=embedding) for record, score in scored])
    return lists


class _Retriever:
    """What the retrievers have in common: a store, filters, and how to ask."""

    default: ClassVar[AnyStrategy] = "bm25"
    """The strategy of a component that is told none."""

    def __init__(
        self,
        document_store: FanrankDocumentStore,
        filters: AnyFilters = None,
        top_k: int = 10,
        scale_score: bool = False,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
        strategy: AnyStrategy | None = None,
        return_embedding: bool = False,
    ) -> None:
        strategy = self.default if strategy is None else strategy
        if not isinstance(document_store, FanrankDocumentStore):
            raise _StoreTypeError(f"document_store must be a FanrankDocumentStore, not {type(document_store).__name__}")
        _checked_k(top_k, 1)
        if scale_score:
            _scale(strategy)
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.scale_score = scale_score
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        self.strategy = strategy
        self.return_embedding = return_embedding

    def warm_up(self) -> None:
        """Open the engine of the store."""
        self.document_store.warm_up()

    def close(self) -> None:
        """As `FanrankDocumentStore.close`."""
        self.document_store.close()

    async def close_async(self) -> None:
        """As `close`."""
        await self.document_store.close_async()

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack writes it into a pipeline's file."""
        return default_to_dict(
            self,
            document_store=self.document_store,
            filters=self.filters,
            top_k=self.top_k,
            scale_score=self.scale_score,
            filter_policy=self.filter_policy.value,
            strategy=self.strategy,
            return_embedding=self.return_embedding,
        )

    @classmethod
    def from_dict(cls: type[Component], data: dict[str, Any]) -> Component:
        """The component that `to_dict` wrote."""
        return default_from_dict(cls, data)

    def _options(
        self, filters: AnyFilters, top_k: int | None, scale_score: bool | None = None, embedding: bool | None = None
    ) -> dict[str, Any]:
        """What `FanrankDocumentStore.search` is told. What a run says wins over what the component was made with."""
        return {
            "filters": apply_filter_policy(self.filter_policy, self.filters, filters),
            "top_k": self.top_k if top_k is None else _checked_k(top_k, 0),
            "strategy": self.strategy,
            "scale_score": self.scale_score if scale_score is None else scale_score,
            "return_embedding": self.return_embedding if embedding is None else embedding,
        }


class _StoreTypeError(ParameterError, TypeError):
    """A component is given a store of another kind."""


def _checked_k(top_k: object, least: int) -> int:
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < least:
        raise ParameterError(f"top_k must be an integer of {least} or more, not {top_k!r}")
    return top_k


@component
class FanrankRetriever(_Retriever):
    """Retrieves the documents that answer a text; a `TextRetriever` of Haystack.

    `strategy` says how: ``bm25`` (None), or any other that `Engine.search` takes. Those that compare vectors need an
    encoder in the store's `engine_options`. `filters`, `top_k` and `scale_score` count where a run says nothing;
    `filter_policy` says what becomes of `filters` where a run brings its own. Raises `ParameterError`.
    """

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: AnyFilters = None, top_k: int | None = None, scale_score: bool | None = None
    ) -> dict[str, list[Document]]:
        """The `documents` that answer the query, best first. Raises as `FanrankDocumentStore.search`."""
        (documents,) = self.document_store.search([query], **self._options(filters, top_k, scale_score))
        return {"documents": documents}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: AnyFilters = None, top_k: int | None = None, scale_score: bool | None = None
    ) -> dict[str, list[Document]]:
        """As `run`; concurrent callers share a launch."""
        (documents,) = await self.document_store.search_async([query], **self._options(filters, top_k, scale_score))
        return {"documents": documents}


@component
class FanrankEmbeddingRetriever(_Retriever):
    """Retrieves the documents whose embeddings are nearest to a query's by their cosine.

    The parameters are those of `FanrankRetriever`, with the strategy ``dense``; `return_embedding` gives embeddings
    back with the documents.
    """

    default = "dense"

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: AnyFilters = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
        return_embedding: bool | None = None,
    ) -> dict[str, list[Document]]:
        """The `documents` with the nearest embeddings, best first. Raises as `FanrankDocumentStore.search`."""
        options = self._options(filters, top_k, scale_score, return_embedding)
        (documents,) = self.document_store.search([Query(vector=query_embedding)], **options)
        return {"documents": documents}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query_embedding: list[float],
        filters: AnyFilters = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
        return_embedding: bool | None = None,
    ) -> dict[str, list[Document]]:
        """As `run`; concurrent callers share a launch."""
        options = self._options(filters, top_k, scale_score, return_embedding)
        (documents,) = await self.document_store.search_async([Query(vector=query_embedding)], **options)
        return {"documents": documents}


@component
class FanrankHybridRetriever(_Retriever):
    """Retrieves documents by their words and their embeddings at once.

    `strategy` says how the two are fused; ``auto`` (None) chooses for each query. The other parameters are those of
    `FanrankRetriever`.
    """

    default = "auto"

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, query_embedding: list[float], filters: AnyFilters = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The `documents` that answer the query, best first. Raises as `FanrankDocumentStore.search`."""
        queries = [Query(query, vector=query_embedding)]
        (documents,) = self.document_store.search(queries, **self._options(filters, top_k))
        return {"documents": documents}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, query_embedding: list[float], filters: AnyFilters = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """As `run`; concurrent callers share a launch."""
        queries = [Query(query, vector=query_embedding)]
        (documents,) = await self.document_store.search_async(queries, **self._options(filters, top_k))
        return {"documents": documents}


@component
class FanrankMultiQueryRetriever(_Retriever):
    """Retrieves the documents that answer several queries, in one launch for all of them.

    ``MultiQueryTextRetriever`` asks its retriever query by query in a pool of threads, and joins the answers. This
    component gives the same `documents`, and the answer to each query in `document_lists`. The parameters are those of
    `FanrankRetriever`; `query_embeddings` are for strategies that compare vectors, one for each query.
    """

    @component.output_types(documents=list[Document], document_lists=list[list[Document]])
    def run(
        self,
        queries: list[str],
        filters: AnyFilters = None,
        top_k: int | None = None,
        query_embeddings: list[list[float]] | None = None,
    ) -> dict[str, Any]:
        """Answer the queries.

        Returns `document_lists`, the answer to each query, best first, and `documents`: each document once with its
        best score, best first. Of equal scores the one that an earlier query, or an earlier place of its answer,
        brought first comes first. Raises as `FanrankDocumentStore.search`, and `ParameterError` for another number of
        embeddings than of queries.
        """
        lists = self.document_store.search(_asked(queries, query_embeddings), **self._options(filters, top_k))
        return {"documents": _joined(lists), "document_lists": lists}

    @component.output_types(documents=list[Document], document_lists=list[list[Document]])
    async def run_async(
        self,
        queries: list[str],
        filters: AnyFilters = None,
        top_k: int | None = None,
        query_embeddings: list[list[float]] | None = None,
    ) -> dict[str, Any]:
        """As `run`; concurrent callers share a launch."""
        options = self._options(filters, top_k)
        lists = await self.document_store.search_async(_asked(queries, query_embeddings), **options)
        return {"documents": _joined(lists), "document_lists": lists}


def _asked(queries: Sequence[str], embeddings: Sequence[Sequence[float]] | None) -> list[str | Query]:
    if isinstance(queries, str):
        raise ParameterError("queries must be a list of strings, not a string")
    if embeddings is None:
        return list(queries)
    if len(embeddings) != len(queries):
        raise ParameterError(f"there are {len(queries)} queries and {len(embeddings)} query_embeddings")
    return [Query(text, vector=vector) for text, vector in zip(queries, embeddings, strict=True)]


def _joined(lists: Iterable[Iterable[Document]]) -> list[Document]:
    best: dict[str, tuple[float, Document]] = {}
    for documents in lists:
        for document in documents:
            score, held = document.score or 0.0, best.get(document.id)
            if held is None or score > held[0]:
                best[document.id] = score, document
    # Stable. A document keeps the place at which it came first, whichever of its scores is the best.
    return [document for _, document in sorted(best.values(), key=lambda pair: -pair[0])]
