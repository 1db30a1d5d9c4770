"""`MovingCoordinator`: namespaces that change their shards, and shards that are added, while searches and writes go on.

A namespace is copied to its new shards page by page, as of one moment, in the order of its writes. Between two pages
others write, to the old home alone. What they wrote is done on the copy after the last page, so the copy has the order
of the original. Its shards hide it from all searches. Then writes are held off for what is left, and the next view
shows the copy and not the original. A search of an older view finds the original in the states that its shard keeps.

The switch is a decision: a crash before it leaves the old home, and one after it the new one. A shard keeps beside its
records which namespaces are being copied to it. So the next opening deletes copies that were not decided, and nothing
else.

Each change of shards needs a decision and a pause of all writes. So small namespaces go together, as many as make a
page: their records are one batch, which adds them to the new homes and removes them from the old ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any

from ...engine.errors import ForeignIndexError, ShardError
from ...engine.locks import FairLock
from ...engine.records.record import Record
from ...engine.storage.failpoints import reach
from ..coordinator.coordinator import Coordinator
from ..coordinator.learning import carry_learned
from ..processes.links import Link, UnavailableError, call_all
from ..processes.streams import Records
from ..protocol.messages import Acknowledged, Part
from ..protocol.order import Numbered
from ..protocol.placement import chosen_part
from .balancing import is_outgrown

PAGE = 512
"""Records that are copied at a time. Writes wait meanwhile: 40 ms, and 325 ms with 4,096 at a time. The move of 50,000
records takes as long with both."""

BREATH = 0.001
"""Seconds between pages in which others get to write."""


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


@dataclass(eq=False)
class Move:
    """A namespace on its way to other shards."""

    namespace: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    stream: Records
    """Those of the moment at which it began."""
    left: Iterator[Numbered]
    """What is to be copied next."""
    large: bool
    """Whether others write between its pages."""
    written: dict[str, Numbered | None] = field(default_factory=dict)
    """What was written since then: the last record with an id; None where it was removed."""

    @property
    def fresh(self) -> list[int]:
        """The shards that hold nothing of the namespace before."""
        return [shard for shard in self.after if shard not in self.before]

    @property
    def shards(self) -> set[int]:
        return {*self.before, *self.after}

    def source(self, record_id: str) -> int:
        """The shard that a record comes from."""
        return self.before[chosen_part(record_id, len(self.before))]

    def target(self, record_id: str) -> int:
        """The shard that a record goes to."""
        return self.after[chosen_part(record_id, len(self.after))]


def check_move(namespace: str, before: Sequence[int], after: Sequence[int]) -> None:
    """Raise `ShardError` where a record would go to a shard that holds others of its namespace already.

    It would come behind them there, and the order of equal scores would be another one.
    """
    possible = len(before) == 1 or len(after) >= len(before)
    for part, shard in enumerate(after):
        # A part keeps its records but for those that go to added parts.
        sources = {before[part]} if part < len(before) else {*before}
        if len(before) > 1 and shard in before and sources != {shard}:
            possible = False
    if not possible:
        raise ShardError(
            f"namespace {namespace!r} is split over shards {list(before)}, and cannot go to {list(after)}: its parts "
            "may go to other shards, and further parts be added, where none is"
        )


class MovingCoordinator(Coordinator):
    """The coordinator whose namespaces move."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.page = PAGE
        self.outgrown: set[str] = set()
        """The namespaces of which a shard holds more than it is to hold."""
        self._moves: dict[str, Move] = {}
        self._stale: set[str] = set()  # those of them that were given up, and whose copies are still there

    def place_together(self, targets: Mapping[str, tuple[int, int]], watch: Watch = lambda copied: None) -> set[str]:
        """Bring namespaces, each whole, to other shards. `targets` are the shard and the records of each.

        Returns those that are too large to go with others, or are on their way already: they stay. A group whose move
        is interrupted by a shard that is started anew begins anew. Raises `ShardError`.
        """
        apart: set[str] = set()
        for group in self._groups(targets, apart):
            shells: dict[int, list[str]] = {}
            for _ in range(TRIES):
                with suppress(UnavailableError):
                    apart |= self._place_group(group, shells, watch)
                    break
            else:
                raise given_up(f"{len(group)} namespaces were not moved")
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
            apart = {name for name in going if name in self._moves or name in self.placement.split}
            taken: dict[str, list[Numbered]] = {name: [] for name in going if name not in apart}
            homes: dict[int, list[str]] = {}
            for name in taken:
                homes.setdefault(self.placement.home(name), []).append(name)
            for home, names in homes.items():
                most = sum(2 * group[name][1] + GROWN for name in names)
                with closing(Records(self.until, [self.links[home]], names)) as stream:
                    for place, each in enumerate(stream):
                        if place == most:
                            # From the one on that has grown, they are copied by themselves.
                            apart |= {name for name in names if name >= each[1].namespace}
                            break
                        taken[each[1].namespace].append(each)
            taken = {name: records for name, records in taken.items() if name not in apart}
            if not taken:
                return apart
            added: dict[int, list[Numbered]] = {}
            removed: dict[int, dict[str, list[str]]] = {}
            for name, records in taken.items():
                before = self.placement.home(name)
                added.setdefault(going[name], []).extend(records)
                removed.setdefault(before, {})[name] = [record.id for _, record in records]
                shells.setdefault(before, []).append(name)
            for after in added:
                carry_learned(self, [name for name in taken if going[name] == after], self.links[after])
            reach("move.copied")
            shards = {*added, *removed}
            parts = {shard: Part.of(added.get(shard, ()), removed.get(shard)) for shard in shards}
            placed = {name: (going[name],) for name in taken}
            if self.decide(parts, lambda before: before.placed(placed)) is not None:
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
            kept = {name for name in names if shard in self.placement.homes(name) or name in self._moves}
            gone = tuple(name for name in names if name not in kept)
            if gone:
                self._apply_apart({shard: Part(drop=gone)})
                self.show([shard], content=False)

    def parts_of(self, namespace: str, parts: int) -> tuple[int, ...]:
        """So many shards for a namespace: its own, and those that follow the first of them."""
        homes, shards = self.placement.homes(namespace), self.placement.shards
        following = ((homes[0] + step) % shards for step in range(shards))
        return (*homes, *(shard for shard in following if shard not in homes))[:parts]

    def place(self, namespace: str, after: tuple[int, ...], watch: Watch = lambda copied: None) -> None:
        """Bring the records of a namespace to these shards, in parts if they are several, while others write.

        Returns once all searches that begin find them there. A move that is interrupted by a shard that is started anew
        begins anew. Raises `ShardError`, and for a namespace that is on its way already.
        """
        for _ in range(TRIES):
            move = self._begin(namespace, after)
            if move is None:
                return
            with closing(move.stream):
                try:
                    while self._copy_page(move, watch):
                        time.sleep(BREATH)
                    if self._switch(move, watch):
                        return
                except UnavailableError:
                    self._give_up(move)
                except BaseException:
                    self._give_up(move)
                    raise
        raise given_up(f"namespace {namespace!r} was not moved")

    def _begin(self, namespace: str, after: tuple[int, ...]) -> Move | None:
        """Begin a move; None where the namespace is there already."""
        self.placement.placed({namespace: after})  # checks the numbers
        with self.holding([namespace], after):
            if namespace in self._moves:
                raise ShardError(f"namespace {namespace!r} is being moved already; wait for the end of that")
            before = self.placement.homes(namespace)
            if before == after:
                return None
            check_move(namespace, before, after)
            holders = [self.links[home] for home in before]
            sizes = self._wait_for(partial(self._holdings, holders, namespace))
            large = sum(own[namespace][0] for own in sizes.values() if namespace in own) > self.page
            stream = self._wait_for(lambda: Records(self.until, holders, [namespace]))
            self._moves[namespace] = move = Move(namespace, before, after, stream, iter(stream), large)
            return move

    def _copy_page(self, move: Move, watch: Watch) -> bool:
        """Copy the next page while nobody writes; whether more than a page may be left."""
        if not move.large:
            return False
        with self.holding_shards(move.shards):
            more = self._is_current(move) and self._copy(move, watch)
            # To a search that looks for lost shards the new shards would be ahead of the view.
            self.show(move.fresh, content=False)
        reach("move.page")
        return more

    def _is_current(self, move: Move) -> bool:
        """Whether the move was not given up meanwhile."""
        return self._moves.get(move.namespace) is move

    def _copy(self, move: Move, watch: Watch) -> bool:
        """Copy the next page; whether more than a page may be left."""
        namespace = move.namespace
        removed, added = dict[int, list[str]](), dict[int, list[Numbered]]()
        records = list(islice(move.left, self.page))
        if not records:
            # What was written meanwhile comes next.
            written, move.written = move.written, {}
            for record_id in written:
                removed.setdefault(move.target(record_id), []).append(record_id)
            move.left = iter(sorted((each for each in written.values() if each is not None), key=itemgetter(0)))
            records = list(islice(move.left, self.page))
        for each in records:
            record_id = each[1].id
            target = move.target(record_id)
            if target != move.source(record_id) and record_id not in move.written:
                added.setdefault(target, []).append(each)
        gone = {shard: {namespace: ids} for shard, ids in removed.items()}
        parts = {shard: Part.of(added.get(shard, ()), gone.get(shard), hide=namespace) for shard in move.fresh}
        self._apply_apart(parts)
        watch(len(records))
        return len(records) == self.page or len(move.written) > self.page

    def _switch(self, move: Move, watch: Watch) -> bool:
        """Copy what is left, and let searches see the copy and not the original; False where it was given up."""
        namespace = move.namespace
        with self.holding_shards(move.shards):
            if not self._is_current(move):
                return False
            while self._copy(move, watch) or move.written:
                pass
            if move.after[0] != move.before[0]:
                carry_learned(self, [namespace], self.links[move.after[0]])
            reach("move.copied")
            parts = {shard: Part(show=namespace) for shard in move.fresh}
            for shard in move.before:
                if shard not in move.after:
                    parts[shard] = Part(drop=(namespace,))
                elif len(move.after) > 1:
                    gone = self.links[shard].send("strangers", namespace, move.after).result(self.until())
                    parts[shard] = Part({namespace: gone} if gone else {})
            # From here on it is done or not, whatever happens.
            del self._moves[namespace]
            try:
                done = self.decide(parts, lambda before: before.placed({namespace: move.after}))
            except BaseException:
                if self.placement.homes(namespace) == move.before:
                    self._moves[namespace] = move
                raise
            self._uncounted.add(namespace)
            self.tables.pop(namespace, None)
            if done is not None:
                self.show(parts, content=False)
            self._count_those(self._held())
            return True

    def _give_up(self, move: Move) -> None:
        """Have the copies of a move deleted before the next change of several shards."""
        if self._is_current(move):
            self._stale.add(move.namespace)

    def _settle(self) -> None:
        # A write that is not known may have removed what the move took for kept.
        unknown = self._unknown.intersection(self._held())
        self._stale |= {name for name, move in list(self._moves.items()) if not unknown.isdisjoint(move.shards)}
        super()._settle()

    def _clear_copies(self) -> None:
        for namespace in sorted(self._stale):
            move = self._moves.get(namespace)
            if move is not None:
                if not self._held().issuperset(move.shards):
                    continue
                self._apply_apart(dict.fromkeys(move.fresh, Part(drop=(namespace,))))
                self.show(move.fresh, content=False)
                del self._moves[namespace]
            self._stale.discard(namespace)

    def moving(self) -> list[str]:
        """The namespaces that are on their way, sorted."""
        return sorted(self._moves)

    def _make_room(self, added: Sequence[Record]) -> None:
        if len(added) > self.placement.split_at:
            self.make_room(Counter(record.namespace for record in added))

    def make_room(self, sizes: Mapping[str, int]) -> None:
        """Split namespaces that begin with more records than a shard is to hold of them."""
        placement = self.placement
        large = {name: size for name, size in sizes.items() if size > placement.split_at}
        if not large or placement.shards == 1 or 0 < len(self._held()) < len(self.links):
            return
        with self.paused():
            for namespace, size in large.items():
                homes = self.placement.homes(namespace)
                if len(homes) > 1 or namespace in self._moves:
                    continue
                (held,) = self._wait_for(partial(self._holdings, [self.links[homes[0]]], namespace)).values()
                if not held:
                    parts = min(-(-size // placement.split_at), placement.shards)
                    self.place(namespace, self.parts_of(namespace, parts))

    def _holdings(self, links: Sequence[Link], *namespace: str) -> dict[int, dict[str, tuple[int, int]]]:
        return call_all(links, self.until(), "holdings", *namespace)

    def _update_copies(self, part: Part) -> None:
        super()._update_copies(part)
        if self._moves.keys().isdisjoint(part.names):
            return
        for namespace, ids in part.removed.items():
            if namespace in self._moves:
                self._moves[namespace].written |= dict.fromkeys(ids)
        for each in part.numbered:
            if each[1].namespace in self._moves:
                self._moves[each[1].namespace].written[each[1].id] = each

    def _publish(self, acknowledged: Mapping[int, Acknowledged]) -> None:
        super()._publish(acknowledged)
        for namespace, size in [pair for each in acknowledged.values() for pair in each.sizes.items()]:
            if is_outgrown(size, self.placement.homes(namespace), self.placement):
                self.outgrown.add(namespace)

    def holdings(self) -> dict[int, dict[str, tuple[int, int]]]:
        """(records, bytes) of each namespace in each shard. Waits for shards that are started anew."""
        with self.paused():
            return self._wait_for(partial(self._holdings, self.links))

    def lags(self) -> list[int]:
        """By shard: writes that were sent to it, and that it has not acknowledged."""
        waiting = self._unknown.union(*(decision.parts for decision in list(self._open)))
        return [int(link.number in waiting) for link in self.links]

    def drop(self, namespace: str) -> None:
        if namespace not in self._moves:
            super().drop(namespace)
            return
        with self.paused():
            if namespace in self._moves:
                self._give_up(self._moves[namespace])
                self._clear_copies()
            super().drop(namespace)

    def forget_setting(self, name: str) -> None:
        """Keep a setting no longer that stands beside the placement."""
        with self.paused():
            owner = self.owner
            owner.keep(owner.placement, {key: value for key, value in owner.settings.items() if key != name})

    def extend(self, links: Sequence[Link], stores: Sequence[str | None]) -> None:
        """Add shards, which are empty. All records stay where they are. Raises `ForeignIndexError`."""
        with self.paused():
            held = self._holdings(links)
            for number, own in held.items():
                if own:
                    raise ForeignIndexError(
                        f"the directory of shard {number} holds records, and no table names it; move it away"
                    )
            number = self._next()
            call_all(links, self.until(), "tag", number)
            self._acknowledged |= {link.number: number for link in links}
            reach("shards.started")
            # Also a namespace whose records have all expired keeps its home.
            present = self._holdings(self.links)
            names = {name for own in present.values() for name in own}
            settings = {**self.owner.settings, "stores": [*self.owner.settings.get("stores", ()), *stores]}
            before, self.links = self.links, [*self.links, *links]
            self._locks.extend(FairLock() for _ in links)
            parts = {link.number: Part() for link in self.links}
            try:
                self.decide(parts, lambda before: before.extended(len(links), names), settings)
            except BaseException:
                if self.placement.shards == len(before):
                    self.links = before
                    for link in links:
                        self._unknown.discard(link.number)
                        for decision in self._open:
                            decision.parts.pop(link.number, None)
                raise
            reach("shards.added")
            self.show(parts, content=False)


def given_up(what: str) -> ShardError:
    """The error after the last attempt at a move."""
    return ShardError(f"{what}: a shard was started anew in each of {TRIES} attempts")
