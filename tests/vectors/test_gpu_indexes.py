"""Approximate search on a GPU: which index serves, what it is asked, and that its answers are scored exactly.

A stand-in takes the place of FAISS (`support.gpu_faiss`). The real builds load without a GPU: where one is installed,
or a folder with one is named by `FANRANK_FAISS_GPU` (``pip install --target``), the calls go through it as far as the
first that needs a GPU, and the stand-in is compared with it.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders, gpu_faiss
from support.gpu_faiss import GpuFaiss

from fanrank.cpu_fallback.dense import NumpyDense
from fanrank.engine.arrays import offsets_of
from fanrank.engine.errors import DeviceMemoryError
from fanrank.engine.vectors import faiss_index
from fanrank.engine.vectors.approximate import best
from fanrank.engine.vectors.faiss_index import CagraIndex, FlatIndex, HnswIndex, faiss_status, index_of
from fanrank.engine.vectors.index_options import DEFAULT, Approximate
from fanrank.engine.vectors.interaction import KINDS, Interaction
from fanrank.engine.vectors.vectors import Vectors, normalize
from fanrank.engine.vectors.verbs import Stretch

DIMENSION = 24
SMALL = Approximate(least_rows=1, graph_degree=8, intermediate_degree=16)


class OnGpu(NumpyDense):
    """Exact verbs that say that they serve from a GPU."""

    def __init__(self, gpu: int = 0) -> None:
        self.gpu = gpu


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuvs", [False, True])
@pytest.mark.parametrize("selects", [False, True])
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


def test_padding_is_no_row(vectors: Vectors, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, GpuFaiss())
    index = index_of(OnGpu(), vectors, SMALL)
    passing = np.zeros(len(vectors.matrix), dtype=bool)
    passing[[4, 9]] = True
    rows = index.nearest(queries, 5, passing, 1)
    assert np.sort(rows, axis=1).tolist() == [[-1, -1, -1, 4, 9]] * len(queries)


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


def test_the_cpu_serves_where_no_gpu_does(vectors: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the backend serves from the CPU, nor for a GPU that FAISS does not see, nor in a build without GPUs."""
    faiss = pytest.importorskip("faiss", reason="faiss is not installed")
    assert isinstance(index_of(OnGpu(), vectors, SMALL), HnswIndex) or hasattr(faiss, "GpuIndexFlatIP")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "GpuIndexFlatIP", None, raising=False)
    assert isinstance(index_of(NumpyDense(), vectors, SMALL), HnswIndex)
    assert isinstance(index_of(OnGpu(1), vectors, SMALL), HnswIndex)
    assert faiss_index.kind_of(faiss, 0) == ("cagra" if hasattr(faiss, "GpuIndexCagra") else "flat")


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
    failed = []

    def ask(index: Any) -> None:
        try:
            for _ in range(30):
                index.nearest(queries, 5, None, 1)
        except AssertionError as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(index,)) for index in indexes * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_an_index_goes_with_its_backend(vectors: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, GpuFaiss())
    verbs = OnGpu()
    known = len(faiss_index._indexes)
    index_of(verbs, vectors, SMALL)
    assert len(faiss_index._indexes) == known + 1
    del verbs
    gc.collect()
    assert len(faiss_index._indexes) == known


def test_a_full_gpu_is_named(vectors: Vectors, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, GpuFaiss(full=True))
    with pytest.raises(DeviceMemoryError, match="GPU 0 has no room for approximate search"):
        best(OnGpu(), queries, [Stretch(vectors, 0)], 3, Interaction(), options=SMALL)
    put(monkeypatch, GpuFaiss())
    index = index_of(OnGpu(), vectors, SMALL)
    assert isinstance(index, CagraIndex)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(index.graph, "search", fail)
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


def test_the_status_names_packages_that_overwrite_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, GpuFaiss())
    both = {"faiss": ["faiss-gpu", "faiss-cpu", "faiss-gpu"]}
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: both)
    assert "faiss-cpu and faiss-gpu overwrite each other's files: uninstall both" in faiss_status(0).reason


PROBE = """
    import inspect, json, sys
    import faiss, numpy as np
    from fanrank.engine.vectors import faiss_index
    from fanrank.engine.vectors.index_options import Approximate
    from fanrank.engine.vectors.vectors import Vectors, normalize

    told = {"version": faiss.__version__, "cuvs": hasattr(faiss, "GpuIndexCagra"), "gpus": faiss.get_num_gpus()}

    class Verbs:
        name, gpu = "a test", 0

    def defaults(kind):
        made = kind()
        return {name: getattr(made, name) for name in dir(kind) if isinstance(getattr(kind, name), property)
                and isinstance(getattr(made, name), (int, float)) and name != "thisown"}

    def parameters(method):
        return {name: [str(value.kind), repr(value.default)] for name, value in
                inspect.signature(method).parameters.items()}

    rows = normalize(np.random.default_rng(0).standard_normal((2000, 24)))
    vectors = Vectors(rows, np.arange(2001))
    if not told["gpus"]:
        # As far as the constructor, which names the GPU that is not there.
        faiss.get_num_gpus = lambda: 1
    told["kind"] = faiss_index.kind_of(faiss, 0)
    told["errors"] = {}
    for kind in ("FlatIndex", *(["CagraIndex"] if told["cuvs"] else [])):
        try:
            getattr(faiss_index, kind)(faiss, vectors, Approximate(), 0)
            told["errors"][kind] = ""
        except RuntimeError as error:
            told["errors"][kind] = str(error)
    told["flat"] = defaults(faiss.GpuIndexFlatConfig)
    told["signatures"] = {"GpuIndexFlatIP.add": parameters(faiss.GpuIndexFlatIP.add),
                          "GpuIndexFlatIP.search": parameters(faiss.GpuIndexFlatIP.search)}
    if told["cuvs"]:
        told["cagra"] = defaults(faiss.GpuIndexCagraConfig)
        asked = faiss.SearchParametersCagra(itopk_size=96, search_width=2)
        asked.sel = faiss.IDSelectorBitmap(np.packbits(np.ones(2000, dtype=bool), bitorder="little"))
        told["asked"] = [asked.itopk_size, asked.search_width, asked.sel.is_member(1999), asked.sel.is_member(2000)]
        told["search"] = defaults(faiss.SearchParametersCagra)
        told["signatures"]["GpuIndexCagra.train"] = parameters(faiss.GpuIndexCagra.train)
        told["signatures"]["GpuIndexCagra.search"] = parameters(faiss.GpuIndexCagra.search)
        told["types"] = [faiss.Float32, faiss.Float16]
        told["half"] = [hasattr(faiss.GpuIndexCagra, name) for name in ("train_ex", "search_ex")]
    # The build serves the CPU as well.
    Verbs.gpu = None
    index = faiss_index.index_of(Verbs(), vectors, Approximate(ef_construction=40))
    told["nearest"] = [index.kind, index.nearest(rows[:5], 1, None, 1)[:, 0].tolist()]
    print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """What a real build for GPUs says of itself, asked in a process of its own."""
    folders = os.environ.get("FANRANK_FAISS_GPU", "")
    if not folders:
        faiss = pytest.importorskip("faiss", reason="faiss is not installed")
        if not hasattr(faiss, "GpuIndexFlatIP"):
            pytest.skip("faiss is a build for the CPU; FANRANK_FAISS_GPU names a folder with another")
    paths = [*filter(None, folders.split(os.pathsep)), *(path for path in sys.path if path)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROBE)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_the_real_build_takes_the_calls(real: dict[str, Any]) -> None:
    assert tuple(map(int, real["version"].split(".")[:2])) >= (1, 14)
    assert real["kind"] == ("cagra" if real["cuvs"] else "flat")
    assert set(real["errors"]) == {"FlatIndex", *(["CagraIndex"] if real["cuvs"] else [])}
    if not real["gpus"]:
        # A call with wrong arguments would be refused before: SWIG tells overloads apart by them.
        assert all("Invalid GPU device 0" in error for error in real["errors"].values())
    assert real["nearest"] == ["hnsw", list(range(5))]
    if real["cuvs"]:
        assert real["half"] == [True, True]
        assert real["asked"] == [96, 2, True, False]


def test_the_stand_in_is_like_the_real_build(real: dict[str, Any]) -> None:
    faiss = GpuFaiss()
    pairs = [("flat", gpu_faiss.FlatConfig)]
    if real["cuvs"]:
        pairs += [("cagra", gpu_faiss.CagraConfig), ("search", gpu_faiss.CagraSearch)]
        assert real["types"] == [faiss.Float32, faiss.Float16]
        own = real["cagra"]["graph_degree"], real["cagra"]["intermediate_graph_degree"]
        kept = real["search"]["itopk_size"], real["search"]["search_width"]
        assert own == (DEFAULT.graph_degree, DEFAULT.intermediate_degree)
        assert kept == (DEFAULT.itopk_size, DEFAULT.search_width)
    for name, kind in pairs:
        assert {key: value for key, value in kind.known.items() if key != "sel"}.items() <= real[name].items()
    for name, theirs in real["signatures"].items():
        owner, method = name.split(".")
        ours = inspect.signature(getattr(getattr(faiss, owner), method)).parameters
        assert {key: [str(value.kind), repr(value.default)] for key, value in ours.items()} == theirs


def test_a_folder_is_what_the_variable_names(tmp_path: Path) -> None:
    """The probe fails where it should: a module that has none of the calls."""
    (tmp_path / "faiss.py").write_text("__version__ = '1.15.1'\ndef get_num_gpus():\n    return 0\n")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROBE)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "GpuIndexFlatConfig" in done.stderr or "GpuResources" in done.stderr
