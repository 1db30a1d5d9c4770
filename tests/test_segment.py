"""One CSR: the fixture of SPEC A015, raw counts (A011), narrow types, and merging."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.columns import Strings
from fanrank.engine.records import CATEGORIES
from fanrank.engine.segment import Segment, build_segment, merge_segments
from fanrank.engine.text import get_analyzer
from fanrank.engine.vocabulary import Encoder, Vocabulary

ANALYZER = get_analyzer("minimal")


def build(
    texts: list[str], first: int = 0, terms: tuple[str, ...] = (), fields: tuple[str, ...] = ("text",)
) -> tuple[Segment, Vocabulary]:
    vocabulary = Vocabulary(terms)
    records = [fr.Record(f"r{number}", text) for number, text in enumerate(texts, first)]
    columns = {name: Vocabulary() for name in CATEGORIES}
    return build_segment(records, first, Encoder(ANALYZER, vocabulary), fields, columns), vocabulary


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
    assert segment.frequencies[0, :9].tolist() == [2, 1, 1, 3, 1, 2, 1, 1, 1]
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
    assert segment.frequencies.tolist() == [[2, 1, 1, 1]]
    assert segment.lengths.tolist() == [[3, 2, 0]]
    types = [a.dtype for a in (segment.terms, segment.offsets, segment.documents, segment.frequencies, segment.lengths)]
    assert types == [np.int32, np.int64, np.int32, np.uint8, np.int32]
    assert segment.index_bytes == 3 * 4 + 4 * 8 + 4 * 4 + 4 * 1 + 3 * 4


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


@pytest.mark.parametrize(
    ("count", "dtype"), [(1, np.uint8), (255, np.uint8), (256, np.uint16), (65_535, np.uint16), (65_536, np.uint32)]
)
def test_counts_take_the_narrowest_type(count: int, dtype: type) -> None:
    segment, _ = build(["cat " * count, "cat dog"])
    assert segment.frequencies.dtype == dtype
    assert segment.frequencies.tolist() == [[count, 1, 1]]
    small, _ = build(["dog"], first=2, terms=("cat", "dog"))
    merged = merge_segments([segment, small])
    assert merged.frequencies.dtype == dtype
    assert merged.frequencies.tolist() == [[count, 1, 1, 1]]


def test_a_wide_type_reaches_the_score() -> None:
    engine = fr.Engine.from_records([fr.Record("a", "cat " * 300), fr.Record("b", "cat " * 44)], analyzer="minimal")
    engine.add([fr.Record("c", "dog")])  # 300 mod 256 = 44
    assert [engine.explain("cat", name).terms[0].frequencies["text"] for name in "ab"] == [300, 44]


def test_locate() -> None:
    segment, _ = build(["fish cat"], terms=("ant", "cat", "dog", "fish", "gnu"))
    assert segment.terms.tolist() == [1, 3]
    assert segment.locate(np.arange(5, dtype=np.int32)).tolist() == [-1, 0, -1, 1, -1]
    empty, _ = build(["", ""])
    assert (empty.size, empty.postings, empty.offsets.tolist()) == (2, 0, [0])
    assert empty.locate(np.arange(2, dtype=np.int32)).tolist() == [-1, -1]


def test_fields_share_their_postings() -> None:
    vocabulary = Vocabulary()
    records = [
        fr.Record("0", "dog", fields={"predicate": "cat cat"}),
        fr.Record("1", "cat ant"),
        fr.Record("2", "", fields={"predicate": "ant", "unused": "gnu"}),
    ]
    columns = {name: Vocabulary() for name in CATEGORIES}
    segment = build_segment(records, 0, Encoder(ANALYZER, vocabulary), ("text", "predicate"), columns)
    by_term = {
        vocabulary.strings[term]: list(
            zip(segment.documents[a:b].tolist(), segment.frequencies[:, a:b].T.tolist(), strict=True)
        )
        for term, (a, b) in zip(segment.terms.tolist(), itertools.pairwise(segment.offsets.tolist()), strict=True)
    }
    assert by_term == {"ant": [(1, [1, 0]), (2, [0, 1])], "cat": [(0, [0, 2]), (1, [1, 0])], "dog": [(0, [1, 0])]}
    assert segment.lengths.tolist() == [[1, 2, 0], [2, 0, 1]]


def test_times() -> None:
    columns = {name: Vocabulary() for name in CATEGORIES}
    some = [fr.Record("0", "a", time=5), fr.Record("1", "b")]
    times = build_segment(some, 0, Encoder(ANALYZER, Vocabulary()), ("text",), columns).times
    assert times is not None
    assert times[0] == 5.0
    assert math.isnan(times[1])
    assert build([""])[0].times is None


TERMS = ("ant", "bee", "cat", "dog", "eel")
text = st.lists(st.sampled_from(TERMS), max_size=5).map(" ".join)
record = st.tuples(text, text, st.sampled_from(["x", "y", None]), st.sampled_from([None, 1.5, -3.0]))


@settings(deadline=None)
@given(st.lists(record, min_size=1, max_size=25), st.lists(st.integers(0, 25), max_size=5))
def test_merging_equals_building_at_once(
    parts: list[tuple[str, str, str | None, float | None]], cuts: list[int]
) -> None:
    records = [
        fr.Record(f"r{n}", words, fields={"predicate": more}, session=session, role=session and "user", time=time)
        for n, (words, more, session, time) in enumerate(parts)
    ]
    columns = {name: Vocabulary(["x", "y", "user"]) for name in CATEGORIES}

    def segment(start: int, end: int) -> Segment:
        encoder = Encoder(ANALYZER, Vocabulary(TERMS))
        return build_segment(records[start:end], 100 + start, encoder, ("text", "predicate"), columns)

    borders = sorted({0, len(records), *(min(cut, len(records)) for cut in cuts)})
    merged = merge_segments([segment(a, b) for a, b in itertools.pairwise(borders)])
    whole = segment(0, len(records))
    assert merged.first == whole.first == 100
    for name in ("terms", "offsets", "documents", "frequencies", "lengths"):
        one, other = getattr(merged, name), getattr(whole, name)
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, name)
    assert (merged.times is None) == (whole.times is None)
    if merged.times is not None:
        np.testing.assert_array_equal(merged.times, whole.times)
    assert merged.categories.keys() == whole.categories.keys()
    for name, codes in merged.categories.items():
        np.testing.assert_array_equal(codes, whole.categories[name])
    assert merged.ids.strings.tolist() == [r.id for r in records]
    assert [merged.ids.find(r.id) for r in records] == list(range(len(records)))
    assert isinstance(merged.ids.strings, Strings)
