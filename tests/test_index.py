"""Segments that merge, statistics that are always those of the records that are there, contributions per epoch."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine import index
from fanrank.engine.bm25 import Statistics
from fanrank.engine.columns import Ids, ranges
from fanrank.engine.index import Contributions, Snapshot
from fanrank.engine.records import CATEGORIES
from fanrank.engine.segment import Segment, build_segment
from fanrank.engine.text import get_analyzer
from fanrank.engine.vocabulary import Encoder, Vocabulary

TERMS = [f"t{n}" for n in range(9)]


def segment(texts: list[list[str]], first: int = 0) -> Segment:
    """A segment over a vocabulary that knows `TERMS` as 0, 1, 2, …"""
    records = [fr.Record(f"r{n}", " ".join(text)) for n, text in enumerate(texts, first)]
    encoder = Encoder(get_analyzer("minimal"), Vocabulary(TERMS))
    return build_segment(records, first, encoder, ("text",), {name: Vocabulary() for name in CATEGORIES})


def some_texts(count: int, seed: int = 1) -> list[list[str]]:
    rng = random.Random(seed)
    return [rng.choices(TERMS, weights=[2.0**-n for n in range(9)], k=rng.randrange(7)) for _ in range(count)]


def grown(texts: list[list[str]], cuts: list[int], bm25: fr.BM25 | None = None) -> Snapshot:
    snapshot = Snapshot((), bm25 or fr.BM25())
    for start, end in itertools.pairwise(cuts):
        snapshot = snapshot.extended([segment(texts[start:end], start)])
    return snapshot


def test_ranges() -> None:
    def plain(starts: list[int], lengths: list[int]) -> list[int]:
        return [start + n for start, length in zip(starts, lengths, strict=True) for n in range(length)]

    for starts, lengths in (([], []), ([5], [3]), ([5, 0, 9], [2, 0, 1]), ([7, 3], [0, 4]), ([1, 1], [2, 2])):
        found = ranges(np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64))
        assert found.tolist() == plain(starts, lengths)


def test_statistics_are_those_of_the_records() -> None:
    texts = some_texts(60)
    snapshot = grown(texts, [0, 40, 58, 60])
    assert snapshot.size == 60
    assert snapshot.statistics.documents == 60
    assert snapshot.statistics.total_lengths == (sum(map(len, texts)),)
    assert len(snapshot.segments) > 1
    expected = Counter(term for text in texts for term in set(text))
    terms = np.arange(9, dtype=np.int32)
    located = [own.locate(terms) for own in snapshot.segments]
    assert snapshot.document_frequencies(located).tolist() == [expected[term] for term in TERMS]
    more = snapshot.extended([segment([["t0"]], 60)])
    assert (more.statistics.documents, snapshot.statistics.documents) == (61, 60)


def test_okapi_sees_every_terms_document_frequency() -> None:
    texts = some_texts(30)
    held = Counter(term for text in texts for term in set(text))
    for cuts in ([0, 30], [0, 20, 29, 30]):
        found = grown(texts, cuts, fr.BM25("okapi")).statistics.document_frequencies
        assert found is not None
        assert sorted(found.tolist()) == sorted(held.values())
    assert grown(texts, [0, 30]).statistics.document_frequencies is None
    empty = Snapshot((), fr.BM25("okapi")).statistics
    assert (empty.documents, empty.total_lengths) == (0, (0,))


def test_segments_stay_few_and_numbered_without_gaps() -> None:
    snapshot = Snapshot((), fr.BM25())
    for count in range(1, 301):
        snapshot = snapshot.extended([segment([["t0"]], count - 1)])
        sizes = [own.size for own in snapshot.segments]
        assert sum(sizes) == count
        assert all(left >= 2 * right for left, right in itertools.pairwise(sizes))
        assert len(sizes) <= math.log2(count) + 1
        assert [own.first for own in snapshot.segments] == [sum(sizes[:n]) for n in range(len(sizes))]
    assert snapshot.ids_of(np.array([0, 299, 128, 128])).tolist() == ["r0", "r299", "r128", "r128"]


def test_compacting_goes_as_far_as_the_largest_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_SEGMENT_DOCUMENTS", 10)
    parts = [segment([["t0"]] * size, first) for size, first in ((4, 0), (4, 4), (4, 8), (1, 12), (7, 13))]
    compact = Snapshot((), fr.BM25()).extended(parts, compact=True)
    assert [own.size for own in compact.segments] == [8, 5, 7]
    assert max(own.size for own in compact.extended([segment([["t0"]], 20)]).segments) <= 10


def test_find() -> None:
    snapshot = grown([["t0"]] * 20, [0, 16, 19, 20])
    assert len(snapshot.segments) > 1
    for number in range(20):
        found = snapshot.find(f"r{number}")
        assert found is not None
        own, position = found
        assert own.first + position == number
    assert snapshot.find("r20") is None
    assert snapshot.find("") is None


def derived(texts: list[list[str]], terms: list[int], bm25: fr.BM25) -> Contributions:
    own = segment(texts)
    snapshot = Snapshot((own,), bm25)
    positions = own.locate(np.array(terms, dtype=np.int32))
    df = snapshot.document_frequencies([positions])
    contributions = snapshot.contributions[0]
    contributions.derive(positions, bm25.idf(df, snapshot.statistics))
    return contributions


@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
@pytest.mark.parametrize("method", ["lucene", "robertson", "bm25+"])
def test_contributions_are_the_formulas(monkeypatch: pytest.MonkeyPatch, chunk: int, method: str) -> None:
    monkeypatch.setattr(index, "DERIVE_CHUNK", chunk)
    texts, bm25 = some_texts(80), fr.BM25(method)
    own, contributions = segment(texts), derived(texts, [0, 1, 4], bm25)
    average = sum(map(len, texts)) / 80
    statistics = Statistics(80, (sum(map(len, texts)),))
    for term in (0, 1, 4):
        position = int(own.locate(np.array([term], dtype=np.int32))[0])
        start, end = own.offsets[position : position + 2].tolist()
        idf = float(bm25.idf(np.array([end - start]), statistics)[0])
        expected = []
        for document in own.documents[start:end].tolist():
            tf = texts[document].count(TERMS[term])
            norm = 0.25 + 0.75 * (len(texts[document]) / average)
            saturated = tf * 2.2 / (tf + 1.2 * norm)
            expected.append(round(idf * (saturated + (1.0 if method == "bm25+" else 0.0)) * 2**18))
        assert contributions.quanta[start:end].tolist() == expected
        assert contributions.maxima[position] == max(map(abs, expected))
    untouched = own.locate(np.array([2, 3, 5], dtype=np.int32))
    assert contributions.maxima[untouched].tolist() == [0, 0, 0]


def test_lists_are_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fr.Engine.from_records([fr.Record(str(n), " ".join(text)) for n, text in enumerate(some_texts(40))])
    counted: list[int] = []
    plain = fr.BM25.quanta

    def counting(self: fr.BM25, frequencies: np.ndarray, norms: np.ndarray, idf: np.ndarray) -> np.ndarray:
        counted.append(frequencies.shape[1])
        return plain(self, frequencies, norms, idf)

    monkeypatch.setattr(fr.BM25, "quanta", counting)
    engine.search(["t0 t1", "t1"])
    once = sum(counted)
    assert once > 0
    engine.search(["t1", "t0"])
    assert sum(counted) == once
    engine.search(["t2"])
    assert sum(counted) > once
    counted.clear()
    engine.add([fr.Record("new", "t0")])  # a new epoch: N and every idf changed
    engine.search(["t0 t1"])
    assert sum(counted) >= once


@pytest.mark.parametrize(("k1", "dtype"), [(1.2, np.int32), (1000.0, np.int64)])
def test_contributions_take_int64_where_int32_might_not_hold_them(k1: float, dtype: type) -> None:
    # ln(2 * 8000 + 2) * 1001 * 2**18 is above 2**31
    own = segment([["t0"]] * 3)
    contributions = Contributions(own, fr.BM25(k1=k1), Statistics(8000, (8000,)))
    assert contributions.quanta.dtype == dtype


def test_tile_bounds_are_the_largest_contributions_of_each_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "TILE_BITS", 2)
    texts = some_texts(50)
    own, contributions = segment(texts), derived(texts, [0, 5], fr.BM25("robertson"))
    for term in (0, 5):
        position = int(own.locate(np.array([term], dtype=np.int32))[0])
        start, end = own.offsets[position : position + 2].tolist()
        bounds = contributions.tile_bounds(position)
        pairs = list(zip(own.documents[start:end].tolist(), contributions.quanta[start:end].tolist(), strict=True))
        tiles = sorted({document // 4 for document, _ in pairs})
        assert bounds.tiles.tolist() == tiles
        assert bounds.maxima.tolist() == [max(abs(q) for d, q in pairs if d // 4 == tile) for tile in tiles]
        for number, tile in enumerate(tiles):
            inside = own.documents[bounds.starts[number] : bounds.starts[number + 1]]
            assert inside.tolist() == [d for d, _ in pairs if d // 4 == tile]


def test_ids_survive_merging() -> None:
    parts = [segment([["t0"]] * 5, 0), segment([["t0"]] * 5, 5)]
    merged = Snapshot((), fr.BM25()).extended(parts, compact=True).segments
    assert len(merged) == 1
    assert isinstance(merged[0].ids, Ids)
    assert merged[0].ids.strings.tolist() == [f"r{n}" for n in range(10)]
