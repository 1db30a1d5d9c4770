"""Many callers, one launch: whatever waits while a launch runs goes into the next, on threads and in event loops.

::

    threads ──┐                   ┌─ launch: one search of all that waits ─┐
    tasks ────┼─ queue, in order ─┤                                        ├─ each caller's rows to the caller
    futures ──┘                   └─ meanwhile the queue fills ◄───────────┘

A launch reads one snapshot, taken after the last of its callers came, so everybody sees at least what was acknowledged
before the own call. Equal queries of different callers are answered once, as equal queries of one batch are.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol, TypedDict

from ..errors import DeadlineError, FanrankError, OverloadedError, ParameterError, QueryError, StorageError
from ..records.hits import Hits
from ..records.query import DEFAULT_K, Query, check_k
from ..search.batch import AnyQuery, as_queries
from ..searcher import Searcher
from ..signatures import BatchKeywords
from ..storage.memory import cores
from .calls import Awaited, Blocked, Call, CallState, LaunchOptions, Promised, deadline_error, seconds_until, settle

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

MAX_BATCH = 512
MAX_WAITING = 1 << 16
# Queries of a launch for each thread that it uses.
QUERIES_A_THREAD = 64
CORES = cores()
# Callers with other options that a launch looks past, under the lock: of 65,536 each launch else looked at all.
LOOK_PAST = 256
# A launch is as wide as its largest k: at most so many times the places for hits that its callers ask for, where they
# are more than `SMALL` (half a megabyte an array).
SPREAD = 4
SMALL = 1 << 16
# Callers in a row that fail alone by one error that is not about what they asked: then the rest of their launch fails.
ALIKE = 3
# Seconds for which the thread that launches stays without work, then it ends: an engine that nobody holds can go.
LINGER = 2.0
# Seconds that the interpreter's exit waits for a launch that runs.
EXIT_SECONDS = 1.0


class CoalescerStatistics(TypedDict):
    """What a coalescer did so far. `queries` and `callers` are those that were launched."""

    launches: int
    queries: int
    callers: int
    shared: int
    """Queries that were not worked out, as an equal one of the launch was."""
    largest: int
    """Queries of the largest launch."""
    waiting: int
    """Queries that wait now."""
    rejected: int
    """Callers that were refused for want of room."""
    cancelled: int
    """Callers that gave up, before or during their launch."""
    expired: int
    """Callers whose deadline passed, likewise."""


class Searched(Protocol):
    """An engine: whatever has a searcher."""

    @property
    def searcher(self) -> Searcher: ...


class Coalescer:
    """Answers the batches of many callers together, each with the hits of a call of its own (`Engine.search`).

    `search` blocks, `submit` returns a future, `asearch` is awaited, in any number of threads and event loops. A
    `search` without a deadline that finds nothing under way runs in its own thread, unless there is a `max_wait`: the
    seconds that the first of a launch waits for others (0: only while a launch runs), at most half of its deadline.
    `max_batch` is the most queries of a joint launch; a batch of more is never split, as it reads one snapshot, and
    runs by itself beside the others. From `max_waiting` queries in the queue on, `submit` blocks, and callers with
    ``wait=False`` get `OverloadedError`. `threads` is what a launch may use; None: one for a small launch, up to all
    cores for a large one. Raises `ParameterError`.
    """

    def __init__(
        self,
        engine: Searched,
        *,
        max_wait: float = 0.0,
        max_batch: int = MAX_BATCH,
        max_waiting: int = MAX_WAITING,
        threads: int | None = None,
    ) -> None:
        self.searcher = engine.searcher
        self.max_wait, self.max_batch, self.max_waiting, self.threads = 0.0, MAX_BATCH, MAX_WAITING, threads
        self.configure(max_wait=max_wait, max_batch=max_batch, max_waiting=max_waiting, threads=threads)
        self._options = LaunchOptions.of({}, None)
        self._closed = False
        self._reset()
        _coalescers.add(self)

    def configure(
        self,
        *,
        max_wait: float | None = None,
        max_batch: int | None = None,
        max_waiting: int | None = None,
        threads: int | None = None,
    ) -> Coalescer:
        """Change settings, for the launches to come; None leaves one as it is, a number of `threads` as well.

        Returns itself. Raises as the class.
        """
        for name, value in (("max_batch", max_batch), ("max_waiting", max_waiting), ("threads", threads)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ParameterError(f"{name} must be 1 or more, not {value!r}")
        self.max_wait = self.max_wait if max_wait is None else _seconds("max_wait", max_wait)
        self.max_batch = max_batch or self.max_batch
        self.max_waiting = max_waiting or self.max_waiting
        self.threads = threads or self.threads
        return self

    def _reset(self) -> None:
        """Nobody waits and nothing runs: as made, or in a forked child, which has none of its parent's threads."""
        # Reentrant: a coroutine that the garbage collector ends withdraws its call in whichever thread it runs.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._lanes = _Lane(self._lock), _Lane(self._lock)
        self._arrivals: dict[asyncio.AbstractEventLoop, list[Awaited]] = {}
        names = ("launches", "queries", "callers", "shared", "largest", "rejected", "cancelled", "expired")
        self._counts = dict.fromkeys(names, 0)

    def __enter__(self) -> Coalescer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse those who wait, and all who come, with `StorageError`; a launch that runs still answers its callers.

        Returns at once. A second call does nothing.
        """
        with self._lock:
            self._closed = True
            left = [call for lane in self._lanes for call in self._refused(lane, _closed_error)]
        settle(left)

    def _refused(self, lane: _Lane, error: Callable[[], BaseException]) -> list[Call]:
        """Empty a queue; those who waited in it are returned, to be told. The lock is held."""
        left = [call for call in lane.queue if call.state is CallState.WAITING]
        for call in left:
            self._leave(call)
            call.failed(error())
        lane.queue.clear()
        lane.work.notify_all()
        self._room.notify_all()
        return left

    def stats(self) -> CoalescerStatistics:
        """What was done so far, and who waits now."""
        with self._lock:
            found: CoalescerStatistics = {**self._counts, "waiting": self._waiting}  # type: ignore[typeddict-item]
            return found

    def search(
        self,
        queries: Sequence[AnyQuery],
        k: int = DEFAULT_K,
        *,
        threads: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
        **keywords: Unpack[BatchKeywords],
    ) -> Hits:
        """As `Engine.search`, together with whoever waits; `keywords` are its own.

        `deadline` are seconds from now: if the answer is not there by then, `DeadlineError`, and queries that were not
        begun are not run. Without `wait`, `OverloadedError` where `max_waiting` queries wait already. From within a
        launch (a callback, a reranker, an encoder) it runs at once, whatever its deadline. Raises as `Engine.search`,
        whatever is asked beside it, and `StorageError` once the coalescer is closed.
        """
        batch = _held(queries)
        size = _size(batch)
        until = _deadline_of(deadline)
        if self._launching():
            return self._within(batch, k, threads, keywords)
        lane, me = self._lanes[size > self.max_batch], threading.get_ident()
        try:
            if until is None and self._enters(lane):
                return self._alone(batch, k, size, threads, keywords)
        finally:
            # Before anything is called: an interrupt there would leave the lane taken for ever.
            if lane.runner == me:
                lane.runner = None
                self._leaves(lane)
        call = Blocked(*self._checked(batch, k, threads, keywords), deadline=until, patient=wait)
        try:
            self._enter([call])
            came = call.wait()
        except BaseException:
            self._withdraw(call, "cancelled")
            raise
        if not came and (error := self._withdraw(call, "expired")) is not None:
            raise error
        return call.answer()

    def submit(
        self,
        queries: Sequence[AnyQuery],
        k: int = DEFAULT_K,
        *,
        threads: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
        **keywords: Unpack[BatchKeywords],
    ) -> Future[Hits]:
        """As `search`, but a future at once; a malformed batch raises here.

        While more than `max_waiting` queries wait it blocks, up to the deadline, or raises as `search`.
        ``future.cancel()`` takes the queries out of the queue until their launch begins. A future learns that its
        deadline has passed no later than when the launch under way ends. Its callbacks run in the thread that launches:
        keep them short. From within a launch it never blocks, and ``result()`` there runs the search at once.
        """
        until = _deadline_of(deadline)
        call = Promised(*self._checked(_held(queries), k, threads, keywords), deadline=until, patient=wait)
        # The call has the future, which has it weakly: a cycle would keep the answer until garbage is collected.
        own = weakref.ref(call)
        call.future.about_to_wait = lambda: self._hurry(own())
        call.future.add_done_callback(lambda future: self._cancelled(own(), future))
        if self._enter([call], told=False):
            call.answer()  # raises why it was refused
        try:
            if not self._has_room(call):
                raise self._withdraw(call, "expired") or deadline_error(call)
        except BaseException:
            call.future.cancel()
            raise
        return call.future

    async def asearch(
        self,
        queries: Sequence[AnyQuery],
        k: int = DEFAULT_K,
        *,
        threads: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
        **keywords: Unpack[BatchKeywords],
    ) -> Hits:
        """As `search`, without blocking the event loop. A task that is cancelled takes its queries out of the queue."""
        until = _deadline_of(deadline)
        if self._launching():
            return self._within(_held(queries), k, threads, keywords)
        loop = asyncio.get_running_loop()
        call = Awaited(*self._checked(_held(queries), k, threads, keywords), deadline=until, patient=wait, loop=loop)
        # All that come in one turn of the loop enter the queue together, at its end.
        if (arrivals := self._arrivals.get(loop)) is None:
            for other in list(self._arrivals):
                if other.is_closed():
                    self._arrivals.pop(other, None)
            self._arrivals[loop] = [call]
            loop.call_soon(self._arrive, loop)
        else:
            arrivals.append(call)
        timer = None if deadline is None else loop.call_later(deadline, self._expire, call)
        try:
            await call.over
        except BaseException:
            self._withdraw(call, "cancelled")
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return call.answer()

    def _arrive(self, loop: asyncio.AbstractEventLoop) -> None:
        self._enter([call for call in self._arrivals.pop(loop, []) if not call.over.cancelled()])

    def _expire(self, call: Awaited) -> None:
        error = self._withdraw(call, "expired")
        if error is not None:
            call.failed(error)
            call.arrive()

    def _checked(
        self, queries: Sequence[AnyQuery], k: int, threads: int | None, keywords: BatchKeywords
    ) -> tuple[tuple[Query, ...], int, LaunchOptions]:
        """The parts of a call. Raises, and counts, what the search itself would raise of them."""
        try:
            given = LaunchOptions.of(keywords, threads)
            batch = as_queries(queries, "search")
            limit = check_k(k)
        except FanrankError as error:
            self.searcher.count_failure(queries, error)
            raise
        last = self._options
        if given.answerer is not last.answerer or not given.equals(last):
            last = self._options = given
        return batch, limit, last

    @property
    def _waiting(self) -> int:
        return self._lanes[0].waiting + self._lanes[1].waiting

    def _launching(self) -> bool:
        """Whether this thread is one that launches, and must not wait for a launch: it came here from within one."""
        small, large = self._lanes
        return threading.get_ident() in (small.runner, small.server, large.runner, large.server)

    def _within(self, batch: Sequence[AnyQuery], k: int, threads: int | None, keywords: BatchKeywords) -> Hits:
        """Answer what is asked from within a launch."""
        if self._closed:
            raise _closed_error()
        return self._alone(batch, k, _size(batch), threads, keywords)

    def _hurry(self, call: Call | None) -> None:
        """Answer a call that this thread is about to wait for, if it is one that launches: nobody else would."""
        if call is None or not self._launching():
            return
        with self._lock:
            if call.state is not CallState.WAITING or not call.begin():
                return
            self._leave(call, CallState.BEGUN)
            self._room.notify_all()
        self._run([call])

    def _cancelled(self, call: Promised | None, future: Future[Hits]) -> None:
        """Tell those who wait for a cancelled future beside others (`concurrent.futures.wait`) that it is over."""
        if call is not None and future.cancelled() and self._withdraw(call, "cancelled") is not None:
            future.set_running_or_notify_cancel()

    def _enters(self, lane: _Lane) -> bool:
        """Whether nothing runs and nobody waits, so that this thread launches its own call."""
        with self._lock:
            if self._closed or self.max_wait or lane.runner is not None or lane.queue:
                return False
            lane.runner = threading.get_ident()
            return True

    def _leaves(self, lane: _Lane) -> None:
        with self._lock:
            if lane.queue and lane in self._lanes:  # not in a child that was forked meanwhile
                lane.work.notify()

    def _enter(self, calls: Sequence[Call], *, told: bool = True) -> list[Call]:
        """Put calls into their queues; those that were refused are returned, and `told`."""
        refused = []
        with self._lock:
            for call in calls:
                if call.state is not CallState.WAITING:
                    continue
                call.large = len(call) > self.max_batch
                lane = self._lanes[call.large]
                try:
                    self._admit(call)
                    lane.serve(self._serve)
                except Exception as error:  # no room, closed, no more threads
                    call.state = CallState.OVER
                    call.failed(error)
                    refused.append(call)
                    continue
                now, size = time.monotonic(), len(call)
                # Half of the time that it has is for its launch.
                half = math.inf if call.deadline is None else (now + call.deadline) / 2
                lane.due = min(lane.due, now + self.max_wait, half)
                lane.waiting += size
                call.entered = True
                lane.queue.append(call)
            for lane in self._lanes:
                if lane.queue and lane.runner is None:
                    lane.work.notify()
        if told:
            settle(refused)
        return refused

    def _admit(self, call: Call) -> None:
        if self._closed:
            raise _closed_error()
        waiting = self._waiting
        if not call.patient and waiting and waiting + len(call) > self.max_waiting:
            self._counts["rejected"] += 1
            raise OverloadedError(
                f"{waiting:,} queries wait, and {len(call):,} more would be over max_waiting = {self.max_waiting:,}; "
                "try again later, or let the call wait"
            )

    def _has_room(self, call: Call) -> bool:
        """Wait until a call has begun or the queue is short enough; False where the deadline passed before."""
        with self._lock:
            while call.state is CallState.WAITING and self._waiting > self.max_waiting and not self._launching():
                if call.deadline is None:
                    self._room.wait()
                elif not self._room.wait(seconds_until(call.deadline)):
                    return False
        return True

    def _leave(self, call: Call, state: CallState = CallState.OVER) -> None:
        """The call waits no more; the lock is held."""
        size = len(call)
        if call.state is CallState.WAITING and call.entered:
            self._lanes[call.large].waiting -= size
        call.state = state

    def _withdraw(self, call: Call, why: str) -> DeadlineError | None:
        """Forget a call that its caller gave up; None where it was over already."""
        with self._lock:
            if call.state is CallState.OVER:
                return None
            error = deadline_error(call)
            self._leave(call)
            self._counts[why] += 1
            self._room.notify_all()
            return error

    def _serve(self, lane: _Lane) -> None:
        """The thread of a lane: launch what waits, until nothing comes for a while."""
        lane.server = threading.get_ident()
        try:
            while (calls := self._next(lane)) is not None:
                self._run(calls)
                del calls
        except BaseException as error:
            died = f"the thread that launches ended by {type(error).__name__}; ask again"
            with self._lock:
                if lane.runner == lane.server:
                    lane.runner = None
                lane.thread = lane.server = None
                left = self._refused(lane, lambda: StorageError(died))
            settle(left)
            raise

    def _run(self, calls: Sequence[Call]) -> None:
        """Answer calls that have begun, and tell them."""
        try:
            self._answer(calls)
        except BaseException as error:
            for call in calls:
                call.failed(error)
        with self._lock:
            now = time.monotonic()
            begun = [call for call in calls if call.state is CallState.BEGUN]
            for call in begun:
                if call.late(now):
                    call.failed(deadline_error(call))
                    self._counts["expired"] += 1
                call.state = CallState.OVER
        settle(begun)

    def _next(self, lane: _Lane) -> list[Call] | None:
        """The calls of the next launch, once there are some; None where the thread is to end."""
        while True:
            with self._lock:
                if lane.runner == lane.server:
                    lane.runner = None
                while not lane.queue or lane.runner is not None:
                    if not lane.queue and (self._closed or not lane.work.wait(LINGER)) and not lane.queue:
                        lane.thread = lane.server = None
                        return None
                    if lane.queue and lane.runner is not None:
                        # Not for ever: an interrupt may keep the thread that launches from telling this one.
                        lane.work.wait(1.0)
                self._gather(lane)
                calls, late = self._take(lane)
                if calls:
                    lane.runner = lane.server
                self._room.notify_all()
            settle(late)
            if calls:
                return calls

    def _gather(self, lane: _Lane) -> None:
        """Let others come, for `max_wait` seconds after the first; who was there at the last launch waits no longer."""
        while self.max_wait and lane.queue and lane.waiting < self.max_batch and not self._closed:
            left = seconds_until(lane.due)
            if not left:
                return
            lane.work.wait(left)

    def _take(self, lane: _Lane) -> tuple[list[Call], list[Call]]:
        """From a queue: the first call with all that join it, in order, and those whose deadline has passed."""
        calls: list[Call] = []
        late: list[Call] = []
        others: list[Call] = []
        now, size, width, places = time.monotonic(), 0, 0, 0
        while lane.queue and len(others) < LOOK_PAST:
            call = lane.queue.popleft()
            if call.state is not CallState.WAITING:
                continue
            if call.late(now):
                call.failed(deadline_error(call))
                late.append(call)
                self._counts["expired"] += 1
                self._leave(call)
                continue
            total = size + len(call)
            widest = max(width, call.width) if len(call) else width
            wanted = places + len(call) * call.width
            if calls and (
                total > self.max_batch
                or total * widest > max(SMALL, SPREAD * wanted)
                or not call.options.joins(calls[0].options)
            ):
                others.append(call)
                if total > self.max_batch or calls[0].options.approximate:
                    break
            elif call.begin():
                self._leave(call, CallState.BEGUN)
                calls.append(call)
                size, width, places = total, widest, wanted
            else:
                self._counts["cancelled"] += 1
                self._leave(call)
        lane.queue.extendleft(reversed(others))
        lane.due = -math.inf if lane.queue else math.inf
        return calls, late

    def _answer(self, calls: Sequence[Call]) -> None:
        """Answer calls in one launch. Where that fails, halves of them: so only a call that fails alone fails.

        Those that were given up meanwhile, or whose deadline has passed, are left out. Where `ALIKE` in a row fail
        alone by one error that is not about what they asked, it is taken for the engine's, and the rest get it too.
        """
        parts = [calls]
        alike: list[BaseException] = []
        while parts:
            now = time.monotonic()
            part = [call for call in parts.pop() if call.state is CallState.BEGUN and not call.late(now)]
            if len(alike) >= ALIKE:
                for call in part:
                    call.failed(alike[0])
                    if isinstance(alike[0], FanrankError):
                        self.searcher.count_failure(call.queries, alike[0])
                continue
            # A scan numbers documents through the answer, and an answer to nothing is as wide as its own k.
            opening = self.searcher.index.building
            apart = [call for call in part if opening or not len(call)]
            if len(part) == 1:
                error = self._single(part[0])
                if error is None or isinstance(error, (QueryError, ParameterError)):
                    alike = []
                elif not alike or (type(error), str(error)) == (type(alike[0]), str(alike[0])):
                    alike.append(error)
                else:
                    alike = [error]
            elif apart:
                parts.append([call for call in part if not opening and len(call)])
                parts += [[call] for call in reversed(apart)]
            elif part:
                try:
                    self._joint(part)
                    alike = []
                except BaseException:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]

    def _single(self, call: Call) -> BaseException | None:
        """Answer one call, and say what it failed with."""
        options = call.options
        threads = None if options.any_threads else options.search.threads
        try:
            hits = self._alone(call.queries, call.k, len(call), threads, options.keywords)
            call.answered(hits)
        except BaseException as error:
            call.failed(error)
            return error
        return None

    def _joint(self, calls: Sequence[Call]) -> None:
        first = calls[0]
        queries = [query for call in calls for query in call.asked(first.k)]
        hits = self._launch(queries, first.k, first.options)
        start = 0
        for call in calls:
            call.answered(hits, start)
            start += len(call)
        self._count(len(calls), hits)

    def _launch(self, queries: Sequence[Query], k: int, options: LaunchOptions) -> Hits:
        """As `Engine.search`, but a failure is not counted: it is one caller's alone."""
        started = time.perf_counter()
        threads = self._threads(None if options.any_threads else options.search.threads, len(queries))
        hits = self.searcher.answer(queries, k, options.answerer, replace(options.search, threads=threads))
        self.searcher.monitor.count(hits, time.perf_counter() - started)
        return hits

    def _alone(
        self, queries: Sequence[AnyQuery], k: int, size: int, threads: int | None, keywords: BatchKeywords
    ) -> Hits:
        hits = self.searcher.search(queries, k, {**keywords, "threads": self._threads(threads, size)})
        self._count(1, hits)
        return hits

    def _threads(self, threads: int | None, queries: int) -> int:
        given = self.threads if threads is None else threads
        return max(1, min(queries // QUERIES_A_THREAD, CORES)) if given is None else given

    def _count(self, callers: int, hits: Hits) -> None:
        counts, queries = self._counts, len(hits)
        distinct = queries if hits.distinct is None else hits.distinct
        with self._lock:
            counts["launches"] += 1
            counts["callers"] += callers
            counts["queries"] += queries
            counts["shared"] += queries - distinct
            counts["largest"] = max(counts["largest"], queries)


class _Lane:
    """A queue, and who launches from it; one launch at a time. All under the coalescer's lock."""

    def __init__(self, lock: threading.RLock) -> None:
        self.queue: deque[Call] = deque()
        self.waiting = 0  # queries of the calls that wait
        self.due = math.inf  # when those who wait have waited long enough for others
        self.runner: int | None = None  # the thread that launches now
        self.server: int | None = None  # the thread that launches what is queued
        self.thread: threading.Thread | None = None
        self.work = threading.Condition(lock)

    def serve(self, target: Callable[[_Lane], None]) -> None:
        """Have a thread that launches what is queued."""
        if self.thread is None:
            thread = threading.Thread(target=target, args=(self,), name="fanrank-coalesce", daemon=True)
            thread.start()
            self.thread = thread


def _held(queries: Sequence[AnyQuery]) -> Sequence[AnyQuery]:
    """The batch as a list, where it can be read but once."""
    if isinstance(queries, (list, tuple, str, Query, Mapping)) or not isinstance(queries, Iterable):
        return queries
    return list(queries)


def _size(batch: Sequence[AnyQuery]) -> int:
    """The queries of a batch; 0 for what is none, and will be refused."""
    return len(batch) if isinstance(batch, (list, tuple)) else 0


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 <= value < math.inf):
        raise ParameterError(f"{name} must be 0 or more seconds, not {value!r}")
    return float(value)


def _deadline_of(deadline: float | None) -> float | None:
    return None if deadline is None else time.monotonic() + _seconds("deadline", deadline)


def _closed_error() -> StorageError:
    return StorageError("the engine is closed")


_coalescers: weakref.WeakSet[Coalescer] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for coalescer in list(_coalescers):
        coalescer._reset()


def _exit() -> None:
    """Refuse those who wait, and let a launch that runs end: its thread would be stopped in the middle of a loop."""
    for coalescer in list(_coalescers):
        coalescer.close()
        for lane in coalescer._lanes:
            if (thread := lane.thread) is not None:
                thread.join(EXIT_SECONDS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(_exit)
