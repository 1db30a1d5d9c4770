"""One CSR: the fixture of SPEC A015, raw counts (A011), narrow types, and merging."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import borders
from support.segments import build, of

import fanrank as fr
from fanrank.engine.index.columns import Strings
from fanrank.engine.index.document_terms import count_terms
from fanrank.engine.index.segment import Segment, merge_segments, select_documents
from fanrank.engine.text.vocabulary import Vocabulary


def assert_equal(one: Segment, other: Segment) -> None:
    """The same documents; impact classes may be numbered through more of them than there are."""
    for name in ("terms", "offsets", "documents", "lengths"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine, theirs, name)
    np.testing.assert_array_equal(one.frequencies(), other.frequencies())
    np.testing.assert_array_equal(one.class_lengths[:, one.impact_classes], one.lengths[:, one.documents])
    np.testing.assert_array_equal(other.class_lengths[:, other.impact_classes], other.lengths[:, other.documents])
    assert one.impact_classes.dtype == other.impact_classes.dtype
    assert one.columns.size == other.columns.size == one.size
    for mine, theirs in (
        (one.columns.categories, other.columns.categories),
        (one.columns.numbers, other.columns.numbers),
    ):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(mine[name], theirs[name], name)
    assert isinstance(one.ids.strings, Strings)
    assert one.ids.strings.tolist() == other.ids.strings.tolist()
    assert [one.ids.find(name) for name in other.ids.strings.tolist()] == list(range(one.size))


def test_the_fixture() -> None:
    """SPEC A015. The filler sorts after "fish", so that it comes after the fixture's three lists."""
    held = ["cat cat fish", "dog", "cat dog dog", "cat fish", "cat cat cat dog"]
    lengths = [10, 8, 12, 7, 9]
    texts = [text + " zebra" * (n - len(text.split())) for text, n in zip(held, lengths, strict=True)]
    segment, vocabulary = build(texts)
    assert vocabulary.strings == ["cat", "dog", "fish", "zebra"]
    assert segment.terms.tolist() == [0, 1, 2, 3]
    assert segment.offsets[:4].tolist() == [0, 4, 7, 9]
    assert segment.documents[:9].tolist() == [0, 2, 3, 4, 1, 2, 4, 0, 3]
    assert segment.frequencies()[0, :9].tolist() == [2, 1, 1, 3, 1, 2, 1, 1, 1]
    assert segment.frequencies(slice(4, 7)).tolist() == [[1, 2, 1]]
    assert segment.frequencies(np.array([3, 0])).tolist() == [[3, 2]]
    assert segment.lengths.tolist() == [lengths]
    positions = segment.locate(np.array([0, 1], dtype=np.int32))  # "cat dog"
    touched = [segment.offsets[p : p + 2].tolist() for p in positions]
    assert touched == [[0, 4], [4, 7]]
    assert (segment.size, segment.postings) == (5, 9 + 5)


def test_the_docstrings_example() -> None:
    segment, _ = build(["cat cat dog", "dog fish", ""])
    assert segment.terms.tolist() == [0, 1, 2]
    assert segment.offsets.tolist() == [0, 1, 3, 4]
    assert segment.documents.tolist() == [0, 0, 1, 1]
    assert segment.impact_classes.tolist() == [2, 1, 0, 0]
    assert segment.class_frequencies.tolist() == [[1, 1, 2]]
    assert segment.class_lengths.tolist() == [[2, 3, 3]]
    assert segment.frequencies().tolist() == [[2, 1, 1, 1]]
    assert segment.lengths.tolist() == [[3, 2, 0]]
    types = [
        a.dtype for a in (segment.terms, segment.offsets, segment.documents, segment.impact_classes, segment.lengths)
    ]
    assert types == [np.int32, np.int64, np.int32, np.uint16, np.int32]
    assert (segment.class_frequencies.dtype, segment.class_lengths.dtype) == (np.int32, np.int32)
    # 3 terms, 3 + 1 offsets, 4 postings of 4 + 2 bytes, 3 impact classes of 4 + 4, 3 lengths
    assert segment.index_bytes == 3 * 4 + 4 * 8 + 4 * 6 + 3 * 8 + 3 * 4


def test_counts_are_raw() -> None:
    """SPEC A011, pitfall 1: tf / |d| in the postings turns the ranking around."""
    texts = ["cat " * 8 + "zebra " * 32, "cat zebra"]
    engine = fr.Engine.from_records(
        [fr.Record(name, text) for name, text in zip("ab", texts, strict=True)], analyzer="minimal"
    )
    hits = engine.search(["cat"])
    assert [name for name, _ in hits[0]] == ["a", "b"]
    assert [hits.explain(0, name).terms[0].frequencies for name in "ab"] == [{"text": 8}, {"text": 1}]

    def score(tf: float, length: int) -> float:
        return math.log(1.2) * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / 21))

    raw = [score(8, 40), score(1, 2)]
    assert [value for _, value in hits[0]] == pytest.approx(raw, abs=2**-18)
    normalised = [score(8 / 40, 40), score(1 / 2, 2)]
    assert raw[0] > raw[1]
    assert normalised[0] < normalised[1]


@pytest.mark.parametrize("count", [256, 65_536])
def test_no_count_is_too_large(count: int) -> None:
    segment, _ = build(["cat " * count, "cat dog"])
    assert segment.frequencies().tolist() == [[count, 1, 1]]
    engine = fr.Engine.from_records([fr.Record("a", "cat " * count), fr.Record("b", "cat dog")], analyzer="minimal")
    assert engine.explain("cat", "a").terms[0].frequencies == {"text": count}
    small, _ = build(["dog"], terms=("cat", "dog"))
    merged = merge_segments([segment, small])
    assert merged.frequencies().tolist() == [[count, 1, 1, 1]]


def test_times() -> None:
    def timed(*times: float | None) -> Segment:
        return of([fr.Record(str(n), "a", time=time) for n, time in enumerate(times)], Vocabulary())

    some = timed(5, None)
    assert some.times is not None
    assert some.times[0] == 5.0
    assert math.isnan(some.times[1])
    assert (some.span, some.in_order, some.latest) == ((5.0, 5.0), False, math.inf)
    none = build(["", ""])[0]
    assert none.times is none.span is None
    assert (none.in_order, none.latest) == (False, math.inf)
    rising, falling = timed(-1.0, 3, 3), timed(3, 3, -1.0)
    assert (rising.span, rising.in_order, rising.latest) == ((-1.0, 3.0), True, 3.0)
    assert (falling.span, falling.in_order, falling.latest) == ((-1.0, 3.0), False, 3.0)


TERMS = ("ant", "bee", "cat", "dog", "eel")
text = st.lists(st.sampled_from(TERMS), max_size=5).map(" ".join)
record = st.tuples(text, text, st.sampled_from(["x", "y", None]), st.sampled_from([None, 1.5, -3.0]))


def records(parts: list[tuple[str, str, str | None, float | None]]) -> list[fr.Record]:
    return [
        fr.Record(f"r{n}", words, fields={"predicate": more}, session=session, role=session and "z", time=time)
        for n, (words, more, session, time) in enumerate(parts)
    ]


@pytest.fixture(params=[(1, 1), (7, 40)])
def small_tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few postings moved at a time, and impact classes told apart in every way."""
    borders.shrink(monkeypatch, {"postings.FLAGS": request.param[1]}, MERGE_BLOCK=request.param[0])


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(record, min_size=1, max_size=25), st.lists(st.integers(0, 25), max_size=5), st.data())
@pytest.mark.usefixtures("small_tables")
def test_merging_equals_building_at_once(
    parts: list[tuple[str, str, str | None, float | None]], cuts: list[int], data: st.DataObject
) -> None:
    made = records(parts)
    deleted = np.array(data.draw(st.lists(st.booleans(), min_size=len(made), max_size=len(made))))

    def segment(own: list[fr.Record]) -> Segment:
        return of(own, Vocabulary(TERMS), ("text", "predicate"))

    edges = sorted({0, len(made), *(min(cut, len(made)) for cut in cuts)})
    pieces = [segment(made[a:b]) for a, b in itertools.pairwise(edges)]
    merged, whole = merge_segments(pieces), segment(made)
    assert_equal(merged, whole)
    # Kinds are numbered by what they are, not by how the segment came about.
    np.testing.assert_array_equal(merged.impact_classes, whole.impact_classes)
    np.testing.assert_array_equal(merged.class_frequencies, whole.class_frequencies)
    np.testing.assert_array_equal(merged.class_lengths, whole.class_lengths)
    assert (merged.times is None) == (whole.times is None)

    gone = [deleted[a:b] if deleted[a:b].any() else None for a, b in itertools.pairwise(edges)]
    left = segment([record for record, lost in zip(made, deleted, strict=True) if not lost])
    assert_equal(merge_segments(pieces, gone), left)
    assert_equal(select_documents(whole, ~deleted), left)


@settings(max_examples=30)
@given(st.lists(record, min_size=1, max_size=25), st.data())
def test_postings_of_some_documents(
    parts: list[tuple[str, str, str | None, float | None]], data: st.DataObject
) -> None:
    made = records(parts)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(made), max_size=len(made))))
    own = of(made, Vocabulary(TERMS), ("text", "predicate"))
    with pytest.MonkeyPatch.context() as patch:
        borders.shrink(patch, MERGE_BLOCK=3)
        positions, counts = count_terms(own, chosen)
    found = Counter(
        term
        for record, taken in zip(made, chosen, strict=True)
        if taken
        for term in {*record.text.split(), *record.fields["predicate"].split()}
    )
    assert dict(zip(own.terms[positions].tolist(), counts.tolist(), strict=True)) == {
        TERMS.index(term): count for term, count in found.items()
    }
    assert (np.diff(positions) > 0).all()
