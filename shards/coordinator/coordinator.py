"""`Coordinator`: what is written to the shards, in which order, and what readers may see of it.

Each shard has a lock, which goes to the writer that has waited longest, and an epoch: the number of its last write that
searches see. A search reads one view: the epochs of all shards at one moment. A write of one shard is known by that
shard alone. One that concerns several is a decision (`protocol/owner.py`): they prepare it, the owner's file decides
it, they carry it out, and one view shows it. So it is in all of them or in none.

What is not known of a shard, as it ended or did not answer, is found out before the next write to it. Writes to others
go on meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from ...engine.errors import DeadlineError, FanrankError, ShardError, StorageError
from ...engine.index.columns import Schema
from ...engine.locks import FairLock, Take, WriteQueue, make_short_lock
from ...engine.records.record import Record
from ...engine.storage.failpoints import reach
from ..processes.links import Link, UnavailableError, call_all, collect
from ..protocol.messages import Acknowledged, Part, divide
from ..protocol.order import LIMIT
from ..protocol.owner import OwnerFile
from ..protocol.statistics import Counts, Table
from ..replicas.whole_copies import WholeCopies
from .deciding import WAITED, Deciding, View
from .writes import Write, count_fitting, is_refusal

KEPT = 100_000
"""Namespaces whose last writes are remembered. Others count as written at the last write that was forgotten."""


class Coordinator(Deciding):
    """Writes to the shards of one memory. Of each shard one write is under way at a time; any number of searches are.

    `deadline` is how many seconds a shard has for an answer.
    """

    def __init__(
        self,
        owner: OwnerFile,
        links: Sequence[Link],
        wholes: Sequence[WholeCopies],
        fields: int,
        deadline: float,
    ) -> None:
        super().__init__(owner, links, deadline)
        self.wholes = {whole.number: whole for whole in wholes}
        """The whole copies, by the number of their shard."""
        self._fields = fields
        self._next_order = 0
        self._uncounted: set[str] = set()
        self.changes = Changes()
        self._writes = WriteQueue[Write]()
        self._copying = FairLock()  # of whole copies, which take writes in the order of their numbers

    def start(self, next_order: int, *, expiring: bool = False, until: float | None = None) -> None:
        """Show all shards as they are, and count the split namespaces. `until` is when it must be done."""
        with self._bounded(until):
            self._next_order = next_order
            self.expiring = expiring
            self._unknown = {link.number for link in self.links}
            with self.paused():
                pass

    @contextmanager
    def reading(self) -> Iterator[View]:
        """The view of a search. Shards keep its epochs until the search ends."""
        with self._counting:
            view = self.view
            self._read[view] = self._read.get(view, 0) + 1
        try:
            yield view
        finally:
            with self._counting:
                self._read[view] -= 1
                if not self._read[view]:
                    del self._read[view]

    def recover(self, until: float | None = None, shards: Iterable[int] | None = None) -> None:
        """Bring shards that were started anew, or of which something is not known, back to the others (None: all)."""
        asked = {*range(len(self.links))} if shards is None else {shard for shard in shards if shard >= 0}
        with self._bounded(until), self.holding_shards(asked, settled=False):
            self._wait_for(lambda: self._find_restarted(asked))
            self._wait_for(self._settle)

    def _find_restarted(self, shards: set[int]) -> None:
        # A shard that does not answer yet is found when it does.
        sent = {shard: self.links[shard].send("newest") for shard in shards}
        known = collect(sent, self.until(), missing=set())
        # One that is ahead of the view holds what was never published.
        self._unknown |= {shard for shard, epoch in known.items() if epoch is None or epoch > self.view.at(shard)}
        with self._counting:
            self._number = max([self._number, *(epoch for epoch in known.values() if epoch is not None)])
        with self._copying:
            for whole in self.wholes.values():
                whole.clear_restarted(self.until())

    def write(
        self,
        schema: Schema,
        *,
        removed: Mapping[str, Sequence[str]] | None = None,
        added: Sequence[Record] = (),
        missing_ok: bool = False,
    ) -> int:
        """Apply one batch, all or nothing, as `Storage.write`. Returns once it is durable and searches see it.

        What waits for the same shards meanwhile is carried out together.
        """
        write = Write(removed or {}, added, missing_ok, schema)
        with self._bounded():
            self._make_room(added)
            if self._held():
                self._write_alone(write)
            else:
                line = frozenset(self._shards_of(write.ids))
                if not self._writes.carry_out(write, partial(self._lead, line), line, self.until()):
                    raise DeadlineError(WAITED)
        if write.error is not None:
            raise write.error
        return write.count

    def _write_alone(self, write: Write) -> None:
        with self.holding(write.ids), self._copying_of(write.ids):
            self._write_group([write])

    def _lead(self, line: frozenset[int], take: Take[Write]) -> None:
        """Carry out what waits for these shards."""
        taken: list[Write] = []
        try:
            with self.holding_shards({*line}):
                taken = take(count_fitting)
                # A namespace may have moved while its write waited.
                here = [write for write in taken if self._shards_of(write.ids) <= line]
                with self._copying_of({name for write in here for name in write.ids}):
                    self._write_group(here)
            for write in taken:
                if not write.done:
                    self._write_alone(write)
        except FanrankError as error:
            if not taken:
                raise
            for write in taken:
                if not write.done:
                    write.fail(error)
        finally:
            for write in taken:
                if not write.done:
                    write.fail(ShardError("the thread that wrote it was interrupted; whether it was done is found out"))

    def _write_group(self, writes: Sequence[Write]) -> None:
        """Carry out writes that touch different records of shards that this thread holds.

        They are numbered in their order. Where one concerns several shards all are one decision, else those of each
        shard are one write of that shard.
        """
        shards = {write: write.shards(self.placement) for write in writes}
        several = any(len(own) > 1 for own in shards.values())
        asked: dict[str, dict[str, None]] = {}
        for write in writes:
            for name, ids in write.ids.items() if write.asks_for_live(several) else ():
                asked.setdefault(name, {}).update(dict.fromkeys(ids))
        live = self._wait_for(lambda: self._live(asked)) if asked else {}
        groups: dict[frozenset[int], list[Write]] = {}
        for write in writes:
            try:
                write.check(several, live)
                write.first = self._take_orders(write.put_in_order(live))
            except FanrankError as error:  # noqa: PERF203
                write.fail(error)
            else:
                groups.setdefault(frozenset() if several else shards[write], []).append(write)
        for group in groups.values():
            self._write_together(group, live)

    def _write_together(self, writes: Sequence[Write], live: Mapping[str, Set[str]]) -> None:
        """Carry out writes as one batch of one shard, or as one decision. What a shard refuses is done in halves."""
        removed: dict[str, list[str]] = {}
        for write in writes:
            for name, ids in write.removed.items():
                removed.setdefault(name, []).extend(ids)
        whole = Part(
            removed,
            [record for write in writes for record in write.ordered],
            [order for write in writes for order in range(write.first, write.first + len(write.ordered))],
        )
        parts = divide(self.placement, whole)
        try:
            if len(parts) > 1:
                acknowledged = self.decide(parts)
            elif parts:
                ((shard, part),) = parts.items()
                acknowledged = self._write_one(shard, part, missing_ok=not any(write.strict for write in writes))
            else:
                acknowledged = None
            if acknowledged is not None:
                self._follow(acknowledged, whole)
        except FanrankError as error:
            if len(writes) > 1 and is_refusal(error):
                half = len(writes) // 2
                self._write_together(writes[:half], live)
                self._write_together(writes[half:], live)
                return
            for write in writes:
                write.fail(error)
        else:
            for write in writes:
                write.finish(live)

    def _follow(self, acknowledged: Mapping[int, Acknowledged], whole: Part) -> None:
        """Let copies do what the shards have done, and searches see it."""
        # What fails in between leaves the shards ahead of the tables, which are then counted anew.
        self._unknown |= {*acknowledged}
        try:
            self._update_copies(whole)
            self._publish(acknowledged)
            self._unknown -= {*acknowledged}
        except UnavailableError:
            self._wait_for(self._settle)

    def _take_orders(self, count: int) -> int:
        """The first of so many numbers of writes. A number is used once, whatever becomes of its batch.

        Raises `StorageError` where no number is left.
        """
        with self._counting:
            first = self._next_order
            if first + count > LIMIT:
                raise StorageError("no number is left for the order of writes: 2**53 records were written")
            self._next_order += count
        return first

    @contextmanager
    def _copying_of(self, names: Iterable[str]) -> Iterator[None]:
        """Let no other thread write to whole copies, where there is one of these namespaces."""
        with self._copying if any(whole.concerns(names) for whole in self.wholes.values()) else nullcontext():
            yield

    def drop(self, namespace: str) -> None:
        """Delete a namespace with all its records."""
        split = namespace in self.placement.split
        with self._bounded(), self.holding(None if split else [namespace]), self._copying_of([namespace]):
            self._give_up_move(namespace)
            homes, part = self.placement.homes(namespace), Part(drop=(namespace,))
            if len(homes) > 1:
                acknowledged = self.decide(
                    dict.fromkeys(homes, part), lambda before: before.placed({namespace: homes[:1]})
                )
            else:
                acknowledged = self._write_one(homes[0], part, missing_ok=True)
            for whole in self.wholes.values():
                if whole.concerns([namespace]):
                    whole.clear()
            if acknowledged is not None:
                self._publish(acknowledged)

    def _make_room(self, added: Sequence[Record]) -> None:
        """Prepare the placement for these records (`moves/moves.py`)."""

    def _give_up_move(self, namespace: str) -> None:
        """End the move of a namespace that this thread holds (`moves/moves.py`)."""

    def _clear_copies(self) -> None:
        """Delete the copies of moves that were given up (`moves/moves.py`)."""

    def _live(self, ids: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
        """Which of these records are live now: ids by namespace."""
        asked = self.placement.by_shard(ids)
        answers = collect({shard: self.links[shard].send("live", ids) for shard, ids in asked.items()}, self.until())
        live: dict[str, set[str]] = {}
        for answer in answers.values():
            for namespace, ids in answer.items():
                live.setdefault(namespace, set()).update(ids)
        return live

    def _settle(self) -> None:
        """Find out what is not known of the shards that this thread holds, and show them as they are."""
        held = self._held()
        decisions = [each for each in list(self._open) if held.issuperset(each.parts)]
        shards = self._unknown.intersection(held).union(*(each.parts for each in decisions))
        if shards:
            number = self._next()
            # Told a number, a shard does no earlier write any more. One that takes longer than the deadline has done
            # it by then, and is not to begin again.
            self._unknown |= shards
            call_all([self.links[shard] for shard in shards], self.until(), "tag", number)
            self._acknowledged |= dict.fromkeys(shards, number)
            for decision in decisions:
                self._finish(decision)
            self._clear_copies()
            self.clear_wholes()
            self._uncounted |= {name for name, parts in self.placement.split.items() if not shards.isdisjoint(parts)}
            for name in list(self._uncounted):
                self.tables.pop(name, None)
            self.show(shards, content=True)
            self.changes.note_all(self.view.epoch)
            self._unknown -= shards
        else:
            self._clear_copies()
        self._count_those(held)

    def _count_those(self, held: frozenset[int]) -> None:
        """Read the counts that are missing of namespaces in these shards, which nobody else writes to."""
        for namespace in list(self._uncounted):
            if held.issuperset(self.placement.homes(namespace)):
                self._count(namespace)

    def _count(self, namespace: str) -> None:
        """Read the counts of a namespace, which nobody writes to, as of the present view."""
        homes = self.placement.homes(namespace)
        if len(homes) > 1:
            parts = call_all([self.links[home] for home in homes], self.until(), "counts", namespace)
            with self._counting:
                self.tables[namespace] = Table(Counts.sum(parts.values(), self._fields), self.view.epoch)
        self._uncounted.discard(namespace)

    def _update_copies(self, part: Part) -> None:
        """Do in copies what the shards have done."""
        for whole in self.wholes.values():
            number = self._next()
            if whole.apply(number, part, self.oldest(whole.number), self.until):
                self._acknowledged[whole.number] = number

    def _publish(self, acknowledged: Mapping[int, Acknowledged]) -> None:
        """Let searches see what these shards have acknowledged."""
        names = {name for each in acknowledged.values() for name in each.sizes}
        with self._counting:
            epoch = self.view.epoch + 1
            for name in names.intersection(self.tables):
                changes = [each.changes.get(name) for each in acknowledged.values() if name in each.sizes]
                known = [change for change in changes if change is not None]
                if len(known) < len(changes) or name not in self.placement.split:
                    del self.tables[name]
                    self._uncounted.add(name)
                else:
                    self.tables[name].add(epoch, Counts.sum(known, self._fields))
            self.changes.note(names, epoch)
            # Other copies may have done writes that their shards are yet to show.
            copies = [number for number, whole in self.wholes.items() if not whole.names.isdisjoint(names)]
            self._show([*acknowledged, *copies], content=True)
        self._count_those(self._held())

    def show(self, shards: Iterable[int], *, content: bool) -> None:
        """Let searches see the last writes of these shards or copies, and the placement; `content` as in `View`."""
        with self._counting:
            self._show(shards, content=content)

    def _show(self, shards: Iterable[int], *, content: bool) -> None:
        epoch = self.view.epoch + 1
        seen = {shard: self._acknowledged[shard] for shard in shards if shard in self._acknowledged}
        self.view = View(epoch, {**self.view.epochs, **seen}, self.placement, epoch if content else self.view.content)

    def clear_wholes(self) -> None:
        """Let go of all whole copies."""
        if any(whole.link is not None for whole in self.wholes.values()):
            with self._copying:
                for whole in self.wholes.values():
                    whole.clear()

    def tell_wholes(self, namespace: str, learned: Mapping[str, Mapping[str, Any]]) -> None:
        """Bring what was learned of a namespace to its whole copies. One that does not take it is let go of."""
        if all(whole.link is None for whole in self.wholes.values()):
            return
        # What is learned comes to a copy on its way with the last page.
        with self._copying:
            for whole in self.wholes.values():
                if whole.link is not None and namespace in whole.names:
                    try:
                        whole.link.send("learn", learned).result(self.until())
                    except FanrankError:
                        whole.clear()

    def copy_whole(
        self,
        number: int,
        names: Sequence[str],
        sizes: Mapping[str, int],
        learn: Callable[[Iterable[str], Link], object],
    ) -> None:
        """Make whole copies of these namespaces in the shard with this number, while others write.

        Copies that were made before go where there is no room for both. `sizes` are the records of all. `learn` brings
        what is learned of namespaces to the shard. Threads that want copies in one shard make them one after another,
        each by whoever comes.
        """
        whole = self.wholes[number]
        while whole.link is None or not whole.holds(names):
            if whole.copying is None:
                # A shard that is started for no namespace is started while nobody declares columns.
                with self.holding(names or None), self._copying:
                    if whole.copying is None and (whole.link is None or not whole.holds(names)):
                        if sum(sizes.get(name, 0) for name in whole.names | {*names}) > whole.most:
                            whole.clear()
                        missing = sorted({*names} - whole.names)
                        whole.begin(self._next(), missing, self.links, self.placement, self.until)
            # Who writes to these namespaces holds this lock too.
            with self._copying:
                copying, link = whole.copying, whole.link
                if copying is not None and link is not None:
                    made = self._next()
                    whole.go_on(made, self.oldest(number), self.until)
                    if copying.is_level:
                        learn(copying.names, link)
                    self._acknowledged[number] = made
                    self.show([number], content=False)
                    # A search that finds it here has a view that shows it.
                    whole.finish(made)
            reach("whole.page")

    def close(self) -> None:
        """Let no write begin, and close the owner's file."""
        with ExitStack() as taken:
            for lock in self._locks:
                taken.enter_context(lock)
            self.closed = True
            self.owner.close()


class Changes:
    """The epoch of the last write to each namespace: by it an older answer is told from an outdated one."""

    def __init__(self) -> None:
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0
        self._lock = make_short_lock()

    def note(self, namespaces: Iterable[str], epoch: int) -> None:
        """Count a write of this epoch to these namespaces."""
        with self._lock:
            for namespace in namespaces:
                self._epochs[namespace] = epoch
                self._epochs.move_to_end(namespace)
            while len(self._epochs) > KEPT:
                self._forgotten = max(self._forgotten, self._epochs.popitem(last=False)[1])

    def note_all(self, epoch: int) -> None:
        """Count every namespace as written at this epoch."""
        with self._lock:
            self._epochs.clear()
            self._forgotten = epoch

    def since(self, namespaces: Iterable[str], epoch: int) -> bool:
        """Whether any of these may have been written after this epoch."""
        with self._lock:
            return any(self._epochs.get(namespace, self._forgotten) > epoch for namespace in namespaces)
