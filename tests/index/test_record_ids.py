"""Document numbers to record ids, few and many, over one segment and over several."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import borders

from fanrank.engine.index import record_ids
from fanrank.engine.index.columns import Strings
from fanrank.engine.index.record_ids import RecordIds
from fanrank.engine.settings import compiled_loops

COMPILED = [
    pytest.param(False, id="plain"),
    pytest.param(
        True, id="compiled", marks=pytest.mark.skipif(compiled_loops() is None, reason="the extension is not in use")
    ),
]

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


def make_ids(segments: list[list[str]] | list[Strings], compiled: bool) -> RecordIds:
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(record_ids, "compiled_loops", lambda: None)
        return RecordIds([one if isinstance(one, Strings) else Strings.of(one) for one in segments])


@pytest.mark.parametrize("compiled", COMPILED)
@given(
    st.lists(st.lists(names, min_size=1, max_size=6), max_size=4),
    st.lists(st.integers(0, 1000), max_size=12),
    st.integers(1, 3),
    st.sampled_from([0, 3, 64]),
)
def test_ids_are_those_of_the_documents(
    compiled: bool, segments: list[list[str]], drawn: list[int], width: int, listed: int
) -> None:
    known = [name for segment in segments for name in segment]
    numbers = [number % (len(known) + 1) - 1 for number in drawn][: len(drawn) // width * width]
    documents = np.array(numbers, dtype=np.int64).reshape(-1, width)
    with borders.shrunken(LISTED=listed):
        found = make_ids(segments, compiled)(documents)
    assert (found.shape, found.dtype) == (documents.shape, object)
    assert found.ravel().tolist() == [None if number < 0 else known[number] for number in numbers]
    assert {*map(type, found.ravel().tolist())} <= {str, type(None)}


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("listed", [0, 64])
def test_padding_alone_and_documents_that_lie_apart(compiled: bool, listed: int) -> None:
    segments: list[list[list[str]]] = [[], [["a"]], [["a"], ["bé"]]]
    with borders.shrunken(LISTED=listed):
        for own, shape in itertools.product(segments, [(0,), (0, 3), (3, 0), (2, 2)]):
            found = make_ids(own, compiled)(np.full(shape, -1, dtype=np.int64))
            assert found.tolist() == np.full(shape, None).tolist()
        ids, documents = make_ids([["a", "b"], ["c"]], compiled), np.array([[0, 1, 2], [2, -1, 1]])
        assert ids(documents[:, ::-1]).tolist() == [["c", "b", "a"], ["b", None, "c"]]
        assert ids(documents.T).tolist() == [["a", "c"], ["b", None], ["c", "b"]]
        assert ids.slice(3, 5)(np.array([1])).tolist() == ["b"]


@pytest.mark.skipif(compiled_loops() is None, reason="the extension is not in use")
def test_the_extension_reads_nothing_beyond_its_arrays() -> None:
    native: Any = compiled_loops()
    block, offsets = np.frombuffer(b"abc", dtype=np.uint8), np.array([0, 1, 3])
    ids, places = native.record_ids(((block, offsets),)), np.full(2, "old", dtype=object)

    def numbers(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    for documents in (numbers(0, 2), numbers(0, -2), numbers(0), numbers(0, 1, 1)):
        with pytest.raises(ValueError, match=r"no document|different sizes"):
            ids.fill(documents, places)
    for wrong in (places.tolist(), np.zeros(2), np.zeros(2, dtype=np.int64)):
        with pytest.raises((ValueError, TypeError, BufferError)):
            ids.fill(numbers(0, 1), wrong)
    for damaged in ([0, 4, 3], [0, 2, 1], [-1, 1, 3], [0, 1, 4]):
        with pytest.raises(ValueError, match="outside their block"):
            native.record_ids(((block, np.array(damaged)),)).fill(numbers(0, 1), places)
    with pytest.raises(UnicodeDecodeError):
        native.record_ids(((np.frombuffer(b"\xff", dtype=np.uint8), numbers(0, 1)),)).fill(numbers(0, 0), places)
    with pytest.raises(ValueError, match="at least one offset"):
        native.record_ids(((block, numbers()),))
    for malformed in (None, [], ((block,),), ((block, offsets.astype(np.int32)),)):
        with pytest.raises(ValueError, match=r"columns:|wrong type of numbers"):
            native.record_ids(malformed)
    ids.fill(numbers(1, -1), places)
    assert places.tolist() == ["bc", None]


@pytest.mark.skipif(compiled_loops() is None, reason="the extension is not in use")
def test_the_extension_keeps_no_reference_to_what_it_replaced() -> None:
    native: Any = compiled_loops()
    ids, old = native.record_ids(((np.frombuffer(b"abc", dtype=np.uint8), np.array([0, 3])),)), object()
    before = sys.getrefcount(old)
    places = np.full(3, old, dtype=object)
    ids.fill(np.array([0, -1, 0]), places)
    assert sys.getrefcount(old) == before
    assert [sys.getrefcount(places[0]) <= 3, places.tolist()] == [True, ["abc", None, "abc"]]
