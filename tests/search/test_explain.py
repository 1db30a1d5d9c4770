"""Explanations by hand, and why a query has no hits. That scores add up is in test_one_answer.py."""

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import fanrank as fr
from fanrank.engine.search import notes
from fanrank.engine.search.keyword_scan import scan
from fanrank.engine.search.notes import Notes


def pets(**options: Any) -> fr.Engine:
    return fr.Engine.from_records(
        [
            fr.Record("old", "cat cat dog", role="user"),
            fr.Record("none", "fish"),
            fr.Record("new", "dog dog fish fish"),
        ],
        analyzer="minimal",
        **options,
    )


def rounded(idf: float, tf: int, length: int) -> int:
    return round(idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / (8 / 3))) * 2**18)


def test_each_term_by_hand() -> None:
    found = pets().explain("dog cat dog bird", "old")
    cat, dog = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)
    terms = {term.term: term for term in found.terms}
    assert set(terms) == {"cat", "dog"}
    assert (terms["cat"].multiplicity, terms["dog"].multiplicity) == (1, 2)
    assert (terms["cat"].document_frequency, terms["dog"].document_frequency) == (1, 2)
    assert (terms["cat"].idf, terms["dog"].idf) == pytest.approx((cat, dog))
    assert (terms["cat"].frequencies, terms["dog"].frequencies) == ({"text": 2}, {"text": 1})
    assert terms["cat"].quanta == rounded(cat, 2, 3)
    assert terms["dog"].quanta == 2 * rounded(dog, 1, 3)
    assert [term.term for term in found.terms] == ["cat", "dog"]  # the largest first
    assert found.quanta == sum(term.quanta for term in found.terms)
    assert found.score == sum(term.score for term in found.terms) == found.quanta / 2**18
    assert (found.id, found.document, found.query, found.length) == ("old", 0, 0, {"text": 3})
    assert found.matched
    assert found.passed


def test_what_a_query_keeps_out_is_explained_all_the_same() -> None:
    """Also where the search reads nothing of a segment, as none of it can be a hit."""
    made = fr.Engine(analyzer="minimal")
    made.add([fr.Record(str(n), "cat", time=float(n), session="s") for n in range(8)])
    made.add([fr.Record("late", "cat dog", time=20.0), fr.Record("timeless", "dog")])
    assert made.stats()["segments"] == 2
    plain = made.explain("cat dog", "late")
    assert plain.passed
    kept_out = [
        fr.Query("cat dog", since=0.0, until=19.0),
        fr.Query("cat dog", since=20.5),
        fr.Query("cat dog", filter={"session": "s"}),
        fr.Query("cat dog", filter={"session": "nobody"}),
        fr.Query("cat dog", windows=1, now=-7 * 86_400.0),
    ]
    for query in kept_out:
        found = made.explain(query, "late")
        assert (found.matched, found.passed, found.score, found.terms) == (True, False, plain.score, plain.terms)
        assert found.document == 8
    for query, passed in (
        (fr.Query("dog", since=0.0), False),  # no time
        (fr.Query("dog", filter={"session": None}), True),
        (fr.Query("cat", filter={"session": None}), True),
    ):
        found = made.explain(query, "timeless")
        assert (found.passed, found.matched) == (passed, query.text == "dog")
    assert made.explain(fr.Query("cat", since=3.0, until=3.0), "3").passed
    # With statistics of their own, documents that do not pass are not there to be explained.
    apart = made.explain(fr.Query("cat dog", filter={"session": "s"}, statistics="filtered"), "late")
    assert (apart.document, apart.passed, apart.terms, apart.score) == (8, False, (), 0.0)


def test_the_dead_cannot_be_explained_but_by_the_hits_that_hold_them() -> None:
    made = pets()
    hits = made.search(["dog"])
    before = hits.explain(0, "new")
    made.delete(["new"])
    assert hits.explain(0, "new") == before
    with pytest.raises(fr.errors.UnknownIdError, match="'new'"):
        made.explain("dog", "new")
    left = made.explain("dog fish", "old")
    assert {term.term: term.document_frequency for term in left.terms} == {"dog": 1}
    assert left.terms[0].idf == math.log(1 + 1.5 / 1.5)


def test_a_score_that_fades() -> None:
    made = fr.Engine(analyzer="minimal")
    made.add([fr.Record("a", "cat", time=0.0), fr.Record("b", "dog dog", time=50.0), fr.Record("c", "cat")])
    for age, decay in ((0.0, 1.0), (10.0, 0.5), (30.0, 0.125), (-5.0, 1.0)):
        query = fr.Query("cat", now=age, half_life=10.0)
        found, plain = made.explain(query, "a"), made.explain("cat", "a")
        assert (found.decay, found.quanta, found.terms) == (decay, plain.quanta, plain.terms)
        assert found.score == plain.score * decay == dict(made.search([query])[0])["a"]
        assert (f"quanta x {decay!r} / 2**18" in str(found)) == (decay != 1.0)
        assert made.explain(query, "c").decay == 1.0


def test_positions_and_names_that_do_not_exist() -> None:
    hits = pets().search(["dog", fr.Query("dog", namespace="nowhere")])
    assert hits.explain(-2, "old").query == hits.explain(0, "old").query == 0
    for position in (2, -3):
        with pytest.raises(fr.errors.QueryError, match=f"no query {position} in a batch of 2"):
            hits.explain(position, "old")
    with pytest.raises(fr.errors.UnknownIdError, match="'nobody'") as caught:
        hits.explain(0, "nobody")
    assert isinstance(caught.value, LookupError)
    with pytest.raises(fr.errors.UnknownIdError, match="nowhere"):
        hits.explain(1, "old")


def test_it_prints_and_serialises() -> None:
    found = pets().explain("dog cat", "old")
    lines = str(found).splitlines()
    assert lines[0] == f"old: {found.score!r} = {found.quanta} quanta / 2**18"
    assert len(lines) == 3
    assert "cat x1  tf {'text': 2}  df 1  idf 0.980829" in lines[1]
    assert sum(float(line.split()[0]) for line in lines[1:]) == found.score
    data = json.loads(json.dumps(found.to_dict()))
    assert data["terms"][0]["term"] == "cat"
    assert data["score"] == found.score


CASES: list[tuple[Any, str | None]] = [
    ("tea", None),
    ("the", notes.UNSEARCHABLE),
    ("of the and", notes.UNSEARCHABLE),
    ("", notes.EMPTY),
    ("?! ...", notes.EMPTY),
    (fr.Query(terms=[]), notes.EMPTY),
    (fr.Query("tea", terms=[]), notes.EMPTY),
    (fr.Query("the", offset=2), notes.UNSEARCHABLE),
    (fr.Query("the", min_score=1.0), notes.UNSEARCHABLE),
    (fr.Query("", offset=2), notes.EMPTY),
    (fr.Query("zebra", offset=2), notes.UNKNOWN),
    (fr.Query("zebra", min_score=1.0, collapse="role"), notes.UNKNOWN),
    (fr.Query("tea", offset=2), None),
    (fr.Query("tea", min_score=99.0, filter={"role": "tool"}), None),
    (fr.Query("tea", offset=2, namespace="nobody"), notes.NO_RECORDS),
    ("zebra", notes.UNKNOWN),
    ("the zebra", notes.UNKNOWN),
    (fr.Query(terms=["Tea"]), notes.UNKNOWN),
    ("bread", notes.UNKNOWN),  # a word of another tenant
    (fr.Query("bread", namespace="other"), None),
    (fr.Query("tea", namespace="other"), notes.UNKNOWN),
    (fr.Query("tea", namespace="nobody"), notes.NO_RECORDS),
    (fr.Query("the", namespace="nobody"), notes.UNSEARCHABLE),
    (fr.Query("tea", filter={"role": "tool"}), notes.NARROWED),
    (fr.Query("tea", since=100.0), notes.UNDATED),
    (fr.Query("tea", since=1.0, filter={"role": "tool"}), notes.NARROWED),
    (fr.Query("tea", scope=fr.SearchScope.session("s")), notes.NARROWED),
    (fr.Query("tea", k=0), None),
    (fr.Query("zebra", namespaces=["", "other"]), notes.UNKNOWN),
    (fr.Query("bread", namespaces=["", "other"]), None),
    (fr.Query("bread", under="nobody"), notes.NO_RECORDS),
    ("gone", notes.UNKNOWN),  # a word of a deleted record
]


LEXICAL = fr.Cascade(
    tau=1.0,
    escalate=fr.Strategy("two", (fr.strategies.Lexical("one"), fr.strategies.Lexical("other")), fr.strategies.RRF()),
)
"""A policy that needs neither vectors nor times."""


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    made = fr.Engine(encoder=fr.OwnVectors(2))
    made.add(
        [
            fr.Record("a", "tea", time=5.0, role="user"),
            fr.Record("b", "bread", namespace="other"),
            fr.Record("c", "gone"),
        ]
    )
    made.delete(["c"])
    return made


@pytest.mark.parametrize("strategy", ["bm25", LEXICAL, LEXICAL.escalate])
def test_a_query_without_hits_says_why(engine: fr.Engine, strategy: Any) -> None:
    hits = engine.search([query for query, _ in CASES], strategy=strategy)
    assert list(hits.notes) == [note for _, note in CASES]


def test_it_says_the_same_of_a_query_alone(engine: fr.Engine) -> None:
    for query, expected in CASES:
        assert engine.search([query]).notes == (expected,)
        assert engine.submit([query]).result().notes == (expected,)
        assert [hits.notes for hits in engine.search_stream([[query]])] == [(expected,)]


def test_an_analyzer_that_drops_numbers_leaves_no_word() -> None:
    engine = fr.Engine(analyzer="nltk-numbers")
    engine.add([fr.Record("a", "tea 2024")])
    assert engine.search(["2024"]).notes == (notes.UNSEARCHABLE,)
    assert "stop words" not in notes.UNSEARCHABLE


def test_a_scan_says_that_it_answered(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add([fr.Record("a", "teapot")])
        hits = scan(engine.index.memory, ["teapot", "zebra", "the", fr.Query("zebra", k=0), fr.Query(terms=[])], 3)
    assert hits.notes == (None, notes.SCANNED, notes.NO_KEYWORDS, None, notes.NO_KEYWORDS)


def test_meaning_needs_no_word(engine: fr.Engine) -> None:
    hits = engine.search([fr.Query("zebra", vector=[1, 0])], strategy="dense")
    assert (hits.counts[0], hits.notes) == (0, (None,))


def test_notes_are_those_of_the_search(tmp_path: Path) -> None:
    engine = fr.Engine()
    engine.add([fr.Record("a", "tea")])
    before = engine.search(["jam", "tea"])
    mixed = engine.search(["jam", fr.Query("tea", k=3)])
    engine.add([fr.Record("b", "jam")])
    assert before.notes == mixed.notes == (notes.UNKNOWN, None)
    assert before.notes is before.notes


def test_notes_cost_nothing_until_they_are_read(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notes, "__call__", Mock(side_effect=AssertionError("a note was made")))
    hits = engine.search(["zebra", fr.Query("tea", k=2)])
    assert hits[0] == []
    with pytest.raises(AssertionError, match="a note was made"):
        hits.notes  # noqa: B018
    assert engine.search(["tea"]).notes == (None,)


def test_a_part_of_an_answer_holds_no_other_tenant() -> None:
    engine = fr.Engine()
    engine.add([fr.Record("a", "tea"), fr.Record("b", "jam", namespace="other")])
    queries = (fr.Query("salt"), fr.Query("salt", namespace="other", k=3))
    hits = engine.search(queries)
    part = hits.slice(0, 1, 3, queries[:1])
    assert part.notes == (notes.UNKNOWN,)
    assert isinstance(part.annotator, Notes)
    assert len(part.annotator.asked) == 1
    assert part.annotator.asked[0].snapshot is engine.index.memory.snapshots[""]
