"""Counted work of searches and writes against what is recorded. Seconds are noise; counts are not.

Each task is one call over a corpus from a seed. ``python -m bench.work`` prints what differs by more than its limit,
and ends with 1 where something grew; ``--record`` writes what it counts. Calls (`sys.setprofile`) and peaks
(`tracemalloc`) are kept for each minor version of Python.
"""

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
from functools import lru_cache, partial
from importlib.metadata import version
from types import FrameType
from typing import Any
from unittest.mock import patch

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.storage.storage import Storage
from fanrank.engine.timing import Phases

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


DECAYED: dict[str, Any] = {"half_life": 30 * DAY}
RANGED: dict[str, Any] = {"since": 100 * DAY, "until": 300 * DAY}
SINCE: dict[str, Any] = {"since": 0.0}
"""Excludes nothing."""
FILTERED: dict[str, Any] = {"filter": {"session": "s3"}}

# Searches of one engine: what an earlier one derived is there for the later ones, so the order counts.
TASKS: dict[str, Callable[[], Counted]] = {}
"""By name: what does the uncounted work and returns the counted call, which takes whether searches time phases."""
for _name in ("numpy", "native"):
    TASKS |= {f"{_name} one": partial(_texts, _name, 1), f"{_name} fan-out": partial(_texts, _name, FAN_OUT)}
    for _what, _count in (("one", 1), ("fan-out", FAN_OUT)):
        for _how, _options in (("filtered", FILTERED), ("half-life", DECAYED), ("since", SINCE)):
            TASKS[f"{_name} {_what} {_how}"] = partial(_asked, _name, _options, _count)
    TASKS |= {
        f"{_name} auto": partial(_texts, _name),
        f"{_name} exhaustive": partial(_texts, _name, execution="exhaustive"),
        f"{_name} pruned": partial(_texts, _name, execution="pruned"),
        f"{_name} k 100": partial(_texts, _name, k=100),
        f"{_name} terms": partial(_terms, _name),
        f"{_name} decayed": partial(_asked, _name, DECAYED),
        f"{_name} ranged": partial(_asked, _name, RANGED),
        f"{_name} filtered": partial(_asked, _name, FILTERED),
        f"{_name} statistics": partial(_asked, _name, {**FILTERED, "statistics": "filtered"}),
        f"{_name} hybrid rrf": partial(_hybrid, _name),
    }
TASKS |= {"build": _build, "write": _write}


@contextmanager
def count_work() -> Iterator[Counter[str]]:
    """The sums, by name, of what `Phases.count` receives in the block. A search with ``timing`` counts everything."""
    sums: Counter[str] = Counter()
    count = Phases.count

    def counts_too(phases: Phases, name: str, number: int) -> None:
        sums[name] += number
        count(phases, name, number)

    with patch.object(Phases, "count", counts_too):
        yield sums


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


def count_task(make: Callable[[], Counted]) -> Counts:
    """The counts of a task. Runs it four times."""
    with hold_steady():
        make()(False)
        run = make()
        with count_work() as sums:
            run(True)
        run = make()
        gc.collect()
        calls = _calls(run)
        run = make()
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
    return {"python": platform.python_version(), "numpy": version("numpy")}


PYTHON = ".".join(map(str, sys.version_info[:2]))


def update(baseline: Mapping[str, Any], found: Mapping[str, Counts], under: Mapping[str, str]) -> dict[str, Any]:
    """The baseline with these counts in place of those of this Python, and without tasks that no longer exist."""
    own = {
        "versions": dict(under),
        "tasks": {task: {n: counts[n] for n in VERSIONED} for task, counts in found.items()},
    }
    counts = {**baseline.get("counts", {}), **{task: {n: one[n] for n in COUNTED} for task, one in found.items()}}
    known = {task: one for task, one in counts.items() if task in TASKS}
    return {"counts": known, "python": {**baseline.get("python", {}), PYTHON: own}}


def changes(baseline: Mapping[str, Any], found: Mapping[str, Counts], under: Mapping[str, str]) -> dict[str, bool]:
    """What differs by more than its limit, in words, and whether it grew; of calls also what is more than they may."""
    recorded = baseline.get("python", {}).get(PYTHON, {})
    kept = recorded["tasks"] if recorded.get("versions") == dict(under) else {}
    told = {}
    for task, now in found.items():
        before = {**baseline.get("counts", {}).get(task, {}), **kept.get(task, {})}
        for name in (*COUNTED, *(VERSIONED if kept else ())):
            if name not in before:
                told[f"{task}, {name}: {now[name]:,} is to be recorded"] = False
            elif abs(now[name] - before[name]) > before[name] * LIMITS[name]:
                told[f"{task}, {name}: {before[name]:,} -> {now[name]:,}"] = now[name] > before[name]
        if now["calls"] > MOST_CALLS.get(task, now["calls"]):
            told[f"{task}, calls: {now['calls']:,} of at most {MOST_CALLS[task]}"] = True
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.work", description="Counted work against a baseline.")
    parser.add_argument("--record", action="store_true", help="write the baseline instead of comparing with it")
    options = parser.parse_args(arguments)
    usable, under = {status.name for status in backends.statuses() if status.usable}, versions()
    found = {
        name: count_task(make)
        for name, make in TASKS.items()
        if name in ("build", "write") or name.partition(" ")[0] in usable
    }
    baseline = json.loads(BASELINE.read_text())
    if options.record:
        BASELINE.write_text(json.dumps(update(baseline, found, under), indent=1, sort_keys=True) + "\n")
        return 0
    told = changes(baseline, found, under)
    print("\n".join(f"{line}{'  GREW' * grew}" for line, grew in told.items()) or "as recorded")
    return int(any(told.values()))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets follows hashes, and decides how early some loops end.
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
