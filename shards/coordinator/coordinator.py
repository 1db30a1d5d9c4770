"""`Coordinator`: what is written to the shards, in which order, and what readers may see of it.

Every write gets the next number, its epoch. A shard keeps its state after the write under that number. A search reads
one epoch in all shards: the last one that all have acknowledged. Where a write concerns several shards, its intent is
durable before the first shard sees it. A crash in between leaves it in all shards or in none, and readers in between
see the epoch before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...engine.errors import DeadlineError, FanrankError, ShardError, StorageError
from ...engine.index.columns import Schema
from ...engine.locks import FairLock
from ...engine.records.record import Record
from ...engine.storage.failpoints import reach
from ..processes.links import Link, UnavailableError, Waiting, call_all, collect, deadline_at, pause
from ..protocol.batches import Batch, after_last, divide
from ..protocol.messages import Acknowledged, Gone
from ..protocol.order import in_write_order, stamp
from ..protocol.placement import Placement
from ..protocol.statistics import Counts, Table
from ..replicas.whole_copies import WholeCopies
from .changes import Changes
from .checks import check_added, check_removed
from .intents import Intent, IntentLog, Moved

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class View:
    """What a search reads: an epoch that all shards have acknowledged, and where records lay then."""

    epoch: int
    placement: Placement
    content: int
    """The epoch of the last write. Moves and copies change no answer."""


class Coordinator:
    """Writes to the shards of one memory. One write is under way at a time; any number of searches are.

    `folder` holds the table of placement; None: a memory without files. `deadline` is how many seconds a shard has for
    an answer.
    """

    def __init__(
        self,
        folder: Path | None,
        links: Sequence[Link],
        placement: Placement,
        settings: Mapping[str, Any],
        intents: IntentLog,
        wholes: Sequence[WholeCopies],
        fields: int,
        deadline: float,
    ) -> None:
        self.links = links
        self.deadline = deadline
        self.wholes = {whole.number: whole for whole in wholes}
        """The whole copies, by the number of their shard."""
        self.tables: dict[str, Table] = {}
        """The counts of each split namespace."""
        self.settings = settings
        self.folder = folder
        """Where the table of placement lies; None for a memory without files."""
        self._fields = fields
        self._intents = intents
        self._pending: Intent | None = None
        self._doubtful: set[int] = set()
        self._settled = True
        self._number = 0
        self._next_order = 0
        self.expiring = False
        """Whether any record may have a time of expiry. Statistics then depend on the moment."""
        self.placement = placement
        """Where records lie by the table. Searches go by that of their view."""
        self.view = View(0, placement, 0)
        self.changes = Changes()
        self._writing = FairLock()
        self._counting = threading.Lock()
        self._read: dict[int, int] = {}  # searches under way, by the epoch that they read
        self._limits = threading.local()
        self._closed = False

    def until(self) -> float | None:
        """When an answer that is asked for now must be there, by `time.monotonic`."""
        limit: float | None = getattr(self._limits, "until", None)
        return deadline_at(self.deadline) if limit is None else limit

    @contextmanager
    def _bounded(self, until: float | None = None) -> Iterator[None]:
        """Let all that this thread waits for meanwhile be there by one time: `until`, or a deadline from now on."""
        before = getattr(self._limits, "until", None)
        self._limits.until = before or until or deadline_at(self.deadline)
        try:
            yield
        finally:
            self._limits.until = before

    def start(self, next_order: int, *, expiring: bool = False, until: float | None = None) -> None:
        """Bring all shards to one epoch: carry out what a crash left, then count the split namespaces.

        `until` is when it must be done; None: by the deadline.
        """
        with self._bounded(until), self._alone():
            self._next_order = next_order
            self.expiring = expiring
            self._pending = self._intents.read()
            self._doubtful = {link.number for link in self.links}
            self._wait_for(self._settle)

    @contextmanager
    def reading(self) -> Iterator[View]:
        """The view of a search. Its epoch is kept by the shards until the search ends."""
        with self._counting:
            view = self.view
            self._read[view.epoch] = self._read.get(view.epoch, 0) + 1
        try:
            yield view
        finally:
            with self._counting:
                self._read[view.epoch] -= 1
                if not self._read[view.epoch]:
                    del self._read[view.epoch]

    @contextmanager
    def paused(self, until: float | None = None) -> Iterator[View]:
        """Hold writes off. Meanwhile all shards are at the epoch of the view, and at no later one.

        `until` is when it must be so. Raises `DeadlineError`, and `ShardError` where a shard is lost.
        """
        with self._bounded(until) if until is not None else nullcontext(), self._alone():
            if self._closed:
                raise StorageError("the engine is closed")
            self._wait_for(self._settle)
            yield self.view

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other thread write. Raises `DeadlineError` where one does so for too long."""
        if not self._writing.acquire(self.until()):
            raise DeadlineError("another write or move was under way until the deadline; nothing was changed")
        try:
            yield
        finally:
            self._writing.release()

    def recover(self, until: float | None = None) -> None:
        """Bring shards that were started anew, or whose last write is in doubt, to the epoch of the others."""
        with self._bounded(until), self._alone():
            self._wait_for(self._find_restarted)
            self._wait_for(self._settle)

    def _find_restarted(self) -> None:
        # A shard that does not answer yet is found when it does.
        known = collect({link.number: link.send("newest") for link in self.links}, self.until(), missing=set())
        # One that is ahead of the view holds what was never published.
        self._doubtful |= {number for number, epoch in known.items() if epoch is None or epoch > self.view.epoch}
        self._number = max([self._number, *(epoch for epoch in known.values() if epoch is not None)])
        for whole in self.wholes.values():
            whole.clear_restarted(self.until())

    def _wait_for(self, work: Callable[[], T]) -> T:
        """Do work that can be done again, until no shard is in the way that is being started anew."""
        until = self.until()
        while True:
            try:
                return work()
            except UnavailableError as error:  # noqa: PERF203
                pause(until, error)

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
        with self._bounded(), self.paused():
            self._wait_for(lambda: self._make_room(added))
            live: dict[str, set[str]] | None = None
            if removed and added and len({record.namespace for record in added}) > 1:
                live = self._wait_for(lambda: self._live(removed, added))
            records = stamp(in_write_order(added, removed, live or {}), self._next_order)
            # A number is used once, whatever becomes of its batch.
            self._next_order += len(records)
            batches = divide(self.placement, removed, records)
            if not batches:
                return 0
            if len(batches) > 1 or not records:
                # Only these ids tell later whether a shard that ended meanwhile has deleted records.
                if live is None:
                    live = self._wait_for(lambda: self._live(removed, added))
                if not missing_ok:
                    check_removed(removed, live)
            if len(batches) > 1:
                check_added(added, removed, live or {}, schema)
                acknowledged = self._write_all(batches)
            else:
                acknowledged = self._write_one(batches, missing_ok)
            if acknowledged is not None:
                # What fails in between leaves the shards ahead of the tables, which are then counted anew.
                self._doubtful |= {*batches}
                try:
                    self._update_copies(removed, records)
                    self._publish(acknowledged.values())
                    self._doubtful -= {*batches}
                except UnavailableError:
                    self._wait_for(self._settle)
        return len(records) or sum(
            len((live or {}).get(namespace, set()).intersection(ids)) for namespace, ids in removed.items()
        )

    def drop(self, namespace: str) -> None:
        """Delete a namespace with all its records."""
        with self._bounded(), self.paused():
            # What a shard that ended meanwhile has dropped, it drops again.
            self._wait_for(lambda: self._drop(namespace))

    def _drop(self, namespace: str) -> None:
        with self.paused():
            homes, placement = self.placement.homes(namespace), self.placement
            if len(homes) > 1:
                # A crash in between leaves the namespace dropped: the move is carried out again.
                placement = placement.placed(namespace, homes[:1])
                self._intend(Intent(moves=(Moved(namespace, homes, ()),)))
            self._number += 1
            self._doubtful |= {*homes}
            send = {
                home: self.links[home].send("apply", self._number, Batch(), missing_ok=True, drop=namespace)
                for home in homes
            }
            self._receive_writes(send)
            if len(homes) > 1:
                self._place(placement)
                self._drop_intent()
            self.tables.pop(namespace, None)
            for whole in self.wholes.values():
                whole.forget(namespace)
            self.changes.note([namespace], self._number)
            self.view = View(self._number, self.placement, self._number)

    def _make_room(self, added: Sequence[Record]) -> None:
        """Prepare the placement for these records (`moves/moves.py`)."""

    def _clear_copies(self) -> None:
        """Delete the copies of moves that were given up (`moves/moves.py`)."""

    def _finish_move(self, intent: Intent) -> None:
        """Delete what the shards hold of moved namespaces and the present table has elsewhere."""
        dropped: dict[int, list[str]] = {}
        for namespace, before, after in intent.moves:
            kept = self.placement.homes(namespace) if after else ()
            for shard in dict.fromkeys((*before, *after)):
                if shard not in kept:
                    dropped.setdefault(shard, []).append(namespace)
                elif len(kept) > 1:
                    gone = self.links[shard].send("strangers", namespace, kept).result(self.until())
                    self._apply_apart({shard: Batch({namespace: gone})})
        for shard, names in dropped.items():
            self._apply_apart({shard: Batch()}, drop=names[0] if len(names) == 1 else tuple(names))

    def _apply_apart(self, batches: Mapping[int, Batch], **how: Any) -> None:
        """Send shards a write that no search sees before the next epoch is published."""
        self._number += 1
        self._doubtful |= {*batches}
        sent = {
            shard: self.links[shard].send("apply", self._number, batch, missing_ok=True, oldest=self.oldest(), **how)
            for shard, batch in batches.items()
        }
        self._receive_writes(sent)

    def _place(self, placement: Placement) -> None:
        """Replace the table of placement. Readers of the present view do not see it."""
        if self.folder is not None:
            placement.save(self.folder, self.settings)
        self.placement = placement

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

    def oldest(self) -> int:
        """The oldest epoch that a search reads or may begin to read."""
        with self._counting:
            return min([*self._read, self.view.epoch])

    def _send(self, batches: Mapping[int, Batch], *, missing_ok: bool) -> dict[int, Waiting]:
        self._number += 1
        self._doubtful |= {*batches}
        return {
            shard: self.links[shard].send(
                "apply",
                self._number,
                batch,
                missing_ok=missing_ok,
                tracked=tuple(self.tables),
                oldest=self.oldest(),
            )
            for shard, batch in batches.items()
        }

    def _receive_writes(self, sent: Mapping[int, Waiting]) -> dict[int, Acknowledged]:
        """What the shards acknowledge. A shard that does not answer is in doubt until `_settle` has seen it."""
        self._doubtful |= {*sent}
        answers = collect(sent, self.until())
        unknown = [shard for shard, answer in answers.items() if isinstance(answer, Gone)]
        if unknown:
            raise UnavailableError(f"shard {unknown[0]} was started anew, and has not carried out the write")
        self._doubtful -= {*sent}
        self.expiring |= any(answer.expiring for answer in answers.values())
        return answers

    def _write_one(self, batches: Mapping[int, Batch], missing_ok: bool) -> dict[int, Acknowledged] | None:
        """A batch for one shard: its engine checks it, and its log is the commit. None where searches see it already.

        Where the shard ends meanwhile, its log says whether it has done the batch. If not, it gets it again.
        """
        ((shard, batch),) = batches.items()
        until = self.until()
        try:
            while True:
                try:
                    return self._receive_writes(self._send(batches, missing_ok=missing_ok))
                except UnavailableError as error:  # noqa: PERF203
                    pause(until, error)
                    self._wait_for(self._settle)
                    if self._wait_for(lambda: self.links[shard].send("has_done", batch).result(until)):
                        return None
        except DeadlineError as error:
            raise DeadlineError(f"{error}; whether the write was done is found out before the next one") from error
        except ShardError:
            raise
        except FanrankError:
            # The engine refused the batch, so nothing was changed. After an interrupt nobody knows.
            self._doubtful -= {*batches}
            raise

    def _write_all(self, batches: Mapping[int, Batch]) -> dict[int, Acknowledged] | None:
        """A batch for several shards: all of them, or none. None where searches see it already."""
        self._intend(Intent(batches))
        sent = self._send(batches, missing_ok=True)
        reach("batch.sent")
        try:
            try:
                answers = self._receive_writes(sent)
            except UnavailableError:
                self._wait_for(self._settle)
                return None
        except DeadlineError as error:
            raise DeadlineError(f"{error}; the batch is kept, and is carried out before the next one") from error
        reach("batch.acknowledged")
        self._drop_intent()
        return answers

    def _intend(self, intent: Intent) -> None:
        """Make an intent durable. One that cannot be written is not carried out later: its caller is told so."""
        self._intents.write(intent)
        self._pending = intent

    def _drop_intent(self) -> None:
        self._intents.drop()
        self._pending = None

    def _settle(self) -> None:
        """Carry out again what is in doubt, and bring the shards that it concerns to one new epoch."""
        intent = self._pending
        if intent is None and not self._doubtful and self._settled:
            return
        # What fails below is begun again, also where no shard is in doubt any more.
        self._settled = False
        if intent is not None and intent.batches:
            self._number += 1
            call_all([self.links[shard] for shard in intent.batches], self.until(), "tag", self._number)
            # Told a number, a shard does no earlier write any more. One that takes longer than the deadline has done
            # it by then, and is not to begin again.
            asked = {shard: self.links[shard].send("has_done", batch) for shard, batch in intent.batches.items()}
            done = collect(asked, self.until())
            again = {shard: batch.again() for shard, batch in intent.batches.items() if not done[shard]}
            self._receive_writes(self._send(again, missing_ok=True))
            self._next_order = max([self._next_order, *(after_last(batch) for batch in intent.batches.values())])
        elif intent is not None:
            shards = dict.fromkeys(shard for moved in intent.moves for shard in (*moved.before, *moved.after))
            self._number += 1
            call_all([self.links[shard] for shard in shards], self.until(), "tag", self._number)
            for namespace, before, after in intent.moves:
                if not after:
                    self._place(self.placement.placed(namespace, before[:1]))
            if all(moved.after for moved in intent.moves):
                # The file may be the new table, where its writing failed at the last step.
                self._place(self.placement)
            self._finish_move(intent)
        self._number += 1
        call_all([self.links[shard] for shard in self._doubtful], self.until(), "tag", self._number)
        self._clear_copies()
        if intent is not None:
            self._drop_intent()
        self._doubtful.clear()
        self.clear_wholes()
        self._count(self.placement.split)
        self.changes.note_all(self._number)
        self.view = View(self._number, self.placement, self._number)
        self._settled = True

    def _count(self, namespaces: Any) -> None:
        """Read the counts of these namespaces anew, as of the last number."""
        for namespace in namespaces:
            homes = self.placement.homes(namespace)
            if len(homes) == 1:
                self.tables.pop(namespace, None)
                continue
            parts = call_all([self.links[home] for home in homes], self.until(), "counts", namespace)
            self.tables[namespace] = Table(Counts.sum(parts.values(), self._fields), self._number)

    def _update_copies(self, removed: Mapping[str, Sequence[str]], added: Sequence[Record]) -> None:
        """Do in copies what the shards have done."""
        for whole in self.wholes.values():
            whole.apply(self._number, removed, added, self.oldest(), self.until)

    def _publish(self, acknowledged: Any) -> None:
        """Let searches see what all shards have acknowledged."""
        answers: list[Acknowledged] = list(acknowledged)
        for namespace in {name for each in answers for name in each.changes}:
            changes = [each.changes[namespace] for each in answers if namespace in each.changes]
            known = [change for change in changes if change is not None]
            if len(known) < len(changes):
                self._count([namespace])
            else:
                self.tables[namespace].add(self._number, Counts.sum(known, self._fields))
        self.changes.note((name for each in answers for name in each.sizes), self._number)
        self.view = View(self._number, self.placement, self._number)

    def clear_wholes(self) -> None:
        """Let go of all whole copies."""
        for whole in self.wholes.values():
            whole.clear()

    def copy_whole(self, number: int, names: Sequence[str], sizes: Mapping[str, int]) -> None:
        """Make whole copies of these namespaces in the shard with this number. `sizes` are the records of all.

        Copies that were made before go where there is no room for both.
        """
        with self.paused():
            whole = self.wholes[number]
            if sum(sizes.get(name, 0) for name in whole.names.union(names)) > whole.most:
                whole.clear()
            self._number = whole.copy(self._number + 1, names, self.links, self.placement, self.until)
            self.view = View(self._number, self.placement, self.view.content)

    def close(self) -> None:
        """Let no write begin, and close the log of intents."""
        with self._writing:
            self._closed = True
            self._intents.close()
