"""Counted work against a recorded baseline: ``python -m bench.work``. Seconds are noise; counts are not.

Over corpora made from a seed, each task runs once to warm up and once each for what is counted: what searches count
with ``timing`` (``postings`` read, ``lookups`` of postings by document, ``bytes`` of posting data read;
`Phases.count`), the ``calls`` that Python makes without it (of functions, its own and compiled ones;
`sys.setprofile`), and the peak of allocated memory (``peak_kib``; `tracemalloc`). Prints a table and exits with 1
where something grew by more than its limit (`LIMITS`), or where a call takes more of Python's calls than it may
(`MOST_CALLS`). A count that shrank is printed as well; record it with ``python -m bench.work --record``.

Calls and peaks depend on the versions of Python and numpy. They are kept for each minor version of Python, and
compared where both are the recorded ones. A task that cannot run here is left out, and the output says so.
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
from fanrank.engine.storage.storage import Storage

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
MOST_CALLS = {"native one": 60, "native fan-out": 80}
"""Tasks whose calls of Python have a limit of their own, whatever was recorded: texts in, hits out, ids looked up."""
PACKAGES = ("numpy",)

DOCUMENTS, VOCABULARY, TOKENS, QUERIES, FAN_OUT, WRITTEN = 8_000, 3_000, 24, 200, 20, 100
DIMENSION = 8
DAY = 86_400.0

Counts = dict[str, int]
Counted = Callable[[bool], object]


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
    """`make` does the uncounted work and returns the counted call, which takes whether searches time their phases.
    `needs` is the backend that must serve here."""

    name: str
    make: Callable[[], Counted]
    needs: str = "numpy"


@lru_cache(maxsize=1)
def _engine() -> fr.Engine:
    records, _ = corpus()
    engine = fr.Engine(analyzer="minimal", encoder=fr.OwnVectors(DIMENSION), keep_texts=False, backend="numpy")
    # Two segments; some records of the first one are deleted.
    engine.add(records[: DOCUMENTS // 2 + 1000])
    engine.add(records[DOCUMENTS // 2 + 1000 :])
    engine.delete([record.id for record in records[: DOCUMENTS // 2 : 50]])
    return engine


def _search(backend: str, queries: Sequence[Any], **options: Any) -> Counted:
    engine = _engine()
    engine.backend = backends.choose(backend)
    return lambda timing: engine.search(queries, timing=timing, **options).ids


def _asked(backend: str, options: Mapping[str, Any], count: int = QUERIES, **how: Any) -> Counted:
    texts = corpus()[1][:count]
    return _search(backend, [fr.Query(text, now=DOCUMENTS * DAY / 8, **options) for text in texts], **how)


def _texts(backend: str, count: int = QUERIES, **how: Any) -> Counted:
    return _search(backend, corpus()[1][:count], **how)


def _terms(backend: str) -> Counted:
    return _search(backend, [fr.Query(terms=text.split()) for text in corpus()[1]])


def _hybrid(backend: str) -> Counted:
    numbers = random.Random(2)
    vectors = [[numbers.randrange(-9, 10) + 0.5 for _ in range(DIMENSION)] for _ in corpus()[1]]
    queries = [fr.Query(text, vector=own) for text, own in zip(corpus()[1], vectors, strict=True)]
    return _search(backend, queries, strategy="rrf")


def _build_engine(records: Sequence[fr.Record]) -> fr.Engine:
    return fr.Engine.from_records(records, analyzer="minimal", encoder=fr.OwnVectors(DIMENSION), keep_texts=False)


def _build() -> Counted:
    records, _ = corpus()
    return lambda timing: _build_engine(records)


def _write() -> Counted:
    records, _ = corpus()
    engine = _build_engine(records[WRITTEN:])
    return lambda timing: engine.add(records[:WRITTEN])


def _scifact(backend: str) -> Counted:
    tokens = load(prepare(CORPORA["scifact"]))
    records = [fr.Record(id=str(n), text=" ".join(terms)) for n, terms in enumerate(tokens.document_terms())]
    engine = fr.Engine.from_records(records, analyzer="minimal", keep_texts=False, backend=backend)
    return lambda timing: engine.search(tokens.query_texts, timing=timing).ids


DECAYED: dict[str, Any] = {"half_life": 30 * DAY}
RANGED: dict[str, Any] = {"since": 100 * DAY, "until": 300 * DAY}
SINCE: dict[str, Any] = {"since": 0.0}
"""Excludes nothing."""
FILTERED: dict[str, Any] = {"filter": {"session": "s3"}}

TASKS = (
    *(
        task
        for name in ("numpy", "native")
        for task in (
            Task(f"{name} one", partial(_texts, name, 1), name),
            Task(f"{name} fan-out", partial(_texts, name, FAN_OUT), name),
            *(
                Task(f"{name} {what} {condition}", partial(_asked, name, options, count), name)
                for what, count in (("one", 1), ("fan-out", FAN_OUT))
                for condition, options in (("filtered", FILTERED), ("half-life", DECAYED), ("since", SINCE))
            ),
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
SCIFACT = tuple(Task(f"{name} scifact", partial(_scifact, name), name) for name in ("numpy", "native"))


def list_usable() -> set[str]:
    """The backends that serve here."""
    return {status.name for status in backends.statuses() if status.usable}


@contextmanager
def hold_steady() -> Iterator[None]:
    """Switch off work that depends on the clock, runs in the background, or runs when memory is freed."""
    collects = gc.isenabled()
    gc.disable()
    with patch.object(Storage, "wake", lambda memory: None):
        try:
            yield
        finally:
            if collects:
                gc.enable()


def count_task(task: Task) -> Counts:
    """The counts of a task. Runs it four times."""
    with hold_steady():
        task.make()(False)
        run = task.make()
        with count_work() as sums:
            run(True)
        run = task.make()
        gc.collect()
        calls = _calls(run)
        run = task.make()
        gc.collect()
        tracemalloc.start()
        try:
            run(False)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    return {**{name: sums[name] for name in COUNTED}, "calls": calls, "peak_kib": peak >> 10}


def _calls(run: Counted) -> int:
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        calls[event] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run(False)
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


def too_many(found: Mapping[str, Counts]) -> list[str]:
    """Tasks that take more of Python's calls than they may, in words."""
    return [
        f"{task:24} {'calls':9} {found[task]['calls']:>12,} of at most {most}  TOO MANY"
        for task, most in MOST_CALLS.items()
        if task in found and found[task]["calls"] > most
    ]


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
        print("\n".join([f"recorded in {options.baseline}", *too_many(found)]))
        return 0
    if baseline.get("python", {}).get(python(), {}).get("versions") != under:
        print(f"calls and peaks are not compared: nothing is recorded for {under}")
    differences, over = changes(baseline, found, under), too_many(found)
    print("\n".join([*map(str, differences), *over]) or "as recorded")
    return int(bool(over) or any(change.grew for change in differences))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets follows hashes, and decides how early some loops end.
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
