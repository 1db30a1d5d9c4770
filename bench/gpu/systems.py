"""The systems of the GPU benchmarks. Each prepares batches and returns the calls that answer them.

Only `Ready.run` is inside the clock. The phases:

``kernel``         from terms, index and plan on the device to hits on the device, as a CUDA graph
``eager``          the same without a graph, so that the host's launches count
``tensors``        plans on the device, too (`Engine.search_tensors`)
``tensors_graph``  replays ``tensors`` as a graph
``end_to_end``     from term ids on the host to numpy arrays
``cut``            ``kernel``, stopped after cutting
``cut_score``      ``kernel``, stopped after scoring; the times of cut, score and select are differences of these

Long because it holds every system of the GPU bench: five classes that share `Variant`, `Ready` and a few helpers.
"""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fanrank.engine.backends import choose as backend
from fanrank.engine.index.bm25 import SCALE
from fanrank.engine.plan.plan import Plan, Request, make_plan
from fanrank.kernels.batch import Launch, chunks, make_launch, to_host
from fanrank.kernels.families import device_search
from fanrank.kernels.launch import run
from fanrank.kernels.search import MAX_CANDIDATES, MAX_CUTS, DeviceSearch
from fanrank.kernels.timing import DevicePhases
from fanrank.kernels.work import CUT_BYTES, MAX_SELECTED, UNBOUNDED, Buffers, Verbs

from ..harness.cases import K1, B
from .corpora import Problem, flat

Integers = npt.NDArray[np.int64]
HitArrays = tuple[npt.NDArray[Any], Integers, Any]
"""(scores [Q, k], documents [Q, k], counts [Q] or None); exact systems give scores in quanta."""

TENSOR_BATCHES = 32
"""The largest batch of the ``tensors`` phases: an agent's fan-out."""
MATRIX_BYTES = 16 << 30
"""Bytes of the score matrix of one chunk of queries (SPEC A051)."""
GRAPH_BYTES = 4 << 30
"""The largest matrix of a baseline's batch that is measured as a CUDA graph."""
PRODUCTS = 1 << 28
"""The most products of one sparse times sparse multiplication. Its buffers take about 40 bytes for each."""
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
        self._held: tuple[Sequence[Variant], list[list[Launch]]] = ((), [])
        self.derive()
        self.index_bytes: int | None = self.residency.bytes

    def forget(self) -> None:
        """Drop the prepared launches. Other kernels need other launches."""
        self._held = ((), [])

    @property
    def verbs(self) -> Verbs:
        return self.search.verbs

    def derive(self) -> None:
        """Upload the index if it is not on the device, and derive its contributions."""
        self.residency.make_ready([self.problem.snapshot], self.verbs, DevicePhases(None, self.torch_device))

    def rederive(self) -> Callable[[int], object]:
        """A call that derives the contributions of a whole epoch again."""
        residents = [
            self.residency.resident_of(segment, self.problem.snapshot.long)
            for segment in self.problem.snapshot.segments
        ]

        def work(_: int) -> None:
            for number, resident in enumerate(residents):
                resident._epoch = None
                resident.derive(self.problem.snapshot, number, self.verbs)

        return work

    def phases(self, batch: int, k: int) -> Sequence[str]:
        tensors = batch <= TENSOR_BATCHES and k <= MAX_SELECTED
        graphs = self.torch_device.type == "cuda"
        return (
            *("kernel", "cut", "cut_score", "end_to_end"),
            *(("eager",) if graphs else ()),
            *(("tensors",) if tensors else ()),
            *(("tensors_graph",) if tensors and graphs else ()),
        )

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        if phase == "end_to_end":
            return self._end_to_end(variants)
        if phase.startswith("tensors"):
            return self._tensors(variants, graph=phase == "tensors_graph")
        if self._held[0] is not variants:
            self._held = (variants, self.launches(variants))
        launches = self._held[1]

        def work(own: Sequence[Launch]) -> Callable[[], object]:
            def once() -> None:
                for launch in own:
                    self.once(launch, phase)

            return self.graph(once, captured=phase != "eager")

        works = [work(own) for own in launches]

        def answer(number: int) -> HitArrays:
            works[number]()
            variant = variants[number]
            out = _empty(variant)
            for launch in launches[number]:
                found = to_host(launch.answer)
                for target, own in zip(out[:2], found[:2], strict=True):
                    target[launch.rows, : own.shape[1]] = own
                out[2][launch.rows] = found[2]
            return out

        counted = _mean([self._counted(variant, own) for variant, own in zip(variants, launches, strict=True)])
        return Ready(
            lambda number: works[number](),
            answer,
            self.torch_device.type == "cuda",
            counted=counted if phase == "kernel" else {},
            note="" if len(launches[0]) == 1 else f"{len(launches[0])} launches",
        )

    def launches(self, variants: Sequence[Variant]) -> list[list[Launch]]:
        """Each batch on the device, cut into launches as `DeviceSearch` does. The launches share one set of buffers."""
        scratch: Buffers | None = None
        made = []
        for variant in variants:
            plan = variant.plan()
            tile_bits = self.verbs.tile_bits(bool(plan.wide.any()) or plan.snapshot.long)
            places = self.residency.room_for(MAX_CANDIDATES, MAX_CUTS)
            own = []
            for part in chunks([plan], tile_bits, *places):
                launch = make_launch(part, self.residency, tile_bits)
                scratch, buffers = _share_buffers(scratch, launch.buffers)
                own.append(replace(launch, buffers=buffers))
            made.append(own)
        return made

    def once(self, launch: Launch, phase: str = "kernel") -> None:
        """Run one launch from the start: all of it, or the phases up to `phase`."""
        work, buffers = launch.work, launch.buffers
        buffers.thresholds.fill_(UNBOUNDED if work.signed else 1)
        buffers.counts.zero_()
        if phase in ("kernel", "eager"):
            run(self.verbs, work, buffers, launch.answer, DevicePhases(None, self.torch_device))
            return
        self.verbs.cut(work, buffers)
        if phase == "cut_score":
            for wide, any_of_it in ((False, work.any_narrow), (True, work.any_wide)):
                if any_of_it:
                    self.verbs.score(work, buffers, wide=wide)

    def graph(self, work: Callable[[], object], captured: bool = True) -> Callable[[], object]:
        """`work` as the replay of a CUDA graph; on a CPU, `work` itself."""
        work()
        if self.torch_device.type != "cuda" or not captured:
            return work
        return capture_graph(work)

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
        once for each query; a tile's sums are cleared once for each query; a posting is one addition.
        """
        problem = self.problem
        cuts = sum(launch.buffers.cuts.numel() for launch in launches)
        blocks = sum(launch.work.blocks * (4 << launch.work.tile_bits) for launch in launches)
        a_posting = self.residency.posting_bytes
        counted = {
            "device_bytes": a_posting * problem.distinct(variant.start, variant.stop) + 2 * CUT_BYTES * cuts,
            "l2_bytes": a_posting * variant.touched,
        }
        if self.family == "triton" or self.options.get("sums") == "global":
            # The sums are added, read and cleared in the second-level cache or in device memory.
            return {**counted, "l2_bytes": counted["l2_bytes"] + 2 * blocks, "l2_int32": variant.touched}
        return {**counted, "shared_bytes": blocks, "shared_int32": variant.touched}


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

        own, note = _cut_to_budget(variants, lambda variant: one(variant, None), budget)
        plans = [variant.plan() if phase == "kernel" else None for variant in own]

        def answer(number: int) -> HitArrays:
            return one(own[number], plans[number])

        return Ready(answer, answer, False, queries=own[0].queries, threads=self.threads, note=note)


class FlatIndex:
    """The whole corpus as one CSR on a device, with float32 contributions: the index of the float systems."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.device = device
        whole = flat(problem)
        self.problem = problem
        self.documents_total = len(whole.lengths)
        self.average = float(whole.lengths.mean(dtype=np.float64))
        idf = np.zeros(len(problem.document_frequencies))
        idf[: len(problem.snapshot.term_idf)] = problem.snapshot.term_idf

        def move(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        self.offsets = move(whole.offsets)
        self.documents, self.frequencies = move(whole.documents), move(whole.frequencies)
        self.lengths, self.idf = move(whole.lengths), move(idf.astype(np.float32))

    @cached_property
    def values(self) -> torch.Tensor:
        """Float32 [postings]: each posting's contribution."""
        tf = self.frequencies.to(torch.float32)
        norm = K1 * (1 - B + B / self.average * self.lengths.to(torch.float32))
        idf = torch.repeat_interleave(self.idf, torch.diff(self.offsets))
        return idf * tf * (K1 + 1) / (tf + norm[self.documents.long()])

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (self.offsets, self.documents, self.frequencies, self.lengths, self.idf))

    def matrix_counted(self, variant: Variant) -> dict[str, int]:
        """The least bytes of a batch: every score is zeroed and read once, and each posting is read once."""
        matrix = 8 * variant.queries * self.documents_total
        return {"device_bytes": matrix + 8 * self.problem.distinct(variant.start, variant.stop)}


class BaselineSystem:
    """AgentIR's execution (SPEC A045 to A051): float atomics into a matrix, then one block a query selects."""

    def __init__(self, merge: str, index: FlatIndex) -> None:
        from fanrank.kernels.cuda.verbs import Baseline

        self.name = f"baseline-{merge}"
        self.device = device_name(index.device)
        self.merge, self.index = merge, index
        self.index_bytes: int | None = index.bytes
        self.baseline = Baseline(cuda_launcher(index.device))

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel",) if k <= 128 else ()

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        index = self.index
        # The launches of a large batch cost nothing beside its work, and a graph would keep its matrix.
        matrix = 4 * index.documents_total * variants[0].queries
        captured = index.device.type == "cuda" and matrix <= GRAPH_BYTES
        pool = torch.cuda.graph_pool_handle() if captured else None
        held: list[Any] = [None] * len(variants)

        def work(number: int) -> Callable[[], object]:
            variant = variants[number]
            terms = np.full((variant.queries, int(np.diff(variant.offsets).max(initial=0))), -1, dtype=np.int32)
            places = np.arange(terms.shape[1]) < np.diff(variant.offsets)[:, None]
            terms[places] = variant.terms
            on_device = torch.from_numpy(terms).to(index.device)
            ones = torch.ones_like(on_device)

            def once() -> None:
                held[number] = self.baseline.search(
                    on_device, ones, offsets=index.offsets, documents=index.documents, frequencies=index.frequencies,
                    lengths=index.lengths, idf=index.idf, average_length=index.average, k=variant.k, k1=K1, b=B,
                    merge=self.merge,
                )  # fmt: skip

            once()
            return capture_graph(once, pool) if captured else once

        works = [work(number) for number in range(len(variants))]

        def answer(number: int) -> HitArrays:
            works[number]()
            scores, documents = held[number]
            return scores.cpu().numpy(), documents.cpu().numpy(), None

        counted = _mean([{**index.matrix_counted(v), "l2_float": v.touched} for v in variants])
        return Ready(lambda number: works[number](), answer, index.device.type == "cuda", exact=False, counted=counted)


class SparseSystem:
    """A sparse product of torch, then `torch.topk`.

    ``spgemm`` multiplies the batch (B x V, CSR) with the index (V x N, CSR) and makes the product dense; ``spmm``
    multiplies the index by document (N x V, CSR) with the dense batch (V x B).
    """

    def __init__(self, product: str, index: FlatIndex) -> None:
        self.name = f"torch-{product}"
        self.device = device_name(index.device)
        self.product, self.index = product, index
        shape = (len(index.offsets) - 1, index.documents_total)
        layout = torch.sparse_csr_tensor if product == "spgemm" else torch.sparse_csc_tensor
        size = shape if product == "spgemm" else shape[::-1]
        warnings.filterwarnings("ignore", message="Sparse CS[RC] tensor support is in beta")
        # Term by term, the arrays are the CSR of V x N and the CSC of N x V.
        arrays = (index.offsets.to(torch.int32), index.documents, index.values)
        self.matrix = layout(*arrays, size=size, device=index.device, check_invariants=False)
        if product == "spmm":
            self.matrix = self.matrix.to_sparse_csr()
        self.index_bytes: int | None = 8 * len(index.documents) + 4 * (self.matrix.shape[0] + 1)

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel",)

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        parts = [self._parts(variant) for variant in variants]
        held: list[Any] = [None] * len(variants)

        def once(number: int) -> None:
            held[number] = [self._best(part, variants[number].k) for part in parts[number]]

        def answer(number: int) -> HitArrays:
            once(number)
            scores, documents = (torch.cat(column).cpu().numpy() for column in zip(*held[number], strict=True))
            return scores, np.where(scores > 0, documents, -1), None

        once(0)
        counted = _mean([self.index.matrix_counted(variant) for variant in variants])
        note = "" if len(parts[0]) == 1 else f"{len(parts[0])} products"
        on_device = self.index.device.type == "cuda"
        return Ready(once, answer, on_device, exact=False, counted=counted, note=note)

    def _parts(self, variant: Variant) -> list[torch.Tensor]:
        """The batch as matrices on the device, each of as many queries as one product may hold."""
        terms, documents = len(self.index.offsets) - 1, self.index.documents_total
        row_bytes = 4 * (documents if self.product == "spgemm" else documents + terms)
        owners = np.repeat(np.arange(variant.queries), np.diff(variant.offsets))
        touched = np.bincount(
            owners, weights=self.index.problem.document_frequencies[variant.terms], minlength=variant.queries
        )
        chunk = np.cumsum(touched) // PRODUCTS if self.product == "spgemm" else np.zeros(variant.queries)
        borders = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), variant.queries]
        most = max(1, MATRIX_BYTES // row_bytes)
        borders = sorted({*borders, *range(0, variant.queries, most)})
        parts = []
        for start, stop in pairwise(borders):
            rows = variant.offsets[start : stop + 1] - variant.offsets[start]
            columns = np.concatenate(
                [np.sort(variant.terms[variant.offsets[q] : variant.offsets[q + 1]]) for q in range(start, stop)]
            )
            row_tensor, column_tensor = (
                torch.from_numpy(array.astype(np.int32)).to(self.index.device) for array in (rows, columns)
            )
            ones = torch.ones(len(columns), dtype=torch.float32, device=self.index.device)
            size = (stop - start, terms)
            batch = torch.sparse_csr_tensor(row_tensor, column_tensor, ones, size=size, check_invariants=False)
            parts.append(batch if self.product == "spgemm" else batch.to_dense().t().contiguous())
        return parts

    def _best(self, batch: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.product == "spgemm":
            scores = torch.sparse.mm(batch, self.matrix).to_dense()
        else:
            scores = torch.sparse.mm(self.matrix, batch).t().contiguous()
        best = torch.topk(scores, min(k, scores.shape[1]))
        return best.values, best.indices


class Bm25sSystem:
    """bm25s with its numba backend, given its index as arrays: the lucene formula, float32."""

    name, device = "bm25s-numba", "cpu"

    def __init__(self, problem: Problem, threads: int) -> None:
        import bm25s

        index = FlatIndex(problem, torch.device("cpu"))
        self.threads = threads
        self.index = bm25s.BM25(backend="numba", method="lucene", k1=K1, b=B)
        self.index.scores = {
            "data": index.values.numpy(),
            "indices": index.documents.numpy(),
            "indptr": index.offsets.numpy(),
            "num_docs": index.documents_total,
        }
        self.index.vocab_dict, self.index.unique_token_ids_set = {}, set(range(len(index.offsets) - 1))
        self.index.nonoccurrence_array = None
        self.documents = index.documents_total
        self.index_bytes: int | None = 8 * len(index.documents) + index.offsets.nbytes

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel",) if k <= self.documents else ()

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        def one(variant: Variant) -> Any:
            return self.index.retrieve(variant.lists, k=variant.k, n_threads=self.threads, show_progress=False)

        own, note = _cut_to_budget(variants, one, budget)

        def answer(number: int) -> HitArrays:
            result = one(own[number])
            return result.scores, np.where(result.scores > 0, result.documents.astype(np.int64), -1), None

        return Ready(
            lambda number: one(own[number]), answer, False, exact=False, queries=own[0].queries,
            threads=self.threads, note=note,
        )  # fmt: skip


DEVICE_FAMILIES = ("cuda", "triton", "cuda-host")
NAMES = (
    *(f"fanrank-{family}" for family in DEVICE_FAMILIES),
    *("baseline-warp", "baseline-naive", "torch-spgemm", "torch-spmm"),
    *("fanrank-native", "fanrank-numpy", "bm25s-numba"),
)
HOST_ONLY = ("fanrank-cuda-host",)
"""Never measured beside a GPU unless asked for."""


def make(name: str, problem: Problem, threads: int, shared: dict[str, FlatIndex]) -> System:
    """The system over the problem. `shared` keeps what several systems index. Raises what the constructor raises."""
    kind, _, rest = name.partition("-")
    if kind == "fanrank":
        return CpuSystem(rest, problem, threads) if rest in backend.CPU else DeviceSystem(rest, problem)
    if kind == "bm25s":
        return Bm25sSystem(problem, threads)
    if "flat" not in shared:
        shared["flat"] = FlatIndex(problem, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return BaselineSystem(rest, shared["flat"]) if kind == "baseline" else SparseSystem(rest, shared["flat"])


def list_usable() -> list[str]:
    """The systems that can run on this machine, in order; those of a GPU where there is one."""
    statuses = {status.name: status for status in backend.statuses()}
    names = []
    for name in NAMES:
        rest = name.removeprefix("fanrank-")
        if rest in statuses and not (statuses[rest].usable and (rest not in HOST_ONLY or not _gpu())):
            continue
        if name.startswith("bm25s") and importlib.util.find_spec("bm25s") is None:
            continue
        names.append(name)
    return names


def reference(problem: Problem, k: int, threads: int) -> HitArrays:
    """The numpy system's answer to every query at this k; a smaller k's answer is its beginning."""
    whole = Variant(problem, 0, problem.queries, k)
    return backend.choose("numpy").search([whole.plan()], whole.queries, k, threads=threads)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def cuda_launcher(device: torch.device) -> Any:
    """A launcher of the CUDA kernels on the device; on a CPU, of their host build."""
    from fanrank.kernels.cuda import launcher

    if device.type == "cuda":
        return launcher.CupyLauncher(device)
    from fanrank.kernels.cuda_host import HostLauncher, build

    return HostLauncher(build(sorted(launcher.FOLDER.glob("*.cu")), include=[launcher.FOLDER]))


def capture_graph(work: Callable[[], object], pool: Any = None) -> Callable[[], object]:
    """The replay of a CUDA graph of `work`. It ran before: kernels are compiled, memory is pooled.

    Graphs of one `pool` share the memory that was freed during their capture. They must not run at the same time.
    """
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph.replay


def _cut_to_budget(
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


def _empty(variant: Variant) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
    shape = (variant.queries, variant.k)
    return np.zeros(shape, np.int64), np.full(shape, -1, np.int64), np.zeros(variant.queries, np.int32)


def _share_buffers(scratch: Buffers | None, own: Buffers) -> tuple[Buffers, Buffers]:
    """(buffers for later launches, `own` as views of `scratch` where it is large enough). One launch runs at a time."""
    names = ("cuts", "maxima", "keys", "documents")
    if scratch is None or any(len(getattr(own, name)) > len(getattr(scratch, name)) for name in names):
        return own, own
    return scratch, replace(own, **{name: getattr(scratch, name)[: len(getattr(own, name))] for name in names})


def _mean(counted: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(own[name] for own in counted) // len(counted) for name in counted[0]}


def _gpu() -> bool:
    return torch.cuda.is_available()


def default_threads() -> int:
    return os.cpu_count() or 1
