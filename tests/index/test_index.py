"""Segments that merge, statistics that are always those of the records that are there, contributions per epoch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import numpy as np
import pytest
from support import borders

import fanrank as fr
from fanrank.engine.index.build import build_segment
from fanrank.engine.index.columns import Schema
from fanrank.engine.index.merge import Merge
from fanrank.engine.index.segment import Segment
from fanrank.engine.index.snapshot import WEEK, Place, Snapshot
from fanrank.engine.text.analyzers import get_analyzer
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary

TERMS = [f"t{n}" for n in range(9)]


def segment(texts: list[list[str]], first: int = 0, times: list[float] | None = None) -> Segment:
    """A segment over a vocabulary that knows `TERMS` as 0, 1, 2, …; ids are counted from `first`."""
    records = [
        fr.Record(f"r{first + n}", " ".join(text), time=None if times is None else times[n])
        for n, text in enumerate(texts)
    ]
    schema = Schema.of(None)
    values = {name: Vocabulary() for name in schema.categories}
    return build_segment(records, TermIndexer(get_analyzer("minimal"), Vocabulary(TERMS)), ("text",), schema, values)


def some_texts(count: int, seed: int = 1) -> list[list[str]]:
    rng = random.Random(seed)
    return [rng.choices(TERMS, weights=[2.0**-n for n in range(9)], k=rng.randrange(7)) for _ in range(count)]


def grown(texts: list[list[str]], cuts: list[int], bm25: fr.BM25 | None = None) -> Snapshot:
    snapshot = Snapshot((), bm25 or fr.BM25())
    for start, end in itertools.pairwise(cuts):
        snapshot = snapshot.extended([segment(texts[start:end], start)])
    return snapshot


def sizes(snapshot: Snapshot) -> list[int]:
    return [own.size for own in snapshot.segments]


def ids(snapshot: Snapshot) -> list[str]:
    """The live documents, in order."""
    found = [(place, name) for name, place in snapshot.find_all([f"r{n}" for n in range(400)]).items()]
    return [name for _, name in sorted(found, key=lambda pair: (pair[0].segment, pair[0].position))]


def without(snapshot: Snapshot, numbers: Iterable[int]) -> Snapshot:
    """The snapshot without the records of these numbers."""
    return snapshot.without(list(snapshot.find_all([f"r{n}" for n in numbers]).values()))


def test_compacting_goes_as_far_as_the_largest_segment() -> None:
    parts = [segment([["t0"]] * size, first) for size, first in ((4, 0), (4, 4), (4, 8), (1, 12), (7, 13))]
    loose = Snapshot((), fr.BM25()).extended(parts)
    compact = loose.compacted(10)
    assert sizes(loose) == [4, 4, 4, 1, 7]
    assert sizes(compact) == [8, 4, 8]
    assert ids(compact) == ids(loose) == [f"r{n}" for n in range(20)]
    for limit in (3, 5, 10, 11, 12, 19, 20):
        more = compact.extended([segment([["t0"]], 20)]).compacted(limit)
        assert max(sizes(more), default=0) <= max(limit, 8)
        assert ids(more) == [f"r{n}" for n in range(21)]


def test_closed_windows_are_not_merged_with_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, WINDOW_DOCUMENTS=4)

    def timed(first: int, times: list[float]) -> Segment:
        return segment([["t0"]] * len(times), first, times)

    open_, full = timed(0, [0.0, 1.0, 2.0]), timed(0, [0.0, 1.0, 2.0, 3.0])
    same, next_ = timed(4, [9.0, 4.0, 4.0]), timed(4, [11.0, 10.0, 12.0])
    for older, newer, expected in (
        (full, same, [7]),
        (full, next_, [4, 3]),  # the window of the older is over, and it is large enough to be closed
        (open_, next_, [6]),  # too small to be closed
        (full, segment([["t0"]] * 3, 4), [7]),  # no time: no window that could be over
        (segment([["t0"]] * 4), next_, [7]),
    ):
        assert sizes(Snapshot((), fr.BM25()).extended([older, newer]).compacted(window=10.0)) == expected
    assert sizes(Snapshot((), fr.BM25()).extended([full, next_]).compacted(window=WEEK)) == [7]
    # What comes after the border is merged on its own side of it.
    many = [full, next_, timed(7, [13.0, 14.0]), timed(9, [15.0])]
    assert sizes(Snapshot((), fr.BM25()).extended(many).compacted(window=10.0)) == [4, 5, 1]


def test_without_leaves_the_snapshot_before_as_it_was() -> None:
    before = grown(some_texts(30), [0, 20, 30])
    df = before.document_frequencies(np.arange(9, dtype=np.int32)).tolist()
    after = without(before, [3, 25, 29])
    assert (before.size, after.size, after.numbers) == (30, 27, 30)
    assert before.document_frequencies(np.arange(9, dtype=np.int32)).tolist() == df
    assert (before.find("r3"), after.find("r3")) == (Place(0, 3), None)
    assert before.alive(0) is None
    assert np.flatnonzero(~after.alive(1)).tolist() == [5, 9]  # type: ignore[operator]
    assert all(one is other for one, other in zip(before.segments, after.segments, strict=True))
    assert before.without([]) is before
    # Ids of the deleted can be found at another place.
    again = after.extended([segment([["t0"]], 3)])
    assert again.find("r3") == Place(2, 0)
    assert without(again, [3]).find("r3") is None


def test_segments_with_many_dead_are_written_anew() -> None:
    snapshot = grown(some_texts(64), [0, 40, 60, 64])
    few, many = without(snapshot, range(9)), without(snapshot, range(10))
    assert list(few.merges(100)) == []
    assert list(many.merges(39)) == []
    (merge,) = many.merges(100)
    assert (len(merge.segments), merge.segments[0].size) == (1, 40)
    # Sizes that no longer halve are merged after that.
    assert sizes(many.replaced(merge, merge.run())) == [30, 20, 4]  # type: ignore[arg-type]
    assert sizes(many.compacted(100)) == [50, 4]
    assert ids(many.compacted(100)) == [f"r{n}" for n in range(10, 64)]
    assert not many.compacted(100).tombstones
    # Where nobody is left, no segment is.
    assert sizes(without(snapshot, range(40)).compacted(100)) == [20, 4]
    assert sizes(without(snapshot, range(64)).compacted(100)) == []
    assert without(snapshot, range(64)).compacted(100).size == 0


def test_what_dies_while_a_merge_runs_is_dead_after_it() -> None:
    texts = some_texts(30)
    before = without(grown(texts, [0, 10, 20, 30]), [1, 12])
    merge = before.merge_of([0, 1])
    merged = merge.run()
    assert merged is not None
    assert merged.size == 18
    meanwhile = without(before, [5, 12, 15, 22]).extended([segment([["t0"]], 30)])
    after = meanwhile.replaced(merge, merged)
    assert after is not None
    assert sizes(after) == [18, 10, 1]
    assert ids(after) == ids(meanwhile) == [f"r{n}" for n in range(31) if n not in (1, 5, 12, 15, 22)]
    assert {number: own.count for number, own in after.tombstones.items()} == {0: 2, 1: 1}
    terms = np.arange(9, dtype=np.int32)
    assert after.document_frequencies(terms).tolist() == meanwhile.document_frequencies(terms).tolist()
    assert after.statistics == meanwhile.statistics
    # Of segments that are no longer there nothing is replaced.
    assert after.replaced(merge, merged) is None
    assert before.replaced(Merge((segment([["t0"]]),), (None,)), merged) is None
    # All of them die meanwhile.
    nobody = without(before, range(20)).replaced(merge, merged)
    assert nobody is not None
    assert ids(nobody.compacted()) == [f"r{n}" for n in range(20, 30)]


def test_lists_are_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fr.Engine(backend="numpy")
    engine.add([fr.Record(str(n), " ".join(text)) for n, text in enumerate(some_texts(40))])
    counted: list[int] = []
    plain = fr.BM25.quanta

    def counting(self: fr.BM25, saturated: np.ndarray, idf: np.ndarray) -> np.ndarray:
        counted.append(len(saturated))
        return plain(self, saturated, idf)

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


def test_a_large_namespace_without_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts are an empty array, and a term of another namespace may be asked for."""
    borders.shrink(monkeypatch, COUNTED_DOCUMENTS=1)
    snapshot = grown([[], []], [0, 2])
    assert snapshot.counts is not None
    assert snapshot.document_frequencies(np.array([0, 7], dtype=np.int32)).tolist() == [0, 0]
