"""The dense verbs on a device: products in float64, exact whatever the order in which a device adds them.

Vectors are uploaded once, in half precision, and kept as long as the host holds them. A block of them is widened and
multiplied with all queries of a batch, reduced to documents, and its k best join the best so far.

All is done on one stream of its own, call after call, and a call ends with its answer on the host. So memory that is
let go is written again after its last use, whichever thread's garbage collection lets it go.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..engine.arrays import Floats, Integers, offsets_of, ranges
from ..engine.errors import DeviceMemoryError
from ..engine.vectors.approximate import best as approximate_best
from ..engine.vectors.index_options import Approximate
from ..engine.vectors.interaction import Interaction
from ..engine.vectors.segment_reduce import segment_reduce
from ..engine.vectors.vectors import Halves, Vectors, blocks_of, quantized
from ..engine.vectors.verbs import DenseVerbs, Mode, Output, Stretch, check_mode, places_in, rows_to_compare
from .lifetime import Account
from .runtime import is_out_of_memory, runtime_of, with_kernels

# Queries answered together, scores of a block, and numbers of a block in float64: 128 and 256 MiB on a GPU.
QUERIES = 512
SCORES = 1 << 24
BLOCK_VALUES = 1 << 25
# On a CPU a block should stay in the cache.
CPU_SCORES = 1 << 20
CPU_BLOCK_VALUES = 1 << 20
# cuBLAS requires more than 16 queries for an int8 product, and multiples of 8 for the other lengths.
CODE_QUERIES = 32
CODE_MULTIPLE = 8

Reduce = Callable[[torch.Tensor, torch.Tensor, Interaction], torch.Tensor]


def dense_verbs(
    name: str, max_device_bytes: int | None = None, gpu: int | None = None, account: Account | None = None
) -> DenseVerbs:
    """The dense verbs of the family ``cuda``, ``triton`` or ``cuda-host``, on the GPU of this number; None: on the CPU.

    `max_device_bytes` bounds the vectors held there; with an `account`, its limit bounds them together with all else
    that it counts. The families differ only in the kernel that reduces rows to documents: it is Triton's where Triton
    can run, except for ``cuda-host``.
    """
    device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
    return TorchDense(device, max_device_bytes, _reduction(name, device), account)


def _reduction(name: str, device: torch.device) -> Reduce:
    if name == "triton" or (name == "cuda" and device.type == "cuda"):
        with contextlib.suppress(ImportError):
            from .triton import segment_reduce as kernel

            return kernel.segment_reduce
    return reduce_on_host


def reduce_on_host(cosines: torch.Tensor, offsets: torch.Tensor, interaction: Interaction) -> torch.Tensor:
    """As the CPU's, where Triton is not."""
    found = segment_reduce(cosines.cpu().numpy(), offsets.cpu().numpy(), interaction)
    return torch.from_numpy(found).to(cosines.device)


class _Resident:
    """A `Vectors` on the device: 2 bytes a component, and 1 more once its codes were used."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.matrix = matrix
        self.codes: torch.Tensor | None = None
        self.steps: torch.Tensor | None = None

    @property
    def bytes(self) -> int:
        return sum(int(each.nbytes) for each in (self.matrix, self.codes, self.steps) if each is not None)


class TorchDense:
    """`DenseVerbs` in torch. Calls run one after another, because a device is one queue."""

    def __init__(
        self,
        device: torch.device,
        max_device_bytes: int | None = None,
        reduce: Reduce = reduce_on_host,
        account: Account | None = None,
    ) -> None:
        """`account` counts what else the engine takes on the device; without one, `max_device_bytes` is for vectors."""
        self.device = device
        self.name = f"torch {device.type}"
        self.gpu: int | None = device.index if device.type == "cuda" else None
        self.account = Account(max_device_bytes) if account is None else account
        self._runtime = runtime_of(device)
        self._reduce = reduce
        self._held: weakref.WeakKeyDictionary[Vectors, _Resident] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        own = weakref.ref(self)
        self.account.add(lambda: 0 if (alive := own()) is None else alive.bytes)
        cpu = device.type == "cpu"
        self._scores = CPU_SCORES if cpu else SCORES
        self._values = CPU_BLOCK_VALUES if cpu else BLOCK_VALUES

    @cached_property
    def _stream(self) -> Any:
        return self._runtime.new_stream()

    @property
    def bytes(self) -> int:
        """Bytes of the vectors held on the device."""
        # The search counts them while another thread may add some. `keyrefs` is a list, `values` would be cut short.
        keys = [reference() for reference in self._held.keyrefs()]
        held = [self._held.get(vectors) for vectors in keys if vectors is not None]
        return sum(resident.bytes for resident in held if resident is not None)

    def best(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        k: int,
        interaction: Interaction,
        mode: Mode,
        *,
        threads: int = 1,
        approximate: Approximate | None = None,
    ) -> Output:
        check_mode(mode)
        if mode == "hnsw":
            return approximate_best(self, queries, stretches, k, interaction, threads=threads, options=approximate)
        return with_kernels(lambda: self._best(queries, stretches, k, interaction, mode))

    def _best(
        self, queries: Halves, stretches: Sequence[Stretch], k: int, interaction: Interaction, mode: Mode
    ) -> Output:
        scores = np.full((len(queries), k), -np.inf)
        documents = np.full((len(queries), k), -1, dtype=np.int64)
        with self._lock, self._serving(len(queries)):
            for start in range(0, len(queries) if k else 0, QUERIES):
                part = slice(start, start + QUERIES)
                device_queries = _DeviceQueries(queries[part], mode, self.device)
                hits = device_queries.no_hits(k)
                for stretch in stretches:
                    hits = self._search(device_queries, stretch, k, interaction, hits)
                scores[part], documents[part] = (each.cpu().numpy() for each in hits)
        return scores, documents, (documents >= 0).sum(axis=1).astype(np.int32)

    def scores_of(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        offsets: Integers,
        documents: Integers,
        interaction: Interaction,
        mode: Mode,
    ) -> Floats:
        check_mode(mode)
        return with_kernels(lambda: self._scores_of(queries, stretches, offsets, documents, interaction, mode))

    def _scores_of(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        offsets: Integers,
        documents: Integers,
        interaction: Interaction,
        mode: Mode,
    ) -> Floats:
        query = np.repeat(np.arange(len(queries)), np.diff(offsets))
        scores = np.full(len(documents), -np.inf)
        with self._lock, self._serving(len(queries)):
            device_queries = _DeviceQueries(queries, mode, self.device)
            for stretch in stretches:
                vectors, reduction = rows_to_compare(stretch.vectors, interaction)
                pair, local = places_in(stretch, documents)
                counts = np.diff(vectors.offsets)[local]
                for part in blocks_of(offsets_of(counts), max(1, self._values // vectors.dimension)):
                    rows = self._move(ranges(vectors.offsets[local[part]], counts[part]))
                    asking = self._move(np.repeat(query[pair[part]], counts[part]))
                    cosines = self._cosines(device_queries, vectors, asking, rows)[None]
                    bounds = self._move(offsets_of(counts[part]))
                    scores[pair[part]] = (self._reduce(cosines, bounds, reduction)[0] + 0.0).cpu().numpy()
        return scores

    def _search(
        self,
        device_queries: _DeviceQueries,
        stretch: Stretch,
        k: int,
        interaction: Interaction,
        hits: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        vectors, reduction = rows_to_compare(stretch.vectors, interaction)
        wanted = vectors.held if stretch.passing is None else vectors.held & stretch.passing
        if not wanted.any():
            return hits
        documents = np.flatnonzero(vectors.held)
        offsets = offsets_of(np.diff(vectors.offsets)[documents])
        rows = max(1, min(self._scores // device_queries.queries, self._values // vectors.dimension))
        for part in blocks_of(offsets, rows):
            block, bounds = documents[part], offsets[part.start : part.stop + 1]
            if not wanted[block].any():
                continue
            values = self._products(device_queries, vectors, slice(int(bounds[0]), int(bounds[-1])))
            if int(bounds[-1] - bounds[0]) > len(block):
                values = self._reduce(values, self._move(bounds - bounds[0]), reduction)
            if not wanted[block].all():
                values = values.masked_fill(~self._move(wanted[block]), -torch.inf)
            hits = _merge_hits(hits, values, self._move(block + stretch.first), k)
        return hits

    def _products(self, device_queries: _DeviceQueries, vectors: Vectors, rows: slice) -> torch.Tensor:
        """Cosines [queries, rows]."""
        resident = self._resident(vectors, device_queries.mode)
        if device_queries.mode != "int8":
            return device_queries.doubles @ resident.matrix[rows].to(torch.float64).T
        assert resident.codes is not None
        assert resident.steps is not None
        sums = code_products(device_queries.codes, resident.codes[rows]).to(torch.float64)
        return (sums * device_queries.steps[:, None]) * resident.steps[rows]

    def _cosines(
        self, device_queries: _DeviceQueries, vectors: Vectors, asking: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """The cosine of each pair [pairs]."""
        resident = self._resident(vectors, device_queries.mode)
        if device_queries.mode != "int8":
            return (resident.matrix[rows].to(torch.float64) * device_queries.doubles[asking]).sum(dim=1)
        assert resident.codes is not None
        assert resident.steps is not None
        sums = (resident.codes[rows].to(torch.float64) * device_queries.codes[asking]).sum(dim=1)
        return (sums * device_queries.steps[asking]) * resident.steps[rows]

    def _resident(self, vectors: Vectors, mode: Mode) -> _Resident:
        resident = self._held.get(vectors)
        if resident is None:
            self.account.reserve(vectors.matrix.nbytes, self._runtime)
            resident = self._held[vectors] = _Resident(self._move(vectors.matrix))
        if mode == "int8" and resident.codes is None:
            codes, steps = vectors.codes
            self.account.reserve(codes.nbytes + steps.nbytes, self._runtime)
            resident.codes, resident.steps = self._move(codes), self._move(steps)
        return resident

    @contextlib.contextmanager
    def _serving(self, queries: int) -> Any:
        """Make the device and the stream current, and turn out-of-memory errors into `DeviceMemoryError`."""
        try:
            with self._runtime.active(), self._runtime.on(self._stream):
                yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise DeviceMemoryError(
                f"{self.device} has no room for {queries} dense queries beside {self.bytes:,} bytes of vectors; ask in "
                f"smaller batches, or serve from the CPU ({error})"
            ) from error

    def _move(self, array: npt.NDArray[Any]) -> torch.Tensor:
        # Memory-mapped arrays are read-only, which torch warns of; a copy on the CPU is not.
        contiguous = np.ascontiguousarray(array)
        if not contiguous.flags.writeable:
            contiguous = contiguous.copy()
        return torch.from_numpy(contiguous).to(self.device)


class _DeviceQueries:
    """Queries on the device, in the form that the mode takes."""

    def __init__(self, halves: Halves, mode: Mode, device: torch.device) -> None:
        self.queries = len(halves)
        self.mode = mode
        self.device = device
        if mode == "int8":
            codes, steps = quantized(halves)
            self.codes = torch.from_numpy(codes).to(device)
            self.steps = torch.from_numpy(steps).to(device)
        else:
            self.doubles = torch.from_numpy(np.array(halves)).to(device).to(torch.float64)

    def no_hits(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(scores, documents) without a hit."""
        scores = torch.full((self.queries, k), -torch.inf, dtype=torch.float64, device=self.device)
        return scores, torch.full((self.queries, k), -1, dtype=torch.int64, device=self.device)


def code_products(queries: torch.Tensor, rows: torch.Tensor, *, padded: bool | None = None) -> torch.Tensor:
    """Exact sums of products of int8 codes [queries, rows]: int32 tensor cores on a GPU, float64 elsewhere.

    `padded` says whether to use the int8 product, with zeros up to the lengths that cuBLAS requires; None: only on a
    GPU. Float32 is not used on a GPU, because a setting of torch turns it into TF32.
    """
    if not (queries.device.type == "cuda" if padded is None else padded):
        return queries.to(torch.float64) @ rows.to(torch.float64).T
    query_count, row_count = len(queries), len(rows)
    short = -queries.shape[1] % CODE_MULTIPLE
    queries = torch.nn.functional.pad(queries, (0, short, 0, max(0, CODE_QUERIES - query_count)))
    rows = torch.nn.functional.pad(rows, (0, short, 0, -row_count % CODE_MULTIPLE))
    return torch._int_mm(queries, rows.T)[:query_count, :row_count]


def _merge_hits(
    hits: tuple[torch.Tensor, torch.Tensor], values: torch.Tensor, documents: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of `hits` and of values [B, n] of documents [n], ascending."""
    width = min(k, values.shape[1])
    # topk may choose any of equal values. So only its smallest value is used, and documents decide ties.
    least = values.topk(width, dim=1).values[:, -1:]
    above = values > least
    ties = values == least
    chosen = above | (ties & (ties.cumsum(dim=1) <= width - above.sum(dim=1, keepdim=True)))
    column = chosen.nonzero()[:, 1].view(-1, width)
    scores = torch.cat([hits[0], values.gather(1, column) + 0.0], dim=1)
    numbers = torch.cat([hits[1], documents[column].masked_fill(scores[:, k:] == -torch.inf, -1)], dim=1)
    by_number = numbers.argsort(dim=1)
    order = by_number.gather(1, scores.gather(1, by_number).argsort(dim=1, descending=True, stable=True))[:, :k]
    return scores.gather(1, order), numbers.gather(1, order)
