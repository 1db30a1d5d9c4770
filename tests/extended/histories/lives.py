"""The lives of a directory: processes that write batches, are killed, and are looked at afterwards."""

import json
import os
import random
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import fanrank as fr
from fanrank.engine.storage import failpoints

from . import disks

sys.path.append(str(Path(__file__).resolve().parents[2]))  # As for pytest: the world of the tests stands there.
from support import borders as borders  # kills.py, which cannot find it, takes it from here
from support.history import SIZES
from support.sharding import FOLDER as FOLDER
from support.twins import answers_of
from world import (
    COLUMNS,
    DIMENSION,
    EXPIRY,
    NAMESPACES,
    OPTION_QUERIES,
    PEOPLE,
    PLAIN_QUERIES,
    RARE,
    WINDOW,
    WORDS,
    Model,
    Write,
)

OPTIONS: dict[str, Any] = {
    **{"columns": COLUMNS, "window": WINDOW, "analyzer": "minimal"},
    **{"encoder": f"own:{DIMENSION}", "backend": "numpy"},
}
SMALL = {**SIZES, "PAUSE": 0.0, "MAX_PARTS": 4, "REPLAY_CHUNK": 7, "FETCH_CHUNK": 50, "MAX_ROWS": 8, "FOLD_FRAMES": 40}
PATIENCE = 300.0
"""Seconds after which a life that neither ends nor speaks counts as hung. A server that starts takes 2 s of a core."""
QUERIES = [*PLAIN_QUERIES, *OPTION_QUERIES]


class Broken(Exception):
    """The promise does not hold."""


class Stream:
    """The batches of one writer, a pure function of (seed, number), in namespaces that nobody else writes to."""

    def __init__(self, seed: str, namespaces: Sequence[str]) -> None:
        self.namespaces = tuple(namespaces)
        self._seed = seed
        self._writes: list[Write] = []
        self._states = [Model()]
        self._changes = [0]

    def write(self, number: int) -> Write:
        while len(self._writes) <= number:
            write = self._make(random.Random(f"{self._seed} {len(self._writes)}"), self._states[-1])
            state = self._states[-1].copy()
            replaced = sum(state.live(record.namespace, record.id) for record in write.records)
            state.apply(write)
            self._writes.append(write)
            self._states.append(state)
            self._changes.append(
                self._changes[-1] + len(write.records) + replaced + len(write.ids) + (write.verb == "drop")
            )
        return self._writes[number]

    def forget(self, prefix: int) -> None:
        """Keep no state of before. A history of an hour has tens of thousands."""
        self._states[:prefix] = [Model()] * len(self._states[:prefix])
        self._writes[:prefix] = [Write("drop")] * len(self._writes[:prefix])

    def state(self, prefix: int) -> Model:
        """After the first `prefix` batches."""
        self.write(prefix)
        return self._states[prefix]

    def changes(self, prefix: int) -> int:
        """What the store has counted by then."""
        self.write(prefix)
        return self._changes[prefix]

    def _make(self, rng: random.Random, state: Model) -> Write:
        number = len(self._writes)
        verb = rng.choices(["add", "upsert", "delete", "drop"], [45 if len(state) < 150 else 15, 20, 30, 2])[0]
        if verb in ("delete", "drop") and state.namespaces:
            name = rng.choice(state.namespaces)
            ids = rng.sample(sorted(state.held[name]), min(rng.randint(1, 10), len(state.held[name])))
            return Write("drop", namespace=name) if verb == "drop" else Write("delete", ids=tuple(ids), namespace=name)
        chosen: dict[tuple[str, str], fr.Record] = {}
        for place in range(rng.choice([1, 1, 2, 5, 9, 30])):
            name, record_id = rng.choice(self.namespaces), f"r{rng.randrange(400)}"
            if verb == "upsert" or not state.live(name, record_id):
                chosen[name, record_id] = self._record(rng, name, record_id, number + place / 8)
        return Write("upsert" if verb == "upsert" else "add", tuple(chosen.values()))

    def _record(self, rng: random.Random, namespace: str, record_id: str, moment: float) -> fr.Record:
        words = [rng.choice(WORDS if rng.random() < 0.7 else RARE) for _ in range(rng.randint(0, 8))]
        return fr.Record(
            record_id,
            " ".join([*words, f"n{int(moment)}"]),
            namespace,
            session=rng.choice(["s", "t", None]),
            time=None if rng.random() < 0.1 else moment % 13,
            extra={"project": rng.choice("xyz"), "priority": rng.randrange(3)},
            embedding=[1, rng.randrange(3)] if rng.random() < 0.3 else None,
            weights={rng.choice(WORDS): 0.75} if rng.random() < 0.3 else None,
            entities={"Ana": rng.choice(PEOPLE)} if rng.random() < 0.1 else None,
            payload={"moment": moment} if rng.random() < 0.1 else None,
            expires=EXPIRY if rng.random() < 0.2 else None,
        )


def join(streams: Sequence[Stream], prefixes: Sequence[int]) -> Model:
    """What all writers together have written."""
    states = [stream.state(prefix) for stream, prefix in zip(streams, prefixes, strict=True)]
    return Model(held={name: own for state in states for name, own in state.held.items()})


def same(engine: fr.Engine, state: Model, namespaces: Sequence[str]) -> bool:
    """Whether these namespaces hold the records of the state, in their order."""
    return all(list(engine.records(namespace=name)) == state.all(name) for name in namespaces)


def agree(engine: fr.Engine, state: Model) -> None:
    """Raise `Broken` unless the engine holds and answers what one built at once from the state does."""
    if sorted(engine.namespaces) != state.namespaces or len(engine) != len(state):
        raise Broken(f"the index holds {len(engine)} records in {engine.namespaces}, not those that remain")
    made = fr.Engine.from_records(state.all(None), **OPTIONS)
    here, there = (answers_of(one.search(QUERIES, 15)) for one in (engine, made))
    if here != there:
        wrong = [QUERIES[row] for row in range(len(QUERIES)) if here[row] != there[row]]
        raise Broken(f"answers differ from an engine built at once: {wrong[:2]}")


def no_space() -> None:
    raise OSError(28, "No space left on device")


@dataclass(frozen=True)
class Life:
    """What one child does: opens, writes batches, closes; and what ends it or stands in its way."""

    point: str | None = None  # a failpoint
    count: int = 1
    full: bool = False  # the failpoint says that the disk is full, instead of killing
    batches: int = 250
    backups: bool = False  # made, and restored, one after another while it writes
    fails: str | None = None  # what the disk fails at, once it is open: "sync" for once, "space" from then on
    trace: Path | None = None  # where all that reaches the disk is written down


class Child:
    """The work of a forked child. It never returns into the parent's code."""

    def __init__(self, path: Path, streams: Sequence[Stream], starts: Sequence[set[int]], log: int, life: Life) -> None:
        """`starts` are the prefixes that may be there, of each stream."""
        self.path, self.streams, self.starts, self.log, self.life = path, streams, starts, log, life

    def main(self) -> NoReturn:
        self._guarded(self._live)
        os._exit(0)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            self.say("error", json.dumps(traceback.format_exc(limit=-6)))
            os._exit(0)

    def say(self, *words: object) -> None:
        os.write(self.log, (" ".join(map(str, words)) + "\n").encode())

    def _live(self) -> None:
        life = self.life
        if life.point is not None:
            failpoints.arm(life.point, life.count, self._disk_is_full if life.full else None)
        if life.trace is not None:
            disks.disk().start_trace(str(life.trace).encode())
        self.say("opening")
        engine: Any = fr.Engine.open(self.path, **OPTIONS)
        self.say("open", engine.opened)
        if life.fails is not None:
            getattr(disks.disk(), f"fail_{life.fails}")(life.count)
        stop = threading.Event()
        copier = threading.Thread(target=self._guarded, args=(lambda: self._back_up(engine, stop),))
        if life.backups:
            copier.start()
        work = [
            threading.Thread(target=self._guarded, args=(lambda own=own: self._write(engine, own),))  # type: ignore[misc]
            for own in range(len(self.streams))
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        stop.set()
        if life.backups:
            copier.join()
        if (life.point or "").startswith("renumber"):
            # In the background it comes when there are many unused entries.
            engine.vacuum()
        self.say("closing")
        try:
            engine.close()
        except fr.errors.StorageError:
            if not life.full:
                raise
        self.say("closed")

    def _back_up(self, engine: fr.Engine, stop: threading.Event) -> None:
        number = 0
        while not number or not stop.is_set():
            self.copy(engine, number)
            number += 1

    def copy(self, memory: Any, number: int) -> None:
        """Make a backup, and restore it."""
        made, restored = (f"{what}-{os.getpid()}-{number}" for what in ("backup", "restored"))
        self.say("copy", made)
        memory.backup(self.path.with_name(made))
        self.say("copied", made)
        self.say("copy", restored)
        type(memory).restore(self.path.with_name(made), self.path.with_name(restored))
        self.say("copied", restored)

    def _disk_is_full(self) -> None:
        self.say("fired")
        no_space()

    def _write(self, engine: Any, own: int) -> None:
        stream = self.streams[own]
        start = next((n for n in self.starts[own] if same(engine, stream.state(n), stream.namespaces)), None)
        if start is None:
            raise Broken(f"none of the prefixes {self.starts[own]} is there")
        self.say("survived", own, start)
        for number in range(start, start + self.life.batches):
            write = stream.write(number)
            self.say("begin", own, number)
            try:
                write.run(engine)
            except fr.errors.StorageError:
                if not self.life.full:
                    raise
                # Refused: nothing of it is there, and it can be done once there is room.
                if self.life.fails is not None:
                    disks.disk().heal()
                agree(engine, stream.state(number))
                if not same(engine, stream.state(number), stream.namespaces):
                    raise Broken(f"batch {number} was refused, and yet changed the records") from None
                self.say("full", own, number)
                write.run(engine)
            if self.life.trace is not None:
                disks.disk().mark(number)
            self.say("ack", own, number)


@dataclass
class Tally:
    """What happened in all rounds."""

    rounds: int = 0
    lives: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """By failpoint, or by phase for those by the clock."""
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    in_flight: int = 0
    """Batches that were whole although nobody was told."""
    lost: int = 0
    phantom: int = 0
    named: int = 0
    """Directories that lacked acknowledged changes, and were refused with a word."""
    copies: int = 0
    """Backups, and what was restored of them, compared."""
    rebuilt: int = 0
    verified: int = 0
    """Directories opened and compared."""
    never_reached: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Round:
    """One directory, from its first life to the last look at it."""

    child: Callable[..., Child] = Child
    opened: Callable[[Path], Any] = staticmethod(lambda path: fr.Engine.open(path, **OPTIONS))

    def __init__(self, seed: int, number: int, tally: Tally, root: Path, writers: int = 1) -> None:
        self.rng = random.Random(f"{seed} {number}")
        self.tally, self.root, self.path = tally, root, root / "memory"
        spaces = [NAMESPACES[own::writers] for own in range(writers)]
        self.streams = [Stream(f"{seed} {number} {own}", names) for own, names in enumerate(spaces)]
        self.acked = [0] * writers  # batches
        self.begun = [0] * writers
        self.said: list[str] = []
        self.read = b""
        self.copying: dict[str, list[int]] = {}
        """Copies that were begun, and what was acknowledged by then of the batches of each stream."""
        self.copied: set[str] = set()

    def fork(self, life: Life) -> tuple[int, int]:
        """A living child and the end of its pipe."""
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            starts = [{*pair} for pair in zip(self.acked, self.begun, strict=True)]
            self.child(self.path, self.streams, starts, theirs, life).main()
        os.close(theirs)
        self.tally.lives += 1
        self.said, self.read = [], b""
        return child, ours

    def listen(self, pipe: int, until: Callable[[list[str]], bool] | None = None) -> None:
        """Take in what the child says, until it ends or has said enough."""
        while until is None or not until(self.said):
            ready, _, _ = select.select([pipe], [], [], PATIENCE)
            if not ready:
                raise Broken(f"hung after {self.said[-3:]}")
            if not (got := os.read(pipe, 1 << 16)):
                return
            *lines, self.read = (self.read + got).split(b"\n")
            for line in map(bytes.decode, lines):
                self.said.append(line)
                word, _, rest = line.partition(" ")
                if word in ("begin", "ack"):
                    own, number = map(int, rest.split())
                    (self.begun if word == "begin" else self.acked)[own] = number + 1
                    self.tally.acknowledged += word == "ack"
                elif word == "survived":
                    own, number = map(int, rest.split())
                    self.acked[own] = self.begun[own] = number
                elif word == "copy":
                    self.copying[rest] = list(self.copying.get(rest.replace("restored", "backup"), self.acked))
                elif word == "copied":
                    self.copied.add(rest)
                elif word == "error":
                    raise Broken(f"the child failed:\n{json.loads(rest)}")

    def live(self, life: Life, phase: str | None = None, delay: float = 0.0) -> bool:
        """One life; `phase` and `delay` (seconds into it) say when it is killed. Whether it was."""
        child, pipe = self.fork(life)
        try:
            if phase is not None:
                self.listen(pipe, lambda said: any(line.split()[0] == phase for line in said))
                time.sleep(delay)
                os.kill(child, signal.SIGKILL)
            self.listen(pipe)
        finally:
            killed = self.bury(child, pipe)
        if killed:
            self.tally.kills[life.point or f"by the clock: {phase}"] += 1
        return killed

    def bury(self, child: int, pipe: int) -> bool:
        os.kill(child, signal.SIGKILL)
        os.close(pipe)
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)

    def copy(self) -> Path:
        """The directory as it is now, elsewhere."""
        target = self.root / "copy"
        shutil.rmtree(target, ignore_errors=True)
        if self.path.exists():
            shutil.copytree(self.path, target)
        else:  # the first life was killed before it made it
            target.mkdir()
        return target

    def look_at_copies(self) -> None:
        """Compare the backups that were made since the last look, and delete them.

        A copy that is there is whole. It holds what was acknowledged before it was begun, and nothing that was not.
        """
        for name, acked in self.copying.items():
            path = self.path.with_name(name)
            if path.exists():
                with self.opened(path) as engine:
                    type(engine).check_backup(path)
                    agree(engine, join(self.streams, self.prefixes(engine, acked)))
                self.tally.copies += 1
            elif name in self.copied:
                raise Broken(f"{name} was made, and is not there")
            for left in (path, *self.root.glob(f"{name}.partial-*")):
                shutil.rmtree(left, ignore_errors=True)
        self.copying, self.copied = {}, set()

    def prefixes(self, engine: fr.Engine, acked: Sequence[int]) -> list[int]:
        """How many batches of each stream are there: those that were acknowledged, or those that were begun too."""
        found = []
        for own, stream in enumerate(self.streams):
            begun = max(self.begun[own], acked[own])
            there = next((n for n in range(begun, -1, -1) if same(engine, stream.state(n), stream.namespaces)), None)
            if there is None or there < acked[own]:
                self.tally.lost += 0 if there is None else acked[own] - there
                self.tally.phantom += there is None
                raise Broken(f"stream {own}: {acked[own]} batches acknowledged, {begun} begun, and {there} are there")
            found.append(there)
        return found

    def look(self, path: Path | None = None, *, damaged: bool = False) -> str:
        """Open the directory (a copy of it, unless `path` is given) and compare; how the index was come by.

        What survived becomes what the next life starts from.
        """
        with fr.Engine.open(path or self.copy(), **OPTIONS) as engine:
            prefixes = self.prefixes(engine, self.acked)
            agree(engine, join(self.streams, prefixes))
            opened, counted = engine.opened or "", engine.stats()["sequence"]
            expected = sum(stream.changes(prefix) for stream, prefix in zip(self.streams, prefixes, strict=True))
            if counted != expected:
                raise Broken(f"the store counts {counted} changes, and there were {expected}")
        self.tally.verified += 1
        self.tally.rebuilt += opened.startswith("built: ") and "no index files" not in opened
        if not damaged and opened not in ("loaded", "built: there were no index files"):
            raise Broken(f"a kill alone damaged the index: {opened}")
        self.tally.in_flight += sum(prefixes) - sum(self.acked)
        self.acked, self.begun = prefixes, list(prefixes)
        return opened
