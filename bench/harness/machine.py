"""Where and when a row was measured."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from .paths import ROOT


def machine() -> dict[str, Any]:
    """Processor, cores, memory in GiB, system and versions. No host name."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """The checked-out commit, with ``+dirty`` if the tree differs from it; ``unknown`` without git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    return f"{git('rev-parse', '--short=12', 'HEAD') or 'unknown'}{'+dirty' if git('status', '--porcelain') else ''}"


def now() -> str:
    """The date and time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def ceiling() -> dict[str, float]:
    """What one core can do at best: bytes copied (read plus written) and scattered additions, each a second.

    The additions are ``scores[documents] += value`` of 20,000 random distinct ascending documents out of 300,000
    in int32: what scoring one posting list costs in numpy.
    """
    source = np.ones(1 << 25, np.int64)
    target = np.empty_like(source)
    random_numbers = np.random.default_rng(1)
    documents = np.sort(random_numbers.choice(300_000, 20_000, replace=False))
    scores, values = np.zeros(300_000, np.int32), np.ones(20_000, np.int32)

    def scatter() -> None:
        for _ in range(100):
            scores[documents] += values

    return {
        "copy_gb_per_s": round(2 * source.nbytes / _best(lambda: np.copyto(target, source)) / 1e9, 2),
        "scatter_add_m_per_s": round(100 * len(documents) / _best(scatter) / 1e6, 1),
    }


def _best(work: Any, times: int = 5) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def scheduling() -> str:
    """By which policy the system gives this process its cores: ``other`` (time slices), ``fifo``, ``rr`` and so on."""
    names = {getattr(os, name): name[6:].lower() for name in dir(os) if name.startswith("SCHED_")}
    return names.get(os.sched_getscheduler(0), "unknown") if hasattr(os, "sched_getscheduler") else "unknown"
