"""The weight of a fusion, fitted with each group left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.fuse.alpha import ALPHAS, fit_alpha, folds


def best_row(rows: list[list[float]], queries: list[int]) -> int:
    """The first row with the largest sum over these queries, rounded once."""
    sums = [float(sum((Fraction(row[query]) for query in queries), Fraction(0))) for row in rows]
    return sums.index(max(sums))


tables = st.integers(2, 12).flatmap(
    lambda queries: st.tuples(
        st.lists(
            st.lists(
                st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0.0, 1.0)), min_size=queries, max_size=queries
            ),
            min_size=3,
            max_size=3,
        ),
        st.lists(st.sampled_from(["a", "b", 3, ("c", 1)]), min_size=queries, max_size=queries).filter(
            lambda groups: len(set(groups)) > 1
        ),
    )
)


@settings(max_examples=40)
@given(tables)
def test_the_oracle_agrees(case: tuple[list[list[float]], list[Hashable]]) -> None:
    rows, groups = case
    grid = [0.0, 0.3, 1.0]
    fit = fit_alpha(rows, groups, grid)
    everyone = list(range(len(groups)))
    assert list(fit.chosen) == list(dict.fromkeys(groups))
    for query, group in enumerate(groups):
        row = best_row(rows, [other for other in everyone if groups[other] != group])
        assert fit.chosen[group] == grid[row]
        assert fit.values[query] == rows[row][query]
    assert fit.best == grid[best_row(rows, everyone)]
    exact = [float(sum((Fraction(value) for value in row), Fraction(0))) / len(row) for row in rows]
    assert fit.curve.tolist() == exact
    assert fit.mean == float(sum((Fraction(value) for value in fit.values.tolist()), Fraction(0))) / len(groups)
    json.dumps(fit.to_dict())


def test_the_grid() -> None:
    """SPEC D004: 21 values, each the number as written."""
    assert len(ALPHAS) == 21
    assert [f"{alpha:g}" for alpha in ALPHAS[:4]] == ["0", "0.05", "0.1", "0.15"]
    assert all(alpha == float(f"{alpha:.2f}") for alpha in ALPHAS)
    assert (ALPHAS[8], ALPHAS[12], ALPHAS[20]) == (0.40, 0.60, 1.0)
    assert np.allclose(np.diff(ALPHAS), 0.05)


def test_equal_alphas_give_the_smallest() -> None:
    # .1 ten times over and 1 once are equal to the last bit only if rounded once; in any order of the queries.
    row = np.array([0.1] * 6 + [0.7, 0.2, 0.3] * 2)
    random = np.random.default_rng(0)
    groups = ["a"] * 12 + ["b"] * 12
    for _ in range(20):
        values = np.stack([np.concatenate([random.permutation(row) for _ in range(2)]) for _ in range(5)])
        fit = fit_alpha(values, groups, [0.0, 0.1, 0.2, 0.3, 0.4])
        assert fit.best == 0.0
        assert set(fit.chosen.values()) == {0.0}


def test_folds() -> None:
    """SPEC R12: five at random, seeded, as equal as they can be."""
    for queries, count in ((150, 5), (7, 5), (2, 2), (13, 13)):
        numbers = folds(queries, count)
        sizes = Counter(numbers)
        assert set(sizes) == set(range(count))
        assert max(sizes.values()) - min(sizes.values()) <= 1
        assert all(type(number) is int for number in numbers)
    assert folds(150) == folds(150, 5, 0) != folds(150, 5, 1)
    assert folds(150) != sorted(folds(150)) != [query % 5 for query in range(150)]
    values = np.random.default_rng(1).random((21, 150))
    assert len(fit_alpha(values, folds(150)).chosen) == 5


@pytest.mark.parametrize(("queries", "count"), [(5, 1), (5, 6), (0, 2), (1, 2)])
def test_folds_that_cannot_be_are_declined(queries: int, count: int) -> None:
    with pytest.raises(ParameterError, match="folds"):
        folds(queries, count)


@pytest.mark.parametrize(
    ("values", "groups", "alphas", "message"),
    [
        ([[1.0, 0.0]], ["a", "a"], [0.5], r"two groups or more, not 1: .*folds"),
        (np.zeros((1, 0)), [], [0.5], "two groups or more, not 0"),
        ([[1.0, 0.0]], ["a", "b"], [0.0, 1.0], r"here \(2, 2\), not \(1, 2\)"),
        ([1.0, 0.0], ["a", "b"], [0.0, 1.0], r"not \(2,\)"),
        ([[1.0, np.nan]], ["a", "b"], [0.5], "the values must be finite"),
        ([[1.0, 0.0]] * 2, ["a", "b"], [0.5, 0.5], "ascend"),
        ([[1.0, 0.0]] * 2, ["a", "b"], [1.0, 0.0], "ascend"),
        ([[1.0, 0.0]], ["a", "b"], [np.inf], "finite"),
        (np.zeros((0, 2)), ["a", "b"], [], "alphas"),
    ],
)
def test_bad_input_is_declined(values: object, groups: list[str], alphas: list[float], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        fit_alpha(np.asarray(values), groups, alphas)
