"""LlamaIndex: a retriever and a vector store over one engine, which answer many queries in one call.

    from fanrank.integrations.llama_index import FanrankRetriever

    retriever = FanrankRetriever.from_defaults(nodes=nodes, similarity_top_k=5)
    rows = retriever.retrieve_batch(["what does Ana drink", "last fix for error 4711"])

A node is a record: its text is what LlamaIndex embeds (the metadata that the node does not exclude, and the content),
its payload the node's metadata, by which filters choose, and the node itself as JSON.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.encoders.encoder import OwnVectors
from ..engine.errors import MissingExtraError, ParameterError
from ..engine.fuse.minmax import MinMax
from ..engine.hybrid.strategy import DEPTH, AnyStrategy, Dense, Lexical, Strategy
from ..engine.memory import Memory
from ..engine.records.filters import col
from ..engine.records.hit import Hit
from ..engine.records.query import Query
from .llama_index_nodes import EmbeddingEncoder, Nodes, condition_of, node_of
from .shared import AnyEngine

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
    from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
    from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
    from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
    from llama_index.core.schema import BaseNode, IndexNode, MetadataMode, NodeWithScore, QueryBundle, QueryType
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
except ModuleNotFoundError as error:
    raise MissingExtraError("llama-index-core", "llama-index") from error

MMR_FACTOR = 4
"""Candidates of mode ``mmr`` for each node of the answer; other stores of LlamaIndex take as many."""

dispatcher = get_dispatcher(__name__)


class FanrankRetriever(BaseRetriever):
    """Retrieves nodes by their words, or by words and vectors, from an engine that grows while it is asked.

    `engine` is an `Engine`, a `Namespace`, the path of a directory, or None for one in memory. `options` are keywords
    of `Engine` for one that is made here. `nodes` are written first. `namespace` says which namespace of the engine
    holds the nodes.

    `strategy` is anything that `Engine.search` takes. By default it is ``bm25``, or ``auto`` with an `embed_model`,
    which then makes the vectors of nodes that bring none, and of queries. `filters` choose by metadata; they can be set
    between two calls, and are applied before the selection, so a filtered query returns its best `similarity_top_k`
    nodes among those that pass. Scores are the strategy's. Of equal scores the node written first comes first.

    `metadata_mode` says which of a node's metadata are searched with its text. Raises `ParameterError`, and as
    `Engine.open`.
    """

    def __init__(
        self,
        engine: AnyEngine = None,
        *,
        nodes: Sequence[BaseNode] | None = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        strategy: AnyStrategy | None = None,
        filters: MetadataFilters | None = None,
        embed_model: BaseEmbedding | None = None,
        namespace: str = "",
        metadata_mode: MetadataMode = MetadataMode.EMBED,
        callback_manager: Any = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        **options: Any,
    ) -> None:
        self.embed_model = embed_model
        if embed_model is not None and "encoder" not in options and not isinstance(engine, Memory):
            options["encoder"] = EmbeddingEncoder(embed_model)
        self._nodes = Nodes(engine, namespace, metadata_mode, options)
        self.similarity_top_k = similarity_top_k
        self.strategy: AnyStrategy = strategy or ("bm25" if embed_model is None else "auto")
        self.filters = filters
        super().__init__(callback_manager=callback_manager, object_map=object_map, objects=objects, verbose=verbose)
        if nodes is not None:
            self.add_nodes(nodes)

    @classmethod
    def from_defaults(
        cls,
        index: Any = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: Any = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        **options: Any,
    ) -> FanrankRetriever:
        """A retriever over these nodes, or over those of an index's or a document store's; `options` as the class's.

        Raises `ParameterError` unless exactly one of `index`, `nodes` and `docstore` is given.
        """
        if sum(one is not None for one in (index, nodes, docstore)) != 1:
            raise ParameterError("give exactly one of index, nodes and docstore")
        if index is not None:
            docstore = index.docstore
        if docstore is not None:
            nodes = list(docstore.docs.values())
        return cls(nodes=nodes, similarity_top_k=similarity_top_k, **options)

    @classmethod
    def from_persist_dir(cls, path: str | os.PathLike[str], **options: Any) -> FanrankRetriever:
        """A retriever over what `persist` wrote, or over any engine's directory. `options` are the class's."""
        if not Path(path).is_dir():
            raise ParameterError(f"{path}: there is no such directory")
        return cls(path, **options)

    def persist(self, path: str | os.PathLike[str]) -> None:
        """Write the nodes to the directory `path`, or bring it up to date where the engine lives there.

        Raises `ForeignIndexError` for another directory that is not empty, `ParameterError` for a retriever over a
        handle.
        """
        engine, directory = self._nodes.engine, self._nodes.directory
        if engine is None:
            raise ParameterError("a handle on a namespace cannot be persisted: make the retriever of its engine")
        if directory is not None and Path(path).resolve() == directory.resolve():
            engine.flush()
        else:
            engine.copy_to(path)

    @property
    def engine(self) -> Memory | None:
        """The engine; None for a retriever over a handle."""
        return self._nodes.engine

    @property
    def handle(self) -> Memory:
        """The handle on the namespace that holds the nodes."""
        return self._nodes.handle

    def add_nodes(self, nodes: Sequence[BaseNode]) -> list[str]:
        """Write nodes in one durable batch; those whose ids are there are replaced. Returns the ids.

        The nodes' embeddings are left out where the engine keeps no vectors. Raises as `Engine.upsert`.
        """
        engine = self._nodes.engine
        records = self._nodes.records(nodes, vectors=engine is None or engine.pin is not None)
        if records:
            self.handle.upsert(records)
        return [node.node_id for node in nodes]

    def delete_nodes(self, node_ids: Sequence[str] | None = None, filters: MetadataFilters | None = None) -> None:
        """Delete the nodes with these ids that pass the filters. Raises `ParameterError` where neither is given."""
        self._nodes.delete(node_ids, filters)

    def filtered(self, filters: MetadataFilters | None) -> FanrankRetriever:
        """A retriever over the same engine with other filters. It copies nothing."""
        other = copy.copy(self)
        other.filters = filters
        return other

    def retrieve_batch(
        self,
        queries: Sequence[QueryType],
        *,
        filters: MetadataFilters | None = None,
        similarity_top_k: int | None = None,
    ) -> list[list[NodeWithScore]]:
        """The nodes of each query, as `retrieve` gives them, in one call of the engine.

        `filters` and `similarity_top_k` hold for this call; None: the retriever's own.
        """
        bundles = [QueryBundle(query) if isinstance(query, str) else query for query in queries]
        for bundle in bundles:
            dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
        rows = []
        for bundle, row in zip(bundles, self._answers(bundles, filters, similarity_top_k), strict=True):
            rows.append(self._handle_recursive_retrieval(bundle, row))
            dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=rows[-1]))
        return rows

    async def aretrieve_batch(
        self,
        queries: Sequence[QueryType],
        *,
        filters: MetadataFilters | None = None,
        similarity_top_k: int | None = None,
    ) -> list[list[NodeWithScore]]:
        """As `retrieve_batch`, awaited. Calls that wait at the same time share a launch."""
        bundles = [QueryBundle(query) if isinstance(query, str) else query for query in queries]
        for bundle in bundles:
            dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
        rows = []
        for bundle, row in zip(bundles, await self._answers_awaited(bundles, filters, similarity_top_k), strict=True):
            rows.append(await self._ahandle_recursive_retrieval(bundle, row))
            dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=rows[-1]))
        return rows

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._answers([query_bundle], None, None)[0]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return (await self._answers_awaited([query_bundle], None, None))[0]

    def _answers(
        self, bundles: Sequence[QueryBundle], filters: MetadataFilters | None, k: int | None
    ) -> list[list[NodeWithScore]]:
        asked = self._queries(bundles, filters)
        if not asked:
            return []
        hits = self.handle.search(
            asked, self.similarity_top_k if k is None else k, strategy=self.strategy, payload=True
        )
        return [[NodeWithScore(node=node_of(hit.id, hit.payload), score=hit.score) for hit in row] for row in hits]

    async def _answers_awaited(
        self, bundles: Sequence[QueryBundle], filters: MetadataFilters | None, k: int | None
    ) -> list[list[NodeWithScore]]:
        asked = self._queries(bundles, filters)
        if not asked:
            return []
        hits = await self.handle.asearch(
            asked, self.similarity_top_k if k is None else k, strategy=self.strategy, payload=True
        )
        return [[NodeWithScore(node=node_of(hit.id, hit.payload), score=hit.score) for hit in row] for row in hits]

    def _queries(self, bundles: Sequence[QueryBundle], filters: MetadataFilters | None) -> list[Query]:
        condition = condition_of(self.filters if filters is None else filters, None)
        queries = []
        for bundle in bundles:
            vector = bundle.embedding
            if vector is None and bundle.custom_embedding_strs and self.embed_model is not None:
                vector = self.embed_model.get_agg_embedding_from_queries(bundle.custom_embedding_strs)
            # LlamaIndex brings vectors to an engine of words alone, too.
            kept = None if self.handle.pin is None else vector
            queries.append(Query(bundle.query_str, vector=kept, filter=condition))
        return queries


class FanrankVectorStore(BasePydanticVectorStore):
    """Nodes with their vectors in an engine: LlamaIndex's vector store, for `VectorStoreIndex.from_vector_store`.

    `engine`, `namespace`, `metadata_mode` and `options` are as in `FanrankRetriever`. `embed_dim` is the length of the
    vectors, for an engine that is made here; a directory that is there already knows it.

    The modes of a query: ``default`` ranks by the cosine, ``sparse`` and ``text_search`` by BM25, ``hybrid`` by both,
    each brought to [0, 1] over the query's candidates, with the share `alpha` of the vectors (None: .5). With
    `hybrid_strategy` that strategy answers the mode ``hybrid`` instead, and a query's `alpha` is refused. ``mmr`` takes
    the nearest nodes, `mmr_prefetch_factor` for each one asked (4), and lets LlamaIndex's own function choose among
    them. Other modes raise `ParameterError`. Filters of every operator are exact.
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    hybrid_strategy: Any = None
    _nodes: Any = PrivateAttr()

    def __init__(
        self,
        engine: AnyEngine = None,
        *,
        embed_dim: int | None = None,
        namespace: str = "",
        hybrid_strategy: AnyStrategy | None = None,
        metadata_mode: MetadataMode = MetadataMode.EMBED,
        **options: Any,
    ) -> None:
        super().__init__(stores_text=True)
        self.hybrid_strategy = hybrid_strategy
        if embed_dim is not None:
            options["encoder"] = OwnVectors(embed_dim)
        self._nodes = Nodes(engine, namespace, metadata_mode, options)

    @classmethod
    def class_name(cls) -> str:
        return "FanrankVectorStore"

    @property
    def client(self) -> Memory:
        """The handle on the namespace that holds the nodes."""
        handle: Memory = self._nodes.handle
        return handle

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Write nodes with their embeddings in one durable batch; those whose ids are there are replaced.

        Returns their ids. A node without an embedding is found by its words alone. Raises as `Engine.upsert`.
        """
        if nodes:
            self.client.upsert(self._nodes.records(nodes, vectors=True))
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """As `add`, awaited; a call that is cancelled before its write began writes nothing."""
        if nodes:
            await self.client.aupsert(self._nodes.records(nodes, vectors=True))
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete all nodes of a document. A document without nodes is no error."""
        self.client.delete_where(col("payload.ref_doc_id") == ref_doc_id)

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete the nodes with these ids that pass the filters. Raises `ParameterError` where neither is given."""
        self._nodes.delete(node_ids, filters)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """As `delete_nodes`."""
        self._nodes.delete(node_ids, filters)

    def clear(self) -> None:
        """Delete all nodes."""
        self.client.drop("")

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes with these ids, in the order of the ids, that pass the filters; without ids in that of writing.

        Ids that are not there are left out. The nodes come without their embeddings.
        """
        listed = self.client.records(filter=condition_of(filters, node_ids))
        nodes = {record.id: node_of(record.id, record.payload) for record in listed}
        return list(nodes.values()) if node_ids is None else [nodes[name] for name in node_ids if name in nodes]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes for a query, best first, with similarities and ids.

        Raises `ParameterError`, and as `Engine.search`.
        """
        return self.query_batch([query], **kwargs)[0]

    def query_batch(self, queries: Sequence[VectorStoreQuery], **kwargs: Any) -> list[VectorStoreQueryResult]:
        """The answers to several queries, of any modes and filters: one call of the engine."""
        if not queries:
            return []
        hits = self.client.search([self._query(query, kwargs) for query in queries], payload=True)
        return [self._result(query, row, kwargs) for query, row in zip(queries, hits, strict=True)]

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """As `query`, awaited. Queries that wait at the same time share a launch."""
        hits = await self.client.asearch([self._query(query, kwargs)], payload=True)
        return self._result(query, hits[0], kwargs)

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Bring the engine's directory up to date; `persist_path` is not used.

        The nodes live in that directory, and each write is durable. Raises `ParameterError` for an engine in memory.
        """
        if self._nodes.directory is None:
            raise ParameterError(
                "no directory to bring up to date: make the store over one, FanrankVectorStore('nodes', ...), or call "
                "copy_to of the engine in memory"
            )
        self._nodes.engine.flush()

    def _query(self, query: VectorStoreQuery, options: Mapping[str, Any]) -> Query:
        mode, k = query.mode, query.similarity_top_k
        # A `VectorStoreIndex` over a store that holds the texts asks with an empty list of nodes, and means all.
        condition = condition_of(query.filters, query.node_ids or None, query.doc_ids or None)
        if mode in (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.TEXT_SEARCH):
            k = k if query.sparse_top_k is None else query.sparse_top_k
            return Query(_text(query), k=k, filter=condition, strategy="bm25")
        if mode not in (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.MMR):
            raise ParameterError(
                f"mode {mode.value!r} is not served; there are: default, sparse, text_search, hybrid, mmr"
            )
        if query.query_embedding is None:
            raise ParameterError(f"mode {mode.value!r} needs query_embedding")
        vector = query.query_embedding
        if mode == VectorStoreQueryMode.HYBRID:
            k = k if query.hybrid_top_k is None else query.hybrid_top_k
            depth = max(DEPTH, query.similarity_top_k, query.sparse_top_k or 0, k)
            strategy = self._hybrid(query.alpha, depth)
            return Query(_text(query), k=k, filter=condition, vector=vector, strategy=strategy)
        if mode == VectorStoreQueryMode.MMR:
            k *= int(options.get("mmr_prefetch_factor", MMR_FACTOR))
        return Query(k=k, filter=condition, vector=vector, strategy="dense")

    def _hybrid(self, alpha: float | None, depth: int) -> AnyStrategy:
        if self.hybrid_strategy is not None:
            if alpha is not None:
                raise ParameterError(f"alpha={alpha!r} is for the fusion of this store, which has a hybrid_strategy")
            chosen: AnyStrategy = self.hybrid_strategy
            return chosen
        share = 0.5 if alpha is None else alpha
        if not 0.0 <= share <= 1.0:
            raise ParameterError(f"alpha is the share of the vectors, in [0, 1], not {alpha!r}")
        return Strategy("hybrid", (Lexical(), Dense()), MinMax(1.0 - share, normalize_dense=True), depth=depth)

    def _result(
        self, query: VectorStoreQuery, hits: Sequence[Hit], options: Mapping[str, Any]
    ) -> VectorStoreQueryResult:
        scores = {hit.id: float(hit.score) for hit in hits}
        nodes: dict[str, BaseNode] = {hit.id: node_of(hit.id, hit.payload) for hit in hits}
        if query.mode == VectorStoreQueryMode.MMR and hits:
            records = self.client.fetch([*nodes])
            vectors = {
                record.id: record.embedding[0].astype(np.float64).tolist() for record in records if record is not None
            }
            threshold = options.get("mmr_threshold", query.mmr_threshold)
            values, ids = get_top_k_mmr_embeddings(
                list(query.query_embedding or ()),
                list(vectors.values()),
                similarity_top_k=query.similarity_top_k,
                embedding_ids=list(vectors),
                mmr_threshold=threshold,
            )
            scores = dict(zip(ids, map(float, values), strict=True))
        return VectorStoreQueryResult([nodes[name] for name in scores], list(scores.values()), list(scores))


def _text(query: VectorStoreQuery) -> str:
    if query.query_str is None:
        raise ParameterError(f"mode {query.mode.value!r} needs query_str")
    return query.query_str


__all__ = ["EmbeddingEncoder", "FanrankRetriever", "FanrankVectorStore"]
