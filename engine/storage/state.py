"""`MemoryState`: what a search reads of a memory, all of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from ..index.bm25 import BM25
from ..index.columns import Schema
from ..index.snapshot import Snapshot
from ..text.analyzers import Analyzer
from ..text.vocabulary import TermIndexer, Vocabulary

new_numbering = count().__next__
"""The number of a new numbering."""


@dataclass(frozen=True, eq=False)
class MemoryState:
    """The published state, which searches and checkpoints read. A search takes it once and reads nothing else.

    Snapshots and vocabularies belong together: `Memory` may number terms and column values anew.
    """

    bm25: BM25
    analyzer: Analyzer
    schema: Schema
    window: float
    indexer: TermIndexer
    values: Mapping[str, Vocabulary]
    """The values of each category column."""
    weight_terms: Vocabulary
    """The terms of learned weights."""
    entity_terms: Vocabulary
    """The terms of the records' entities and relations (`engine/records/entities.py`)."""
    snapshots: Mapping[str, Snapshot]
    """The snapshot of each namespace. Every write replaces the mapping; none changes it in place."""
    sequence: int = 0
    """The last change of the store that the snapshots hold."""
    version: int = 0
    """The number of publications so far."""
    numbering: int = field(default_factory=new_numbering)
    """Which numbering of terms and column values this is. No two of a process have the same."""

    @classmethod
    def empty(cls, bm25: BM25, analyzer: Analyzer, schema: Schema, window: float) -> MemoryState:
        """The state of a memory that holds nothing."""
        values = {name: Vocabulary() for name in schema.categories}
        indexer = TermIndexer(analyzer, Vocabulary())
        return cls(bm25, analyzer, schema, window, indexer, values, Vocabulary(), Vocabulary(), {})

    def snapshot(self, namespace: str) -> Snapshot:
        return self.snapshots.get(namespace) or Snapshot((), self.bm25)
