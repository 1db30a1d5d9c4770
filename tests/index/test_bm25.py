"""The formulas and decay against exact arithmetic and by hand (SPEC A010 to A012, B011, B013, D006, D007, X01)."""

import functools
import math
import operator
import random
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.check.oracle import Oracle
from fanrank.engine.errors import ParameterError
from fanrank.engine.index.bm25 import METHODS, SCALE, Statistics
from fanrank.engine.index.decay import (
    FACTOR_BITS,
    MAX_HALF_LIVES,
    PART_BITS,
    TABLE,
    TICKS,
    decay,
    decayed_bits,
    rate_of,
    ticks_of,
)

# Ten documents of 100 tokens together; the term stands twice in a document of 8 tokens: norm .85.
TEN = Statistics(10, (100,), np.array([3, 1, 1, 6]))


def idf(method: str, n: int, statistics: Statistics = TEN) -> float:
    return float(fr.BM25(method).idf(np.array([n]), statistics)[0])


def quanta(bm25: fr.BM25, tf: int, norm: float, value: float) -> int:
    saturated = bm25.saturated(np.array([[tf]], dtype=np.int32), np.array([[norm]]))
    return int(bm25.quanta(saturated, np.array([value]))[0])


@pytest.mark.parametrize(
    ("method", "n", "expected"),
    [
        ("lucene", 3, math.log(22 / 7)),
        ("robertson", 3, math.log(15 / 7)),
        ("robertson_floor0", 3, math.log(15 / 7)),
        ("okapi", 3, math.log(15 / 7)),
        ("bm25l", 3, math.log(22 / 7)),
        ("bm25+", 3, math.log(11 / 3)),
        ("lucene", 6, math.log(1 + 9 / 13)),
        ("robertson", 6, math.log(9 / 13)),
        ("robertson_floor0", 6, 0.0),
        # A quarter of the mean over the vocabulary (df 3, 1, 1 and 6) of the raw idf, the negative one included.
        ("okapi", 6, 0.25 * (math.log(15 / 7) + 2 * math.log(19 / 3) + math.log(9 / 13)) / 4),
        ("bm25l", 6, math.log(22 / 13)),
        ("bm25+", 6, math.log(11 / 6)),
        ("lucene", 10, math.log(1 + 1 / 21)),
        ("robertson", 10, math.log(1 / 21)),
        ("bm25+", 10, math.log(11 / 10)),
    ],
)
def test_idf(method: str, n: int, expected: float) -> None:
    assert idf(method, n) == pytest.approx(expected, rel=1e-15, abs=1e-15)


def test_worked_idfs() -> None:
    million = Statistics(1_000_000, (10_000_000,))  # the article's worked example (SPEC B013)
    assert idf("robertson", 2, million) == pytest.approx(math.log(999_998.5 / 2.5))
    assert round(idf("robertson", 2, million), 2) == round(idf("lucene", 2, million), 2) == 12.90
    assert round(idf("robertson", 600_000, million), 3) == round(math.log(0.4 / 0.6), 3) == -0.405
    assert round(idf("lucene", 600_000, million), 3) == 0.511


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # round(idf * 4.4 / 3.02 * 2**18) and its kin, worked out with 40 decimal digits
        ("lucene", 437_362),
        ("robertson", 291_085),
        ("robertson_floor0", 291_085),
        ("okapi", 291_085),
        ("bm25l", 464_880),
        ("bm25+", 836_837),
    ],
)
def test_contributions(method: str, expected: int) -> None:
    bm25 = fr.BM25(method)
    norm = float(bm25.norms(np.array([[8]], dtype=np.int32), TEN)[0, 0])
    assert norm == pytest.approx(0.85, rel=1e-15)
    assert quanta(bm25, 2, norm, idf(method, 3)) == expected
    documents = [[["t", "t", *["x"] * 6]], [["t"] + ["x"] * 9], [["t"] + ["x"] * 9], *[[["x"] * 10]] * 6, [["x"] * 12]]
    assert Oracle(documents, method=method, delta=bm25.delta).quanta("t", 0) == expected


def test_contributions_of_a_frequent_term() -> None:
    assert quanta(fr.BM25("robertson"), 2, 0.85, idf("robertson", 6)) == -140_446
    assert quanta(fr.BM25("okapi"), 2, 0.85, idf("okapi", 6)) == 97_537
    assert quanta(fr.BM25("robertson_floor0"), 2, 0.85, idf("robertson_floor0", 6)) == 1


def test_fields_add_before_saturation() -> None:
    statistics = Statistics(10, (100, 20))
    bm25 = fr.BM25(fields={"text": 1.0, "predicate": 3.0})
    norms = bm25.norms(np.array([[8], [4]], dtype=np.int32), statistics)
    assert norms.ravel().tolist() == pytest.approx([0.85, 1.75])
    # c = 2 / .85 + 3 * 1 / 1.75, then idf * c * 2.2 / (1.2 + c)
    saturated = bm25.saturated(np.array([[2], [1]], dtype=np.int32), norms)
    found = bm25.quanta(saturated, bm25.idf(np.array([3]), statistics))
    assert found.tolist() == [509_958]


def test_norms() -> None:
    lengths = np.array([[0, 10, 40]], dtype=np.int32)
    assert fr.BM25(b=0.75).norms(lengths, TEN).tolist() == [[0.25, 1.0, 3.25]]
    assert fr.BM25(b=0.0).norms(lengths, TEN).tolist() == [[1.0, 1.0, 1.0]]
    assert fr.BM25(b=1.0).norms(lengths, TEN).tolist() == [[0.0, 1.0, 4.0]]
    nothing = Statistics(3, (0,))
    assert fr.BM25(b=0.5).norms(np.zeros((1, 3), dtype=np.int32), nothing).tolist() == [[0.5, 0.5, 0.5]]


# k1 = b = 0 makes the contribution the idf itself.
BARE = {"k1": 0.0, "b": 0.0}


def test_halves_round_to_even() -> None:
    halves = [0.5, 1.5, 2.5, 3.5, 4.5, -0.5, -1.5, -2.5, 2.4999999, 2.5000001]
    found = [quanta(fr.BM25("robertson", **BARE), 1, 1.0, half / SCALE) for half in halves]
    assert found == [0, 2, 2, 4, 4, 0, -2, -2, 2, 3]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=12), min_size=2, max_size=12),
    st.sampled_from([0.4, 1.2, 2.0]),
    st.sampled_from([0.0, 0.4, 0.75]),
)
def test_scores_are_k1_plus_1_times_those_of_lucene(documents: list[list[str]], k1: float, b: float) -> None:
    """Lucene and bm25s leave that factor out; both formulas are theirs, in Python."""
    engine = fr.Engine(analyzer="minimal", k1=k1, b=b)
    engine.add(fr.Record(str(n), " ".join(words)) for n, words in enumerate(documents))
    mean = sum(map(len, documents)) / len(documents)
    lucene: dict[str, float] = {}
    for term in ("a", "b"):
        n = sum(term in words for words in documents)
        for number, words in enumerate(documents):
            if (tf := words.count(term)) > 0:
                idf = math.log(1.0 + (len(documents) - n + 0.5) / (n + 0.5))
                part = idf * tf / (tf + k1 * (1.0 - b + b * len(words) / mean))
                lucene[str(number)] = lucene.get(str(number), 0.0) + part
    found = dict(engine.search(["a b"], k=len(documents))[0])
    assert found.keys() == lucene.keys()
    for name, score in found.items():
        assert score == pytest.approx((k1 + 1.0) * lucene[name], abs=2.0 / SCALE)


@pytest.mark.parametrize("method", METHODS)
def test_a_match_is_worth_at_least_one_quantum_unless_signed(method: str) -> None:
    least = 0 if method in ("robertson", "okapi") else 1
    assert fr.BM25(method).signed == (least == 0)
    assert quanta(fr.BM25(method), 1, 1.0, 0.0) == least
    assert quanta(fr.BM25(method), 1, 1.0, 0.2 / SCALE) == least


def test_okapi_mean_does_not_depend_on_the_order_of_the_terms() -> None:
    rng = random.Random(4)
    frequencies = [rng.choice([1, 1, 1, 2, 3, 7, 40, 90]) for _ in range(500)]
    means, naive = set(), set()
    for _ in range(20):
        rng.shuffle(frequencies)
        means.add(idf("okapi", 90, Statistics(100, (100,), np.array(frequencies))))
        values = [math.log((100 - n + 0.5) / (n + 0.5)) for n in frequencies]
        # From Python 3.12 on, `sum` compensates.
        naive.add(0.25 * (functools.reduce(operator.add, values) / 500))
    assert means == {0.25 * (math.fsum(values) / 500)}
    assert len(naive) > 1  # a plain sum does depend on it


def test_okapi_without_the_vocabulary_is_refused() -> None:
    bare = Statistics(10, (100,))
    assert idf("okapi", 3, bare) == pytest.approx(math.log(15 / 7))
    with pytest.raises(fr.errors.ParameterError, match="document frequencies"):
        idf("okapi", 6, bare)


def scores(texts: list[str], **options: Any) -> dict[str, float]:
    engine = fr.Engine.from_records(
        [fr.Record(str(n), text) for n, text in enumerate(texts)], analyzer="minimal", **options
    )
    return dict(engine.search(["a b c"], len(texts))[0])


@pytest.mark.parametrize("method", METHODS)
def test_one_field_of_weight_one_is_plain(method: str) -> None:
    rng = random.Random(6)
    texts = [" ".join(rng.choices("abcdefg", k=rng.randrange(1, 9))) for _ in range(50)]
    plain = scores(texts, method=method)
    assert scores(texts, method=method, fields={"text": 1}) == plain
    # A second field that every record lacks takes BM25F's own arithmetic, which may differ in the last bit of a float.
    fielded = scores(texts, method=method, fields={"text": 1.0, "predicate": 5.0})
    assert fielded.keys() == plain.keys()
    assert max(abs(fielded[name] - plain[name]) for name in plain) <= 3 / SCALE
    assert scores(texts, method=method, fields={"text": 2.0}) != plain


def test_defaults() -> None:
    bm25 = fr.BM25()
    assert (bm25.method, bm25.k1, bm25.b, bm25.delta, bm25.query_tf) == ("lucene", 1.2, 0.75, 0.0, "count")
    assert [fr.BM25(method).delta for method in ("bm25l", "bm25+", "okapi")] == [0.5, 1.0, 0.0]
    assert fr.BM25("bm25l", delta=0.25).delta == 0.25
    assert fr.BM25(**bm25.to_dict()) == bm25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "tfidf"}, "unknown BM25 method 'tfidf'; there are: lucene"),
        ({"method": 1}, "unknown BM25 method"),
        ({"query_tf": "set"}, "query_tf must be 'count' or 'unique'"),
        ({"k1": -0.1}, r"k1 must lie in \[0, 1000\]"),
        ({"k1": 1000.1}, "k1 must lie in"),
        ({"k1": math.nan}, "k1 must lie in"),
        ({"k1": math.inf}, "k1 must lie in"),
        ({"k1": "1.2"}, "k1 must be a number"),
        ({"k1": True}, "k1 must be a number"),
        ({"b": 1.01}, r"b must lie in \[0, 1\]"),
        ({"b": "0"}, "b must be a number"),
        ({"delta": -1}, "delta must lie in"),
        ({"fields": {}}, "hold 'text'"),
        ({"fields": {"title": 1.0}}, "hold 'text'"),
        ({"fields": ["text"]}, "must map field names"),
        ({"fields": {"text": 0.0}}, "above 0"),
        ({"fields": {"text": 1.0, "title": -1}}, "weight of field 'title' must lie in"),
        ({"fields": {"text": 1.0, "title": "2"}}, "weight of field 'title' must be a number"),
    ],
)
@pytest.mark.parametrize("make", [fr.BM25, fr.Engine])
def test_parameters_out_of_range(make: Callable[..., object], options: dict[str, Any], message: str) -> None:
    with pytest.raises(fr.errors.ParameterError, match=message):
        make(**options)


HOUR = 3600.0
faded = st.integers(1, (1 << 61) - 1)
ages = st.one_of(st.floats(-1e9, 1e12), st.floats(0.0, 1e5), st.just(math.inf), st.just(-math.inf))
half_lives = st.floats(1e-3, 1e10)


def one(score: int, age: float, half_life: float) -> float:
    """The score of one document, asked at 0."""
    bits = decayed_bits(np.array([score]), np.array([-age]), 0.0, rate_of(half_life))
    return float(bits.view(np.float64)[0])


def stated(score: int, time: float, now: float, rate: float) -> int:
    """The definition in Python's own numbers, the product exact before it is rounded once."""
    age = (now - time) * rate
    ticks = 0 if not age > 0.0 else MAX_HALF_LIVES * TICKS if math.isinf(age) else math.floor(age)
    ticks = min(ticks, MAX_HALF_LIVES * TICKS)
    product = float(Fraction(float(score)) * int(TABLE[ticks % TICKS]))
    return int(struct.unpack("<q", struct.pack("<d", math.ldexp(product, -(ticks // TICKS) - 30)))[0])


def test_the_table_is_rounded_exactly() -> None:
    """Powers of 2**(-1 / 65536) as integers of 200 bits, their error far below their distance to a half."""
    bits = 200
    root = 1 << bits - 1
    for _ in range(PART_BITS):
        root = math.isqrt(root << bits)
    power, kept, nearest = 1 << bits, [], 1 << bits
    half = 1 << bits - FACTOR_BITS - 1
    for _ in range(TICKS):
        kept.append(power + half >> bits - FACTOR_BITS)
        nearest = min(nearest, abs(power % (2 * half) - half))
        power = power * root >> bits
    assert TABLE.dtype == np.int32
    assert TABLE.tolist() == kept
    assert nearest * 50_000 > 2 * half


@settings(deadline=None)
@given(st.lists(st.tuples(faded, ages), min_size=1), half_lives, st.floats(-1e9, 2e9))
def test_arrays_follow_the_definition(documents: list[tuple[int, float]], half_life: float, now: float) -> None:
    own = np.array([score for score, _ in documents])
    times = now - np.array([age for _, age in documents])
    rate = rate_of(half_life)
    expected = [stated(score, time, now, rate) for score, time in zip(own.tolist(), times.tolist(), strict=True)]
    assert decayed_bits(own, times, now, rate).tolist() == expected
    assert decay(own, ticks_of(times, now, rate)).view(np.int64).tolist() == expected


def test_every_tick_is_a_step_down() -> None:
    ticks = np.concatenate([np.arange(3 * TICKS), np.arange(-3, 1) + MAX_HALF_LIVES * TICKS])
    found = decay(np.full(len(ticks), (1 << 61) - 1), ticks)
    assert (np.diff(found) < 0.0).all()
    np.testing.assert_array_equal(decay(np.array([1 << 40]), np.array([5 * TICKS])), [float(1 << 35)])
    # Nothing is rounded away at the least of all: it is a normal number.
    assert decay(np.array([1]), np.array([MAX_HALF_LIVES * TICKS]))[0] == 2.0**-MAX_HALF_LIVES


def test_source_numbers() -> None:
    """SPEC C003: λ = .01 an hour halves a score in 69.3 hours. C011: an hour weighs .990, a week .186."""
    half_life = math.log(2.0) / 0.01 * HOUR
    assert round(half_life / HOUR, 1) == 69.3
    quanta = 1 << 40
    hour, week = (one(quanta, hours * HOUR, half_life) / quanta for hours in (1.0, 168.0))
    assert (round(hour, 3), round(week, 3)) == (0.990, 0.186)
    assert hour > 2.0 * week
    for rate, hours in ((0.001, 693.0), (0.1, 6.93)):
        assert one(quanta, hours * HOUR, math.log(2.0) / rate * HOUR) / quanta == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("half_life", [0.0, -1.0, 1e-305, math.inf, math.nan])
def test_what_halves_nothing_is_declined(half_life: float) -> None:
    with pytest.raises(ParameterError, match="half_life"):
        rate_of(half_life)
