"""The GPU bench in one run: ceilings, checked answers, interleaved systems. ``python -m bench.gpu.run``."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..harness import machine, rows
from ..harness.code import code_of
from ..harness.command import names
from ..harness.paths import CACHE, RESULTS
from . import corpora as gpu_corpora
from . import systems as gpu_systems
from .batches import HitArrays, Ready, System, Variant
from .ceilings import ceilings
from .corpora import Problem
from .others import FlatIndex
from .rows import GpuRow, markdown, shares
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
        item.error = f"{type(error).__name__}: {error}".splitlines()[0][:300]


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


def rows_of(cell: Cell, items: Sequence[Measured], common: dict[str, Any]) -> list[GpuRow]:
    """The rows of a measured cell."""
    return [_row(cell, item, items, common) for item in items if item.phase not in STOPS]


def _row(cell: Cell, item: Measured, items: Sequence[Measured], common: dict[str, Any]) -> GpuRow:
    problem, ready = cell.problem, item.ready
    sizes: dict[str, Any] = {"documents": problem.snapshot.size, "postings": problem.postings}
    place: dict[str, Any] = {
        "corpus": problem.name,
        "system": item.system.name,
        "phase": item.phase,
        "batch": cell.batch,
        "k": cell.k,
    }
    if item.error is not None or ready is None or not item.ms:
        return GpuRow(**place, **sizes, device=item.system.device, error=item.error or "not measured", **common)
    answered = ready.queries or cell.batch
    touched = statistics.mean(problem.touched(v.start, v.start + answered) for v in cell.variants)
    ms = statistics.median(item.ms)
    quartiles = statistics.quantiles(item.ms, n=4, method="inclusive") if len(item.ms) > 1 else None
    found, binding = shares(ready.counted, common["ceiling"], ms / 1e3)
    index_bytes = item.system.index_bytes
    return GpuRow(
        **place,
        **sizes,
        device=item.system.device,
        queries=answered,
        variants=len(cell.variants),
        ms=_round(ms),
        ms_min=_round(min(item.ms)),
        ms_max=_round(max(item.ms)),
        ms_iqr=_round(quartiles[2] - quartiles[0]) if quartiles else None,
        reps=len(item.ms),
        phases_ms=_phases(item, items) if item.phase == "kernel" else {},
        queries_per_s=round(answered / ms * 1e3, 1),
        postings_per_query=round(touched / answered, 1),
        postings_per_s=float(f"{touched / ms * 1e3:.4g}"),
        index_bytes=index_bytes,
        bytes_per_posting=round(index_bytes / problem.postings, 3) if index_bytes else None,
        counted=ready.counted,
        share=found,
        binding=binding,
        threads=ready.threads,
        note=ready.note,
        **item.verdict,
        **common,
    )


def _phases(item: Measured, items: Sequence[Measured]) -> dict[str, float]:
    """Milliseconds of each verb, where they were measured."""
    medians = {other.phase: statistics.median(other.ms) for other in items if other.system is item.system and other.ms}
    if not all(name in medians for name in STOPS):
        return {}
    ends = [0.0, *(medians[name] for name in STOPS), medians["kernel"]]
    return {name: _round(end - begin) for name, (begin, end) in zip((*STOPS, "select"), pairwise(ends), strict=True)}


def derive_row(problem: Problem, system: DeviceSystem, common: dict[str, Any]) -> GpuRow:
    """The row of deriving the contributions of every posting, and the tables of long lists."""
    on_device, work = system.torch_device.type == "cuda", system.rederive()
    time_batch(work, 1, 1, on_device)
    ms = sorted(time_batch(work, 1, 1, on_device) for _ in range(5))
    # A posting's word, its document's length and its contribution.
    counted = {"device_bytes": 8 * problem.postings + 4 * problem.snapshot.size, "l2_bytes": 12 * problem.postings}
    found, binding = shares(counted, common["ceiling"], ms[2] / 1e3)
    return GpuRow(
        corpus=problem.name, system=system.name, phase="derive", batch=0, k=0, device=system.device, ms=_round(ms[2]),
        ms_min=_round(ms[0]), ms_max=_round(ms[-1]), ms_iqr=_round(ms[3] - ms[1]), reps=5, queries_per_s=0.0,
        postings_per_s=float(f"{problem.postings / ms[2] * 1e3:.4g}"), documents=problem.snapshot.size,
        postings=problem.postings, index_bytes=system.index_bytes,
        bytes_per_posting=round((system.index_bytes or 0) / problem.postings, 3),
        counted=counted, share=found, binding=binding, **common,
    )  # fmt: skip


def _round(ms: float) -> float:
    return float(f"{ms:.4g}")


def machine_with_gpu() -> dict[str, Any]:
    """The machine, and the GPU with its driver and libraries where there is one."""
    found = {**machine.machine(), "torch": torch.__version__}
    found |= {package: version for package in ("triton", "cupy", "numba", "bm25s") if (version := _version(package))}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    return found


def _version(package: str) -> str | None:
    try:
        return str(importlib.import_module(package).__version__)
    except ImportError:
        return None


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _batches(text: str) -> tuple[int, ...]:
    return tuple(0 if part == "all" else int(part) for part in names(text))


def _ks(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in names(text))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench.gpu.run", description="Measure the GPU systems beside the others, everything in one run."
    )
    made.add_argument("--corpora", type=names, default=gpu_corpora.CORPORA, help=",".join(gpu_corpora.CORPORA))
    made.add_argument("--batches", type=_batches, help="default 1,20,256,all")
    made.add_argument("--ks", type=_ks, help="default 10,100,1000")
    made.add_argument("--systems", type=names, help="default: all that run here")
    made.add_argument("--reps", type=int, default=9, help="repetitions (default 9)")
    made.add_argument("--budget", type=float, default=0.5, help="seconds that a system gets in a cell (default 0.5)")
    made.add_argument("--minutes", type=float, default=60.0, help="no new cell is begun after so many")
    made.add_argument("--threads", type=int, default=gpu_systems.default_threads(), help="of the CPU systems")
    made.add_argument("--out", type=Path, help="folder of the rows (default bench/results; smoke: bench/.cache)")
    made.add_argument("--name", default="gpu", help="rows go to NAME.jsonl (default gpu)")
    made.add_argument("--commit", help="where the checkout has no git: the commit that it is")
    made.add_argument("--smoke", action="store_true", help="tiny corpora; runs without a GPU too")
    made.add_argument("--json", action="store_true", help="print the rows instead of the tables")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, append the rows, print them. Returns 0 if every exact answer was numpy's and nothing failed, else 1."""
    made = parser()
    options = made.parse_args(arguments)
    begin = time.monotonic()
    gpu = torch.cuda.is_available()
    if not gpu and not options.smoke:
        made.error("no CUDA device; --smoke tries everything on the CPU, on tiny corpora")
    out = options.out or (CACHE / "smoke" if options.smoke else RESULTS)
    if not gpu and out.resolve() == RESULTS.resolve():
        made.error("times of a CPU do not belong among the results")
    for what, given, known in (
        ("corpus", options.corpora, gpu_corpora.CORPORA),
        ("system", options.systems or (), gpu_systems.NAMES),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            made.error(f"no {what} {', '.join(unknown)}; there are: {', '.join(known)}")
    corpora = [name for name in options.corpora if not options.smoke or name in gpu_corpora.SMOKE]
    batches = options.batches or (SMOKE_BATCHES if options.smoke else BATCHES)
    ks = options.ks or (SMOKE_KS if options.smoke else KS)
    names = options.systems or gpu_systems.list_usable()
    date = machine.now()
    device = torch.device("cuda" if gpu else "cpu")
    say(begin, "ceilings")
    common: dict[str, Any] = {
        "bench": options.name,
        "run": date,
        "machine": machine_with_gpu(),
        "ceiling": ceilings(device),
        "commit": options.commit or machine.commit(),
        "code": code_of("gpu"),
        "date": date,
    }
    say(begin, json.dumps(common["ceiling"]))
    measured: list[GpuRow] = []

    def keep(new: list[GpuRow]) -> None:
        # Written cell by cell, so that an interrupted run keeps its rows.
        rows.append(out / f"{options.name}.jsonl", new)
        measured.extend(new)

    for corpus in corpora:
        say(begin, f"{corpus}: corpus")
        problem = gpu_corpora.problem(corpus, options.smoke)
        say(begin, f"{corpus}: {problem.postings:,} postings; numpy's answers")
        expected = gpu_systems.reference(problem, max(ks), options.threads)
        systems: list[System] = []
        shared: dict[str, FlatIndex] = {}
        for name in names:
            say(begin, f"{corpus}: {name}")
            try:
                systems.append(gpu_systems.make(name, problem, options.threads, shared))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                keep([GpuRow(corpus=corpus, system=name, phase="", batch=0, k=0, error=reason, **common)])
                say(begin, reason)
        keep([derive_row(problem, s, common) for s in systems if isinstance(s, DeviceSystem)])
        for batch in batches:
            for k in ks:
                if batch > problem.queries or time.monotonic() - begin > 60 * options.minutes:
                    say(begin, f"{corpus}: batch {batch or 'all'}, k {k} left out")
                    continue
                say(begin, f"{corpus}: batch {batch or 'all'}, k {k}")
                cell = cell_of(problem, batch, k, expected, SMOKE_VARIANTS if options.smoke else VARIANTS)
                keep(rows_of(cell, measure(cell, systems, options.reps, options.budget), common))
                gc.collect()
                if gpu:
                    torch.cuda.empty_cache()
        del systems, shared
        gc.collect()
    say(begin, "done")
    print("\n".join(json.dumps(asdict(row)) for row in measured) if options.json else markdown(measured))
    return int(any(row.error or row.wrong for row in measured))


def say(begin: float, line: str) -> None:
    print(f"{time.monotonic() - begin:6.1f} s  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
