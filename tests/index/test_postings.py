"""Postings by both paths, compiled and in numpy: the very same arrays, of whatever tokens and in whatever pieces."""

from __future__ import annotations

import itertools
import mmap
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

from fanrank.engine.index import postings
from fanrank.engine.index.postings import Part, Postings, join_postings, sort_tokens

pytest.importorskip("numba")

Tokens = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]

documents_of_terms = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=12)


def tokens_of(documents: list[list[int]]) -> Tokens:
    terms = np.array(list(itertools.chain.from_iterable(documents)), dtype=np.int32)
    return terms, np.repeat(np.arange(len(documents), dtype=np.int32), [len(own) for own in documents])


def plain(documents: list[list[int]]) -> dict[str, list[object]]:
    """The arrays by the docstring of engine/index/segment.py, one posting after another."""
    found = [
        (term, number, own.count(term), len(own))
        for term in sorted({term for own in documents for term in own})
        for number, own in enumerate(documents)
        if term in own
    ]
    impact_classes = sorted({(frequency, length) for _, _, frequency, length in found})
    terms = sorted({term for term, *_ in found})
    return {
        "terms": terms,
        "offsets": [sum(own[0] < term for own in found) for term in terms] + [len(found)],
        "documents": [number for _, number, _, _ in found],
        "impact_classes": [impact_classes.index((frequency, length)) for _, _, frequency, length in found],
        "class_frequencies": [[frequency for frequency, _ in impact_classes]],
        "class_lengths": [[length for _, length in impact_classes]],
        "lengths": [[len(own) for own in documents]],
    }


def assert_same(one: Postings, other: Postings) -> None:
    for (name, mine), theirs in zip(vars(one).items(), vars(other).values(), strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), name
        np.testing.assert_array_equal(mine, theirs, name)


@pytest.fixture(params=["compiled", "numpy"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    borders.shrink(monkeypatch, COMPILED_LEAST=0 if request.param == "compiled" else 1 << 60)
    if request.param == "numpy":
        monkeypatch.setattr(postings, "_compiled", lambda: None)
    return str(request.param)


@settings(deadline=None, max_examples=60)
@given(documents_of_terms, st.lists(st.integers(0, 12), max_size=4), st.sampled_from([1, 3, 1 << 20]))
def test_every_road_is_the_definition(documents: list[list[int]], cuts: list[int], block: int) -> None:
    expected = plain(documents)
    edges = sorted({0, len(documents), *(min(cut, len(documents)) for cut in cuts)})
    pieces = [documents[a:b] for a, b in itertools.pairwise(edges)]
    for least in (0, 1 << 60):
        with pytest.MonkeyPatch.context() as patch:
            borders.shrink(patch, COMPILED_LEAST=least, COMPILED_BLOCK=block, MERGE_BLOCK=block)
            if least:
                patch.setattr(postings, "_compiled", lambda: None)
            whole = sort_tokens([tokens_of(documents)], len(documents))
            assert {name: own.tolist() for name, own in vars(whole).items()} == expected
            parts = [sort_tokens([tokens_of(own)], len(own)) for own in pieces]
            assert_same(join_postings(parts), whole)
            assert_same(join_postings([Part.of(own) for own in parts]), whole)


@pytest.mark.parametrize("longest", [40, 9000])
def test_large_ones(path: str, longest: int) -> None:
    """Lists of many blocks, and more than 2**16 impact classes where documents are of any length."""
    rng = np.random.default_rng(longest)
    lengths = rng.integers(0, longest, 400 if longest > 40 else 6000)
    terms = (rng.random(int(lengths.sum())) ** 3 * 500).astype(np.int32)
    token_documents = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    found = sort_tokens([(terms, token_documents)], len(lengths), bulk=True)
    keys, counts = np.unique(terms.astype(np.int64) << 32 | token_documents, return_counts=True)
    np.testing.assert_array_equal(found.documents, keys & 0xFFFFFFFF)
    np.testing.assert_array_equal(found.class_frequencies[0][found.impact_classes], counts)
    np.testing.assert_array_equal(found.class_lengths[0][found.impact_classes], lengths[found.documents])
    pairs = np.stack([counts, lengths[found.documents]])
    np.testing.assert_array_equal(
        np.stack([found.class_frequencies[0], found.class_lengths[0]]), np.unique(pairs, axis=1)
    )
    cut = int(np.searchsorted(token_documents, len(lengths) // 3))
    parts = [
        sort_tokens([(terms[:cut], token_documents[:cut])], len(lengths) // 3),
        sort_tokens(
            [(terms[cut:], token_documents[cut:] - np.int32(len(lengths) // 3))], len(lengths) - len(lengths) // 3
        ),
    ]
    assert_same(join_postings([Part.of(own) for own in parts]), found)


def test_the_loops_serve_where_they_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    real = postings._count_tokens
    monkeypatch.setattr(postings, "_count_tokens", lambda *given: called.append(1) or real(*given))
    tokens = tokens_of([[1, 2], [2]])
    few = sort_tokens([tokens], 2)
    assert not called
    assert_same(sort_tokens([tokens], 2, bulk=True), few)
    assert called == [1]
    borders.shrink(monkeypatch, COMPILED_LEAST=3)
    assert_same(sort_tokens([tokens], 2), few)
    assert called == [1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the pages need not read as zeros")
def test_a_part_gives_its_memory_back() -> None:
    pages = 8
    count = pages * mmap.PAGESIZE // 2
    tokens = np.zeros(count, dtype=np.int32), np.arange(count, dtype=np.int32)
    part = Part.of(sort_tokens([tokens], count))
    part.give_back(count // 2)
    assert not part.documents[: count // 2].any()
    np.testing.assert_array_equal(part.documents[count // 2 :], np.arange(count // 2, count))
    other = Part.of(sort_tokens([tokens], count))
    joined = join_postings([other])
    np.testing.assert_array_equal(joined.documents, np.arange(count))
    assert not other.documents[: (pages - 1) * mmap.PAGESIZE // 2].any()
