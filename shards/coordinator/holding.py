"""`Holding`: which shards a thread holds while it writes, and for how long it waits for others.

Each shard has a lock, which goes to the thread that has waited longest. What is not known of a shard is found out by
the next thread that holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ...engine.errors import DeadlineError, StorageError
from ...engine.locks import FairLock
from ..processes.links import Link, UnavailableError, deadline_at, pause
from ..protocol.messages import Part
from ..protocol.owner import OwnerFile
from ..protocol.placement import Placement

T = TypeVar("T")

WAITED = "another write or move was under way until the deadline; nothing was changed"


@dataclass(frozen=True, eq=False)
class View:
    """What a search reads: the shards as of one moment, and where records lay then."""

    epoch: int
    """The number of the view."""
    epochs: Mapping[int, int]
    """The number of each shard's last write that is seen; also of the shards of whole copies."""
    placement: Placement
    content: int
    """The view of the last write. Moves and copies change no answer."""

    def at(self, shard: int) -> int:
        """The epoch of a shard."""
        return self.epochs.get(shard, 0)


@dataclass(eq=False)
class Decision:
    """What several shards are to do, all or none of them."""

    generation: int
    parts: dict[int, Part]
    decided: bool = False


class Holding:
    """A part of `Coordinator`. `deadline` is how many seconds a shard has for an answer."""

    view: View

    def __init__(self, owner: OwnerFile, links: Sequence[Link], deadline: float) -> None:
        self.owner = owner
        self.links = links
        self.deadline = deadline
        self._locks = [FairLock() for _ in links]
        self._open: list[Decision] = []  # those that are not carried out, or not dropped, by all their shards
        self._thread = threading.local()
        self.closed = False

    @property
    def placement(self) -> Placement:
        """Where records lie by the owner's file. Searches go by that of their view."""
        return self.owner.placement

    def _settle(self) -> None:
        """Find out what is not known of the shards that this thread holds."""
        raise NotImplementedError

    def check_open(self) -> None:
        """Raise `StorageError` once the memory is closed."""
        if self.closed:
            raise StorageError("the engine is closed")

    def until(self) -> float | None:
        """When an answer that is asked for now must be there, by `time.monotonic`."""
        limit: float | None = getattr(self._thread, "until", None)
        return deadline_at(self.deadline) if limit is None else limit

    @contextmanager
    def _bounded(self, until: float | None = None) -> Iterator[None]:
        """Let all that this thread waits for meanwhile be there by one time: `until`, or a deadline from now on."""
        before = getattr(self._thread, "until", None)
        self._thread.until = before or until or deadline_at(self.deadline)
        try:
            yield
        finally:
            self._thread.until = before

    @contextmanager
    def paused(self) -> Iterator[View]:
        """Hold all writes off. Meanwhile all shards are at the epochs of the view, and at no later ones.

        Raises `DeadlineError`, and `ShardError` where a shard is lost.
        """
        with self.holding():
            yield self.view

    @contextmanager
    def holding(self, namespaces: Iterable[str] | None = None, targets: Iterable[int] = ()) -> Iterator[None]:
        """Hold writes to these namespaces (None: to all) and to the shards of `targets` off.

        What is not known of their shards is found out first.

        A thread that holds some may hold fewer meanwhile, and no others.
        """
        names = None if namespaces is None else list(namespaces)
        while True:
            shards = self._shards_of(names).union(targets)
            with self.holding_shards(shards):
                # A namespace may have moved while this thread waited.
                if self._shards_of(names) <= shards:
                    yield
                    return

    def holds(self, namespaces: Iterable[str]) -> bool:
        """Whether this thread holds writes to all of these namespaces off."""
        return self._held().issuperset(self._shards_of(list(namespaces)))

    def _shards_of(self, namespaces: Collection[str] | None) -> set[int]:
        if namespaces is None:
            return {*range(len(self.links))}
        return {home for name in namespaces for home in self.placement.homes(name)}

    @contextmanager
    def quiet(self, until: float | None) -> Iterator[View]:
        """Hold all writes off, whatever is not known of some shards."""
        with self._bounded(until), self.holding_shards({*range(len(self.links))}, settled=False):
            yield self.view

    @contextmanager
    def holding_shards(self, shards: set[int], *, settled: bool = True) -> Iterator[None]:
        """Hold writes to these shards off. `settled` says whether what is not known of them is found out first."""
        before: frozenset[int] = self._held()
        with ExitStack() as taken:
            held = self._take(shards, taken)
            self._thread.held = before | held
            try:
                self.check_open()
                if settled:
                    self._wait_for(self._settle)
                yield
            finally:
                self._thread.held = before

    def _held(self) -> frozenset[int]:
        """The shards whose locks this thread holds."""
        held: frozenset[int] = getattr(self._thread, "held", frozenset())
        return held

    def _take(self, shards: set[int], taken: ExitStack) -> set[int]:
        """Take the locks of these shards, and of those that share a decision with them. Raises `DeadlineError`."""
        while True:
            wanted = self._with_sharers(shards)
            with ExitStack() as taking:
                # In one order, so that no two threads wait for each other.
                for shard in sorted(wanted):
                    if not self._locks[shard].acquire(self.until()):
                        raise DeadlineError(WAITED)
                    taking.callback(self._locks[shard].release)
                if self._with_sharers(shards) <= wanted:
                    taken.push(taking.pop_all())
                    return wanted

    def _with_sharers(self, shards: set[int]) -> set[int]:
        found = set(shards)
        for _ in self._open:
            for decision in list(self._open):
                if not found.isdisjoint(decision.parts):
                    found |= {*decision.parts}
        return found

    def _wait_for(self, work: Callable[[], T]) -> T:
        """Do work that can be done again, until no shard is in the way that is being started anew."""
        until = self.until()
        while True:
            try:
                return work()
            except UnavailableError as error:  # noqa: PERF203
                pause(until, error)
