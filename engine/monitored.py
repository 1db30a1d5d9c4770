"""What an engine counts of its searches, learns of their hits, and says of a namespace's health."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import search as searching
from .backend import Backend
from .errors import FanrankError, QueryError, RecordError
from .health import TOP_TERMS, Drift, DriftReport, Health, HealthReport, top_terms
from .memory import Memory
from .recency import Recency
from .records import Hits, Query


class Monitored:
    """The part of `Engine` that watches it."""

    backend: Backend

    def __init__(self, **recency: Any) -> None:
        Recency(**recency)
        self._recency_options = recency
        self._recency: dict[str, Recency] = {}
        self._health: dict[str, Health] = {}
        self._drift: dict[str, Drift] = {}

    def _ready(self) -> Memory:
        raise NotImplementedError

    def _windows(self, namespace: str) -> int:
        return self.recency(namespace).windows()

    def recency(self, namespace: str = "") -> Recency:
        """The k* rule of a namespace: how many of its newest windows ``windows="auto"`` searches."""
        return self._recency.setdefault(space_of(namespace), Recency(**self._recency_options))

    # Sources: A032.
    def observe(
        self, ids: Iterable[str], *, namespace: str = "", now: float | None = None, windows: int | None = None
    ) -> None:
        """Tell which hits were used, so that the k* rule learns how recent useful records are.

        `now` is the queries' own time; `windows` how many windows they searched (None: all). Ids that are not live,
        and records without a time, teach nothing.
        """
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise RecordError("observe takes a batch: pass a list of ids")
        batch = [record_id for record_id in ids if isinstance(record_id, str)]
        Query(now=now)
        recency, memory = self.recency(namespace), self._ready()
        snapshot = memory.snapshot(namespace)
        ranks = searching.window_ranks(snapshot, list(snapshot.find_all(batch).values()), memory.window, now)
        recency.observe([rank for rank in ranks if not isinstance(windows, int) or rank < windows], windows)

    # Sources: C040.
    def health(self, namespace: str = "") -> HealthReport:
        """Counts, latencies and fallbacks of the namespace's searches."""
        return self._health_of(space_of(namespace)).snapshot()

    # Sources: B014.
    def drift(self, namespace: str = "") -> DriftReport:
        """How far the namespace's most frequent terms have moved since the last call."""
        snapshot = self._ready().snapshot(space_of(namespace))
        df = snapshot.all_document_frequencies()
        terms = np.flatnonzero(df)
        return self._drift.setdefault(namespace, Drift()).check(top_terms(terms, df[terms], TOP_TERMS))

    def _health_of(self, namespace: str) -> Health:
        return self._health.setdefault(namespace, Health(namespace))

    def _count(self, hits: Hits, seconds: float, fallback: str | None) -> None:
        spaces = [query.namespace for query in hits.queries]
        rows: dict[str, list[int]] = {namespace: [] for namespace in spaces}
        for row, namespace in enumerate(spaces if len(rows) > 1 else ()):
            rows[namespace].append(row)
        for namespace, own in rows.items():
            results = hits.counts[own] if len(rows) > 1 else hits.counts
            self._health_of(namespace).record(len(results), seconds, results, backend=hits.backend, fallback=fallback)

    def _count_failure(self, queries: object, error: FanrankError) -> None:
        batch = queries if isinstance(queries, (list, tuple)) else [queries]
        spaces = Counter(query.namespace if isinstance(query, Query) else "" for query in batch)
        for namespace, count in spaces.items():
            self._health_of(namespace).fail(count, error, backend=self.backend.name)


def space_of(namespace: object) -> str:
    """The namespace's name. Raises `QueryError`."""
    if not isinstance(namespace, str):
        raise QueryError(f"a namespace's name must be a string, not {type(namespace).__name__}")
    return namespace
