"""Confidences against plain loops, and the logarithm they use."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.engine.route.confidence import CONFIDENCES, logarithm

NAMES = list(CONFIDENCES)
# Scores as BM25 has them: multiples of 2**-18, with ties, zeros, and the negative ones of `robertson`.
SCORE = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0 + 2.0**-18, -0.5]), st.integers(-100, 10_000_000).map(lambda n: n / 2.0**18)
)
ROW = st.lists(SCORE, max_size=12).map(lambda row: sorted(row, reverse=True))


def plain(name: str, row: list[float]) -> float:
    """The definitions (SPEC A075, A084, X04) in plain loops; NaN where there is none."""
    row = [max(score, 0.0) for score in row]
    if len(row) < 2 or row[0] <= 0.0:
        return math.nan
    if name == "margin":
        return (row[0] - row[1]) / row[0]
    total = 0.0
    for score in row:
        total += score
    if name == "fraction":
        return row[0] / total
    spread = 0.0
    for score in row:
        if score > 0.0:
            spread -= score / total * math.log(score / total)
    return 1.0 - spread / math.log(len(row))


def padded(rows: list[list[float]], width: int) -> tuple[np.ndarray, np.ndarray]:
    scores = np.full((len(rows), width), -np.inf)
    for query, row in enumerate(rows):
        scores[query, : len(row)] = row
    return scores, np.array([len(row) for row in rows], dtype=np.int64)


@settings(max_examples=40)
@given(st.lists(ROW, max_size=6), st.integers(12, 20))
def test_each_is_its_definition(rows: list[list[float]], width: int) -> None:
    scores, counts = padded(rows, width)
    for name, own in CONFIDENCES.items():
        found = own(scores, counts)
        assert found.dtype == np.float64
        expected = np.array([plain(name, row) for row in rows], dtype=np.float64)
        if name == "entropy":
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        else:
            np.testing.assert_array_equal(found, expected)
        known = found[~np.isnan(found)]
        assert ((known >= 0.0) & (known <= 1.0)).all()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(st.lists(ROW, min_size=1, max_size=6), st.integers(0, 30))
def test_neither_batch_nor_padding_moves_a_bit(name: str, rows: list[list[float]], more: int) -> None:
    own = CONFIDENCES[name]
    together = own(*padded(rows, 12 + more))
    alone = np.array([own(*padded([row], len(row)))[0] for row in rows])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_compare_is_no_confidence(name: str) -> None:
    rows = [[], [3.0], [0.0, 0.0], [-1.0, -2.0]]
    assert np.isnan(CONFIDENCES[name](*padded(rows, 4))).all()
    assert np.isnan(CONFIDENCES[name](np.array([[3.0]]), np.array([7]))).all()  # only one of them was handed over
    assert CONFIDENCES[name](np.empty((0, 4)), np.empty(0, np.int64)).shape == (0,)
    assert np.isnan(CONFIDENCES[name](np.empty((1, 0)), np.array([2]))).all()


def test_more_matched_than_handed_over() -> None:
    row = [4.0, 2.0, 1.0]
    for name, own in CONFIDENCES.items():
        assert own(np.array([row]), np.array([50]))[0] == pytest.approx(plain(name, row), abs=1e-15)


@given(st.lists(st.floats(5e-324, 1.7e308, allow_subnormal=True), min_size=1))
def test_the_logarithm(values: list[float]) -> None:
    found = logarithm(np.array(values))
    for value, own in zip(values, found, strict=True):
        assert own == pytest.approx(math.log(value), rel=1e-15, abs=0.0)


def test_the_logarithm_near_one() -> None:
    values = 1.0 + np.arange(-1000, 1001) * 2.0**-50
    np.testing.assert_allclose(logarithm(values), [math.log(value) for value in values], rtol=1e-15, atol=0)
    assert logarithm(np.array([1.0]))[0] == 0.0
