"""Work in a thread that ends early: at the request's deadline, or once the client has hung up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from ..engine.errors import DeadlineError
from .state import seconds_left

T = TypeVar("T")


@dataclass
class Cancellation:
    """Tells a thread whether its work is still wanted."""

    ends: float
    """When the request must be done, by `time.monotonic`."""
    disconnected: bool = False

    @classmethod
    def of(cls, request: Request) -> Cancellation:
        return cls(time.monotonic() + seconds_left(request))

    def check(self) -> None:
        """Raise `DeadlineError` where nobody waits for the work any more."""
        if self.disconnected:
            raise DeadlineError("the client hung up before the answer was written")
        if time.monotonic() > self.ends:
            raise DeadlineError("the deadline passed before the answer was written")


async def run_cancellable(request: Request, cancellation: Cancellation, function: Callable[[], T]) -> T:
    """What the function returns. It runs in a thread, and calls `Cancellation.check` between steps.

    The body of the request must have been read: what its client says next is that it hung up.
    """
    watching = asyncio.ensure_future(_watch(request, cancellation))
    try:
        return await run_in_threadpool(function)
    finally:
        watching.cancel()


async def _watch(request: Request, cancellation: Cancellation) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancellation.disconnected = True
