"""CrewAI: `FanrankStorage`, a storage backend of its memory.

    memory = Memory(storage=FanrankStorage("memory", dimension=1536), embedder=...)

A `MemoryRecord` is a record with its vector; scope, categories, metadata and the rest are in the payload. CrewAI asks
by vectors alone. The texts are indexed all the same, so `FanrankStorage.engine` also answers by words.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from ..engine.encoders.encoder import OwnVectors
from ..engine.errors import MissingExtraError, ParameterError
from ..engine.memory import Memory
from ..engine.records.filters import Filter, all_of, col
from ..engine.records.hit import Hit
from ..engine.records.query import Query
from ..engine.records.record import Record
from .shared import AnyEngine, open_engine

try:
    from crewai.memory.storage.backend import EmbeddingDimensionMismatchError
    from crewai.memory.types import MemoryRecord, ScopeInfo
except ImportError:
    raise MissingExtraError("crewai", "crewai") from None

SCOPES = "scopes"
"""The key of the payload that holds a record's scope and all scopes around it."""


class FanrankStorage:
    """CrewAI's `StorageBackend` over a memory. Filters and scopes are applied before the best are chosen.

    `engine` is any memory with vectors of length `dimension`, which may be a tenant's handle, a path, or None for a
    memory that ends with the program. Scores are cosines from 0 to 1. A scope holds itself and what lies below it:
    ``/team`` holds ``/team/ana``, and not ``/teams``. Any thread may use it. Raises `ParameterError`, and as
    `Engine.open`.
    """

    def __init__(self, engine: AnyEngine = None, *, dimension: int = 3072) -> None:
        made = not isinstance(engine, Memory)
        self.engine = open_engine(engine, encoder=OwnVectors(dimension)) if made else open_engine(engine)
        pinned = (self.engine.pin or {}).get("dimension")
        if pinned is None:
            raise ParameterError(f"the engine takes no vectors; make it with encoder=fr.OwnVectors({dimension})")
        self.dimension = int(pinned)

    def save(self, records: list[MemoryRecord]) -> None:
        self.engine.upsert(self._records(records))

    async def asave(self, records: list[MemoryRecord]) -> None:
        await self.engine.aupsert(self._records(records))

    def search(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        query = self._query(query_embedding, _filter(scope_prefix, categories, metadata_filter))
        return self._found(self.engine.search([query], limit, strategy="dense")[0], min_score)

    async def asearch(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        """As `search`; those that are awaited at the same time are one launch."""
        query = self._query(query_embedding, _filter(scope_prefix, categories, metadata_filter))
        hits = await self.engine.asearch([query], limit, strategy="dense")
        return await asyncio.to_thread(self._found, hits[0], min_score)

    def search_batch(
        self, embeddings: Sequence[list[float]], scope_prefix: str | None = None, limit: int = 10
    ) -> list[list[tuple[MemoryRecord, float]]]:
        """`search` of several vectors, in one launch."""
        queries = [self._query(embedding, _filter(scope_prefix)) for embedding in embeddings]
        hits = self.engine.search(queries, limit, strategy="dense") if queries else ()
        return [self._found(row, 0.0) for row in hits]

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Delete the records for which all that is given holds; without anything, all records."""
        filter = _filter(scope_prefix, categories, metadata_filter, older_than)
        if record_ids is None and filter is not None:
            return self.engine.delete_where(filter)
        if record_ids is None:
            gone = [*self.engine.ids()]
        else:
            gone = [*dict.fromkeys(record_ids)]
            if filter is not None:
                passing = {*self.engine.ids(filter)}
                gone = [id for id in gone if id in passing]
        return self.engine.delete(gone, missing_ok=True)

    async def adelete(self, *given: Any, **criteria: Any) -> int:
        return await asyncio.to_thread(self.delete, *given, **criteria)

    def update(self, record: MemoryRecord) -> None:
        """Replace the record with this id. Without an embedding it keeps the vector that is there."""
        old = self.engine.get(record.id) if record.embedding is None else None
        vector = None if old is None or old.embedding is None else old.embedding[0].tolist()
        self.save([record if vector is None else record.model_copy(update={"embedding": vector})])

    def get_record(self, record_id: str) -> MemoryRecord | None:
        record = self.engine.get(record_id)
        return None if record is None else _memory(record)

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        listed = self.engine.records(filter=_filter(scope_prefix), order="time", reverse=True)
        return [_memory(record) for record in islice(listed, offset, offset + limit)]

    def get_scope_info(self, scope: str) -> ScopeInfo:
        filter, path = _filter(scope), _around(scope)[-1]
        ends = [[*self.engine.records(filter=filter, order="time", reverse=last, limit=1)] for last in (False, True)]
        oldest, newest = (_memory(end[0]).created_at if end else None for end in ends)
        return ScopeInfo(
            path=path,
            record_count=self.count(path),
            categories=sorted(self.list_categories(path)),
            oldest_record=oldest,
            newest_record=newest,
            child_scopes=self.list_scopes(path),
        )

    def list_scopes(self, parent: str = "/") -> list[str]:
        """The scopes directly below, of those that hold records."""
        held = [_around(str(scope or "/")) for scope in self.engine.distinct("payload.scope", _filter(parent))]
        depth = len(_around(parent))
        return sorted({around[depth] for around in held if len(around) > depth})

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for lists, count in self.engine.distinct("payload.categories", _filter(scope_prefix)).items():
            counts.update(dict.fromkeys(json.loads(str(lists or "[]")), count))
        return dict(counts)

    def count(self, scope_prefix: str | None = None) -> int:
        return self.engine.count(_filter(scope_prefix))

    def reset(self, scope_prefix: str | None = None) -> None:
        self.delete(scope_prefix)

    def close(self) -> None:
        self.engine.close()

    def _check(self, vector: Sequence[float] | None) -> None:
        if vector and len(vector) != self.dimension:
            raise EmbeddingDimensionMismatchError(self.dimension, len(vector))

    def _query(self, vector: list[float], filter: Filter | None) -> Query:
        self._check(vector)
        return Query("", vector=vector, filter=filter)

    def _records(self, records: Sequence[MemoryRecord]) -> list[Record]:
        for one in records:
            self._check(one.embedding)
        return [
            Record(
                one.id,
                one.content,
                user=one.source,
                time=one.created_at,
                importance=one.importance,
                embedding=one.embedding or None,
                payload={**one.model_dump(mode="json", exclude={"content"}), SCOPES: _around(one.scope)},
            )
            for one in records
        ]

    def _found(self, row: Sequence[Hit], min_score: float) -> list[tuple[MemoryRecord, float]]:
        """The records of one row with their vectors, which CrewAI keeps when it merges records."""
        # Half precision makes the length of a vector one to 3 digits, so a cosine may exceed 1 by as much.
        scores = {hit.id: min(max(hit.score, 0.0), 1.0) for hit in row}
        records = self.engine.fetch([id for id, score in scores.items() if score >= min_score])
        return [(_memory(record), scores[record.id]) for record in records if record is not None]


def _around(scope: str) -> list[str]:
    """A scope and all around it, the outermost first: ``/``, ``/team``, ``/team/ana``."""
    parts = [part for part in scope.split("/") if part]
    return ["/" + "/".join(parts[:depth]) for depth in range(len(parts) + 1)]


def _filter(
    scope: str | None = None,
    categories: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    older_than: datetime | None = None,
) -> Filter | None:
    parts: list[Filter] = []
    if scope is not None and scope.strip("/"):
        parts.append(col(f"payload.{SCOPES}").contains(_around(scope)[-1]))
    if categories:
        parts.append(col("payload.categories").contains_any(categories))
    if metadata:
        parts.append(col("payload.metadata").matches(dict(metadata)))
    if older_than is not None:
        parts.append(col("time") < older_than)
    return all_of(*parts) if parts else None


def _memory(record: Record) -> MemoryRecord:
    """As CrewAI reads it. A record that others wrote lies in the scope ``/``."""
    vector = None if record.embedding is None else record.embedding[0].tolist()
    kept = {name: value for name, value in (record.payload or {}).items() if name in MemoryRecord.model_fields}
    return MemoryRecord.model_validate({**kept, "id": record.id, "content": record.text, "embedding": vector})
