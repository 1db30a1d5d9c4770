"""What a shard knows of copies of its records.

A namespace is copied to the shard that it moves to, a split one to a whole copy, and all records of a shard to its
followers. Each copy is filled page by page, in the order of the writes. A namespace that moves is hidden from searches
at its new home until all of it is there.
"""

from __future__ import annotations

from dataclasses import replace

from ...engine.records.record import Record
from ...engine.storage.state import MemoryState

Place = tuple[str, int]
"""A record's place among those of a shard: its namespace, and the number of its write."""


Page = tuple[list[Record], "Place | None"]
"""Some records of a shard, namespace by namespace, each in the order of its writes, and the place of the last one where
more may follow; None: these are the last ones."""


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
