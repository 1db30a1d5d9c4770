"""What an evaluation says on standard error while it runs: lines, which a log keeps too."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

LEAST_TOLD = 100
"""Below so many records or questions nothing is said: they take no time."""
STEPS = 10
"""Lines that tell how far the records are."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def announced(what: str, count: int, progress: bool) -> Iterator[None]:
    """Say what begins and, once it is done, how long it took, if `progress` and there are not few of it."""
    if not progress or count < LEAST_TOLD:
        yield
        return
    started = time.perf_counter()
    say(f"{count:,} {what} ...")
    yield
    say(f"{count:,} {what}: {time.perf_counter() - started:.1f} s")


def counted(records: Collection[T]) -> Iterator[T]:
    """The records. If they are not few, a line tells each tenth of them."""
    step = -(-len(records) // STEPS)
    for number, record in enumerate(records, 1):
        yield record
        if len(records) >= LEAST_TOLD and (number % step == 0 or number == len(records)):
            say(f"indexed {number:,} of {len(records):,} records")
