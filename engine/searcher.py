"""`Searcher`: answers a batch of queries over one memory. Streams prepare and answer for themselves.

::

    queries ─┬─ plain BM25, alike but for their texts ── search/direct.py ─┐
             └─ as_queries ── prepare ─┬─ plain BM25 ── search/lexical.py ─┤
                                       ├─ a strategy ── hybrid/search.py ──┼─ hits, counted by the monitor
                                       └─ a policy ──── route/run.py ──────┘
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .backends.choose import Backend
from .encoders.pins import Models
from .errors import FanrankError, StorageError
from .feedback.anchors import Anchors
from .hybrid import search as hybrid
from .hybrid.evidence import Evidence
from .hybrid.sources import Sources
from .hybrid.strategy import PLAIN, Strategy
from .index.segment import evidence_stats
from .monitor.monitor import Monitor
from .opening import OpenIndex
from .recall.graphs import Graphs
from .records.hits import Hits
from .records.record import Record
from .route import run as routing
from .route.policy import Answerer
from .search import direct, lexical
from .search.batch import AnyQuery, as_queries, prepare
from .search.keyword_scan import scan
from .search.options import SearchOptions
from .signatures import SearchKeywords, ThreadedKeywords, read_keywords
from .storage.sizes import sizes_of
from .timing import Phases


class Searcher:
    """Answers batches for `Engine`, the coalescer, streams and namespaces.

    Any thread may search at any time. A search reads snapshots and never waits for a writer.
    """

    def __init__(self, index: OpenIndex, models: Models, backend: Backend, monitor: Monitor) -> None:
        self.index = index
        self.models = models
        self.backend = backend
        """The backend that serves; `Engine.to` replaces it."""
        self.monitor = monitor
        self._graphs = Graphs()
        self._anchors = None if models.encoder is None else Anchors(models.encoder)

    def search(self, queries: Sequence[AnyQuery], k: int, keywords: SearchKeywords | ThreadedKeywords) -> Hits:
        """As `Engine.search`. The monitor counts the answer, or the failure.

        While the index is being built, a scan of the stored texts for keywords answers.
        """
        started = time.perf_counter()
        try:
            answerer, options = read_keywords(keywords)
            if self.index.filler is not None and self.index.building:
                hits, reason = scan(self.index.memory, queries, k), "the index is being built"
            else:
                hits, reason = self.answer(queries, k, answerer, options), None
        except FanrankError as error:
            self.count_failure(queries, error)
            raise
        self.monitor.count(hits, time.perf_counter() - started, reason)
        return hits

    def answer(self, queries: Sequence[AnyQuery], k: int, answerer: Answerer, options: SearchOptions) -> Hits:
        """The hits of a batch; the monitor does not count them. Raises as `Engine.search`."""
        index = self.index
        memory = (index.memory if index.filler is None else index.ready()).state
        plain = answerer is PLAIN or (isinstance(answerer, Strategy) and answerer.plain)
        if plain and options.reranker is None:
            hits = direct.answer(memory, queries, k, self.monitor.windows, self.backend, options)
            if hits is not None:
                return hits
        phases = Phases(options.timing)
        with phases("prepare"):
            aged = not plain and answerer.aged
            batch = prepare(memory, as_queries(queries, "search"), k, self.monitor.windows, aged=aged)
        if not isinstance(answerer, Strategy):
            return routing.answer(batch, self.backend, self._sources(), answerer, options)
        if plain and options.reranker is None:
            return lexical.answer_lexical(batch, self.backend, options, phases)
        return hybrid.answer(batch, self.backend, self._sources(), answerer, options)

    def candidates(self, queries: Sequence[AnyQuery], strategy: Strategy, options: SearchOptions) -> Evidence:
        """As `Engine.candidates`."""
        batch = prepare(
            self.index.ready().state, as_queries(queries, "candidates"), 1, self.monitor.windows, aged=strategy.aged
        )
        return hybrid.collect_evidence(batch, self.backend, self._sources(), strategy, options)

    def fetch(self, ids: Sequence[str], namespace: str) -> list[Record | None]:
        """As `Engine.fetch`."""
        memory = self.index.memory
        if memory.store is None:
            raise StorageError("an engine in memory keeps no records; use Engine.open(path)")
        ids = list(ids)
        records = memory.store.fetch(namespace, ids)
        if None in records:
            memory.check_gone(namespace, [i for i, record in zip(ids, records, strict=True) if record is None])
        clock = time.time()
        return [None if record is None or record.expired(clock) else record for record in records]

    def stats(self) -> dict[str, Any]:
        """As `Engine.stats`."""
        memory = self.index.ready()
        state = memory.state
        snapshots = state.present(time.time()).values()
        segments = [segment for snapshot in snapshots for segment in snapshot.segments]
        postings = sum(segment.postings for segment in segments)
        sizes = sizes_of(state)
        documents = sum(snapshot.size for snapshot in snapshots)
        return {
            "namespaces": sum(snapshot.size > 0 for snapshot in snapshots),
            "documents": documents,
            "deleted": sum(snapshot.numbers for snapshot in snapshots) - documents,
            "segments": len(segments),
            "vocabulary": len(state.indexer.vocabulary),
            "weight_terms": len(state.weight_terms),
            "entity_terms": len(state.entity_terms),
            "column_values": sum(map(len, state.values.values())),
            "postings": postings,
            **sizes,
            "bytes_per_posting": sizes["posting_bytes"] / postings if postings else 0.0,
            **evidence_stats(segments),
            "backend": self.backend.name,
            "device_bytes": self.backend.device.residency.bytes if self.backend.device else 0,
            **memory.stats(),
            **({"opened": self.index.opened} if self.index.opened else {}),
        }

    def count_failure(self, queries: object, error: FanrankError) -> None:
        """Count a batch of queries that failed with this error."""
        self.monitor.count_failure(queries, error, self.backend.name)

    def _sources(self) -> Sources:
        models, stored = self.models, self.index.memory.store is not None
        return Sources(
            models.encoder,
            models.pin,
            models.term_encoder,
            self._records if stored else None,
            self._first_sentences if stored and models.encoder is not None else None,
            self._graphs,
        )

    def _records(self, namespace: str, ids: Sequence[str]) -> list[Record | None]:
        return self.fetch(ids, namespace)

    def _first_sentences(self, namespace: str, ids: Sequence[str]) -> npt.NDArray[np.float64]:
        assert self._anchors is not None
        records = self._records(namespace, ids)
        return self._anchors(["" if record is None else record.text for record in records])
