"""Which namespaces were written lately, so that an older answer can still be told from an outdated one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from ...engine.locks import make_short_lock

KEPT = 100_000
"""Namespaces whose last writes are remembered. Others count as written at the last write that was forgotten."""


class Changes:
    """The epoch of the last write to each namespace."""

    def __init__(self) -> None:
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0
        self._lock = make_short_lock()

    def note(self, namespaces: Iterable[str], epoch: int) -> None:
        """Count a write of this epoch to these namespaces."""
        with self._lock:
            for namespace in namespaces:
                self._epochs[namespace] = epoch
                self._epochs.move_to_end(namespace)
            while len(self._epochs) > KEPT:
                self._forgotten = max(self._forgotten, self._epochs.popitem(last=False)[1])

    def note_all(self, epoch: int) -> None:
        """Count every namespace as written at this epoch."""
        with self._lock:
            self._epochs.clear()
            self._forgotten = epoch

    def since(self, namespaces: Iterable[str], epoch: int) -> bool:
        """Whether any of these may have been written after this epoch."""
        with self._lock:
            return any(self._epochs.get(namespace, self._forgotten) > epoch for namespace in namespaces)
