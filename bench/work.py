"""Counted work against a recorded baseline: ``python -m bench.work``. Seconds are noise; counts are not.

Over corpora made from a seed, each task runs once to warm up and once while everything is counted: what searches
count (``postings`` read, ``lookups`` of postings by document, ``bytes`` of posting data read; `Phases.count`), the
``calls`` that Python makes (of functions, its own and compiled ones; `sys.setprofile`), and in one more run the peak of
allocated memory (``peak_kib``; `tracemalloc`). Prints a table and exits with 1 where something grew by more than its
limit (`LIMITS`). A count that shrank is printed as well; record it with
``python -m bench.work --record``.

Calls and peaks depend on the versions of Python, numpy and numba. They are kept for each minor version of Python, and
compared where all three are the recorded ones. A task that cannot run here is left out, and the
output says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.storage.memory import Memory

from .harness.cases import CORPORA
from .harness.corpora import load, prepare
from .harness.counting import count_work
from .harness.paths import RESULTS

BASELINE = RESULTS / "work.json"
COUNTED = ("postings", "lookups", "bytes")
"""Counts that are the same on every machine."""
VERSIONED = ("calls", "peak_kib")
"""Counts that are the same under the same versions."""
LIMITS = {**dict.fromkeys(COUNTED, 0.0), "calls": 0.02, "peak_kib": 0.1}
"""The share by which each may differ. Peaks differ by some thousandths from run to run, and calls not at all."""
PACKAGES = ("numpy", "numba")

DOCUMENTS, VOCABULARY, TOKENS, QUERIES, FAN_OUT, WRITTEN = 8_000, 3_000, 24, 200, 20, 100
DIMENSION = 8
DAY = 86_400.0

Counts = dict[str, int]


@lru_cache(maxsize=1)
def corpus() -> tuple[list[fr.Record], list[str]]:
    """Records of ten sessions in the order of time, and texts of queries, made from a seed."""
    numbers = random.Random(1)

    def words(count: int) -> list[str]:
        # The cube makes a few words frequent.
        return [f"w{int(VOCABULARY * u * u * u)}" for u in (numbers.random() for _ in range(count))]

    records = [
        fr.Record(
            id=f"r{number}",
            text=" ".join(words(1 + numbers.randrange(2 * TOKENS))),
            time=number * DAY / 8,
            session=f"s{numbers.randrange(10)}",
            embedding=[float(numbers.randrange(-9, 10)) + 0.5 for _ in range(DIMENSION)],
        )
        for number in range(DOCUMENTS)
    ]
    return records, [" ".join(words(2 + numbers.randrange(8))) for _ in range(QUERIES)]


@dataclass(frozen=True)
class Task:
    """`make` does the uncounted work and returns the counted call. `needs` is the backend that must serve here."""

    name: str
    make: Callable[[], Callable[[], object]]
    needs: str = "numpy"


@lru_cache(maxsize=1)
def _engine() -> fr.Engine:
    records, _ = corpus()
    engine = fr.Engine(analyzer="minimal", encoder=fr.OwnVectors(DIMENSION), backend="numpy")
    # Two segments; some records of the first one are deleted.
    engine.add(records[: DOCUMENTS // 2 + 1000])
    engine.add(records[DOCUMENTS // 2 + 1000 :])
    engine.delete([record.id for record in records[: DOCUMENTS // 2 : 50]])
    return engine


def _search(backend: str, queries: Sequence[Any], **options: Any) -> Callable[[], object]:
    engine = _engine()
    engine.backend = backends.choose(backend)
    return lambda: engine.search(queries, timing=True, **options).ids


def _asked(backend: str, options: Mapping[str, Any], **how: Any) -> Callable[[], object]:
    return _search(backend, [fr.Query(text, now=DOCUMENTS * DAY / 8, **options) for text in corpus()[1]], **how)


def _texts(backend: str, count: int = QUERIES, **how: Any) -> Callable[[], object]:
    return _search(backend, corpus()[1][:count], **how)


def _terms(backend: str) -> Callable[[], object]:
    return _search(backend, [fr.Query(terms=text.split()) for text in corpus()[1]])


def _hybrid(backend: str) -> Callable[[], object]:
    numbers = random.Random(2)
    vectors = [[numbers.randrange(-9, 10) + 0.5 for _ in range(DIMENSION)] for _ in corpus()[1]]
    queries = [fr.Query(text, vector=own) for text, own in zip(corpus()[1], vectors, strict=True)]
    return _search(backend, queries, strategy="rrf")


def _build() -> Callable[[], object]:
    records, _ = corpus()
    return lambda: fr.Engine.from_records(records, analyzer="minimal", encoder=fr.OwnVectors(DIMENSION))


def _write() -> Callable[[], object]:
    records, _ = corpus()
    engine = fr.Engine.from_records(records[WRITTEN:], analyzer="minimal", encoder=fr.OwnVectors(DIMENSION))
    return lambda: engine.add(records[:WRITTEN])


def _scifact(backend: str) -> Callable[[], object]:
    tokens = load(prepare(CORPORA["scifact"]))
    records = [fr.Record(id=str(n), text=" ".join(terms)) for n, terms in enumerate(tokens.document_terms())]
    engine = fr.Engine.from_records(records, analyzer="minimal", backend=backend)
    return lambda: engine.search(tokens.query_texts, timing=True).ids


DECAYED: dict[str, Any] = {"half_life": 30 * DAY}
RANGED: dict[str, Any] = {"since": 100 * DAY, "until": 300 * DAY}
FILTERED: dict[str, Any] = {"filter": {"session": "s3"}}

TASKS = (
    *(
        task
        for name in ("numpy", "numba")
        for task in (
            Task(f"{name} fan-out", partial(_texts, name, FAN_OUT), name),
            Task(f"{name} auto", partial(_texts, name), name),
            Task(f"{name} exhaustive", partial(_texts, name, execution="exhaustive"), name),
            Task(f"{name} pruned", partial(_texts, name, execution="pruned"), name),
            Task(f"{name} k 100", partial(_texts, name, k=100), name),
            Task(f"{name} terms", partial(_terms, name), name),
            Task(f"{name} decayed", partial(_asked, name, DECAYED), name),
            Task(f"{name} ranged", partial(_asked, name, RANGED), name),
            Task(f"{name} filtered", partial(_asked, name, FILTERED), name),
            Task(f"{name} statistics", partial(_asked, name, {**FILTERED, "statistics": "filtered"}), name),
            Task(f"{name} hybrid rrf", partial(_hybrid, name), name),
        )
    ),
    Task("build", _build),
    Task("write", _write),
)
SCIFACT = tuple(Task(f"{name} scifact", partial(_scifact, name), name) for name in ("numpy", "numba"))


def list_usable() -> set[str]:
    """The backends that serve here."""
    return {status.name for status in backends.statuses() if status.usable}


@contextmanager
def hold_steady() -> Iterator[None]:
    """Switch off work that depends on the clock, runs in the background, or runs when memory is freed."""
    collects = gc.isenabled()
    gc.disable()
    with patch.object(Memory, "wake", lambda memory: None):
        try:
            yield
        finally:
            if collects:
                gc.enable()


def count_task(task: Task) -> Counts:
    """The counts of a task. Runs it three times."""
    with hold_steady():
        task.make()()
        run = task.make()
        gc.collect()
        with count_work() as sums:
            calls = _calls(run)
        run = task.make()
        gc.collect()
        tracemalloc.start()
        try:
            run()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    return {**{name: sums[name] for name in COUNTED}, "calls": calls, "peak_kib": peak >> 10}


def _calls(run: Callable[[], object]) -> int:
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        calls[event] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls["call"] + calls["c_call"]


def versions() -> dict[str, str]:
    """The versions that calls and peaks depend on."""
    installed = {package: find_spec(package) is not None for package in PACKAGES}
    return {
        "python": platform.python_version(),
        **{package: version(package) if there else "none" for package, there in installed.items()},
    }


def python() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def update_baseline(
    baseline: Mapping[str, Any], found: Mapping[str, Counts], under: Mapping[str, str]
) -> dict[str, Any]:
    """The baseline with these counts in place of those of their tasks, without tasks that no longer exist."""
    known = {task.name for task in (*TASKS, *SCIFACT)}
    counts = {**baseline.get("counts", {}), **{task: {n: own[n] for n in COUNTED} for task, own in found.items()}}
    pythons = dict(baseline.get("python", {}))
    before = pythons.get(python(), {})
    kept = before.get("roads", {}) if before.get("versions") == dict(under) else {}
    own_tasks = {**kept, **{task: {n: own[n] for n in VERSIONED} for task, own in found.items()}}
    pythons[python()] = {"versions": dict(under), "roads": {r: own for r, own in own_tasks.items() if r in known}}
    return {"counts": {task: own for task, own in counts.items() if task in known}, "python": pythons}


@dataclass(frozen=True)
class Change:
    """A count of a task that differs from the baseline by more than its limit."""

    task: str
    count: str
    before: int | None
    now: int

    @property
    def grew(self) -> bool:
        return self.before is not None and self.now > self.before

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.task:24} {self.count:9} {'new':>12} -> {self.now:>12,}  to be recorded"
        share = f"{self.now / self.before - 1.0:+.1%}" if self.before else "from nothing"
        verdict = "GREW" if self.grew else "shrank: record it"
        return f"{self.task:24} {self.count:9} {self.before:>12,} -> {self.now:>12,}  {share} {verdict}"


def changes(baseline: Mapping[str, Any], found: Mapping[str, Counts], under: Mapping[str, str]) -> list[Change]:
    """The counts that differ by more than their limits; `VERSIONED` ones count only under the recorded versions."""
    recorded = baseline.get("python", {}).get(python(), {})
    comparable = recorded.get("versions") == dict(under)
    differences = []
    for task, now in found.items():
        before = {**baseline.get("counts", {}).get(task, {}), **(recorded["roads"].get(task, {}) if comparable else {})}
        names = (*COUNTED, *VERSIONED) if comparable else COUNTED
        differences += [
            Change(task, name, before.get(name), now[name]) for name in names if _differs(name, before, now)
        ]
    return differences


def _differs(name: str, before: Counts, now: Counts) -> bool:
    return name not in before or abs(now[name] - before[name]) > before[name] * LIMITS[name]


def table(found: Mapping[str, Counts]) -> str:
    names = (*COUNTED, *VERSIONED)
    lines = [f"{'task':24}" + "".join(f"{name:>13}" for name in names)]
    lines += [f"{task:24}" + "".join(f"{own[name]:>13,}" for name in names) for task, own in found.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.work", description="Counted work against a baseline.")
    parser.add_argument("--record", action="store_true", help="write the baseline instead of comparing with it")
    parser.add_argument("--scifact", action="store_true", help="SciFact too, where its data is")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    options = parser.parse_args(arguments)
    tasks = (*TASKS, *(SCIFACT if options.scifact else ()))
    serving, under = list_usable(), versions()
    left_out = [task.name for task in tasks if task.needs not in serving]
    found = {task.name: count_task(task) for task in tasks if task.needs in serving}
    print(table(found))
    if left_out:
        print(f"left out, as their backend does not serve here: {', '.join(left_out)}")
    baseline = json.loads(options.baseline.read_text()) if options.baseline.is_file() else {}
    if options.record:
        text = json.dumps(update_baseline(baseline, found, under), indent=1, sort_keys=True)
        options.baseline.parent.mkdir(parents=True, exist_ok=True)
        options.baseline.write_text(text + "\n")
        print(f"recorded in {options.baseline}")
        return 0
    if baseline.get("python", {}).get(python(), {}).get("versions") != under:
        print(f"calls and peaks are not compared: nothing is recorded for {under}")
    differences = changes(baseline, found, under)
    print("\n".join(map(str, differences)) or "as recorded")
    return int(any(change.grew for change in differences))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets follows hashes, and decides how early some loops end.
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
