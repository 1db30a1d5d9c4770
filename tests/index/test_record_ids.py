"""Document numbers to record ids, few and many, over one segment and over several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import borders

from fanrank.engine.index.columns import Strings
from fanrank.engine.index.record_ids import RecordIds

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


def joined(segments: list[list[str]]) -> list[str]:
    return [name for segment in segments for name in segment]


@given(
    st.lists(st.lists(names, min_size=1, max_size=6), max_size=4),
    st.lists(st.integers(0, 1000), max_size=12),
    st.integers(1, 3),
    st.sampled_from([0, 3, 64]),
)
def test_ids_are_those_of_the_documents(segments: list[list[str]], drawn: list[int], width: int, listed: int) -> None:
    known = joined(segments)
    numbers = [number % (len(known) + 1) - 1 for number in drawn][: len(drawn) // width * width]
    documents = np.array(numbers, dtype=np.int64).reshape(-1, width)
    with borders.shrunken(LISTED=listed):
        found = RecordIds([Strings.of(segment) for segment in segments])(documents)
    assert (found.shape, found.dtype) == (documents.shape, object)
    assert found.ravel().tolist() == [None if number < 0 else known[number] for number in numbers]
    assert {*map(type, found.ravel().tolist())} <= {str, type(None)}


@pytest.mark.parametrize("segments", [[], [["a"]], [["a"], ["bé"]]])
@pytest.mark.parametrize("listed", [0, 64])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 2)])
def test_padding_alone(segments: list[list[str]], listed: int, shape: tuple[int, ...]) -> None:
    with borders.shrunken(LISTED=listed):
        found = RecordIds([Strings.of(segment) for segment in segments])(np.full(shape, -1, dtype=np.int64))
    assert found.shape == shape
    assert all(name is None for name in found.ravel().tolist())


def test_a_column_may_be_a_window_of_a_larger_one() -> None:
    whole = Strings.of(["aa", "b", "cé", "ddd"])
    window = Strings(whole.block, whole.offsets[1:])
    for listed in (0, 64):
        with borders.shrunken(LISTED=listed):
            assert RecordIds([window])(np.array([2, -1, 0])).tolist() == ["ddd", None, "b"]
            assert RecordIds([window, whole])(np.array([3, -1, 2, 1])).tolist() == ["aa", None, "ddd", "cé"]


def test_all_queries_over_a_snapshot_share_the_ids() -> None:
    ids = RecordIds([Strings.of(["a", "b"])])
    assert ids.slice(3, 5)(np.array([1])).tolist() == ["b"]
