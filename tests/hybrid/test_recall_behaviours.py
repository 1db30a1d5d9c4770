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


def test_an_exact_identifier_is_found_by_its_words() -> None:
    """SPEC B062: for the vectors, 25 other memories stand nearer; rank 1 of BM25 wins the fusion all the same."""
    doors = [fr.Record(f"door {n}", f"door card number {n} opens the garage", embedding=near(0.9)) for n in range(24)]
    engine = memory_of(
        [
            *doors,
            fr.Record("photo", "the badge photo was taken again", embedding=near(0.85)),
            fr.Record("badge", "badge ID is 47821", embedding=near(0.5)),
        ]
    )
    hits = ask(engine, "what's my badge ID 47821?")
    shares = said(hits, "badge")
    assert shares["bm25"].rank == 1
    assert shares["dense"].rank == 26
    assert names(hits)[0] == "badge"
    assert names(ask(engine, "what's my badge ID 47821?", "dense", k=30))[25] == "badge"


def test_without_a_named_entity_the_graph_is_silent() -> None:
    """SPEC B026, B062: "climate" is a concept that no record names as an entity; the other two cover it."""
    engine = memory_of(
        [
            fr.Record(
                "sea", "Sarah worries about climate and the sea", entities={"Sarah": "sarah"}, embedding=near(0.8)
            ),
            fr.Record("heat", "heat pumps pay off in ten years", embedding=near(0.7)),
            fr.Record("berlin", "Sarah moved to Berlin", entities={"Sarah": "sarah"}, embedding=ELSEWHERE),
        ]
    )
    hits = ask(engine, "what did I say about climate?")
    assert names(hits)[:2] == ["sea", "heat"]
    for record in names(hits):
        assert said(hits, record)["graph"].rank is None
        assert said(hits, record)["graph"].share == 0.0
    assert decision(hits).entities == {}
    assert "graph" in decision(hits).skipped
    candidates, _ = engine.candidates([fr.Query("what did I say about climate?", now=NOW, vector=ASKED)], "recall")
    assert not candidates.channels["graph"].listed.any()


KESTREL = "what's my setting for the Kestrel project timeout?"


def kestrel_memory(count: int) -> fr.Engine:
    fact = fr.Record("timeout", "Kestrel project timeout is 30 seconds", type="Fact", embedding=near(0.9))
    preferences = [
        fr.Record(f"preference {n}", f"setting {n}: dark colours", type="Preference", embedding=near(0.5))
        for n in range(count)
    ]
    return memory_of([fact, *preferences])


def test_a_fact_is_found_whatever_type_is_hinted_at() -> None:
    """SPEC B062, G1: "setting" asks for Preferences. They are raised, and the Fact stays first all the same."""
    for count in (2, 6, 60):
        hits = ask(kestrel_memory(count), KESTREL)
        assert decision(hits).hints == ("Preference",)
        assert not decision(hits).widened
        assert names(hits)[0] == "timeout"
        assert said(hits, "preference 1")["hints"].rank == 1
        assert said(hits, "timeout")["hints"].rank is None


def test_the_source_s_filter_is_dropped_for_few_hits() -> None:
    """SPEC B042, B043, by `recall-source`: with 5 Preferences the filter stands, and the Fact is not among the hits."""
    for count, widened in ((2, True), (4, True), (5, False), (6, False)):
        hits = ask(kestrel_memory(count), KESTREL, "recall-source")
        assert decision(hits).hints == ("Preference",)
        assert decision(hits).widened is widened
        assert ("timeout" in names(hits)) is widened
        assert len(names(hits)) == count + widened


def test_hints_can_be_given_and_turned_off() -> None:
    """SPEC B040: the caller may know better which types to look among; none at all is a choice, too."""
    engine = kestrel_memory(6)
    for strategy in ("recall", "recall-source"):
        given = ask(engine, KESTREL, strategy, hints=["Fact"])
        assert (decision(given).hints, names(given)[0]) == (("Fact",), "timeout")
        free = ask(engine, KESTREL, strategy, hints=[])
        assert (decision(free).hints, decision(free).widened, names(free)[0]) == ((), False, "timeout")


def test_a_hint_raises_what_agrees() -> None:
    """SPEC B043: of three equal texts the one of the hinted type comes first, whether the type is read or given."""
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


DIARY = [
    fr.Record("new dentist", "dentist at nine", type="Event", time=NOW - 0.5 * DAY, embedding=ELSEWHERE),
    fr.Record("launch", "Kestrel was launched", type="Event", time=NOW - 0.9 * DAY, embedding=ELSEWHERE),
    fr.Record("edge", "the month of May began anew", type="Event", time=NOW - DAY, embedding=ELSEWHERE),
    fr.Record("old dentist", "dentist at nine", type="Event", time=NOW - 40 * DAY, embedding=ELSEWHERE),
    fr.Record("fact", "the dentist is Doctor Hall", type="Fact", time=NOW - 0.5 * DAY, embedding=ELSEWHERE),
]


def test_what_happened_yesterday_is_a_matter_of_time_alone() -> None:
    """SPEC B031, B034, B035, B060: words and vectors are not asked; the Events of the last day, of one rank, the border
    among them, and no Fact written meanwhile."""
    hits = ask(memory_of(DIARY), "what happened yesterday?")
    literal = ask(memory_of(DIARY), "what happened yesterday?", "recall-source")
    made = decision(hits)
    assert (made.when.start, made.when.end, made.when.expression) == (NOW - DAY, NOW, "yesterday")
    assert {"bm25", "dense"} <= set(made.skipped)
    assert "temporal" not in made.skipped
    assert names(hits) == names(literal) == ["new dentist", "launch", "edge"]
    assert literal.scores[0, :3].tolist() == [pytest.approx(1 / 61)] * 3


SINCE = "what changed since we last talked?"


def test_since_we_last_talked_without_a_session_log() -> None:
    """SPEC B033: no time at all, never everything."""
    hits = ask(memory_of(DIARY), SINCE)
    assert decision(hits).when is None
    assert "temporal" in decision(hits).skipped
    for record in ("new dentist", "launch", "edge", "old dentist"):
        assert record not in names(hits) or said(hits, record)["temporal"].rank is None


def test_since_we_last_talked_with_a_session_log() -> None:
    """SPEC B033: from the end of that session, to the second."""
    hits = ask(memory_of(DIARY), SINCE, last_session_end=NOW - 0.9 * DAY)
    made = decision(hits)
    assert (made.when.start, made.when.end, made.when.kind) == (NOW - 0.9 * DAY, NOW, "session")
    listed = [name for name in names(hits) if said(hits, name)["temporal"].rank is not None]
    assert sorted(listed) == ["launch", "new dentist"]


def test_the_latest_only_hints_at_a_time() -> None:
    """SPEC B052, X20: the last 30 days at half the weight, and the words still count."""
    hits = ask(memory_of(DIARY), "the latest dentist appointment")
    made = decision(hits)
    assert made.when.speculative
    assert "bm25" not in made.skipped
    literal = ask(memory_of(DIARY), "the latest dentist appointment", "recall-source")
    assert said(literal, "new dentist")["temporal"].share == pytest.approx(0.5 / 61)
    # Half of the boost of 1, less the share of the window among the five candidates.
    assert said(hits, "new dentist")["temporal"].share == pytest.approx(0.5 * (1 - 3 / 5))
    assert said(hits, "old dentist")["temporal"].rank is None
    assert names(hits)[0] == "new dentist"


def test_without_its_own_time_a_query_names_none() -> None:
    """SPEC A062: "yesterday" is the query's, not the machine's."""
    hits = ask(memory_of(DIARY), "what happened yesterday?", now=None)
    assert decision(hits).when is None
    assert "temporal" in decision(hits).skipped
