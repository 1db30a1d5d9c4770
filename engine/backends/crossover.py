"""Choice of the path, device or CPU, that answers a batch sooner: measured on the batches themselves, never guessed.

The published crossover between GPU and CPU contradicts its own tables (SPEC X23), and it differs between machines. Both
paths give the same bits, so trying one costs time only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ..locks import make_short_lock
from ..plan.plan import Plan

# Batches timed on a path before its line is trusted. The first batch does not count: it pays for compiling and
# uploading.
CALIBRATION = 3
# The latest batches that a path's line is fitted to.
WINDOW = 64


def work_of(plans: Sequence[Plan]) -> int:
    """Postings that the queries of a batch touch. The time of both paths grows with this number.

    A query that is limited in time is counted with a share of its lists: the share of the segment's documents that its
    range covers.
    """
    work = 0.0
    for plan in plans:
        owners = np.repeat(np.arange(len(plan.rows)), np.diff(plan.offsets))
        for segment_plan in plan.segments:
            share = np.maximum(segment_plan.high - segment_plan.low, 0) / segment_plan.segment.size
            work += float(((segment_plan.ends - segment_plan.starts)[plan.slots] * share[owners]).sum())
    return int(work)


class PathTimes:
    """Times of one path and the line ``fixed + slope * work`` through them."""

    def __init__(self) -> None:
        self._seen = 0
        self._times: deque[tuple[int, float]] = deque(maxlen=WINDOW)

    def add(self, work: int, seconds: float) -> None:
        self._seen += 1
        if self._seen > 1:
            self._times.append((work, seconds))

    @property
    def calibrated(self) -> bool:
        return len(self._times) >= CALIBRATION

    @property
    def seen(self) -> int:
        return self._seen

    def line(self) -> tuple[float, float]:
        """(fixed seconds, seconds a posting) by least squares; neither is negative."""
        n = len(self._times)
        mean_work = sum(work for work, _ in self._times) / n
        mean_time = sum(seconds for _, seconds in self._times) / n
        spread = sum((work - mean_work) ** 2 for work, _ in self._times)
        if not spread:
            return mean_time, 0.0
        slope = sum((work - mean_work) * (seconds - mean_time) for work, seconds in self._times) / spread
        slope = min(max(slope, 0.0), mean_time / mean_work)
        return mean_time - slope * mean_work, slope

    def predict(self, work: int) -> float:
        fixed, slope = self.line()
        return fixed + slope * work


class Crossover:
    """Chooses between the device (first) and the CPU for each batch."""

    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names
        self._paths = {name: PathTimes() for name in names}
        self._avoided: dict[str, str] = {}
        self._lock = make_short_lock()

    def choose(self, work: int) -> str:
        """The path for a batch of this much work: the less tried one until both are calibrated, then the faster one."""
        with self._lock:
            if self._avoided:
                return next(name for name in self.names if name not in self._avoided)
            if not all(path.calibrated for path in self._paths.values()):
                return min(self.names, key=lambda name: self._paths[name].seen)
            return min(self.names, key=lambda name: self._paths[name].predict(work))

    def add(self, name: str, work: int, seconds: float) -> None:
        with self._lock:
            self._paths[name].add(work, seconds)

    def avoid(self, name: str, reason: str) -> None:
        """Choose the other path from now on."""
        with self._lock:
            self._avoided = {name: reason}

    def __str__(self) -> str:
        with self._lock:
            parts = []
            for name, path in self._paths.items():
                if name in self._avoided:
                    parts.append(f"{name} avoided: {self._avoided[name]}")
                elif path.calibrated:
                    fixed, slope = path.line()
                    parts.append(f"{name} {fixed * 1e6:.0f} us + {slope * 1e9:.2f} ns a posting")
                else:
                    parts.append(f"{name} not measured yet")
            return "crossover by measured time: " + ", ".join(parts)
