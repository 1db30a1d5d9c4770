"""Awaited writes. Small ones that wait at the same time are written together, by one thread, however many they are."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias, TypeVar

from ..storage.writes import Batch, Outcome
from .calls import wake

WRITERS = 32
"""Threads of awaited writes that take long: they are large, call a model, or wait for shards. Most of them sleep."""
TOGETHER = 1_024
"""Awaited writes that are written together at most."""


T = TypeVar("T")
Draft: TypeAlias = Callable[[], Batch]
"""Reads what a caller gave. What it raises is that write's alone."""


@dataclass(eq=False)
class Entry:
    """A write that waits, the future of its caller's event loop, and later what became of it."""

    draft: Draft
    over: asyncio.Future[int]
    batch: Batch | None = None
    outcome: Outcome = 0

    def read(self) -> None:
        try:
            batch = self.draft()
            self.batch = {**batch, "added": list(batch.get("added", ()))}
        except BaseException as error:
            # The thread that reads it goes on, whatever the caller's own classes raise.
            self.outcome = error

    def arrive(self) -> None:
        """Tell the caller. Only the thread of its event loop may do so."""
        if self.over.done():
            return
        if isinstance(self.outcome, BaseException):
            self.over.set_exception(self.outcome)
        else:
            self.over.set_result(self.outcome)


class Writers:
    """The threads of awaited writes; `write` carries out several batches, each for itself, and returns their outcomes.

    A thread of its own for each write would cost a change of threads for each, up to 5 ms on a busy interpreter.
    """

    def __init__(self, write: Callable[[Sequence[Batch]], Sequence[Outcome]]) -> None:
        self._write = write
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="fanrank-write")
        self._changing = threading.Lock()
        self._waiting: deque[Entry] = deque()
        self._running = False

    async def alone(self, work: Callable[[], T]) -> T:
        """Write in a thread of its own, as `work` may take long. Cancelling before it began cancels it."""
        return await asyncio.wrap_future(self._pool.submit(work))

    async def join(self, draft: Draft) -> int:
        """Write together with what waits. A call that is cancelled before it began writes nothing."""
        entry = Entry(draft, asyncio.get_running_loop().create_future())
        with self._changing:
            self._waiting.append(entry)
            if not self._running:
                self._pool.submit(self._run)
                self._running = True
        return await entry.over

    def close(self) -> None:
        """Let the threads end. A write that has yet to begin finds the engine closed."""
        self._pool.shutdown(wait=False)

    def _run(self) -> None:
        while True:
            with self._changing:
                taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), TOGETHER))]
                if not taken:
                    self._running = False
                    return
            entries = [entry for entry in taken if not entry.over.done()]
            self._carry_out(entries)
            for loop, own in groupby(entries, lambda entry: entry.over.get_loop()):
                wake(loop, list(own))
            del taken, entries

    def _carry_out(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            entry.read()
        drafted = [(entry, entry.batch) for entry in entries if entry.batch is not None]
        try:
            outcomes = self._write([batch for _, batch in drafted])
        except BaseException as error:
            outcomes = [error] * len(drafted)
        for (entry, _), outcome in zip(drafted, outcomes, strict=True):
            entry.outcome = outcome
