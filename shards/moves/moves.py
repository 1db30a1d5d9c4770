"""`MovingCoordinator`: namespaces that change their shards, and shards that are added, while searches and writes go on.

A namespace is copied to its new shards page by page, in the order of its writes. Between two pages others write, to the
old home alone: what they add is copied with later pages, as it stands at the end of the order, and what they remove is
removed from the copy with the next page. So the copy has the order of the original. Its shards hide it from all
searches. Then writes are held off for the last page, the table of placement is replaced, and the next epoch shows the
copy and not the original. A search of an older epoch finds the original in the states that its shard keeps.

A crash before the table is replaced leaves the old home, and one after it the new one. The table marks what is being
copied, and an intent what is being replaced, so that the next opening deletes what the table has elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...engine.errors import FanrankError, ForeignIndexError, ShardError
from ...engine.records.record import Record
from ...engine.storage.failpoints import reach
from ..coordinator.coordinator import View
from ..coordinator.intents import Intent, Moved
from ..coordinator.learning import carry_learned
from ..processes.links import Link, UnavailableError, call_all
from ..protocol.batches import Batch
from ..protocol.messages import Acknowledged
from ..protocol.order import number_of
from ..protocol.placement import Placement, chosen_part
from ..shard.copying import Page
from .balancing import is_outgrown
from .grouping import TRIES, GroupingCoordinator, Watch

PAGE = 512
"""Records that are copied at a time. Writes wait meanwhile: 40 ms, and 325 ms with 4,096 at a time. The move of 50,000
records takes as long with both."""

BREATH = 0.001
"""Seconds between pages in which others get to write."""


@dataclass(eq=False)
class Move:
    """A namespace on its way to other shards."""

    namespace: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    last: int = -1
    """The number of the last write that was copied."""
    removed: dict[str, None] = field(default_factory=dict)
    """The ids that were removed since the last page."""
    marked: bool = False

    @property
    def fresh(self) -> list[int]:
        """The shards that hold nothing of the namespace before."""
        return [shard for shard in self.after if shard not in self.before]

    @property
    def shards(self) -> set[int]:
        return {*self.before, *self.after}

    def target(self, record_id: str) -> int:
        """The shard that a record goes to."""
        return self.after[chosen_part(record_id, len(self.after))]

    def check(self) -> None:
        """Raise `ShardError` where a record would go to a shard that holds others of its namespace already.

        It would come behind them there, and the order of equal scores would be another one.
        """
        possible = len(self.before) == 1 or len(self.after) >= len(self.before)
        for part, shard in enumerate(self.after):
            # A part keeps its records but for those that go to added parts.
            sources = {self.before[part]} if part < len(self.before) else {*self.before}
            if len(self.before) > 1 and shard in self.before and sources != {shard}:
                possible = False
        if not possible:
            raise ShardError(
                f"namespace {self.namespace!r} is split over shards {list(self.before)}, and cannot go to "
                f"{list(self.after)}: its parts may go to other shards, and further parts be added, where none is"
            )


class MovingCoordinator(GroupingCoordinator):
    """The coordinator whose namespaces move."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.page = PAGE
        self.outgrown: set[str] = set()
        """The namespaces of which a shard holds more than it is to hold."""
        self._moves: dict[str, Move] = {}
        self._stale: set[str] = set()  # those of them that were given up, and whose copies are still there

    def parts_of(self, namespace: str, parts: int) -> tuple[int, ...]:
        """So many shards for a namespace: its own one, and those that follow."""
        home, shards = self.placement.homes(namespace)[0], self.placement.shards
        return tuple((home + step) % shards for step in range(parts))

    def place(self, namespace: str, after: tuple[int, ...], watch: Watch = lambda copied: None) -> None:
        """Bring the records of a namespace to these shards, in parts if they are several, while others write.

        Returns once all searches that begin find them there. A move that is interrupted by a shard that is started anew
        begins anew. Raises `ShardError`, and for a namespace that is on its way already.
        """
        for _ in range(TRIES):
            move = self._begin(namespace, after)
            if move is None:
                return
            try:
                while self._copy_page(move, watch):
                    time.sleep(BREATH)
                if self._finish(move, watch):
                    return
            except UnavailableError:
                self._give_up(move)
            except BaseException:
                self._give_up(move)
                raise
        raise ShardError(f"namespace {namespace!r} was not moved: a shard was started anew in each of {TRIES} attempts")

    def _begin(self, namespace: str, after: tuple[int, ...]) -> Move | None:
        """Begin a move; None where the namespace is there already."""
        with self.paused():
            if namespace in self._moves:
                raise ShardError(f"namespace {namespace!r} is being moved already; wait for the end of that")
            move = Move(namespace, self.placement.homes(namespace), after)
            if move.before == after:
                return None
            self.placement.placed(namespace, after)  # checks the numbers
            move.check()
            holders = [self.links[home] for home in move.before]
            sizes = self._wait_for(lambda: call_all(holders, self.until(), "holdings", namespace))
            if sum(own[namespace][0] for own in sizes.values() if namespace in own) > self.page:
                # What a crash leaves of copies is found by the mark. Smaller ones are copied under their intent.
                self._place(self.placement.marked(namespace, after))
                move.marked = True
                reach("move.marked")
            self._moves[namespace] = move
            return move

    def _copy_page(self, move: Move, watch: Watch) -> bool:
        """Copy the next page while nobody writes; whether more than a page may be left."""
        if not move.marked:
            return False
        with self.paused():
            more = self._is_current(move) and self._copy(move, watch)
            # The new shards are at the page's number. To a search that looks for lost shards they would be ahead of it.
            self.view = View(self._number, self.view.placement, self.view.content)
        reach("move.page")
        return more

    def _is_moving(self, namespace: str) -> bool:
        return namespace in self._moves

    def _is_current(self, move: Move) -> bool:
        """Whether the move was not given up meanwhile."""
        return self._moves.get(move.namespace) is move

    def _copy(self, move: Move, watch: Watch) -> bool:
        """Copy the next page; whether more may follow."""
        namespace = move.namespace
        pages: dict[int, Page] = call_all(
            [self.links[home] for home in move.before], self.until(), "page_after", namespace, move.last, self.page
        )
        # Records of several shards are copied in one order, as far as all of them are known.
        open_ends = [page.last for page in pages.values() if page.last is not None]
        bound = min(open_ends, default=None)
        records = sorted(
            (
                (number_of(record), home, record)
                for home, page in pages.items()
                for record in page.records
                if bound is None or number_of(record) <= bound
            ),
            key=lambda each: each[0],
        )
        removed, added = dict[int, list[str]](), dict[int, list[Record]]()
        for record_id in move.removed:
            removed.setdefault(move.target(record_id), []).append(record_id)
        for _, home, record in records:
            target = move.target(record.id)
            if target != home:
                added.setdefault(target, []).append(record)
        batches = {
            shard: Batch({namespace: removed[shard]} if shard in removed else {}, added.get(shard, ()))
            for shard in move.fresh
        }
        self._apply_apart(batches, hide=namespace)
        move.removed.clear()
        move.last = bound if bound is not None else max([move.last, *(number for number, _, _ in records)])
        watch(len(records))
        return bound is not None

    def _finish(self, move: Move, watch: Watch) -> bool:
        """Copy what is left, and let searches see the copy and not the original; False where it was given up."""
        namespace = move.namespace
        with self.paused():
            if not self._is_current(move):
                return False
            intent = Intent(moves=(Moved(namespace, move.before, move.after),))
            self._intend(intent)
            while self._copy(move, watch):
                pass
            if move.after[0] != move.before[0]:
                carry_learned(self, [namespace], self.links[move.after[0]])
            reach("move.copied")
            self._place(self.placement.placed(namespace, move.after))
            reach("move.placed")
            self._apply_apart(dict.fromkeys(move.fresh, Batch()), show=namespace)
            reach("move.shown")
            self._finish_move(intent)
            self._drop_intent()
            self._count([namespace])
            del self._moves[namespace]
            self.view = View(self._number, self.placement, self.view.content)
            return True

    def _give_up(self, move: Move) -> None:
        """Have the copies of a move deleted before the next write."""
        with self._writing:
            if self._is_current(move):
                self._doubtful |= move.shards

    def _settle(self) -> None:
        # A write in doubt may have removed what the move took for kept.
        self._stale |= {name for name, move in self._moves.items() if not self._doubtful.isdisjoint(move.shards)}
        super()._settle()

    def _clear_copies(self) -> None:
        left = {namespace for namespace in self.placement.moving if namespace not in self._moves}
        for namespace in sorted(left | self._stale):
            homes = self.placement.homes(namespace)
            known = self._moves.get(namespace) or Move(namespace, homes, self.placement.moving[namespace])
            self._apply_apart({shard: Batch() for shard in known.fresh if shard in homes}, show=namespace)
            self._apply_apart({shard: Batch() for shard in known.fresh if shard not in homes}, drop=namespace)
            if namespace in self.placement.moving:
                self._place(self.placement.marked(namespace, ()))
            self._moves.pop(namespace, None)
            self._stale.discard(namespace)

    def _make_room(self, added: Sequence[Record]) -> None:
        """Split a namespace that begins with more records than a shard is to hold of it."""
        placement = self.placement
        if len(added) <= placement.split_at or placement.shards == 1:
            return
        sizes: dict[str, int] = {}
        for record in added:
            sizes[record.namespace] = sizes.get(record.namespace, 0) + 1
        for namespace, size in sizes.items():
            homes = placement.homes(namespace)
            if size <= placement.split_at or len(homes) > 1 or namespace in self._moves:
                continue
            (held,) = call_all([self.links[homes[0]]], self.until(), "holdings", namespace).values()
            if not held:
                parts = min(-(-size // placement.split_at), placement.shards)
                self.place(namespace, self.parts_of(namespace, parts))

    def _update_copies(self, removed: Mapping[str, Sequence[str]], added: Sequence[Record]) -> None:
        super()._update_copies(removed, added)
        for namespace, ids in removed.items():
            if namespace in self._moves:
                self._moves[namespace].removed |= dict.fromkeys(ids)

    def _publish(self, acknowledged: Iterable[Acknowledged]) -> None:
        answers = list(acknowledged)
        super()._publish(answers)
        for namespace, size in [pair for each in answers for pair in each.sizes.items()]:
            if is_outgrown(size, self.placement.homes(namespace), self.placement):
                self.outgrown.add(namespace)

    def holdings(self) -> dict[int, dict[str, tuple[int, int]]]:
        """(records, bytes) of each namespace in each shard. Waits for shards that are started anew."""
        with self.paused():
            return self._wait_for(lambda: call_all(self.links, self.until(), "holdings"))

    def lags(self) -> list[int]:
        """By shard: writes that were sent to it, and that it has not acknowledged."""
        return [int(link.number in self._doubtful) for link in self.links]

    def drop(self, namespace: str) -> None:
        with self.paused():
            if namespace in self._moves:
                self._give_up(self._moves[namespace])
            super().drop(namespace)

    def forget_setting(self, name: str) -> None:
        """Keep a setting no longer that stands beside the table."""
        with self.paused():
            self.settings = {key: value for key, value in self.settings.items() if key != name}
            self._place(self.placement)

    def extend(self, links: Sequence[Link], stores: Sequence[str | None]) -> None:
        """Add shards, which are empty. All records stay where they are. Raises `ForeignIndexError`."""
        with self.paused():
            held = call_all(links, self.until(), "holdings")
            for number, own in held.items():
                if own:
                    raise ForeignIndexError(
                        f"the directory of shard {number} holds records, and no table names it; move it away"
                    )
            self._number += 1
            call_all(links, self.until(), "tag", self._number)
            reach("shards.started")
            # Also a namespace whose records have all expired keeps its home.
            present = call_all(self.links, self.until(), "holdings")
            names = {name for own in present.values() for name in own}
            settings = {**self.settings, "stores": [*self.settings.get("stores", ()), *stores]}
            placement: Placement = self.placement.extended(len(links), names)
            self.settings, before = settings, self.settings
            try:
                self._place(placement)
            except FanrankError:
                self.settings = before
                raise
            reach("shards.added")
            self.links = [*self.links, *links]
            self.view = View(self._number, placement, self.view.content)
