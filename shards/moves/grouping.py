"""`GroupingCoordinator`: many small namespaces go to other shards together.

Each change of shards needs a decision and a pause of all writes. So as many as make a page share them: their records
are one batch, which adds them to the new homes and removes them from the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ...engine.errors import ShardError
from ...engine.records.record import Record
from ...engine.storage.failpoints import reach
from ..coordinator.coordinator import Coordinator
from ..coordinator.learning import carry_learned
from ..processes.links import UnavailableError
from ..processes.pages import PageStream
from ..protocol.batches import Part

TRIES = 3
"""Attempts at a move that shards interrupt by being started anew."""

TOGETHER = 1_024
"""Namespaces that go together. Each costs a message of Ray, of which a second holds some thousands."""

SHELLS = 16
"""Emptied namespaces that are dropped at a time. Each is a transaction of its own, and writes wait meanwhile."""

GROWN = 16
"""Records that a namespace may have more than was known, and still go with others."""

Watch = Callable[[int], object]
"""Is told how many records were copied with each page."""


class GroupingCoordinator(Coordinator):
    """The coordinator whose small namespaces move together."""

    page: int
    """Records that are copied at a time."""

    def place_together(self, targets: Mapping[str, tuple[int, int]], watch: Watch = lambda copied: None) -> set[str]:
        """Bring namespaces, each whole, to other shards. `targets` are the shard and the records of each.

        Returns those that are too large to go with others, or are on their way already: they stay. A group whose move
        is interrupted by a shard that is started anew begins anew. Raises `ShardError`.
        """
        apart: set[str] = set()
        for group in self._groups(targets, apart):
            shells: dict[int, list[str]] = {}
            for _ in range(TRIES):
                try:
                    apart |= self._place_group(group, shells, watch)
                    break
                except UnavailableError:
                    pass
            else:
                raise ShardError(
                    f"{len(group)} namespaces were not moved: a shard was started anew in each of {TRIES} attempts"
                )
            self._drop_shells(shells)
        return apart

    def _groups(self, targets: Mapping[str, tuple[int, int]], apart: set[str]) -> Iterator[dict[str, tuple[int, int]]]:
        """The namespaces in groups of about a page. Larger ones are added to `apart`."""
        group: dict[str, tuple[int, int]] = {}
        size = 0
        for namespace, (target, records) in targets.items():
            if records > self.page:
                apart.add(namespace)
                continue
            if size + records > self.page or len(group) == TOGETHER:
                yield group
                group, size = {}, 0
            group[namespace] = target, records
            size += records
        if group:
            yield group

    def _place_group(
        self, group: Mapping[str, tuple[int, int]], shells: dict[int, list[str]], watch: Watch
    ) -> set[str]:
        """Move a group while nobody writes; the namespaces of it that have to go by themselves.

        Adds to `shells` what is left empty in the old homes.
        """
        with self.holding(group, {target for target, _ in group.values()}):
            going = {name: target for name, (target, _) in group.items() if self.placement.homes(name) != (target,)}
            apart = {name for name in going if self._is_moving(name) or name in self.placement.split}
            taken: dict[str, list[Record]] = {name: [] for name in going if name not in apart}
            homes: dict[int, list[str]] = {}
            for name in taken:
                homes.setdefault(self.placement.home(name), []).append(name)
            for home, names in homes.items():
                stream = PageStream(names, sum(2 * group[name][1] + GROWN for name in names))
                for _, record in stream.read([self.links[home]], self.until()):
                    taken[record.namespace].append(record)
                if stream.more:
                    # From the one on that has grown, they are copied by themselves.
                    apart |= {name for name in names if name >= stream.place[0]}
            taken = {name: records for name, records in taken.items() if name not in apart}
            if not taken:
                return apart
            added: dict[int, list[Record]] = {}
            removed: dict[int, dict[str, list[str]]] = {}
            for name, records in taken.items():
                before = self.placement.home(name)
                added.setdefault(going[name], []).extend(records)
                removed.setdefault(before, {})[name] = [record.id for record in records]
                shells.setdefault(before, []).append(name)
            for after in added:
                carry_learned(self, [name for name in taken if going[name] == after], self.links[after])
            reach("move.copied")
            shards = {*added, *removed}
            parts = {shard: Part(removed.get(shard, {}), added.get(shard, ())) for shard in shards}
            placed = {name: going[name] for name in taken}
            if self.decide(parts, lambda before: before.all_placed(placed)) is not None:
                self.show(shards, content=False)
            watch(sum(map(len, taken.values())))
            return apart

    def _drop_shells(self, shells: Mapping[int, list[str]]) -> None:
        """Drop emptied namespaces, some at a time. One that is left by a crash holds nothing."""
        for shard, names in shells.items():
            for start in range(0, len(names), SHELLS):
                self._wait_for(partial(self._drop_some, shard, names[start : start + SHELLS]))

    def _drop_some(self, shard: int, names: Sequence[str]) -> None:
        with self.holding_shards({shard}):
            # One that has come back meanwhile, or is about to, is no shell.
            kept = {name for name in names if shard in self.placement.homes(name) or self._is_moving(name)}
            gone = tuple(name for name in names if name not in kept)
            if gone:
                self._apply_apart({shard: Part(drop=gone)})
                self.show([shard], content=False)

    def _is_moving(self, namespace: str) -> bool:
        """Whether the namespace is on its way to other shards, page by page (`moves/moves.py`)."""
        return False
