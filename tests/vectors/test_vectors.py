"""Vectors in half precision: what is exact about them, and what is made of them, against plain Python."""

import math
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

from fanrank.engine.arrays import offsets_of
from fanrank.engine.vectors.vectors import MAX_DIMENSION, Vectors, normalize, quantized, widen

DIMENSIONS = st.sampled_from([1, 2, 3, 7, 64, 384])


def rows_of(seed: int, rows: int, dimension: int) -> np.ndarray:
    """Of very different components, so that sums cancel and some are subnormal."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, dimension)) * 10.0 ** rng.integers(-6, 1, size=(rows, dimension))
    values[:, 0] += 1e-9
    return normalize(values)


@settings(max_examples=20)
@given(st.integers(0, 1 << 32), DIMENSIONS, st.randoms(use_true_random=False))
def test_a_sum_of_products_is_exact_in_any_order(seed: int, dimension: int, order: random.Random) -> None:
    left, right = rows_of(seed, 2, dimension)
    exact = sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(left, right, strict=True)), Fraction(0))
    products = [float(a) * float(b) for a, b in zip(left, right, strict=True)]
    for _ in range(5):
        order.shuffle(products)
        total = 0.0
        for product in products:
            total += product
        assert Fraction(total) == exact
    assert Fraction(float(left.astype(np.float64) @ right.astype(np.float64))) == exact


def test_the_bound_holds_at_the_largest_dimension() -> None:
    """Every length is at most 1 + 2**-8, and no sum of absolute products leaves the 53 bits."""
    rng = np.random.default_rng(0)
    for values in (rng.standard_normal((3, MAX_DIMENSION)), np.ones((1, MAX_DIMENSION)), np.eye(1, MAX_DIMENSION)):
        wide = normalize(values).astype(np.float64)
        assert (np.sqrt((wide * wide).sum(axis=1)) <= 1 + 2.0**-8).all()
        assert (np.abs(wide) @ np.abs(wide).T < 1.01).all()
        assert (wide * 2.0**24 == np.rint(wide * 2.0**24)).all()


@settings(max_examples=30)
@given(st.integers(0, 1 << 32), st.integers(1, 5), DIMENSIONS)
def test_normalized(seed: int, rows: int, dimension: int) -> None:
    values = np.random.default_rng(seed).standard_normal((rows, dimension)) * 1e3
    found = normalize(values)
    assert found.dtype == np.float16
    assert found.flags.c_contiguous
    for own, row in zip(found.tolist(), values.tolist(), strict=True):
        length = math.sqrt(sum(value * value for value in row))
        assert own == pytest.approx([value / length for value in row], rel=2.0**-10, abs=2.0**-24)
    # A row's vector depends on nothing but the row.
    again = normalize(np.asfortranarray(values))
    alone = np.concatenate([normalize(row[None]) for row in values])
    assert (found.tobytes(), found.tobytes()) == (again.tobytes(), alone.tobytes())


@pytest.mark.parametrize(
    ("given_rows", "message"),
    [
        ([[0.0, 0.0]], "length 0"),
        ([[1.0, math.nan]], "not finite"),
        ([[1.0, math.inf]], "not finite"),
        ([1.0, 2.0], "shape"),
        ([[]], "dimensions"),
        (np.ones((1, MAX_DIMENSION + 1)), "dimensions"),
        ([[1.0], [1.0, 2.0]], "one length"),
        ([["a"]], "numbers"),
        (np.array([[1j]]), "shape"),
        (None, "shape"),
    ],
)
def test_normalized_refuses(given_rows: object, message: str) -> None:
    with pytest.raises(ValueError, match=message), np.errstate(all="ignore"):
        normalize(given_rows)  # type: ignore[arg-type]


def test_widened_is_exact_for_every_number_below_two() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves) & (np.abs(halves) < 2)]
    expected = np.array([float(value) for value in halves], dtype=np.float32)
    np.testing.assert_array_equal(widen(halves).view(np.int32), expected.view(np.int32))
    out = np.full((3, 4), 7, dtype=np.float32)
    assert widen(halves[:12].reshape(3, 4), out=out) is out
    np.testing.assert_array_equal(out.ravel(), expected[:12])


def test_widened_where_subnormal_numbers_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = np.array([[2.0**-24, -(2.0**-15), 1.0]], dtype=np.float16)
    borders.shrink(monkeypatch, _SUBNORMAL=np.zeros(1, dtype=np.float32), _EXPONENTS=np.float32(0))
    assert widen(halves).tolist() == [[2.0**-24, -(2.0**-15), 1.0]]


@settings(max_examples=30)
@given(st.integers(0, 1 << 32), st.integers(0, 6), DIMENSIONS, st.sampled_from([1, 8, 1 << 20]))
def test_quantized(seed: int, rows: int, dimension: int, block: int) -> None:
    halves = rows_of(seed, rows, dimension)
    with pytest.MonkeyPatch.context() as patch:
        borders.shrink(patch, {"vectors.BLOCK_VALUES": block})
        codes, steps = quantized(halves)
    assert (codes.dtype, steps.dtype) == (np.int8, np.float64)
    for row, own, step in zip(halves.tolist(), codes.tolist(), steps.tolist(), strict=True):
        assert step == max(map(abs, row)) / 127.0
        assert own == [round(value / step) for value in row]


def plain_mean(rows: np.ndarray) -> list[float]:
    if len(rows) == 1:
        return [float(value) for value in rows[0]]
    sums = [float(sum((Fraction(float(row[i])) for row in rows), Fraction(0))) for i in range(rows.shape[1])]
    total = 0.0
    for value in sums:
        total += value * value
    length = math.sqrt(total)
    return [float(np.float16(value / length)) if length else float(rows[0][i]) for i, value in enumerate(sums)]


@settings(max_examples=30)
@given(st.integers(0, 1 << 32), st.lists(st.integers(0, 5), max_size=7), DIMENSIONS, st.sampled_from([1, 64, 1 << 20]))
def test_centroids(seed: int, counts: list[int], dimension: int, block: int) -> None:
    vectors = Vectors(rows_of(seed, sum(counts), dimension), offsets_of(counts))
    with pytest.MonkeyPatch.context() as patch:
        borders.shrink(patch, {"vectors.BLOCK_VALUES": block})
        means = vectors.centroids
    assert means.matrix.dtype == np.float16
    assert np.diff(means.offsets).tolist() == [int(count > 0) for count in counts]
    expected = [plain_mean(vectors.matrix[a:b]) for a, b in pairwise(vectors.offsets.tolist()) if b > a]
    assert means.matrix.tolist() == expected
    assert vectors.held.tolist() == [count > 0 for count in counts]
    assert vectors.single is all(count == 1 for count in counts)
    if vectors.single:
        assert means is vectors


def test_a_mean_of_zero_keeps_the_first_row() -> None:
    rows = normalize([[1.0, 2.0], [-1.0, -2.0]])
    assert Vectors(rows, np.array([0, 2])).centroids.matrix.tolist() == rows[:1].tolist()
