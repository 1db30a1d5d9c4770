"""The coalescer: many callers, one launch. What arrives while a launch runs goes into the next launch.

::

    threads ──┐                   ┌─ launch: one search of all that waits ─┐
    tasks ────┼─ queue, in order ─┤                                        ├─ each caller's rows to the caller
    futures ──┘                   └─ meanwhile the queue fills ◄───────────┘

- A call (`engine/serve/calls.py`) is the batch of one caller: its queries, k, options and deadline, and later its
  answer. The caller may be a thread that blocks, the holder of a future, or a coroutine.
- A launch is one search by which the queries of one or more calls are answered.
- A lane (`engine/serve/lane.py`) is a queue of calls and the thread that launches from it. A lane runs one launch at a
  time. There are two lanes: one for calls of up to `max_batch` queries, one for larger calls.
- A tenant is whoever a server answers for. Where calls of several wait, they are launched by turns, and a large call is
  launched in pieces (`engine/serve/turns.py`).

A launch reads one snapshot, which is taken after the last of its callers came. So every caller sees at least the writes
that were acknowledged before its own call. Equal queries of different callers are answered once, as equal queries of
one batch are.

Long because one lock guards all that changes here, and every step that takes it stands in one class: entering a queue,
launching, withdrawing, closing.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast

from ..errors import DeadlineError, FanrankError, OverloadedError, ParameterError, QueryError, StorageError
from ..hybrid.channels import BM25
from ..records.hits import Hits
from ..records.query import DEFAULT_K, Query, check_k
from ..search.given import AnyBatch, own_queries, set_defaults
from ..searcher import Searcher
from ..signatures import BatchKeywords, check_keywords, hinting, split_defaults
from ..storage.storage import cores
from .calls import (
    Awaited,
    Blocked,
    Call,
    CallState,
    LaunchOptions,
    Promised,
    check_seconds,
    deadline_error,
    deadline_of,
    is_text_of_one,
    seconds_until,
    settle,
)
from .lane import Lane, as_sequence, closed_error, size_of
from .turns import AT_ONCE, FEW, HELD, LARGE, Cut, Paces, work_of

if TYPE_CHECKING:
    import asyncio

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

MAX_BATCH = 512
MAX_WAITING = 1 << 16
# Queries of a launch for each thread that it uses, where nobody sets `threads`.
QUERIES_A_THREAD = 64
CORES = cores()
# A launch looks past at most this many calls with other options, to find calls that can join it. It does so under the
# lock. Without the limit each launch would look at all of up to 65,536 calls.
LOOK_PAST = 256
# A launch has room for its largest k in every row. A launch with more than `SMALL` places for hits (half a megabyte an
# array) may have at most `SPREAD` times the places that its callers ask for.
SPREAD = 4
SMALL = 1 << 16
# After this many calls in a row that fail, each by itself, by the same error that is not about their arguments, the
# remaining calls of the launch fail by it too.
ALIKE = 3
# Seconds after which the thread of a lane ends when there is no work. The thread refers to the searcher, and so to the
# memory of an engine. Both can be freed then.
LINGER = 2.0
# Seconds for which the interpreter's exit waits for a running launch.
EXIT_SECONDS = 1.0


class CoalescerStatistics(TypedDict):
    """Counts of what a coalescer did so far. `queries` and `callers` count those that were launched."""

    launches: int
    queries: int
    callers: int
    shared: int
    """Queries that took the answer of an equal query of their launch."""
    largest: int
    """Queries of the largest launch."""
    waiting: int
    """Queries that wait now."""
    rejected: int
    """Callers that were refused because the queue was full."""
    cancelled: int
    """Callers that gave up, before or during their launch."""
    expired: int
    """Callers whose deadline passed, before or during their launch."""


class Searched(Protocol):
    """A memory of any kind."""

    space: str | None

    @property
    def searcher(self) -> Searcher: ...


class Coalescer:
    """Answers the batches of many callers together. Each caller gets the hits that `Engine.search` would give it.

    `search` blocks, `submit` returns a future, `asearch` is awaited. All work in any number of threads and event loops.
    A `search` without a deadline runs in its caller's thread if no launch runs, nobody waits, and `max_wait` is 0.

    `max_wait` is for how many seconds the first caller of a launch waits for others, at most half of the time to its
    deadline. With 0, callers wait only while a launch runs. `max_batch` is the most queries of a joint launch. A larger
    batch is never split, as it reads one snapshot; it runs by itself beside the others. While `max_waiting` or more
    queries wait, `submit` blocks, and callers with ``wait=False`` get `OverloadedError`. `threads` is how many threads
    a launch may use; None: one for a small launch, up to all cores for a large one. Raises `ParameterError`.
    """

    @hinting()
    def __init__(
        self,
        engine: Searched,
        *,
        max_wait: float = 0.0,
        max_batch: int = MAX_BATCH,
        max_waiting: int = MAX_WAITING,
        threads: int | None = None,
    ) -> None:
        self.searcher, self._space = engine.searcher, engine.space
        self.max_wait, self.max_batch, self.max_waiting, self.threads = 0.0, MAX_BATCH, MAX_WAITING, threads
        self.configure(max_wait=max_wait, max_batch=max_batch, max_waiting=max_waiting, threads=threads)
        self._options = LaunchOptions.of({}, None)
        self._closed = False
        self.on_launch: Callable[[Hits, object], None] | None = None
        """Called after each launch, in its thread: with the hits, which hold the times of its phases then, and with
        what answered queries without a strategy of their own. It must not raise, and costs every launch 2 us."""
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
        """Change settings for the launches to come. None leaves a setting as it is, `threads` included.

        Returns itself. Raises as the class.
        """
        for name, value in (("max_batch", max_batch), ("max_waiting", max_waiting), ("threads", threads)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ParameterError(f"{name} must be 1 or more, not {value!r}")
        self.max_wait = self.max_wait if max_wait is None else check_seconds("max_wait", max_wait)
        self.max_batch = max_batch or self.max_batch
        self.max_waiting = max_waiting or self.max_waiting
        self.threads = threads or self.threads
        return self

    def _reset(self) -> None:
        """Begin with empty queues and no threads, as in a forked child, which has no thread of its parent."""
        # Reentrant: the garbage collector may end a coroutine in a thread that has the lock, and the coroutine then
        # withdraws its call.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._lanes = Lane(self._lock), Lane(self._lock)
        self._paces = Paces()
        self._arrivals: dict[asyncio.AbstractEventLoop, list[Awaited]] = {}
        names = ("launches", "queries", "callers", "shared", "largest", "rejected", "cancelled", "expired")
        self._counts = dict.fromkeys(names, 0)

    def __enter__(self) -> Coalescer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse the calls that wait, and all later ones, with `StorageError`. A running launch answers its callers.

        Returns at once. A second call does nothing.
        """
        with self._lock:
            self._closed = True
            refused = [call for lane in self._lanes for call in self._refuse(lane, closed_error)]
        settle(refused)

    def _refuse(self, lane: Lane, error: Callable[[], BaseException]) -> list[Call]:
        """Empty a queue and let its calls fail. Returns them. The caller holds the lock, and settles them after it."""
        refused = [call for call in lane.queue if call.state is CallState.WAITING]
        for call in refused:
            self._leave(call)
            call.failed(error())
        lane.queue.clear()
        lane.work.notify_all()
        self._room.notify_all()
        return refused

    def stats(self) -> CoalescerStatistics:
        """Counts of what was done so far, and of the queries that wait now."""
        with self._lock:
            stats: CoalescerStatistics = {**self._counts, "waiting": self._waiting}  # type: ignore[typeddict-item]
            return stats

    def search(
        self,
        queries: AnyBatch,
        k: int = DEFAULT_K,
        *,
        threads: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
        **keywords: Unpack[BatchKeywords],
    ) -> Hits:
        """As `Engine.search`, in one launch with the calls that wait; `keywords` are those of `Engine.search`.

        `deadline` is in seconds from now. If the answer is not there by then, it raises `DeadlineError`, and queries
        whose launch has not begun are not run. Without `wait` it raises `OverloadedError` where `max_waiting` queries
        wait already. From within a launch (a callback, a reranker, an encoder) it runs at once, whatever its deadline.
        Raises as `Engine.search`, whatever the other calls of the launch do, and `StorageError` once the coalescer is
        closed.
        """
        check_keywords(keywords, "Coalescer.search")
        batch = as_sequence(queries)
        size = size_of(batch)
        until = deadline_of(deadline)
        if self._is_launching():
            return self._search_within(batch, k, threads, keywords)
        lane, me = self._lanes[size > self.max_batch], threading.get_ident()
        try:
            if until is None and self._space is None and self._enters(lane):
                return self._search_alone(batch, k, size, threads, keywords)
        finally:
            # The lane is released before anything is called: an interrupt in a call would leave it taken for ever.
            if lane.runner == me:
                lane.runner = None
                self._leaves(lane)
        call = Blocked(*self._check(batch, k, threads, keywords), deadline=until, patient=wait)
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
        queries: AnyBatch,
        k: int = DEFAULT_K,
        *,
        threads: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
        **keywords: Unpack[BatchKeywords],
    ) -> Future[Hits]:
        """As `search`, but returns a future at once. A malformed batch raises here.

        While more than `max_waiting` queries wait, it blocks up to the deadline, or raises as `search`.
        ``future.cancel()`` takes the queries out of the queue if their launch has not begun. A future whose deadline
        has passed fails no later than when the running launch ends. Its callbacks run in the thread that launches: keep
        them short. From within a launch, `submit` never blocks, and ``result()`` runs the search at once.
        """
        until = deadline_of(deadline)
        check_keywords(keywords, "Coalescer.submit")
        call = Promised(*self._check(as_sequence(queries), k, threads, keywords), deadline=until, patient=wait)
        # The call refers to its future, and the future to its call only weakly. A cycle would keep the answer in memory
        # until the garbage collector runs.
        weak_call = weakref.ref(call)
        call.future.about_to_wait = lambda: self._hurry(weak_call())
        call.future.add_done_callback(lambda future: self._withdraw_cancelled(weak_call(), future))
        if self._enter([call], settle_refused=False):
            call.answer()  # raises the error by which it was refused
        try:
            if not self._has_room(call):
                raise self._withdraw(call, "expired") or deadline_error(call)
        except BaseException:
            call.future.cancel()
            raise
        return call.future

    async def asearch(
        self,
        queries: AnyBatch,
        k: int = DEFAULT_K,
        *,
        threads: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
        tenant: str | None = None,
        **keywords: Unpack[BatchKeywords],
    ) -> Hits:
        """As `search`, without blocking the event loop. A task that is cancelled takes its queries out of the queue.

        Calls of different tenants are launched by turns, each for as much work as the others. A launch for tenants is
        kept short (`Pace`): a large call of one is cut into pieces, which read one state of the memory.
        """
        check_keywords(keywords, "Coalescer.asearch")
        until = deadline_of(deadline)
        if self._is_launching():
            return self._search_within(as_sequence(queries), k, threads, keywords)
        import asyncio  # who calls from a coroutine has it

        loop = asyncio.get_running_loop()
        call = Awaited(
            *self._check(as_sequence(queries), k, threads, keywords), deadline=until, patient=wait, loop=loop
        )
        if tenant is not None:
            call.tenant, call.left = tenant, work_of(call.queries)
        # The calls that come in one turn of the event loop enter the queue together, at the end of the turn.
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
        calls = [call for call in self._arrivals.pop(loop, []) if not call.over.cancelled()]
        lane = self._lanes[0]
        if self._is_short(calls) and self._enters(lane):
            try:
                for call in calls:
                    call.state = CallState.BEGUN
                self._run(calls, lane)
            finally:
                lane.runner = None
                self._leaves(lane)
            return
        self._enter(calls)

    def _is_short(self, calls: Sequence[Awaited]) -> bool:
        """Whether calls of tenants are answered sooner than a thread would have woken for them.

        That reads no file, encodes nothing, and makes no index of several namespaces.
        """
        if not calls or not self.searcher.pins or self.searcher.index.building:
            return False
        options, work = calls[0].options, 0
        for call in calls:
            if not call.tenant or call.options is not options or not all(map(is_text_of_one, call.queries)):
                return False
            work += call.left
        places = sum(map(len, calls)) * max(call.width for call in calls)
        if places > SMALL or not options.plain:
            return False
        with self._lock:
            return self._paces.of(options).seconds(work) < AT_ONCE

    def _expire(self, call: Awaited) -> None:
        error = self._withdraw(call, "expired")
        if error is not None:
            call.failed(error)
            call.arrive()

    def _check(
        self, queries: AnyBatch, k: int, threads: int | None, keywords: BatchKeywords
    ) -> tuple[tuple[Query, ...], int, LaunchOptions]:
        """The queries, k and options of a call, checked. Raises, and counts, what the search itself would raise."""
        try:
            defaults, rest = split_defaults(keywords)
            options = LaunchOptions.of(rest, threads)  # type: ignore[arg-type]
            batch = self._read(queries, defaults)
            limit = check_k(k)
        except FanrankError as error:
            self.searcher.count_failure(queries, error)
            raise
        # Calls with equal options share one object, so that most comparisons are by identity.
        last = self._options
        if options.answerer is not last.answerer or not options.equals(last):
            last = self._options = options
        return batch, limit, last.of_queries(batch)

    def _read(self, queries: AnyBatch, defaults: Mapping[str, Any]) -> tuple[Query, ...]:
        space = self._space
        return set_defaults(queries, defaults) if space is None else own_queries(queries, space, defaults, "the memory")

    @property
    def _waiting(self) -> int:
        return self._lanes[0].waiting + self._lanes[1].waiting

    def _is_launching(self) -> bool:
        """Whether this thread runs a launch: a call that comes from within a launch must not wait for one."""
        small, large = self._lanes
        return threading.get_ident() in (small.runner, small.server, large.runner, large.server)

    def _search_within(self, batch: AnyBatch, k: int, threads: int | None, keywords: BatchKeywords) -> Hits:
        """Answer a call that comes from within a launch."""
        if self._closed:
            raise closed_error()
        if self._space is not None:
            defaults, rest = split_defaults(keywords)
            batch, keywords = self._read(batch, defaults), cast(BatchKeywords, rest)
        return self._search_alone(batch, k, size_of(batch), threads, keywords)

    def _hurry(self, call: Call | None) -> None:
        """Answer the call that this thread is about to wait for, if this thread launches: no other thread would."""
        if call is None or not self._is_launching():
            return
        with self._lock:
            if call.state is not CallState.WAITING or not call.begin():
                return
            self._leave(call, CallState.BEGUN)
            self._room.notify_all()
        self._run([call], self._lanes[call.large])

    def _withdraw_cancelled(self, call: Promised | None, future: Future[Hits]) -> None:
        """Withdraw the call of a cancelled future, and wake whoever waits for it (`concurrent.futures.wait`)."""
        if call is not None and future.cancelled() and self._withdraw(call, "cancelled") is not None:
            future.set_running_or_notify_cancel()

    def _enters(self, lane: Lane) -> bool:
        """Take the lane for a launch in this thread, if nothing runs and nobody waits there; whether it was taken."""
        with self._lock:
            if self._closed or self.max_wait or lane.runner is not None or lane.queue:
                return False
            lane.runner = threading.get_ident()
            return True

    def _leaves(self, lane: Lane) -> None:
        with self._lock:
            if lane.queue and lane in self._lanes:  # not in a child process that was forked in between
                lane.work.notify()

    def _enter(self, calls: Sequence[Call], *, settle_refused: bool = True) -> list[Call]:
        """Put calls into their queues. Returns those that were refused, settled if `settle_refused`."""
        refused = []
        with self._lock:
            for call in calls:
                if call.state is not CallState.WAITING:
                    continue
                call.large = len(call) > self.max_batch or call.left >= LARGE or self._is_long(call)
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
                # Half of the time to its deadline is left for its launch.
                half = math.inf if call.deadline is None else (now + call.deadline) / 2
                lane.due = min(lane.due, now + self.max_wait, half)
                lane.waiting += size
                call.entered = True
                lane.turns.used |= call.tenant is not None
                lane.queue.append(call)
            for lane in self._lanes:
                if lane.queue and lane.runner is None:
                    lane.work.notify()
        if settle_refused:
            settle(refused)
        return refused

    def _is_long(self, call: Call) -> bool:
        """Whether a tenant's call would hold the others too long in one launch, so that it is cut."""
        if not call.tenant or len(call) < FEW:
            return False
        pace = self._paces.of(call.options)
        return call.left > pace.room and pace.seconds(call.left) > HELD

    def _admit(self, call: Call) -> None:
        if self._closed:
            raise closed_error()
        waiting = self._waiting
        if not call.patient and waiting and waiting + len(call) > self.max_waiting:
            self._counts["rejected"] += 1
            raise OverloadedError(
                f"{waiting:,} queries wait, and {len(call):,} more would be over max_waiting = {self.max_waiting:,}; "
                "try again later, or let the call wait"
            )

    def _has_room(self, call: Call) -> bool:
        """Wait until a call has begun or the queue is short enough. False where its deadline passes first."""
        with self._lock:
            while call.state is CallState.WAITING and self._waiting > self.max_waiting and not self._is_launching():
                if call.deadline is None:
                    self._room.wait()
                elif not self._room.wait(seconds_until(call.deadline)):
                    return False
        return True

    def _leave(self, call: Call, state: CallState = CallState.OVER) -> None:
        """Note that a call does not wait any more. The caller holds the lock."""
        size = len(call)
        if call.state is CallState.WAITING and call.entered:
            self._lanes[call.large].waiting -= size
        call.state = state

    def _withdraw(self, call: Call, why: str) -> DeadlineError | None:
        """End a call that its caller gave up, and count it under `why`. None where the call was over already."""
        with self._lock:
            if call.state is CallState.OVER:
                return None
            error = deadline_error(call)
            self._leave(call)
            self._counts[why] += 1
            self._room.notify_all()
            return error

    def _serve(self, lane: Lane) -> None:
        """Run in the thread of a lane: launch what waits, until nothing comes for `LINGER` seconds."""
        lane.server = threading.get_ident()
        try:
            while (calls := self._next(lane)) is not None:
                self._run(calls, lane)
                del calls
        except BaseException as error:
            died = f"the thread that launches ended by {type(error).__name__}; ask again"
            with self._lock:
                if lane.runner == lane.server:
                    lane.runner = None
                lane.thread = lane.server = None
                refused = self._refuse(lane, lambda: StorageError(died))
            settle(refused)
            raise

    def _run(self, calls: Sequence[Call], lane: Lane) -> None:
        """Answer calls that have begun, and settle them. A piece of a large call is answered, and the rest waits."""
        first, began, more = calls[0], time.perf_counter(), False
        try:
            if first.large and first.tenant is not None and self.searcher.pins and not first.options.approximate:
                more = self._answer_piece(first, lane)
            else:
                self._answer(calls)
        except BaseException as error:
            for call in calls:
                call.failed(error)
        with self._lock:
            now = time.monotonic()
            if more and first.state is CallState.BEGUN and not first.late(now):
                first.state = CallState.WAITING
                lane.waiting += len(first)
                lane.queue.appendleft(first)
                return
            if first.tenant is not None and first.cut is None:
                seconds = time.perf_counter() - began
                self._paces.of(first.options).learn(sum(call.left for call in calls), sum(map(len, calls)), seconds)
            begun = [call for call in calls if call.state is CallState.BEGUN]
            for call in begun:
                if call.late(now):
                    call.failed(deadline_error(call))
                    self._counts["expired"] += 1
                call.state = CallState.OVER
        settle(begun)

    def _next(self, lane: Lane) -> list[Call] | None:
        """Wait for the calls of the next launch. None where the thread is to end."""
        while True:
            with self._lock:
                if lane.runner == lane.server:
                    lane.runner = None
                while not lane.queue or lane.runner is not None:
                    if not lane.queue and (self._closed or not lane.work.wait(LINGER)) and not lane.queue:
                        lane.thread = lane.server = None
                        return None
                    if lane.queue and lane.runner is not None:
                        # A limited wait: an interrupt may keep the thread that launches from waking this one.
                        lane.work.wait(1.0)
                self._gather(lane)
                calls, late = self._take(lane)
                if calls:
                    lane.runner = lane.server
                self._room.notify_all()
            settle(late)
            if calls:
                return calls

    def _gather(self, lane: Lane) -> None:
        """Wait for more calls, until `max_wait` seconds after the first. Calls left by the last launch do not wait."""
        while self.max_wait and lane.queue and lane.waiting < self.max_batch and not self._closed:
            seconds = seconds_until(lane.due)
            if not seconds:
                return
            lane.work.wait(seconds)

    def _take(self, lane: Lane) -> tuple[list[Call], list[Call]]:
        """Take from a queue: (the first call and the calls that join it, in order; calls whose deadline has passed)."""
        if lane.turns.used:
            lane.turns.order(lane.queue)
        calls: list[Call] = []
        late: list[Call] = []
        others: list[Call] = []
        work = room = 0
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
            total_places = places + len(call) * call.width
            # Nothing joins one that is launched in pieces, also where `max_batch` was raised meanwhile.
            cut = bool(calls) and calls[0].large and calls[0].left > 0
            full = cut or total > self.max_batch or (call.left > 0 and (call.large or work + call.left > room))
            if calls and (
                full or total * widest > max(SMALL, SPREAD * total_places) or not call.options.joins(calls[0].options)
            ):
                others.append(call)
                if full or calls[0].options.approximate:
                    break
            elif call.begin():
                self._leave(call, CallState.BEGUN)
                calls.append(call)
                if not calls[1:] and lane.turns.used:
                    room = self._paces.of(call.options).room
                size, width, places, work = total, widest, total_places, work + call.left
                if call.left and not call.large:
                    lane.turns.clock.charge(call.tenant or "", call.left)
            else:
                self._counts["cancelled"] += 1
                self._leave(call)
        lane.queue.extendleft(reversed(others))
        lane.due = -math.inf if lane.queue else math.inf
        return calls, late

    def _answer(self, calls: Sequence[Call]) -> None:
        """Answer calls in one launch. Where it fails, launch each half, so that only a call that fails alone fails.

        Calls that were given up, or whose deadline has passed, are left out. Where `ALIKE` calls in a row fail alone by
        the same error, and the error is not about their arguments, it is taken for an error of the engine. The
        remaining calls then fail by it too.
        """
        groups = [calls]
        alike: list[BaseException] = []
        while groups:
            now = time.monotonic()
            group = [call for call in groups.pop() if call.state is CallState.BEGUN and not call.late(now)]
            if len(alike) >= ALIKE:
                for call in group:
                    call.failed(alike[0])
                    if isinstance(alike[0], FanrankError):
                        self.searcher.count_failure(call.queries, alike[0])
                continue
            # While the index is built, a scan answers. It numbers documents through its whole answer, so rows cut out
            # of a joint answer would have other numbers than an answer of their own. The answer to an empty batch has
            # its own k as width. Such calls are answered alone.
            building = self.searcher.index.building
            apart = [call for call in group if building or not len(call)]
            if len(group) == 1:
                error = self._answer_single(group[0])
                if error is None or isinstance(error, (QueryError, ParameterError)):
                    alike = []
                elif not alike or (type(error), str(error)) == (type(alike[0]), str(alike[0])):
                    alike.append(error)
                else:
                    alike = [error]
            elif apart:
                groups.append([call for call in group if not building and len(call)])
                groups += [[call] for call in reversed(apart)]
            elif group:
                try:
                    self._answer_together(group)
                    alike = []
                except BaseException:
                    half = len(group) // 2
                    groups += [group[half:], group[:half]]

    def _answer_piece(self, call: Call, lane: Lane) -> bool:
        """Answer the next piece of a large call. Returns whether there are more."""
        options = call.options
        if call.cut is None:
            with self._lock:
                call.cut = Cut(call.queries, call.k, options.answerer, options.search, self._paces.of(options))
        threads = self._threads(None if options.any_threads else options.search.threads, len(call))
        try:
            launched = call.cut.step(self.searcher, threads, self.on_launch is not None)
        except FanrankError:
            launched = None
        if launched is None:
            # An error of a piece names a row of the piece, and a column that it declares is to be there for all.
            self._answer([call])
            return False
        hits, work = launched
        with self._lock:
            lane.turns.clock.charge(call.tenant or "", work)
            call.left = max(call.left - work, 1)
        self._count(int(call.cut.done), hits, options.answerer)
        if not call.cut.done:
            return True
        whole = call.cut.answer()
        self.searcher.monitor.count(whole, call.cut.seconds)
        call.answered(whole)
        return False

    def _answer_single(self, call: Call) -> BaseException | None:
        """Answer one call. Returns the error by which it failed, or None."""
        options = call.options
        threads = None if options.any_threads else options.search.threads
        try:
            hits = self._search_alone(call.queries, call.k, len(call), threads, options.keywords)
            call.answered(hits)
        except BaseException as error:
            call.failed(error)
            return error
        return None

    def _answer_together(self, calls: Sequence[Call]) -> None:
        first = calls[0]
        queries = [query for call in calls for query in call.asked(first.k)]
        hits = self._launch(queries, first.k, first.options)
        start = 0
        for call in calls:
            call.answered(hits, start)
            start += len(call)
        self._count(len(calls), hits, first.options.answerer)

    def _launch(self, queries: Sequence[Query], k: int, options: LaunchOptions) -> Hits:
        """As `Engine.search`, but a failure is not counted: the calls are answered again in smaller groups."""
        started = time.perf_counter()
        threads = self._threads(None if options.any_threads else options.search.threads, len(queries))
        hits = self.searcher.answer(
            queries, k, options.answerer, replace(options.search, threads=threads, timing=self.on_launch is not None)
        )
        self.searcher.monitor.count(hits, time.perf_counter() - started)
        return hits

    def _search_alone(self, queries: AnyBatch, k: int, size: int, threads: int | None, keywords: BatchKeywords) -> Hits:
        timing = self.on_launch is not None
        hits = self.searcher.search(queries, k, {**keywords, "threads": self._threads(threads, size), "timing": timing})
        self._count(1, hits, keywords.get("strategy", BM25))
        return hits

    def _threads(self, threads: int | None, queries: int) -> int:
        limit = self.threads if threads is None else threads
        return max(1, min(queries // QUERIES_A_THREAD, CORES)) if limit is None else limit

    def _count(self, callers: int, hits: Hits, answerer: object) -> None:
        counts, queries = self._counts, len(hits)
        distinct = queries if hits.distinct is None else hits.distinct
        with self._lock:
            counts["launches"] += 1
            counts["callers"] += callers
            counts["queries"] += queries
            counts["shared"] += queries - distinct
            counts["largest"] = max(counts["largest"], queries)
        if self.on_launch is not None:
            self.on_launch(hits, answerer)


_coalescers: weakref.WeakSet[Coalescer] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for coalescer in list(_coalescers):
        coalescer._reset()


def _exit() -> None:
    """Refuse the calls that wait, and wait for running launches: else their threads would be stopped in a loop."""
    for coalescer in list(_coalescers):
        coalescer.close()
        for lane in coalescer._lanes:
            if (thread := lane.thread) is not None:
                thread.join(EXIT_SECONDS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(_exit)
