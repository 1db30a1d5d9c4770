"""Why a query has no hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import fanrank as fr
from fanrank.engine.search import notes
from fanrank.engine.search.keyword_scan import scan
from fanrank.engine.search.notes import Notes

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
    (fr.Query("tea", since=100.0), notes.NARROWED),
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
