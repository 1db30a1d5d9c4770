"""A batch before it is scored: what is decided once for queries alike, and words and plans in columns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.plan.plan import make_plan, plan_of
from fanrank.engine.plan.requests import QuerySettings, Request, Requests
from fanrank.engine.records.filters import col
from fanrank.engine.search import batch as batches
from fanrank.engine.search import lexical as searching
from fanrank.engine.search.batch import Batch, as_queries, as_query, prepare, queries_in

WORDS = ["tea", "milk", "jam", "bread", "salt"]
ENGINE = fr.Engine.from_records(
    [
        fr.Record(
            f"{space}{n}",
            " ".join(WORDS[(n + shift) % 5] for shift in range(1 + n % 4)),
            time=float(n),
            session=f"s{n % 3}",
            namespace=space,
        )
        for space in ("", "other")
        for n in range(40)
    ],
    analyzer="minimal",
    backend="numpy",
)

texts = st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=4)
# Few values each, so that batches hold queries that are equal in part, and altogether.
queries = st.one_of(
    texts.map(" ".join),
    texts,
    st.builds(
        lambda words, as_terms, timed, **own: fr.Query(
            "" if as_terms else " ".join(words), terms=words if as_terms else None, **timed, **own
        ),
        texts,
        st.booleans(),
        st.sampled_from(
            [{}, {"now": 30.0}, {"now": 50.0}, {"now": 30.0, "half_life": 5.0}, {"now": 50.0, "half_life": 5.0}]
        ),
        k=st.sampled_from([None, 1, 3]),
        namespace=st.sampled_from(["", "other", "empty"]),
        filter=st.sampled_from(
            [None, {}, {"session": "s1"}, {"session": ["s1"]}, col("session") == "s1", {"session": "no"}]
        ),
        scope=st.sampled_from([None, fr.SearchScope.session("s1"), fr.SearchScope.session("s1", None)]),
        statistics=st.sampled_from(["namespace", "filtered"]),
        since=st.sampled_from([None, 0, 0.0, 10.0]),
        windows=st.sampled_from([None, 1, "auto"]),
        type=st.sampled_from([None, "fact"]),
    ),
)


def prepared(batch: list[Any], aged: bool = False) -> Batch:
    asked = as_queries(batch, "search")
    return prepare(ENGINE.index.memory.state, asked, 4, ENGINE.monitor.windows, aged=aged)


@settings(deadline=None, max_examples=150)
@given(st.lists(queries, max_size=12), st.booleans())
def test_a_query_is_decided_in_a_batch_as_alone_and_shared_with_its_equals(batch: list[Any], aged: bool) -> None:
    together = prepared(batch, aged)
    first: dict[object, int] = {}
    for row, own in enumerate(batch):
        (alone,) = prepared([own], aged).asked
        assert together.asked[row] == alone
        query, k, corpus, settings = alone
        words = query.text, None if query.terms is None else tuple(query.terms), query.type
        same = words, k, corpus, settings, (query.now, query.scope) if aged else None
        assert together.source[row] == first.setdefault(same, row)
    held = [row for row in first.values() if together.queries[row].namespace in ENGINE.index.memory.snapshots]
    assert sorted(together.rows) == held
    assert all(together.asked[row].corpus == corpus for corpus, rows in together.rows_of.items() for row in rows)


@settings(deadline=None, max_examples=75)
@given(st.lists(queries, max_size=12))
def test_an_answer_is_the_same_in_a_batch_as_alone(batch: list[Any]) -> None:
    hits = ENGINE.search(batch, 4)
    for row, own in enumerate(batch):
        alone = ENGINE.search([own], 4)
        assert hits[row] == alone[0]
        width = alone.scores.shape[1]
        assert hits.documents[row, :width].tolist() == alone.documents[0].tolist()
        for name, _ in hits[row][:1]:
            assert {**hits.explain(row, name).to_dict(), "query": 0} == alone.explain(0, name).to_dict()


@settings(deadline=None, max_examples=75)
@given(st.lists(queries, max_size=12))
def test_words_of_a_batch_are_those_of_each(batch: list[Any]) -> None:
    asked = as_queries(batch, "search")
    words = searching.analyse_queries(ENGINE.index.memory.state, asked)
    each = [searching.analyse(ENGINE.index.memory.state, query) for query in asked]
    assert [words.terms[a:b].tolist() for a, b in zip(words.offsets, words.offsets[1:], strict=False)] == each
    for first in range(len(batch) + 1):
        part = words.slice(first, len(batch))
        assert part.terms.tolist() == [term for own in each[first:] for term in own]
        assert part.offsets.tolist() == np.cumsum([0, *map(len, each[first:])]).tolist()


@pytest.mark.parametrize("own", ["tea", "", ["tea", "jam"], ("tea",), []])
def test_a_query_of_words_alone_is_what_its_constructor_makes(own: Any) -> None:
    made = as_query(own, 0)
    expected = fr.Query(own) if isinstance(own, str) else fr.Query(terms=tuple(own))
    assert vars(made) == vars(expected)
    assert type(made) is fr.Query
    assert made == expected


@pytest.mark.parametrize("texts", [[], ["tea"], ["tea", "", "jam"]])
def test_texts_of_a_namespace_are_what_the_constructor_makes(texts: list[str]) -> None:
    made = queries_in("other", texts)
    expected = [fr.Query(text, namespace="other") for text in texts]
    assert [vars(query) for query in made] == [vars(query) for query in expected]
    assert made == expected


@pytest.mark.parametrize("batch", [["tea", "jam milk"], ("salt",), [], ["tea", fr.Query("jam")], [["tea"]]])
def test_a_namespace_answers_texts_as_queries_that_name_it(batch: Any) -> None:
    found = ENGINE.namespace("other").search(batch, 3)
    named = [fr.Query(**{**vars(query), "namespace": "other"}) for query in as_queries(batch, "search")]
    assert list(found) == list(ENGINE.search(named, 3))
    assert list(found.queries) == named


def test_terms_that_are_no_strings_are_refused() -> None:
    with pytest.raises(fr.errors.QueryError, match="terms must be a sequence of strings"):
        ENGINE.search([["tea", 5]])  # type: ignore[list-item]


def test_what_queries_share_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    compile_filter = batches.compile_filter

    def counting(filter: Any, *rest: Any) -> Any:
        compiled.append(filter)
        return compile_filter(filter, *rest)

    monkeypatch.setattr(batches, "compile_filter", counting)
    # Each has a time of its own, which decides nothing here.
    batch = [fr.Query("tea", filter={"session": f"s{n % 2}"}, now=float(n)) for n in range(20)]
    assert len({id(one.settings) for one in prepared(batch).asked}) == 2
    assert len(compiled) == 2


def test_the_error_is_of_the_first_query_that_has_one() -> None:
    with pytest.raises(fr.errors.QueryError, match="no column 'first'"):
        prepared(["tea", fr.Query(filter={"first": 1}), fr.Query(filter={"second": 1})])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 8), max_size=6),
            st.integers(0, 5),
            st.sampled_from([{}, {"since": 5.0}, {"now": 30.0, "rate": 2.0}]),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_a_plan_has_each_querys_terms_longest_list_first(asked: list[Any]) -> None:
    snapshot = ENGINE.index.memory.snapshot("")
    requests = [
        Request(row, terms, k, weights=[2 + row] * len(terms) if weighted else None, **more)
        for row, (terms, k, more, weighted) in enumerate(asked)
    ]
    plan = make_plan(snapshot, requests)
    df = snapshot.all_document_frequencies()
    held = sorted({term for own in requests for term in own.terms if term < len(df) and df[term]})
    assert plan.terms.tolist() == held
    assert plan.document_frequencies.tolist() == [df[term] for term in held]
    for row, own in enumerate(requests):
        slots = slice(int(plan.offsets[row]), int(plan.offsets[row + 1]))
        counts = Counter(term for term in own.terms if term in held)
        expected = sorted(counts, key=lambda term: (-df[term], term))
        assert [held[slot] for slot in plan.slots[slots].tolist()] == expected
        assert plan.multiplicities[slots].tolist() == [
            counts[term] * (1 if own.weights is None else 2 + row) for term in expected
        ]
        assert plan.k[row] == min(own.k, snapshot.size)
        assert (plan.now[row], plan.rates[row]) == (own.now, own.rate)
        assert plan.newest_first[row] == (own.settings.ranged or own.rate > 0)
    assert len(plan.offsets) == len(requests) + 1
    for part in plan.segments:
        for row, own in enumerate(requests):
            times = part.segment.times
            assert times is not None
            inside = np.flatnonzero(times >= own.since)
            assert (part.low[row], part.high[row]) == (inside[0], inside[-1] + 1)


def test_limits_are_shared_by_value_or_by_identity_with_one_plan() -> None:
    snapshot = ENGINE.index.memory.snapshot("")
    accepted = prepared([fr.Query(filter={"session": "s1"})]).asked[0].settings.filter
    requests = Requests.of([Request(0, [0], 2), Request(1, [1], 2, accepted), Request(2, [2], 2)])
    assert requests.settings == (QuerySettings(), QuerySettings(accepted))
    assert requests.setting.tolist() == [0, 1, 0]
    apart = Requests(
        requests.rows,
        requests.k,
        requests.terms,
        requests.offsets,
        (QuerySettings(), QuerySettings(accepted), QuerySettings()),
        np.arange(3),
    )
    for ours, theirs in zip(plan_of(snapshot, requests).segments, plan_of(snapshot, apart).segments, strict=True):
        assert ours.filters.tolist() == theirs.filters.tolist() == [-1, 0, -1]
        assert ours.low.tolist() == theirs.low.tolist()
        assert len(ours.passing) == len(theirs.passing) == 1
