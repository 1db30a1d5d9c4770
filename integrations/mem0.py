"""mem0: a vector store for its `Memory`, whose search by vectors and by keywords reads one index.

    from fanrank.integrations.mem0 import register

    register()
    memory = Memory.from_config({"vector_store": {"provider": "fanrank", "config": {"path": "memory"}}})

`register` adds the provider to mem0, which knows its own stores alone. Each collection is a namespace of one engine, so
a `Memory`, its store of entities and other memories over one directory share a file and a write-ahead log.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from ..engine.encoders.encoder import OwnVectors
from ..engine.errors import MissingExtraError, ModelMismatchError, ParameterError, UnknownIdError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.index.bm25 import BM25
from ..engine.memory import Memory
from ..engine.records.hit import Hit
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..shards.choosing import is_address
from .shared import metadata_filter, open_engine

try:
    from mem0.utils.factory import VectorStoreFactory
    from mem0.vector_stores.base import VectorStoreBase
    from mem0.vector_stores.configs import VectorStoreConfig
    from pydantic import BaseModel, ConfigDict, Field
except ModuleNotFoundError as error:
    raise MissingExtraError("mem0ai", "mem0") from error

PROVIDER = "fanrank"
"""The name of the provider in mem0's configuration."""

KEYWORD_WEIGHT = 1.65
"""What a word that occurs once in a memory of average length counts in `keyword_search`, in multiples of its idf.

mem0 squashes keyword scores by a sigmoid whose midpoint, 5 to 12 by the length of the query, is set for its default
store. There the average length is taken to be 256 words, so a word that occurs once in a memory of ten words counts
1.65 times its idf. The profiles of fanrank give it 1.0 to 1.3 times its idf, and Lucene 0.45 times.
"""

DENSE = "dense"


class FanrankConfig(BaseModel):
    """The configuration of the provider ``fanrank``: the arguments of `FanrankVectorStore`."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    collection_name: str = Field("mem0", description="Name of the collection, which is a namespace of the engine")
    path: str | None = Field(None, description="Directory of the engine; None keeps everything in memory")
    embedding_model_dims: int = Field(1536, description="Dimension of the embedding model")
    engine: Any = Field(None, description="An engine that is open already, in place of path")
    strategy: Any = Field(DENSE, description="What search ranks by: a strategy of Engine.search")
    statistics: str = Field("namespace", description="Whose statistics BM25 uses: 'namespace' or 'filtered'")
    keyword_scale: float | None = Field(None, description="What BM25 scores are multiplied by; None: mem0's scale")
    engine_options: dict[str, Any] = Field(default_factory=dict, description="Keywords of Engine, for a new one")

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> FanrankConfig:
        # mem0 copies the configuration for its store of entities. The copy means the same engine.
        return self.model_copy(update={"engine_options": dict(self.engine_options)})


@dataclass(slots=True)
class Memo:
    """A memory as mem0 reads it. `score` is None where nothing was ranked."""

    id: str
    score: float | None
    payload: dict[str, Any]


class FanrankVectorStore(VectorStoreBase):  # type: ignore[misc]  # mem0 comes without types
    """A collection of memories with their vectors, texts and payloads: mem0's `VectorStoreBase` over an engine.

    `path` is the directory of an engine, which is opened once a process and shared by all stores that name it. `engine`
    is an open `Engine` with vectors, in place of `path`. Without both, the store has an engine of its own in memory.
    `engine_options` are keywords of `Engine` for an engine that is made here.

    `search` ranks by `strategy`. With ``dense``, the default, scores are cosines, and cosines below 0 become 0. Other
    strategies also read the text of the query, and their scores are passed on as they are: mem0 leaves out what scores
    below its threshold. `keyword_search` ranks by BM25 and multiplies the scores by `keyword_scale`. None is what gives
    them the scale that mem0 expects (`KEYWORD_WEIGHT`), whatever the engine's profile. The words of a memory are those
    of its payload's ``text_lemmatized``, as mem0's queries are lemmatised, else of ``data``. `statistics` is as in
    `Query`: with ``filtered`` the idf of a word counts the memories that pass the filters alone, such as those of one
    user.

    Every batch is one launch, and every write one durable write. Of equal scores the memory written first comes first.
    Filters are exact, whatever the operator. Any thread may read and write.

    Raises `ParameterError`, `ModelMismatchError` for an engine with vectors of another length, and as `Engine.open`.
    """

    def __init__(
        self,
        collection_name: str = "mem0",
        path: str | os.PathLike[str] | None = None,
        embedding_model_dims: int = 1536,
        engine: Memory | None = None,
        strategy: AnyStrategy = DENSE,
        statistics: str = "namespace",
        keyword_scale: float | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(collection_name, str) or not collection_name:
            raise ParameterError(f"collection_name must be a non-empty string, not {collection_name!r}")
        number = isinstance(keyword_scale, (int, float)) and not isinstance(keyword_scale, bool)
        if keyword_scale is not None and not (number and 0 < keyword_scale < 1e6):
            raise ParameterError(f"keyword_scale must be a number above 0, or None, not {keyword_scale!r}")
        if engine is not None and (path is not None or engine_options):
            raise ParameterError("give an engine, or the path and the options of one that is made here; not both")
        if engine is not None and (not isinstance(engine, Memory) or engine.space is not None):
            raise ParameterError(
                f"engine must be a whole memory, not {type(engine).__name__}: each collection is a namespace of it"
            )
        self.collection_name = collection_name
        self.embedding_model_dims = embedding_model_dims
        self.strategy = strategy
        self.statistics = statistics
        self.path = None if path is None else str(path) if is_address(path) else os.path.realpath(path)
        self.engine = (
            _shared_engine(self.path, embedding_model_dims, engine_options or {}) if engine is None else engine
        )
        pinned = (self.engine.pin or {}).get("dimension")
        if pinned != embedding_model_dims:
            held = "no vectors" if pinned is None else f"vectors of length {pinned}"
            raise ModelMismatchError(
                f"embedding_model_dims is {embedding_model_dims}, and the engine has {held}: set it to the length of "
                f"the embedder's vectors, or make the engine with encoder=fanrank.OwnVectors({embedding_model_dims})"
            )

        self.keyword_scale = _scale_of(self.engine.bm25) if keyword_scale is None else keyword_scale

    def create_col(self, name: str, vector_size: int, distance: str = "cosine") -> None:
        """Work on the collection `name` from now on. It comes into being with its first memory.

        Raises `ParameterError` for a distance other than cosine and `ModelMismatchError` for another vector size.
        """
        if str(distance).lower() != "cosine":
            raise ParameterError(f"vectors are compared by their cosine, not by {distance!r}")
        if vector_size != self.embedding_model_dims:
            raise ModelMismatchError(f"vectors have length {self.embedding_model_dims} here, not {vector_size!r}")
        self.collection_name = name

    def insert(
        self,
        vectors: Sequence[Sequence[float]],
        payloads: Sequence[Mapping[str, Any]] | None = None,
        ids: Sequence[str] | None = None,
    ) -> None:
        """Write memories, all or none of them; those whose ids are there are replaced. Without `ids` new ones are made.

        Raises `ParameterError` where the lists differ in length, `RecordError` for a vector that is not one.
        """
        ids = [str(uuid.uuid4()) for _ in vectors] if ids is None else [*ids]
        payloads = [{} for _ in vectors] if payloads is None else [{} if one is None else one for one in payloads]
        if not len(vectors) == len(payloads) == len(ids):
            raise ParameterError(
                f"{len(vectors)} vectors, {len(payloads)} payloads and {len(ids)} ids: one each, please"
            )
        self.engine.upsert(
            Record(str(name), _words_of(payload), self.collection_name, payload=dict(payload), embedding=vector)
            for name, payload, vector in zip(ids, payloads, vectors, strict=True)
        )

    def search(
        self,
        query: str,
        vectors: Sequence[float],
        top_k: int = 5,
        filters: Mapping[str, Any] | None = None,
    ) -> list[Memo]:
        """The `top_k` memories that are nearest to the query's vector and pass the filters, best first."""
        return self.search_batch([query], [vectors], top_k, filters)[0]

    def search_batch(
        self,
        queries: Sequence[str],
        vectors_list: Sequence[Sequence[float]],
        top_k: int = 1,
        filters: Mapping[str, Any] | None = None,
    ) -> list[list[Memo]]:
        """The answers to several queries, each with its vector: one launch, and what `search` gives for each.

        Raises `ParameterError` where the lists differ in length, and as `Engine.search`.
        """
        if len(queries) != len(vectors_list):
            raise ParameterError(f"{len(queries)} queries and {len(vectors_list)} vectors: each query has one vector")
        condition = metadata_filter(filters, "mem0")
        asked = [
            Query(
                text or "",
                vector=vector,
                filter=condition,
                namespace=self.collection_name,
                statistics=self.statistics,  # type: ignore[arg-type]  # Query checks it
            )
            for text, vector in zip(queries, vectors_list, strict=True)
        ]
        rows = self.engine.search(asked, top_k, strategy=self.strategy, payload=True) if asked else ()
        if self.strategy == DENSE:
            # Half precision makes the length of a vector one to 3 digits, so a cosine may exceed 1 by as much.
            return [[_memo(hit, min(max(hit.score, 0.0), 1.0)) for hit in row] for row in rows]
        return [[_memo(hit, hit.score) for hit in row] for row in rows]

    def keyword_search(self, query: str, top_k: int = 5, filters: Mapping[str, Any] | None = None) -> list[Memo]:
        """The `top_k` memories with the highest BM25 scores among those that share a word with the query."""
        return self.keyword_search_batch([query], top_k, filters)[0]

    def keyword_search_batch(
        self, queries: Sequence[str], top_k: int = 5, filters: Mapping[str, Any] | None = None
    ) -> list[list[Memo]]:
        """The answers to several keyword queries: one launch, and what `keyword_search` gives for each."""
        condition = metadata_filter(filters, "mem0")
        asked = [
            Query(
                text,
                filter=condition,
                namespace=self.collection_name,
                statistics=self.statistics,  # type: ignore[arg-type]
            )
            for text in queries
        ]
        rows = self.engine.search(asked, top_k, payload=True) if asked else ()
        return [[_memo(hit, hit.score * self.keyword_scale) for hit in row] for row in rows]

    def delete(self, vector_id: str) -> None:
        """Delete a memory. One that is not there is no error, as another thread may have deleted it."""
        self.engine.delete([str(vector_id)], namespace=self.collection_name, missing_ok=True)

    def update(
        self, vector_id: str, vector: Sequence[float] | None = None, payload: Mapping[str, Any] | None = None
    ) -> None:
        """Replace a memory's vector, its payload, or both; what is None stays.

        Raises `UnknownIdError` for a memory that is not there.
        """
        name, namespace = str(vector_id), self.collection_name
        if payload is None:
            self.engine.patch(name, {} if vector is None else {"embedding": vector}, namespace=namespace)
            return

        def change(live: Mapping[tuple[str, str], Record]) -> list[Record]:
            kept = live.get((namespace, name))
            if kept is None:
                raise UnknownIdError(f"no live memory with id {name!r} in the collection {namespace!r}")
            # A patch of the text would drop the vector of the old one, and mem0 means to keep it.
            words, embedding = _words_of(payload), kept.embedding if vector is None else vector
            weights = kept.weights if words == kept.text else None
            return [replace(kept, text=words, payload=dict(payload), embedding=embedding, weights=weights)]

        # Another thread may replace the vector meanwhile, so it is read where no other write is under way.
        self.engine.rewrite({namespace: [name]}, change)

    def get(self, vector_id: str) -> Memo | None:
        """The memory with this id, or None."""
        record = self.engine.get(str(vector_id), namespace=self.collection_name)
        return None if record is None else Memo(record.id, None, dict(record.payload or {}))

    def list(self, filters: Mapping[str, Any] | None = None, top_k: int | None = None) -> list[list[Memo]]:
        """The memories that pass the filters in one list inside a list, as mem0 reads it; the last written come first.

        `top_k` limits their number; None: all of them.
        """
        listed = self.engine.records(
            filter=metadata_filter(filters, "mem0"), namespace=self.collection_name, reverse=True, limit=top_k
        )
        return [[Memo(record.id, None, dict(record.payload or {})) for record in listed]]

    def list_cols(self) -> Sequence[str]:
        """The names of the collections that hold memories, and of this one."""
        return sorted({*self.engine.namespaces, self.collection_name})

    def delete_col(self) -> None:
        """Delete all memories of the collection."""
        self.engine.drop(self.collection_name)

    def col_info(self) -> dict[str, Any]:
        """Name, number of memories (``count``), ``dimension`` and ``distance`` of the collection."""
        return {
            "name": self.collection_name,
            "count": self.engine.count(namespace=self.collection_name),
            "dimension": self.embedding_model_dims,
            "distance": "cosine",
        }

    def reset(self) -> None:
        """Delete all memories of the collection, which can be used at once."""
        self.delete_col()

    def close(self) -> None:
        """Close the engine, for all stores that share it. Writes are durable before: this frees the directory."""
        with _opening:
            if self.path in _open and _open[self.path][0] is self.engine:
                del _open[self.path]
        self.engine.close()


def register() -> None:
    """Add the provider ``fanrank`` to mem0, for `Memory.from_config` and `MemoryConfig`. A second call does nothing."""
    VectorStoreFactory.provider_to_class[PROVIDER] = f"{FanrankVectorStore.__module__}.{FanrankVectorStore.__name__}"
    # mem0 looks for the configuration in a module of its own package, by the provider's name.
    name = f"mem0.configs.vector_stores.{PROVIDER}"
    if name not in sys.modules:
        home = ModuleType(name, f"The configuration of the provider {PROVIDER!r}.")
        home.FanrankConfig = FanrankConfig  # type: ignore[attr-defined]
        sys.modules[name] = home
    known = VectorStoreConfig.__private_attributes__["_provider_configs"].default
    known[PROVIDER] = FanrankConfig.__name__


_open: dict[str, tuple[Memory, dict[str, Any]]] = {}
"""The engines of this process and their options, by the real paths of their directories."""
_opening = threading.Lock()


def _shared_engine(path: str | None, dimension: int, options: Mapping[str, Any]) -> Memory:
    """A new engine in memory, or that of the directory, which one process opens once for writing."""
    made: dict[str, Any] = {"encoder": OwnVectors(dimension), **options}
    if path is None:
        return _new_engine(None, made)
    with _opening:
        # An engine may have been closed beside the stores that share it.
        if path not in _open or _open[path][0].closed:
            _open[path] = _new_engine(path, made), made
        engine, known = _open[path]
    if {**known, "encoder": None} != {**made, "encoder": None}:
        raise ParameterError(f"{path} is open in this process with other engine_options: {known!r}, not {made!r}")
    return engine


def _new_engine(path: str | None, options: Mapping[str, Any]) -> Memory:
    return open_engine(path, **options)


def _scale_of(bm25: BM25) -> float:
    """What brings these BM25 scores to mem0's scale: `KEYWORD_WEIGHT` for one occurrence at the average length."""
    frequencies = np.array([[1]] + [[0]] * (len(bm25.fields or {"text": 1.0}) - 1))
    return KEYWORD_WEIGHT / float(bm25.saturated(frequencies, np.ones(frequencies.shape))[0])


def _words_of(payload: Mapping[str, Any]) -> str:
    """What BM25 reads of a memory: mem0 lemmatises its queries, so the lemmas where it stored them."""
    words = payload.get("text_lemmatized") or payload.get("data") or ""
    return words if isinstance(words, str) else str(words)


def _memo(hit: Hit, score: float) -> Memo:
    return Memo(hit.id, score, dict(hit.payload or {}))


__all__ = ["KEYWORD_WEIGHT", "FanrankConfig", "FanrankVectorStore", "Memo", "register"]
