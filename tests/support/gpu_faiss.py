"""A stand-in for a build of FAISS for GPUs: the parts that fanrank calls, with the signatures and the habits of 1.15.1.

Searches are exact here. What the real indexes do beside that is kept: CAGRA takes its rows in one call and ignores a
second one, refuses another type of numbers than it was trained with and fewer kept rows than asked for, and pads with
2**32 - 1. `calls` is everything that was asked, in order.
"""

import threading
from typing import Any, ClassVar

import numpy as np

from fanrank.cpu_fallback.dense import NumpyDense

METRIC_INNER_PRODUCT = 0
PADDING = (1 << 32) - 1
MOST = 2048


class OnGpu(NumpyDense):
    """Exact verbs that say that they serve from a GPU."""

    def __init__(self, gpu: int = 0) -> None:
        self.gpu = gpu


class Settings:
    """A class of FAISS whose attributes are known; others are refused, as a test of fanrank should be told."""

    known: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        vars(self).update(self.known)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.known:
            raise AttributeError(name)
        vars(self)[name] = value


class FlatConfig(Settings):
    known: ClassVar[dict[str, Any]] = {"device": 0, "useFloat16": False}


class CagraConfig(Settings):
    known: ClassVar[dict[str, Any]] = {
        "device": 0,
        "graph_degree": 64,
        "intermediate_graph_degree": 128,
        "store_dataset": True,
    }


class CagraSearch(Settings):
    known: ClassVar[dict[str, Any]] = {"itopk_size": 64, "search_width": 1, "sel": None}

    def __init__(self, **given: Any) -> None:
        super().__init__()
        for name, value in given.items():
            assert hasattr(self, name)
            setattr(self, name, value)


class Bitmap:
    def __init__(self, bits: np.ndarray) -> None:
        assert bits.dtype == np.uint8
        self.bits = bits

    def members(self, rows: int) -> np.ndarray:
        return np.unpackbits(self.bits, bitorder="little")[:rows].astype(bool)


class GpuFaiss:
    """The module. `gpus` are those that it sees; `cuvs` says whether it was built with cuVS; `full`, that no GPU has
    room; `selects`, whether CAGRA takes notice of a selector, as builds before 1.15 do not."""

    __version__ = "1.15.1"
    METRIC_INNER_PRODUCT = METRIC_INNER_PRODUCT
    Float32, Float16 = 0, 1

    def __init__(self, *, gpus: int = 1, cuvs: bool = True, full: bool = False, selects: bool = True) -> None:
        self.gpus, self.full, self.selects = gpus, full, selects
        self.calls: list[tuple[Any, ...]] = []
        self.running = threading.Lock()
        self.GpuIndexFlatConfig = FlatConfig
        self.IDSelectorBitmap = Bitmap
        outer = self

        class Resources:
            def __init__(self) -> None:
                outer.calls.append(("resources",))

            def setTempMemory(self, size: int) -> None:
                outer.calls.append(("scratch", size))

        class GpuIndexFlatIP(_OnGpu):
            def __init__(self, resources: Any, dims: int, config: FlatConfig) -> None:
                assert isinstance(resources, Resources)
                super().__init__(outer, dims, config.device)
                outer.calls.append(("flat", config.device, config.useFloat16))

            def add(self, x: np.ndarray, numeric_type: int = 0) -> None:
                assert x.dtype == np.float32
                self.rows = np.concatenate([self.rows, x.astype(np.float16)])
                outer.calls.append(("add", len(x)))

        class GpuIndexCagra(_OnGpu):
            def __init__(self, resources: Any, dims: int, metric: int, config: CagraConfig) -> None:
                assert isinstance(resources, Resources)
                assert metric == METRIC_INNER_PRODUCT
                assert config.store_dataset
                super().__init__(outer, dims, config.device)
                outer.calls.append(("cagra", config.device, config.graph_degree, config.intermediate_graph_degree))

            def train(self, x: np.ndarray, *, numeric_type: int = 0, xq_train: Any = None) -> None:
                outer.calls.append(("train", len(x), numeric_type))
                if not len(self.rows):
                    assert x.dtype == (np.float16 if numeric_type == outer.Float16 else np.float32)
                    self.rows, self.numeric_type = x.copy(), numeric_type

        self.StandardGpuResources = Resources
        self.GpuIndexFlatIP = GpuIndexFlatIP
        if cuvs:
            self.GpuIndexCagraConfig = CagraConfig
            self.SearchParametersCagra = CagraSearch
            self.GpuIndexCagra = GpuIndexCagra

    def get_num_gpus(self) -> int:
        return self.gpus


class _OnGpu:
    def __init__(self, faiss: GpuFaiss, dims: int, device: int) -> None:
        if device >= faiss.gpus:
            raise RuntimeError(f"Error: 'config_.device < getNumDevices()' failed: Invalid GPU device {device}")
        if faiss.full:
            raise RuntimeError("Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type FlatData")
        self.faiss, self.rows, self.numeric_type = faiss, np.zeros((0, dims), dtype=np.float16), 0

    def search(
        self,
        x: np.ndarray,
        k: int,
        *,
        params: Any = None,
        D: Any = None,
        I: Any = None,  # noqa: E741
        numeric_type: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        assert self.faiss.running.acquire(blocking=False), "two calls at once"
        try:
            return self._search(x, k, params, numeric_type)
        finally:
            self.faiss.running.release()

    def _search(self, x: np.ndarray, k: int, params: Any, numeric_type: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 < k <= MOST:
            raise RuntimeError(f"Error: 'k > 0' failed: GPU index only supports min/max-K selection up to {MOST}")
        if numeric_type != self.numeric_type:
            raise RuntimeError("Inconsistent numeric type for train and search")
        passing = np.ones(len(self.rows), dtype=bool)
        if params is not None:
            kept = -(-params.itopk_size // 32) * 32
            if k > kept:
                raise RuntimeError(f"topk = {k} must be smaller than itopk_size = {kept}")
            self.faiss.calls.append(("search", k, params.itopk_size, params.search_width, params.sel is not None))
            if params.sel is not None and self.faiss.selects:
                passing = params.sel.members(len(self.rows))
        scores = x.astype(np.float32) @ self.rows.astype(np.float32).T
        scores[:, ~passing] = -np.inf
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(scores, rows, axis=1)
        found = np.full((len(x), k), PADDING if params is not None else -1, dtype=np.int64)
        found[:, : rows.shape[1]] = np.where(np.isneginf(best), found[:, : rows.shape[1]], rows)
        return best, found
