"""Counts an engine's searches, learns from their hits, and reports the health of a namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import Integers
from ..errors import FanrankError, ParameterError, QueryError, RecordError
from ..index.columns import hashes_of
from ..moments import Moment
from ..records.hits import Hits
from ..records.query import Query
from ..search.events import window_ranks
from ..search.given import SharedTexts
from ..storage.record_store import RecordStore
from ..storage.state import searched_names
from ..storage.storage import Storage
from .health import TOP_TERMS, DriftReport, Health, HealthDrift, HealthReport, top_terms
from .meanings import Meanings, is_storable
from .recency import EPSILON, MAX_WINDOWS, RATE, Recency

MEANINGS = "meanings"
"""The key of what names meant, beside what `Recency` learned."""


class Monitor:
    """Counts and learned values of one engine, by namespace.

    `epsilon`, `max_windows` and `rate` are those of `Recency`, `log_texts` that of `Health`. Raises `ParameterError` as
    `Recency` does.
    """

    def __init__(
        self,
        *,
        epsilon: float = EPSILON,
        max_windows: int | None = MAX_WINDOWS,
        rate: float = RATE,
        log_texts: bool = False,
    ) -> None:
        Recency(epsilon=epsilon, max_windows=max_windows, rate=rate)
        if not isinstance(log_texts, bool):
            raise ParameterError(f"log_texts must be true or false, not {log_texts!r}")
        self.log_texts = log_texts
        self.epsilon = epsilon
        self.max_windows = max_windows
        self.rate = rate
        self.shared = False
        """Whether other processes follow what is learned here, so that it is kept at once."""
        self._restored: int | None = None
        self._recency: dict[str, Recency] = {}
        self._meanings: dict[str, Meanings] = {}
        self._health: dict[str, Health] = {}
        self._drift: dict[str, HealthDrift] = {}

    def recency(self, namespace: str = "") -> Recency:
        """The k* rule of a namespace: how many of its newest windows ``windows="auto"`` searches."""
        namespace = checked_namespace(namespace)
        return self._recency.setdefault(
            namespace, Recency(epsilon=self.epsilon, max_windows=self.max_windows, rate=self.rate)
        )

    def keep(self, store: RecordStore) -> None:
        """Keep in the store what was learned since the last call that succeeded."""
        # The number of a change is read before the values, so that what is told in between is kept by the next call.
        meant = {name: change for name, rule in list(self._meanings.items()) if (change := rule.changes()) is not None}
        learned = {name: used for name, rule in list(self._recency.items()) if (used := rule.changes()) is not None}
        for name in meant.keys() - learned.keys():
            learned[name] = self.recency(name).learned()
        for name, values in learned.items():
            if name in self._meanings:
                values[MEANINGS] = self._meanings[name].learned()
        if learned:
            store.keep_learned(learned)
        for name, values in learned.items():
            self.recency(name).mark_kept(values)
        for name, change in meant.items():
            self._meanings[name].mark_kept(change)

    def restore(self, store: RecordStore) -> None:
        """Go on from what `keep` kept, here or in another process: all of it, later what has changed."""
        changes, learned, names = store.learned_after(self._restored)
        for name in names or ():
            self._recency.pop(name, None)
            self._meanings.pop(name, None)
        self.adopt(learned, alone=names is None)
        self._restored = changes

    def learned(self, namespace: str | None = None) -> dict[str, dict[str, Any]]:
        """All that was learned of one namespace or (None) of all, as `adopt` takes it."""
        names = {*list(self._recency), *list(self._meanings)} if namespace is None else {namespace}
        learned: dict[str, dict[str, Any]] = {}
        for name in names:
            values, meant = self.recency(name).learned(), self._meanings.get(name)
            if meant is not None:
                values[MEANINGS] = meant.learned()
            if values["observed"] or meant is not None:
                learned[name] = values
        return learned

    def adopt(self, learned: Mapping[str, Mapping[str, Any]], *, alone: bool = False) -> None:
        """Go on from what `learned` gave; with `alone`, all other namespaces are forgotten."""
        if alone:
            self._recency.clear()
            self._meanings.clear()
        for namespace, values in learned.items():
            self.recency(namespace).restore(values)
            if MEANINGS in values:
                self._meanings_of(namespace).restore(values[MEANINGS])

    def windows(self, namespace: str) -> int:
        """How many of a namespace's newest windows ``windows="auto"`` searches."""
        return self.recency(namespace).windows()

    def observe(
        self, memory: Storage, ids: Iterable[str], namespace: str, now: Moment | None, windows: int | None
    ) -> None:
        """As `Engine.observe`, for the records in `memory`."""
        batch = observed_ids(ids)
        moment = Query(now=now).now
        snapshot = memory.snapshot(checked_namespace(namespace))
        ranks = window_ranks(snapshot, list(snapshot.find_all(batch).values()), memory.window, moment)
        self.observe_ranks(ranks, namespace, windows)

    def observe_ranks(self, ranks: Iterable[int], namespace: str, windows: int | None) -> None:
        """As `observe`, for the age ranks of the windows of used hits."""
        searched = [rank for rank in ranks if not isinstance(windows, int) or rank < windows]
        self.recency(namespace).observe(searched, windows)

    def resolved(self, name: str, entity: str, namespace: str, times: int) -> None:
        """As `Engine.resolved`."""
        if not is_storable(checked_namespace(namespace)):
            raise ParameterError(f"a namespace's name must hold no lone surrogate, not {namespace!r}")
        self._meanings_of(namespace).resolved(name, entity, times)

    def meant(self, searched: tuple[str, Sequence[str] | None, str | None], name: str) -> Mapping[str, int]:
        """How often a name (its words, joined by spaces) meant each entity, in all that a query searches.

        `searched` are the query's `searched_fields`.
        """
        counts: Counter[str] = Counter()
        for namespace in searched_names(*searched, lambda: list(self._meanings)):
            if namespace in self._meanings:
                counts.update(self._meanings[namespace].of(name))
        return counts

    def _meanings_of(self, namespace: str) -> Meanings:
        return self._meanings.setdefault(namespace, Meanings())

    def health(self, namespace: str) -> HealthReport:
        """As `Engine.health`."""
        # A namespace that nobody searched gets no entry.
        return (self._health.get(checked_namespace(namespace)) or Health(namespace)).snapshot()

    def drift(self, memory: Storage, namespace: str) -> DriftReport:
        """As `Engine.drift`, for the records in `memory`."""
        state = memory.state
        snapshot = state.snapshot(checked_namespace(namespace))
        df = snapshot.all_document_frequencies()
        terms = np.flatnonzero(df)
        top = top_terms(terms, df[terms], TOP_TERMS)
        # Compared by their hashes: a term's number may be another at the next check.
        hashes = hashes_of([state.indexer.vocabulary.strings[term] for term in top.tolist()])
        return self.drift_of(namespace, hashes.view(np.int64))

    def drift_of(self, namespace: str, top: Integers) -> DriftReport:
        """As `drift`; `top` are the hashes of the most frequent terms."""
        return self._drift.setdefault(namespace, HealthDrift()).check(top)

    def drop(self, namespace: str) -> None:
        """Forget the counts and the learned rate of a namespace."""
        for by_namespace in (self._recency, self._meanings, self._health, self._drift):
            by_namespace.pop(namespace, None)

    def count(self, hits: Hits, seconds: float, fallback: str | None = None) -> None:
        """Count an answered batch that took `seconds`.

        `fallback` is the reason why another path than the chosen one answered.
        """
        namespace = hits.namespace
        if namespace is not None:
            try:
                health = self._health[namespace]
            except KeyError:
                health = self._health_of(namespace)
            counts = hits.counts.tolist()
            health.record(len(counts), seconds, counts, backend=hits.backend, fallback=fallback, answer=hits)
            return
        rows: dict[str, list[int]] = {query.namespace: [] for query in hits.queries}
        for row, query in enumerate(hits.queries):
            rows[query.namespace] += (row,)
        for namespace, positions in rows.items():
            results = hits.counts[positions]
            self._health_of(namespace).record(
                len(results), seconds, results, backend=hits.backend, fallback=fallback, answer=hits, rows=positions
            )

    def count_failure(self, queries: object, error: FanrankError, backend: str) -> None:
        """Count a batch that failed on the backend of this name."""
        batch = queries if isinstance(queries, (list, tuple, SharedTexts)) else [queries]
        spaces = Counter(query.namespace if isinstance(query, Query) else "" for query in batch)
        for namespace, count in spaces.items():
            self._health_of(namespace).fail(count, error, backend=backend)

    def _health_of(self, namespace: str) -> Health:
        return self._health.setdefault(namespace, Health(namespace, log_texts=self.log_texts))


def observed_ids(ids: Iterable[str]) -> list[str]:
    """The ids that `Engine.observe` is told. Raises `RecordError` for anything but a batch."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise RecordError("observe takes a batch: pass a list of ids")
    return [record_id for record_id in ids if isinstance(record_id, str)]


def checked_scope(namespace: object) -> str | None:
    """As `checked_namespace`; None stands for all namespaces."""
    return None if namespace is None else checked_namespace(namespace)


def checked_namespace(namespace: object) -> str:
    """The namespace's name. Raises `QueryError` for anything but a string."""
    if not isinstance(namespace, str):
        raise QueryError(f"a namespace's name must be a string, not {type(namespace).__name__}")
    return namespace
