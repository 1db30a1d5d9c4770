"""Locks that a forked process finds free, whatever other threads did at the moment of the fork."""

from __future__ import annotations

import os
import threading
import weakref

_made: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_making = threading.Lock()
_held: list[threading.Lock] = []


def make_short_lock() -> threading.Lock:
    """A lock that threads hold for moments only. A fork waits for it, so its child finds it free."""
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
