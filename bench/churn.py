"""Memory while records come and go: ``python -m bench.churn``.

Three parts, each in a process of its own:

``new-words``   rounds of records that each bring a word of their own, added and then deleted; in memory
``old-words``   the same rounds, of which each has the words of the first
``operations``  records added, updated, deleted and searched for in a directory. Each record names its session, its
                trace and a word of its own, and dies young; the number of live records stays the same

``new-words`` and ``old-words`` do the same work, so what one holds beyond the other is what unused words left behind.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # python bench/churn.py
    from runpy import run_module

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    run_module("bench.churn", run_name="__main__")
    sys.exit()

import argparse
import gc
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import fanrank as fr

from .harness.methods import stamp_rows
from .harness.options import names, progress
from .harness.paths import CACHE, RESULTS, ROOT
from .harness.rows import append

PARTS = ("new-words", "old-words", "operations")
BATCH = 10
"""Records or queries of a call of the part ``operations``."""
COMMON = [f"common{number}" for number in range(2_000)]
PATIENCE = 7_200.0
"""Seconds after which a part that has not ended counts as stuck."""


@dataclass(frozen=True)
class Settings:
    """The size of a run. A sample is taken after each round, or after so many operations."""

    rounds: int = 10
    records: int = 50_000
    operations: int = 200_000
    live: int = 5_000
    sample: int = 2_000


QUICK = Settings(rounds=4, records=5_000, operations=8_000, live=500, sample=500)


@dataclass(frozen=True)
class ChurnRow:
    """One part. `samples` holds (work done, live records, entries of the vocabulary, `index_bytes`, RSS in MiB), with
    the work in rounds or in operations. `rss_mib` is the last, `rss_ratio` that over the part ``old-words``, or for
    ``operations`` the median of the last fifth of the samples over that of the second. With `error`, a part that could
    not be measured.
    """

    bench: str
    run: str
    part: str
    samples: list[list[float]] = field(default_factory=list)
    rss_mib: float | None = None
    rss_ratio: float | None = None
    renumberings: int | None = None
    seconds: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


def rss_mib() -> float:
    """The memory that this process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def sample_of(engine: fr.Engine, work: int) -> list[float]:
    stats = engine.stats()
    return [work, stats["documents"], stats["vocabulary"], stats["index_bytes"], rss_mib()]


def run_rounds(settings: Settings, *, new: bool) -> dict[str, Any]:
    """Rounds of records, added and deleted, in memory. One record stays."""
    engine = fr.Engine()
    engine.add([fr.Record("stays", "tea")])
    samples = []
    for number in range(settings.rounds):
        words = number if new else 0
        engine.add(fr.Record(f"r{row}", f"tea word{words}x{row}") for row in range(settings.records))
        engine.delete([f"r{row}" for row in range(settings.records)])
        engine.flush()
        samples.append(sample_of(engine, number + 1))
    return {"samples": samples, "renumberings": engine.stats()["renumberings"]}


def run_operations(settings: Settings, folder: Path) -> dict[str, Any]:
    """Operations in turn, in a directory: records are added until `live` are there, then as many die as come."""
    rng, live, made = random.Random(42), deque[str](), 0

    def record(name: str) -> fr.Record:
        nonlocal made
        made += 1
        words = rng.sample(COMMON, k=8)
        text = f"{' '.join(words)} step{made} trace{rng.getrandbits(40):x}"
        return fr.Record(name, text, session=f"session{made // 20}", time=float(made), user=f"user{made % 50}")

    with fr.Engine.open(folder) as engine:
        samples, done = [], 0
        while done < settings.operations:
            fresh = [record(f"m{made + 1}") for _ in range(BATCH)]
            engine.add(fresh)
            live.extend(one.id for one in fresh)
            old = [live[rng.randrange(len(live))] for _ in range(BATCH)]
            changed = [record(name) for name in dict.fromkeys(old)]
            engine.update(changed)
            engine.search([fr.Query(f"{one.text} {rng.choice(COMMON)}", filter={"user": one.user}) for one in fresh])
            done += 2 * BATCH + len(changed)
            while len(live) > settings.live:
                gone = [live.popleft() for _ in range(BATCH)]
                done += engine.delete(gone)
            if done // settings.sample > len(samples):
                samples.append(sample_of(engine, done))
        return {"samples": samples, "renumberings": engine.stats()["renumberings"]}


def run_part(part: str, settings: Settings, folder: Path) -> dict[str, Any]:
    """One part in this process; its store lies in a folder of its own, which is removed."""
    if part != "operations":
        return run_rounds(settings, new=part == "new-words")
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="churn-", dir=folder))
    try:
        return run_operations(settings, scratch / "store")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def flatness(samples: Sequence[Sequence[float]]) -> float:
    """The median RSS of the last fifth of the samples over that of the second fifth, when all records are there."""
    fifth = max(len(samples) // 5, 1)
    early, late = samples[fifth : 2 * fifth] or samples, samples[-fifth:]
    return round(median([sample[-1] for sample in late]) / median([sample[-1] for sample in early]), 3)


def measure(part: str, settings: Settings, folder: Path, common: dict[str, Any]) -> ChurnRow:
    """One part in a process of its own."""
    command = [sys.executable, "-m", "bench.churn", "--part", part, "--folder", str(folder)]
    command += [text for name, value in asdict(settings).items() for text in (f"--{name}", str(value))]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        return ChurnRow(part=part, settings=asdict(settings), error=str(error), **common)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return ChurnRow(part=part, settings=asdict(settings), error=last, **common)
    found = json.loads(done.stdout)
    ratio = flatness(found["samples"]) if part == "operations" else None
    return ChurnRow(
        part=part,
        rss_mib=found["samples"][-1][-1],
        rss_ratio=ratio,
        seconds=round(time.perf_counter() - begin, 1),
        settings=asdict(settings),
        **found,
        **common,
    )


def with_ratios(rows: Sequence[ChurnRow]) -> list[ChurnRow]:
    """The rows, in which those of ``new-words`` are compared with those of ``old-words``."""
    old = next((row.rss_mib for row in rows if row.part == "old-words" and row.rss_mib), None)
    return [
        ChurnRow(**{**asdict(row), "rss_ratio": round(row.rss_mib / old, 3)})
        if row.part == "new-words" and row.rss_mib and old
        else row
        for row in rows
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.churn", description="Memory while records come and go.")
    parser.add_argument("--quick", action="store_true", help="smaller")
    parser.add_argument("--only", type=names, default=PARTS, help=f"of {','.join(PARTS)}")
    parser.add_argument("--folder", type=Path, default=CACHE / "stores", help="where stores are made, on a real disk")
    parser.add_argument("--name", default="churn", help="rows go to bench/results/NAME.jsonl (quick: bench/.cache)")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the rows")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name}", type=int, help=f"default {value:,}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, append the rows, print them. Returns 0 if nothing failed, else 1."""
    parser = _parser()
    options = parser.parse_args(arguments)
    base = asdict(QUICK if options.quick else Settings())
    settings = Settings(**{name: getattr(options, name) or value for name, value in base.items()})
    if unknown := [name for name in options.only if name not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    if options.part:
        print(json.dumps(run_part(options.part, settings, options.folder)))
        return 0
    common, say, rows = stamp_rows("churn"), progress(), []
    for part in options.only:
        say(f"churn: {part}")
        rows.append(measure(part, settings, options.folder, common))
    say("")
    rows = with_ratios(rows)
    append((CACHE if options.quick else RESULTS) / f"{options.name}.jsonl", rows)
    print(json.dumps({**common, "rows": [asdict(row) for row in rows]}) if options.json else _render(rows))
    return int(any(row.error for row in rows))


def _render(rows: Sequence[ChurnRow]) -> str:
    return "\n".join(f"{row.part}: {row.error or _result(row)}" for row in rows)


def _result(row: ChurnRow) -> str:
    return f"{row.rss_mib} MiB at the end, ratio {row.rss_ratio}, {row.renumberings} renumberings, {row.seconds} s"


if __name__ == "__main__":
    sys.exit(main())
