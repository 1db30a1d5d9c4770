"""A call: the batch of one caller of the coalescer, and the three ways in which the caller gets its answer.

The coalescer (`engine/serve/coalesce.py`) holds its lock wherever the state of a call changes.
"""

from __future__ import annotations

import copy
import enum
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import DeadlineError, FanrankError, ParameterError
from ..hybrid.strategy import Strategy
from ..locks import once
from ..monitor.health import logger
from ..records.hits import Hits
from ..records.query import FIELDS, Query
from ..rerank.reranker import DEPTH
from ..route.by_namespace import AnyAnswerer, ByNamespace, answerer_of, same_answerer
from ..route.cascade import Cascade
from ..search.batch import k_of
from ..search.options import SearchOptions
from ..signatures import BatchKeywords, read_keywords
from .turns import Cut

if TYPE_CHECKING:
    import asyncio


class CallState(enum.Enum):
    WAITING = enum.auto()
    BEGUN = enum.auto()
    OVER = enum.auto()  # answered, failed, cancelled or expired


@dataclass(frozen=True, eq=False)
class LaunchOptions:
    """The options that all calls of one launch have in common."""

    answerer: AnyAnswerer
    search: SearchOptions
    any_threads: bool
    """Whether the launch chooses its threads by its size, whatever `search` says."""

    @classmethod
    def of(cls, keywords: BatchKeywords, threads: int | None) -> LaunchOptions:
        """The options that a call's keywords give; `threads` None lets the launch choose. Raises `ParameterError`."""
        answerer, options, _ = read_keywords({**keywords, "threads": 1 if threads is None else threads})
        if options.reranker is None and options.rerank_depth != DEPTH:
            # The depth changes nothing without a reranker, and must not keep callers apart.
            options = replace(options, rerank_depth=DEPTH)
        return cls(answerer, options, threads is None)

    def joins(self, other: LaunchOptions) -> bool:
        """Whether queries with these and the other options have, in one launch, the answers they have alone."""
        return (self is other or self.equals(other)) and not self.approximate

    def equals(self, other: LaunchOptions) -> bool:
        """Whether both give the same answers in the same way."""
        mine, theirs = self.search, other.search
        if (mine.rerank_depth, mine.threads, mine.execution) != (theirs.rerank_depth, theirs.threads, theirs.execution):
            return False
        if (mine.texts, mine.payload) != (theirs.texts, theirs.payload):
            return False
        if self.any_threads != other.any_threads or mine.reranker is not theirs.reranker:
            return False
        return same_answerer(self.answerer, other.answerer)

    @property
    def keywords(self) -> BatchKeywords:
        """The keywords that give these options."""
        options = self.search
        return {
            "strategy": self.answerer,
            "reranker": options.reranker,
            "rerank_depth": options.rerank_depth,
            "execution": options.execution,
            "texts": options.texts,
            "payload": options.payload,
        }

    @once
    def plain(self) -> bool:
        """Whether an answer needs the index alone: no vectors of queries, no records, no reranker."""
        search, answerer = self.search, self.answerer
        read = search.texts or search.payload or search.reranker is not None
        return isinstance(answerer, Strategy) and answerer.plain and not read

    @once
    def approximate(self) -> bool:
        """Whether the batch decides which documents are looked at."""
        return _is_approximate(self.answerer)

    def of_queries(self, queries: Sequence[Query]) -> LaunchOptions:
        """The options of a call with these queries: approximate also where a query's own strategy is."""
        # A strategy that is none is refused by the search.
        own = {id(query.strategy): query.strategy for query in queries if query.strategy is not None}
        if self.approximate or not any(_may_be_approximate(strategy) for strategy in own.values()):
            return self
        options = replace(self)
        options.__dict__["approximate"] = True
        return options


def _is_approximate(answerer: AnyAnswerer) -> bool:
    """Whether an HNSW graph is searched: for the largest k of the batch."""
    return any(channel.mode == "hnsw" for strategy in _strategies(answerer) for channel in strategy.dense)


def _may_be_approximate(value: object) -> bool:
    try:
        return _is_approximate(answerer_of(value))
    except FanrankError:
        return False


def _strategies(answerer: AnyAnswerer) -> list[Strategy]:
    if isinstance(answerer, Strategy):
        return [answerer]
    if isinstance(answerer, Cascade):
        return _strategies(answerer.escalate)
    if isinstance(answerer, ByNamespace):
        return [strategy for one in answerer.every for strategy in _strategies(one)]
    return list(answerer.strategies.values())


_beside_place = attrgetter(*(name for name in FIELDS if name not in {"text", "namespace", "k", "id", "vector"}))
_PLACE_ALONE = _beside_place(Query())


def is_text_of_one(query: Query) -> bool:
    """Whether a query asks by its text alone, in one namespace."""
    return query.vector is None and bool(_beside_place(query) == _PLACE_ALONE)


class Call:
    """A batch, its options, and then its answer. `deadline` is a time of `time.monotonic`."""

    def __init__(
        self, queries: tuple[Query, ...], k: int, options: LaunchOptions, *, deadline: float | None, patient: bool
    ) -> None:
        self.queries = queries
        self.k = k
        self.width = max((k_of(query, k) for query in queries), default=k)  # places for hits of each query
        self.options = options
        self.deadline = deadline
        self.patient = patient  # waits for room in the queue
        self.state = CallState.WAITING
        self.entered = False  # into a queue
        self.large = False
        self.tenant: str | None = None  # by whose turn it is launched
        self.left = 0  # the work of what has not been launched, of a tenant's call
        self.cut: Cut | None = None  # the pieces of a large call
        self._hits: Hits | None = None
        self._start: int | None = None
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self.queries)

    def asked(self, k: int) -> Sequence[Query]:
        """The queries for a batch with another k. Queries without a k of their own get the k of this call."""
        if k == self.k:
            return self.queries
        return [query if k_of(query, self.k) == k_of(query, k) else _set_k(query, self.k) for query in self.queries]

    def answered(self, hits: Hits, start: int | None = None) -> None:
        """Keep the answer: `hits`, or their rows from `start` on."""
        self._hits, self._start = hits, start

    def failed(self, error: BaseException) -> None:
        self._error = error

    def answer(self) -> Hits:
        """The hits of this call alone. Raises what its search raised."""
        error, hits, start = self._error, self._hits, self._start
        self._error = self._hits = None
        if error is not None:
            try:
                raise error
            finally:
                del error
        assert hits is not None
        if start is None:
            return hits
        return hits.slice(start, start + len(self), self.width, self.queries)

    def late(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def begin(self) -> bool:
        """Begin the call; False where the caller does not want it any more."""
        return True

    def settle(self) -> None:
        """Tell the caller that the call is over. Any thread may do so, but never under the coalescer's lock."""
        raise NotImplementedError


class Blocked(Call):
    """A call whose caller is a thread that waits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._over = threading.Lock()
        self._over.acquire()

    def wait(self) -> bool:
        """Wait for the answer up to the deadline. Returns whether it came."""
        if self.deadline is None:
            return self._over.acquire()
        return self._over.acquire(timeout=seconds_until(self.deadline))

    def settle(self) -> None:
        self._over.release()


class CallOutcome(Future[Hits]):
    """A future that calls `about_to_wait` before a thread waits for it.

    The thread that would answer the call must not wait for it.
    """

    about_to_wait: Callable[[], None] | None = None

    def result(self, timeout: float | None = None) -> Hits:
        if self.about_to_wait is not None:
            self.about_to_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self.about_to_wait is not None:
            self.about_to_wait()
        return super().exception(timeout)


class Promised(Call):
    """A call whose caller holds a future, which may be cancelled until its launch begins."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.future = CallOutcome()

    def begin(self) -> bool:
        try:
            return self.future.set_running_or_notify_cancel()
        except RuntimeError:  # the caller has set a result itself
            return False

    def settle(self) -> None:
        with suppress(InvalidStateError):  # the caller cancels it at this moment
            try:
                hits = self.answer()
            except BaseException as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(hits)


class Awaited(Call):
    """A call whose caller is a coroutine.

    Its future only says that the answer is there. So one message to the event loop serves all the callers of a launch,
    and each caller cuts out its own rows.
    """

    def __init__(self, *args: Any, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loop = loop
        self.over: asyncio.Future[None] = loop.create_future()

    def arrive(self) -> None:
        """Wake the caller. Only the thread of the event loop may do so."""
        if not self.over.done():
            self.over.set_result(None)

    def settle(self) -> None:
        wake(self.loop, [self])


class Arrives(Protocol):
    """What a coroutine waits for."""

    def arrive(self) -> None:
        """Wake the caller. Only the thread of the event loop may do so."""
        ...


def wake(loop: asyncio.AbstractEventLoop, calls: Sequence[Arrives]) -> None:
    """Tell the callers of these calls, all of one event loop, that their calls are over."""

    def arrive() -> None:
        for call in calls:
            call.arrive()

    import asyncio  # who has a loop has it

    if asyncio._get_running_loop() is loop:
        arrive()
        return
    try:
        loop.call_soon_threadsafe(arrive)
    except RuntimeError:
        if not loop.is_closed():  # nobody waits in a closed loop any more
            raise


def settle(calls: Sequence[Call]) -> None:
    """Tell every caller that its call is over, with one message to each event loop.

    Raises nothing, whatever callbacks raise.
    """
    loops: dict[asyncio.AbstractEventLoop, list[Awaited]] = {}
    messages: list[Callable[[], None]] = []
    for call in calls:
        if isinstance(call, Awaited):
            loops.setdefault(call.loop, []).append(call)
        else:
            messages.append(call.settle)
    messages += [partial(wake, loop, awaited) for loop, awaited in loops.items()]
    for send in messages:
        try:
            send()
        except BaseException as error:  # noqa: PERF203
            logger.error("telling a caller that its search is over raised %s", type(error).__name__)


def check_seconds(name: str, value: object) -> float:
    """A number of seconds, 0 or more. Raises `ParameterError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 <= value < math.inf):
        raise ParameterError(f"{name} must be 0 or more seconds, not {value!r}")
    return float(value)


def deadline_of(deadline: float | None) -> float | None:
    """The time of `time.monotonic` at which a deadline of so many seconds ends. Raises `ParameterError`."""
    return None if deadline is None else time.monotonic() + check_seconds("deadline", deadline)


def seconds_until(moment: float) -> float:
    """Seconds until a time of `time.monotonic`, as locks and conditions take them."""
    return min(max(moment - time.monotonic(), 0.0), threading.TIMEOUT_MAX)


def deadline_error(call: Call) -> DeadlineError:
    begun = (
        "its launch took longer"
        if call.state is CallState.BEGUN or call.cut is not None
        else "its launch did not begin"
    )
    asked = "1 query was" if len(call) == 1 else f"{len(call)} queries were"
    return DeadlineError(f"{asked} not answered by the deadline: {begun}")


def _set_k(query: Query, k: int) -> Query:
    # `replace` would check all of the query again.
    changed = copy.copy(query)
    object.__setattr__(changed, "k", k)
    return changed
