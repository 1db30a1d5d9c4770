"""Work that takes a while: callers wait in a queue each, and the queues are served by turns (`Clock`).

A caller has a bounded share of what runs at once, so that one whose work takes long leaves the rest to the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..engine.serve.turns import Clock

LINGER = 5.0
"""Seconds after which a thread without work ends."""


@dataclass(eq=False)
class Job:
    """A piece of work. Its future is the event loop's."""

    who: str
    work: Callable[[], Any]
    cost: int
    over: asyncio.Future[Any]
    context: Context = field(default_factory=copy_context)
    queued: bool = False
    """Whether it has to wait for others."""
    begun: bool = False

    def end(self, value: Any, error: BaseException | None) -> None:
        """Tell the caller. Only the thread of the event loop may do so."""
        if self.over.done():
            return
        if error is None:
            self.over.set_result(value)
        else:
            self.over.set_exception(error)


class Queues:
    """What waits and what runs. At most `most` runs at once, and `each` for one caller; a job counts as its weight."""

    def __init__(self, most: int, each: int) -> None:
        self.most, self.each = most, each
        self._work = threading.Condition()
        self._waiting: dict[str, deque[Job]] = {}
        self._running: Counter[str] = Counter()
        self._clock = Clock()

    def put(self, who: str, work: Callable[[], Any], cost: int = 1) -> Job:
        """Queue a piece of work of the caller `who`. Awaits nothing; `Job.over` is its result."""
        job = Job(who, work, cost, asyncio.get_running_loop().create_future())
        with self._work:
            self._waiting.setdefault(who, deque()).append(job)
            self._dispatch()
            # A thread takes what has room when it has woken.
            own, every = (sum(map(self._weight, jobs)) for jobs in (self._waiting[who], chain(*self._waiting.values())))
            room = self._running[who] + own <= self.each and self._running.total() + every <= self.most
            job.queued = not job.begun and not room
        return job

    def withdraw(self, job: Job, error: BaseException) -> bool:
        """Let a job that has not begun fail; whether it had not."""
        with self._work:
            if job.begun:
                return False
            self._waiting[job.who].remove(job)
            job.begun = True
            self._forget(job.who)
        job.end(None, error)
        return True

    def _weight(self, job: Job) -> int:
        return 1

    def _dispatch(self) -> None:
        """See that what may begin does. The caller holds the lock."""
        raise NotImplementedError

    def _take(self) -> Job | None:
        """Begin the next job, in turn; None where none may begin. The caller holds the lock."""
        ready = [
            who
            for who, jobs in self._waiting.items()
            if jobs and (not self._running[who] or self._running[who] + self._weight(jobs[0]) <= self.each)
        ]
        if not ready:
            return None
        who = min(ready, key=self._clock.start)
        weight, total = self._weight(self._waiting[who][0]), self._running.total()
        if total and total + weight > self.most:
            return None
        job = self._waiting[who].popleft()
        job.begun = True
        self._clock.charge(who, job.cost)
        self._running[who] += weight
        return job

    def _end(self, job: Job) -> None:
        """Give back the room of a job. The caller holds the lock."""
        self._running[job.who] -= self._weight(job)
        self._forget(job.who)

    def _forget(self, who: str) -> None:
        """Forget a caller who has nothing here. The caller of this holds the lock."""
        if not self._running[who]:
            del self._running[who]
            if not self._waiting.get(who):
                self._waiting.pop(who, None)


class Threads(Queues):
    """Work that blocks, each in a thread. The end of the process does not wait for them."""

    def __init__(self, most: int, each: int) -> None:
        super().__init__(most, each)
        self._threads = self._idle = 0

    def _dispatch(self) -> None:
        self._work.notify()
        # An idle thread counts as one until it has woken.
        if sum(map(len, self._waiting.values())) > self._idle and self._threads < self.most:
            threading.Thread(target=self._serve, name="fanrank-serve", daemon=True).start()
            self._threads += 1

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            value, failure = None, None
            try:
                value = job.context.run(job.work)
            except BaseException as error:
                failure = error
            with self._work:
                self._end(job)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                job.over.get_loop().call_soon_threadsafe(job.end, value, failure)
            del job, value, failure

    def _next(self) -> Job | None:
        """Wait for the next job. None where the thread is to end."""
        with self._work:
            while True:
                if (job := self._take()) is not None:
                    return job
                self._idle += 1
                came = self._work.wait(LINGER)
                self._idle -= 1
                if not came and not any(self._waiting.values()):
                    self._threads -= 1
                    return None


class Tasks(Queues):
    """Work that is awaited: `work` makes its coroutine. A job weighs what it costs."""

    def __init__(self, most: int, each: int) -> None:
        super().__init__(most, each)
        self._tasks: set[asyncio.Future[None]] = set()

    def _weight(self, job: Job) -> int:
        return job.cost

    def _dispatch(self) -> None:
        while (job := self._take()) is not None:
            task = job.context.run(asyncio.ensure_future, self._run(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def enter(self, who: str, cost: int) -> bool:
        """Take room for work that its caller awaits itself, and gives back by `leave`; False where it must wait.

        A job has a task and a timer of its own, which takes half as long as a small write.
        """
        with self._work:
            mine, every = self._running.get(who, 0), self._running.total()
            if (mine and mine + cost > self.each) or (every and every + cost > self.most):
                return False
            if any(self._waiting.values()):
                return False
            self._clock.charge(who, cost)
            self._running[who] = mine + cost
            return True

    def leave(self, who: str, cost: int) -> None:
        """Give back the room of what entered."""
        with self._work:
            self._running[who] -= cost
            self._forget(who)
            self._dispatch()

    async def _run(self, job: Job) -> None:
        value, failure = None, None
        try:
            value = await job.work()
        except BaseException as error:
            failure = error
        with self._work:
            self._end(job)
            self._dispatch()
        job.end(value, failure)
