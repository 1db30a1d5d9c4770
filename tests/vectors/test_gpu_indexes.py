"""Approximate search on a GPU: which index serves, what it is asked, and that its answers are scored exactly.

A stand-in takes the place of FAISS (`support.gpu_faiss`); `tests/extended` has the real builds.
"""

import importlib
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support import borders
from support.gpu_faiss import GpuFaiss, OnGpu
from support.threads import in_threads

from fanrank.cpu_fallback.dense import verbs
from fanrank.engine.arrays import offsets_of
from fanrank.engine.errors import BackendUnavailableError, DeviceMemoryError, MissingExtraError, ParameterError
from fanrank.engine.vectors import faiss_index
from fanrank.engine.vectors.approximate import best
from fanrank.engine.vectors.faiss_index import CagraIndex, FlatIndex, faiss_status, index_of
from fanrank.engine.vectors.index_options import Approximate
from fanrank.engine.vectors.interaction import KINDS, Interaction
from fanrank.engine.vectors.vectors import Vectors, normalize
from fanrank.engine.vectors.verbs import Stretch

DIMENSION = 24
SMALL = Approximate(least_rows=1, graph_degree=8, intermediate_degree=16)


def rows_of(seed: int, rows: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return normalize(rng.standard_normal((rows, DIMENSION)))


@pytest.fixture
def vectors() -> Vectors:
    counts = np.random.default_rng(2).integers(0, 4, size=300)
    return Vectors(rows_of(1, int(counts.sum())), offsets_of(counts))


@pytest.fixture
def queries() -> np.ndarray:
    return rows_of(3, 7)


def put(monkeypatch: pytest.MonkeyPatch, faiss: GpuFaiss) -> GpuFaiss:
    monkeypatch.setitem(sys.modules, "faiss", faiss)
    monkeypatch.setattr(faiss_index, "_cards", {})
    return faiss


@pytest.mark.parametrize(
    ("kind", "cuvs", "selects"), [("late", False, True), *((kind, True, kind != "late") for kind in KINDS)]
)
def test_what_a_gpu_finds_is_scored_exactly(
    kind: str, cuvs: bool, selects: bool, vectors: Vectors, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in's search is exact, so every bit of the answer must be that of the exact verbs, whatever passes."""
    put(monkeypatch, GpuFaiss(cuvs=cuvs, selects=selects))
    verbs, interaction = OnGpu(), Interaction(kind)  # type: ignore[arg-type]
    few = np.random.default_rng(0).random(len(vectors)) < 0.2
    for passing in (None, few, np.zeros(len(vectors), dtype=bool)):
        stretch = Stretch(vectors, 50, passing)
        for k in (1, 10, 400):
            found = best(verbs, queries, [stretch], k, interaction, options=SMALL)
            exact = verbs.best(queries, [stretch], k, interaction, "exact")
            assert found[2].tolist() == exact[2].tolist()
            if kind in ("late", "early"):
                assert found[1].tolist() == exact[1].tolist()
                assert found[0].tolist() == exact[0].tolist()
            held = found[1][found[1] >= 0] - 50
            assert passing is None or passing[held].all()


def test_cagra_takes_the_options_and_all_rows_at_once(
    vectors: Vectors, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss = put(monkeypatch, GpuFaiss(gpus=2))
    borders.shrink(monkeypatch, {"vectors.BLOCK_VALUES": 10 * DIMENSION})
    own = replace(SMALL, graph_degree=5, intermediate_degree=9, itopk_size=33, search_width=4)
    index = index_of(OnGpu(1), vectors, own)
    assert isinstance(index, CagraIndex)
    size = len(vectors.matrix)
    scratch = [("resources",), ("scratch", faiss_index.TEMPORARY_BYTES)]
    assert faiss.calls == [*scratch, ("cagra", 1, 5, 9), ("train", size, faiss.Float16)]
    faiss.calls.clear()
    passing = np.arange(size) % 3 == 0
    assert index.nearest(queries, 20, None, 1).shape == (7, 20)
    rows = index.nearest(queries, 70, passing, 1)
    assert passing[rows].all()
    # No fewer rows may be kept in mind than are asked for.
    assert faiss.calls == [("search", 20, 33, 4, False), ("search", 70, 70, 4, True)]


def test_without_cuvs_and_for_few_rows_all_are_compared(
    vectors: Vectors, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, {"vectors.BLOCK_VALUES": 100 * DIMENSION})
    size = len(vectors.matrix)
    blocks = [("add", min(100, size - start)) for start in range(0, size, 100)]
    for faiss, options in (
        (GpuFaiss(cuvs=False), SMALL),
        (GpuFaiss(), replace(SMALL, intermediate_degree=size // faiss_index.GRAPH_ROWS + 1)),
    ):
        put(monkeypatch, faiss)
        index = index_of(OnGpu(), vectors, options)
        assert isinstance(index, FlatIndex)
        assert faiss.calls[2:] == [("flat", 0, True), *blocks]
        assert index.nearest(queries, 4000, None, 1).shape == (7, faiss_index.MOST_FETCHED_ON_GPU)
    put(monkeypatch, GpuFaiss())
    assert (
        index_of(OnGpu(), vectors, replace(SMALL, intermediate_degree=size // faiss_index.GRAPH_ROWS)).kind == "cagra"
    )


def test_indexes_of_one_gpu_share_scratch_and_take_turns(
    vectors: Vectors, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAISS takes 1.5 GiB for each resources object, and two calls with one at once are an error of the caller's."""
    faiss = put(monkeypatch, GpuFaiss(gpus=2))
    first, second = OnGpu(0), OnGpu(0)
    indexes = [index_of(verbs, vectors, SMALL) for verbs in (first, second)]
    assert indexes[0] is not indexes[1]
    assert [call for call in faiss.calls if call[0] in ("resources", "cagra")] == [
        ("resources",),
        ("cagra", 0, 8, 16),
        ("cagra", 0, 8, 16),
    ]
    index_of(OnGpu(1), vectors, SMALL)
    assert sum(call[0] == "resources" for call in faiss.calls) == 2

    def ask(index: Any) -> None:
        for _ in range(30):
            index.nearest(queries, 5, None, 1)

    in_threads(*(partial(ask, index) for index in indexes * 2))


def test_a_full_gpu_is_named(vectors: Vectors, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, GpuFaiss(full=True))
    with pytest.raises(DeviceMemoryError, match="GPU 0 has no room for approximate search"):
        best(OnGpu(), queries, [Stretch(vectors, 0)], 3, Interaction(), options=SMALL)
    put(monkeypatch, GpuFaiss())
    index = index_of(OnGpu(), vectors, SMALL)
    assert isinstance(index, CagraIndex)
    failing = Mock(side_effect=RuntimeError("an illegal memory access was encountered"))
    monkeypatch.setattr(index.graph, "search", failing)
    with pytest.raises(RuntimeError, match="illegal"):
        index.nearest(queries, 3, None, 1)


def test_the_status_says_which_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    for faiss, gpu, kind, words in (
        (GpuFaiss(), 0, "cagra", "CAGRA on GPU 0"),
        (GpuFaiss(cuvs=False), 0, "flat", "built without cuVS; fanrank[gpu-cuda13]"),
        (GpuFaiss(), None, "hnsw", "HNSW on the CPU"),
        (GpuFaiss(), 1, "hnsw", "FAISS sees no GPU 1"),
    ):
        put(monkeypatch, faiss)
        status = faiss_status(gpu)
        assert (status.index, status.version) == (kind, "1.15.1")
        assert words in status.reason
    monkeypatch.setitem(sys.modules, "faiss", None)
    status = faiss_status(0)
    assert (status.index, status.version) == (None, None)
    assert "fanrank[approximate]" in status.reason
    both = {"faiss": ["faiss-gpu", "faiss-cpu", "faiss-gpu"]}
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: both)
    put(monkeypatch, GpuFaiss())
    assert "faiss-cpu and faiss-gpu overwrite each other's files: uninstall both" in faiss_status(0).reason


def test_without_faiss(vectors: Vectors, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"fanrank\[approximate\]"):
        verbs.best(queries, [Stretch(vectors, 0)], 10, Interaction(), "hnsw")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise RuntimeError('libcudart.so.13 is missing')", "libcudart.so.13"),
        ("import a_library_that_is_missing", "a_library_that_is_missing"),
    ],
)
def test_a_faiss_that_does_not_load_is_not_a_missing_one(
    body: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: Vectors, queries: np.ndarray
) -> None:
    """As the builds for a GPU do without NVIDIA's libraries."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "faiss.py").write_text(body)
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    with pytest.raises(BackendUnavailableError, match=f"does not load: .*{words}"):
        verbs.best(queries, [Stretch(vectors, 0)], 10, Interaction(), "hnsw")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"neighbours": 1}, "neighbours"),
        ({"ef_construction": 0}, "ef_construction"),
        ({"ef_search": "64"}, "ef_search"),
        ({"over_fetch": 0}, "over_fetch"),
        ({"threads": True}, "threads"),
        ({"least_rows": 1.5}, "least_rows"),
        ({"graph_degree": 1}, "graph_degree"),
        ({"itopk_size": 0}, "itopk_size"),
        ({"search_width": -1}, "search_width"),
        ({"neighbours": 1 << 31}, "neighbours of approximate search must be 2 to 1,024, not 2147483648"),
        ({"ef_search": 1 << 40}, "ef_search of approximate search must be 1 to 65,536"),
        ({"ef_construction": 65_537}, "ef_construction"),
        ({"threads": 1_025}, "threads"),
        ({"graph_degree": 225, "intermediate_degree": 300}, r"at most 224 and at most intermediate_degree \(300\)"),
        ({"graph_degree": 64, "intermediate_degree": 63}, r"at most intermediate_degree \(63\), not 64"),
    ],
)
def test_options_refuse(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Approximate(**options)
