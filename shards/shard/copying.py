"""What a shard does for copies of its records, and as a copy of another shard.

A namespace is copied to the shard that it moves to, a split one to a whole copy, and all records of a shard to its
followers. Each copy is filled page by page, in the order of the writes. A namespace that moves is hidden from searches
at its new home until all of it is there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...engine.engine import Engine
from ...engine.index.columns import ORDER
from ...engine.index.snapshot import Snapshot
from ...engine.records.record import Record
from ...engine.storage.state import MemoryState
from ..protocol.messages import Ask, Gone

Place = tuple[str, int]
"""A record's place among those of a shard: its namespace, and the number of its write."""


@dataclass(frozen=True, eq=False)
class Page:
    """Some records of a shard, namespace by namespace, each in the order of its writes."""

    records: list[Record]
    last: Place | None
    """The place of the last one, where more may follow; None: these are the last ones."""


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

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self._names = names
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


class Following:
    """A part of `Shard`."""

    engine: Engine

    def number_at(self, epoch: int) -> int | None:
        """The number of the newest state of an epoch or an older one; None where none is kept."""
        raise NotImplementedError

    def newest(self) -> int | None:
        """As `Shard.newest`."""
        raise NotImplementedError

    def as_of(self, number: int, verb: str, asked: Ask | int, *arguments: Any, **keywords: Any) -> Any:
        """What a verb answers at the epoch of `asked` (an epoch, or a message that says it) from the state `number`.

        `Gone` where the newest state of that epoch is another one.
        """
        epoch = asked.epoch if isinstance(asked, Ask) else asked
        if self.number_at(epoch) != number:
            return Gone(self.newest())
        return getattr(self, verb)(asked, *arguments, **keywords)

    def follow(self, after: int, verb: str, *arguments: Any, **keywords: Any) -> Any:
        """Do a write or a tag that the leader did after its state of this number.

        `Gone` where this follower's newest state is another one: then it has missed a write.
        """
        newest = self.newest()
        return getattr(self, verb)(*arguments, **keywords) if newest == after else Gone(newest)

    def page(self, names: Sequence[str] | None, after: Place, most: int) -> Page:
        """Up to `most` live records of these namespaces (None: of all), stamped, behind this place. Copies count.

        Others may write meanwhile. A record that they write between two pages may be in both, in one or in none.
        """
        memory = self.engine.index.ready()
        state = memory.state
        records: list[Record] = []
        left = most
        for name in state.names[bisect_left(state.names, after[0]) :] if names is None else sorted(names):
            if name < after[0]:
                continue
            ids, last = ids_after(state.snapshot(name), after[1] if name == after[0] else -1, left)
            found = memory.store.fetch(name, ids) if memory.store is not None else state.records_of(name, ids)
            records += [record for record in found if record is not None]
            left -= len(ids)
            if last is not None:
                return Page(records, (name, last))
        return Page(records, None)
