"""What recall knows of an engine's snapshots beside their postings, made when first asked for and let go with them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ..columns import ABSENT
from ..index import Snapshot
from ..memory import Memory
from ..vocabulary import Vocabulary
from .conversation import ConversationGraph, PageRank, graph_of
from .entity_graph import EntityGraph, entity_graph_of
from .optimizer import Stats
from .statements import Statements

T = TypeVar("T")

KEPT = 16
"""Conversation graphs kept of a snapshot: one for each session or user that is asked about, megabytes each."""


class Graphs:
    """One engine's. Threads may share it; two that ask for the same thing at once may both make it."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Snapshot, dict[Hashable, object]] = WeakKeyDictionary()
        self._statements: WeakKeyDictionary[Vocabulary, Statements] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def entities(self, memory: Memory, snapshot: Snapshot) -> EntityGraph:
        """The entities and relations of a namespace's live records."""
        with self._lock:
            statements = self._statements.setdefault(memory.entity_terms, Statements())
        strings = memory.entity_terms.strings
        return self._keep(snapshot, "entities", lambda: entity_graph_of(snapshot.entities, statements, strings))

    def conversation(
        self,
        memory: Memory,
        snapshot: Snapshot,
        passing: Sequence[npt.NDArray[np.bool_]],
        key: Hashable,
        ranking: PageRank,
    ) -> ConversationGraph:
        """The graph of the documents that pass, by segment; `key` tells this choice of documents from others."""
        strings, analyzer = memory.encoder.vocabulary.strings, memory.analyzer
        return self._keep(snapshot, (key, ranking), lambda: graph_of(snapshot, strings, analyzer, passing, ranking))

    def stats(self, memory: Memory, snapshot: Snapshot) -> Stats:
        """What a namespace holds."""
        return self._keep(snapshot, "stats", lambda: self._stats(memory, snapshot))

    def _stats(self, memory: Memory, snapshot: Snapshot) -> Stats:
        types: Counter[str] = Counter()
        names = memory.values["type"].strings
        for number, segment in enumerate(snapshot.segments):
            codes = segment.columns.categories.get("type")
            if codes is None:
                continue
            alive = snapshot.alive(number)
            held = codes[codes != ABSENT] if alive is None else codes[alive & (codes != ABSENT)]
            counts = np.bincount(held)
            types.update({names[code]: int(counts[code]) for code in np.flatnonzero(counts).tolist()})
        return Stats(snapshot.size, snapshot.has_vectors, dict(types), len(self.entities(memory, snapshot)))

    def _keep(self, snapshot: Snapshot, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            kept = self._made.setdefault(snapshot, {})
            if key in kept:
                return kept[key]  # type: ignore[return-value]
        found = make()
        with self._lock:
            kept[key] = found
            while len(kept) > KEPT:
                kept.pop(next(iter(kept)))
        return found
