"""`Engine.search_stream`: many batches in order, each analysed and planned while the one before it is scored.

::

    caller    reads batch 3: its snapshot, filters, ranges of time
    worker    analysis and plan of batch 2, which then waits for its turn
    worker    scoring of batch 1: compiled loops and devices release the interpreter's lock
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from ..backends.choose import Backend
from ..errors import FanrankError, ParameterError, QueryError
from ..plan.plan import Plan
from ..plan.verbs import Output
from ..records.hits import Hits
from ..records.query import Query, QueryDefaults, check_k
from ..search import lexical
from ..search.batch import Batch, prepare
from ..search.given import AnyBatch, set_defaults
from ..search.keyword_scan import scan
from ..search.options import SearchOptions
from ..searcher import Searcher, check_vectors
from ..storage.state import MemoryState
from ..timing import Phases

MAX_AHEAD = 64
DEVICE_TURNS = 2
"""Batches on a device at once: one is computed while the other is launched, or copied back."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class InTurn(Backend):
    """A backend that serves only as many batches at once as the semaphore `turns` allows."""

    turns: AbstractContextManager[object] | None = None

    @classmethod
    def of(cls, backend: Backend, turns: AbstractContextManager[object]) -> InTurn:
        return cls(**{field.name: getattr(backend, field.name) for field in fields(Backend)}, turns=turns)

    def serve(
        self, plans: Sequence[Plan], batch: int, k: int, *, threads: int, execution: str, phases: Phases | None = None
    ) -> tuple[str, Output]:
        assert self.turns is not None
        with self.turns:
            return super().serve(plans, batch, k, threads=threads, execution=execution, phases=phases)


def search_stream(
    searcher: Searcher,
    batches: Iterable[AnyBatch],
    k: int,
    options: SearchOptions,
    *,
    ahead: int,
    defaults: QueryDefaults,
) -> Iterator[Hits]:
    """As `Engine.search_stream`."""
    k = check_stream(batches, k, ahead)
    threads = options.threads
    turns = threading.BoundedSemaphore(threads), threading.BoundedSemaphore(DEVICE_TURNS)
    # With workers, each batch is scored by one thread and the batches share the threads.
    each = replace(options, threads=1) if ahead else options

    def begin(queries: AnyBatch) -> Callable[[], Hits]:
        started = time.perf_counter()
        try:
            if searcher.index.scans():
                hits = scan(searcher.index.memory, set_defaults(queries, defaults, "search_stream"), k, options)
                searcher.monitor.count(hits, time.perf_counter() - started, "the index is being built")
                return lambda: hits
            checked = as_plain_queries(queries, defaults)
            check_vectors(checked, searcher.models.pin)
            state, batch = searcher.declaring(lambda: _prepare(searcher, checked, k), checked)
        except FanrankError as error:
            searcher.count_failure(queries, error)
            raise
        read = time.perf_counter() - started
        backend = searcher.backend
        serving = InTurn.of(backend, turns[backend.device is not None]) if ahead else backend

        def search(current: MemoryState) -> Hits:
            searched = batch
            if current is not state:  # a record of a hit was changed since the batch was read
                searched = prepare(current, checked, k, searcher.monitor.windows)
            records = searcher.sources(current, checked).records
            return lexical.answer_lexical(searched, serving, each, records=records)

        def answer() -> Hits:
            if options.texts or options.payload:
                return searcher.bring_records(search, each, state)
            return search(state)

        def finish() -> Hits:
            begun = time.perf_counter()
            try:
                hits = answer()
            except FanrankError as error:
                searcher.count_failure(queries, error)
                raise
            searcher.monitor.count(hits, read + time.perf_counter() - begun)
            return hits

        return finish

    return run_in_order(batches, begin, ahead=ahead, workers=min(threads, ahead) + 1)


def _prepare(searcher: Searcher, queries: tuple[Query, ...], k: int) -> tuple[MemoryState, Batch]:
    state = searcher.index.ready().state
    return state, prepare(state, queries, k, searcher.monitor.windows)


def check_stream(batches: object, k: object, ahead: object) -> int:
    """`k` as an int. Raises `QueryError` and `ParameterError` for the arguments of a stream."""
    if isinstance(batches, str) or not isinstance(batches, Iterable):
        raise QueryError("search_stream takes batches: pass an iterable of lists of queries")
    checked = check_k(k)
    if isinstance(ahead, bool) or not isinstance(ahead, int) or not 0 <= ahead <= MAX_AHEAD:
        raise ParameterError(f"ahead must lie in [0, {MAX_AHEAD}], not {ahead!r}")
    return checked


def as_plain_queries(batch: AnyBatch, defaults: QueryDefaults) -> tuple[Query, ...]:
    """The queries of a batch of a stream, with what is set for all of them. Raises `QueryError`, also for a query that
    BM25 does not answer.
    """
    queries = set_defaults(batch, defaults, "search_stream")
    for position, query in enumerate(queries):
        if query.strategy is not None or query.newest:
            what = "has a strategy of its own" if query.strategy is not None else "asks for the newest records"
            raise QueryError(f"query {position} {what}, and search_stream answers by bm25 alone; use search")
    return queries


def run_in_order(
    source: Iterable[Item], begin: Callable[[Item], Callable[[], Result]], *, ahead: int, workers: int
) -> Iterator[Result]:
    """The results of all items, in order: `begin` runs in the caller's thread, the function it returns in a worker's.

    A result is handed out once its item and at most `ahead` more were read. With `ahead` 0, all is done in the caller's
    thread. The source is read only inside ``next``, so a source that waits blocks only its caller. An error, also one
    of the source, is raised when its turn comes, and nothing is read after it. The workers end when the iterator ends
    or is closed; what they had begun is finished first.
    """
    items = iter(source)
    if not ahead:
        for item in items:
            yield begin(item)()
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, "fanrank-stream") as pool:
        try:
            more = True
            while True:
                while more and len(waiting) <= ahead:
                    try:
                        for item in items:
                            waiting.append(pool.submit(begin(item)))
                            break
                        else:
                            more = False
                    except Exception as error:
                        more = False
                        failed: Future[Result] = Future()
                        failed.set_exception(error)
                        waiting.append(failed)
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
