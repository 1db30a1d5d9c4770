"""The dense verbs of every backend against loops over integers: ids, scores and order, bit for bit (SPEC D001)."""

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

from fanrank.cpu_fallback import dense as numpy_dense
from fanrank.engine.arrays import offsets_of
from fanrank.engine.errors import DeviceMemoryError, ParameterError
from fanrank.engine.vectors.interaction import KINDS, Interaction
from fanrank.engine.vectors.vectors import Vectors, normalize
from fanrank.engine.vectors.verbs import DenseVerbs, Mode, Stretch, document_vectors

os.environ.setdefault("TRITON_INTERPRET", "1")

# Blocks of a few rows, and none of the short cuts but where a test means it.
SMALL = {
    **{"vectors.BLOCK_VALUES": 7, "cpu_dense.SCORES": 12, "COPIED_SCORES": 10, "PENDING": 5},
    **{"cpu_dense.MIN_GROUPS": 2, "cpu_dense.QUERIES": 2},
}


@contextmanager
def numpy_with(values: dict[str, int] | None = None) -> Iterator[DenseVerbs]:
    with borders.shrunken(values):
        yield numpy_dense.verbs


@contextmanager
def on_device(name: str, small: bool) -> Iterator[DenseVerbs]:
    if name == "triton":
        from fanrank.kernels.triton import segment_reduce as kernel

        if isinstance(kernel._segment_reduce, triton.runtime.JITFunction):
            pytest.skip("triton was imported without TRITON_INTERPRET=1")
    from fanrank.kernels import dense

    with borders.shrunken({"CPU_SCORES": 12, "CPU_BLOCK_VALUES": 7, "device_dense.QUERIES": 2} if small else None):
        yield dense.dense_verbs(name)


PATHS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: numpy_with(),
    "numpy, small blocks, float64 at once": lambda: numpy_with({**SMALL, "cpu_dense.DENSE": 1 << 30}),
    "numpy, small blocks, float32 first": lambda: numpy_with({**SMALL, "cpu_dense.DENSE": 0}),
    "numpy, masked": lambda: numpy_with({"cpu_dense.DENSE": 0, "GATHER": 1 << 30}),
    "numpy, gathered": lambda: numpy_with({**SMALL, "cpu_dense.DENSE": 0, "GATHER": 0}),
    "torch": lambda: on_device("cuda-host", False),
    "torch, small blocks": lambda: on_device("cuda-host", True),
    "triton": lambda: on_device("triton", False),
}
paths = pytest.mark.parametrize("path", PATHS)
most_paths = pytest.mark.parametrize(
    "path", [pytest.param(name, marks=pytest.mark.extended) if name == "triton" else name for name in PATHS]
)


def codes_of(row: np.ndarray) -> tuple[list[int], float]:
    step = max(abs(float(value)) for value in row) / 127.0
    return [round(float(value) / step) if step else 0 for value in row], step


def cosine(query: np.ndarray, row: np.ndarray, mode: str) -> float:
    """Of integers: components are multiples of 2**-24."""
    if mode == "int8":
        (ours, step), (theirs, other) = codes_of(query), codes_of(row)
        return (float(sum(a * b for a, b in zip(ours, theirs, strict=True))) * step) * other
    wholes = [[int(float(value) * 2**24) for value in one] for one in (query, row)]
    return sum(a * b for a, b in zip(*wholes, strict=True)) / 2**48


def plain_score(query: np.ndarray, rows: np.ndarray, interaction: Interaction, mode: str) -> float:
    if interaction.kind == "early" and len(rows) > 1:
        rows = Vectors(rows, np.array([0, len(rows)])).centroids.matrix
    cosines = [cosine(query, row, mode) for row in rows]
    if interaction.kind in ("early", "late"):
        return max(cosines)
    if interaction.kind == "top":
        largest = sorted(cosines, reverse=True)[: interaction.rows]
        total = 0.0
        for value in largest:
            total += value
        return total / len(largest)
    terms = [math.exp(interaction.beta * (value - max(cosines))) for value in cosines]
    return max(cosines) + math.log(sum(terms) / (len(terms) if interaction.kind == "lme" else 1)) / interaction.beta


def plain_scores(
    query: np.ndarray, stretches: Sequence[Stretch], interaction: Interaction, mode: str
) -> dict[int, float]:
    """Of every document that has a vector."""
    found = {}
    for stretch in stretches:
        offsets = stretch.vectors.offsets.tolist()
        for document, (start, stop) in enumerate(pairwise(offsets)):
            if stop > start:
                rows = stretch.vectors.matrix[start:stop]
                found[stretch.first + document] = plain_score(query, rows, interaction, mode)
    return found


def passing(stretches: Sequence[Stretch]) -> set[int]:
    return {
        stretch.first + document
        for stretch in stretches
        for document in range(len(stretch.vectors))
        if stretch.passing is None or stretch.passing[document]
    }


def check(
    verbs: DenseVerbs, queries: np.ndarray, stretches: Sequence[Stretch], k: int, interaction: Interaction, mode: Mode
) -> None:
    scores, documents, counts = verbs.best(queries, stretches, k, interaction, mode)
    assert (scores.dtype, documents.dtype, counts.dtype) == (np.float64, np.int64, np.int32)
    assert scores.shape == documents.shape == (len(queries), k)
    allowed = passing(stretches)
    asked = sorted(
        document for stretch in stretches for document in range(stretch.first, stretch.first + len(stretch.vectors))
    )
    asked += [-1, 10**6]
    given_documents = np.tile(np.array(asked, dtype=np.int64), len(queries))
    offsets = offsets_of([len(asked)] * len(queries))
    given_scores = verbs.scores_of(queries, stretches, offsets, given_documents, interaction, mode)
    assert given_scores.dtype == np.float64
    for number, query in enumerate(queries):
        expected = plain_scores(query, stretches, interaction, mode)
        own = dict(zip(asked, given_scores[offsets[number] : offsets[number + 1]].tolist(), strict=True))
        for document, score in own.items():
            if document not in expected:
                assert score == -math.inf
            elif interaction.exact:
                assert score == expected[document]
            else:
                rows = max(int(np.diff(stretch.vectors.offsets).max(initial=0)) for stretch in stretches)
                assert abs(score - expected[document]) <= 2 * interaction.rounding(rows)
        # A backend ranks by its own scores; where the interaction is exact they are the oracle's.
        ranked = sorted((-own[document], document) for document in expected if document in allowed)[:k]
        assert counts[number] == len(ranked)
        assert documents[number].tolist() == [document for _, document in ranked] + [-1] * (k - len(ranked))
        assert scores[number].tolist() == [-score for score, _ in ranked] + [-math.inf] * (k - len(ranked))
        assert not np.signbit(scores[number][scores[number] == 0]).any()


def rows_of(rng: np.random.Generator, number: int, dimension: int, kind: str) -> np.ndarray:
    """Rows at random, of few directions (ties), or so near each other that float32 cannot tell them apart."""
    if kind == "random":
        return normalize(rng.standard_normal((number, dimension)) + 1e-3)
    if kind == "few":
        values = rng.integers(-1, 2, size=(number, dimension)).astype(np.float64)
        values[~values.any(axis=1), 0] = 1.0
        return normalize(values)
    base = np.repeat(normalize(np.random.default_rng(7).standard_normal((1, dimension)) + 1e-3), number, axis=0)
    place = rng.integers(0, dimension, size=number)
    ulps = rng.integers(-1, 2, size=number).astype(np.int16)
    base.view(np.int16)[np.arange(number), place] += ulps
    return base


def stretches_of(rng: np.random.Generator, sizes: Sequence[int], dimension: int, kind: str, most: int) -> list[Stretch]:
    found, first = [], int(rng.integers(0, 3))
    for size in sizes:
        counts = rng.integers(0, most + 1, size=size) if most != 1 else np.ones(size, dtype=np.int64)
        mask = {0: None, 1: rng.random(size) < 0.5, 2: rng.random(size) < 0.1}[int(rng.integers(0, 3))]
        vectors = Vectors(rows_of(rng, int(counts.sum()), dimension, kind), offsets_of(counts))
        found.append(Stretch(vectors, first, mask))
        first += size + int(rng.integers(0, 3))
    # Segments need not come in the order of their numbers.
    rng.shuffle(found)  # type: ignore[arg-type]
    return found


INTERACTIONS = st.builds(
    Interaction,
    kind=st.sampled_from(KINDS),
    rows=st.sampled_from([1, 2, 3, 9]),
    beta=st.sampled_from([1e-3, 10.0, 900.0]),
)


@paths
@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 1 << 32),
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 6, 7, 8, 13]), max_size=3),
    dimension=st.sampled_from([1, 2, 3, 16]),
    kind=st.sampled_from(["random", "few", "near"]),
    most=st.sampled_from([0, 1, 2, 9]),
    batch=st.integers(0, 4),
    k=st.sampled_from([0, 1, 2, 5, 40]),
    interaction=INTERACTIONS,
    mode=st.sampled_from(["exact", "int8"]),
)
def test_best_and_scores(
    path: str,
    seed: int,
    sizes: list[int],
    dimension: int,
    kind: str,
    most: int,
    batch: int,
    k: int,
    interaction: Interaction,
    mode: Mode,
) -> None:
    rng = np.random.default_rng(seed)
    queries = rows_of(rng, batch, dimension, kind)
    with PATHS[path]() as verbs:
        check(verbs, queries, stretches_of(rng, sizes, dimension, kind, most), k, interaction, mode)


@most_paths
@pytest.mark.parametrize("mode", ["exact", "int8"])
@pytest.mark.parametrize(("dimension", "kind"), [(384, "near"), (1041, "equal")])
def test_dimensions(path: str, mode: Mode, dimension: int, kind: str) -> None:
    """Of 1,041 equal components the codes are 127 all, and their sum is the first that float32 cannot hold."""
    rng = np.random.default_rng(dimension)
    if kind == "equal":
        rows = normalize(np.ones((12, dimension)) * np.where(np.arange(12) % 3, 1.0, -1.0)[:, None])
        queries = normalize(np.ones((2, dimension)))
        assert 127 * 127 * dimension > 2**24
    else:
        rows, queries = rows_of(rng, 12, dimension, kind), rows_of(rng, 2, dimension, kind)
    stretches = [Stretch(Vectors(rows[:8], np.arange(9)), 0), Stretch(Vectors(rows[8:], offsets_of([3, 0, 1])), 8)]
    with PATHS[path]() as verbs:
        check(verbs, queries, stretches, 3, Interaction(), mode)
        check(verbs, queries, stretches, 12, Interaction("top", rows=2), mode)


@paths
@pytest.mark.parametrize("number", [12, 13])
def test_borders_of_blocks(path: str, number: int) -> None:
    """12 scores are a small block of numpy's, 7 numbers one of rows."""
    rng = np.random.default_rng(number)
    for counts in ([1] * number, [2] * number, [0] * 5 + [number] + [1] * 3):
        vectors = Vectors(rows_of(rng, sum(counts), 3, "few"), offsets_of(counts))
        with PATHS[path]() as verbs:
            for k in (1, 4, number, number + 1):
                check(verbs, rows_of(rng, 1, 3, "few"), [Stretch(vectors, 0)], k, Interaction(), "exact")


@most_paths
@pytest.mark.parametrize("kind", ["lse", "lme"])
def test_a_query_alone_and_inside_a_batch(path: str, kind: Literal["lse", "lme"]) -> None:
    """Of interactions that are exact, each query of a batch is compared with the oracle."""
    rng = np.random.default_rng(11)
    interaction = Interaction(kind)
    queries = rows_of(rng, 4, 24, "random")
    stretches = stretches_of(rng, [40, 9], 24, "random", 4)
    with PATHS[path]() as verbs:
        whole = verbs.best(queries, stretches, 6, interaction, "exact")
        for number in range(len(queries)):
            alone = verbs.best(queries[number : number + 1], stretches, 6, interaction, "exact")
            assert alone[1].tolist() == whole[1][number : number + 1].tolist()
            if path.startswith("numpy"):
                assert alone[0].tobytes() == whole[0][number : number + 1].tobytes()
            else:
                np.testing.assert_allclose(alone[0], whole[0][number : number + 1], atol=2 * interaction.rounding(4))


@most_paths
def test_many_documents(path: str) -> None:
    """More than a thousand, so that numpy's groups of maxima hold several; against one sort."""
    rng = np.random.default_rng(2)
    rows = normalize(rng.standard_normal((1100, 16)))
    rows[700:720] = rows[3]
    queries = np.concatenate([rows[3:4], normalize(rng.standard_normal((2, 16)))])
    wide = rows.astype(np.float64)
    mask = rng.random(1100) < 0.05
    with PATHS[path]() as verbs:
        for own in (None, ~mask, mask):
            scores, documents, _ = verbs.best(
                queries, [Stretch(Vectors(rows, np.arange(1101)), 10, own)], 25, Interaction(), "exact"
            )
            for number, query in enumerate(queries.astype(np.float64)):
                expected = wide @ query
                allowed = np.flatnonzero(np.ones(1100, dtype=bool) if own is None else own)
                order = allowed[np.lexsort((allowed, -expected[allowed]))][:25]
                assert documents[number].tolist() == (order + 10).tolist()
                assert scores[number].tolist() == expected[order].tolist()


def test_float32_alone_would_lose_hits() -> None:
    """The bound matters: rows of the same components in other orders tie exactly, but not in float32."""
    rng = np.random.default_rng(4)
    base = normalize(rng.standard_normal((1, 384)))[0]
    rows = np.stack([rng.permutation(base) for _ in range(2000)])
    stretches = [Stretch(Vectors(rows, np.arange(2001)), 0)]
    queries = normalize(np.ones((2, 384)))
    right = numpy_dense.verbs.best(queries, stretches, 20, Interaction(), "exact")[1]
    assert right.tolist() == [list(range(20))] * 2
    with mock.patch.object(numpy_dense, "_error", return_value=0.0):
        wrong = numpy_dense.verbs.best(queries, stretches, 20, Interaction(), "exact")[1]
    assert right.tolist() != wrong.tolist()


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1 << 32),
    dimension=st.sampled_from([1, 3, 384, 1041]),
    kind=st.sampled_from(["random", "few", "near"]),
    mode=st.sampled_from(["exact", "int8"]),
)
def test_the_bound_holds(seed: int, dimension: int, kind: str, mode: Mode) -> None:
    rng = np.random.default_rng(seed)
    vectors = Vectors(rows_of(rng, 9, dimension, kind), np.arange(10))
    asked = numpy_dense._Queries(rows_of(rng, 3, dimension, kind))
    error = numpy_dense._error(asked, vectors, mode, Interaction())
    exact = numpy_dense._products(asked, vectors, slice(0, 9), mode, exact=True)
    approximate = numpy_dense._products(asked, vectors, slice(0, 9), mode, exact=False)
    assert approximate.dtype == np.float32
    assert float(np.abs(exact - approximate).max()) <= error < 0.002


def test_document_vectors() -> None:
    rng = np.random.default_rng(0)
    rows = rows_of(rng, 6, 5, "random")
    stretches = [Stretch(Vectors(rows[:4], offsets_of([1, 0, 3])), 2), Stretch(Vectors(rows[4:], np.arange(3)), 10)]
    found = document_vectors(stretches, np.array([11, -1, 3, 2, 4, 9, 2]))
    assert found.dtype == np.float16
    mean = stretches[0].vectors.centroids.matrix[1]
    nothing = np.zeros(5, dtype=np.float16)
    assert found.tolist() == np.stack([rows[5], nothing, nothing, rows[0], mean, nothing, rows[0]]).tolist()
    assert document_vectors(stretches, np.zeros(0, dtype=np.int64)).shape == (0, 5)
    with pytest.raises(ValueError, match="stretch"):
        document_vectors([], np.array([1]))


@paths
def test_an_unknown_mode_is_refused(path: str) -> None:
    queries = normalize(np.ones((1, 2)))
    with PATHS[path]() as verbs:
        with pytest.raises(ParameterError, match="mode"):
            verbs.best(queries, [], 1, Interaction(), "fast")  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="mode"):
            verbs.scores_of(
                queries, [], np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64), Interaction(), "fast"
            )  # type: ignore[arg-type]


def test_a_device_has_a_limit() -> None:
    from fanrank.kernels.dense import TorchDense, dense_verbs

    rows = normalize(np.random.default_rng(0).standard_normal((10, 8)))
    verbs = dense_verbs("cuda-host", rows.nbytes + 10 * (8 + 8) - 1)
    assert isinstance(verbs, TorchDense)
    stretch = Stretch(Vectors(rows, np.arange(11)), 0)
    verbs.best(rows[:1], [stretch], 1, Interaction(), "exact")
    verbs.best(rows[:1], [stretch], 1, Interaction(), "exact")
    assert verbs.bytes == rows.nbytes
    with pytest.raises(DeviceMemoryError, match="160 bytes are needed on cpu"):
        verbs.best(rows[:1], [stretch], 1, Interaction(), "int8")
    with pytest.raises(DeviceMemoryError, match="160 bytes"):
        verbs.best(rows[:1], [Stretch(Vectors(rows, np.arange(11)), 10)], 1, Interaction(), "exact")
    del stretch
    assert verbs.bytes == 0


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 7, 8, 9, 1041]))
def test_int8_products_as_on_a_gpu(seed: int, queries: int, rows: int, dimension: int) -> None:
    """The padding to lengths that cuBLAS takes, through the same operation on the CPU, which takes any."""
    from fanrank.kernels.dense import code_products

    plain = torch._int_mm

    def as_cublas(left: Any, right: Any) -> Any:
        # More than 16 rows, and multiples of 8 elsewhere; else torch raises on a GPU.
        assert left.shape[0] > 16
        assert left.shape[1] % 8 == right.shape[1] % 8 == 0
        return plain(left, right)

    rng = np.random.default_rng(seed)
    ours, theirs = (rng.integers(-127, 128, size=(n, dimension)).astype(np.int8) for n in (queries, rows))
    expected = ours.astype(np.int64) @ theirs.astype(np.int64).T
    for padded in (False, True, None):
        with mock.patch.object(torch, "_int_mm", as_cublas):
            found = code_products(torch.from_numpy(ours), torch.from_numpy(theirs), padded=padded)
        assert found.to(torch.int64).tolist() == expected.tolist()


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bits() -> None:
    from fanrank.kernels.dense import dense_verbs

    rng = np.random.default_rng(0)
    stretches = stretches_of(rng, [3000, 1, 800], 384, "random", 5)
    queries = rows_of(rng, 30, 384, "random")
    for name in ("cuda", "triton"):
        verbs = dense_verbs(name, gpu=torch.cuda.current_device())
        for mode in ("exact", "int8"):
            for kind in ("early", "late", "top"):
                interaction = Interaction(kind)  # type: ignore[arg-type]
                ours = verbs.best(queries, stretches, 50, interaction, mode)  # type: ignore[arg-type]
                theirs = numpy_dense.verbs.best(queries, stretches, 50, interaction, mode)  # type: ignore[arg-type]
                for own, other in zip(ours, theirs, strict=True):
                    np.testing.assert_array_equal(own, other)


def test_vectors_may_come_while_others_are_counted() -> None:
    from fanrank.kernels.dense import TorchDense, _Resident, torch

    dense = TorchDense(torch.device("cpu"), 1 << 30)
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            held = [Vectors(np.zeros((1, 8), dtype=np.float16), np.array([0, 1])) for _ in range(50)]
            for vectors in held:
                dense._held[vectors] = _Resident(torch.zeros(0))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(10_000):
            assert dense.account.taken == 0
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
