"""Kills shards, and the owner of a sharded memory, with SIGKILL in the middle of writes, batches of queries and moves.

The promise: every batch of writes that was acknowledged is there afterwards, none is there by half or twice, and every
answer is that of one engine after some of the writes: at least those acknowledged when it was asked for, at most those
sent when it came. Afterwards each record lies in one shard, that of the table.
``python -m tests.support.shard_kills --rounds 100 --owners 100 --seed 1``.

Writes are made from a seed and a number, so that any process makes the same. An oracle, one engine in memory, does them
again and says what each state answers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fanrank as fr
from fanrank.engine.errors import ShardError
from fanrank.shards.engine import ShardedEngine

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
# As in `sharding.py`: this file is a script too, which imports no neighbour.
FOLDER = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
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


@contextmanager
def running_ray() -> Iterator[str]:
    """The address of a Ray of this process, whose actors end with their owners."""
    import ray

    from fanrank.shards.processes.cluster import Cluster

    cluster = Cluster.connect(None)
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        cluster.close()


class Owner:
    """A process that owns the memory of a folder, at a Ray that others started or (None) its own."""

    def __init__(self, path: Path, address: str | None, seed: str, done: Sequence[int], maybe: int | None) -> None:
        asked = json.dumps([str(path), address, seed, list(done), maybe])
        self.done, self.sent = list(done), maybe
        command = [sys.executable, __file__, "--owner"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        self.process.stdin.write(asked)
        self.process.stdin.close()
        self._events: list[tuple[str, Any]] = []
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                event, value = json.loads(line)
                if event == "found":
                    self.done = value
                    self.sent = None
                elif event == "sent":
                    self.sent = value
                elif event == "done":
                    self.done.append(value)
                    self.sent = None
                self._events.append((event, value))

    def said(self, event: str) -> list[Any]:
        if broken := [value for name, value in self._events if name == "broken"]:
            raise Broken(broken[0])
        if self.process.poll() is not None and not self.thread.is_alive():
            raise Broken(f"the owner ended with {self.process.returncode}")
        return [value for name, value in self._events if name == event]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()


def kill_owners(address: str | None, seed: str, rounds: int, told: Told) -> None:
    """Kill the owners of one new memory, so many rounds. Raises `Broken`."""
    made = random.Random(seed)
    done: list[int] = []
    maybe: int | None = None
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        for _ in range(rounds):
            writes, later = made.randint(*WRITES), made.uniform(0.0, LATER)
            owner = _owned(Path(folder) / "memory", address, seed, (done, maybe), told, (writes, later))
            told.writes += len(owner.done) - len(done)
            told.kills += 1
            done, maybe = owner.done, owner.sent
            told.in_flight += maybe is not None
        _owned(Path(folder) / "memory", address, seed, (done, maybe), told, None)


def _owned(
    path: Path,
    address: str | None,
    seed: str,
    known: tuple[list[int], int | None],
    told: Told,
    kill: tuple[int, float] | None,
) -> Owner:
    """An owner that has found all that is known, and was killed after so many writes and seconds more (None: none)."""
    began = time.monotonic()
    owner = Owner(path, address, seed, *known)
    try:
        _wait(lambda: bool(owner.said("found")))
        if known[0]:
            told.recovery.append(time.monotonic() - began)
        if kill is not None:
            writes = len(owner.done) + kill[0]
            _wait(lambda: bool(owner.said("done")) and len(owner.done) >= writes)
            time.sleep(kill[1])
    finally:
        owner.kill()
    return owner


def own() -> None:
    """What an owner's process does: it checks what it finds, then it writes and searches until it is killed."""
    path, address, seed, done, maybe = json.loads(sys.stdin.read())

    def tell(event: str, value: Any) -> None:
        print(json.dumps([event, value]), flush=True)

    oracle = Oracle(seed)
    try:
        with open_memory(Path(path), address) as memory:
            for number in done:
                oracle.write(number)
            different = oracle.differs(memory)
            if different and maybe is not None:
                oracle.write(maybe)
                done, different = [*done, maybe], oracle.differs(memory) and different
            if different:
                raise Broken(f"after {len(done)} writes and a kill of the owner: {different}")
            tell("found", done)
            first = len(done)
            # The number of a write that is not there is not used again.
            life = Life(memory, seed, done, oracle.model, tell)
            life.sent += [] if maybe is None or maybe in done else [maybe]
            oracle = Oracle(seed)
            life.start()
            while not life.failures:
                time.sleep(0.01)
            life.check(first, oracle)
    except BaseException as error:
        tell("broken", f"{type(error).__name__}: {error}")
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and print what they did. Returns 1 if one of them broke the promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.shard_kills")
    parser.add_argument("--rounds", type=int, default=100, help="kills of shards")
    parser.add_argument("--owners", type=int, default=100, help="kills of owners")
    parser.add_argument("--each", type=int, default=10, help="rounds of one memory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="append the rows to this JSON lines file")
    parser.add_argument("--owner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.owner:
        own()
        return 0
    broken = 0
    for what, rounds in (("shards", options.rounds), ("owners", options.owners)):
        told, wrong = Told(), 0
        for begin in range(0, rounds, options.each):
            seed, some = f"{options.seed} {what} {begin}", min(options.each, rounds - begin)
            try:
                if what == "shards":
                    with (
                        tempfile.TemporaryDirectory(dir=FOLDER) as folder,
                        open_memory(Path(folder) / "memory", None) as memory,
                    ):
                        kill_shards(memory, seed, some, told)
                elif begin:
                    with running_ray() as address:
                        kill_owners(address, seed, some, told)
                else:
                    kill_owners(None, seed, some, told)
            except Broken as error:
                wrong += 1
                print(f"{what}, rounds from {begin}: {error}", file=sys.stderr, flush=True)
        broken += wrong
        recovery = sorted(told.recovery)
        row = {
            "bench": "shardkills",
            "killed": what,
            "seed": options.seed,
            "rounds": rounds,
            "broken": wrong,
            "kills": told.kills,
            "acknowledged_writes": told.writes,
            "writes_in_flight": told.in_flight,
            "searches": told.searches,
            "moves": told.moves,
            "kills_in_moves": told.in_moves,
            "moves_interrupted": told.interrupted,
            "recovery_seconds_median": recovery[len(recovery) // 2] if recovery else None,
            "recovery_seconds_most": recovery[-1] if recovery else None,
        }
        print(json.dumps(row), flush=True)
        if options.results is not None:
            _record(row, options.results)
    return int(broken > 0)


def _record(row: dict[str, Any], path: Path) -> None:
    """Append a row with its machine, code and date."""
    # Only the command needs bench; the tests run without it.
    from bench.harness.methods import stamp_rows

    with path.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps({**row, **stamp_rows("shardkills")}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
