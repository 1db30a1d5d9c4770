"""Indexes of rows in FAISS: an HNSW graph on the CPU; on a GPU the graph of CAGRA, or all rows in half precision.

Where a GPU serves the vectors and FAISS was built for one, the index lies on that GPU: CAGRA where the build has cuVS.
Else the CPU serves it. An index is built at its first use, and kept as long as the vectors and the backend are.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from ..arrays import Flags, Integers
from ..errors import BackendUnavailableError, DeviceMemoryError, MissingExtraError
from .index_options import Approximate
from .vectors import BLOCK_VALUES, Halves, Vectors, widen
from .verbs import DenseVerbs

# The most rows that an index on a GPU returns for a query.
MOST_FETCHED_ON_GPU = 2048
# Scratch memory of FAISS on a GPU. Its own choice is 1.5 GiB; searches that need more ask the driver for it.
TEMPORARY_BYTES = 1 << 28
# A graph that joins each row with more than one in so many of all is no shortcut, and CAGRA cannot build a small one.
GRAPH_ROWS = 8

Kind = Literal["hnsw", "flat", "cagra"]
"""``hnsw`` on the CPU; ``flat`` (all rows are compared, in half precision) and ``cagra`` on a GPU."""


class Index(Protocol):
    """An index of the rows of a `Vectors`."""

    kind: Kind

    def nearest(self, queries: Halves, count: int, passing: Flags | None, threads: int) -> Integers:
        """Row numbers [B, count or fewer] in no promised order, of rows that pass; -1 where fewer were found."""
        ...


def load_faiss() -> Any:
    """The module faiss. Raises `MissingExtraError`; `BackendUnavailableError` where it is there but does not load."""
    try:
        import faiss
    except ImportError as error:
        if error.name == "faiss":
            raise MissingExtraError("faiss", "approximate") from None
        raise BackendUnavailableError(f"faiss is installed, but does not load: {error}") from error
    except (OSError, RuntimeError) as error:
        # What the builds for a GPU raise where NVIDIA's libraries are missing.
        raise BackendUnavailableError(f"faiss is installed, but does not load: {error}") from error
    return faiss


def kind_of(faiss: Any, gpu: int | None) -> Kind:
    """The kind of the indexes beside vectors that the GPU of this number serves; None: the CPU."""
    if gpu is None or not hasattr(faiss, "GpuIndexFlatIP") or gpu >= faiss.get_num_gpus():
        return "hnsw"
    return "cagra" if hasattr(faiss, "GpuIndexCagra") else "flat"


class HnswIndex:
    """A graph on the CPU. Rows stay in half precision, as stored: half the bytes of float32, half the time to build."""

    kind: Kind = "hnsw"

    def __init__(self, faiss: Any, vectors: Vectors, options: Approximate) -> None:
        self._faiss = faiss
        self._search = options.ef_search
        kind = faiss.ScalarQuantizer.QT_fp16
        self.graph = faiss.IndexHNSWSQ(vectors.dimension, kind, options.neighbours, faiss.METRIC_INNER_PRODUCT)
        self.graph.hnsw.efConstruction = options.ef_construction
        with _set_threads(faiss, options.threads):
            for block in _blocks(vectors):
                if not self.graph.is_trained:
                    # FAISS requires this call, although half precision has nothing to learn.
                    self.graph.train(block)
                self.graph.add(block)

    def nearest(self, queries: Halves, count: int, passing: Flags | None, threads: int) -> Integers:
        options = self._faiss.SearchParametersHNSW(efSearch=max(self._search, count))
        if passing is not None:
            options.sel = self._faiss.IDSelectorBitmap(np.packbits(passing, bitorder="little"))
        with _set_threads(self._faiss, threads):
            _, rows = self.graph.search(widen(np.ascontiguousarray(queries)), count, params=options)
        nearest_rows: Integers = rows
        return nearest_rows


class FlatIndex:
    """All rows on a GPU, in half precision."""

    kind: Kind = "flat"

    def __init__(self, faiss: Any, vectors: Vectors, options: Approximate, gpu: int) -> None:
        self._card = _card_of(faiss, gpu)
        self._rows = len(vectors.matrix)
        config = faiss.GpuIndexFlatConfig()
        config.device = gpu
        config.useFloat16 = True
        with self._card.using():
            self.flat = faiss.GpuIndexFlatIP(self._card.resources, vectors.dimension, config)
            for block in _blocks(vectors):
                self.flat.add(block)

    def nearest(self, queries: Halves, count: int, passing: Flags | None, threads: int) -> Integers:
        with self._card.using():
            _, rows = self.flat.search(widen(np.ascontiguousarray(queries)), min(count, MOST_FETCHED_ON_GPU))
        return _those_that_pass(rows, self._rows, passing)


class CagraIndex:
    """The graph of CAGRA on a GPU, over the rows as they are stored."""

    kind: Kind = "cagra"

    def __init__(self, faiss: Any, vectors: Vectors, options: Approximate, gpu: int) -> None:
        self._faiss = faiss
        self._options = options
        self._card = _card_of(faiss, gpu)
        self._rows = len(vectors.matrix)
        config = faiss.GpuIndexCagraConfig()
        config.device = gpu
        config.graph_degree = options.graph_degree
        config.intermediate_graph_degree = options.intermediate_degree
        # The index copies the rows to the GPU. Otherwise it would read the host's array at the first search.
        config.store_dataset = True
        with self._card.using():
            inner = faiss.METRIC_INNER_PRODUCT
            self.graph = faiss.GpuIndexCagra(self._card.resources, vectors.dimension, inner, config)
            # All rows in one call: of a second one FAISS would take nothing, and say nothing.
            self.graph.train(np.ascontiguousarray(vectors.matrix), numeric_type=faiss.Float16)

    def nearest(self, queries: Halves, count: int, passing: Flags | None, threads: int) -> Integers:
        count = min(count, MOST_FETCHED_ON_GPU)
        options = self._faiss.SearchParametersCagra(
            itopk_size=max(self._options.itopk_size, count), search_width=self._options.search_width
        )
        if passing is not None:
            options.sel = self._faiss.IDSelectorBitmap(np.packbits(passing, bitorder="little"))
        with self._card.using():
            _, rows = self.graph.search(
                np.ascontiguousarray(queries), count, params=options, numeric_type=self._faiss.Float16
            )
        # Builds before 1.15 take no notice of a selector.
        return _those_that_pass(rows, self._rows, passing)


def _those_that_pass(rows: Integers, size: int, passing: Flags | None) -> Integers:
    """The rows [B, count] with -1 in place of those that do not pass, or that are none: CAGRA pads with 2**32 - 1."""
    real = (rows >= 0) & (rows < size)
    if passing is not None:
        real &= passing[np.where(real, rows, 0)]
    return np.where(real, rows, -1)


class _Card:
    """One GPU as FAISS sees it: scratch memory that its indexes share, and a lock, as they may not run at once."""

    def __init__(self, faiss: Any, gpu: int) -> None:
        self.gpu = gpu
        self.resources = faiss.StandardGpuResources()
        self.resources.setTempMemory(TEMPORARY_BYTES)
        self._lock = threading.Lock()

    @contextmanager
    def using(self) -> Iterator[None]:
        """Hold the GPU; what FAISS raises for want of memory becomes `DeviceMemoryError`."""
        try:
            with self._lock:
                yield
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or any(words in str(error) for words in ("alloc", "out of memory")):
                raise DeviceMemoryError(
                    f"GPU {self.gpu} has no room for approximate search; search exactly, in smaller batches, or serve "
                    f"from the CPU ({error})"
                ) from error
            raise


_cards: dict[int, _Card] = {}
_indexes: weakref.WeakKeyDictionary[DenseVerbs, weakref.WeakKeyDictionary[Vectors, dict[Approximate, Index]]] = (
    weakref.WeakKeyDictionary()
)
# While an index is built, no other is: a build takes all of a GPU, or as many threads as it was given.
_building = threading.Lock()


def _card_of(faiss: Any, gpu: int) -> _Card:
    if gpu not in _cards:
        _cards[gpu] = _Card(faiss, gpu)
    return _cards[gpu]


def index_of(verbs: DenseVerbs, vectors: Vectors, options: Approximate) -> Index:
    """The index of these vectors beside these verbs, built at the first call.

    Raises `MissingExtraError` and `BackendUnavailableError` as `load_faiss`, and `DeviceMemoryError`.
    """
    faiss = load_faiss()
    with _building:
        indexes = _indexes.setdefault(verbs, weakref.WeakKeyDictionary()).setdefault(vectors, {})
        if options not in indexes:
            indexes[options] = _make_index(faiss, vectors, options, verbs.gpu)
        return indexes[options]


def _make_index(faiss: Any, vectors: Vectors, options: Approximate, gpu: int | None) -> Index:
    kind = kind_of(faiss, gpu)
    if gpu is None or kind == "hnsw":
        return HnswIndex(faiss, vectors, options)
    if kind == "cagra" and len(vectors.matrix) >= GRAPH_ROWS * options.intermediate_degree:
        return CagraIndex(faiss, vectors, options, gpu)
    return FlatIndex(faiss, vectors, options, gpu)


def _blocks(vectors: Vectors) -> Iterator[Any]:
    """The rows in float32, a block after another."""
    size = max(1, BLOCK_VALUES // vectors.dimension)
    for start in range(0, len(vectors.matrix), size):
        yield widen(vectors.matrix[start : start + size])


@contextmanager
def _set_threads(faiss: Any, threads: int) -> Iterator[None]:
    """Run FAISS on this many threads inside the block. FAISS keeps the number for each calling thread."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@dataclass(frozen=True)
class FaissStatus:
    """Which index serves approximate search, and why."""

    index: Kind | None
    """None: none serves."""
    version: str | None
    reason: str


def faiss_status(gpu: int | None) -> FaissStatus:
    """The index beside vectors that the GPU of this number serves; None: the CPU."""
    from importlib import metadata  # takes 10 ms, which a search should not wait for

    together = sorted(set(metadata.packages_distributions().get("faiss", ())))
    clash = ""
    if len(together) > 1:
        clash = f"; {' and '.join(together)} overwrite each other's files: uninstall both, then install one"
    try:
        faiss = load_faiss()
    except (BackendUnavailableError, MissingExtraError) as error:
        return FaissStatus(None, None, f"{error}{clash}")
    kind = kind_of(faiss, gpu)
    if kind == "cagra":
        reason = f"CAGRA on GPU {gpu}, as FAISS has cuVS"
    elif kind == "flat":
        reason = f"all rows in half precision on GPU {gpu}, as FAISS was built without cuVS; fanrank[gpu-cuda13] has it"
    elif gpu is None:
        reason = "HNSW on the CPU"
    elif not hasattr(faiss, "GpuIndexFlatIP"):
        reason = (
            "HNSW on the CPU, as FAISS was built for it alone; for a GPU uninstall faiss-cpu, then install "
            "fanrank[gpu-cuda12] or fanrank[gpu-cuda13]"
        )
    else:
        reason = f"HNSW on the CPU, as FAISS sees no GPU {gpu}"
    return FaissStatus(kind, faiss.__version__, reason + clash)
