"""What the GPU benchmarks measure: a batch, a system, and the calls that answer one with the other.

Only `Ready.run` is inside the clock.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fanrank.engine.plan.plan import Plan, Request, make_plan
from fanrank.kernels.cuda.launcher import FOLDER, CupyLauncher, Launcher

from .corpora import Problem

Integers = npt.NDArray[np.int64]
HitArrays = tuple[npt.NDArray[Any], Integers, Any]
"""(scores [Q, k], documents [Q, k], counts [Q] or None); exact systems give scores in quanta."""

FEW = 10
"""The number of queries that the time of a slow system is estimated from."""


@dataclass(frozen=True, eq=False)
class Variant:
    """One batch: the problem's queries from `start` to `stop`."""

    problem: Problem
    start: int
    stop: int
    k: int

    @property
    def queries(self) -> int:
        return self.stop - self.start

    @cached_property
    def terms(self) -> Integers:
        return self.problem.terms[self.problem.offsets[self.start] : self.problem.offsets[self.stop]]

    @cached_property
    def offsets(self) -> Integers:
        return self.problem.offsets[self.start : self.stop + 1] - self.problem.offsets[self.start]

    @cached_property
    def lists(self) -> list[list[int]]:
        return [self.problem.query(query) for query in range(self.start, self.stop)]

    def plan(self) -> Plan:
        requests = [Request(row, terms, self.k) for row, terms in enumerate(self.lists)]
        return make_plan(self.problem.snapshot, requests)

    @property
    def touched(self) -> int:
        return self.problem.touched(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class Ready:
    """Prepared batches: `run(v)` is the timed call, `answer(v)` is the answer to variant v on the host."""

    run: Callable[[int], object]
    answer: Callable[[int], HitArrays]
    on_device: bool
    """Timed between events on the device; otherwise by the host's clock."""
    exact: bool = True
    queries: int | None = None
    """The queries that are answered of each variant, where these are not all."""
    counted: dict[str, int] = field(default_factory=dict)
    """Counts of a batch: the mean over the variants."""
    threads: int = 0
    note: str = ""


class System(Protocol):
    """One system over one problem. The constructor uploads or builds its index."""

    name: str
    device: str
    index_bytes: int | None

    def phases(self, batch: int, k: int) -> Sequence[str]:
        """The phases that it can be measured in; none where the system does not apply."""

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        """Make the variants, which are alike in size and k, ready; `budget` is the seconds of one timed call."""


def launcher_of(device: torch.device, source: Path, text: str) -> Launcher:
    """A launcher of the kernels of a source of the bench: on the GPU, or compiled for the CPU."""
    if device.type != "cuda":
        from fanrank.kernels.cuda_host import HostLauncher, build

        return HostLauncher(build([source], include=[FOLDER]))

    class Own(CupyLauncher):
        def _source(self, name: str) -> str:
            return text

    return Own(device)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def capture_graph(work: Callable[[], object], pool: Any = None) -> Callable[[], object]:
    """The replay of a CUDA graph of `work`. It ran before: kernels are compiled, memory is pooled.

    Graphs of one `pool` share the memory that was freed during their capture. They must not run at the same time.
    """
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # The default stream of captures belongs to the device of the process's first capture.
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream()):
        work()
    return graph.replay


def cut_to_budget(
    variants: Sequence[Variant], answer: Callable[[Variant], object], budget: float
) -> tuple[list[Variant], str]:
    """The variants, cut to as many queries as `budget` seconds allow, and a note that says so."""
    some = replace(variants[0], stop=min(variants[0].start + FEW, variants[0].stop))
    answer(some)
    start = time.perf_counter()
    answer(some)
    each = (time.perf_counter() - start) / some.queries
    most = max(FEW, int(budget / max(each, 1e-9)))
    if most >= variants[0].queries:
        return list(variants), ""
    return [replace(v, stop=v.start + most) for v in variants], f"slow: the first {most} of {variants[0].queries}"


def mean_of(counted: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(own[name] for own in counted) // len(counted) for name in counted[0]}
