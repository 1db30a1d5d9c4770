"""Locks, and values without one, that a forked process can use whatever other threads did when it was forked."""

from __future__ import annotations

import os
import threading
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
