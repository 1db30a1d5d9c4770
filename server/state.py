"""What all requests of a server share, and when one of them must be done."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request

from ..engine.memory import Memory
from .limits import Limits
from .metrics import Metrics
from .problems import Problem, stopping
from .quotas import Quotas
from .turns import Tasks, Threads

DEADLINE = "fanrank-deadline"
"""The header by which a caller says after how many seconds the answer is of no use any more."""


_DEADLINE = DEADLINE.encode()


@dataclass
class State:
    """The engine behind the server, its limits and counts, and how many requests are under way."""

    engine: Memory
    limits: Limits
    metrics: Metrics
    quotas: Quotas
    backups: Path | None = None
    """The directory of backups; None: none are made."""
    in_flight: int = 0
    in_flight_of: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Requests under way with each key. A key without any has no entry."""
    body_bytes: int = 0
    """Bytes of bodies that are held."""
    body_bytes_of: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Those with each key. A key without requests under way has no entry."""
    stopping: bool = False
    ended: bool = False
    """Whether the time for what is under way is over."""
    threads: Threads = field(default_factory=lambda: Threads(16, 4))
    """Run what reads, what changes many records, and all that has a large body."""
    parsers: Threads = field(default_factory=lambda: Threads(4, 1))
    """Read large bodies and write large answers. They hold the interpreter: more at once would keep the event loop, and
    with it all others, waiting for it."""
    writes: Tasks = field(default_factory=lambda: Tasks(1 << 20, 3 << 18))
    """Small writes, which the engine writes together. They cost their bytes, and so much is written at a time."""
    writers: Threads = field(default_factory=lambda: Threads(64, 48))
    """Run small changes of records, for which the engine has no awaited verb. Most of them sleep."""
    timed: Threads = field(default_factory=lambda: Threads(1, 1))
    """Runs the searches that are timed, one after another."""
    carriers: Threads = field(default_factory=lambda: Threads(8, 2))
    """Run exports and imports, which take as long as their clients."""
    waiting: set[Callable[[Exception], None]] = field(default_factory=set)
    """What ends the requests that wait for a thread, or for a search."""

    def end(self) -> None:
        """Refuse what is still under way. Only the thread of the event loop may do so."""
        self.ended = True
        for give_up in list(self.waiting):
            give_up(stopping())


BEGAN = "fanrank.began"
"""Where a request keeps when its head had come, by `time.monotonic`."""
STATE = "fanrank.state"
"""Where a request keeps what all share. `request.app.state` costs five calls each time that it is asked."""


def state_of(request: Request) -> State:
    """What the requests of this server share."""
    state = request.scope.get(STATE) or request.app.state.fanrank
    assert isinstance(state, State)
    return state


def header_of(request: Request, name: bytes) -> str | None:
    """The first header of this name, in small letters; one call where `request.headers` makes four."""
    for given, value in request.scope["headers"]:
        if given == name:
            return value.decode("latin-1")  # type: ignore[no-any-return]
    return None


def seconds_left(request: Request, *, fresh: bool = False) -> float:
    """Seconds until the request must be done: those of its header, and no more than the server's limit.

    `fresh`: the server's limit begins now, and not with the request, whose body may have taken long.
    """
    limit = state_of(request).limits.seconds
    began = request.scope.get(BEGAN, time.monotonic())
    said = header_of(request, _DEADLINE)
    if said is None and fresh:
        return limit
    if said is not None:
        try:
            seconds = float(said)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            raise Problem(422, "InvalidHeader", f"{DEADLINE} must be seconds above 0", field=DEADLINE)
        limit = min(limit, seconds)
    left: float = limit - (time.monotonic() - began)
    if left <= 0:
        raise Problem(504, "DeadlineError", "the deadline passed before the search began")
    return left
