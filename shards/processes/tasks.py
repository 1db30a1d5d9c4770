"""What shards go on with over several calls: the copies of a backup, the records of an export."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from ...engine.errors import FanrankError
from ..shard.shard import Shard
from .links import Link, UnavailableError, Waiting, call_all, collect


class Task(Protocol):
    """What one shard has begun."""

    def start(self) -> Any:
        """Fix the moment that it is of, and say which it is."""
        ...

    def go_on(self) -> Any:
        """What comes next; never None."""
        ...

    def end(self) -> None:
        """Let go of all that is held for it."""
        ...


class Tasks:
    """A task of several shards, until `close`. `until` says when an answer must be there."""

    def __init__(self, until: Callable[[], float | None]) -> None:
        self._until = until
        self._key = secrets.token_hex(8)
        self._links: dict[int, Link] = {}

    def close(self) -> None:
        """End it. A second call does nothing."""
        links, self._links = self._links, {}
        with suppress(FanrankError):
            sent = {number: link.send("call", end_task, self._key) for number, link in links.items()}
            collect(sent, self._until(), missing=set())

    def begin(self, links: Iterable[Link], begin: Callable[..., Task], *arguments: Any) -> dict[int, Any]:
        """Let shards begin what a function of a module makes of each and of these arguments; what each start gives."""
        self._links = {link.number: link for link in links}
        try:
            return call_all(self._links.values(), self._until(), "call", begin_task, self._key, begin, *arguments)
        except BaseException:
            self.close()
            raise

    def send(self, shard: int) -> Waiting:
        """Ask a shard what comes next; `receive` gives it."""
        return self._links[shard].send("call", go_on, self._key)

    def receive(self, shard: int, waiting: Waiting) -> Any:
        """What comes next. Raises `UnavailableError` where the shard was started anew meanwhile."""
        answer = waiting.result(self._until())
        if answer is None:
            raise UnavailableError(f"shard {shard} was started anew, and what it had begun is lost; begin anew")
        return answer


def begin_task(shard: Shard, key: str, begin: Callable[..., Task], *arguments: Any) -> Any:
    """Begin what goes by this key from now on. If it is ended while it starts, it is ended once more after that."""
    task = shard.tasks[key] = begin(shard, *arguments)
    try:
        return task.start()
    finally:
        if shard.tasks.get(key) is not task:
            # The first end could not let go of what the start took later.
            task.end()


def go_on(shard: Shard, key: str) -> Any:
    """What comes next; None where nothing goes by this key."""
    task: Task | None = shard.tasks.get(key)
    return None if task is None else task.go_on()


def end_task(shard: Shard, key: str) -> None:
    """End what goes by this key, if it is there."""
    task: Task | None = shard.tasks.pop(key, None)
    if task is not None:
        task.end()
