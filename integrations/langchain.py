"""LangChain over an engine: `FanrankRetriever`, `FanrankVectorStore` and `LangChainEncoder`.

A batch stays whole. ``retriever.batch(questions)`` is one search, where LangChain would run one search a question in a
pool of threads. Awaited calls of different tasks share launches (`Engine.asearch`).

A document is a record: `Document.page_content` is its text, `Document.metadata` its payload, `Document.id` its id.

Long because LangChain's contract has each search of a vector store for texts and vectors, once and awaited.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..engine.encoders.embed import check_pin, pin_of
from ..engine.encoders.encoder import Encoder, OwnVectors, Rows
from ..engine.errors import MissingExtraError, ParameterError, QueryError
from ..engine.hybrid.strategy import Strategy
from ..engine.memory import Memory
from ..engine.moments import Span
from ..engine.records.hits import Hits
from ..engine.records.record import Record
from ..engine.route.by_namespace import answerer_of
from .langchain_documents import (
    AnyAnswerer,
    LangChainEncoder,
    Request,
    check_texts,
    make_document,
    make_records,
    metadata_filter,
    rows_of,
)
from .langchain_retriever import BatchRetriever, FanrankRetriever
from .shared import AnyEngine, open_engine

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables.config import run_in_executor
    from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
except ImportError as error:
    raise MissingExtraError("langchain-core", "langchain") from error

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self

__all__ = ["FanrankRetriever", "FanrankVectorStore", "FanrankVectorStoreRetriever", "LangChainEncoder"]


class FanrankVectorStoreRetriever(BatchRetriever, VectorStoreRetriever):
    """The retriever of `FanrankVectorStore.as_retriever`, whose batch is one search, whatever its `search_type`."""

    def search_batch(self, queries: Sequence[str], **options: Any) -> list[list[Document]]:
        """The documents of each query, in one search. `options` go before `search_kwargs`."""
        return self._store.search_batch(queries, self.search_type, **{**self.search_kwargs, **options})

    async def asearch_batch(self, queries: Sequence[str], **options: Any) -> list[list[Document]]:
        """As `search_batch`, awaited."""
        return await self._store.asearch_batch(queries, self.search_type, **{**self.search_kwargs, **options})

    @property
    def _store(self) -> FanrankVectorStore:
        return cast(FanrankVectorStore, self.vectorstore)


class FanrankVectorStore(VectorStore):
    """A vector store over an engine: ``FanrankVectorStore(OpenAIEmbeddings(), engine="memory")``.

    `embedding` makes the vectors: LangChain's `Embeddings`, or a `LangChainEncoder` that says their name and version.
    None: the engine's own encoder makes them, and without one only words are searched. `engine` is an `Engine`, a
    `Namespace`, the path of a directory, or None for an engine in memory. An engine that is given must have been made
    with the same `LangChainEncoder`, or with `OwnVectors`.

    `strategy` is as in `Engine.search`; None: ``dense``, the cosine of vectors, or ``bm25`` where there are none. With
    ``auto`` and others, words count too. `dialect` names the form of filters (`parse_filter`; None: the JSON form of
    fanrank, or an expression). `score_key` is the metadata key in which documents get their score; None: they get none.
    `relevance_score_fn` makes a relevance in [0, 1] of a score; None: it is the cosine, and 0 for a negative one.

    Searches take the options of `FanrankRetriever`: `filter`, `dialect`, `strategy`, `score_key`, `QUERY_OPTIONS` and
    `SEARCH_OPTIONS`. Equal scores come in the order in which the documents were written. Each method has its awaited
    form; awaited searches of different tasks share launches, and vectors of queries are awaited at the same time.

    Raises `ParameterError`, `ModelMismatchError` for embeddings of another model, and as `Engine.open`.
    """

    def __init__(
        self,
        embedding: Embeddings | LangChainEncoder | None = None,
        *,
        engine: AnyEngine = None,
        strategy: AnyAnswerer | None = None,
        dialect: str | None = None,
        score_key: str | None = None,
        relevance_score_fn: Callable[[float], float] | None = None,
    ) -> None:
        given = (
            embedding if embedding is None or isinstance(embedding, LangChainEncoder) else LangChainEncoder(embedding)
        )
        if given is None or isinstance(engine, Memory):
            self.engine = open_engine(engine)
        else:
            self.engine = open_engine(engine, encoder=given)
        if given is not None:
            _check_model(self.engine, given)
        self._own = given
        own = self.engine.encoder
        self._encoder: Encoder | None = given or (own if getattr(own, "encodes", True) else None)
        if strategy is None:
            strategy = "bm25" if self.engine.pin is None else "dense"
        self._defaults: dict[str, Any] = {"strategy": answerer_of(strategy), "dialect": dialect, "score_key": score_key}
        self._relevance = relevance_score_fn
        Request.of(**self._defaults)

    @property
    def embeddings(self) -> Embeddings | None:
        """The embeddings, or None."""
        return None if self._own is None else self._own.embeddings

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | LangChainEncoder | None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """A store over these texts; `kwargs` are the constructor's."""
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | LangChainEncoder | None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """As `from_texts`, awaited."""
        store = await run_in_executor(None, lambda: cls(embedding, **kwargs))
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        ttl: Span | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, or replace those of the same ids; their ids. One durable write, all or nothing.

        A text without an id gets a random one. With `ttl` the texts expire that long after the call. At most
        `batch_size` texts are embedded in one call (None: all). Raises `DuplicateIdError` for an id that occurs twice,
        `ParameterError` for other keywords, and as `Engine.upsert`.
        """
        records, batches = _prepare_write(texts, metadatas, ids, batch_size, kwargs)
        vectors = None if self._own is None else _joined([self._own.documents(batch) for batch in batches])
        self.engine.upsert(records, vectors=vectors, ttl=ttl)
        return [record.id for record in records]

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        ttl: Span | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """As `add_texts`, awaited."""
        records, batches = _prepare_write(texts, metadatas, ids, batch_size, kwargs)
        vectors = None if self._own is None else _joined([await self._own.adocuments(batch) for batch in batches])
        await self.engine.aupsert(records, vectors=vectors, ttl=ttl)
        return [record.id for record in records]

    def delete(self, ids: Sequence[str] | None = None, *, filter: Any = None, **kwargs: Any) -> bool:
        """Delete documents by id, or all that pass a filter; without both, all documents of the namespace. True.

        Ids that are not there are passed over. All or nothing. Raises as `Engine.delete` and `Engine.delete_where`.
        """
        if ids is not None and filter is not None:
            raise ParameterError("delete takes ids or a filter, not both")
        passing = metadata_filter(filter, kwargs.pop("dialect", self._defaults["dialect"]))
        if kwargs:
            raise ParameterError(f"delete takes ids, filter and dialect, not {', '.join(kwargs)}")
        if ids is not None:
            self.engine.delete(ids, missing_ok=True)
        elif passing is not None:
            self.engine.delete_where(passing)
        elif filter is not None:
            raise ParameterError("the filter says nothing; leave it out to delete all documents")
        else:
            self.engine.drop("")
        return True

    async def adelete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool:
        """As `delete`, awaited."""
        if ids is not None and not kwargs:
            await self.engine.adelete(ids, missing_ok=True)
            return True
        return await run_in_executor(None, lambda: self.delete(ids, **kwargs))

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of these ids, in their order, without those that are not there."""
        return [make_document(record) for record in self.engine.fetch(ids) if record is not None]

    def similarity_search_batch(self, queries: Sequence[str], k: int = 4, **options: Any) -> list[list[Document]]:
        """The `k` most similar documents of each query, best first, in one search."""
        request, hits = self._find(queries, k, options)
        return request.documents(hits)

    async def asimilarity_search_batch(
        self, queries: Sequence[str], k: int = 4, **options: Any
    ) -> list[list[Document]]:
        """As `similarity_search_batch`, awaited."""
        request, hits = await self._afind(queries, k, options)
        return request.documents(hits)

    def similarity_search_with_score_batch(
        self, queries: Sequence[str], k: int = 4, **options: Any
    ) -> list[list[tuple[Document, float]]]:
        """As `similarity_search_batch`, with the scores of the strategy: for ``dense`` the cosine, more is better."""
        request, hits = self._find(queries, k, options)
        return request.scored(hits)

    async def asimilarity_search_with_score_batch(
        self, queries: Sequence[str], k: int = 4, **options: Any
    ) -> list[list[tuple[Document, float]]]:
        """As `similarity_search_with_score_batch`, awaited."""
        request, hits = await self._afind(queries, k, options)
        return request.scored(hits)

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The `k` most similar documents, best first."""
        return self.similarity_search_batch([query], k, **kwargs)[0]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """As `similarity_search`, awaited."""
        return (await self.asimilarity_search_batch([query], k, **kwargs))[0]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """As `similarity_search`, with scores as in `similarity_search_with_score_batch`."""
        return self.similarity_search_with_score_batch([query], k, **kwargs)[0]

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As `similarity_search_with_score`, awaited."""
        return (await self.asimilarity_search_with_score_batch([query], k, **kwargs))[0]

    def similarity_search_by_vector(self, embedding: Sequence[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """The `k` documents most similar to a vector, by ``dense`` unless `strategy` says otherwise."""
        request = self._request({"strategy": "dense", **kwargs})
        return request.documents(self.engine.search(request.queries([""], [embedding]), k, **request.keywords))[0]

    async def asimilarity_search_by_vector(
        self, embedding: Sequence[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """As `similarity_search_by_vector`, awaited."""
        request = self._request({"strategy": "dense", **kwargs})
        asked = request.queries([""], [embedding])
        return request.documents(await self.engine.asearch(asked, k, **request.keywords))[0]

    def similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As `similarity_search`, with relevances in [0, 1]; `score_threshold` leaves out documents below it.

        Raises `QueryError` for a strategy whose scores are no cosines, where there is no `relevance_score_fn`.
        """
        threshold, relevance = kwargs.pop("score_threshold", None), self._relevance_of(kwargs)
        found = self.similarity_search_with_score_batch([query], k, **kwargs)
        return _relevant(found, relevance, threshold)[0]

    async def asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As `similarity_search_with_relevance_scores`, awaited."""
        threshold, relevance = kwargs.pop("score_threshold", None), self._relevance_of(kwargs)
        found = await self.asimilarity_search_with_score_batch([query], k, **kwargs)
        return _relevant(found, relevance, threshold)[0]

    def max_marginal_relevance_search_batch(
        self, queries: Sequence[str], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[list[Document]]:
        """`k` of the `fetch_k` best documents of each query, chosen for relevance and for diversity.

        Each choice has the largest ``lambda_mult * c - (1 - lambda_mult) * d``: c is its cosine to the query, d that to
        the nearest document chosen before. The first is the nearest to the query. Of equals the better hit comes first.
        """
        texts = check_texts(queries)
        return self._diversify(texts, self._vectors(texts), k, fetch_k, lambda_mult, options)

    async def amax_marginal_relevance_search_batch(
        self, queries: Sequence[str], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[list[Document]]:
        """As `max_marginal_relevance_search_batch`, awaited."""
        texts = check_texts(queries)
        return await self._adiversify(texts, await self._avectors(texts), k, fetch_k, lambda_mult, options)

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """As `max_marginal_relevance_search_batch`, of one query."""
        return self.max_marginal_relevance_search_batch([query], k, fetch_k, lambda_mult, **kwargs)[0]

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """As `max_marginal_relevance_search`, awaited."""
        return (await self.amax_marginal_relevance_search_batch([query], k, fetch_k, lambda_mult, **kwargs))[0]

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """As `max_marginal_relevance_search`, by a vector; the candidates come as in `similarity_search_by_vector`."""
        options = {"strategy": "dense", **kwargs}
        return self._diversify([""], [embedding], k, fetch_k, lambda_mult, options)[0]

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """As `max_marginal_relevance_search_by_vector`, awaited."""
        options = {"strategy": "dense", **kwargs}
        return (await self._adiversify([""], [embedding], k, fetch_k, lambda_mult, options))[0]

    def as_retriever(self, **kwargs: Any) -> FanrankVectorStoreRetriever:
        """A retriever over this store, whose batch is one search. Keywords as in LangChain's `as_retriever`."""
        tags = kwargs.pop("tags", None) or self._get_retriever_tags()
        return FanrankVectorStoreRetriever(vectorstore=self, tags=tags, **kwargs)

    def search_batch(self, queries: Sequence[str], search_type: str, **options: Any) -> list[list[Document]]:
        """The documents of each query by ``similarity``, ``similarity_score_threshold`` or ``mmr``, in one search."""
        if search_type == "similarity":
            return self.similarity_search_batch(queries, **options)
        if search_type == "mmr":
            return self.max_marginal_relevance_search_batch(queries, **options)
        _check_type(search_type)
        threshold, relevance = options.pop("score_threshold", None), self._relevance_of(options)
        return _alone(_relevant(self.similarity_search_with_score_batch(queries, **options), relevance, threshold))

    async def asearch_batch(self, queries: Sequence[str], search_type: str, **options: Any) -> list[list[Document]]:
        """As `search_batch`, awaited."""
        if search_type == "similarity":
            return await self.asimilarity_search_batch(queries, **options)
        if search_type == "mmr":
            return await self.amax_marginal_relevance_search_batch(queries, **options)
        _check_type(search_type)
        threshold, relevance = options.pop("score_threshold", None), self._relevance_of(options)
        found = await self.asimilarity_search_with_score_batch(queries, **options)
        return _alone(_relevant(found, relevance, threshold))

    def _request(self, options: Mapping[str, Any]) -> Request:
        return Request.of(**{**self._defaults, **options})

    def _find(self, queries: Sequence[str], k: int, options: Mapping[str, Any]) -> tuple[Request, Hits]:
        request, texts = self._request(options), check_texts(queries)
        vectors = self._vectors(texts) if request.dense and self._own is not None else None
        return request, self.engine.search(request.queries(texts, vectors), k, **request.keywords)

    async def _afind(self, queries: Sequence[str], k: int, options: Mapping[str, Any]) -> tuple[Request, Hits]:
        request, texts = self._request(options), check_texts(queries)
        vectors = await self._avectors(texts) if request.dense and self._own is not None else None
        return request, await self.engine.asearch(request.queries(texts, vectors), k, **request.keywords)

    def _vectors(self, texts: Sequence[str]) -> list[Any]:
        """The vectors of queries. Equal texts are embedded once."""
        if self._encoder is None:
            raise QueryError("there are no embeddings: give the store some, or search by vector")
        distinct = [*dict.fromkeys(texts)]
        known = dict(zip(distinct, self._encoder.queries(distinct), strict=True))
        return [known[text] for text in texts]

    async def _avectors(self, texts: Sequence[str]) -> list[Any]:
        if self._own is None:
            return await run_in_executor(None, self._vectors, texts)
        distinct = [*dict.fromkeys(texts)]
        known = dict(zip(distinct, await self._own.aqueries(distinct), strict=True))
        return [known[text] for text in texts]

    def _relevance_of(self, options: Mapping[str, Any]) -> Callable[[float], float]:
        if self._relevance is not None:
            return self._relevance
        answerer = answerer_of(options.get("strategy", self._defaults["strategy"]))
        if not (isinstance(answerer, Strategy) and _gives_cosines(answerer)):
            raise QueryError(
                "only the cosines of 'dense' are relevances in [0, 1]: search with strategy='dense', or give the store "
                "a relevance_score_fn"
            )
        return _clip

    def _diversify(
        self,
        texts: list[str],
        vectors: Sequence[Any],
        k: int,
        fetch_k: int,
        lambda_mult: float,
        options: Mapping[str, Any],
    ) -> list[list[Document]]:
        request = self._request(options)
        hits = self.engine.search(request.queries(texts, vectors), fetch_k, **request.keywords)
        return self._choose(request, hits, k, lambda_mult)

    async def _adiversify(
        self,
        texts: list[str],
        vectors: Sequence[Any],
        k: int,
        fetch_k: int,
        lambda_mult: float,
        options: Mapping[str, Any],
    ) -> list[list[Document]]:
        request = self._request(options)
        hits = await self.engine.asearch(request.queries(texts, vectors), fetch_k, **request.keywords)
        return await run_in_executor(None, self._choose, request, hits, k, lambda_mult)

    def _choose(self, request: Request, hits: Hits, k: int, lambda_mult: float) -> list[list[Document]]:
        """The documents of each query after the choice. A document that was deleted after the search is left out."""
        ids = list(dict.fromkeys(record.id for row in rows_of(hits) for record, _ in row))
        known = {
            record.id: np.asarray(record.embedding, dtype=np.float64).mean(axis=0)
            for record in self.engine.fetch(ids)
            if record is not None and record.embedding is not None
        }
        chosen = []
        for query, row in zip(hits.queries, rows_of(hits), strict=True):
            candidates = [(record, score) for record, score in row if record.id in known]
            order = choose_diverse(
                np.asarray(query.vector[0], dtype=np.float64),
                np.array([known[record.id] for record, _ in candidates]),
                k,
                lambda_mult,
            )
            chosen.append([make_document(*candidates[place], request.score_key) for place in order])
        return chosen


def choose_diverse(
    query: npt.NDArray[np.float64], rows: npt.NDArray[np.float64], k: int, lambda_mult: float
) -> list[int]:
    """Maximal marginal relevance: `k` places of `rows` [n, d], in the order of choice, for the vector `query` [d].

    `FanrankVectorStore.max_marginal_relevance_search_batch` says how they are chosen.
    """
    if not len(rows) or k <= 0:
        return []
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    relevance = units @ (query / np.linalg.norm(query))
    order = [int(np.argmax(relevance))]
    nearest = np.full(len(rows), -np.inf)
    while len(order) < min(k, len(rows)):
        nearest = np.maximum(nearest, units @ units[order[-1]])
        gain = lambda_mult * relevance - (1.0 - lambda_mult) * nearest
        gain[order] = -np.inf
        order.append(int(np.argmax(gain)))
    return order


def _check_model(engine: Memory, encoder: LangChainEncoder) -> None:
    """Raise unless the records of the engine have vectors of this encoder."""
    if isinstance(engine.encoder, OwnVectors):
        if engine.encoder.dimension != encoder.dimension:
            raise ParameterError(
                f"the engine's vectors have {engine.encoder.dimension} dimensions, and those of {encoder.name!r} have "
                f"{encoder.dimension}"
            )
        return
    check_pin(engine.pin, pin_of(encoder), "the engine")


def _check_type(search_type: str) -> None:
    if search_type != "similarity_score_threshold":
        raise ParameterError(
            f"search_type must be 'similarity', 'similarity_score_threshold' or 'mmr', not {search_type!r}"
        )


def _gives_cosines(strategy: Strategy) -> bool:
    """Whether its scores are cosines: one channel of vectors, which selects or averages a record's."""
    alone = len(strategy.channels) == 1 and strategy.fusion is None and strategy.feedback is None
    return alone and any(channel.interaction.exact and channel.neighbours is None for channel in strategy.dense)


def _clip(cosine: float) -> float:
    """A cosine as a relevance. Vectors of half precision may have one of slightly more than 1."""
    return min(max(cosine, 0.0), 1.0)


def _relevant(
    found: list[list[tuple[Document, float]]], relevance: Callable[[float], float], threshold: float | None
) -> list[list[tuple[Document, float]]]:
    """The documents of each query with their relevances, without those below the threshold."""
    rows = [[(document, relevance(score)) for document, score in row] for row in found]
    outside = next((value for row in rows for _, value in row if not 0.0 <= value <= 1.0), None)
    if outside is not None:
        warnings.warn(f"relevances must lie in [0, 1], and relevance_score_fn gave {outside}", stacklevel=3)
    return [[pair for pair in row if threshold is None or pair[1] >= threshold] for row in rows]


def _alone(rows: list[list[tuple[Document, float]]]) -> list[list[Document]]:
    return [[document for document, _ in row] for row in rows]


def _prepare_write(
    texts: Iterable[str],
    metadatas: Sequence[Mapping[str, Any]] | None,
    ids: Sequence[str | None] | None,
    batch_size: int | None,
    others: Mapping[str, Any],
) -> tuple[list[Record], list[list[str]]]:
    """The records to write, and the texts of each call of the embeddings."""
    if others:
        raise ParameterError(f"texts are added with ids, metadatas, ttl and batch_size, not with {', '.join(others)}")
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise ParameterError(f"batch_size must be 1 or more, not {batch_size!r}")
    records = make_records(texts, metadatas, ids)
    step = batch_size or len(records) or 1
    starts = range(0, len(records), step)
    return records, [[record.text for record in records[start : start + step]] for start in starts]


def _joined(rows: Sequence[Rows]) -> Rows | None:
    return np.concatenate(rows) if rows else None
