"""`Follower`: one follower of a shard, as the owner's process knows it. It is filled, and then gets each call that the
leader has carried out, in their order.

It is filled from the leader's records of one moment, while others write. What was written since then waits for it, and
is done on what was copied.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from ...engine.errors import DeadlineError, FanrankError, ShardError
from ..processes.links import Link, Verb, deadline_at
from ..processes.streams import Backfill, Records
from ..protocol.messages import Gone, Part
from .whole_copies import apply_to

PAGE = 4_096
"""Records that a follower is filled with at a time."""

BEHIND = 200_000
"""Records that may wait for a follower in the owner's memory. One that is later is filled anew."""

RETRY = 1.0
"""Seconds before a follower that failed is filled anew."""

NUMBERED = frozenset({"apply", "tag"})
"""The verbs that make a state of the leader, whose number is their first argument."""

LEARNING = frozenset({"tell", "learn"})
"""The verbs by which a leader learns of namespaces, which are their first argument."""

FILLING, FOLLOWING, LOST = "filling", "following", "lost"
"""What a follower does: it is being filled; it holds the leader's records; it is to be filled anew."""

logger = logging.getLogger("fanrank")


@dataclass(frozen=True, eq=False)
class LeaderCall:
    """A call that the leader has carried out, and that its followers carry out after it."""

    verb: Verb
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    after: int = -1
    """The number of the leader's state before a write or a tag."""

    @property
    def number(self) -> int:
        """The number of a write or a tag."""
        number: int = self.arguments[0]
        return number

    @property
    def part(self) -> Part:
        """What a write does."""
        part: Part = self.arguments[1]
        return part

    @property
    def records(self) -> int:
        """The records that wait with it."""
        return len(self.part.added) if self.verb == "apply" else 0

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of which the leader has learned something."""
        named = self.arguments[0]
        return [named] if isinstance(named, str) else list(named)


@dataclass(eq=False)
class Leading:
    """A leader, as its followers see it. With `background` off, no thread of its own works for them."""

    leader: Link
    deadline: float
    background: bool
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Held while anything here or of a follower is read or changed; never while a message is under way."""
    last: int = -1
    """The number of the last write or tag that the leader has acknowledged."""
    pending: bool = False
    """Whether a write was sent to the leader since then, which it may have done or not."""
    informed: int = 0
    """How much the leader was told beside writes and tags."""
    closed: bool = False

    @property
    def number(self) -> int:
        return self.leader.number


class _LetGo(Exception):
    """The follower was let go of while a call was on its way to it."""


class Replica:
    """A process that answers reads of a shard: its leader, or a follower."""

    def __init__(self, link: Link | None = None) -> None:
        self.link = link
        """The way to it; None: a follower that is not there."""
        self.under_way = self.messages = 0
        self.silent = False
        """Whether it did not answer the last message, or not in time. Others are then asked first."""


class Follower(Replica):
    """A follower, which `make` starts. All is read and changed under `changed` of its leader's link."""

    def __init__(self, leading: Leading, number: int, make: Callable[[], Link]) -> None:
        super().__init__()
        self.number = number
        self.state = LOST
        self._leading = leading
        self._make = make
        self._first = self._last = -1  # the numbers of the leader's first and last state that it holds
        self._informed = 0
        self._queue: deque[LeaderCall] = deque()  # another one whenever it is let go of
        self._behind = 0
        self._failure: str | None = None
        self._thread: threading.Thread | None = None

    def holds(self, number: int) -> bool:
        """Whether it can answer from the leader's state of this number."""
        return (
            self.state == FOLLOWING and self._first <= number <= self._last and self._informed == self._leading.informed
        )

    def tell(self, call: LeaderCall) -> None:
        """Let it do something, once it has done all before."""
        if self.state == LOST:
            return
        self._queue.append(call)
        self._behind += call.records
        if self._behind > BEHIND:
            self.let_go(f"more than {BEHIND:,} records waited for it")

    def let_go(self, why: str) -> None:
        """Ask it nothing more before it is filled anew."""
        self.state, self._failure = LOST, why
        self._first = self._last = -1
        self._queue, self._behind, self.silent = deque(), 0, False
        self._leading.changed.notify_all()
        logger.warning("follower %d of shard %d is filled anew: %s", self.number, self._leading.number, why)

    def fail(self, answer: Any) -> None:
        """Take note that it did not answer a read: by an error, or because it was started anew."""
        if self.state != FOLLOWING:
            return
        if not isinstance(answer, DeadlineError):
            self.let_go(str(answer) if isinstance(answer, FanrankError) else "it was started anew, and is empty")
        elif not self.silent:
            # Others are asked before it until it answers this, and it is let go of if it does not.
            self.silent = True
            self._queue.append(LeaderCall("newest", (), {}))
            self._leading.changed.notify_all()

    def report(self) -> dict[str, Any]:
        """What it does, the reads that it was sent, and how many writes of its leader it has not acknowledged."""
        return report(self.number, self.state, self.messages, len(self._queue), self._failure)

    def start(self) -> None:
        """Begin to work in a thread, if there is none yet."""
        if self._leading.background and not self._leading.closed and self._thread is None:
            name = f"fanrank-follower-{self._leading.number}-{self.number}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Close it, and wait for its thread. The leader's link is closed already."""
        with self._leading.changed:
            link, thread = self.link, self._thread
        if link is not None:
            with suppress(FanrankError):
                link.close()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        changed = self._leading.changed
        while True:
            with changed:
                changed.wait_for(lambda: self._leading.closed or self.state != FOLLOWING or bool(self._queue))
            if self._leading.closed:
                return
            if not self.work():
                with changed:
                    changed.wait_for(lambda: self._leading.closed, RETRY)

    def work(self) -> bool:
        """Fill it if it is to be filled, and let it do all that it was told; whether that succeeded."""
        try:
            if self.state != FOLLOWING:
                self._fill()
            self._follow()
        except _LetGo:
            return False
        except Exception as error:
            # Its thread must not end, whatever the reason.
            with self._leading.changed:
                if not self._leading.closed:
                    self.let_go(str(error) or repr(error))
            return False
        return True

    def _until(self) -> float | None:
        return deadline_at(self._leading.deadline)

    def _check(self, queue: deque[LeaderCall]) -> None:
        """Raise `_LetGo` where it was let go of since it had this queue. The caller holds `changed`."""
        if self._queue is not queue or self._leading.closed:
            raise _LetGo

    def _fill(self) -> None:
        """Copy the leader's records, while others write."""
        leading, changed = self._leading, self._leading.changed
        with changed:
            before, self.link = self.link, None
            self.state, self._behind = FILLING, 0
            self._queue = queue = deque[LeaderCall]()
            self._informed = leading.informed
        if before is not None:
            with suppress(FanrankError):
                before.close()
        link = self._make()
        with changed:
            closed = leading.closed
            self.link = None if closed else link
        if closed:
            link.close()
            raise _LetGo
        link.send("tag", 0).result(self._until())
        number = 0
        with closing(Records(self._until, [leading.leader], None, copies=True)) as records:
            (moment,) = records.moments.values()
            if moment.number is None:
                raise ShardError("the leader was started anew, and is yet to be told its epoch")
            copying = Backfill(records, {self.number: moment.copies}, lambda namespace, record_id: self.number)
            while not copying.is_level:
                number += 1
                parts, _ = copying.next(PAGE)
                apply_to(link, number, parts[self.number], self._until, oldest=number)
                with changed:
                    self._check(queue)
        self._learn(link, None)
        link.send("tag", moment.number, anew=True).result(self._until())
        with changed:
            self._check(queue)
            self._first = self._last = moment.number
            self.state, self._failure = FOLLOWING, None
            changed.notify_all()

    def _follow(self) -> None:
        """Do all that it was told."""
        changed, queue, link = self._leading.changed, self._queue, self.link
        assert link is not None
        while True:
            with changed:
                self._check(queue)
                if not queue:
                    return
                call = queue[0]
            self._do(link, call)
            with changed:
                self._check(queue)
                queue.popleft()
                self._behind -= call.records
                self.silent = False
                if call.verb in NUMBERED:
                    self._last = max(self._last, call.number)
                if call.verb == "tag":
                    self._first = self._last
                changed.notify_all()

    def _do(self, link: Link, call: LeaderCall) -> None:
        if call.verb in NUMBERED and call.number <= self._last:
            pass  # it was filled with that
        elif call.verb in NUMBERED:
            how = dict(call.keywords)
            if call.verb == "apply":
                # A record may have expired since the leader removed it.
                how |= {"missing_ok": True, "tracked": ()}
            answer = link.send("follow", call.after, call.verb, *call.arguments, **how).result(self._until())
            if isinstance(answer, Gone):
                raise ShardError("it has missed a write" if answer.newest is not None else "it was started anew")
            if call.verb == "tag":
                # A leader that was started anew has forgotten what it learned since its last checkpoint.
                self._learn(link, None)
        elif call.verb in LEARNING:
            self._learn(link, call.namespaces)
            self._note_informed()
        else:
            link.send(call.verb, *call.arguments, **call.keywords).result(self._until())
            if call.verb != "newest":
                self._note_informed()

    def _note_informed(self) -> None:
        with self._leading.changed:
            self._informed += 1

    def _learn(self, link: Link, namespaces: list[str] | None) -> None:
        """Take over what the leader has learned of these namespaces or (None) of all."""
        learned = self._leading.leader.send("learned", namespaces).result(self._until())
        link.send("learn", learned, alone=namespaces is None).result(self._until())


def report(number: int, state: str, messages: int, lag: int = 0, failure: str | None = None) -> dict[str, Any]:
    """What the statistics say of a replica."""
    return {"replica": number, "state": state, "messages": messages, "lag": lag, "failure": failure}
