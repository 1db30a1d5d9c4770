"""The parts of `bench.writes`: each is a function of its settings and an empty folder, and returns figures by name."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

import fanrank as fr

from ..growth import grow
from .load import Asking, Figures, expect, percentiles, write
from .methods import FAN_OUT, K, import_analyzer, peak_rss_gib
from .paths import ROOT
from .rows import round_digits
from .synthetic import SyntheticMemory

PART_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Settings:
    """How much each part does. A store holds `base` records before it is measured."""

    records: int = 200_000
    batch: int = 100
    writers: int = 4
    base: int = 200_000
    seconds: float = 10.0
    pace: float = 10.0
    tail_pace: float = 50.0
    rounds: int = 4
    cold_records: int = 1_000_000
    cold_rounds: int = 3
    tenants: int = 10_000
    tenant_records: int = 100
    asked: int = 1_000
    seed: int = 42


def part_append(settings: Settings, folder: Path) -> Figures:
    """Records a second, durable when acknowledged, beside the time of one sync of the disk."""
    figures: Figures = {"sync_p50_ms": _sync_ms(folder)}
    batches = list(_batches(SyntheticMemory(settings.records, settings.seed), 0, settings.batch))
    for writers in (1, settings.writers):
        with _store(folder / f"writers-{writers}") as engine:
            figures[f"writers_{writers}"] = write(engine, iter(batches), writers, settings.seconds)
            expect(len(engine) == figures[f"writers_{writers}"]["records"], "the store lost an acknowledged record")
    return figures


def part_searching(settings: Settings, folder: Path) -> Figures:
    """One writer at full speed beside a searching thread: none, one at full speed, one at `pace` fan-outs a second."""
    figures: Figures = {}
    memory = SyntheticMemory(settings.base + 3 * settings.records, settings.seed)
    with _store(folder) as engine:
        grow(engine, replace(memory, records=settings.base), 0, lambda line: None)
        fan_outs = _fan_outs(replace(memory, records=settings.base), 64)
        held = settings.base
        for name, pace in (("alone", 0.0), ("flat_out", None), ("paced", settings.pace)):
            batches = list(islice(_batches(memory, held, settings.batch), settings.records // settings.batch))
            with Asking(engine, fan_outs, pace) as asking:
                written = write(engine, iter(batches), 1, settings.seconds)
            held += written["records"]
            figures[name] = {**written, **asking.figures()}
    return figures


def part_tail(settings: Settings, folder: Path) -> Figures:
    """Fan-outs at a fixed pace without writes, and while one writer keeps to half of its full rate, in turn."""
    memory = SyntheticMemory(1 << 40, settings.seed)
    base = replace(memory, records=settings.base)
    with _store(folder) as engine:
        grow(engine, base, 0, lambda line: None)
        fan_outs = _fan_outs(base, 64)
        source = _make_batches(memory, settings.base, settings)
        enough = list(islice(source, settings.records // settings.batch))
        most = write(engine, iter(enough), 1, settings.seconds / 2)
        # More than half: a paced writer can be late but never early, and the searches slow it.
        target = 0.6 * most["records_per_s"]
        quiet, writing, rates = [], [], []
        for _ in range(settings.rounds):
            with Asking(engine, fan_outs, settings.tail_pace) as asking:
                threading.Event().wait(settings.seconds / 2)
            quiet += asking.ms
            needed = int(target * settings.seconds / 2 / settings.batch) + 1
            batches = list(islice(source, needed))
            with Asking(engine, fan_outs, settings.tail_pace) as asking:
                rates.append(write(engine, iter(batches), 1, settings.seconds / 2, target)["records_per_s"])
            writing += asking.ms
    without, during = percentiles(quiet), percentiles(writing)
    return {
        "quiet": without,
        "writing": during,
        "p99_ratio": round_digits(during["fanout_p99_ms"] / without["fanout_p99_ms"]),
        "one_writer_records_per_s": most["records_per_s"],
        "records_per_s": round(float(np.median(rates))),
        "rate_share": round_digits(float(np.median(rates)) / most["records_per_s"]),
    }


def part_memory(settings: Settings, folder: Path) -> Figures:
    """Peak memory and bytes on disk of a store that takes `base` records in bulk and `records` in batches."""
    import_analyzer()
    before = peak_rss_gib()
    memory = SyntheticMemory(settings.base + settings.records, settings.seed)
    with _store(folder) as engine:
        grow(engine, replace(memory, records=settings.base), 0, lambda line: None)
        bulk = peak_rss_gib()
        # Only one batch exists at a time, so the engine alone grows.
        for batch in _batches(memory, settings.base, settings.batch):
            engine.add(batch)
        records = len(engine)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "records": records,
        "before_gib": before,
        "after_bulk_gib": bulk,
        "peak_gib": peak_rss_gib(),
        "peak_bytes_per_record": round((peak_rss_gib() - before) * 2**30 / records),
        "disk_bytes_per_record": round(size / records),
    }


def part_cold(settings: Settings, folder: Path) -> Figures:
    """Fresh processes open a store. Medians in milliseconds, with its files in the system's cache and without."""
    memory = SyntheticMemory(settings.cold_records, settings.seed)
    with _store(folder) as engine:
        seconds = grow(engine, memory, 0, lambda line: None)
        begin = time.perf_counter()
        engine.flush()
        flushed = time.perf_counter() - begin
    figures: Figures = {"build_records_per_s": round(memory.records / seconds), "flush_ms": round_digits(1e3 * flushed)}
    for name, drop in (("uncached", True), ("cached", False)):
        runs = []
        for _ in range(settings.cold_rounds):
            if drop and not _drop_cache(folder):
                break
            begin = time.perf_counter()
            found = child("open", settings, folder)
            runs.append({**found, "process_ms": 1e3 * (time.perf_counter() - begin)})
        if runs:
            expect(all(run.pop("records") == memory.records for run in runs), "records are missing after the opening")
            figures[name] = {key: round_digits(float(np.median([run[key] for run in runs]))) for key in runs[0]}
    return figures


def part_tenants(settings: Settings, folder: Path) -> Figures:
    """Namespaces in one engine in memory. A batch over many of them must equal single searches, bit for bit."""
    import_analyzer()
    before = peak_rss_gib()
    engine = fr.Engine(keep_texts=False)
    memories = [
        SyntheticMemory(settings.tenant_records, settings.seed, namespace=f"tenant-{number}")
        for number in range(settings.tenants)
    ]
    seconds = 0.0
    for start in range(0, settings.tenants, 100):
        chunk = list(
            chain.from_iterable(_tenant(memory, start + n) for n, memory in enumerate(memories[start : start + 100]))
        )
        begin = time.perf_counter()
        engine.add(chunk)
        seconds += time.perf_counter() - begin
    held = peak_rss_gib()
    asked = np.random.default_rng(settings.seed).permutation(settings.tenants)[: settings.asked].tolist()
    queries = [_tenant_query(memories[number], number) for number in asked]
    ms = []
    for _ in range(6):
        begin = time.perf_counter()
        hits = engine.search(queries, K)
        ids = hits.ids
        ms.append(1e3 * (time.perf_counter() - begin))
    alone = [engine.search([query], K) for query in queries]
    equal = all(
        np.array_equal(one.scores[0], hits.scores[row]) and np.array_equal(one.ids[0], ids[row])
        for row, one in enumerate(alone)
    )
    expect(equal, "a tenant asked in a batch got another answer than alone")
    return {
        "records": len(engine),
        "build_records_per_s": round(len(engine) / seconds),
        "before_gib": before,
        "after_build_gib": held,
        "bytes_per_tenant": round((held - before) * 2**30 / settings.tenants),
        "batch_tenants": len(queries),
        "first_batch_ms": round_digits(ms[0]),
        "batch_p50_ms": round_digits(float(np.median(ms[1:]))),
        "equal": equal,
    }


PARTS: dict[str, Callable[[Settings, Path], Figures]] = {
    part.__name__.removeprefix("part_"): part
    for part in (part_append, part_searching, part_tail, part_memory, part_cold, part_tenants)
}


@contextmanager
def _store(folder: Path) -> Iterator[fr.Engine]:
    import_analyzer()
    engine = fr.Engine.open(folder)
    try:
        yield engine
    finally:
        engine.close()


def _batches(memory: SyntheticMemory, first: int, size: int) -> Iterator[list[fr.Record]]:
    source = memory.stream(first)
    while batch := list(islice(source, size)):
        yield batch


def _make_batches(memory: SyntheticMemory, first: int, settings: Settings) -> Iterator[list[fr.Record]]:
    """Endless batches, made a stretch at a time, so that no batch is made while one is written."""
    size = settings.records // settings.batch * settings.batch
    while True:
        yield from list(_batches(replace(memory, records=first + size), first, settings.batch))
        first += size


def _fan_outs(memory: SyntheticMemory, count: int) -> list[list[fr.Query]]:
    queries = [fr.Query(question.text, now=question.now) for question in memory.questions(count * FAN_OUT)]
    return [queries[start : start + FAN_OUT] for start in range(0, len(queries), FAN_OUT)]


def _tenant(memory: SyntheticMemory, number: int) -> Iterable[fr.Record]:
    """The tenant's own stretch of the synthetic memory, so that no two tenants hold the same records."""
    first = number * memory.records
    return replace(memory, records=first + memory.records).stream(first)


def _tenant_query(memory: SyntheticMemory, number: int) -> fr.Query:
    record = next(iter(_tenant(memory, number)))
    return fr.Query(" ".join(record.text.split()[:5]), namespace=memory.namespace)


def _sync_ms(folder: Path, times: int = 50) -> float:
    """Milliseconds to make 16 KiB durable here: the least time of a batch."""
    folder.mkdir(parents=True, exist_ok=True)
    ms = []
    with (folder / "sync").open("wb") as file:
        for _ in range(times):
            begin = time.perf_counter()
            file.write(bytes(16384))
            file.flush()
            os.fsync(file.fileno())
            ms.append(1e3 * (time.perf_counter() - begin))
    return round_digits(float(np.median(ms)))


def _drop_cache(folder: Path) -> bool:
    """Ask the system to drop the pages of these files from its cache. Returns whether it can be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in (file for file in folder.rglob("*") if file.is_file()):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return True


def open_cold(settings: Settings, folder: Path, began: float, imported: float) -> Figures:
    """The child's side of ``cold``: milliseconds of import, opening, first and later fan-outs."""
    # The questions are made before the clock starts, from the same seed.
    fan_outs = _fan_outs(SyntheticMemory(settings.cold_records, settings.seed), 3)
    opening = time.perf_counter()
    engine = fr.Engine.open(folder)
    opened = time.perf_counter()
    ms = []
    for fan_out in [fan_outs[0], *fan_outs]:
        begin = time.perf_counter()
        _ = engine.search(fan_out, K).ids
        ms.append(1e3 * (time.perf_counter() - begin))
    figures = {
        "import_ms": 1e3 * (imported - began),
        "open_ms": 1e3 * (opened - opening),
        "first_fanout_ms": ms[0],
        "same_fanout_ms": ms[1],
        "other_fanout_ms": float(np.median(ms[2:])),
        "to_first_answer_ms": 1e3 * (imported - began + opened - opening) + ms[0],
        "peak_rss_gib": peak_rss_gib(),
        "records": len(engine),
    }
    engine.close()
    return figures


def run_part(part: str, settings: Settings, folder: Path) -> Figures:
    """One part in this process, in a folder of its own that is removed after it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{part}-", dir=folder, ignore_cleanup_errors=True) as scratch:
        return {"figures": PARTS[part](settings, Path(scratch) / "store"), "peak_rss_gib": peak_rss_gib()}


_CHILD = """
import time; began = time.perf_counter()
import fanrank; imported = time.perf_counter()
import json, sys
from pathlib import Path
from bench.harness import write_parts as parts
part, folder, settings = sys.argv[1], Path(sys.argv[2]), parts.Settings(**json.loads(sys.argv[3]))
if part == "open":
    print(json.dumps(parts.open_cold(settings, folder, began, imported)))
else:
    print(json.dumps(parts.run_part(part, settings, folder)))
"""


def child(part: str, settings: Settings, folder: Path) -> Figures:
    """What a fresh process finds that runs a part or opens a store. Raises `RuntimeError` with its last line."""
    # The same fanrank as the one imported here.
    paths = [str(Path(fr.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, part, str(folder), json.dumps(asdict(settings))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=PART_TIMEOUT,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1])
    return dict(json.loads(done.stdout))
