"""`Coordinator`: what is written to the shards, in which order, and what readers may see of it.

Each shard has a lock, which goes to the writer that has waited longest, and an epoch: the number of its last write that
searches see. A search reads one view: the epochs of all shards at one moment. A write of one shard is known by that
shard alone. One that concerns several is a decision (`protocol/owner.py`): they prepare it, the owner's file decides
it, they carry it out, and one view shows it. So it is in all of them or in none.

What is not known of a shard, as it ended or did not answer, is found out before the next write to it. Writes to others
go on meanwhile.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from ...engine.errors import DeadlineError, FanrankError, ShardError, StorageError
from ...engine.index.columns import Schema
from ...engine.locks import FairLock
from ...engine.records.record import Record
from ...engine.storage.failpoints import reach
from ..processes.links import Link, UnavailableError, Waiting, call_all, collect, deadline_at, pause
from ..protocol.batches import Batch, divide
from ..protocol.messages import Acknowledged, Gone
from ..protocol.order import in_write_order, stamp
from ..protocol.owner import OwnerFile
from ..protocol.placement import Placement
from ..protocol.statistics import Counts, Table
from ..replicas.whole_copies import WholeCopies
from ..shard.parts import Part
from .changes import Changes
from .checks import check_added, check_removed
from .holding import Decision, Holding, View


class Coordinator(Holding):
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
        super().__init__(links, deadline)
        self.owner = owner
        self.wholes = {whole.number: whole for whole in wholes}
        """The whole copies, by the number of their shard."""
        self.tables: dict[str, Table] = {}
        """The counts of each split namespace. Where one is missing, the shards are asked."""
        self._fields = fields
        self._session = secrets.token_hex(4)
        self._number = 0
        self._next_order = 0
        self._acknowledged: dict[int, int] = {}  # the number of each shard's last write
        self._unknown: set[int] = set()  # the shards of which a write may be done or not
        self._uncounted: set[str] = set()
        self.expiring = False
        """Whether any record may have a time of expiry. Statistics then depend on the moment."""
        self.view = View(0, {}, owner.placement, 0)
        self.changes = Changes()
        self._copying = FairLock()  # of whole copies, which take writes in the order of their numbers
        self._counting = threading.Lock()
        self._read: dict[View, int] = {}  # searches under way, by the view that they read

    @property
    def placement(self) -> Placement:
        """Where records lie by the owner's file. Searches go by that of their view."""
        return self.owner.placement

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
        """Apply one batch, all or nothing, as `Memory.write`. Returns once it is durable and searches see it."""
        removed = removed or {}
        names = dict.fromkeys((*removed, *(record.namespace for record in added)))
        with self._bounded():
            self._make_room(added)
            with self.holding(names), self._copying_of(names):
                return self._write(schema, removed, added, missing_ok)

    def _write(
        self, schema: Schema, removed: Mapping[str, Sequence[str]], added: Sequence[Record], missing_ok: bool
    ) -> int:
        live: dict[str, set[str]] | None = None
        if removed and added and len({record.namespace for record in added}) > 1:
            live = self._wait_for(lambda: self._live(removed, added))
        ordered = in_write_order(added, removed, live or {})
        records = stamp(ordered, self._take_orders(len(ordered)))
        batches = divide(self.placement, removed, records)
        if not batches:
            return 0
        if len(batches) > 1 or not records:
            # Only these ids tell later how many records a shard that ended meanwhile has deleted.
            if live is None:
                live = self._wait_for(lambda: self._live(removed, added))
            if not missing_ok:
                check_removed(removed, live)
        if len(batches) > 1:
            check_added(added, removed, live or {}, schema)
            acknowledged = self.decide({shard: Part(batch) for shard, batch in batches.items()})
        else:
            ((shard, batch),) = batches.items()
            acknowledged = self._write_one(shard, batch, missing_ok)
        if acknowledged is not None:
            # What fails in between leaves the shards ahead of the tables, which are then counted anew.
            self._unknown |= {*batches}
            try:
                self._update_copies(removed, records)
                self._publish(acknowledged)
                self._unknown -= {*batches}
            except UnavailableError:
                self._wait_for(self._settle)
        return len(records) or sum(
            len((live or {}).get(namespace, set()).intersection(ids)) for namespace, ids in removed.items()
        )

    def _take_orders(self, count: int) -> int:
        """The first of so many numbers of writes. A number is used once, whatever becomes of its batch."""
        with self._counting:
            first = self._next_order
            self._next_order += count
        return first

    @contextmanager
    def _copying_of(self, names: Iterable[str]) -> Iterator[None]:
        """Let no other thread write to whole copies, where there is one of these namespaces."""
        if all(whole.names.isdisjoint(names) for whole in self.wholes.values()):
            yield
            return
        with self._copying:
            yield

    def drop(self, namespace: str) -> None:
        """Delete a namespace with all its records."""
        split = namespace in self.placement.split
        with self._bounded(), self.holding(None if split else [namespace]), self._copying_of([namespace]):
            homes = self.placement.homes(namespace)
            if len(homes) > 1:
                parts = {home: Part(drop=(namespace,)) for home in homes}
                acknowledged = self.decide(parts, self.placement.placed(namespace, homes[:1]))
            else:
                acknowledged = self._write_one(homes[0], Batch(), True, drop=(namespace,))
            for whole in self.wholes.values():
                whole.forget(namespace)
            if acknowledged is not None:
                self._publish(acknowledged)

    def _make_room(self, added: Sequence[Record]) -> None:
        """Prepare the placement for these records (`moves/moves.py`)."""

    def _clear_copies(self) -> None:
        """Delete the copies of moves that were given up (`moves/moves.py`)."""

    def _next(self) -> int:
        with self._counting:
            self._number += 1
            return self._number

    def _apply_apart(self, batches: Mapping[int, Batch], **how: Any) -> None:
        """Send shards a write that no search sees before another view is published."""
        number = self._next()
        self._receive(number, {shard: self._send(shard, number, batch, **how) for shard, batch in batches.items()})

    def _live(self, removed: Mapping[str, Sequence[str]], added: Sequence[Record]) -> dict[str, set[str]]:
        """Which of the ids of a batch live records have now, by namespace."""
        keys = [(namespace, record_id) for namespace, ids in removed.items() for record_id in ids]
        keys += [(record.namespace, record.id) for record in added]
        asked = self.placement.by_shard(dict.fromkeys(keys))
        answers = collect({shard: self.links[shard].send("live", ids) for shard, ids in asked.items()}, self.until())
        live: dict[str, set[str]] = {}
        for answer in answers.values():
            for namespace, ids in answer.items():
                live.setdefault(namespace, set()).update(ids)
        return live

    def oldest(self, shard: int) -> int:
        """The oldest epoch of a shard that a search reads or may begin to read."""
        with self._counting:
            return min(view.at(shard) for view in (*self._read, self.view))

    def _name(self, number: int) -> str:
        """The name by which a shard remembers a write, in whichever process it runs then."""
        return f"{self._session}/{number}"

    def _send(self, shard: int, number: int, batch: Batch, **how: Any) -> Waiting:
        how = {"missing_ok": True, "tracked": tuple(self.tables), **how}
        return self.links[shard].send("apply", number, batch, oldest=self.oldest(shard), name=self._name(number), **how)

    def _receive(self, number: int, sent: Mapping[int, Waiting]) -> dict[int, Acknowledged]:
        """What the shards acknowledge. What is not known of one that does not answer, `_settle` finds out."""
        self._unknown |= {*sent}
        answers = collect(sent, self.until())
        unknown = [shard for shard, answer in answers.items() if isinstance(answer, Gone)]
        if unknown:
            raise UnavailableError(f"shard {unknown[0]} was started anew, and has not carried out the write")
        self._unknown -= {*sent}
        self._acknowledged |= dict.fromkeys(sent, number)
        self.expiring |= any(answer.expiring for answer in answers.values())
        return answers

    def _write_one(self, shard: int, batch: Batch, missing_ok: bool, **how: Any) -> dict[int, Acknowledged] | None:
        """A batch for one shard: its engine checks it, and its log is the commit. None where searches see it already.

        Where the shard ends meanwhile, it says afterwards which write was its last. If not this one, it gets it again.
        """
        until = self.until()
        try:
            while True:
                number = self._next()
                try:
                    return self._receive(
                        number, {shard: self._send(shard, number, batch, missing_ok=missing_ok, **how)}
                    )
                except UnavailableError as error:
                    pause(until, error)
                    self._wait_for(self._settle)
                    last, _ = self._wait_for(lambda: self.links[shard].send("last_write").result(until))
                    if last == self._name(number):
                        return None
        except DeadlineError as error:
            raise DeadlineError(
                f"{error}; whether the write was done is found out before the next one to this shard"
            ) from error
        except ShardError:
            raise
        except FanrankError:
            # The engine refused the batch, so nothing was changed. After an interrupt nobody knows.
            self._unknown.discard(shard)
            raise

    def decide(
        self,
        parts: Mapping[int, Part],
        placement: Placement | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> dict[int, Acknowledged] | None:
        """Let shards do what concerns several: all of them, or none. None where searches see it already.

        `placement` and `settings` are kept with it. The caller holds the shards. Raises what a shard refused its part
        by; nothing was written then. Once it is decided, an error says so.
        """
        decision = Decision(self.owner.reserve(), dict(parts))
        self._open.append(decision)
        answered: set[int] = set()
        try:
            self._wait_for(lambda: self._prepare(decision, answered))
            reach("batch.prepared")
            self.owner.decide(decision.generation, decision.parts, placement, settings)
            decision.decided = True
        except Exception as error:
            self._abandon(decision, answered)
            if isinstance(error, (DeadlineError, ShardError)):
                raise type(error)(f"{error}; nothing was written") from error
            raise
        reach("batch.decided")
        number = self._next()
        try:
            sent = {shard: self._send_part(shard, number, decision) for shard in parts}
            reach("batch.sent")
            try:
                answers = self._receive(number, sent)
            except UnavailableError:
                self._wait_for(self._settle)
                return None
        except FanrankError as error:
            kind = type(error) if isinstance(error, (DeadlineError, ShardError)) else StorageError
            raise kind(f"{error}; the write is decided, and is done before the next one to its shards") from error
        reach("batch.acknowledged")
        self._open.remove(decision)
        return answers

    def _prepare(self, decision: Decision, answered: set[int]) -> None:
        sent = {
            shard: self.links[shard].send("prepare", decision.generation, part)
            for shard, part in decision.parts.items()
            if shard not in answered
        }
        failure: FanrankError | None = None
        for shard, waiting in sent.items():
            try:
                waiting.result(self.until())
                answered.add(shard)
            except (ShardError, DeadlineError) as error:  # noqa: PERF203
                failure = failure or error
            except FanrankError as error:
                answered.add(shard)
                # What a shard refuses is said before what is not known of another.
                failure = error if failure is None or isinstance(failure, (ShardError, DeadlineError)) else failure
        if failure is not None:
            raise failure

    def _abandon(self, decision: Decision, answered: set[int]) -> None:
        """Let the shards drop what was not decided. One that does not answer does so before its next write."""
        try:
            self.owner.confirm()
        except StorageError as error:
            raise StorageError(
                f"{error}; whether the write was decided is in doubt until the file can be written"
            ) from error
        until = deadline_at(self.deadline)
        for shard in answered:
            with suppress(FanrankError):
                self.links[shard].send("forget", decision.generation).result(until)
                del decision.parts[shard]
        if not decision.parts:
            self._open.remove(decision)

    def _send_part(self, shard: int, number: int, decision: Decision) -> Waiting:
        part = decision.parts[shard]
        return self._send(shard, number, part.batch, drop=part.drop, show=part.show, generation=decision.generation)

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

    def _finish(self, decision: Decision) -> None:
        """Let shards carry out what was decided, or drop what was not."""
        links = [self.links[shard] for shard in decision.parts]
        if decision.decided:
            known = call_all(links, self.until(), "last_write")
            number = self._next()
            again = [shard for shard, (_, generation) in known.items() if generation != decision.generation]
            self._receive(number, {shard: self._send_part(shard, number, decision) for shard in again})
            # Until the view is there, what fails is begun again.
            self._unknown |= {*decision.parts}
        else:
            self.owner.confirm()
            call_all(links, self.until(), "forget", decision.generation)
        self._open.remove(decision)

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

    def _update_copies(self, removed: Mapping[str, Sequence[str]], added: Sequence[Record]) -> None:
        """Do in copies what the shards have done."""
        for whole in self.wholes.values():
            number = self._next()
            if whole.apply(number, removed, added, self.oldest(whole.number), self.until):
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
            self._show(acknowledged, content=True)
        self._count_those(self._held())

    def show(self, shards: Iterable[int], *, content: bool) -> None:
        """Let searches see the last writes of these shards, and the present placement. `content` is that of `View`."""
        with self._counting:
            self._show(shards, content=content)

    def _show(self, shards: Iterable[int], *, content: bool) -> None:
        epoch = self.view.epoch + 1
        seen = {shard: self._acknowledged[shard] for shard in (*shards, *self.wholes) if shard in self._acknowledged}
        self.view = View(epoch, {**self.view.epochs, **seen}, self.placement, epoch if content else self.view.content)

    def clear_wholes(self) -> None:
        """Let go of all whole copies."""
        if any(whole.link is not None for whole in self.wholes.values()):
            with self._copying:
                for whole in self.wholes.values():
                    whole.clear()

    def copy_whole(self, number: int, names: Sequence[str], sizes: Mapping[str, int]) -> None:
        """Make whole copies of these namespaces in the shard with this number. `sizes` are the records of all.

        Copies that were made before go where there is no room for both.
        """
        with self.paused(), self._copying:
            whole = self.wholes[number]
            if sum(sizes.get(name, 0) for name in whole.names.union(names)) > whole.most:
                whole.clear()
            last = whole.copy(self._next(), names, self.links, self.placement, self.until)
            with self._counting:
                self._number = max(self._number, last)
            self._acknowledged[number] = last
            self.show((), content=False)

    def close(self) -> None:
        """Let no write begin, and close the owner's file."""
        with ExitStack() as taken:
            for lock in self._locks:
                taken.enter_context(lock)
            self._closed = True
            self.owner.close()
