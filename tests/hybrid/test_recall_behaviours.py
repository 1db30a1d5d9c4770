"""What each retriever of ``recall`` finds and misses, on memories small enough to read (SPEC B020 to B062, X20)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import pytest

import fanrank as fr
from fanrank.engine.hybrid.strategy import Strategy
from fanrank.engine.records.entities import Relation
from fanrank.engine.records.explanation import ChannelShare, FusedExplanation
from fanrank.engine.records.hits import Hits

DAY = 86_400.0
NOW = datetime(2024, 5, 15, 12, tzinfo=timezone.utc).timestamp()  # a Wednesday

Vector = Sequence[float]


def near(cosine: float) -> Vector:
    """A vector with this cosine to the queries' own, [1, 0, 0]."""
    return [cosine, math.sqrt(1.0 - cosine * cosine), 0.0]


ASKED: Vector = [1.0, 0.0, 0.0]
ELSEWHERE: Vector = [0.0, 0.0, 1.0]
"""Of nothing that any query is about."""


def memory_of(records: Iterable[fr.Record]) -> fr.Engine:
    engine = fr.Engine(encoder=fr.OwnVectors(3))
    engine.add(records)
    return engine


def ask(engine: fr.Engine, text: str, strategy: str | Strategy = "recall", **more: object) -> Hits:
    given = {"now": NOW, "vector": ASKED, **more}
    return engine.search([fr.Query(text, **given)], strategy=strategy)  # type: ignore[arg-type]


def names(hits: Hits) -> list[str]:
    return [name for name, _ in hits[0]]


def decision(hits: Hits) -> fr.routing.Decision:
    return hits.decisions[0]


def said(hits: Hits, record: str) -> dict[str, ChannelShare]:
    """What each channel says of a record."""
    found = hits.explain(0, record)
    assert isinstance(found, FusedExplanation)
    return {share.channel: share for share in found.channels}


KESTREL = "what's my setting for the Kestrel project timeout?"


def kestrel_memory(count: int) -> fr.Engine:
    fact = fr.Record("timeout", "Kestrel project timeout is 30 seconds", type="Fact", embedding=near(0.9))
    preferences = [
        fr.Record(f"preference {n}", f"setting {n}: dark colours", type="Preference", embedding=near(0.5))
        for n in range(count)
    ]
    return memory_of([fact, *preferences])


def test_the_source_s_filter_is_dropped_for_few_hits() -> None:
    """SPEC B042, B043, by `recall-source`: with 5 Preferences the filter stands, and the Fact is not among the hits."""
    for count, widened in ((2, True), (4, True), (5, False), (6, False)):
        hits = ask(kestrel_memory(count), KESTREL, "recall-source")
        assert decision(hits).hints == ("Preference",)
        assert decision(hits).widened is widened
        assert ("timeout" in names(hits)) is widened
        assert len(names(hits)) == count + widened


def test_a_hint_raises_what_agrees() -> None:
    """SPEC B040, B043: of three equal texts that of the hinted type comes first, whether the type is read or given."""
    texts, kinds = ["green tea"] * 3 + ["red wine", "blue boat"], ["Fact", "Event", "Preference", "Preference", None]
    engine = memory_of(
        fr.Record(f"r{n}", text, type=kind, embedding=near(0.9 if n < 3 else 0.1))
        for n, (text, kind) in enumerate(zip(texts, kinds, strict=True))
    )
    hits = ask(engine, "do I like green tea?")
    assert decision(hits).hints == ("Preference",)
    assert names(hits)[:3] == ["r2", "r0", "r1"]
    # Two of the five candidates are Preferences, so the boost of .5 counts three fifths.
    hint = said(hits, "r2")["hints"]
    assert (hint.rank, hint.share) == (1, pytest.approx(0.5 * 0.6))
    for hints, first in ((["Event"], "r1"), ([], "r0")):
        misled = ask(engine, "do I like green tea?", hints=hints)
        assert names(misled)[0] == first
        assert set(names(misled)) == set(names(hits))  # a hint removes nothing


def test_a_name_raises_all_who_bear_it_beyond_the_depth_of_the_list() -> None:
    """With a depth of 5 the graph lists the first 5 of 20 records that name Ana; record 19 counts as they do."""
    engine = fr.Engine()
    engine.add(
        fr.Record(f"r{n}", f"note {n}" + (" boat" if n > 17 else ""), entities=["ana"] if n % 2 else None)
        for n in range(40)
    )
    strategy = replace(fr.strategies.STRATEGIES["recall"], depth=5)
    hits = engine.search([fr.Query("boat notes of ana", now=NOW)], 5, strategy=strategy)
    shares = {name: said(hits, name)["graph"] for name in ("r1", "r9", "r18", "r19")}
    assert [own.rank for own in shares.values()] == [1, 5, None, None]
    assert shares["r1"].share == shares["r9"].share == shares["r19"].share > 0.0
    assert shares["r18"].share == 0.0


TEAM = [
    fr.Record(
        "chart",
        "org chart of March",
        entities={"Tom": "tom", "Sarah": "sarah"},
        relations=[Relation("tom", "sarah", "reports-to", confidence=0.95)],
        embedding=ELSEWHERE,
    ),
    fr.Record(
        "nuts",
        "Tom is allergic to nuts",
        entities={"Tom": "tom"},
        relations=[Relation("tom", "kestrel", "works-on")],
        embedding=ELSEWHERE,
    ),
    fr.Record("kestrel", "Kestrel starts in June", entities={"Kestrel": "kestrel"}, embedding=ELSEWHERE),
    fr.Record("rain", "Bob hates rain", entities={"Bob": "bob"}, embedding=ELSEWHERE),
]


def test_who_reports_to_sarah() -> None:
    """SPEC B020 to B024, B052: the chart names her; Tom is an edge away (.6 x .95 = .57), his project two."""
    hits = ask(memory_of(TEAM), "who reports to Sarah?")
    assert decision(hits).entities == {"sarah": 1.0}
    graph = {name: said(hits, name)["graph"] for name in ("chart", "nuts", "kestrel", "rain")}
    assert [own.rank for own in graph.values()] == [1, 2, 3, None]
    assert [graph[name].score for name in ("chart", "nuts", "kestrel")] == pytest.approx([1.0, 0.57, 0.35 * 0.95])
    assert names(hits)[0] == "chart"
    # A quarter of the boost of .5: vectors list four records, and three of them are in the graph's list.
    assert graph["chart"].share == pytest.approx(0.5 * 0.25)
    assert graph["nuts"].share == pytest.approx(0.5 * 0.25 * 0.8 * 0.57)
    literal = ask(memory_of(TEAM), "who reports to Sarah?", "recall-source")
    assert said(literal, "chart")["graph"].share == pytest.approx(1 / 61)
    assert said(literal, "nuts")["graph"].share == pytest.approx(0.8 * math.sqrt(0.57) / 62)


def test_a_relation_that_has_ended_counts_little() -> None:
    """SPEC B022: .3 once it has expired at the query's own time; before, all of it."""
    ended = Relation("tom", "sarah", "reports-to", valid_to=NOW - DAY)
    engine = memory_of([replace(TEAM[0], relations=[ended]), *TEAM[1:]])
    for now, score in ((NOW, 0.6 * 0.3), (NOW - 2 * DAY, 0.6)):
        assert said(ask(engine, "who reports to Sarah?", now=now), "nuts")["graph"].score == pytest.approx(score)


def test_without_its_own_time_a_query_names_none() -> None:
    """SPEC A062: "yesterday" is the query's, not the machine's."""
    event = fr.Record("dentist", "dentist at nine", type="Event", time=NOW - DAY / 2, embedding=near(0.5))
    hits = ask(memory_of([event]), "what happened yesterday?", now=None)
    assert decision(hits).when is None
    assert "temporal" in decision(hits).skipped
