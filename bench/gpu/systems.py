"""fanrank's systems in the GPU benchmarks, and the list of all. Each prepares batches and returns the calls.

The phases:

``kernel``         from a plan and index on the device to hits on the device, as a CUDA graph
``eager``          the same without a graph, so that the host's launches count
``planned``        ``kernel`` from the numbers of terms: looked up and planned on the device
``tensors``        `Engine.search_tensors`
``tensors_graph``  replays ``tensors`` as a graph
``end_to_end``     from term ids on the host to numpy arrays
``describe``       ``kernel``, stopped after this verb; so ``order`` and ``score``. Times of verbs are differences
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fanrank.engine.backends import choose as backend
from fanrank.engine.index.bm25 import INT32_MAX, SCALE
from fanrank.engine.plan.plan import Plan
from fanrank.kernels.batch import Chunk, Launch, Texts, chunks
from fanrank.kernels.families import device_search
from fanrank.kernels.frame import answer_in
from fanrank.kernels.launch import run
from fanrank.kernels.search import MAX_CANDIDATES, MAX_DESCRIPTORS, DeviceSearch
from fanrank.kernels.timing import DevicePhases
from fanrank.kernels.work import DESCRIPTOR_BYTES, ENTRY_BYTES, MAX_SELECTED, Verbs

from .baseline import BaselineSystem, FlatIndex
from .batches import HitArrays, Integers, Ready, System, Variant, capture_graph, cut_to_budget, device_name, mean_of
from .corpora import Problem

TENSOR_BATCHES = 32
"""The largest batch of the ``tensors`` phases: an agent's fan-out."""
STOPS = ("describe", "order", "score")
"""The verbs after which ``kernel`` is stopped to time them."""


class DeviceSystem:
    """fanrank on a device, through one kernel family."""

    def __init__(
        self, name: str, problem: Problem, search: DeviceSearch | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """`search` is needed where `options` are not the usual ones: the family's search with these options."""
        self.family = name
        self.options = options or {}
        self.name = " ".join([f"fanrank-{name}", *(f"{key}={value}" for key, value in self.options.items())])
        self.problem = problem
        self.search: DeviceSearch = search or device_search(name)
        self.residency = self.search.residency
        self.torch_device = self.residency.device
        self.device = device_name(self.torch_device)
        self._held: tuple[Sequence[Variant], str, list[list[Launch]]] = ((), "", [])
        self.derive()
        self.index_bytes: int | None = self.residency.bytes

    def forget(self) -> None:
        """Drop the prepared launches. Other kernels need other launches."""
        self._held = ((), "", [])

    @property
    def verbs(self) -> Verbs:
        return self.search.verbs

    def derive(self) -> None:
        """Upload the index if it is not on the device, derive its contributions, and make the tables of long lists."""
        snapshot = self.problem.snapshot
        self.residency.make_ready([snapshot], self.verbs, DevicePhases(None, self.torch_device))
        self.residency.table(snapshot, self.verbs.tile_bits(False), self.verbs)

    def rederive(self) -> Callable[[int], object]:
        """A call that derives the contributions and tables of a whole epoch again."""
        snapshot, tile_bits = self.problem.snapshot, self.verbs.tile_bits(False)
        rows = self.residency.table(snapshot, tile_bits, self.verbs, on_device=True).on_device
        assert rows is not None
        residents = [self.residency.resident_of(segment, snapshot.long) for segment in snapshot.segments]
        staged = [resident.stage(snapshot, number) for number, resident in enumerate(residents)]

        def work(_: int) -> None:
            for number, (resident, arrays) in enumerate(zip(residents, staged, strict=True)):
                resident.derive(snapshot, arrays, self.verbs)
                resident.tabulate(tile_bits, rows[number : number + 1], self.verbs)

        return work

    def phases(self, batch: int, k: int) -> Sequence[str]:
        tensors = batch <= TENSOR_BATCHES and k <= MAX_SELECTED
        graphs = self.torch_device.type == "cuda"
        return (
            *("kernel", *STOPS, "end_to_end"),
            *(("planned",) if self._sums_are_narrow() else ()),
            *(("eager",) if graphs else ()),
            *(("tensors",) if tensors else ()),
            *(("tensors_graph",) if tensors and graphs else ()),
        )

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        if phase == "end_to_end":
            return self._end_to_end(variants)
        if phase.startswith("tensors"):
            return self._tensors(variants, graph=phase == "tensors_graph")
        kind = "planned" if phase == "planned" else "described"
        if self._held[0] is not variants or self._held[1] != kind:
            self.forget()
            self._held = (variants, kind, self.planned(variants) if kind == "planned" else self.launches(variants))
        launches = self._held[2]

        def work(own: Sequence[Launch]) -> Callable[[], object]:
            def once() -> None:
                for launch in own:
                    self.once(launch, phase)

            return self.graph(once, captured=phase != "eager")

        works = [work(own) for own in launches]

        def answer(number: int) -> HitArrays:
            works[number]()
            out = _empty(variants[number])
            for launch in launches[number]:
                found = answer_in(launch.found.cpu(), *launch.answer.scores.shape)
                for target, own in zip(out[:2], (found.scores, found.documents), strict=True):
                    target[launch.rows, : own.shape[1]] = own.numpy()
                out[2][launch.rows] = found.counts.numpy()
            return out

        counted = mean_of([self._counted(variant, own) for variant, own in zip(variants, launches, strict=True)])
        return Ready(
            lambda number: works[number](),
            answer,
            self.torch_device.type == "cuda",
            counted=counted if phase == "kernel" else {},
            note="" if len(launches[0]) == 1 else f"{len(launches[0])} launches",
        )

    def launches(self, variants: Sequence[Variant]) -> list[list[Launch]]:
        """Each batch on the device, planned on the host and cut into launches as `DeviceSearch` does."""
        room = self.residency.room_for(MAX_CANDIDATES, MAX_DESCRIPTORS)
        return [
            [
                self.chunk(part).launch(self.residency, self.verbs)
                for part in chunks([plan], self.verbs.tile_bits, *room)
            ]
            for plan in (variant.plan() for variant in variants)
        ]

    def chunk(self, part: Chunk) -> Chunk:
        """The chunk as it is launched."""
        return part

    def planned(self, variants: Sequence[Variant]) -> list[list[Launch]]:
        """Each batch as numbers of terms on the device, cut into launches likewise."""
        snapshot, tile_bits = self.problem.snapshot, self.verbs.tile_bits(False)
        tiles = self.residency.table(snapshot, tile_bits, self.verbs, on_device=True).tiles
        room = self.residency.room_for(MAX_CANDIDATES, MAX_DESCRIPTORS)
        made = []
        for variant in variants:
            texts = Texts(snapshot, variant.terms, variant.offsets, min(variant.k, snapshot.size))
            parts = texts.chunks(tiles, tile_bits, *room)
            made.append([part.launch(self.residency, self.verbs) for part in parts])
        return made

    def once(self, launch: Launch, phase: str = "kernel") -> None:
        """Run one launch from the start: all of it, or the verbs up to `phase`."""
        work, buffers = launch.work, launch.buffers
        if phase not in STOPS:
            clock = DevicePhases(None, self.torch_device)
            run(self.verbs, self.residency.runtime, work, buffers, launch.answer, clock, launch.batch)
            return
        for verb in STOPS[: STOPS.index(phase) + 1]:
            getattr(self.verbs, verb)(work, buffers)

    def graph(self, work: Callable[[], object], captured: bool = True) -> Callable[[], object]:
        """`work` as the replay of a CUDA graph; on a CPU, `work` itself."""
        work()
        if self.torch_device.type != "cuda" or not captured:
            return work
        return capture_graph(work)

    def _sums_are_narrow(self) -> bool:
        """Whether no sum of the problem's queries can leave int32, for which a batch of terms is planned."""
        snapshot, terms = self.problem.snapshot, int(np.diff(self.problem.offsets).max(initial=0))
        return not snapshot.long and snapshot.highest_bound * terms < INT32_MAX

    def _end_to_end(self, variants: Sequence[Variant]) -> Ready:
        def answer(number: int) -> HitArrays:
            variant = variants[number]
            return self.search([variant.plan()], variant.queries, variant.k)

        # The engine captures a graph of a fan-out at the second use of its shape.
        for _ in range(2):
            answer(0)
        return Ready(answer, answer, False)

    def _tensors(self, variants: Sequence[Variant], graph: bool) -> Ready:
        inputs = [
            tuple(torch.from_numpy(array.copy()).to(self.torch_device) for array in (variant.terms, variant.offsets))
            for variant in variants
        ]
        held: list[Any] = [None] * len(variants)

        def work(number: int) -> Callable[[], object]:
            def once() -> None:
                terms, offsets = inputs[number]
                held[number] = self.search.tensors(self.problem.snapshot, terms, offsets, None, variants[number].k)

            return self.graph(once, captured=graph)

        works = [work(number) for number in range(len(variants))]

        def answer(number: int) -> HitArrays:
            works[number]()
            hits = held[number]
            scores = np.where(hits.documents.cpu().numpy() < 0, 0.0, hits.scores.cpu().numpy() * SCALE)
            return scores.astype(np.int64), hits.documents.cpu().numpy(), hits.counts.cpu().numpy()

        return Ready(lambda number: works[number](), answer, self.torch_device.type == "cuda")

    def _counted(self, variant: Variant, launches: Sequence[Launch]) -> dict[str, int]:
        """The least that the batch must move and add, if no tile is skipped.

        A posting's word and contribution come from device memory once for each list and from the second-level cache
        once for each query; a tile's sums are cleared once for each query; a posting is one addition. Descriptors and
        entries are written once and read once.
        """
        problem = self.problem
        tiles = [(len(launch.buffers.entries), launch.work) for launch in launches]
        sums = sum(count * ((8 if work.wide else 4) << work.tile_bits) for count, work in tiles)
        described = sum(len(launch.buffers.descriptors) for launch in launches)
        listed = sum(count for count, _ in tiles)
        a_posting = self.residency.posting_bytes
        counted = {
            "device_bytes": a_posting * problem.distinct(variant.start, variant.stop)
            + 2 * (DESCRIPTOR_BYTES * described + ENTRY_BYTES * listed),
            "l2_bytes": a_posting * variant.touched,
        }
        if self.family == "triton":
            # The sums are added, read and cleared in the second-level cache or in device memory.
            return {**counted, "l2_bytes": counted["l2_bytes"] + 2 * sums, "l2_int32": variant.touched}
        return {**counted, "shared_bytes": sums, "shared_int32": variant.touched}


class CpuSystem:
    """fanrank on the CPU."""

    device = "cpu"

    def __init__(self, name: str, problem: Problem, threads: int) -> None:
        self.name = f"fanrank-{name}"
        self.threads = threads
        self.search = backend.choose(name).search
        self.index_bytes: int | None = None

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel", "end_to_end")

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        def one(variant: Variant, plan: Plan | None) -> HitArrays:
            return self.search([plan or variant.plan()], variant.queries, variant.k, threads=self.threads)

        own, note = cut_to_budget(variants, lambda variant: one(variant, None), budget)
        plans = [variant.plan() if phase == "kernel" else None for variant in own]

        def answer(number: int) -> HitArrays:
            return one(own[number], plans[number])

        return Ready(answer, answer, False, queries=own[0].queries, threads=self.threads, note=note)


DEVICE_FAMILIES = ("cuda", "triton", "cuda-host")
NAMES = (
    *(f"fanrank-{family}" for family in DEVICE_FAMILIES),
    *("baseline-warp", "baseline-naive"),
    *("fanrank-native", "fanrank-numpy"),
)
HOST_ONLY = ("fanrank-cuda-host",)
"""Never measured beside a GPU unless asked for."""


def make(name: str, problem: Problem, threads: int, shared: dict[str, FlatIndex]) -> System:
    """The system over the problem. `shared` keeps what several systems index. Raises what the constructor raises."""
    kind, _, rest = name.partition("-")
    if kind == "fanrank":
        return CpuSystem(rest, problem, threads) if rest in backend.CPU else DeviceSystem(rest, problem)
    if "flat" not in shared:
        shared["flat"] = FlatIndex(problem, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return BaselineSystem(rest, shared["flat"])


def list_usable() -> list[str]:
    """The systems that can run on this machine, in order; those of a GPU where there is one."""
    statuses = {status.name: status for status in backend.statuses()}
    names = []
    for name in NAMES:
        rest = name.removeprefix("fanrank-")
        if rest in statuses and not (statuses[rest].usable and (rest not in HOST_ONLY or not _gpu())):
            continue
        names.append(name)
    return names


def reference(problem: Problem, k: int, threads: int) -> HitArrays:
    """The numpy system's answer to every query at this k; a smaller k's answer is its beginning."""
    whole = Variant(problem, 0, problem.queries, k)
    return backend.choose("numpy").search([whole.plan()], whole.queries, k, threads=threads)


def _empty(variant: Variant) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
    shape = (variant.queries, variant.k)
    return np.zeros(shape, np.int64), np.full(shape, -1, np.int64), np.zeros(variant.queries, np.int32)


def _gpu() -> bool:
    return torch.cuda.is_available()


def default_threads() -> int:
    return os.cpu_count() or 1
