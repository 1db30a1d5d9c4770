"""The GPU bench in one run: ceilings, checked answers, interleaved systems. ``python -m bench.gpu.run``."""

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..harness.command import among, names
from ..harness.rows import round_digits
from . import corpora as gpu_corpora
from . import systems as gpu_systems
from .baseline import FlatIndex
from .batches import HitArrays, Ready, System, Variant
from .command import GpuCommand, reason_of
from .corpora import Problem
from .rows import Row, shares
from .systems import STOPS, DeviceSystem

BATCHES = (1, 20, 256, 0)
"""0: all queries at once."""
KS = (10, 100, 1000)
SMOKE_BATCHES, SMOKE_KS = (1, 3, 0), (3, 20)
VARIANTS, SMOKE_VARIANTS = 8, 2
"""Batches of one size that a measurement uses in turn, so that the second-level cache does not keep one of them."""
FEWEST_REPS = 3


@dataclass
class Measured:
    """One system in one phase of one cell, during the run."""

    system: System
    phase: str
    ready: Ready | None = None
    rounds: int = 1
    wanted: int = 0
    ms: list[float] = field(default_factory=list)
    verdict: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Cell:
    """A batch size and k over one corpus, in several variants; `expected` is numpy's answer to all its queries."""

    problem: Problem
    batch: int
    k: int
    variants: list[Variant]
    expected: HitArrays


def cell_of(problem: Problem, batch: int, k: int, expected: HitArrays, most: int = VARIANTS) -> Cell:
    """The cell; batches do not overlap, and there are at most `most` of them."""
    size = problem.queries if batch == 0 else batch
    starts = range(0, problem.queries - size + 1, size)[:most]
    return Cell(problem, size, k, [Variant(problem, start, start + size, k) for start in starts], expected)


def measure(cell: Cell, systems: Sequence[System], reps: int, budget: float) -> list[Measured]:
    """Verify and warm up every system, then time them in turn. One repetition times each system once."""
    items = [Measured(system, phase) for system in systems for phase in system.phases(cell.batch, cell.k)]
    for item in items:
        _make_ready(item, cell, reps, budget)
    for repetition in range(reps):
        first = repetition % max(1, len(items))
        for item in items[first:] + items[:first]:
            if item.ready is not None and item.error is None and repetition < item.wanted:
                ready = item.ready
                item.ms.append(time_batch(ready.run, len(cell.variants), item.rounds, ready.on_device))
    return items


def _make_ready(item: Measured, cell: Cell, reps: int, budget: float) -> None:
    """Warm up and verify; choose the rounds of a measurement over the variants, and its repetitions."""
    try:
        item.ready = item.system.ready(cell.variants, item.phase, budget)
        if item.phase not in STOPS:
            item.verdict = verify(cell, item.ready)
        each = time_batch(item.ready.run, len(cell.variants), 1, item.ready.on_device) / 1e3 * len(cell.variants)
        item.rounds = max(1, min(100, round(budget / reps / max(each, 1e-9))))
        item.wanted = max(FEWEST_REPS, min(reps, round(budget / max(each * item.rounds, 1e-9))))
    except Exception as error:
        # A system that fails (out of memory, a missing library) becomes a row with the error. The run goes on.
        item.error = reason_of(error)


def time_batch(run: Callable[[int], object], variants: int, rounds: int, on_device: bool) -> float:
    """Milliseconds of a batch: the mean over the variants and `rounds` rounds of them, inside one clock.

    The clock is a pair of events on the device, or the clock of the host.
    """
    calls = [number for _ in range(rounds) for number in range(variants)]
    if on_device:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for number in calls:
            run(number)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / len(calls)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in calls:
        run(number)
    return (time.perf_counter() - begin) * 1e3 / len(calls)


def verify(cell: Cell, ready: Ready) -> dict[str, Any]:
    """How the answers to every variant agree with numpy's: bit for bit, or by rates for float systems."""
    same, again, top1, overlap = [], [], [], []
    for number, variant in enumerate(cell.variants):
        size = ready.queries or variant.queries
        rows_of = slice(variant.start, variant.start + size)
        scores, documents, counts = (part[rows_of] for part in cell.expected)
        counts = np.minimum(counts, cell.k)
        found = ready.answer(number)
        if ready.exact:
            parts = zip(found, (scores[:, : cell.k], documents[:, : cell.k], counts), strict=True)
            equal = [(own == wanted).reshape(size, -1).all(axis=1) for own, wanted in parts]
            same.append(np.logical_and.reduce(equal))
            second = ready.answer(number)
            again.append(all(np.array_equal(a, b) for a, b in zip(found, second, strict=True)))
            continue
        for row in range(size):
            wanted = documents[row, : counts[row]]
            if len(wanted):
                top1.append(found[1][row, 0] == wanted[0])
                overlap.append(np.isin(wanted, found[1][row]).mean())
    if ready.exact:
        return {"identical": float(np.concatenate(same).mean()), "repeatable": all(again)}
    return {"top1": round(float(np.mean(top1)), 4), "overlap": round(float(np.mean(overlap)), 5)}


def rows_of(cell: Cell, items: Sequence[Measured], ceiling: dict[str, float]) -> list[Row]:
    """The rows of a measured cell."""
    return [_row(cell, item, items, ceiling) for item in items if item.phase not in STOPS]


def _row(cell: Cell, item: Measured, items: Sequence[Measured], ceiling: dict[str, float]) -> Row:
    problem, ready = cell.problem, item.ready
    place: Row = {
        **{"corpus": problem.name, "system": item.system.name, "phase": item.phase, "batch": cell.batch, "k": cell.k},
        **{"documents": problem.snapshot.size, "postings": problem.postings, "device": item.system.device},
    }
    if item.error is not None or ready is None or not item.ms:
        return {**place, "error": item.error or "not measured"}
    answered = ready.queries or cell.batch
    touched = statistics.mean(problem.touched(v.start, v.start + answered) for v in cell.variants)
    ms = statistics.median(item.ms)
    quartiles = statistics.quantiles(item.ms, n=4, method="inclusive") if len(item.ms) > 1 else None
    found, binding = shares(ready.counted, ceiling, ms / 1e3)
    index_bytes = item.system.index_bytes
    return {
        **place,
        **{"queries": answered, "variants": len(cell.variants), "reps": len(item.ms), "error": None},
        **{"ms": round_digits(ms), "ms_min": round_digits(min(item.ms)), "ms_max": round_digits(max(item.ms))},
        "ms_iqr": round_digits(quartiles[2] - quartiles[0]) if quartiles else None,
        "phases_ms": _phases(item, items) if item.phase == "kernel" else {},
        "queries_per_s": round(answered / ms * 1e3, 1),
        "postings_per_query": round(touched / answered, 1),
        "postings_per_s": round_digits(touched / ms * 1e3),
        "index_bytes": index_bytes,
        "bytes_per_posting": round(index_bytes / problem.postings, 3) if index_bytes else None,
        **{"counted": ready.counted, "share": found, "binding": binding},
        **{"threads": ready.threads, "note": ready.note, **item.verdict},
    }


def _phases(item: Measured, items: Sequence[Measured]) -> dict[str, float]:
    """Milliseconds of each verb, where they were measured."""
    medians = {other.phase: statistics.median(other.ms) for other in items if other.system is item.system and other.ms}
    if not all(name in medians for name in STOPS):
        return {}
    ends = [0.0, *(medians[name] for name in STOPS), medians["kernel"]]
    return {
        name: round_digits(end - begin) for name, (begin, end) in zip((*STOPS, "select"), pairwise(ends), strict=True)
    }


def derive_row(problem: Problem, system: DeviceSystem, ceiling: dict[str, float]) -> Row:
    """The row of deriving the contributions of every posting, and the tables of long lists."""
    on_device, work = system.torch_device.type == "cuda", system.rederive()
    time_batch(work, 1, 1, on_device)
    ms = sorted(time_batch(work, 1, 1, on_device) for _ in range(5))
    # A posting's word, its document's length and its contribution.
    counted = {"device_bytes": 8 * problem.postings + 4 * problem.snapshot.size, "l2_bytes": 12 * problem.postings}
    found, binding = shares(counted, ceiling, ms[2] / 1e3)
    return {
        **{"corpus": problem.name, "system": system.name, "phase": "derive", "batch": 0, "k": 0},
        **{"documents": problem.snapshot.size, "postings": problem.postings, "device": system.device},
        **{"ms": round_digits(ms[2]), "ms_min": round_digits(ms[0]), "ms_max": round_digits(ms[-1]), "reps": 5},
        **{"ms_iqr": round_digits(ms[3] - ms[1]), "queries_per_s": 0.0, "error": None},
        "postings_per_s": round_digits(problem.postings / ms[2] * 1e3),
        "index_bytes": system.index_bytes,
        "bytes_per_posting": round((system.index_bytes or 0) / problem.postings, 3),
        **{"counted": counted, "share": found, "binding": binding},
    }


def make_systems(command: GpuCommand, problem: Problem, wanted: Sequence[str]) -> list[System]:
    """The systems over a problem. What cannot be made is a row with the reason."""
    systems: list[System] = []
    shared: dict[str, FlatIndex] = {}
    for name in wanted:
        command.say(f"{problem.name}: {name}")
        try:
            systems.append(gpu_systems.make(name, problem, command.options.threads, shared))
        except Exception as error:
            place = {"corpus": problem.name, "system": name, "phase": "", "batch": 0, "k": 0}
            command.keep([{**place, "error": reason_of(error)}])
            command.say(reason_of(error))
    return systems


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if every exact answer was numpy's and nothing failed, else 1."""
    command = GpuCommand("run", "Measure the GPU systems beside the others, everything in one run.", "gpu")
    command.add("--corpora", type=among(gpu_corpora.CORPORA), default=gpu_corpora.CORPORA)
    command.add("--batches", type=names, help="default 1,20,256,all")
    command.add("--ks", type=names, help="default 10,100,1000")
    command.add("--systems", type=among(gpu_systems.NAMES), help="default: all that run here")
    command.add("--threads", type=int, default=gpu_systems.default_threads(), help="of the CPU systems")
    command.add_limits(9, 0.5, 60.0)
    options = command.parse(arguments)
    smoke = options.smoke
    corpora = [name for name in options.corpora if not smoke or name in gpu_corpora.SMOKE]
    batches = [0 if each == "all" else int(each) for each in options.batches or (SMOKE_BATCHES if smoke else BATCHES)]
    ks = [*map(int, options.ks or (SMOKE_KS if smoke else KS))]
    command.measure_ceilings()
    ceiling = command.common["ceiling"]
    for corpus in corpora:
        command.say(f"{corpus}: corpus")
        problem = gpu_corpora.problem(corpus, smoke)
        command.say(f"{corpus}: {problem.postings:,} postings; numpy's answers")
        expected = gpu_systems.reference(problem, max(ks), options.threads)
        systems = make_systems(command, problem, options.systems or gpu_systems.list_usable())
        command.keep(derive_row(problem, s, ceiling) for s in systems if isinstance(s, DeviceSystem))
        for batch, k in itertools.product(batches, ks):
            if batch > problem.queries or command.spent:
                command.say(f"{corpus}: batch {batch or 'all'}, k {k} left out")
                continue
            command.say(f"{corpus}: batch {batch or 'all'}, k {k}")
            cell = cell_of(problem, batch, k, expected, SMOKE_VARIANTS if smoke else VARIANTS)
            command.keep(rows_of(cell, measure(cell, systems, options.reps, options.budget), ceiling))
            free_memory()
        del systems
        free_memory()
    return command.end()


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    raise SystemExit(main())
