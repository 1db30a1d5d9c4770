"""A lane: a queue of calls and the thread that launches from it.

The coalescer (`engine/serve/coalesce.py`) has two lanes: one for batches of at most `max_batch` queries, which share
launches, and one for larger batches, which are launched one by one.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ..errors import StorageError
from ..search.given import ONE, AnyBatch, AnyQuery
from .calls import Call
from .turns import Turns


class Lane:
    """A queue, and the threads that launch from it, one launch at a time. The coalescer's lock guards all of it."""

    def __init__(self, lock: threading.RLock) -> None:
        self.queue: deque[Call] = deque()
        self.waiting = 0  # queries of the calls that wait
        self.due = math.inf  # the time at which the calls have waited long enough for others
        self.runner: int | None = None  # identifier of the thread that runs a launch now
        self.server: int | None = None  # identifier of `thread`
        self.thread: threading.Thread | None = None  # launches the queued calls
        self.turns = Turns()
        self.work = threading.Condition(lock)  # notified when there may be something to launch

    def serve(self, target: Callable[[Lane], None]) -> None:
        """Start a thread that launches the queued calls, unless there is one."""
        if self.thread is None:
            thread = threading.Thread(target=target, args=(self,), name="fanrank-coalesce", daemon=True)
            thread.start()
            self.thread = thread


def as_sequence(queries: AnyBatch) -> Sequence[AnyQuery]:
    """The batch, as a list if it is one query, or an iterable that may be read only once."""
    if isinstance(queries, (list, tuple)) or not isinstance(queries, (*ONE, Iterable)):
        return queries
    return [queries] if isinstance(queries, ONE) else list(queries)


def size_of(batch: AnyBatch) -> int:
    """The number of queries of a batch; 0 for what is no batch, which the search will refuse."""
    return len(batch) if isinstance(batch, (list, tuple)) else 0


def closed_error() -> StorageError:
    return StorageError("the engine is closed")
