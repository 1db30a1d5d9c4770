"""Recall's hints only help: the sources' own questions on typed memories of 25 to 1,000 records (SPEC B043, B062)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from support.typed_memory import NOW, QUESTIONS, WordVectors, memory_records

import fanrank as fr

SIZES = (25, 125, 1_000)
ASKED = [fr.Query(text, now=NOW) for text, _, _ in QUESTIONS]


@cache
def memory(size: int, backend: str | None = None) -> fr.Engine:
    engine = fr.Engine(encoder=WordVectors(), backend=backend)
    records = memory_records(size)
    # Several segments, so that document numbers and rows of a segment differ.
    for start in range(0, size, 1 + size // 3):
        engine.add(records[start : start + 1 + size // 3])
    return engine


def places(engine: fr.Engine, strategy: str | fr.Strategy, k: int = 100) -> list[int]:
    """The rank of each question's answer, 0 where it is not among the first k."""
    hits = engine.search(ASKED, k, strategy=strategy)
    return [
        next((rank for rank, (name, _) in enumerate(row, 1) if name == f"answer {number}"), 0)
        for number, row in enumerate(hits)
    ]


@pytest.mark.parametrize("size", SIZES)
def test_what_plain_fusion_ranks_first_recall_ranks_first(size: int) -> None:
    engine = memory(size)
    found = dict(zip((text for text, _, _ in QUESTIONS), places(engine, "recall"), strict=True))
    for name in ("rrf", "fused", "bm25"):
        first = [text for text, rank in zip(found, places(engine, name), strict=True) if rank == 1]
        assert len(first) >= 13  # otherwise this test shows nothing
        assert {text: found[text] for text in first} == dict.fromkeys(first, 1), name


def test_the_source_s_filter_loses_answers_in_a_large_memory() -> None:
    """The same test fails for the literal reading, so it can fail."""
    assert places(memory(125), "recall-source").count(0) >= 8


@pytest.mark.parametrize("size", SIZES)
def test_hints_that_mislead_remove_nothing(size: int) -> None:
    """Whatever type a query is said to ask for, the same records are found, and answers at the top stay near it."""
    engine = memory(size)
    free = engine.search([replace(query, hints=[]) for query in ASKED], size, strategy="recall")
    for kind in ("Preference", "Event", "Entity", "Fact"):
        misled = engine.search([replace(query, hints=[kind]) for query in ASKED], size, strategy="recall")
        for number, (row, other) in enumerate(zip(misled, free, strict=True)):
            assert {name for name, _ in row} == {name for name, _ in other}
            if other[0][0] == f"answer {number}":
                assert f"answer {number}" in [name for name, _ in row[:3]]


def test_a_hint_raises_what_agrees() -> None:
    engine = fr.Engine(encoder=WordVectors())
    texts = ["green tea", "green tea", "green tea", "red wine", "blue boat"]
    kinds = ["Fact", "Event", "Preference", "Preference", None]
    engine.add([fr.Record(f"r{n}", text, type=kind) for n, (text, kind) in enumerate(zip(texts, kinds, strict=True))])
    asked = fr.Query("do I like green tea?", now=NOW)
    hits = engine.search([asked], strategy="recall")
    assert hits.decisions is not None
    assert hits.decisions[0].hints == ("Preference",)
    assert [name for name, _ in hits[0]][:3] == ["r2", "r0", "r1"]
    shares = {share.channel: share for share in hits.explain(0, "r2").channels}  # type: ignore[union-attr]
    # Two of the five candidates are Preferences, so the boost of .5 counts three fifths.
    assert (shares["hints"].rank, shares["hints"].share) == (1, pytest.approx(0.5 * 0.6))
    for hints, first in ((["Event"], "r1"), ([], "r0")):
        assert engine.search([replace(asked, hints=hints)], strategy="recall")[0][0][0] == first


def test_a_name_raises_all_who_bear_it_beyond_the_depth_of_the_list() -> None:
    """With a depth of 5 the graph lists the first 5 of 20 records that name Ana; record 19 counts as they do."""
    engine = fr.Engine(encoder=WordVectors())
    engine.add(
        fr.Record(f"r{n}", f"note {n}" + (" boat" if n > 17 else ""), entities=["ana"] if n % 2 else None)
        for n in range(40)
    )
    strategy = replace(fr.strategies.STRATEGIES["recall"], depth=5)
    asked = fr.Query("boat notes of ana", now=NOW)
    together = engine.search([asked, fr.Query("note", now=NOW), asked], 5, strategy=strategy)
    alone = engine.search([asked], 5, strategy=strategy)
    assert together[0] == together[2] == alone[0]
    shares = {}
    for name in ("r1", "r9", "r18", "r19"):
        explained = alone.explain(0, name)
        assert isinstance(explained, fr.reports.FusedExplanation)
        (shares[name],) = (own for own in explained.channels if own.channel == "graph")
    assert [own.rank for own in shares.values()] == [1, 5, None, None]
    assert shares["r1"].share == shares["r9"].share == shares["r19"].share > 0.0
    assert shares["r18"].share == 0.0
