"""Shards in this process that end as a killed process does, and are started anew from their directories."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fanrank as fr
from fanrank.engine.errors import DeadlineError, FanrankError
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.opening.opening import open_memory
from fanrank.shards.processes.links import Done, Link, LocalLink, UnavailableError, Verb, Waiting
from fanrank.shards.replicas.replicas import ReplicatedLink
from fanrank.shards.shard.shard import Setup, Shard

from .sharding import split_over_all

BEFORE, AFTER, LATE, HELD, HANGS = "before", "after", "late", "held", "hangs"
"""The shard ends before it does what it is told; after that, so that its answer is lost; before, and the message comes
once more when it is there again, or when `deliver` says so; it does not answer and does not end."""


class DyingLink:
    """The way to a shard that `make` makes, and that ends when it is told to."""

    def __init__(self, make: Callable[[], Shard]) -> None:
        self._make = make
        self._shard: Shard | None = make()
        self._plans: list[tuple[Verb, str]] = []
        self._away = 0
        self._late: list[tuple[Verb, tuple[Any, ...], Mapping[str, Any]]] = []
        self._held: list[tuple[Verb, tuple[Any, ...], Mapping[str, Any]]] = []
        self.number = self._shard.number
        # Followers are filled by threads of their own, and one process takes a shard's place.
        self._lock = threading.RLock()
        self.sent: list[Verb] = []
        self.hanging = False

    def plan(self, verb: Verb, how: str) -> None:
        """Let the shard fail so, the next time that it is sent this verb, or a function of this name to call."""
        self._plans.append((verb, how))

    def end(self, away: int = 2) -> None:
        """End the shard now. So many messages find it away, and the next one finds it started anew."""
        with self._lock:
            if self._shard is not None:
                self._shard.close()
            self._shard, self._away = None, away

    def send(self, verb: Verb, *arguments: Any, **keywords: Any) -> Waiting:
        with self._lock:
            return self._send(verb, arguments, keywords)

    def _send(self, verb: Verb, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Waiting:
        self.sent.append(verb)
        if self.hanging:
            return Done(error=DeadlineError(f"shard {self.number} did not answer by the deadline"))
        if self._shard is None:
            if self._away:
                self._away -= 1
                return self._gone()
            self._shard = self._make()
        names = verb, getattr(next(iter(arguments), None), "__name__", None)
        how = self._plans.pop(0)[1] if self._plans and self._plans[0][0] in names else None
        if how == HANGS:
            self.hanging = True
            return self._send(verb, arguments, keywords)
        if how is None or how == AFTER:
            answer = self._do(verb, arguments, keywords)
        if how == LATE:
            self._late.append((verb, arguments, keywords))
        if how == HELD:
            self._held.append((verb, arguments, keywords))
        if how is not None:
            self.end()
            return self._gone()
        if verb == "tag":
            # What was on its way when the shard ended comes after all that was said to it since.
            while self._late:
                self._do(*self._late.pop())
        return answer

    def deliver(self) -> list[Any]:
        """Bring the shard the messages that are held; its answers."""
        answers = [self._do(*message).result(None) for message in self._held]
        self._held.clear()
        return answers

    def _do(self, verb: Verb, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Done:
        try:
            return Done(getattr(self._shard, verb)(*arguments, **keywords))
        except FanrankError as error:
            return Done(error=error)

    def _gone(self) -> Done:
        return Done(error=UnavailableError(f"shard {self.number} is being started anew"))

    def close(self) -> None:
        if self._shard is not None:
            LocalLink(self._shard).close()
            self._shard = None


def dying(
    folder: Path,
    shards: int,
    *,
    partial: str = "refuse",
    deadline: float = 60.0,
    replicas: int = 1,
    background: bool = False,
) -> ShardedEngine:
    """A memory on disk whose shards can end: `link_of` gives the way to each, and `follower_of` to its followers.

    Without `background`, followers do nothing before a test says so.
    """

    def start(setup: Setup) -> Link:
        made: list[int] = []

        def make() -> Shard:
            again = bool(made)
            made.append(setup.number)
            # One in memory is empty when it is started anew.
            return Shard(replace(setup, known=setup.path is not None and (setup.known or again)))

        return DyingLink(make)

    opened = open_memory(
        folder,
        shards,
        start,
        {},
        backend=None,
        storage=None,
        settings={},
        deadline=deadline,
        replicas=replicas,
        background=background,
    )
    return ShardedEngine(opened, partial)


def dying_beside_one(folder: Path, records: Sequence[fr.Record], split: str) -> tuple[fr.Engine, ShardedEngine]:
    """One engine, and three shards on disk that can end, with the same records. The namespace `split` is split."""
    one, several = fr.Engine(), dying(folder / "memory", 3)
    split_over_all(several, split)
    for engine in (one, several):
        engine.add(records)
    return one, several


def link_of(engine: ShardedEngine, shard: int) -> DyingLink:
    link = engine.coordinator.links[shard]
    if isinstance(link, ReplicatedLink):
        link = link.leader
    assert isinstance(link, DyingLink)
    return link


def follower_of(engine: ShardedEngine, shard: int, number: int = 1) -> DyingLink:
    """The way to a follower that was filled."""
    link = engine.coordinator.links[shard]
    assert isinstance(link, ReplicatedLink)
    follower = link.followers[number - 1].link
    assert isinstance(follower, DyingLink)
    return follower
