"""`MovingCoordinator`: namespaces that change their shards, and shards that are added, while searches and writes go on.

A namespace is copied to its new shards page by page, as of one moment, in the order of its writes. Between two pages
others write, to the old home alone. What they wrote is done on the copy after the last page, so the copy has the order
of the original. Its shards hide it from all searches. Then writes are held off for what is left, and the next view
shows the copy and not the original. A search of an older view finds the original in the states that its shard keeps.

The switch is a decision: a crash before it leaves the old home, and one after it the new one. A shard keeps beside its
records which namespaces are being copied to it. So the next opening deletes copies that were not decided, and nothing
else.

Each change of shards needs a decision and a pause of all writes. So small namespaces go together, as many as make a
page.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...engine.errors import ForeignIndexError, ShardError
from ...engine.locks import FairLock, once
from ...engine.records.record import Record
from ...engine.storage.failpoints import reach
from ..coordinator.coordinator import Coordinator
from ..coordinator.learning import carry_learned
from ..processes.links import Link, UnavailableError, call_all
from ..processes.streams import Backfill, Records
from ..protocol.messages import Acknowledged, Part
from ..protocol.placement import chosen_part
from .balancing import is_outgrown

PAGE = 512
"""Records that are copied at a time. Writes wait meanwhile: 40 ms, and 325 ms with 4,096 at a time. The move of 50,000
records takes as long with both."""

BREATH = 0.001
"""Seconds between pages in which others get to write."""

TRIES = 3
"""Attempts at a move that shards interrupt by being started anew."""

Watch = Callable[[int], object]
"""Is told how many records were copied with each page."""


@dataclass(eq=False)
class Move:
    """Namespaces on their way to other shards."""

    before: Mapping[str, tuple[int, ...]]
    """The shards of each, in parts if they are several."""
    after: Mapping[str, tuple[int, ...]]
    records: Records
    """Those of the moment at which the move began."""
    done: bool = False

    @once
    def copying(self) -> Backfill:
        return Backfill(self.records, self.fresh, self._target)

    def _target(self, namespace: str, record_id: str) -> int | None:
        """Where a record goes; None: it stays in its part."""
        before, after = (
            homes[chosen_part(record_id, len(homes))] for homes in (self.before[namespace], self.after[namespace])
        )
        return None if before == after else after

    @once
    def fresh(self) -> dict[int, tuple[str, ...]]:
        """The shards that hold nothing of some of the namespaces before, and these namespaces."""
        return self._of(self.after, self.before)

    @once
    def left_behind(self) -> dict[int, tuple[str, ...]]:
        """The shards that hold nothing of some of the namespaces after it, and these namespaces."""
        return self._of(self.before, self.after)

    def _of(
        self, places: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]
    ) -> dict[int, tuple[str, ...]]:
        found: dict[int, list[str]] = {}
        for name, shards in places.items():
            for shard in shards:
                if shard not in others[name]:
                    found.setdefault(shard, []).append(name)
        return {shard: tuple(names) for shard, names in found.items()}

    @once
    def shards(self) -> set[int]:
        return {shard for places in (*self.before.values(), *self.after.values()) for shard in places}


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
        self._stale: set[Move] = set()  # those that were given up, and whose copies are still there

    def parts_of(self, namespace: str, parts: int) -> tuple[int, ...]:
        """So many shards for a namespace: its own, and those that follow the first of them."""
        homes, shards = self.placement.homes(namespace), self.placement.shards
        following = ((homes[0] + step) % shards for step in range(shards))
        return (*homes, *(shard for shard in following if shard not in homes))[:parts]

    def place(self, namespace: str, after: tuple[int, ...], watch: Watch = lambda copied: None) -> None:
        """As `place_all`, for one namespace."""
        self.place_all({namespace: after}, watch)

    def place_all(self, targets: Mapping[str, tuple[int, ...]], watch: Watch = lambda copied: None) -> None:
        """Bring the records of namespaces to these shards, in parts if they are several, while others write.

        Returns once all searches that begin find them there. A move that is interrupted by a shard that is started anew
        begins anew. Raises `ShardError`, and for a namespace that is on its way already.
        """
        for _ in range(TRIES):
            move = self._begin(targets)
            if move is None:
                return
            with closing(move.records):
                try:
                    while self._copy_page(move, watch):
                        time.sleep(BREATH)
                    if move.done:
                        return
                except UnavailableError:
                    self._give_up(move)
                except BaseException:
                    self._give_up(move)
                    raise
        what = f"namespace {min(targets)!r} was" if len(targets) == 1 else f"{len(targets)} namespaces were"
        raise ShardError(f"{what} not moved: a shard was started anew in each of {TRIES} attempts")

    def _begin(self, targets: Mapping[str, tuple[int, ...]]) -> Move | None:
        """Begin a move; None where all are there already."""
        self.placement.placed(targets)  # checks the numbers
        with self.holding(targets, {shard for after in targets.values() for shard in after}):
            going = {name: after for name, after in targets.items() if self.placement.homes(name) != after}
            before = {name: self.placement.homes(name) for name in going}
            for name, after in going.items():
                if name in self._moves:
                    raise ShardError(f"namespace {name!r} is being moved already; wait for the end of that")
                check_move(name, before[name], after)
            if not going:
                return None
            holders = [self.links[home] for home in sorted({home for homes in before.values() for home in homes})]
            move = Move(before, going, self._wait_for(lambda: Records(self.until, holders, [*going])))
            self._moves |= dict.fromkeys(going, move)
            return move

    def _copy_page(self, move: Move, watch: Watch) -> bool:
        """Copy the next page while nobody writes, and after the last one place the records; whether more is left."""
        with self.holding_shards(move.shards):
            if not self._is_current(move):
                return False
            while True:
                parts, copied = move.copying.next(self.page)
                self._apply_apart(parts)
                watch(copied)
                if move.copying.is_level:
                    self._switch(move)
                    return False
                if move.copying.is_far:
                    break
            # To a search that looks for lost shards the new shards would be ahead of the view.
            self.show(move.fresh, content=False)
        reach("move.page")
        return True

    def _is_current(self, move: Move) -> bool:
        """Whether the move was not given up meanwhile."""
        return self._moves.get(min(move.after)) is move

    def _switch(self, move: Move) -> None:
        """Let searches see the copy and not the original."""
        moving = [name for name in move.after if move.after[name][0] != move.before[name][0]]
        for target in {move.after[name][0] for name in moving}:
            carry_learned(self, [name for name in moving if move.after[name][0] == target], self.links[target])
        reach("move.copied")
        gone: dict[int, dict[str, list[str]]] = {}
        for name, after in move.after.items():
            for shard in after if len(after) > 1 else ():
                if shard in move.before[name]:
                    ids = self.links[shard].send("strangers", name, after).result(self.until())
                    gone[shard] = {name: ids} if ids else {}
        parts = {
            shard: Part(gone.get(shard, {}), drop=move.left_behind.get(shard, ()), show=move.fresh.get(shard, ()))
            for shard in {*move.fresh, *move.left_behind, *gone}
        }
        # From here on it is done or not, whatever happens.
        for name in move.after:
            del self._moves[name]
        try:
            shown = self.decide(parts, lambda before: before.placed(move.after))
        except BaseException:
            if any(self.placement.homes(name) == move.before[name] for name in move.after):
                self._moves |= dict.fromkeys(move.after, move)
            raise
        move.done = True
        self._uncounted |= move.after.keys()
        for name in move.after:
            self.tables.pop(name, None)
        if shown is not None:
            self.show(parts, content=False)
        self._count_those(self._held())

    def _give_up(self, move: Move) -> None:
        """Have the copies of a move deleted before the next change of several shards."""
        if self._is_current(move):
            self._stale.add(move)

    def _settle(self) -> None:
        # A write that is not known may have removed what the move took for kept.
        unknown = self._unknown.intersection(self._held())
        self._stale |= {move for move in list(self._moves.values()) if not unknown.isdisjoint(move.shards)}
        super()._settle()

    def _clear_copies(self) -> None:
        for move in list(self._stale):
            if self._is_current(move):
                if not self._held().issuperset(move.shards):
                    continue
                self._apply_apart({shard: Part(drop=names) for shard, names in move.fresh.items()})
                self.show(move.fresh, content=False)
                for name in move.after:
                    del self._moves[name]
            self._stale.discard(move)

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
        for move in {self._moves[name] for name in part.names if name in self._moves}:
            move.copying.note(part)

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
        # A copy is deleted with it where all shards are held. One of a move that begins meanwhile is deleted next.
        with self.paused() if namespace in self._moves else nullcontext():
            super().drop(namespace)

    def _give_up_move(self, namespace: str) -> None:
        if namespace in self._moves:
            self._give_up(self._moves[namespace])
            self._clear_copies()

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
