"""Learned sparse weights ride the CSR: answers are the product of the stored integers, difference 0 (A105 to A107)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.learned_cases import CPU, DEVICES, EXECUTIONS, Answer, Corpus, Weights, answer, chosen, serve

import fanrank as fr
from fanrank.engine.index import learned
from fanrank.engine.index.bm25 import DOT, MAX_IMPACT, SCALE, Statistics
from fanrank.engine.index.columns import Columns, Ids
from fanrank.engine.index.learned import IMPACTS, SCORE_UNIT, build_learned, query_terms
from fanrank.engine.index.snapshot import Snapshot
from fanrank.engine.plan.plan import Request, make_plan
from fanrank.engine.text.vocabulary import Vocabulary


def paths(name: str, snapshot: Snapshot, requests: list[Request], k: int) -> Iterator[tuple[str, Answer]]:
    """Every way of asking that must not change the answer."""
    batch = len(requests)
    for execution in EXECUTIONS[:1] if name == "triton" else EXECUTIONS:
        yield execution, answer(serve(name), make_plan(snapshot, requests), batch, k, execution)
    if name != "triton":
        alone = [replace(request, row=0) for request in requests]
        yield "one by one", [answer(serve(name), make_plan(snapshot, [one]), 1, k)[0] for one in alone]


def test_a_posting_contributes_its_frequency() -> None:
    frequencies = np.array([[1, 2, 3, 1023, 4095, 4096, MAX_IMPACT, (1 << 31) - 1]], dtype=np.int32)
    norms = IMPACTS.norms(np.zeros_like(frequencies), Statistics(5, (0,)))
    idf = IMPACTS.idf(np.array([1, 3, 5]), Statistics(5, (0,)))
    assert idf.tolist() == [1.0, 1.0, 1.0]
    saturated = IMPACTS.saturated(frequencies, norms)
    assert IMPACTS.quanta(saturated, np.ones(8)).tolist() == frequencies[0].tolist()
    # The order in which a loop may multiply.
    assert (saturated * (SCALE * 1.0) == frequencies[0]).all()
    assert IMPACTS.bounds(np.ones(2)).tolist() == [MAX_IMPACT, MAX_IMPACT]
    assert IMPACTS.bounds(np.array([1.0, 0.0]), 700).tolist() == [700, 0]
    assert not IMPACTS.needs_int64(Statistics(1 << 40, (0,)))
    assert not IMPACTS.signed
    assert DOT not in fr.text.METHODS
    with pytest.raises(fr.errors.ParameterError, match="'dot' has no fields"):
        fr.BM25(DOT, fields={"text": 1.0, "title": 2.0})


def test_quantize() -> None:
    assert learned.DOCUMENT_STEP * 1024 == 1.0
    assert [learned.quantize(w / 1024) for w in (0.0, 0.5, 0.51, 1.5, 2.5, MAX_IMPACT)] == [0, 0, 1, 2, 2, MAX_IMPACT]
    assert learned.quantize(np.float32(1.1)) == 1126
    # log1p(relu(logit)) below 4 (A105) fits the 12 bits of a word on a device.
    assert learned.quantize(math.log1p(53.0)) <= 4095
    assert SCORE_UNIT == 2.0**-20
    assert learned.quantize(3.0) * learned.quantize(1.25, learned.QUERY_STEP) * SCORE_UNIT == 3.75


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-0.5, r"must lie in \[0, 65,535.999\], not -0.5"),
        (math.nan, "must lie in .*, not nan"),
        (math.inf, "must lie in .*, not inf"),
        (65_536.0, "must lie in .*, not 65536.0"),
        (np.float32(65_536.0), "must lie in"),
        (10**400, "must lie in"),
        ("2", "must be a number, not '2'"),
        (None, "must be a number, not None"),
        (True, "must be a number, not True"),
    ],
)
def test_weights_that_cannot_be_held(weight: Any, message: str) -> None:
    with pytest.raises(fr.errors.RecordError, match=f"id 'r1': the weight of 'b' {message}"):
        Corpus([[{"a": 1.0}, {"a": 2.0, "b": weight}]])
    vocabulary = Vocabulary(["b"])
    if weight not in (65_536.0, 10**400):
        with pytest.raises(fr.errors.QueryError, match=r"the weight of the query's term 'b' must "):
            query_terms({"a": 1.0, "b": weight}, vocabulary)
    with pytest.raises(fr.errors.QueryError, match=r"must lie in \[0, 131,071.999\], not 131072"):
        query_terms({"b": 131_072}, vocabulary)


@pytest.mark.parametrize(("term", "message"), [(7, "must be a string, not 7"), ("\ud800", "lone surrogate")])
def test_terms_that_cannot_be_held(term: Any, message: str) -> None:
    vocabulary = Vocabulary(["b"])
    ids = Ids.of(["x", "y"])
    columns = Columns(2, {}, {})
    with pytest.raises(fr.errors.RecordError, match=f"id 'y': .*{message}"):
        build_learned([{"a": 1.0}, {term: 1.0}], vocabulary, ids, columns)
    assert vocabulary.strings == ["b"]


def test_weights_of_a_query_that_add_up_to_too_much() -> None:
    vocabulary = Vocabulary(["a"])
    most = learned.MAX_QUERY_WEIGHT
    assert query_terms({"a": most}, vocabulary) == ([0], [learned.MAX_MULTIPLICITY])
    # Terms that no document has count too: else a write could make a query fail.
    with pytest.raises(fr.errors.QueryError, match=r"add up to 131,072.000, and sums are exact up to 131,071.999"):
        query_terms({"a": most, "unknown": 2.0**-10}, vocabulary)
    assert MAX_IMPACT * learned.MAX_MULTIPLICITY < 1 << 53


@pytest.mark.parametrize("name", [*CPU, *DEVICES])
def test_where_int32_ends(name: str) -> None:
    """The bound is the largest weight that is held, and one more than int32 holds takes the int64 path."""
    held = {"a": 63.0, "b": 63.0}  # 64,512 each
    corpus = Corpus([[held, {"a": 1.0}, {"b": 63.0}, {"c": 63.0}] * 10])
    last = ((1 << 31) - 1) // (2 * 64_512)
    narrow, wide = ([0, 1], [last, last]), ([0, 1], [last, last + 1])
    requests = [Request(n, terms, 25, weights=own) for n, (terms, own) in enumerate([narrow, wide, ([0, 1], [1, 1])])]
    plan = make_plan(corpus.snapshot, requests)
    assert plan.large.tolist() == [False, True, False]
    expected = corpus.expected(requests)
    assert expected[0][0][1] < 1 << 31 <= expected[1][0][1]
    for path, found in paths(name, corpus.snapshot, requests, 25):
        assert found == expected, path


# Few values, so that ties are common, among them the largest and one that rounds to 0.
LARGEST = learned.MAX_DOCUMENT_WEIGHT
some_weight = st.sampled_from([0.0004, 1 / 1024, 0.25, 0.5, 1.0, 1.0, 3.999, 64.0, 255.0, LARGEST]) | st.floats(
    0.0, 4.0
)


def test_tensors_in_tensors_out() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    corpus = Corpus([[{"a": 1.0, "b": 3.5}, {"a": 63.0}, None, {"b": 0.25, "c": 1.0}] * 20, [{"a": 2.0}] * 5])
    asked: list[Weights] = [{"a": 1.5, "b": 0.5}, {}, {"c": 1024.0, "a": 1024.0}]
    requests = [corpus.request(own, 7, row) for row, own in enumerate(asked)]
    offsets = np.cumsum([0, *(len(own.terms) for own in requests)])
    terms, weights = (
        torch.tensor([number for own in requests for number in getattr(own, name) or ()], dtype=torch.int64)
        for name in ("terms", "weights")
    )
    chosen("cuda-host")
    found = serve("cuda-host").tensors(corpus.snapshot, terms, torch.from_numpy(offsets), weights, 7)
    expected = corpus.expected(requests)
    assert found.counts.tolist() == [len(row) for row in expected]
    for row, own in enumerate(expected):
        assert found.documents[row, : len(own)].tolist() == [document for document, _ in own]
        assert (found.scores[row, : len(own)] * SCALE).tolist() == [total for _, total in own]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.dictionaries(st.integers(0, 9), some_weight, max_size=6), min_size=1, max_size=12),
    none=st.sets(st.integers(0, 11)),
    known=st.lists(st.sampled_from("bdfhj"), unique=True),
)
def test_rows_of_a_matrix_become_the_segment_of_their_dictionaries(
    rows: list[dict[int, float]], none: set[int], known: list[str]
) -> None:
    dense = np.zeros((len(rows), 10))
    for row, own in enumerate(rows):
        dense[row, list(own)] = list(own.values())
    given_rows = fr.encoders.weights_of(dense, [*"jihgfedcba"])
    as_rows = [None if n in none else own for n, own in enumerate(given_rows)]
    as_dicts = [None if own is None else dict(own) for own in as_rows]
    first, second = Vocabulary(known), Vocabulary(known)
    ids = Ids.of([f"r{n}" for n in range(len(rows))])
    columns = Columns(len(rows), {}, {})
    one, other = (build_learned(own, v, ids, columns) for own, v in ((as_rows, first), (as_dicts, second)))
    assert first.strings == second.strings
    for name in ("terms", "offsets", "documents", "impact_classes", "class_frequencies", "lengths"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
        assert getattr(one, name).dtype == getattr(other, name).dtype, name
    # A row beside a dictionary, or rows of two matrices, take the other way.
    if len(as_rows) > 1:
        mixed = [*as_rows[:-1], {"a": 1.0}]
        plain = build_learned([own and dict(own) for own in mixed], Vocabulary(), ids, columns)
        assert build_learned(mixed, Vocabulary(), ids, columns).frequencies().tolist() == plain.frequencies().tolist()
