"""Locks, and values without one, that a forked process can use whatever other threads did when it was forked."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    once = cached_property
else:

    class once(cached_property):
        """A `cached_property` without the lock that all instances share before Python 3.12.

        Threads that read at the same time may compute the value twice; all get the one that was kept first.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))


_made: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_making = threading.Lock()
_held: list[threading.Lock] = []


def make_short_lock() -> threading.Lock:
    """A lock that threads hold for moments only. A fork waits for it, so its child finds it free.

    So nobody who holds one may call what is not fanrank's own, as that may fork, or make another short lock.
    """
    lock = threading.Lock()
    with _making:
        _made.add(lock)
    return lock


class FairLock:
    """A lock that goes to the thread that has waited longest; the one that holds it may take it again.

    A `threading.Lock` goes to whoever asks at the right moment: of 16 threads that write, one in twenty waited longer
    than two seconds.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, until: float | None = None) -> bool:
        """Take the lock; False where that is not possible until this time of `time.monotonic` (None: no limit)."""
        me = threading.get_ident()
        with self._changing:
            if self._owner in (None, me):
                self._owner = me
                self._depth += 1
                return True
            gate = threading.Lock()
            gate.acquire()
            ticket = me, gate
            self._waiting.append(ticket)
        try:
            given = gate.acquire(timeout=-1 if until is None else max(until - time.monotonic(), 0.0))
        except BaseException:
            if not self._withdraw(ticket):
                self.release()
            raise
        return given or not self._withdraw(ticket)

    def _withdraw(self, ticket: tuple[int, threading.Lock]) -> bool:
        """Wait no longer; False where the lock was given to this thread meanwhile, which then holds it."""
        with self._changing:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                return True
        return False

    def release(self) -> None:
        """Give the lock to the thread that has waited longest. Raises `RuntimeError` in a thread that has it not."""
        with self._changing:
            if self._owner != threading.get_ident():
                raise RuntimeError("another thread holds the lock, or none does")
            self._depth -= 1
            if self._depth:
                return
            if self._waiting:
                # Given here, so that no thread that asks meanwhile comes before the one that waits.
                self._owner, gate = self._waiting.popleft()
                self._depth = 1
                gate.release()
            else:
                self._owner = None

    def locked(self) -> bool:
        """Whether a thread holds the lock."""
        return self._owner is not None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


Item = TypeVar("Item")
Take = Callable[[Callable[[Sequence[Item]], int]], list[Item]]
"""Takes items from the head of a line: as many as the function says that it is given, which sees all that wait."""


@dataclass(eq=False)
class _Place(Generic[Item]):
    """The place of a thread in a line."""

    item: Item
    gate: threading.Lock
    leads: bool = False


class WriteQueue(Generic[Item]):
    """Writes that wait, each in one of several lines, to be carried out together: first come, first served.

    The thread that stands first in a line carries out what waits behind it, too. The others sleep until that is done.
    None of them takes a lock: each lock that is handed on costs a change of threads, up to 5 ms on a busy interpreter.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._lines: dict[Hashable, deque[_Place[Item]]] = {}

    def __len__(self) -> int:
        """The writes that wait in all lines."""
        return sum(map(len, list(self._lines.values())))

    def carry_out(
        self,
        item: Item,
        lead: Callable[[Take[Item]], None],
        line: Hashable = None,
        until: float | None = None,
    ) -> bool:
        """Return once another thread has carried the item out, or carry it out; False where it waited until `until`.

        `lead` is called in the thread that stands first. It takes items from the line, and carries them out. What it
        raises, its own thread raises.
        """
        with self._changing:
            gate = threading.Lock()
            gate.acquire()
            place = _Place(item, gate, leads=line not in self._lines)
            waiting = self._lines.setdefault(line, deque())
            waiting.append(place)
        if not place.leads:
            try:
                given = gate.acquire(timeout=-1 if until is None else max(until - time.monotonic(), 0.0))
                if not given and not self._withdraw(waiting, place):
                    gate.acquire()  # it is being carried out
                    given = True
            except BaseException:
                if not self._withdraw(waiting, place) and place.leads:
                    self._hand_on(line, waiting, place)
                raise
            if not given or not place.leads:
                return given
        taken: list[_Place[Item]] = []

        def take(choose: Callable[[Sequence[Item]], int]) -> list[Item]:
            with self._changing:
                count = choose([each.item for each in waiting])
                taken.extend([waiting.popleft() for _ in range(count)])
            return [each.item for each in taken]

        try:
            lead(take)
        finally:
            self._hand_on(line, waiting, place)
            for each in taken:
                if each is not place:
                    each.gate.release()
        return True

    def _withdraw(self, waiting: deque[_Place[Item]], place: _Place[Item]) -> bool:
        """Leave a line; False where the item was taken from it, or where the thread stands first."""
        with self._changing:
            if place.leads or place not in waiting:
                return False
            waiting.remove(place)
            return True

    def _hand_on(self, line: Hashable, waiting: deque[_Place[Item]], place: _Place[Item]) -> None:
        """Let the thread that is first by now lead."""
        with self._changing:
            if place in waiting:
                waiting.remove(place)
            if waiting:
                waiting[0].leads = True
                waiting[0].gate.release()
            else:
                del self._lines[line]


def _hold_all() -> None:
    _making.acquire()
    for lock in list(_made):
        lock.acquire()
        _held.append(lock)


def _release_all() -> None:
    while _held:
        _held.pop().release()
    _making.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
