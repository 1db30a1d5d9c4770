"""`ShardedNamespace`: a tenant's view of a sharded memory."""

from __future__ import annotations

from typing import Any, cast

from ..engine.namespace import Namespace, Verbs
from .reading import ShardedReading


class ShardedNamespace(Namespace):
    """As `Namespace`, of a `ShardedEngine`."""

    def __init__(self, engine: ShardedReading, name: str) -> None:
        # Verbs that a sharded engine does not have raise `AttributeError`, as they do there.
        super().__init__(cast(Verbs, engine), name)
        self._sharded = engine

    def __len__(self) -> int:
        return self._sharded.sizes().get(self.name, 0)

    def stats(self) -> dict[str, Any]:
        """The live records, and the shards that hold them."""
        placement = self._sharded.coordinator.view.placement
        return {"documents": len(self), "shards": list(placement.homes(self.name))}
