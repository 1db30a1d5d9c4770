"""Bytes and time of every kernel from the hardware's counters: ``python -m bench.gpu.counters``. Needs ncu.

The command runs itself under ``ncu --clock-control none``, which profiles one batch after a warm-up. Profiling
slows a run, so its times only compare kernels with each other and never go into a table.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence

import torch

from ..harness.command import among, names
from ..harness.paths import ROOT
from . import corpora as gpu_corpora
from . import systems as gpu_systems
from .batches import Variant
from .command import GpuCommand
from .corpora import Problem
from .others import BaselineSystem
from .rows import Row
from .systems import DeviceSystem

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum", "gpu__time_duration.sum")
UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3}
UNITS |= {"ms": 1e6, "msecond": 1e6, "second": 1e9, "s": 1e9, "": 1.0}


def parse(lines: Iterable[str]) -> dict[str, dict[str, float]]:
    """Sums by kernel name of what ``ncu --csv`` printed, in bytes and nanoseconds; ``launches`` counts them.

    Reads both of its forms: a line a metric, and (``--page raw``) a line a launch under a line of units. Raises
    `ValueError` where there is no table.
    """
    table = [line for line in lines if line.startswith('"')]
    if not table:
        raise ValueError("ncu printed no table")
    found: dict[str, dict[str, float]] = {}
    seen: set[tuple[str, str]] = set()
    units: dict[str, str] | None = None
    for row in csv.DictReader(table):
        if "Metric Name" in row:
            amounts = [(row["Metric Name"], row["Metric Value"], row["Metric Unit"])]
        elif units is None:
            units = row
            continue
        else:
            amounts = [(name, row[name], units[name]) for name in row if "__" in (name or "")]
        kernel = found.setdefault(row["Kernel Name"], {"launches": 0.0})
        if (row["ID"], row["Kernel Name"]) not in seen:
            seen.add((row["ID"], row["Kernel Name"]))
            kernel["launches"] += 1
        for name, value, unit in amounts:
            kernel[name] = kernel.get(name, 0.0) + float(value.replace(",", "")) * UNITS[unit]
    return found


def run_profiled(system: str, corpus: str, batch: int, k: int, smoke: bool) -> None:
    """The process that runs under ncu: one batch between the profiler's start and stop."""
    problem = gpu_corpora.problem(corpus, smoke)
    made = gpu_systems.make(system, problem, 1, {})
    assert isinstance(made, DeviceSystem | BaselineSystem)
    variants = [Variant(problem, 0, batch or problem.queries, k)]
    ready = made.ready(variants, "eager", 1.0)
    ready.run(0)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    ready.run(0)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def read_counters(system: str, corpus: str, batch: int, k: int, smoke: bool = False) -> dict[str, dict[str, float]]:
    """The counters of one batch, by kernel. Raises `RuntimeError` with the reason where they cannot be read."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise RuntimeError("ncu is not on PATH")
    options = ["--clock-control", "none", "--profile-from-start", "off", "--csv", "--print-units", "base"]
    child = ["--child", "--systems", system, "--corpora", corpus, "--batch", str(batch), "--k", str(k)]
    command = [ncu, *options, "--metrics", ",".join(METRICS), sys.executable, "-m", "bench.gpu.counters", *child]
    done = subprocess.run([*command, *(["--smoke"] if smoke else [])], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ncu failed: {(done.stdout + done.stderr).strip()[-300:]}")
    return parse(done.stdout.splitlines())


def row_of(system: str, problem: Problem, batch: int, k: int, kernels: dict[str, dict[str, float]]) -> Row:
    """The counters as a row: by kernel, and a query's bytes in all."""
    queries = batch or problem.queries
    totals = {metric: sum(kernel.get(metric, 0.0) for kernel in kernels.values()) for metric in METRICS}
    device_bytes = totals["dram__bytes_read.sum"] + totals["dram__bytes_write.sum"]
    per_query = {
        "device_bytes_per_query": round(device_bytes / queries, 1),
        "l2_bytes_per_query": round(totals["lts__t_bytes.sum"] / queries, 1),
    }
    return {
        **{"corpus": problem.name, "system": system, "phase": "counters", "batch": queries, "k": k, "queries": queries},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        **{"documents": problem.snapshot.size, "postings": problem.postings},
        "postings_per_query": round(problem.touched(0, queries) / queries, 1),
        **{"counters": {**per_query, "kernels": kernels}, "note": "profiled: no times of a free run"},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the counters, print them by kernel. Returns 1, with the reason, if any failed, else 0."""
    command = GpuCommand("counters", "Bytes and time of every kernel from the hardware's counters. Needs ncu.", "gpu")
    command.add("--systems", type=names, default=("fanrank-cuda", "fanrank-triton", "baseline-warp"))
    command.add("--corpora", type=among(gpu_corpora.CORPORA), default=("fiqa-shaped",))
    command.add("--batch", type=int, default=256, help="0: all queries")
    command.add("--k", type=int, default=100)
    command.add("--child", action="store_true", help=argparse.SUPPRESS)
    options = command.parse(arguments)
    failed = 0
    for corpus in options.corpora:
        for system in options.systems:
            asked = (system, corpus, options.batch, options.k, options.smoke)
            if options.child:
                run_profiled(*asked)
                continue
            try:
                kernels = read_counters(*asked)
            except (RuntimeError, ValueError) as error:
                print(f"{corpus} {system}: skipped: {error}")
                failed = 1
                continue
            row = row_of(system, gpu_corpora.problem(corpus, options.smoke), options.batch, options.k, kernels)
            command.keep([row])
            print(f"{corpus} {system}, batch {row['batch']}, k {row['k']}: {row['counters']}")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
