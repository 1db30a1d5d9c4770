"""A cache of the graphs and statistics that recall derives from an engine's snapshots.

Each is made on first use and is released together with its snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ..index.columns import ABSENT
from ..index.snapshot import Snapshot
from ..locks import make_short_lock
from ..records.entities import Category
from ..storage.state import MemoryState
from ..text.vocabulary import Vocabulary
from .conversation import ConversationGraph, PageRank, graph_of
from .entity_graph import TYPE_PRIOR, EntityGraph, entity_graph_of
from .optimizer import Stats
from .statements import Statements

T = TypeVar("T")

KEPT = 16
"""Graphs of one kind that are kept for a snapshot; the most recently used stay. There is one conversation graph for
each session or user that queries name, and each takes megabytes."""


class Graphs:
    """The graphs of one engine. Threads may share it; two that need the same graph at once may both make it."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Snapshot, dict[Hashable, object]] = WeakKeyDictionary()
        self._conversations: WeakKeyDictionary[Snapshot, dict[Hashable, object]] = WeakKeyDictionary()
        self._statements: WeakKeyDictionary[Vocabulary, Statements] = WeakKeyDictionary()
        self._lock = make_short_lock()

    def entities(
        self, memory: MemoryState, snapshot: Snapshot, type_prior: Mapping[str, float] | None = None
    ) -> EntityGraph:
        """The entity graph of a namespace's live records; `type_prior` is that of `strategy.Graph`."""
        with self._lock:
            statements = self._statements.get(memory.entity_terms)
        if statements is None:
            fresh = Statements()  # not under the lock: it makes a lock of its own
            with self._lock:
                statements = self._statements.setdefault(memory.entity_terms, fresh)
        strings = memory.entity_terms.strings
        priors = {**TYPE_PRIOR, **cast("Mapping[Category, float]", type_prior or {})}
        return self._keep(
            self._made,
            snapshot,
            ("entities", *sorted(priors.items())),
            lambda: entity_graph_of(snapshot.entities, statements, strings, type_prior=priors),
        )

    def conversation(
        self,
        memory: MemoryState,
        snapshot: Snapshot,
        passing: Sequence[npt.NDArray[np.bool_]],
        key: Hashable,
        ranking: PageRank,
    ) -> ConversationGraph:
        """The conversation graph of the documents that pass a filter, given as flags by segment.

        `key` identifies this choice of documents in the cache.
        """
        strings, analyzer = memory.indexer.vocabulary.strings, memory.analyzer
        return self._keep(
            self._conversations,
            snapshot,
            (key, ranking),
            lambda: graph_of(snapshot, strings, analyzer, passing, ranking, memory.values["role"].ids),
        )

    def stats(self, memory: MemoryState, snapshot: Snapshot) -> Stats:
        """Counts over a namespace's live records."""
        return self._keep(self._made, snapshot, "stats", lambda: self._stats(memory, snapshot))

    def _stats(self, memory: MemoryState, snapshot: Snapshot) -> Stats:
        types: Counter[str] = Counter()
        vectors = False
        names = memory.values["type"].strings
        for number, segment in enumerate(snapshot.segments):
            codes = segment.columns.categories.get("type")
            alive = snapshot.alive(number)
            if segment.vectors is not None:
                vectors |= bool((segment.vectors.held if alive is None else segment.vectors.held & alive).any())
            if codes is None:
                continue
            present = codes[codes != ABSENT] if alive is None else codes[alive & (codes != ABSENT)]
            counts = np.bincount(present)
            types.update({names[code]: int(counts[code]) for code in np.flatnonzero(counts).tolist()})
        return Stats(snapshot.size, vectors, dict(types), len(self.entities(memory, snapshot)))

    def _keep(
        self,
        caches: WeakKeyDictionary[Snapshot, dict[Hashable, object]],
        snapshot: Snapshot,
        key: Hashable,
        make: Callable[[], T],
    ) -> T:
        with self._lock:
            cache = caches.setdefault(snapshot, {})
            value = cache.pop(key, None)
            if value is not None:
                cache[key] = value  # the most recently used stands last
                return value  # type: ignore[return-value]
        fresh = make()
        with self._lock:
            cache[key] = fresh
            while len(cache) > KEPT:
                cache.pop(next(iter(cache)))
        return fresh
