"""`Batch`: what one shard does of a write, and how a write is divided into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...engine.records.record import Record
from .order import number_of
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
    removed_of = placement.by_shard((namespace, record_id) for namespace, ids in removed.items() for record_id in ids)
    added_of: dict[int, list[Record]] = {}
    for record in added:
        added_of.setdefault(placement.shard_of(record.namespace, record.id), []).append(record)
    shards = sorted({*removed_of, *added_of})
    return {shard: Batch(removed_of.get(shard, {}), added_of.get(shard, ())) for shard in shards}


def after_last(batch: Batch) -> int:
    """One more than the largest number of the batch's writes; 0 if it adds nothing."""
    return max((number_of(record) + 1 for record in batch.added), default=0)
