"""`Batch`: what one shard does of a write, and how a write is divided into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...engine.records.record import Record
from .placement import Placement


@dataclass(frozen=True)
class Batch:
    """What one shard does of a write: it removes ids, by namespace, then adds records, which are stamped."""

    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    added: Sequence[Record] = ()

    def again(self) -> Batch:
        """The batch for a shard that may have done it already: what it adds is removed before."""
        removed = {namespace: list(ids) for namespace, ids in self.removed.items()}
        for record in self.added:
            removed.setdefault(record.namespace, []).append(record.id)
        return Batch({name: list(dict.fromkeys(ids)) for name, ids in removed.items()}, self.added)


def divide(placement: Placement, removed: Mapping[str, Sequence[str]], added: Sequence[Record]) -> dict[int, Batch]:
    """The part of a batch that each shard does."""
    names = dict.fromkeys((*removed, *(record.namespace for record in added)))
    homes = {home for name in names for home in placement.homes(name)}
    if len(homes) == 1:
        return {home: Batch(removed, added) for home in homes if added or any(removed.values())}
    removed_of = placement.by_shard((namespace, record_id) for namespace, ids in removed.items() for record_id in ids)
    added_of: dict[int, list[Record]] = {}
    find = placement.finder()
    for record in added:
        added_of.setdefault(find(record.namespace, record.id), []).append(record)
    shards = sorted({*removed_of, *added_of})
    return {shard: Batch(removed_of.get(shard, {}), added_of.get(shard, ())) for shard in shards}
