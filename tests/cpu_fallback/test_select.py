"""The k best of a row are those of a plain sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.cpu_fallback.select import (
    CONTIGUOUS_GROUP,
    GROUPS_PER_K,
    MIN_GROUPS,
    NO_KEY,
    best_narrow,
    best_wide,
    select_candidates,
    unpack,
)


def plain(scores: np.ndarray, k: int, threshold: int) -> list[tuple[int, int]]:
    pairs = [(-int(score), column) for column, score in enumerate(scores) if score >= threshold]
    return [(column, -score) for score, column in sorted(pairs)[:k]]


def selected(scores: np.ndarray, k: int, thresholds: np.ndarray) -> list[list[tuple[int, int]]]:
    row, column, score = select_candidates(scores, k, thresholds)
    assert (np.diff(row) >= 0).all()
    keys = best_narrow(row, column, score, len(scores), k)
    best_scores, best_columns = unpack(keys)
    shuffled = np.random.default_rng(k).permutation(len(row))
    wide = best_wide(row[shuffled], column[shuffled], score[shuffled], len(scores), k)
    rows = [
        [(int(c), int(s)) for c, s, key in zip(best_columns[r], best_scores[r], keys[r], strict=True) if key != NO_KEY]
        for r in range(len(scores))
    ]
    assert rows == [
        [pair for pair in zip(columns.tolist(), values.tolist(), strict=True) if pair[0] >= 0]
        for columns, values in zip(*wide, strict=True)
    ]
    return rows


BORDER = MIN_GROUPS * CONTIGUOUS_GROUP


@pytest.mark.parametrize(
    ("width", "k"),
    [
        (1, 1),
        (100, 100),
        (101, 100),
        (2 * MIN_GROUPS - 1, 10),
        (2 * MIN_GROUPS, 10),
        (2 * MIN_GROUPS + 1, 10),
        (2 * GROUPS_PER_K * 1024, 1024),
        (5183, 1000),
        (BORDER - 1, 10),
        (BORDER, 10),
        (BORDER + 511, 64),
        (BORDER + 513, 65),
    ],
)
@pytest.mark.parametrize("largest", [1, 7, 2**31 - 1])
def test_every_layout(width: int, k: int, largest: int) -> None:
    rng = np.random.default_rng(width + k)
    scores = rng.integers(0, largest, (3, width), endpoint=True).astype(np.int32)
    scores[0, rng.random(width) < 0.9] = 0
    scores[2] = largest  # every document ties
    thresholds = np.array([1, 1, 1])
    assert selected(scores, k, thresholds) == [plain(row, k, 1) for row in scores]


@pytest.mark.parametrize("width", [2 * MIN_GROUPS + 1, 3 * MIN_GROUPS - 1, 5183, BORDER + 511])
@pytest.mark.parametrize("k", [1, 4, 10])
def test_few_scores_at_both_ends(width: int, k: int) -> None:
    """So few that only their groups are read again, and the columns beyond the last whole group."""
    scores = np.zeros((2, width), dtype=np.int32)
    scores[0, -3:] = [5, 9, 5]
    scores[1, [0, 1, -1]] = [3, 8, 8]
    assert selected(scores, k, np.array([1, 1])) == [plain(row, k, 1) for row in scores]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(-5, 5), min_size=12, max_size=12), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(-5, 5),
)
def test_signed_scores_and_floors(rows: list[list[int]], k: int, threshold: int) -> None:
    scores = np.array(rows, dtype=np.int32)
    assert selected(scores, k, np.full(len(rows), threshold)) == [plain(row, k, threshold) for row in scores]
