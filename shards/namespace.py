"""`ShardedNamespace`: a tenant's view of a sharded memory."""

from __future__ import annotations

import time
from typing import Any, cast

from ..engine.namespace import Namespace, Verbs, snapshot_stats
from ..engine.storage.state import MemoryState
from .reading import ShardedReading
from .shard.shard import Shard


class ShardedNamespace(Namespace):
    """As `Namespace`, of a `ShardedEngine`."""

    def __init__(self, engine: ShardedReading, name: str) -> None:
        # It has all verbs of an engine, and nothing of this class asks for its index.
        super().__init__(cast(Verbs, engine), name)
        self._sharded = engine

    def __len__(self) -> int:
        return self._sharded.sizes().get(self.name, 0)

    def stats(self) -> dict[str, Any]:
        """As `Namespace.stats`, added up over the shards, and ``shards``: those that hold the namespace."""
        parts = self._sharded.read_parts(self.name, stats_of, self.name)
        total: dict[str, Any] = {}
        for part in parts.values():
            for name, value in part.items():
                total[name] = total.get(name, 0) + value
        return {**total, "recency": self._sharded.recency(self.name).to_dict(), "shards": list(parts)}


def stats_of(shard: Shard, state: MemoryState, namespace: str) -> dict[str, int]:
    """The sizes of a shard's part of a namespace."""
    return snapshot_stats(state.snapshot(namespace).at(time.time()))
