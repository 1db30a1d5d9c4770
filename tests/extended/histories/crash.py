"""Kills an engine at every moment, damages what it left, and holds what comes back against what was promised.

The promise: after ``kill -9`` an `Engine.open` gives the acknowledged batches and at most the one in flight, whole, and
answers as an engine built at once from what remains does. Run it by
``python -m tests.extended.histories.crash --rounds 300 --seed 1``. ``--round N --seed S`` repeats a round: failpoints
hit the same write again, and a kill by the clock does not.

A round is a few *lives* of one directory. Each is a forked child that writes batches and says so in a pipe, ``begin``
before and ``ack`` after each, until it is killed. Batches are a pure function of seed and number, so that the parent
knows the state after every prefix. It looks at a copy: the next life finds the directory as the kill left it.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import random
import resource
import select
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.records.entities import Relation, Said, parse_term
from fanrank.engine.storage import failpoints
from fanrank.engine.storage import index_files as files
from fanrank.engine.storage import record_store as store
from fanrank.engine.storage.index_files import INDEX
from fanrank.engine.storage.log import NOTE, log_of, note_of

from ...support import borders

OPTIONS: dict[str, Any] = {"columns": {"project": "category", "priority": "number"}, "window": 100.0}
# So small that merges, counted namespaces, closed windows, given-up parts and checkpoints happen every few batches.
SMALL: dict[str, Any] = {
    "MAX_SEGMENT_DOCUMENTS": 64,
    "WINDOW_DOCUMENTS": 16,
    "COUNTED_DOCUMENTS": 40,
    "INLINE_DOCUMENTS": 4,
    "MAX_SEGMENTS": 24,
    "BUILD_CHUNK": 16,
    "CHECKPOINT_CHANGES": 50,
    "LEAST_UNUSED": 2,
    "UNUSED_SHARE": 0.05,
    "DOCUMENTS_PER_UNUSED": 1000,
    "COUNT_SHARE": 0.0,
    "PAUSE": 0.0,
    "MAX_PARTS": 4,
    "REPLAY_CHUNK": 7,
    "FETCH_CHUNK": 50,
    "MAX_ROWS": 8,
}
# Pages of the log before it is folded into the database: all the time, or not within a life.
FOLDED, UNFOLDED = 40, 1 << 20
# A kill loses no written page, be there a disk below or not, and a disk makes the rounds 5 to 10 times longer.
FOLDER = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
# Seconds after which a life that neither ends nor speaks counts as hung.
PATIENCE = 60.0
WORDS = [
    f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe", "ra") for b in ("ton", "ver", "lim", "sa", "dor", "gel", "x")
]
ROLES = (None, "user", "tool")
PEOPLE = ("ana", "ben", "cy", "dee")

# In 2096: no record is swept by the clock of the machine, and a query's own clock can be before or after it.
EXPIRY = 4e9

State = dict[str, dict[str, fr.Record]]
"""Records by namespace and id, in order of their last write."""


class Broken(Exception):
    """The promise does not hold."""


@dataclass(frozen=True)
class Batch:
    """One write, and what it does to a state."""

    verb: str
    namespace: str = ""
    records: tuple[fr.Record, ...] = ()
    ids: tuple[str, ...] = ()

    def run(self, engine: fr.Engine) -> None:
        if self.verb == "add":
            engine.add(self.records)
        elif self.verb == "update":
            engine.update(self.records, insert=True)
        elif self.verb == "delete":
            engine.delete(self.ids, namespace=self.namespace)
        else:
            engine.drop(self.namespace)

    def after(self, state: State) -> tuple[State, int]:
        """The state after the batch, and how many changes the store counts."""
        touched = {record.namespace for record in self.records} or {self.namespace}
        following = {**state, **{name: dict(state.get(name, {})) for name in touched}}
        changes = len(self.records) + len(self.ids) + (self.verb == "drop")
        for record_id in self.ids:
            del following[self.namespace][record_id]
        if self.verb == "drop":
            del following[self.namespace]
        for record in self.records:
            changes += following[record.namespace].pop(record.id, None) is not None
            following[record.namespace][record.id] = record
        return {name: held for name, held in following.items() if held}, changes


class Stream:
    """The batches of one writer, a pure function of (seed, number), in namespaces that nobody else writes to."""

    def __init__(self, seed: str, namespaces: Sequence[str]) -> None:
        self.namespaces = tuple(namespaces)
        self._seed = seed
        self._batches: list[Batch] = []
        self._states: list[State] = [{}]
        self._changes = [0]

    def batch(self, number: int) -> Batch:
        while len(self._batches) <= number:
            batch = self._make(random.Random(f"{self._seed} {len(self._batches)}"), self._states[-1])
            state, changes = batch.after(self._states[-1])
            self._batches.append(batch)
            self._states.append(state)
            self._changes.append(self._changes[-1] + changes)
        return self._batches[number]

    def state(self, prefix: int) -> State:
        """After the first `prefix` batches."""
        self.batch(prefix)
        return self._states[prefix]

    def changes(self, prefix: int) -> int:
        """What the store has counted by then."""
        self.batch(prefix)
        return self._changes[prefix]

    def _make(self, rng: random.Random, state: State) -> Batch:
        number = len(self._batches)
        live = sum(map(len, state.values()))
        verb = rng.choices(["add", "update", "delete", "drop"], [45 if live < 250 else 15, 20, 30, 2])[0]
        if verb in ("delete", "drop") and state:
            name = rng.choice(sorted(state))
            ids = rng.sample(sorted(state[name]), min(rng.randint(1, 10), len(state[name])))
            return Batch("delete", name, ids=tuple(ids)) if verb == "delete" else Batch("drop", name)
        size = rng.choice([1, 1, 2, 5, 9, 40]) if verb == "add" else rng.randint(1, 9)
        chosen: dict[tuple[str, str], fr.Record] = {}
        names = rng.sample(self.namespaces, rng.randint(1, min(2, len(self.namespaces))))
        while len(chosen) < size:
            name = rng.choice(names)
            held = sorted(state.get(name, ()))
            known = verb == "update" and held and rng.random() < 0.8
            record_id = rng.choice(held) if known else f"r{rng.randrange(600)}"
            if verb == "add" and record_id in state.get(name, ()):
                continue
            chosen[name, record_id] = self._record(rng, name, record_id, number * 10.0 + len(chosen) / 8)
        return Batch("update" if verb == "update" else "add", records=tuple(chosen.values()))

    def _record(self, rng: random.Random, namespace: str, record_id: str, moment: float) -> fr.Record:
        late = rng.random() < 0.15
        # Of its own, so that the rounds of before there were entities write the same texts.
        ends = random.Random(f"{namespace} {record_id} {moment}").choices(PEOPLE, k=3)
        words = [WORDS[min(int(rng.expovariate(0.12)), len(WORDS) - 1)] for _ in range(rng.randint(0, 12))]
        return fr.Record(
            record_id,
            " ".join([*words, f"n{int(moment)}"]),
            namespace,
            role=rng.choice(ROLES),
            session=f"s{rng.randrange(6)}",
            time=None if rng.random() < 0.1 else moment - rng.uniform(0, 900) * late,
            importance=rng.choice([None, 0.25, 1.0]),
            extra={"project": rng.choice("abc"), "priority": rng.randrange(5)},
            entities={ends[0].title(): ends[0]} if int(moment) % 30 == 0 else None,
            relations=[Relation(ends[1], ends[2], "knows", valid_to=moment)] if int(moment) % 40 == 0 else None,
            payload={"moment": moment} if int(moment) % 50 == 0 else None,
            expires=EXPIRY if int(moment * 8) % 5 == 0 else None,
        )


def questions(rng: random.Random, namespaces: Sequence[str], now: float) -> list[fr.Query]:
    """One query of each kind a namespace."""
    found = []
    for name in namespaces:
        text = " ".join(rng.choices(WORDS, k=4))
        common = {"text": text, "namespace": name, "k": 15}
        found += [
            fr.Query(**common),
            fr.Query(text="no such word", namespace=name),
            fr.Query(**common, filter=fr.col("project") == "a"),
            fr.Query(**common, filter=fr.col("priority") >= 2, statistics="filtered"),
            fr.Query(**common, now=now, half_life=120.0),
            fr.Query(**common, since=now - 300, until=now - 20),
            fr.Query(**common, windows=2),
            fr.Query(**common, scope=fr.SearchScope.session("s1", None), now=now, half_life=30.0),
        ]
    return found


def agree(engine: fr.Engine, state: State, seed: object, namespaces: Sequence[str]) -> None:
    """Raise `Broken` unless the engine answers as one built at once from the state. Tolerance zero."""
    if set(engine.namespaces) != set(state) or len(engine) != sum(map(len, state.values())):
        raise Broken(f"the index holds {len(engine)} records in {engine.namespaces}, not those that remain")
    held = [record for records in state.values() for record in records.values()]
    made = fr.Engine.from_records(held, backend="numpy", **OPTIONS)
    rng = random.Random(f"questions {seed}")
    now = max((record.time or 0.0 for record in held), default=0.0)
    asked = questions(rng, namespaces, now)
    execution = rng.choice(["auto", "exhaustive", "pruned"])
    here, there = engine.search(asked, execution=execution), made.search(asked)
    lasting = fr.Engine.from_records([record for record in held if record.expires is None], backend="numpy", **OPTIONS)
    late = [replace(query, now=EXPIRY) for query in asked if query.half_life is None]
    if [*engine.search(late, execution=execution)] != [*lasting.search(late)]:
        raise Broken("after the time of expiry, answers differ from an engine of the records that last")
    if not (
        np.array_equal(here.counts, there.counts)
        and here.scores.tobytes() == there.scores.tobytes()
        and np.array_equal(here.ids, there.ids)
    ):
        differing = [q for q, (a, b) in enumerate(zip(here, there, strict=True)) if a != b]
        raise Broken(f"answers differ from an engine built at once: {[asked[q] for q in differing[:2]]}")
    if statements(engine) != statements(made):
        raise Broken("what is said of entities differs from an engine built at once")
    for name, records in state.items():
        said_of: Counter[str] = Counter()
        for record in records.values():
            ends = [end for edge in record.relations or () for end in (edge.source, edge.target)]
            said_of.update({*dict(record.entities or {}).values(), *ends})
        if said_of != {what[1]: n for what, n in statements(engine)[name].items() if what[0] == "entity"}:
            raise Broken("entities are counted that no record mentions, or the other way round")


def statements(engine: fr.Engine) -> dict[str, dict[Said, int]]:
    """What is said of entities, and how many live records say it, by namespace."""
    terms = engine.index.memory.entity_terms.strings
    found = {}
    for name, snapshot in engine.index.memory.snapshots.items():
        counts = snapshot.entities.document_frequencies(np.arange(len(terms), dtype=np.int32)).tolist()
        found[name] = {parse_term(term): count for term, count in zip(terms, counts, strict=True) if count}
    return {name: own for name, own in found.items() if name in engine.namespaces}


def contents(engine: fr.Engine) -> State:
    """What the records say, in order."""
    held: State = {}
    assert engine.index.memory.store is not None
    for run in engine.index.memory.store.changes_after(0):
        for record in run.added:
            held.setdefault(run.namespace, {})[record.id] = record
    return held


def same(one: State, other: State) -> bool:
    """Whether both hold equal records in the same order of each namespace."""
    return {name: list(held.items()) for name, held in one.items()} == {n: list(h.items()) for n, h in other.items()}


def no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@dataclass(frozen=True)
class Life:
    """What one child does: opens, writes batches, closes; and what ends it or stands in its way."""

    point: str | None = None  # a failpoint
    count: int = 1
    full: bool = False  # the failpoint says that the disk is full, instead of killing
    limit: int | None = None  # bytes that a file may grow to, after a few batches, until a write fails
    batches: int = 250
    pages: int = FOLDED
    backups: bool = False  # made, and restored, one after another while it writes


class Child:
    """The work of a forked child. It never returns into the parent's code."""

    def __init__(self, path: Path, streams: Sequence[Stream], starts: Sequence[set[int]], log: int, life: Life) -> None:
        """`starts` are the prefixes that may be there, of each stream."""
        self.path, self.streams, self.starts, self.log, self.life = path, streams, starts, log, life

    def main(self) -> NoReturn:
        try:
            self._live()
        except BaseException:
            self.say("error", json.dumps(traceback.format_exc(limit=-6)))
        os._exit(0)

    def say(self, *words: object) -> None:
        os.write(self.log, (" ".join(map(str, words)) + "\n").encode())

    def _live(self) -> None:
        life = self.life
        borders.shrink(pytest.MonkeyPatch(), FOLD_FRAMES=life.pages)  # For good: the process ends by `os._exit`.
        if life.point is not None:
            failpoints.arm(life.point, life.count, self._disk_is_full if life.full else None)
        self.say("opening")
        engine = fr.Engine.open(self.path, backend="numpy", **OPTIONS)
        self.say("open", engine.opened)
        found = contents(engine)
        stop = threading.Event()
        copier = threading.Thread(target=self._back_up, args=(engine, stop))
        if life.backups:
            copier.start()
        work = [threading.Thread(target=self._write, args=(engine, found, own)) for own in range(len(self.streams))]
        if len(work) == 1:
            self._write(engine, found, 0)
        else:
            for thread in work:
                thread.start()
            for thread in work:
                thread.join()
        stop.set()
        if life.backups:
            copier.join()
        self.say("closing")
        try:
            engine.close()
        except fr.errors.StorageError:
            if not life.full:
                raise
        self.say("closed")

    def _back_up(self, engine: fr.Engine, stop: threading.Event) -> None:
        try:
            number = 0
            while not number or not stop.is_set():
                made, restored = (f"{what}-{os.getpid()}-{number}" for what in ("backup", "restored"))
                self.say("copy", made)
                engine.backup(self.path.with_name(made))
                self.say("copied", made)
                self.say("copy", restored)
                fr.Engine.restore(self.path.with_name(made), self.path.with_name(restored))
                self.say("copied", restored)
                number += 1
        except BaseException:
            self.say("error", json.dumps(traceback.format_exc(limit=-6)))
            os._exit(0)

    def _disk_is_full(self) -> None:
        self.say("fired")
        no_space()

    def _write(self, engine: fr.Engine, found: State, own: int) -> None:
        try:
            stream, tight = self.streams[own], False
            held = {name: records for name, records in found.items() if name in stream.namespaces}
            start = next((start for start in self.starts[own] if same(held, stream.state(start))), None)
            if start is None:
                raise Broken(f"none of the prefixes {self.starts[own]} is there")
            self.say("survived", own, start)
            for number in range(start, start + self.life.batches):
                batch = stream.batch(number)
                if self.life.limit is not None and number == start + 5:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    log = self.path / f"{store.RECORDS}-wal"
                    size = log.stat().st_size if self.life.limit else 0
                    _file_limit(size + self.life.limit + 512)
                    tight = True
                self.say("begin", own, number)
                try:
                    batch.run(engine)
                except fr.errors.StorageError:
                    if not (tight or self.life.full):
                        raise
                    # Refused: nothing of it is there, and it can be done once there is room.
                    agree(engine, stream.state(number), number, stream.namespaces)
                    if not same(contents(engine), stream.state(number)):
                        raise Broken(f"batch {number} was refused, and yet changed the records") from None
                    self.say("full", own, number)
                    _file_limit(resource.RLIM_INFINITY)
                    tight = False
                    batch.run(engine)
                self.say("ack", own, number)
        except BaseException:
            self.say("error", json.dumps(traceback.format_exc(limit=-6)))
            os._exit(0)


def _file_limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


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
    partial: int = 0
    """Copies that a kill interrupted, none of them taken for a whole one."""
    rebuilt: int = 0
    verified: int = 0
    """Directories opened and compared."""
    never_reached: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Round:
    """One directory, from its first life to the last look at it."""

    def __init__(self, seed: int, number: int, tally: Tally, root: Path, writers: int = 1) -> None:
        self.rng = random.Random(f"{seed} {number}")
        self.tally = tally
        self.root = root
        self.path = root / "memory"
        self.number = number
        self.streams = [
            Stream(f"{seed} {number} {own}", [f"{own}/{name}" for name in ("", "ana", "bo")]) for own in range(writers)
        ]
        self.namespaces = [name for stream in self.streams for name in stream.namespaces]
        self.acked = [0] * writers  # batches
        self.begun = [0] * writers
        self.opened: str | None = None
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
            Child(self.path, self.streams, starts, theirs, life).main()
        os.close(theirs)
        self.tally.lives += 1
        self.opened, self.read = None, b""
        self.said: list[str] = []
        return child, ours

    def listen(self, pipe: int, until: Callable[[list[str]], bool] | None = None) -> None:
        """Take in what the child says, until it is deleted or has said enough."""
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
                    made = rest.replace("restored", "backup")
                    self.copying[rest] = list(self.copying.get(made, self.acked))
                elif word == "copied":
                    self.copied.add(rest)
                elif word == "open":
                    self.opened = rest
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
        shutil.copytree(self.path, target)
        return target

    def look_at_copies(self) -> None:
        """Compare the backups that were made since the last look, and delete them.

        A copy that is there is whole. It holds what was acknowledged before it was begun, and nothing that was not.
        """
        for name, acked in self.copying.items():
            path = self.path.with_name(name)
            if path.exists():
                fr.Engine.check_backup(path)
                self._compare_copy(path, acked)
                self.tally.copies += 1
            elif name in self.copied:
                raise Broken(f"{name} was made, and is not there")
            for part in self.root.glob(f"{name}.partial-*"):
                self.tally.partial += 1
                if (part / store.RECORDS).exists():
                    self._compare_copy(part, acked)  # All but the last step was done.
                shutil.rmtree(part)
            shutil.rmtree(path, ignore_errors=True)
        self.copying, self.copied = {}, set()

    def _compare_copy(self, path: Path, acked: Sequence[int]) -> None:
        with fr.Engine.open(path, backend="numpy", **OPTIONS) as engine:
            found = contents(engine)
            state: State = {}
            for own, stream in enumerate(self.streams):
                held = {name: records for name, records in found.items() if name in stream.namespaces}
                upto = max(self.begun[own], self.acked[own])
                prefix = next((p for p in range(acked[own], upto + 1) if same(held, stream.state(p))), None)
                if prefix is None:
                    raise Broken(f"{path.name}: stream {own}: none of the states from {acked[own]} to {upto} is there")
                state |= stream.state(prefix)
            agree(engine, state, self.number, self.namespaces)

    def look(self, path: Path | None = None, *, damaged: bool = False) -> str:
        """Open the directory (a copy of it, unless `path` is given) and compare; how the index was come by.

        What survived becomes what the next life starts from.
        """
        elsewhere = path or self.copy()
        with fr.Engine.open(elsewhere, backend="numpy", **OPTIONS) as engine:
            found = contents(engine)
            prefixes = [self._prefix(own, found) for own in range(len(self.streams))]
            strangers = found.keys() - set(self.namespaces)
            if strangers:
                self.tally.phantom += 1
                raise Broken(f"namespaces that nobody wrote to: {strangers}")
            state = {n: h for s, p in zip(self.streams, prefixes, strict=True) for n, h in s.state(p).items()}
            agree(engine, state, self.number, self.namespaces)
            for name, held in state.items():
                if engine.fetch(list(held), namespace=name) != list(held.values()):
                    raise Broken(f"fetch gives other records than those that remain, in {name!r}")
            opened = engine.opened or ""
            counted = engine.stats()["sequence"]
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

    def _prefix(self, own: int, found: State) -> int:
        """How many of a stream's batches are there."""
        stream = self.streams[own]
        held = {name: records for name, records in found.items() if name in stream.namespaces}
        acked, begun = self.acked[own], max(self.begun[own], self.acked[own])
        for prefix in range(begun, acked - 1, -1):
            if same(held, stream.state(prefix)):
                return prefix
        known = [{r.text for h in stream.state(p).values() for r in h.values()} for p in (acked, begun)]
        texts = {r.text for h in held.values() for r in h.values()}
        earlier = next((p for p in range(acked - 1, -1, -1) if same(held, stream.state(p))), None)
        self.tally.lost += acked - earlier if earlier is not None else bool((known[0] & known[1]) - texts)
        self.tally.phantom += bool(texts - known[0] - known[1])
        raise Broken(f"stream {own}: {acked} batches acknowledged, {begun} begun, and what is there is neither")


def failpoint_round(r: Round, points: Sequence[str]) -> None:
    batches = 250 // len(r.streams)
    for point in points:
        most = 60 if point.startswith("write") else 12 if point.startswith("merge") else 3
        backups = point.startswith("backup")
        if not r.live(Life(point, r.rng.randint(1, most), batches=batches, backups=backups)):
            # So often it was not reached; once it will be, at the latest when it closes.
            r.live(Life(point, batches=batches, backups=backups))
        r.look_at_copies()
        r.look()


def clock_round(r: Round, _: Sequence[str]) -> None:
    """Kills at any time, in a row, and in the end a clean close, after which there is nothing to replay."""
    for phase, longest in (("opening", 0.03), ("open", 0.4), ("opening", 0.06), ("closing", 0.02), ("open", 0.1)):
        r.live(Life(batches=60 if phase == "closing" else 4000), phase, r.rng.uniform(0, longest))
        if r.rng.random() < 0.6:
            r.look()
    r.look()
    if r.live(Life(batches=5)):
        raise Broken("a life that nobody ended ended")
    if r.look() != "loaded":
        raise Broken("a clean close left no index")


def index_round(r: Round, _: Sequence[str]) -> None:
    """Files under ``index/`` cut, altered, deleted, zeroed: found out, and built again."""
    for fault in r.rng.sample(["truncate", "flip", "delete", "zero"], 4):
        r.live(Life("write.begin", r.rng.randint(40, 80)))
        r.look()
        folder = r.path / INDEX
        manifest = folder / files.MANIFEST
        if not manifest.exists():
            continue
        before = json.loads(manifest.read_bytes())
        named = {e["file"] for entries in files._entries(before) for e in entries.values()} | {files.MANIFEST}
        file = folder / r.rng.choice([*sorted(named), files.MANIFEST])
        damage(r.rng, file, fault)
        r.tally.faults[f"index: {fault}"] += 1
        opened = r.look(damaged=True)
        if file == manifest and fault == "flip" and _parsed(manifest) == before:
            continue  # white space
        if not opened.startswith("built: "):
            raise Broken(f"{file.name} was damaged ({fault}), and the engine {opened} it")
    # The damage is still there: the next life builds, and its kill leaves no doubt about it either.
    r.live(Life("write.commit", r.rng.randint(1, 60)))
    r.look(damaged=True)


def _parsed(manifest: Path) -> Any:
    try:
        return json.loads(manifest.read_bytes())
    except ValueError:
        return None


def damage(rng: random.Random, file: Path, fault: str) -> None:
    data = bytearray(file.read_bytes())
    if fault == "delete":
        file.unlink()
        return
    if fault == "truncate":
        del data[rng.randrange(len(data)) :]
    elif fault == "zero":
        data[:] = bytes(len(data))
    else:
        data[rng.randrange(len(data))] ^= rng.randint(1, 255)
    file.write_bytes(data)


def log_round(r: Round, _: Sequence[str]) -> None:
    """SQLite's log cut, altered, removed or an older one: all that was acknowledged is there, or opening says no."""
    r.live(Life(batches=10))
    r.look()
    older = b""
    for count in (r.rng.randint(5, 20), r.rng.randint(20, 60)):
        kept = older
        r.live(Life("write.commit", count, pages=r.rng.choice([FOLDED, UNFOLDED])))
        older = log_of(r.path / store.RECORDS).read_bytes()
        r.look()
    for fault in ("truncate", "flip", "delete", "zero", "older", "truncate", "flip", "truncate"):
        path = r.copy()
        log = log_of(path / store.RECORDS)
        if fault == "older":
            log.write_bytes(kept)
        else:
            damage(r.rng, log, fault)
        # Of a log that was cut, the note alone knows. That one is missing is written in the database too.
        among = (INDEX, NOTE) if fault == "delete" else (INDEX,)
        without = [what for what in among if r.rng.random() < 0.3]
        if INDEX in without:
            shutil.rmtree(path / INDEX, ignore_errors=True)
        if NOTE in without:
            note_of(path / store.RECORDS).unlink()
        r.tally.faults[f"log: {fault}"] += 1
        if look_or_named(r, path):
            continue
        try:
            fr.Engine.open(path, backend="numpy", accept_loss=True).close()
        except fr.errors.DamagedStoreError:
            continue  # The pages of an older log do not fit those of the database.
        with fr.Engine.open(path, backend="numpy") as engine:
            if any(engine.verify()[what] for what in ("missing", "extra")):
                raise Broken("an index that was built after a loss differs from the records")
    with fr.Engine.open(r.path, backend="numpy"):
        pass
    path = r.copy()
    log_of(path / store.RECORDS).write_bytes(kept)
    r.tally.faults["log: older, beside a closed database"] += 1
    look_or_named(r, path)


def look_or_named(r: Round, path: Path) -> bool:
    """Whether all that was acknowledged is there. If not, the opening must say so, again and again."""
    try:
        r.look(path, damaged=True)
    except fr.errors.DamagedStoreError:
        for read_only in (False, True):
            try:
                fr.Engine.open(path, backend="numpy", read_only=read_only).close()
            except fr.FanrankError:
                continue
            if not read_only:
                raise Broken("an opening said that changes are missing, and the next one did not") from None
        r.tally.named += 1
        return False
    return True


def records_round(r: Round, _: Sequence[str]) -> None:
    """A byte of the database altered: named, or without effect; never another record."""
    r.live(Life(batches=60))
    r.live(Life("write.records", 30))
    r.look()
    with fr.Engine.open(r.path, backend="numpy"):
        pass  # Folds the log in, so that there is something to damage.
    state = r.streams[0].state(r.acked[0])
    for _ in range(12):
        path = r.copy()
        if r.rng.random() < 0.5:
            shutil.rmtree(path / INDEX)
        damage(r.rng, path / store.RECORDS, "flip")
        r.tally.faults[f"records: flip, {altered(path, state, r)}"] += 1


def altered(path: Path, state: State, r: Round) -> str:
    """What becomes of an altered byte."""
    try:
        with fr.Engine.open(path, backend="numpy") as engine:
            found = contents(engine)
            fetched = {name: engine.fetch(list(held), namespace=name) for name, held in state.items()}
            for name, held in state.items():
                for one in fetched[name]:
                    if one is not None and one != held[one.id]:
                        raise Broken(f"another record than was written: {one}")
            whole = same(found, state) and all(fetched[name] == list(held.values()) for name, held in state.items())
            agree(engine, state, r.number, r.namespaces)
    except fr.errors.DamagedStoreError:
        return "named as damage"
    except fr.FanrankError as error:
        return f"refused ({type(error).__name__})"
    if not whole:
        raise Broken("records are gone or out of order, and nobody says so")
    return "harmless"


def full_round(r: Round, _: Sequence[str]) -> None:
    """No room: the write fails, the ones before it stay, and it succeeds once there is room."""
    at = ("write.begin", "write.records", "write.commit", "merge.built", "checkpoint.part", "checkpoint.manifest")
    for point in r.rng.sample(at, 3):
        r.live(Life(point, 1 if point.startswith("checkpoint") else r.rng.randint(1, 4), full=True, batches=40))
        if "fired" not in r.said:
            raise Broken(f"{point} was never reached")
        r.tally.faults[f"disk full: {point}"] += 1
        if point.startswith("write") and not any(line.startswith("full") for line in r.said):
            raise Broken(f"no write failed although the disk was full at {point}")
        r.look()
    for limit in (r.rng.randint(1, 20_000), 0):
        r.live(Life(limit=limit, batches=40, pages=UNFOLDED))
        if not any(line.startswith("full") for line in r.said):
            raise Broken("no write failed although files could not grow")
        r.tally.faults["disk full: file size"] += 1
        r.look()


def backup_round(r: Round, _: Sequence[str]) -> None:
    """Backups beside writes, and what is restored of them, under kills at any time."""
    for _life in range(3):
        r.live(Life(batches=4000, backups=True), "open", r.rng.uniform(0.05, 0.5))
        r.look_at_copies()
        r.look()


def shared_round(r: Round, _: Sequence[str]) -> None:
    """A second writer is refused while the first lives; a reader beside it sees whole batches, and catches up."""
    r.live(Life(batches=5))
    stream = r.streams[0]
    child, pipe = r.fork(Life(batches=4000))
    try:
        r.listen(pipe, lambda said: r.opened is not None)
        try:
            fr.Engine.open(r.path, backend="numpy").close()
            raise Broken("two writers have the directory open")
        except fr.errors.StoreLockedError:
            r.tally.faults["second writer refused"] += 1
        with fr.Engine.open(r.path, read_only=True, backend="numpy") as reader:
            for look in range(6):
                r.listen(pipe, lambda said, n=r.acked[0] + look: r.acked[0] > n)
                known = r.acked[0]
                reader.refresh()
                counted = reader.stats()["sequence"]
                prefix = known
                while stream.changes(prefix) < counted:
                    prefix += 1
                if stream.changes(prefix) != counted:
                    raise Broken(f"the reader is at change {counted}, inside of batch {prefix - 1}, or {known} is lost")
                agree(reader, stream.state(prefix), look, r.namespaces)
                r.tally.faults["reader refreshed"] += 1
        os.kill(child, signal.SIGKILL)
        r.listen(pipe)
    finally:
        r.bury(child, pipe)
    r.tally.kills["by the clock: shared"] += 1
    r.look()
    r.look(r.path)  # The directory itself: the deleted writer's lock is gone.


def group_round(r: Round, points: Sequence[str]) -> None:
    """Three threads write at once and are committed together."""
    failpoint_round(r, points)
    r.live(Life(batches=4000), "open", r.rng.uniform(0.0, 0.3))
    r.look()


Kind = Callable[[Round, Sequence[str]], None]
# In turn: (kind, failpoints to die at, threads that write).
KINDS: list[tuple[Kind, int, int]] = [
    (failpoint_round, 4, 1),
    (clock_round, 0, 1),
    (group_round, 3, 3),
    (index_round, 0, 1),
    (failpoint_round, 4, 1),
    (log_round, 0, 1),
    (full_round, 0, 1),
    (group_round, 3, 3),
    (records_round, 0, 1),
    (backup_round, 0, 1),
    (shared_round, 0, 1),
]


def play(seed: int, number: int, tally: Tally, folder: Path) -> None:
    """One round. A broken promise goes to the tally, with what repeats it."""
    kind, count, writers = KINDS[number % len(KINDS)]
    taken = sum(own for _, own, _ in KINDS) * (number // len(KINDS)) + sum(
        own for _, own, _ in KINDS[: number % len(KINDS)]
    )
    points = [failpoints.POINTS[(taken + i) % len(failpoints.POINTS)] for i in range(count)]
    with tempfile.TemporaryDirectory(dir=folder, prefix="fanrank-crash-") as root:
        try:
            kind(Round(seed, number, tally, Path(root), writers), points)
        except Exception as error:
            shown = str(error) if isinstance(error, Broken) else traceback.format_exc()
            tally.broken.append(f"--seed {seed} --round {number} ({kind.__name__}): {shown}")
            print(f"BROKEN {tally.broken[-1]}", file=sys.stderr, flush=True)
    tally.rounds += 1


def run(seed: int, numbers: Sequence[int], folder: Path = FOLDER) -> Tally:
    logging.disable(logging.WARNING)  # What fails here shall.
    tally = Tally()
    started = time.monotonic()
    borders.value("FOLD_FRAMES")  # Looked up once, here: each life is a fork that would do it again.
    with borders.shrunken(SMALL):
        for number in numbers:
            play(seed, number, tally, folder)
            if sys.stderr.isatty():
                kills = sum(tally.kills.values())
                print(f"\rround {number}, {kills} kills, {len(tally.broken)} broken", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    tally.never_reached = [point for point in failpoints.POINTS if not tally.kills[point]]
    tally.seconds = round(time.monotonic() - started, 1)
    return tally


def row(tally: Tally, seed: int) -> dict[str, Any]:
    """The run as a line of a results file."""
    sys.path.append(str(Path(__file__).resolve().parents[3]))  # Run as a script it has only its own folder there.
    from bench.harness.code import code_of
    from bench.harness.machine import commit, machine, now

    versions = {"fanrank": fr.__version__, "sqlite": sqlite3.sqlite_version}
    return {
        **{"bench": "crash", "seed": seed, **vars(tally)},
        **{"versions": versions, "machine": machine(), "commit": commit(), "code": code_of("crash"), "date": now()},
    }


def line(tally: Tally) -> str:
    return (
        f"{tally.rounds} rounds, {tally.lives} lives, {sum(tally.kills.values())} kills, "
        f"{sum(tally.faults.values())} faults; {tally.acknowledged} batches acknowledged, {tally.lost} lost, "
        f"{tally.phantom} phantom, {tally.named} refused with a word; {tally.copies} copies and "
        f"{tally.verified} directories compared, {tally.rebuilt} indexes rebuilt; "
        f"{len(tally.broken)} broken, {tally.seconds} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="this round alone")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where directories are made (default {FOLDER})")
    parser.add_argument("--results", type=Path, help="append the run to this JSON lines file")
    options = parser.parse_args()
    numbers = range(options.rounds) if options.round is None else [options.round]
    tally = run(options.seed, numbers, options.folder)
    missed = tally.never_reached if options.round is None else []
    if options.json:
        print(json.dumps(vars(tally), indent=1))
    else:
        for name, counted in (("kills", tally.kills), ("faults", tally.faults)):
            print(f"{name}:", ", ".join(f"{what} {count}" for what, count in sorted(counted.items())))
        print(line(tally))
    if options.results is not None:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row(tally, options.seed)) + "\n")
    if missed:
        print(f"never reached: {', '.join(missed)}", file=sys.stderr)
    return 1 if tally.broken or tally.lost or tally.phantom or missed else 0


if __name__ == "__main__":
    sys.exit(main())
