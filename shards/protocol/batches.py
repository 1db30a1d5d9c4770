"""`Part`: what one shard does of a write, and how a write is divided into parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...engine.records.record import Record
from .placement import Placement


@dataclass(frozen=True)
class Part:
    """What one shard does of a write: it drops namespaces, removes ids, by namespace, then adds records, which are
    stamped.
    """

    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    added: Sequence[Record] = ()
    drop: tuple[str, ...] = ()
    hide: str | None = None
    """A namespace that is being copied to the shard. No search sees it before a later part says `show`."""
    show: str | None = None

    @property
    def names(self) -> set[str]:
        """The namespaces that it writes to."""
        return {*self.removed, *(record.namespace for record in self.added), *self.drop}

    @property
    def copies(self) -> dict[str, bool]:
        """The namespaces that begin to be copies (True), and that are none any more."""
        ended = self.drop if self.show is None else (*self.drop, self.show)
        return {**dict.fromkeys(ended, False), **({} if self.hide is None else {self.hide: True})}

    def again(self) -> Part:
        """The part for a shard that may have done it already: what it adds is removed before."""
        removed = {namespace: list(ids) for namespace, ids in self.removed.items()}
        for record in self.added:
            removed.setdefault(record.namespace, []).append(record.id)
        return replace(self, removed={name: list(dict.fromkeys(ids)) for name, ids in removed.items()})


def divide(placement: Placement, removed: Mapping[str, Sequence[str]], added: Sequence[Record]) -> dict[int, Part]:
    """The part of a batch that each shard does."""
    names = dict.fromkeys((*removed, *(record.namespace for record in added)))
    homes = {home for name in names for home in placement.homes(name)}
    if len(homes) == 1:
        return {home: Part(removed, added) for home in homes if added or any(removed.values())}
    removed_of = placement.by_shard((namespace, record_id) for namespace, ids in removed.items() for record_id in ids)
    added_of: dict[int, list[Record]] = {}
    find = placement.finder()
    for record in added:
        added_of.setdefault(find(record.namespace, record.id), []).append(record)
    return {
        shard: Part(removed_of.get(shard, {}), added_of.get(shard, ())) for shard in sorted({*removed_of, *added_of})
    }
