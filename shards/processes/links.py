"""How the owner's process reaches its shards: by calls in the same process, or by actors of Ray (`cluster.py`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from ...engine.errors import DeadlineError, FanrankError, ShardError
from ..shard.shard import Shard

Verb = str

# Seconds between attempts at a shard that is being started anew, which takes some 600 ms.
PAUSE = 0.05


class UnavailableError(ShardError):
    """A shard ended, and is being started anew."""


class Waiting(Protocol):
    """An answer that is on its way."""

    def result(self, until: float | None) -> Any:
        """The answer, by the time `until` of `time.monotonic` (None: whenever it comes).

        Raises what the shard raised; `DeadlineError`; and `ShardError` where the shard cannot be reached.
        """
        ...


class Link(Protocol):
    """The way to one shard."""

    @property
    def number(self) -> int: ...

    def send(self, verb: Verb, *arguments: Any, **keywords: Any) -> Waiting:
        """Call a verb of `Shard`. Never blocks for the answer; all failures come with it."""
        ...

    def close(self) -> None:
        """Close the shard, and let go of it."""
        ...


class Done:
    """An answer that is there: a value, or an error."""

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error

    def result(self, until: float | None) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class LocalLink:
    """A shard in this process."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.number = shard, shard.number

    def send(self, verb: Verb, *arguments: Any, **keywords: Any) -> Waiting:
        try:
            return Done(getattr(self.shard, verb)(*arguments, **keywords))
        except FanrankError as error:
            return Done(error=error)

    def close(self) -> None:
        self.shard.close()


def collect(waiting: Mapping[int, Waiting], until: float | None, *, missing: set[int] | None = None) -> dict[int, Any]:
    """The answers of several shards, by number.

    Where one cannot be reached, raises `ShardError` or `DeadlineError` after all others were waited for; with `missing`
    the numbers of such shards are added there instead. Other errors are raised as they are.
    """
    answers: dict[int, Any] = {}
    failure: FanrankError | None = None
    for number, each in waiting.items():
        try:
            answers[number] = each.result(until)
        except (ShardError, DeadlineError) as error:  # noqa: PERF203
            if missing is not None:
                missing.add(number)
            else:
                failure = failure or error
    if failure is not None:
        raise failure
    return answers


def deadline_at(seconds: float | None) -> float | None:
    """The time of `time.monotonic` in so many seconds."""
    return None if seconds is None else time.monotonic() + seconds


def call_all(
    links: Iterable[Link], until: float | None, verb: Verb, *arguments: Any, **keywords: Any
) -> dict[int, Any]:
    """The same verb of several shards, which work at the same time; their answers by number. Raises as `collect`."""
    return collect({link.number: link.send(verb, *arguments, **keywords) for link in links}, until)


def close_all(links: Iterable[Link]) -> None:
    """Close shards after a failure, whatever becomes of it."""
    for link in links:
        with suppress(FanrankError):
            link.close()


def pause(until: float | None, error: UnavailableError) -> None:
    """Wait a moment for a shard that is being started anew. Raises `DeadlineError` where the time is up."""
    if until is not None and time.monotonic() >= until:
        raise DeadlineError(f"{error}; it was not back by the deadline") from error
    time.sleep(PAUSE)
