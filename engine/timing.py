"""Named phases of a search: NVTX ranges for a profiler (where the package nvtx is installed), and milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .plan import Plan

Annotate = Callable[[str], AbstractContextManager[object]]


def _annotate() -> Annotate:
    try:
        import nvtx
    except ImportError:
        return lambda name: nullcontext()
    return lambda name: nvtx.annotate(f"fanrank.{name}")


annotate = _annotate()


class Phases:
    """Collects the time of each phase of one search, in the order in which phases first ran, and what it counted."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a phase by the host's clock; the same name again adds up."""
        with annotate(name):
            start = time.perf_counter()
            try:
                yield
            finally:
                self.add(name, (time.perf_counter() - start) * 1e3)

    def add(self, name: str, milliseconds: float) -> None:
        self.milliseconds[name] = self.milliseconds.get(name, 0.0) + milliseconds

    def count(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def count_postings(self, plan: Plan, queries: npt.NDArray[np.bool_]) -> None:
        """Count all postings of these queries' lists as scored."""
        chosen = plan.slots[np.repeat(queries, np.diff(plan.offsets))]
        for part in plan.segments if len(chosen) else ():
            self.count("postings", int((part.ends - part.starts)[chosen].sum()))
