"""Kills a memory at every moment, damages what it left, and holds what comes back against what was promised.

The promise: after ``kill -9`` an `Engine.open` gives the acknowledged batches and at most the one in flight, whole, and
answers as an engine built at once from what remains does. Run it by
``python -m tests.extended.histories.kills --rounds 300 --seed 1``. ``--round N --seed S`` repeats a round: failpoints
hit the same write again, and a kill by the clock does not. ``--kind power_round`` plays rounds of one kind.

A round is a few *lives* of one directory. Each is a process that writes batches and says so, ``begin`` before and
``ack`` after each, until it is killed. Batches are a pure function of seed and number, so that the parent knows the
state after every prefix. It looks at a copy: the next life finds the directory as the kill left it.
"""

import argparse
import itertools
import json
import logging
import math
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.engine.storage import index_files as files
from fanrank.engine.storage.index_files import INDEX
from fanrank.engine.storage.log import NOTE, log_of, note_of
from fanrank.engine.storage.row_codec import RECORDS

from . import disks
from .lives import FOLDER, SMALL, Broken, Life, Round, Tally, agree, borders


def failpoint_round(r: Round, points: Sequence[str]) -> None:
    """Kills at each of these steps, whichever time it is reached."""
    for point in points:
        most = 60 if point.startswith("write") else 12 if point.startswith("merge") else 3
        life = Life(point, r.rng.randint(1, most), batches=120 // len(r.streams), backups=point.startswith("backup"))
        if not r.live(life):
            # So often it was not reached; once it will be, at the latest when it closes.
            r.live(Life(point, batches=life.batches, backups=life.backups))
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


def group_round(r: Round, points: Sequence[str]) -> None:
    """Threads write at once and are committed together."""
    failpoint_round(r, points)
    r.live(Life(batches=4000), "open", r.rng.uniform(0.0, 0.3))
    r.look()


def backup_round(r: Round, _: Sequence[str]) -> None:
    """Backups beside writes, and what is restored of them, under kills at any time."""
    for _life in range(3):
        r.live(Life(batches=4000, backups=True), "open", r.rng.uniform(0.05, 0.5))
        r.look_at_copies()
        r.look()


def full_round(r: Round, _: Sequence[str]) -> None:
    """No room: the write fails, the ones before it stay, and it succeeds once there is room."""
    at = ("write.begin", "write.records", "write.commit", "merge.built", "checkpoint.part", "checkpoint.manifest")
    for point in r.rng.sample(at, 3):
        r.live(Life(point, 1 if point.startswith("checkpoint") else r.rng.randint(1, 4), full=True, batches=40))
        if "fired" not in r.said:
            raise Broken(f"{point} was never reached")
        if point.startswith("write") and not any(line.startswith("full") for line in r.said):
            raise Broken(f"no write failed although the disk was full at {point}")
        r.tally.faults[f"disk full: {point}"] += 1
        r.look()


def failing_round(r: Round, _: Sequence[str]) -> None:
    """A sync fails once, or each write from some moment on: a batch is refused, and done once the disk is well."""
    for fails, most in (("sync", 40), ("space", 90), ("sync", 12)):
        r.live(Life(None, r.rng.randint(1, most), full=True, batches=40, fails=fails))
        r.tally.faults[f"disk fails: {fails}"] += sum(line.startswith("full") for line in r.said)
        r.look()


def power_round(r: Round, _: Sequence[str]) -> None:
    """Power is lost: of what was not synced some pages or sectors are there. What was acknowledged is there whole."""
    for _life in range(2):
        before = r.copy().rename(r.root / "before") if r.path.exists() else r.root / "before"
        trace, start = r.root / "trace", list(r.acked)
        r.live(Life(batches=25, trace=trace))
        acked, events = list(r.acked), disks.read_trace(trace)
        # The paths in the trace are those of the directory that was written.
        moved = r.path.rename(r.root / "after")
        if before.exists():
            before.rename(r.path)
        for upto in disks.cuts(events, r.rng, 12):
            mark = disks.cut_power(upto, r.path, r.root / "copy", r.rng)
            known = mark + 1 if mark >= 0 else start[0]
            r.acked, r.begun = [known], [known + 1]
            r.look(r.root / "copy", damaged=True)
            r.tally.faults["power lost"] += 1
            # Without its note a database that was in use may be refused, and is never opened with less.
            disks.cut_power(upto, r.path, r.root / "copy", r.rng)
            note_of(r.root / "copy" / RECORDS).unlink(missing_ok=True)
            r.acked, r.begun = [known], [known + 1]
            look_or_named(r, r.root / "copy")
            r.tally.faults["power and note lost"] += 1
        shutil.rmtree(r.path, ignore_errors=True)
        moved.rename(r.path)
        r.acked, r.begun = acked, list(acked)
        r.look()


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


def index_round(r: Round, _: Sequence[str]) -> None:
    """Files under ``index/`` cut, altered, deleted, zeroed: found out, and built again."""
    for fault in r.rng.sample(["truncate", "flip", "delete", "zero"], 4):
        r.live(Life("write.begin", r.rng.randint(40, 80)))
        r.look()
        folder = r.path / INDEX
        if not (folder / files.MANIFEST).exists():
            continue
        before = json.loads((folder / files.MANIFEST).read_bytes())
        named = {entry["file"] for entries in files._entries(before) for entry in entries.values()}
        file = folder / r.rng.choice(sorted(named))
        damage(r.rng, file, fault)
        r.tally.faults[f"index: {fault}"] += 1
        opened = r.look(damaged=True)
        if not opened.startswith("built: "):
            raise Broken(f"{file.name} was damaged ({fault}), and the engine {opened} it")
    # The damage is still there: the next life builds, and its kill leaves no doubt about it either.
    r.live(Life("write.commit", r.rng.randint(1, 60)))
    r.look(damaged=True)


def look_or_named(r: Round, path: Path) -> bool:
    """Whether all that was acknowledged is there. If not, the opening must say so, again and again."""
    try:
        r.look(path, damaged=True)
    except fr.errors.DamagedStoreError:
        for read_only in (False, True):
            try:
                fr.Engine.open(path, read_only=read_only).close()
            except fr.FanrankError:
                continue
            if not read_only:
                raise Broken("an opening said that changes are missing, and the next one did not") from None
        r.tally.named += 1
        return False
    return True


def log_round(r: Round, _: Sequence[str]) -> None:
    """SQLite's log cut, altered, removed or an older one: all that was acknowledged is there, or opening says no."""
    r.live(Life(batches=10))
    r.look()
    kept = older = b""
    for count in (r.rng.randint(5, 20), r.rng.randint(20, 60)):
        kept = older
        r.live(Life("write.commit", count))
        older = log_of(r.path / RECORDS).read_bytes()
        r.look()
    for fault in ("truncate", "flip", "delete", "zero", "older", "truncate", "flip", "truncate"):
        path = r.copy()
        log = log_of(path / RECORDS)
        log.write_bytes(kept) if fault == "older" else damage(r.rng, log, fault)
        # Of a log that was cut, the note alone knows. That one is missing is written in the database too.
        if r.rng.random() < 0.3:
            shutil.rmtree(path / INDEX, ignore_errors=True)
        if fault == "delete" and r.rng.random() < 0.3 and (path / NOTE).exists():
            note_of(path / RECORDS).unlink()
        r.tally.faults[f"log: {fault}"] += 1
        if look_or_named(r, path):
            continue
        try:
            fr.Engine.open(path, accept_loss=True).close()
        except fr.errors.DamagedStoreError:
            continue  # The pages of an older log do not fit those of the database.
        with fr.Engine.open(path) as engine:
            if any(engine.verify()[what] for what in ("missing", "extra")):
                raise Broken("an index that was built after a loss differs from the records")


def records_round(r: Round, _: Sequence[str]) -> None:
    """A byte of the database altered: named, or without effect; never another record."""
    r.live(Life(batches=60))
    with fr.Engine.open(r.path):
        pass  # Folds the log in, so that there is something to damage.
    r.look()
    for _copy in range(12):
        path = r.copy()
        if r.rng.random() < 0.5:
            shutil.rmtree(path / INDEX)
        damage(r.rng, path / RECORDS, "flip")
        try:
            r.look(path, damaged=True)
            fault = "harmless"
        except fr.FanrankError as error:
            fault = f"refused ({type(error).__name__})"
        r.tally.faults[f"records: flip, {fault}"] += 1


def shared_round(r: Round, _: Sequence[str]) -> None:
    """A second writer is refused while the first lives; a reader beside it sees whole batches, and catches up."""
    r.live(Life(batches=5))
    stream = r.streams[0]
    child, pipe = r.fork(Life(batches=4000))
    try:
        r.listen(pipe, lambda said: any(line.startswith("survived") for line in said))
        try:
            fr.Engine.open(r.path).close()
            raise Broken("two writers have the directory open")
        except fr.errors.StoreLockedError:
            r.tally.faults["second writer refused"] += 1
        with fr.Engine.open(r.path, read_only=True, backend="numpy") as reader:
            for look in range(6):
                r.listen(pipe, lambda said, n=r.acked[0] + look: r.acked[0] > n)
                prefix = r.acked[0]
                reader.refresh()
                counted = reader.stats()["sequence"]
                while stream.changes(prefix) < counted:
                    prefix += 1
                if stream.changes(prefix) != counted:
                    raise Broken(
                        f"the reader is at change {counted}, inside of batch {prefix - 1}, or batches are lost"
                    )
                agree(reader, stream.state(prefix))
                r.tally.faults["reader refreshed"] += 1
        os.kill(child, signal.SIGKILL)
        r.listen(pipe)
    finally:
        r.bury(child, pipe)
    r.tally.kills["by the clock: shared"] += 1
    r.look()
    r.look(r.path)  # The directory itself: the lock of the writer that was killed is gone.


Kind = Callable[[Round, Sequence[str]], None]
# In turn: (kind, failpoints to die at, threads that write).
KINDS: list[tuple[Kind, int, int]] = [
    *((failpoint_round, 4, 1), (clock_round, 0, 1), (group_round, 3, 3), (index_round, 0, 1), (failpoint_round, 4, 1)),
    *((log_round, 0, 1), (full_round, 0, 1), (group_round, 3, 3), (records_round, 0, 1), (backup_round, 0, 1)),
    *((shared_round, 0, 1), (failing_round, 0, 1), (power_round, 0, 1)),
]


def play(seed: int, number: int, tally: Tally, folder: Path) -> None:
    """One round. A broken promise goes to the tally, with what repeats it."""
    kind, count, writers = KINDS[number % len(KINDS)]
    before = [own for _, own, _ in KINDS] * (number // len(KINDS)) + [own for _, own, _ in KINDS[: number % len(KINDS)]]
    points = [failpoints.POINTS[(sum(before) + i) % len(failpoints.POINTS)] for i in range(count)]
    with tempfile.TemporaryDirectory(dir=folder, prefix="fanrank-kills-") as root:
        try:
            kind(Round(seed, number, tally, Path(root), writers), points)
        except Exception as error:
            shown = str(error) if isinstance(error, Broken) else traceback.format_exc()
            tally.broken.append(f"--seed {seed} --round {number} ({kind.__name__}): {shown}")
            print(f"BROKEN {tally.broken[-1]}", file=sys.stderr, flush=True)
    tally.rounds += 1


def run(seed: int, numbers: Iterable[int], folder: Path = FOLDER, longest: float = math.inf) -> Tally:
    """The rounds of these numbers; none begins after `longest` seconds."""
    logging.disable(logging.WARNING)  # What fails here shall.
    tally, started = Tally(), time.monotonic()
    with borders.shrunken(SMALL):
        for number in numbers:
            if time.monotonic() - started > longest:
                break
            play(seed, number, tally, folder)
    tally.never_reached = [point for point in failpoints.POINTS if not tally.kills[point]]
    tally.seconds = round(time.monotonic() - started, 1)
    return tally


def row(tally: Tally, seed: int) -> dict[str, Any]:
    """The run as a line of a results file."""
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    from bench.harness.command import stamp_rows

    versions = {"fanrank": fr.__version__, "sqlite": sqlite3.sqlite_version}
    return {"seed": seed, **vars(tally), "versions": versions, **stamp_rows("crash")}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seconds", type=float, help="in place of --rounds: new rounds begin for so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="this round alone")
    parser.add_argument("--kind", choices=sorted({kind.__name__ for kind, _, _ in KINDS}), help="rounds of this alone")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where directories are made (default {FOLDER})")
    parser.add_argument("--results", type=Path, help="append the run to this JSON lines file")
    options = parser.parse_args()
    disks.load()
    numbers: Iterable[int] = range(options.rounds) if options.seconds is None else itertools.count()
    if options.round is not None:
        numbers = [options.round]
    if options.kind is not None:
        numbers = (number for number in numbers if KINDS[number % len(KINDS)][0].__name__ == options.kind)
    tally = run(options.seed, numbers, options.folder, math.inf if options.seconds is None else options.seconds)
    missed = tally.never_reached if options.round is None and options.kind is None else []
    print(json.dumps(vars(tally), indent=None if options.json else 1))
    if options.results is not None:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row(tally, options.seed)) + "\n")
    if missed:
        print(f"never reached: {', '.join(missed)}", file=sys.stderr)
    return 1 if tally.broken or tally.lost or tally.phantom or missed else 0


if __name__ == "__main__":
    sys.exit(main())
