"""`Deciding`: how a write reaches the shards that it concerns, and what is found out where one does not answer.

A write of one shard is known by that shard alone. One that concerns several is a decision (`protocol/owner.py`): they
prepare it, the owner's file decides it, they carry it out. So it is in all of them or in none.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...engine.errors import DeadlineError, FanrankError, ShardError, StorageError
from ...engine.storage.failpoints import reach
from ..processes.links import Link, UnavailableError, Waiting, call_all, collect, deadline_at, pause
from ..protocol.messages import Acknowledged, Gone, Part
from ..protocol.owner import OwnerFile
from ..protocol.placement import Placement
from ..protocol.statistics import Table
from .holding import Decision, Holding, View


class Deciding(Holding):
    """A part of `Coordinator`."""

    def __init__(self, owner: OwnerFile, links: Sequence[Link], deadline: float) -> None:
        super().__init__(owner, links, deadline)
        self.tables: dict[str, Table] = {}
        """The counts of each split namespace. Where one is missing, the shards are asked."""
        self._session = secrets.token_hex(4)
        self._number = 0
        self._acknowledged: dict[int, int] = {}  # the number of each shard's last write
        self._unknown: set[int] = set()  # the shards of which a write may be done or not
        self.expiring = False
        """Whether any record may have a time of expiry. Statistics then depend on the moment."""
        self.view = View(0, {}, owner.placement, 0)
        self._counting = threading.Lock()
        self._read: dict[View, int] = {}  # searches under way, by the view that they read

    def oldest(self, shard: int) -> int:
        """The oldest epoch of a shard that a search reads or may begin to read."""
        with self._counting:
            return min(view.at(shard) for view in (*self._read, self.view))

    def _next(self) -> int:
        with self._counting:
            self._number += 1
            return self._number

    def _name(self, number: int) -> str:
        """The name by which a shard remembers a write, in whichever process it runs then."""
        return f"{self._session}/{number}"

    def _send(
        self, shard: int, number: int, part: Part, *, missing_ok: bool = True, generation: int | None = None
    ) -> Waiting:
        how = {"missing_ok": missing_ok, "tracked": tuple(self.tables), "generation": generation}
        return self.links[shard].send("apply", number, part, oldest=self.oldest(shard), name=self._name(number), **how)

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

    def _apply_apart(self, parts: Mapping[int, Part]) -> None:
        """Send shards a write that no search sees before another view is published."""
        number = self._next()
        self._receive(number, {shard: self._send(shard, number, part) for shard, part in parts.items()})

    def _write_one(self, shard: int, part: Part, *, missing_ok: bool) -> dict[int, Acknowledged] | None:
        """A write of one shard: its engine checks it, and its log is the commit. None where searches see it already.

        Where the shard ends meanwhile, it says afterwards which write was its last. If not this one, it gets it again.
        """
        until = self.until()
        try:
            while True:
                number = self._next()
                try:
                    return self._receive(number, {shard: self._send(shard, number, part, missing_ok=missing_ok)})
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
        change: Callable[[Placement], Placement] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> dict[int, Acknowledged] | None:
        """Let shards do what concerns several: all of them, or none. None where searches see it already.

        `change` makes the placement that is kept with it, and `settings` are kept too. The caller holds the shards.
        Raises what a shard refused its part by; nothing was written then. Once it is decided, an error says so.
        """
        decision = Decision(self.owner.reserve(), dict(parts))
        self._open.append(decision)
        answered: set[int] = set()
        try:
            self._wait_for(lambda: self._prepare(decision, answered))
            reach("batch.prepared")
            self.owner.decide(decision.generation, decision.parts, change, settings)
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
        return self._send(shard, number, decision.parts[shard], generation=decision.generation)

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
