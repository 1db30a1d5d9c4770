"""Failpoints: places where a test can kill the process, or make the disk fail, to see what survives.

``FANRANK_FAILPOINT="write.commit:3"`` kills the process, as ``kill -9`` would, when ``write.commit`` is reached for the
third time. While none is armed, reaching a failpoint costs one comparison with None.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

VARIABLE = "FANRANK_FAILPOINT"

POINTS: tuple[str, ...] = (
    "write.begin",
    "write.records",
    "write.commit",
    "write.committed",
    "write.published",
    "merge.begin",
    "merge.built",
    "merge.published",
    "renumber.begin",
    "renumber.published",
    "checkpoint.begin",
    "checkpoint.part",
    "checkpoint.manifest",
    "checkpoint.replaced",
    "checkpoint.pruned",
    "checkpoint.swept",
    "fold.begin",
    "fold.done",
    "close.begin",
    "close.folded",
    "backup.begin",
    "backup.pages",
    "backup.copied",
    "backup.renamed",
)
"""All failpoints: those of a write, a merge, a renumbering, a checkpoint, a fold of the log, a close and a backup, each
in the order in which they are reached."""

CARRYING: tuple[str, ...] = (
    "export.record",
    "export.written",
    "export.renamed",
    "import.batch",
    "copy.begin",
    "copy.batch",
    "copy.written",
    "copy.renamed",
    "columns.made",
    "columns.committed",
    "columns.published",
)
"""Those of an export, an import, a copy and of other columns."""

SHARDING: tuple[str, ...] = (
    "batch.prepared",
    "batch.decided",
    "batch.sent",
    "batch.acknowledged",
    "move.page",
    "whole.page",
    "move.copied",
    "shards.started",
    "shards.added",
    "source.batch",
    "source.copied",
)
"""Those of a write to several shards, in the order in which they are reached, of a namespace that moves or is copied
whole, and of shards that are added."""


class _Armed:
    def __init__(self, name: str, count: int, action: Callable[[], None] | None) -> None:
        self.name = name
        self.action = action
        self._left = count
        self._counting = threading.Lock()

    def count_reach(self, name: str) -> None:
        if _check_name(name) != self.name:
            return
        with self._counting:
            self._left -= 1
            due = self._left == 0
        if due:
            (self.action or _die)()


_armed: _Armed | None = None


def reach(name: str) -> None:
    """Does nothing unless `name` is armed. Raises `ValueError` for an unlisted name while any failpoint is armed."""
    if _armed is not None:
        _armed.count_reach(name)


def arm(name: str, count: int = 1, action: Callable[[], None] | None = None) -> None:
    """Arm a failpoint: the `count`-th time that it is reached calls `action`, or kills the process without one.

    Only that one time counts. One failpoint is armed at a time. Raises `ValueError` for an unlisted name or a count
    below 1.
    """
    global _armed
    if count < 1:
        raise ValueError(f"failpoint {name!r}: the count must be 1 or more, not {count}")
    _armed = _Armed(_check_name(name), count, action)


def disarm() -> None:
    global _armed
    _armed = None


def _check_name(name: str) -> str:
    if name not in (known := (*POINTS, *CARRYING, *SHARDING)):
        raise ValueError(f"no failpoint {name!r}; there are: {', '.join(known)}")
    return name


def _die() -> None:
    if sys.platform == "win32":
        os._exit(137)
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # The signal may take a moment, and nothing may run until it arrives.


def _arm_from(value: str | None) -> None:
    if not value:
        return
    name, colon, count = value.partition(":")
    if colon and not (count.isascii() and count.isdigit()):
        raise ValueError(f"{VARIABLE}={value!r}: write name or name:count")
    arm(name, int(count) if colon else 1)


_arm_from(os.environ.get(VARIABLE))
