"""Work that blocks, in a thread, and until when it is wanted: to the request's deadline, and while its client is there.

Every verb of the engine that blocks passes here, but for searches, whose turns the coalescer gives.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from ..engine.callers import WANTED
from ..engine.errors import DeadlineError
from .access import ANYONE, principal_of
from .problems import stopping
from .state import State, seconds_left, state_of
from .turns import Queues, Tasks

T = TypeVar("T")


@dataclass
class Cancellation:
    """Tells a thread whether its work is still wanted."""

    ends: float
    """When the request must be done, by `time.monotonic`."""
    state: State
    disconnected: bool = False

    @classmethod
    def of(cls, request: Request) -> Cancellation:
        return cls(time.monotonic() + seconds_left(request), state_of(request))

    def check(self) -> None:
        """Raise `DeadlineError` where nobody waits for the work any more, and `Problem` where the server ends."""
        if self.disconnected:
            raise hung_up()
        if self.state.ended:
            raise stopping()
        if time.monotonic() > self.ends:
            raise late()


def caller_of(request: Request) -> str:
    """By whose turns a request goes: its key's, or where there are no keys, those of the client's address."""
    principal = principal_of(request)
    if principal.name != ANYONE.name:
        return principal.name
    client = request.scope.get("client")
    return client[0] if client else ""


async def in_thread(
    request: Request,
    work: Callable[[], T],
    *,
    cancellation: Cancellation | None = None,
    threads: Queues | None = None,
    cost: int = 1,
    finish: bool = False,
    watched: bool = True,
) -> T:
    """What `work` returns once it is the caller's turn, in a thread or awaited. `threads`: None for those of all reads.

    Work that takes long calls ``cancellation.check`` between its steps, as verbs of the engine that ask do by
    themselves. At the deadline, work that has not begun never does, and one that has is not waited for, unless it is to
    `finish`: of a write the caller wants to know. The same holds once the client has hung up, if that is `watched`. The
    body of the request must have been read then: what its client says next is that it hung up.
    """
    state = state_of(request)
    threads, left = threads or state.threads, seconds_left(request, fresh=finish)
    if state.ended:
        raise stopping()
    who = caller_of(request)
    if finish and isinstance(threads, Tasks) and threads.enter(who, cost):
        try:
            return await work()  # type: ignore[no-any-return, misc]
        finally:
            threads.leave(who, cost)
    if cancellation is not None:
        work = partial(_run, work, cancellation.check)
    job = threads.put(who, work, cost)

    def give_up(error: Exception) -> None:
        if not threads.withdraw(job, error) and not finish:
            job.end(None, error)

    async def watch() -> None:
        await hang_up(request)
        if cancellation is not None:
            cancellation.disconnected = True
        give_up(hung_up())

    state.waiting.add(give_up)
    timer = asyncio.get_running_loop().call_later(left, give_up, late())
    # What begins at once and takes no steps is done before anyone could hang up.
    watching = asyncio.ensure_future(watch()) if watched and (job.queued or cancellation is not None) else None
    try:
        return await job.over  # type: ignore[no-any-return]
    finally:
        timer.cancel()
        state.waiting.discard(give_up)
        if watching is not None:
            watching.cancel()


def _run(work: Callable[[], T], wanted: Callable[[], None]) -> T:
    WANTED.set(wanted)
    return work()


async def until_hung_up(request: Request, work: Awaitable[T], *, watched: bool) -> T:
    """Await the work, unless the server ends before, or the client hangs up, if that is `watched`.

    The body of the request must have been read.
    """
    state, task, failure = state_of(request), asyncio.current_task(), list[Exception]()

    def give_up(error: Exception) -> None:
        if task is not None and not failure:
            failure.append(error)
            task.cancel()

    async def watch() -> None:
        await hang_up(request)
        give_up(hung_up())

    state.waiting.add(give_up)
    watching = asyncio.ensure_future(watch()) if watched else None
    try:
        return await work
    except asyncio.CancelledError:
        if not failure:
            raise
        if task is not None and sys.version_info >= (3, 11):
            task.uncancel()
        raise failure[0] from None
    finally:
        state.waiting.discard(give_up)
        if watching is not None:
            watching.cancel()


async def hang_up(request: Request) -> None:
    """Return once the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def hung_up() -> DeadlineError:
    return DeadlineError("the client hung up before it was answered")


def late() -> DeadlineError:
    return DeadlineError("the deadline passed before the request was answered")
