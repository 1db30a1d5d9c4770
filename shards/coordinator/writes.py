"""`Write`: one batch on its way to the shards, and which of them that wait are carried out together.

Those that wait for the same shards make a group: one message and one sync a shard, first come, first served. They touch
different records, so none depends on another one, and one that is refused is refused alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from ...engine.errors import DeadlineError, FanrankError, ShardError, StorageError
from ...engine.index.columns import Schema
from ...engine.records.record import Record
from ...engine.storage.writes import group_by_namespace
from ..protocol.placement import Placement
from .checks import check_added, check_removed, check_unnumbered

MOST = 8_192
"""Records of a group. Half of what a shard analyses at a time."""


@dataclass(eq=False)
class Write:
    """One batch, all or nothing: ids to remove, by namespace, then records to add."""

    removed: Mapping[str, Sequence[str]]
    added: Sequence[Record]
    missing_ok: bool
    schema: Schema
    ids: dict[str, list[str]] = field(init=False)
    """The records that it touches, by namespace."""
    ordered: list[Record] = field(default_factory=list)
    """Its records in the order in which one engine numbers them."""
    first: int = 0
    """The number of the first of these; the others follow."""
    count: int = 0
    """The number of records added; of records removed if none was added."""
    done: bool = False
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._groups = group_by_namespace(self.added)
        self.ids = {name: list(ids) for name, ids in self.removed.items()}
        for name, records in self._groups.items():
            own = [record.id for record in records]
            self.ids[name] = [*self.ids[name], *own] if name in self.ids else own

    @property
    def strict(self) -> bool | None:
        """Whether ids to remove that no live record has are an error; None where it removes none."""
        return not self.missing_ok if self.removed else None

    def shards(self, placement: Placement) -> frozenset[int]:
        """The shards that it concerns."""
        homes = frozenset([home for name in self.ids for home in placement.homes(name)])
        return homes if len(homes) == 1 else frozenset(placement.by_shard(self.ids))

    def asks_for_live(self, several: bool) -> bool:
        """Whether it must be known which of its records are live before any shard is asked.

        So several shards cannot differ, and what is removed alone is counted.
        """
        return several or bool(self.removed and (not self.added or len(self.ids) > 1))

    def check(self, several: bool, live: Mapping[str, Set[str]]) -> None:
        """Raise what an engine would refuse it by, where no shard does so before it is decided."""
        check_unnumbered(self.added)
        if not self.missing_ok and (several or not self.added):
            check_removed(self.removed, live)
        # One shard would name the first record of `ordered`, where an engine names the first of the batch.
        if several or (self.removed and len(self.ids) > 1):
            check_added(self.added, self.removed, live, self.schema)

    def put_in_order(self, live: Mapping[str, Set[str]]) -> int:
        """Order the records, as an engine does: namespace by namespace, first those from which the batch removes some.

        `live` are the records that are there before. Returns how many there are.
        """
        groups = self._groups
        first = [name for name, ids in self.removed.items() if not live.get(name, frozenset()).isdisjoint(ids)]
        names = dict.fromkeys((*first, *groups))
        self.ordered = [record for name in names for record in groups.get(name, ())]
        return len(self.ordered)

    def finish(self, live: Mapping[str, Set[str]]) -> None:
        """Take note that it is done. `live` are the records that were there before."""
        removed = ({*ids} & live.get(name, frozenset()) for name, ids in self.removed.items())
        self.count = len(self.added) or sum(map(len, removed))
        self.done = True

    def fail(self, error: BaseException) -> None:
        """Take note by what it failed."""
        self.error, self.done = error, True


def count_fitting(writes: Sequence[Write]) -> int:
    """How many of these, from the first on, can be carried out together."""
    touched: dict[str, set[str]] = {}
    records, strict = 0, None
    for place, write in enumerate(writes):
        records += len(write.added)
        differs = None not in (strict, write.strict) and strict != write.strict
        again = any(name in touched and not touched[name].isdisjoint(ids) for name, ids in write.ids.items())
        if place and (records > MOST or differs or again):
            return place
        for name, ids in write.ids.items():
            touched.setdefault(name, set()).update(ids)
        strict = write.strict if strict is None else strict
    return len(writes)


def is_refusal(error: FanrankError) -> bool:
    """Whether it is for what a batch says that a shard did not do it."""
    return not isinstance(error, (StorageError, ShardError, DeadlineError))
