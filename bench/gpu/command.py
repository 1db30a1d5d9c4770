"""What the commands of a GPU share: rows go to a folder, a clock stops a run, and a run may be tried without a GPU."""

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..harness.command import Command
from ..harness.machine import machine
from ..harness.paths import CACHE, RESULTS
from ..report.format import tabulate
from .ceilings import ceilings
from .rows import is_wrong

SHOWN = {
    **{
        name: name
        for name in ("corpus", "batch", "k", "system", "phase", "ms", "ms_iqr", "binding", "identical", "top1")
    },
    **{"queries/s": "queries_per_s", "identical": "identical", "top-1": "top1", "overlap": "overlap", "error": "error"},
}


class GpuCommand(Command):
    """``--smoke`` makes corpora tiny and needs no GPU. Times of a CPU do not go among the results."""

    def __init__(self, name: str, about: str, kind: str) -> None:
        super().__init__(f"gpu.{name}", about, bench="gpu", file=kind)
        self.begin = time.monotonic()
        self.gpu = torch.cuda.is_available()
        self.add("--out", type=Path, help="folder of the rows (default bench/results; smoke: bench/.cache)")
        self.add("--commit", help="where the checkout has no git: the commit that it is")
        self.add("--smoke", action="store_true", help="tiny corpora; runs without a GPU too")

    def add_limits(self, reps: int, budget: float, minutes: float) -> None:
        """The flags of commands that time systems in cells."""
        self.add("--reps", type=int, default=reps, help=f"repetitions (default {reps})")
        self.add("--budget", type=float, default=budget, help=f"seconds of a system in a cell (default {budget})")
        self.add("--minutes", type=float, default=minutes, help="no new cell is begun after so many")

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        options = super().parse(arguments)
        if not self.gpu and not options.smoke:
            self._parser.error("no CUDA device; --smoke tries everything on the CPU, on tiny corpora")
        out = options.out or (CACHE / "smoke" if options.smoke else RESULTS)
        if not self.gpu and out.resolve() == RESULTS.resolve():
            self._parser.error("times of a CPU do not belong among the results")
        options.results = out / f"{self.kind}.jsonl"
        self.common |= {"machine": machine_with_gpu(), "commit": options.commit or self.common["commit"]}
        return options

    def measure_ceilings(self) -> None:
        """All rows have the ceilings of the device, measured in their run."""
        self.say("ceilings")
        self.common["ceiling"] = ceilings(torch.device("cuda" if self.gpu else "cpu"))

    @property
    def spent(self) -> bool:
        return time.monotonic() - self.begin > 60 * float(self.options.minutes)

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.begin:6.1f} s  {line}", file=sys.stderr, flush=True)

    def end(self) -> int:
        """Print the rows. Returns 0 if every exact answer was numpy's and nothing failed, else 1."""
        self.say("done")
        print(tabulate(self.rows, SHOWN))
        return int(any(row.get("error") or is_wrong(row) for row in self.rows))


def machine_with_gpu() -> dict[str, Any]:
    """The machine, and the GPU with its driver and libraries where there is one."""
    found = {**machine(), "torch": torch.__version__}
    found |= {package: version for package in ("triton", "cupy") if (version := _version(package))}
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


def reason_of(error: Exception) -> str:
    """An error as a row holds it."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
