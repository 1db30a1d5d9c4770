"""`Deciding`: which shards a thread holds while it writes, how a write reaches them, and what is found out where one
does not answer.

Each shard has a lock, which goes to the thread that has waited longest. A write of one shard is known by that shard
alone. One that concerns several is a decision (`protocol/owner.py`): they prepare it, the owner's file decides it, they
carry it out. So it is in all of them or in none. What is not known of a shard is found out by the next thread that
holds it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ...engine.errors import DeadlineError, FanrankError, ShardError, StorageError
from ...engine.locks import FairLock
from ...engine.storage.failpoints import reach
from ..processes.links import Link, UnavailableError, Waiting, call_all, collect, deadline_at, pause
from ..protocol.messages import Acknowledged, Gone, Part
from ..protocol.owner import OwnerFile
from ..protocol.placement import Placement
from ..protocol.statistics import Table

T = TypeVar("T")

WAITED = "another write or move was under way until the deadline; nothing was changed"


@dataclass(frozen=True, eq=False)
class View:
    """What a search reads: the shards as of one moment, and where records lay then."""

    epoch: int
    """The number of the view."""
    epochs: Mapping[int, int]
    """The number of each shard's last write that is seen; also of the shards of whole copies."""
    placement: Placement
    content: int
    """The view of the last write. Moves and copies change no answer."""

    def at(self, shard: int) -> int:
        """The epoch of a shard."""
        return self.epochs.get(shard, 0)


@dataclass(eq=False)
class Decision:
    """What several shards are to do, all or none of them."""

    generation: int
    parts: dict[int, Part]
    decided: bool = False


class Deciding:
    """A part of `Coordinator`. `deadline` is how many seconds a shard has for an answer."""

    view: View

    def __init__(self, owner: OwnerFile, links: Sequence[Link], deadline: float) -> None:
        self.owner = owner
        self.links = links
        self.deadline = deadline
        self._locks = [FairLock() for _ in links]
        self._open: list[Decision] = []  # those that are not carried out, or not dropped, by all their shards
        self._thread = threading.local()
        self.closed = False
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

    @property
    def placement(self) -> Placement:
        """Where records lie by the owner's file. Searches go by that of their view."""
        return self.owner.placement

    def _settle(self) -> None:
        """Find out what is not known of the shards that this thread holds."""
        raise NotImplementedError

    def check_open(self) -> None:
        """Raise `StorageError` once the memory is closed."""
        if self.closed:
            raise StorageError("the engine is closed")

    def until(self) -> float | None:
        """When an answer that is asked for now must be there, by `time.monotonic`."""
        limit: float | None = getattr(self._thread, "until", None)
        return deadline_at(self.deadline) if limit is None else limit

    @contextmanager
    def _bounded(self, until: float | None = None) -> Iterator[None]:
        """Let all that this thread waits for meanwhile be there by one time: `until`, or a deadline from now on."""
        before = getattr(self._thread, "until", None)
        self._thread.until = before or until or deadline_at(self.deadline)
        try:
            yield
        finally:
            self._thread.until = before

    @contextmanager
    def paused(self) -> Iterator[View]:
        """Hold all writes off. Meanwhile all shards are at the epochs of the view, and at no later ones.

        Raises `DeadlineError`, and `ShardError` where a shard is lost.
        """
        with self.holding():
            yield self.view

    @contextmanager
    def holding(self, namespaces: Iterable[str] | None = None, targets: Iterable[int] = ()) -> Iterator[None]:
        """Hold writes to these namespaces (None: to all) and to the shards of `targets` off.

        What is not known of their shards is found out first.

        A thread that holds some may hold fewer meanwhile, and no others.
        """
        names = None if namespaces is None else list(namespaces)
        while True:
            shards = self._shards_of(names).union(targets)
            with self.holding_shards(shards):
                # A namespace may have moved while this thread waited.
                if self._shards_of(names) <= shards:
                    yield
                    return

    def holds(self, namespaces: Iterable[str]) -> bool:
        """Whether this thread holds writes to all of these namespaces off."""
        return self._held().issuperset(self._shards_of(list(namespaces)))

    def _shards_of(self, namespaces: Collection[str] | None) -> set[int]:
        if namespaces is None:
            return {*range(len(self.links))}
        return {home for name in namespaces for home in self.placement.homes(name)}

    @contextmanager
    def quiet(self, until: float | None) -> Iterator[View]:
        """Hold all writes off, whatever is not known of some shards."""
        with self._bounded(until), self.holding_shards({*range(len(self.links))}, settled=False):
            yield self.view

    @contextmanager
    def holding_shards(self, shards: set[int], *, settled: bool = True) -> Iterator[None]:
        """Hold writes to these shards off. `settled` says whether what is not known of them is found out first."""
        before: frozenset[int] = self._held()
        with ExitStack() as taken:
            held = self._take(shards, taken)
            self._thread.held = before | held
            try:
                self.check_open()
                if settled:
                    self._wait_for(self._settle)
                yield
            finally:
                self._thread.held = before

    def _held(self) -> frozenset[int]:
        """The shards whose locks this thread holds."""
        held: frozenset[int] = getattr(self._thread, "held", frozenset())
        return held

    def _take(self, shards: set[int], taken: ExitStack) -> set[int]:
        """Take the locks of these shards, and of those that share a decision with them. Raises `DeadlineError`."""
        while True:
            wanted = self._with_sharers(shards)
            with ExitStack() as taking:
                # In one order, so that no two threads wait for each other.
                for shard in sorted(wanted):
                    if not self._locks[shard].acquire(self.until()):
                        raise DeadlineError(WAITED)
                    taking.callback(self._locks[shard].release)
                if self._with_sharers(shards) <= wanted:
                    taken.push(taking.pop_all())
                    return wanted

    def _with_sharers(self, shards: set[int]) -> set[int]:
        found = set(shards)
        for _ in self._open:
            for decision in list(self._open):
                if not found.isdisjoint(decision.parts):
                    found |= {*decision.parts}
        return found

    def _wait_for(self, work: Callable[[], T]) -> T:
        """Do work that can be done again, until no shard is in the way that is being started anew."""
        until = self.until()
        while True:
            try:
                return work()
            except UnavailableError as error:  # noqa: PERF203
                pause(until, error)

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
