"""Kills shards, and the owner of a sharded memory, with SIGKILL in the middle of writes, batches of queries and moves.

The promise: every batch of writes that was acknowledged is there afterwards, none is there by half or twice, and every
answer is that of one engine after some of the writes: at least those acknowledged when it was asked for, at most those
sent when it came. Afterwards each record lies in one shard, that of the table.
`bench.shard_kills` does many rounds.

Writes are made from a seed and a number, so that any process makes the same. An oracle, one engine in memory, does them
again and says what each state answers.
"""

import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fanrank as fr
from fanrank.engine.errors import ShardError
from fanrank.shards.engine import ShardedEngine

from .sharding import FOLDER

SHARDS = 3
SPLIT = "big"
TEAMS = ("team/a", "team/b", "team/c", "team/d")
WORDS = ("ant", "bee", "cat", "dog", "elk")
MOST = 60
"""Records of a namespace from which on deletions are as frequent as additions."""
DEADLINE = 120.0
"""Seconds that a write or a search may take, with all restarts."""
PAGE = 8
"""Records that a move copies at a time, so that it takes several pages."""
WRITES, LATER = (1, 8), 0.05
"""A kill comes after so many acknowledged writes, and up to so many seconds later."""
QUERIES = (
    *(fr.Query(text, namespace=SPLIT) for text in ("ant", "bee cat", "mark", "dog elk elk")),
    *(fr.Query(text, namespace=team) for team in TEAMS for text in ("ant mark", "bee elk")),
    fr.Query("cat mark", namespaces=(SPLIT, *TEAMS)),
)
K = 2 * MOST

AnyEngine = fr.Engine | ShardedEngine
Model = dict[str, set[str]]
"""The ids of each namespace."""


class Broken(Exception):
    """The promise does not hold."""


def next_write(seed: str, number: int, model: Model) -> tuple[Callable[[AnyEngine], int], Model]:
    """(the write with this number over a memory of these ids, the ids after it)."""
    made = random.Random(f"{seed} {number}")
    after = {name: set(ids) for name, ids in model.items()}
    kind = made.choice(("spread", "spread", "spread", "one", "delete", "delete one"))
    space = made.choice(TEAMS) if kind.endswith("one") else SPLIT
    if kind.startswith("delete") and after[space]:
        ids = made.sample(sorted(after[space]), made.randint(1, min(12, len(after[space]))))
        after[space].difference_update(ids)
        missing_ok = made.random() < 0.5
        if missing_ok:
            ids.append("nobody")
        return lambda engine: engine.delete(ids, namespace=space, missing_ok=missing_ok), after
    spaces = (
        [made.choice((SPLIT, SPLIT, *TEAMS)) for _ in range(made.randint(4, 12))] if space == SPLIT else [space] * 3
    )
    rows: dict[tuple[str, str], fr.Record] = {}
    for place, name in enumerate(spaces):
        old = len(after[name]) >= MOST or (after[name] and made.random() < 0.3)
        record_id = made.choice(sorted(after[name])) if old else f"{number}-{place}"
        text = " ".join(made.choices((*WORDS, "mark"), k=made.randint(0, 5)))
        rows[name, record_id] = fr.Record(record_id, text, namespace=name)
    for name, record_id in rows:
        after[name].add(record_id)
    return lambda engine: engine.upsert(list(rows.values())), after


def answers_of(engine: AnyEngine, *, coalesced: bool = False) -> Any:
    """What a memory answers to all queries, at one moment; `coalesced` in a launch with other callers."""
    hits = engine.submit(QUERIES, k=K).result() if coalesced else engine.search(QUERIES, k=K)
    return [[(hit.namespace, hit.id, hit.score) for hit in found] for found in hits]


class Oracle:
    """One engine that does the writes again."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.engine = fr.Engine()
        self.model: Model = {name: set() for name in (SPLIT, *TEAMS)}

    def write(self, number: int) -> int:
        write, self.model = next_write(self.seed, number, self.model)
        return write(self.engine)

    def write_to(self, memory: ShardedEngine, number: int) -> None:
        """Do the write with this number here and in a memory, which must return the same."""
        write, _ = next_write(self.seed, number, self.model)
        assert write(memory) == self.write(number)

    def differs(self, memory: ShardedEngine, *, placed: bool = True) -> str | None:
        """In what a memory differs from this engine, or (`placed`) its shards from its table; None if in nothing."""
        for name, ids in self.model.items():
            found = list(memory.ids(namespace=name))
            if found != list(self.engine.ids(namespace=name)):
                lost, more = sorted(ids.difference(found))[:3], sorted({*found} - ids)[:3]
                return f"namespace {name!r}: lost {lost}, unexpected {more}, or another order"
            if memory.fetch(found, namespace=name) != self.engine.fetch(found, namespace=name):
                return f"namespace {name!r}: other records"
        if placed and (told := self._misplaced(memory)):
            return told
        return None if answers_of(memory) == answers_of(self.engine) else "other answers"

    def _misplaced(self, memory: ShardedEngine) -> str | None:
        """What lies in another shard than the table says, or in two."""
        held = memory.holdings()
        placement = memory.coordinator.placement
        for name, ids in self.model.items():
            shards = {shard: own[name][0] for shard, own in held.items() if name in own}
            if sum(shards.values()) != len(ids) or not {*shards} <= {*placement.homes(name)}:
                return f"namespace {name!r}: {shards} records by shard, of {len(ids)} in {placement.homes(name)}"
        if moving := memory.coordinator.moving():
            return f"copies are left of {moving}"
        extra = {number: count for number, count in memory.verify().items() if number in ("missing", "extra") and count}
        return f"verify says {extra}" if extra else None


def open_memory(path: Path, address: str | None) -> ShardedEngine:
    """The memory in a folder, with a namespace over all shards but one."""
    memory = ShardedEngine.open(path, shards=SHARDS, address=address, deadline=DEADLINE)
    coordinator = memory.coordinator
    if SPLIT not in coordinator.placement.split:
        coordinator.place(SPLIT, coordinator.parts_of(SPLIT, SHARDS - 1))
    coordinator.page = PAGE
    return memory


@dataclass
class Life:
    """One owner of a memory: a thread that writes, one that moves, and two that search, until they are told to stop."""

    memory: ShardedEngine
    seed: str
    done: list[int]
    """The numbers of the writes that are in the memory, in their order."""
    model: Model
    tell: Callable[[str, int], None] = lambda _event, _number: None
    sent: list[int] = field(default_factory=list)
    movable: bool = True
    """Whether one thread moves namespaces."""
    counts: dict[int, int] = field(default_factory=dict)
    """What each write returned."""
    searches: list[tuple[int, int, float, float, Any]] = field(default_factory=list)
    """(writes acknowledged when it was asked for, writes sent when it came, both times, the answers)."""
    moves: int = 0
    interrupted: int = 0
    """Moves that were given up, as shards were started anew."""
    moving: bool = False
    failures: list[BaseException] = field(default_factory=list)
    stopped: bool = False

    def __post_init__(self) -> None:
        self.sent = list(self.done)
        self._threads = [
            threading.Thread(target=self._try, args=(work,))
            for work in (self._write, self._search, partial(self._search, coalesced=True), *[self._move] * self.movable)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopped = True
        for thread in self._threads:
            thread.join()

    def _try(self, work: Callable[[], None]) -> None:
        try:
            while not self.stopped and not self.failures:
                work()
        except BaseException as error:
            self.failures.append(error)

    def _write(self) -> None:
        number = self.sent[-1] + 1 if self.sent else 0
        write, after = next_write(self.seed, number, self.model)
        self.tell("sent", number)
        self.sent.append(number)
        self.counts[number] = write(self.memory)
        self.done.append(number)
        self.tell("done", number)
        self.model = after

    def _move(self) -> None:
        """Move a whole namespace, or a part of the split one, to a shard that holds nothing of it."""
        made = random.Random(f"{self.seed} {len(self.done)} {self.moves} {self.interrupted}")
        coordinator = self.memory.coordinator
        name = made.choice((SPLIT, *TEAMS))
        homes = list(coordinator.placement.homes(name))
        free = [shard for shard in range(coordinator.placement.shards) if shard not in homes]
        homes[made.randrange(len(homes))] = made.choice(free)
        self.moving = True
        try:
            coordinator.place(name, tuple(homes))
            self.moves += 1
        except ShardError as error:
            if "started anew" not in str(error):
                raise
            self.interrupted += 1
        finally:
            self.moving = False
        time.sleep(0.01)

    def _search(self, *, coalesced: bool = False) -> None:
        least, began = len(self.done), time.monotonic()
        answers = answers_of(self.memory, coalesced=coalesced)
        ended, most = time.monotonic(), len(self.sent)
        self.searches.append((least, most, began, ended, answers))

    def check(self, first: int, oracle: Oracle) -> None:
        """Hold all that was answered since against an oracle that has done the first so many writes."""
        if self.failures:
            raise Broken(f"{type(self.failures[0]).__name__}: {self.failures[0]}") from self.failures[0]
        states = {first: answers_of(oracle.engine)}
        for place in range(first, len(self.done)):
            number = self.done[place]
            count = oracle.write(number)
            if count != self.counts[number]:
                raise Broken(f"write {number} returned {self.counts[number]}, and one engine {count}")
            states[place + 1] = answers_of(oracle.engine)
        for least, most, _, _, answers in self.searches:
            if not any(states[place] == answers for place in range(max(least, first), min(most, len(self.done)) + 1)):
                raise Broken(f"an answer is that of none of the states {least} to {most}: lost, half or wrong")
        self.searches.clear()
        if told := oracle.differs(self.memory):
            raise Broken(f"after {len(self.done)} writes: {told}")


@dataclass
class Told:
    """What rounds did."""

    kills: int = 0
    writes: int = 0
    searches: int = 0
    in_flight: int = 0
    in_moves: int = 0
    """Kills while a move was under way."""
    moves: int = 0
    interrupted: int = 0
    recovery: list[float] = field(default_factory=list)
    """Seconds from each kill to the first answer of all shards that was asked for after it."""


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not until():
        if time.monotonic() > end:
            raise Broken("nothing happened until the deadline")
        time.sleep(0.001)


def kill_shards(memory: ShardedEngine, seed: str, rounds: int, told: Told) -> None:
    """Kill shards of one new memory, so many rounds. Raises `Broken`."""
    made, oracle = random.Random(seed), Oracle(seed)
    done: list[int] = []
    for _ in range(rounds):
        _kill_some(memory, made, oracle, done, told)


def _kill_some(memory: ShardedEngine, made: random.Random, oracle: Oracle, done: list[int], told: Told) -> None:
    from fanrank.shards.processes.cluster import ActorLink  # needs Ray, which the tests of writes have not

    first = len(done)
    life = Life(memory, oracle.seed, done, {name: set(ids) for name, ids in oracle.model.items()})
    killed = made.sample(range(SHARDS), made.choice((1, 1, 1, 2)))
    links = [memory.coordinator.links[shard] for shard in killed]
    pids = [link.process(time.monotonic() + DEADLINE) for link in links if isinstance(link, ActorLink)]
    writes, later = first + made.randint(*WRITES), made.uniform(0.0, LATER)
    life.start()
    try:
        _wait(lambda: len(done) >= writes or bool(life.failures))
        time.sleep(later)
        told.in_flight += len(life.sent) - len(done)
        told.in_moves += life.moving
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        _wait(lambda: any(one[2] > killed_at for one in life.searches) or bool(life.failures))
        more = len(done) + 2
        _wait(lambda: len(done) >= more or bool(life.failures))
    finally:
        life.stop()
    told.kills += len(pids)
    told.writes += len(done) - first
    told.searches += len(life.searches)
    told.moves += life.moves
    told.interrupted += life.interrupted
    after = [one[3] for one in life.searches if one[2] > killed_at]
    life.check(first, oracle)
    told.recovery.append(min(after) - killed_at)


class Owner:
    """A process that owns the memory of a folder, at a Ray that others started or (None) its own.

    It has found the writes `done`, and the write `maybe` or not; it was `sent` a write that it has not acknowledged.
    """

    def __init__(self, path: Path, address: str | None, seed: str, done: list[int], maybe: int | None) -> None:
        self.done, self.sent, self.found = done, maybe, False
        spawning = multiprocessing.get_context("spawn")
        self._events, sending = spawning.Pipe(duplex=False)
        self.process = spawning.Process(target=_own, args=(sending.send, path, address, seed, done, maybe))
        self.process.start()
        sending.close()

    def listen(self, until: Callable[[], bool] = lambda: False) -> None:
        """Take in what the process says, until it has said enough. Raises `Broken` where it ends before."""
        while not until():
            if not self._events.poll(DEADLINE):
                raise Broken("nothing happened until the deadline")
            try:
                event, value = self._events.recv()
            except (EOFError, OSError):  # an error where it was killed in the middle of a word
                raise Broken(f"the owner ended with {self.process.exitcode}") from None
            if event == "broken":
                raise Broken(value)
            self.done = value if event == "found" else [*self.done, value] if event == "done" else self.done
            self.sent = value if event == "sent" else None
            self.found = True

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        with suppress(Broken):  # what it said before it ended
            self.listen()


def kill_owners(address: str | None, seed: str, rounds: int, told: Told) -> None:
    """Kill the owners of one new memory, so many rounds. Raises `Broken`."""
    made = random.Random(seed)
    done: list[int] = []
    maybe: int | None = None
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        # The last one looks only at what the one before it left.
        for last in [False] * rounds + [True]:
            began, known = time.monotonic(), len(done)
            owner = Owner(Path(folder) / "memory", address, seed, done, maybe)
            try:
                owner.listen(lambda owner=owner: owner.found)  # type: ignore[misc]
                if known:
                    told.recovery.append(time.monotonic() - began)
                if not last:
                    writes = len(owner.done) + made.randint(*WRITES)
                    owner.listen(lambda owner=owner, writes=writes: len(owner.done) >= writes)  # type: ignore[misc]
                    time.sleep(made.uniform(0.0, LATER))
            finally:
                owner.kill()
            if not last:
                done, maybe = owner.done, owner.sent
                told.writes += len(done) - known
                told.kills += 1
                told.in_flight += maybe is not None


def _own(
    tell: Callable[[tuple[str, Any]], None],
    path: Path,
    address: str | None,
    seed: str,
    done: list[int],
    maybe: int | None,
) -> None:
    """What an owner's process does: it checks what it finds, then it writes and searches until it is killed."""
    oracle = Oracle(seed)
    try:
        with open_memory(path, address) as memory:
            for number in done:
                oracle.write(number)
            different = oracle.differs(memory)
            if different and maybe is not None:
                oracle.write(maybe)
                done, different = [*done, maybe], oracle.differs(memory) and different
            if different:
                raise Broken(f"after {len(done)} writes and a kill of the owner: {different}")
            tell(("found", done))
            first = len(done)
            # The number of a write that is not there is not used again.
            life = Life(memory, seed, done, oracle.model, lambda *event: tell(event))
            life.sent += [] if maybe is None or maybe in done else [maybe]
            oracle = Oracle(seed)
            life.start()
            while not life.failures:
                time.sleep(0.01)
            life.check(first, oracle)
    except BaseException as error:
        tell(("broken", f"{type(error).__name__}: {error}"))
        raise
