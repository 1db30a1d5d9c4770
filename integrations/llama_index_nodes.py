"""How nodes of LlamaIndex are kept in an engine: as records, by ids, filters and vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.encoders.encoder import Encoder, Rows
from ..engine.errors import MissingExtraError, ParameterError
from ..engine.records.filters import Filter, all_of, col
from ..engine.records.record import Record
from .shared import AnyEngine, metadata_filter, open_engine, path_of

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import (
        BaseNode,
        Document,
        ImageDocument,
        ImageNode,
        IndexNode,
        MetadataMode,
        Node,
        TextNode,
    )
    from llama_index.core.vector_stores.types import MetadataFilters
    from pydantic_core import from_json
except ModuleNotFoundError as error:
    raise MissingExtraError("llama-index-core", "llama-index") from error

KINDS: dict[str, type[BaseNode]] = {
    kind.class_name(): kind for kind in (TextNode, ImageNode, IndexNode, Node, Document, ImageDocument)
}
"""The classes of nodes by their names. A node of another class comes back as a `TextNode`, as in other stores."""


class Nodes:
    """The nodes of one namespace of an engine: what the retriever and the vector store share.

    `mode` says which of a node's metadata are searched with its text. Raises `ParameterError` for a handle and the name
    of a namespace together, and as `open_engine`.
    """

    def __init__(self, engine: AnyEngine, namespace: str, mode: MetadataMode, options: Mapping[str, Any]) -> None:
        opened = open_engine(engine, **options)
        if opened.space is not None and namespace:
            raise ParameterError(f"the handle is one on {opened.space!r}; give its engine to choose {namespace!r}")
        self.engine = opened if opened.space is None else None
        self.handle = opened.namespace(namespace) if opened.space is None else opened
        self.mode = mode

    def records(self, nodes: Sequence[BaseNode], *, vectors: bool) -> list[Record]:
        """The records of nodes; with ``vectors`` they have the nodes' embeddings. Of equal ids the last node counts."""
        return [
            Record(
                node.node_id,
                node.get_content(metadata_mode=self.mode),
                payload=payload_of(node),
                embedding=node.embedding if vectors else None,
            )
            for node in {node.node_id: node for node in nodes}.values()
        ]

    def delete(self, node_ids: Sequence[str] | None, filters: MetadataFilters | None) -> None:
        """Delete the nodes with these ids that pass the filters. Raises `ParameterError` where neither is given."""
        if node_ids is not None and filters is None:
            self.handle.delete(list(dict.fromkeys(node_ids)), missing_ok=True)
            return
        condition = condition_of(filters, node_ids)
        if condition is None:
            raise ParameterError("delete_nodes needs node_ids or filters; to delete all nodes call clear()")
        self.handle.delete_where(condition)

    @property
    def directory(self) -> Path | None:
        """Where the engine lives on disk; None where it lives in memory, or is known by a handle alone."""
        return path_of(self.engine)


class EmbeddingEncoder(Encoder):
    """An embedding model of LlamaIndex as the encoder of an engine: one call for all texts of a batch.

    Its name is the model's, its version the class's. The dimension is that of the vector of one word.
    """

    def __init__(self, model: BaseEmbedding) -> None:
        self.model = model
        self._dimension: int | None = None

    @property
    def name(self) -> str:
        return str(self.model.model_name)

    @property
    def version(self) -> str:
        return str(self.model.class_name())

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            self._dimension = len(self.model.get_text_embedding("dimension"))
        return self._dimension

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        return self._rows(self.model.get_text_embedding_batch(list(texts), show_progress=progress))

    def queries(self, texts: Sequence[str]) -> Rows:
        # LlamaIndex has no call for several queries.
        return self._rows([self.model.get_query_embedding(text) for text in texts])

    def _rows(self, vectors: Sequence[Sequence[float]]) -> Rows:
        return np.asarray(vectors, dtype=np.float32).reshape(-1, self.dimension)


def payload_of(node: BaseNode) -> dict[str, Any]:
    """The node's metadata, the document that it is of under the names that LlamaIndex filters by, and the node as JSON.

    What a node does not set is left out: that is two thirds of the JSON, and of the time to read it.
    """
    content = node.model_dump(mode="json", exclude_defaults=True, exclude={"embedding"})
    metadata: dict[str, Any] = content.get("metadata") or {}
    document = node.ref_doc_id or "None"
    return {
        **metadata,
        "document_id": document,
        "doc_id": document,
        "ref_doc_id": document,
        "_node_id": node.node_id,
        "_node_type": node.class_name(),
        "_node_content": json.dumps(content, ensure_ascii=False),
    }


def node_of(name: str, payload: Mapping[str, Any] | None) -> BaseNode:
    """The node of a record, by the record's id and payload. Raises `ParameterError` for a record that is no node."""
    content = (payload or {}).get("_node_content")
    if payload is None or content is None:
        raise ParameterError(f"the record {name!r} was not written as a node; give the nodes a namespace of their own")
    return KINDS.get(payload["_node_type"], TextNode).from_dict(from_json(content))


def condition_of(
    filters: MetadataFilters | None, node_ids: Sequence[str] | None, doc_ids: Sequence[str] | None = None
) -> Filter | None:
    """What a node must pass: the filters, and be one of these nodes, of these documents. An empty list has none."""
    return all_of(
        metadata_filter(filters, "llama_index"),
        None if node_ids is None else col("payload._node_id").isin(node_ids),
        None if doc_ids is None else col("payload.ref_doc_id").isin(doc_ids),
    )
