"""Replicas for reads: followers hold the records of a shard, the leader, once more in memory.

::

    write ── leader ── acknowledged ──> queue of each follower ── follower
    read at an epoch ── the leader, or a follower that holds the leader's state of that epoch

A write goes to the leader alone, and followers get it once the leader has acknowledged it. So they never delay a write,
and no write fails by them. The epoch of a read is the number of a write of the leader. A follower answers from the
state after that very write or not at all, so it does not matter who answers.

A follower that misses something is let go of, and filled anew (`followers.py`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...engine.errors import DeadlineError, FanrankError, ParameterError
from ...engine.serve.calls import LaunchOptions
from ..processes.links import PAUSE, Link, Verb, Waiting, deadline_at
from ..protocol.messages import Acknowledged, Ask, Count, Forward, Gone
from .followers import LOST, Follower, LeaderCall, Leading, Replica, report

READS = frozenset({"ask", "read"})
"""The verbs of `Shard` that read at an epoch, which they name first. Any replica may answer them."""

OWN = frozenset(
    {"describe", "newest", "last_write", "live", "strangers", "strays", "counts", "holdings", "learned"}
    | {"still", "call", "stats", "verify", "shown", "keys"}
    | {"prepare", "forget", "finish", "drop_copies"}
)
"""The verbs that the leader alone is sent, and that change nothing that a search finds. Of all others followers are
told."""

KEPT, LEAST = 64, 0.1
"""A late read goes to another replica too: one that takes twice as long as the longest of the last 64 reads, and at
least 0.1 s. Where all replicas have much to do, that time grows with theirs. Ray takes two seconds to say that a
process has ended."""


TURN = 0.02
"""Seconds for which each of several replicas is waited for in turn, once all were asked."""


class ReplicatedLink(Leading):
    """The way to a shard that has several replicas: its leader, and so many followers, which `make` starts.

    `recover` tags shards that were started anew. With `background` off, `catch_up` works for the followers.
    """

    def __init__(
        self,
        leader: Link,
        make: Callable[[], Link],
        followers: int,
        deadline: float,
        recover: Callable[[], None],
        *,
        background: bool = True,
    ) -> None:
        super().__init__(leader, deadline, background)
        self.lead = Replica(leader)
        self.followers = [Follower(self, number, make) for number in range(1, followers + 1)]
        self._recover = recover
        self._turn = 0
        self._times: deque[float] = deque(maxlen=KEPT)  # seconds of the last reads
        self._bringing: threading.Thread | None = None

    def send(self, verb: Verb, *arguments: Any, **keywords: Any) -> Waiting:
        if verb in READS:
            return _Read(self, verb, arguments, keywords)
        if verb in OWN:
            return self.leader.send(verb, *arguments, **keywords)
        if verb == "apply":
            with self.changed:
                self.pending = True
        return _Write(self, LeaderCall(verb, arguments, keywords), self.leader.send(verb, *arguments, **keywords))

    def close(self) -> None:
        with self.changed:
            self.closed = True
            bringing = self._bringing
            self.changed.notify_all()
        for follower in self.followers:
            follower.close()
        if bringing is not None:
            bringing.join()
        self.leader.close()

    def catch_up(self) -> None:
        """Fill the followers that are to be filled, and let all do what they were told."""
        for follower in self.followers:
            follower.work()

    def report(self) -> list[dict[str, Any]]:
        """Of each replica, the leader first: what it does, the reads that it was sent, and by how much it lags."""
        with self.changed:
            state = "away" if self.lead.silent else "leading"
            return [report(0, state, self.lead.messages), *(follower.report() for follower in self.followers)]

    def note(self, call: LeaderCall, answer: Any) -> None:
        """Tell the followers what the leader has done. `answer` is what it said."""
        with self.changed:
            self.lead.silent = False
            call = replace(call, after=self.last)
            if call.verb == "apply":
                # A leader that does not know what became of a write does no other before it is tagged.
                self.pending = False
                if isinstance(answer, Acknowledged):
                    self.last = call.number
                    self._tell(call)
            elif call.verb == "tag":
                if self.pending:
                    # Whether the leader has done its last write, the followers cannot know.
                    self.pending = False
                    for follower in self.followers:
                        if follower.state != LOST:
                            follower.let_go("the leader ended or failed in the middle of a write")
                self.last = call.number
                self._tell(call)
                for follower in self.followers:
                    follower.start()
            else:
                self.informed += 1
                self._tell(call)
            self.changed.notify_all()

    def _tell(self, call: LeaderCall) -> None:
        for follower in self.followers:
            follower.tell(call)

    def choose(self, epoch: int, tried: list[Replica], exact: bool) -> tuple[Replica, Link] | None:
        """(who is asked next at an epoch, by which way); None: nobody.

        The leader alone is asked where `exact` says so. The fewest messages under way decide; equal ones take turns, so
        that no replica is cold when others end.
        """
        with self.changed:
            able = self._able(epoch, tried, exact)
            if not able:
                return None
            # Those that did not answer the last time are asked when others do not either.
            able = [each for each in able if not each.silent] or able
            self._turn += 1
            first = self._turn % len(able)
            chosen = min([*able[first:], *able[:first]], key=lambda each: each.under_way)
            chosen.under_way += 1
            chosen.messages += 1
            assert chosen.link is not None
            return chosen, chosen.link

    def may_ask(self, epoch: int, tried: list[Replica], exact: bool) -> bool:
        """Whether there is a replica that was not asked."""
        with self.changed:
            return bool(self._able(epoch, tried, exact))

    def patience(self) -> float | None:
        """Seconds after which a read goes to another replica; None before any was answered."""
        with self.changed:
            return max(LEAST, 2 * max(self._times)) if self._times else None

    def _able(self, epoch: int, tried: list[Replica], exact: bool) -> list[Replica]:
        """Who may be asked at an epoch. The caller holds `changed`."""
        followers = [] if exact else [each for each in self.followers if each.holds(epoch)]
        return [each for each in (self.lead, *followers) if each not in tried]

    def note_read(self, replica: Replica, via: Link, answer: Any, seconds: float, counted: bool) -> None:
        """Take note that a replica answered a read, by which error it did not, or (None) that nobody waits for it.

        `seconds` is how long that took, and `counted` whether it counts among those under way.
        """
        with self.changed:
            replica.under_way -= counted
            if answer is None or self.closed:
                return
            restarted = isinstance(answer, Gone) and answer.newest is None
            failed = restarted or isinstance(answer, FanrankError)
            if not failed:
                self._times.append(seconds)
            if isinstance(replica, Follower):
                if failed and replica.link is via:
                    replica.fail(answer)
                return
            replica.silent = failed
            if failed and self.background and self._bringing is None:
                self._bringing = threading.Thread(target=self._bring_back, name="fanrank-leader", daemon=True)
                self._bringing.start()

    def _bring_back(self) -> None:
        """Ask the leader whether it is there again, until it is. Searches do not, as followers answer them."""
        while True:
            with self.changed:
                if self.closed or not self.lead.silent:
                    self._bringing = None
                    return
            with suppress(FanrankError):
                if self.leader.send("newest").result(deadline_at(self.deadline)) is None:
                    self._recover()
                else:
                    with self.changed:
                        self.lead.silent = False
            with self.changed:
                self.changed.wait_for(lambda: self.closed or not self.lead.silent, PAUSE)


class _Write:
    """Something that changes the leader, on its way."""

    def __init__(self, link: ReplicatedLink, call: LeaderCall, waiting: Waiting) -> None:
        self._link, self._call, self._waiting = link, call, waiting

    def result(self, until: float | None) -> Any:
        answer = self._waiting.result(until)
        self._link.note(self._call, answer)
        return answer


@dataclass(eq=False)
class _Asked:
    """A replica that was sent a read and has not answered."""

    replica: Replica
    via: Link
    waiting: Waiting
    began: float
    silent: bool = False
    """Whether another one was asked meanwhile."""


class _Read:
    """A read on its way to one replica, and if need be to the others."""

    def __init__(self, link: ReplicatedLink, verb: Verb, arguments: tuple[Any, ...], keywords: Mapping[str, Any]):
        asked = arguments[0]
        self._link, self._verb, self._arguments, self._keywords = link, verb, arguments, keywords
        self._epoch: int = asked.epoch if isinstance(asked, Ask) else asked
        self._exact = isinstance(asked, Ask) and is_approximate(asked)
        self._tried: list[Replica] = []
        self._asked: list[_Asked] = []
        self._send()

    def _send(self) -> bool:
        """Ask the next replica; False where there is none."""
        chosen = self._link.choose(self._epoch, self._tried, self._exact)
        if chosen is None:
            return False
        replica, via = chosen
        self._tried.append(replica)
        began = time.monotonic()
        if isinstance(replica, Follower):
            waiting = via.send("as_of", self._verb, *self._arguments, **self._keywords)
        else:
            waiting = via.send(self._verb, *self._arguments, **self._keywords)
        self._asked.append(_Asked(replica, via, waiting, began))
        return True

    def result(self, until: float | None) -> Any:
        """As `Waiting.result`: what a replica answers; where none does, what the leader says."""
        leaders: Any = None
        while self._asked:
            asked = self._asked[-1]
            began, limit = time.monotonic(), self._limit(asked, until)
            try:
                answer = asked.waiting.result(limit)
            except FanrankError as error:
                answer = error
            # A wait may end a moment early. What a replica says of a deadline of its own comes at once, and is final.
            late = limit is not None and 2 * time.monotonic() >= began + limit
            waits = isinstance(answer, DeadlineError) and limit != until and late
            self._note(asked, answer)
            if waits:
                # Another one is asked; where none is left, all that were asked are looked at in turn.
                if not self._send():
                    self._asked.insert(0, self._asked.pop())
                continue
            self._asked.remove(asked)
            if not isinstance(answer, (Gone, FanrankError)):
                return answer
            if asked.replica is self._link.lead:
                leaders = answer
            self._send()
        if isinstance(leaders, FanrankError):
            raise leaders
        return leaders

    def _note(self, asked: _Asked, answer: Any) -> None:
        counted, asked.silent = not asked.silent, asked.silent or isinstance(answer, DeadlineError)
        self._link.note_read(asked.replica, asked.via, answer, time.monotonic() - asked.began, counted)

    def _limit(self, asked: _Asked, until: float | None) -> float | None:
        """Until when one replica is waited for before the next."""
        now = time.monotonic()
        if asked.silent and len(self._asked) > 1:
            return now + TURN if until is None else min(now + TURN, until)
        if len(self._asked) == 1 and not self._link.may_ask(self._epoch, self._tried, self._exact):
            return until
        patience = self._link.patience()
        limits = [] if patience is None else [now + patience]
        limits += [] if until is None else [(now + until) / 2]
        return min(limits, default=None)

    def __del__(self) -> None:
        for asked in self._asked:
            self._link.note_read(asked.replica, asked.via, None, 0.0, not asked.silent)


def replicas_of(link: Link) -> list[dict[str, Any]]:
    """What `ReplicatedLink.report` says; nothing where a shard has no followers."""
    return link.report() if isinstance(link, ReplicatedLink) else []


def check_replicas(replicas: object) -> None:
    """Raise `ParameterError` unless it is a number of replicas."""
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise ParameterError(f"replicas must be 1 (the shard alone) or more, not {replicas!r}")


def is_approximate(ask: Ask) -> bool:
    """Whether any query searches a graph of neighbours. Those of two replicas may find other candidates."""
    for item in ask.items:
        if not isinstance(item, Count):
            answerer = item.answerer if isinstance(item, Forward) else item.strategy
            if answerer is not None and LaunchOptions(answerer, item.options, False).approximate:
                return True
    return False
