"""`Searcher`: answers a batch of queries over one memory. Streams prepare and answer for themselves.

::

    queries ─┬─ plain BM25, alike but for their texts ── search/direct.py ─┐
             └─ as_queries ── prepare ─┬─ plain BM25 ── search/lexical.py ─┤
                                       ├─ a strategy ── hybrid/search.py ──┼─ hits, counted by the monitor
                                       └─ a policy ──── route/run.py ──────┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .backends.choose import Backend
from .encoders.pins import Models
from .errors import FanrankError, QueryError, UnknownColumnError
from .feedback.anchors import Anchors
from .hybrid import search as hybrid
from .hybrid.evidence import Evidence
from .hybrid.sources import Sources
from .hybrid.strategy import PLAIN, Strategy
from .monitor.monitor import Monitor
from .opening import OpenIndex
from .recall.graphs import Graphs
from .records.filters import Filter, columns_in
from .records.hits import Hits
from .records.jsonl import checked_ids
from .records.query import Query, searched_fields
from .records.record import Record, RecordsOf
from .route import run as routing
from .route.by_namespace import AnyAnswerer, ByNamespace
from .route.parts import divide, join, needs_parts, renumber
from .route.policy import Answerer
from .search import direct, lexical
from .search.batch import prepare
from .search.given import AnyBatch, SharedTexts, as_queries, share_defaults
from .search.keyword_scan import scan
from .search.newest import answer_newest
from .search.options import SearchOptions
from .search.shaping import is_shaped
from .search.texts import search_with_records
from .signatures import SearchKeywords, ThreadedKeywords, read_keywords
from .storage.sqlite import StoreMoment
from .storage.state import MemoryState
from .timing import Phases

T = TypeVar("T")
TakeRecords = Callable[[Sequence[str], Sequence[Record | None]], None]
"""Takes some ids, and the records that they have."""


class Searcher:
    """Answers batches for `Engine`, the coalescer, streams and namespaces.

    Any thread may search at any time. A search reads snapshots and never waits for a writer.
    """

    pins = True
    """Whether `answer` can be told the state that it searches."""

    def __init__(self, index: OpenIndex, models: Models, backend: Backend, monitor: Monitor) -> None:
        self.index = index
        self.models = models
        self.backend = backend
        """The backend that serves; `Engine.to` replaces it."""
        self.monitor = monitor
        self._graphs = Graphs()
        self._anchors = None if models.encoder is None else Anchors(models.encoder)

    def search(self, queries: AnyBatch, k: int, keywords: SearchKeywords | ThreadedKeywords) -> Hits:
        """As `Engine.search`. The monitor counts the answer, or the failure.

        While the index is being built from the records, a scan of their texts for keywords answers.
        """
        started = time.perf_counter()
        try:
            answerer, options, defaults = read_keywords(keywords)
            if defaults:
                queries = share_defaults(queries, defaults)
            if self.index.filler is not None and self.index.scans():
                hits, reason = scan(self.index.memory, queries, k, options), "the index is being built"
            else:
                hits, reason = self.answer(queries, k, answerer, options), None
        except UnknownColumnError as error:
            try:
                self.declare(error, _columns_in(queries))
            except FanrankError as failure:
                self.count_failure(queries, failure)
                raise
            # Each round declares at least one more column.
            return self.search(queries, k, keywords)
        except FanrankError as error:
            self.count_failure(queries, error)
            raise
        self.monitor.count(hits, time.perf_counter() - started, reason)
        return hits

    def declaring(self, read: Callable[[], T], filters: object = ()) -> T:
        """What `read` returns. Where the engine declares columns when filters name them, `read` is called again after
        those of `filters`, queries or filters, were declared. Raises what `read` raises, and `QueryError`.
        """
        try:
            return read()
        except UnknownColumnError as error:
            self.declare(error, _columns_in(filters))
            return self.declaring(read, filters)

    def keep_columns(self) -> None:
        """From now on no filter declares a column: `add_column` alone does.

        A filter on another name raises `UnknownColumnError`. It holds for this object, not for the directory. A server
        with keys does so, because a column reads all records once and stays, for all tenants.
        """
        self.index.declares = False
        self.index.memory.declares = False

    def declare(self, error: UnknownColumnError, names: Iterable[str]) -> None:
        """As `Storage.declare`."""
        self.index.ready().declare(error, names)

    def answer(
        self,
        queries: AnyBatch,
        k: int,
        answerer: AnyAnswerer,
        options: SearchOptions,
        state: MemoryState | None = None,
        clock: float | None = None,
    ) -> Hits:
        """The hits of a batch, over `state` (None: the current one); the monitor does not count them.

        `clock` is as in `prepare`.

        Raises as `Engine.search`.
        """
        if (options.texts or options.payload) and state is None:
            return self._answer_with_records(queries, k, answerer, options)
        index = self.index
        memory = (index.memory if index.filler is None else index.ready()).state if state is None else state
        plain = answerer is PLAIN or (isinstance(answerer, Strategy) and answerer.plain)
        if plain and options.reranker is None and clock is None:
            hits = direct.answer(memory, queries, k, self.monitor.windows, self.backend, options, self.sources)
            if hits is not None:
                return hits
        if not plain:
            answer_dialogues, words_alone = _dialogue_verbs()
            strategy = answerer if isinstance(answerer, Strategy) else words_alone(answerer)
            if strategy is not None:
                windows, chosen = self.monitor.windows, strategy is not answerer
                hits = answer_dialogues(
                    memory, queries, k, windows, self.backend, options, strategy, self.sources, chosen=chosen
                )
                if hits is not None:
                    return hits
        phases = Phases(options.timing)
        with phases("prepare"):
            checked = as_queries(queries, "search")
            check_vectors(checked, self.models.pin)
            several = needs_parts(checked, answerer)
        if several:
            return self._answer_parts(memory, checked, k, answerer, options, clock)
        assert not isinstance(answerer, ByNamespace)
        return self._answer_all(memory, checked, k, answerer, options, phases, clock)

    def _answer_parts(
        self,
        memory: MemoryState,
        queries: tuple[Query, ...],
        k: int,
        answerer: AnyAnswerer,
        options: SearchOptions,
        clock: float | None,
    ) -> Hits:
        """The hits of a batch whose queries may have different strategies."""
        parts = divide(queries, answerer)
        if len(parts) == 1:
            return self._answer_all(memory, queries, k, parts[0].answerer, options, Phases(options.timing), clock)
        clock = time.time() if clock is None else clock
        answers = []
        for part in parts:
            asked = tuple([queries[row] for row in part.rows])
            try:
                phases = Phases(options.timing)
                answers.append(self._answer_all(memory, asked, k, part.answerer, options, phases, clock))
            except FanrankError as error:
                renumber(error, part)
                raise
        return join(queries, parts, answers)

    def _answer_all(
        self,
        memory: MemoryState,
        queries: tuple[Query, ...],
        k: int,
        answerer: Answerer | None,
        options: SearchOptions,
        phases: Phases,
        clock: float | None = None,
    ) -> Hits:
        """The hits of queries that one strategy or policy answers; None: the newest records. `clock` as `prepare`.

        `phases` holds the phases that ran before this call.
        """
        plain = isinstance(answerer, Strategy) and answerer.plain
        aged = not plain and answerer is not None and answerer.aged
        with phases("prepare"):
            batch = prepare(memory, queries, k, self.monitor.windows, aged=aged, clock=clock)
            sources = self.sources(memory, queries)
        if answerer is None:
            return answer_newest(batch, sources.records, timing=options.timing)
        if not isinstance(answerer, Strategy):
            return routing.answer(batch, self.backend, sources, answerer, options)
        if plain and options.reranker is None:
            return lexical.answer_lexical(batch, self.backend, options, phases, sources.records)
        return hybrid.answer(batch, self.backend, sources, answerer, options)

    def _answer_with_records(self, queries: AnyBatch, k: int, answerer: AnyAnswerer, options: SearchOptions) -> Hits:
        # The batch may be searched more than once, and its caller may change it meanwhile.
        given = tuple(queries) if isinstance(queries, (list, tuple)) else as_queries(queries, "search")
        return self.bring_records(lambda state: self.answer(given, k, answerer, options, state), options)

    def bring_records(
        self, search: Callable[[MemoryState], Hits], options: SearchOptions, first: MemoryState | None = None
    ) -> Hits:
        """The hits of `search` with the records that were scored; `search` may be called more than once.

        The first search is of the state `first` (None: the current one).
        """
        return search_with_records(self.index.ready, self.index.refresh, search, options, first)

    def candidates(self, queries: AnyBatch, strategy: Strategy, options: SearchOptions) -> Evidence:
        """As `Engine.candidates`."""
        checked = as_queries(queries, "candidates")
        check_candidates(checked)
        check_vectors(checked, self.models.pin)
        return self.declaring(lambda: self.collect(checked, strategy, options), checked)

    def collect(self, queries: tuple[Query, ...], strategy: Strategy, options: SearchOptions) -> Evidence:
        """The evidence for queries that are checked."""
        memory = self.index.ready().state
        batch = prepare(memory, queries, 1, self.monitor.windows, aged=strategy.aged)
        return hybrid.collect_evidence(batch, self.backend, self.sources(memory, queries), strategy, options)

    def fetch(self, ids: Sequence[str], namespace: str) -> list[Record | None]:
        """As `Engine.fetch`."""
        clock = time.time()
        return [_alive(record, clock) for record in self._read(namespace, checked_ids(ids, "fetch"))]

    def fetch_parts(self, ids: Sequence[str], namespace: str, size: int, take: TakeRecords) -> None:
        """As `fetch`, of one moment too, but `take` is given so many ids at a time and their records."""
        memory, clock = self.index.memory, time.time()
        state = memory.state
        several = memory.store is not None and len(ids) > size
        with memory.store.moment() if memory.store is not None and several else nullcontext() as moment:
            for first in range(0, len(ids), size):
                part = ids[first : first + size]
                take(part, [_alive(record, clock) for record in self._read(namespace, part, state, moment)])

    def _read(
        self,
        namespace: str,
        ids: Sequence[str],
        state: MemoryState | None = None,
        moment: StoreMoment | None = None,
    ) -> list[Record | None]:
        """As `fetch`, with the records that have expired: a query may have an earlier clock."""
        memory = self.index.memory
        memory.check_texts()
        if memory.store is None:
            return (state or memory.state).records_of(namespace, ids)
        records = memory.store.fetch(namespace, ids, moment)
        if None in records:
            memory.check_gone(namespace, [i for i, record in zip(ids, records, strict=True) if record is None])
        return records

    def stats(self) -> dict[str, Any]:
        """As `Engine.stats`."""
        from .storage.sizes import evidence_stats, sizes_of  # what a search does not need

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

    def sources(self, state: MemoryState, queries: Sequence[Query]) -> Sources:
        """What a search of this state reads beside the index. Kept records are those of the state itself."""
        models, memory = self.models, self.index.memory
        records: RecordsOf | None = None
        if memory.store is not None:
            records = self._read
        elif memory.keeps:
            # An answer keeps its sources, so they must hold no other tenant's records.
            asked, held = {*map(searched_fields, queries)}, state.snapshots
            kept = {name: held[name] for fields in asked for name in state.searched(*fields) if name in held}
            records = state.holding(kept).records_of
        return Sources(
            models.encoder,
            models.pin,
            models.term_encoder,
            records,
            None if records is None or self._anchors is None else partial(_first_sentences, self._anchors, records),
            self._graphs,
            self.monitor.meant,
        )


@cache
def _dialogue_verbs() -> tuple[Callable[..., Hits | None], Callable[[object], Strategy | None]]:
    # A plain search loads neither.
    from .hybrid.direct import answer
    from .route.dialogues import words_alone

    return answer, words_alone


def _first_sentences(
    anchors: Anchors, records: RecordsOf, namespace: str, ids: Sequence[str]
) -> npt.NDArray[np.float64]:
    """As `Sources.sentences`."""
    return anchors(["" if record is None else record.text for record in records(namespace, ids)])


def _columns_in(given: object) -> list[str]:
    """The columns that these queries or filters name."""
    if isinstance(given, SharedTexts):
        given = (given.query,)
    several = given if isinstance(given, (list, tuple)) else ()
    filters = [one.filter if isinstance(one, Query) else one for one in several]
    return [name for one in filters if isinstance(one, Filter) for name in columns_in(one)]


def _alive(record: Record | None, clock: float) -> Record | None:
    return None if record is None or record.expired(clock) else record


def check_vectors(queries: Sequence[Query], pin: object) -> None:
    """Raise `QueryError` for a query with a vector where there are none: whatever the strategy, it would not count."""
    if pin is not None:
        return
    for row, query in enumerate(queries):
        if query.vector is not None:
            raise QueryError(
                f"query {row} has a vector, and the engine holds no vectors; make it with "
                f"encoder='own:{query.vector.shape[1]}' for vectors of your own, or with a model's name"
            )


def check_candidates(queries: Sequence[Query]) -> None:
    """Raise `QueryError` for a query that asks more than candidates can say."""
    for position, query in enumerate(queries):
        if query.strategy is not None or query.newest or is_shaped(query):
            raise QueryError(
                f"query {position}: candidates are what one strategy finds before any hit is selected; leave out "
                "the query's strategy, newest, offset, min_score, collapse and unit, or use search"
            )
