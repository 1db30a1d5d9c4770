"""Copies of a namespace that is on its way to a shard: what is read of the old home, and hidden at the new one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..engine.index.snapshot import Snapshot
from ..engine.records.record import Record
from ..engine.storage.state import MemoryState
from .order import ORDER


@dataclass(frozen=True, eq=False)
class Page:
    """Some records of a namespace, in the order of their writes."""

    records: list[Record]
    last: int | None
    """The number of the last one's write, where more may follow; None: these are the last ones."""


def ids_after(snapshot: Snapshot, order: int, most: int) -> tuple[list[str], int | None]:
    """The ids of up to `most` live records whose writes have greater numbers than `order`, ascending.

    With the number of the last one where more may follow. In a shard, documents stand in the order of these numbers, so
    each segment is entered by bisection.
    """
    ids: list[str] = []
    last = order
    for number, segment in enumerate(snapshot.segments):
        numbers = segment.columns.numbers[ORDER]
        places = np.arange(int(np.searchsorted(numbers, order, side="right")), segment.size)
        alive = snapshot.alive(number)
        if alive is not None:
            places = places[alive[places]]
        places = places[: most - len(ids)]
        if len(places):
            ids += segment.ids.strings.take(places)
            last = int(numbers[places[-1]])
        if len(ids) == most:
            return ids, last
    return ids, None


class Hidden:
    """The namespaces that are being copied to a shard. The states that searches read are without them."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._known: tuple[MemoryState, MemoryState] | None = None

    def add(self, name: str | None) -> None:
        if name is not None and name not in self._names:
            self._names, self._known = self._names | {name}, None

    def discard(self, *names: str | None) -> None:
        if not self._names.isdisjoint(names):
            self._names, self._known = self._names.difference(names), None

    def without(self, state: MemoryState) -> MemoryState:
        """The state without the hidden namespaces."""
        if self._names.isdisjoint(state.snapshots):
            return state
        if self._known is None or self._known[0] is not state:
            snapshots = {name: each for name, each in state.snapshots.items() if name not in self._names}
            names = tuple(name for name in state.names if name not in self._names)
            self._known = state, replace(state, snapshots=snapshots, names=names)
        return self._known[1]

    def size(self, state: MemoryState) -> int:
        """The records of the hidden namespaces."""
        return sum(state.snapshot(name).size for name in self._names)
