"""What shards go on with over several calls: the copies of a backup, the records of an export."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from ...engine.errors import FanrankError, ShardError
from ..shard.shard import Shard
from .links import Link, Waiting, call_all, collect, deadline_at


class Task(Protocol):
    """What one shard has begun."""

    def start(self) -> None:
        """Fix the moment that it is of."""
        ...

    def go_on(self) -> Any:
        """What comes next; never None."""
        ...

    def end(self) -> None:
        """Let go of all that is held for it."""
        ...


class Tasks:
    """A task of several shards, which ends with the block. A shard has `deadline` seconds for an answer."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._key = secrets.token_hex(8)
        self._links: dict[int, Link] = {}

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(FanrankError):
            sent = {number: link.send("call", end_task, self._key) for number, link in self._links.items()}
            collect(sent, deadline_at(self._deadline), missing=set())

    def begin(self, links: Iterable[Link], begin: Callable[..., Task], *arguments: Any) -> None:
        """Let shards begin what a function of a module makes of each and of these arguments."""
        self._links = {link.number: link for link in links}
        call_all(self._links.values(), deadline_at(self._deadline), "call", begin_task, self._key, begin, *arguments)

    def send(self, shard: int) -> Waiting:
        """Ask a shard what comes next; `receive` gives it."""
        return self._links[shard].send("call", go_on, self._key)

    def receive(self, shard: int, waiting: Waiting) -> Any:
        """What comes next. Raises `ShardError` where the shard was started anew meanwhile."""
        answer = waiting.result(deadline_at(self._deadline))
        if answer is None:
            raise ShardError(f"shard {shard} was started anew, and what it had begun is lost; begin anew")
        return answer


def begin_task(shard: Shard, key: str, begin: Callable[..., Task], *arguments: Any) -> None:
    """Begin what goes by this key from now on. If it is ended while it starts, it is ended once more after that."""
    task = shard.tasks[key] = begin(shard, *arguments)
    try:
        task.start()
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
