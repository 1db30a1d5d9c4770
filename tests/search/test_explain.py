"""Explanations, by hand. That they add up to every score is in test_one_answer.py."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import fanrank as fr


def engine(**options: Any) -> fr.Engine:
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
    found = engine().explain("dog cat dog bird", "old")
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
    made = engine()
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
    hits = engine().search(["dog", fr.Query("dog", namespace="nowhere")])
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
    found = engine().explain("dog cat", "old")
    lines = str(found).splitlines()
    assert lines[0] == f"old: {found.score!r} = {found.quanta} quanta / 2**18"
    assert len(lines) == 3
    assert "cat x1  tf {'text': 2}  df 1  idf 0.980829" in lines[1]
    assert sum(float(line.split()[0]) for line in lines[1:]) == found.score
    data = json.loads(json.dumps(found.to_dict()))
    assert data["terms"][0]["term"] == "cat"
    assert data["score"] == found.score
