"""Threads for what blocks. Callers wait in a queue each, and the queues are served by turns.

The turn is that of the caller for whom the least has been begun, by the cost that each piece of work says. A caller has
a bounded number of threads, so that one whose work takes long leaves the others to the rest.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

LINGER = 5.0
"""Seconds after which a thread without work ends."""
MANY = 1_024
"""Callers that are remembered, beyond which those who owe nothing are forgotten."""


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


class Threads:
    """At most `most` threads, and `each` for one caller. The end of the process does not wait for them."""

    def __init__(self, most: int, each: int) -> None:
        self.most, self.each = most, each
        self._work = threading.Condition()
        self._waiting: dict[str, deque[Job]] = {}
        self._running: Counter[str] = Counter()
        self._begun: dict[str, int] = {}
        """The cost of what was begun for each caller. One who comes anew begins at `_clock`."""
        self._clock = 0
        self._threads = self._idle = 0

    def put(self, who: str, work: Callable[[], Any], cost: int = 1) -> Job:
        """Queue a piece of work of the caller `who`. Awaits nothing; `Job.over` is its result."""
        job = Job(who, work, cost, asyncio.get_running_loop().create_future())
        with self._work:
            if who not in self._waiting:
                self._waiting[who] = deque()
                self._begun[who] = max(self._begun.get(who, 0), self._clock)
            self._waiting[who].append(job)
            waiting = sum(map(len, self._waiting.values()))
            own = self._running[who] + len(self._waiting[who])
            job.queued = own > self.each or self._running.total() + waiting > self.most
            self._work.notify()
            # An idle thread counts as one until it has woken.
            if waiting > self._idle and self._threads < self.most:
                threading.Thread(target=self._serve, name="fanrank-serve", daemon=True).start()
                self._threads += 1
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

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            value, failure = None, None
            try:
                value = job.context.run(job.work)
            except BaseException as error:
                failure = error
            with self._work:
                self._running[job.who] -= 1
                self._forget(job.who)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                job.over.get_loop().call_soon_threadsafe(job.end, value, failure)
            del job, value, failure

    def _next(self) -> Job | None:
        """Take the next job, in turn. None where the thread is to end."""
        with self._work:
            while True:
                ready = [who for who, jobs in self._waiting.items() if jobs and self._running[who] < self.each]
                if ready:
                    who = min(ready, key=self._begun.__getitem__)
                    job = self._waiting[who].popleft()
                    job.begun = True
                    self._clock = self._begun[who]
                    self._begun[who] += job.cost
                    self._running[who] += 1
                    return job
                self._idle += 1
                came = self._work.wait(LINGER)
                self._idle -= 1
                if not came and not any(self._waiting.values()):
                    self._threads -= 1
                    return None

    def _forget(self, who: str) -> None:
        """Forget a caller who has nothing here. The caller of this holds the lock."""
        if self._running[who] or self._waiting.get(who):
            return
        del self._running[who]
        self._waiting.pop(who, None)
        if len(self._begun) > MANY:
            self._begun = {
                name: begun for name, begun in self._begun.items() if begun > self._clock or name in self._waiting
            }
