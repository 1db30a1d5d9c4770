"""Recall, and the source's own form, against a plain reading: each list by a search of its own, fused by loops; what
each retriever finds and misses, on memories small enough to read (SPEC B020 to B062, X20)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fuse_cases import Evidence
from support.fuse_oracle import standardized
from support.hashing import Hashing

import fanrank as fr
from fanrank import Engine, OwnVectors, Query, Record, Relation, Strategy
from fanrank.engine.errors import ParameterError, QueryError
from fanrank.engine.fuse import ScoreRRF
from fanrank.engine.hybrid.strategy import Conversation, Graph, Temporal
from fanrank.engine.recall import graphs
from fanrank.engine.records.decision import Decision
from fanrank.engine.records.explanation import ChannelShare, FusedExplanation
from fanrank.engine.records.hits import Hits
from fanrank.engine.text.time_expressions.parse import parse_when

DAY = 86400.0
NOW = 100 * DAY
WORDS = ["tea", "rain", "boat", "red", "wind", "ana", "bob", "prefer", "lately"]
TYPES = [None, "Fact", "Preference", "Event", "Entity"]


def vector(text: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(text.encode()) + len(text)).normal(size=6)


def record(number: int, text: str, kind: str | None, days: int | None, entity: str | None, edge: bool) -> Record:
    return Record(
        f"r{number}",
        text,
        type=kind,
        time=None if days is None else NOW - days * DAY,
        session=f"s{number % 3}",
        entities=None if entity is None else [entity],
        relations=[Relation(entity, "bob", "reports-to", confidence=0.9)] if edge and entity else None,
        embedding=vector(text) if number % 4 else None,
    )


records = st.lists(
    st.tuples(
        st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
        st.sampled_from(TYPES),
        st.sampled_from([None, 1, 10, 10, 29, 40]),
        st.sampled_from([None, "ana", "bob"]),
        st.booleans(),
    ),
    max_size=16,
)
questions = st.lists(
    st.lists(st.sampled_from([*WORDS, "when did", "yesterday", "recent", "who is"]), max_size=4).map(" ".join),
    min_size=1,
    max_size=5,
)


def asked(text: str) -> Query:
    return Query(text, vector=vector(text + "?"), now=NOW)


def by_the_source(engine: Engine, rows: list[tuple[Any, ...]], query: Query, hits: Hits, row: int) -> dict[str, float]:
    """The scores of the records that `recall-source` may return, by its definition."""
    decision = hits.decisions[row]
    every = [record(number, *own) for number, own in enumerate(rows)]
    hinted = replace(query, filter={"type": list(decision.hints)}) if decision.hints else query
    searched = [name for name in ("bm25", "dense") if name not in decision.skipped]
    lists = {name: engine.search([hinted], 100, strategy=name)[0] for name in searched}
    if decision.hints and searched and len({name for own in lists.values() for name, _ in own}) < 5:
        assert decision.widened
        lists = {name: engine.search([query], 100, strategy=name)[0] for name in searched}
    else:
        assert not decision.widened
    total: dict[str, float] = {}
    for name, own in lists.items():
        largest = max((score for _, score in own), default=0.0)
        for rank, (found, score) in enumerate(own, 1):
            share = max(score, 0.0) / largest if name == "bm25" else min(max(score, 0.0), 1.0)
            total[found] = total.get(found, 0.0) + math.sqrt(share) / (60.0 + rank)
    if "graph" not in decision.skipped:
        near = {own.id for own in every if set(own.entities or ()) & set(decision.entities)}
        near |= {
            own.id
            for own in every
            for edge in own.relations or ()
            if {edge.source, edge.target} & set(decision.entities)
        }
        for rank, (found, score) in enumerate(engine.search([query], 100, strategy="graph")[0], 1):
            weight = 1.0 if found in near else 0.8
            total[found] = total.get(found, 0.0) + weight * math.sqrt(score) / (60.0 + rank)
    for name in times_inside(rows, query, decision):
        total[name] = total.get(name, 0.0) + (0.5 if decision.when.speculative else 1.0) / 61.0
    return total


def times_inside(rows: list[tuple[Any, ...]], query: Query, decision: Decision) -> dict[str, float]:
    """The times of the events in the query's window, by id, where the temporal channel was asked (SPEC B034)."""
    when = parse_when(query.text, NOW)
    if when is None or "temporal" in decision.skipped:
        return {}
    every = [record(number, *own) for number, own in enumerate(rows)]
    return {
        own.id: float(own.time)
        for own in every
        if own.type == "Event" and own.time is not None and when.start <= own.time <= when.end
    }


def by_boosts(engine: Engine, rows: list[tuple[Any, ...]], query: Query, hits: Hits, row: int) -> dict[str, float]:
    """The scores of the records that `recall` may return, by its definition: z-scores, and boosts of what agrees."""
    decision = hits.decisions[row]
    assert not decision.widened
    every = {own.id: own for own in (record(number, *own) for number, own in enumerate(rows))}
    lists = {
        name: {} if name in decision.skipped else dict(engine.search([query], 100, strategy=name)[0])
        for name in ("bm25", "dense", "graph")
    }
    when = parse_when(query.text, NOW)
    window = {
        own.id
        for own in every.values()
        if when is not None and own.type == "Event" and own.time is not None and when.start <= own.time <= when.end
    }
    if "temporal" in decision.skipped:
        window = set()
    searched = set(lists["bm25"]) | set(lists["dense"])
    found = sorted(searched | set(lists["graph"]) | window, key=lambda name: int(name[1:]))
    total = dict.fromkeys(found, 0.0)
    for name in ("bm25", "dense"):
        # Words score every candidate, vectors those that have one.
        own = [Evidence(lists[name].get(one, 0.0), name == "bm25" or one in lists[name]) for one in found]
        weight = 0.6 if name == "bm25" else 1.0 - 0.6
        for one, z in zip(found, standardized(own, [one in searched for one in found]), strict=True):
            total[one] += weight * (0.5 * z if z < 0.0 else z)

    def near(one: str) -> bool:
        own = every[one]
        named = set(own.entities or ()) | {end for edge in own.relations or () for end in (edge.source, edge.target)}
        return bool(named & set(decision.entities))

    speculative = when is not None and when.speculative
    boosts = {
        "graph": {one: 0.5 * 1.0 * score * (1.0 if near(one) else 0.8) for one, score in lists["graph"].items()},
        "temporal": dict.fromkeys(window, 1.0 * (0.5 if speculative else 1.0)),
        "hints": {one: 0.5 for one in found if every[one].type in decision.hints},
    }
    for raised in boosts.values():
        share = len(searched & set(raised)) / max(len(searched), 1)
        for one, boost in raised.items():
            total[one] += (1.0 - share) * boost
    return total


FORMS = {"recall": by_boosts, "recall-source": by_the_source}


@pytest.mark.parametrize("strategy", FORMS)
@settings(max_examples=20)
@given(rows=records, questions=questions)
def test_recall_fuses_what_its_retrievers_find(
    strategy: str, rows: list[tuple[Any, ...]], questions: list[str]
) -> None:
    engine = Engine(encoder=OwnVectors(6), analyzer="minimal")
    engine.add(record(number, *row) for number, row in enumerate(rows))
    batch = [asked(text) for text in questions]
    hits = engine.search(batch, 20, strategy=strategy)
    assert hits.decisions is not None
    for row, query in enumerate(batch):
        if not rows:
            assert hits[row] == []
            continue
        want = FORMS[strategy](engine, rows, query, hits, row)
        found = dict(hits[row])
        assert found.keys() == want.keys()
        for name, score in want.items():
            # The order of a product's factors is another one here.
            assert found[name] == (score if strategy == "recall-source" else pytest.approx(score, rel=1e-13, abs=1e-15))
        inside = times_inside(rows, query, hits.decisions[row])
        order = sorted(found, key=lambda name: (-found[name], -inside.get(name, -math.inf), int(name[1:])))
        assert [name for name, _ in hits[row]] == order
        for name, score in hits[row]:
            shares = hits.explain(row, name)
            assert reduce(add, (share.share for share in shares.channels)) == score  # type: ignore[union-attr]


def test_words_are_not_encoded_where_dense_is_left_out() -> None:
    encoder = Hashing(dimension=6)
    engine = Engine(encoder=encoder, analyzer="minimal")
    engine.add([Record("a", "boat trip", type="Event", time=NOW - DAY / 2), Record("b", "tea")])
    encoder.asked.clear()
    hits = engine.search([Query("what happened yesterday?", now=NOW), Query("tea", now=NOW)], strategy="recall")
    assert encoder.asked == ["tea"]
    assert [[name for name, _ in own] for own in hits] == [["a"], ["b", "a"]]


def test_filters_times_and_namespaces_hold_for_every_channel() -> None:
    engine = Engine()
    engine.add(
        Record(
            f"{space}{i}",
            "tea with Annabel",
            namespace=space,
            role=role,
            type="Event",
            time=NOW - DAY,
            entities={"Annabel": "ana"},
        )
        for space in ("x", "y")
        for i, role in enumerate(["user", "tool"])
    )
    query = Query("tea with Annabel yesterday", now=NOW, namespace="x", filter={"role": "user"})
    for strategy in ("recall", "graph", "temporal", "conversation"):
        assert [name for name, _ in engine.search([query], strategy=strategy)[0]] == ["x0"], strategy
        assert engine.search([replace(query, namespace="z")], strategy=strategy)[0] == []
        assert engine.search([replace(query, until=NOW - 2 * DAY)], strategy=strategy)[0] == []


def test_bad_channels_are_named() -> None:
    for made in (lambda: Graph(hops=4), lambda: Temporal(recent_days=0.0), lambda: Conversation(ranking="x")):  # type: ignore[arg-type]
        with pytest.raises(ParameterError):
            made()
    with pytest.raises(ParameterError, match="optimizer"):
        Strategy("x", optimizer=3)  # type: ignore[arg-type]
    with pytest.raises(QueryError):
        Query("x", timezone="Mars/Olympus")
    for name in ("recall", "recall-source", "graph", "temporal", "conversation"):
        own = Strategy.of(name)
        assert Strategy.of(own.to_dict()) == own


def test_a_bare_time_in_which_nothing_took_place_is_searched_for_in_words_and_vectors() -> None:
    engine = Engine(encoder=OwnVectors(6), analyzer="minimal")
    engine.add([Record("old", "boat", type="Event", time=NOW - 50 * DAY), Record("b", "tea", embedding=vector("tea"))])
    batch = [Query("what happened yesterday?", now=now, vector=vector("x")) for now in (100 * DAY, 50.5 * DAY)]
    hits = engine.search(batch, strategy="recall")
    assert [set(decision.skipped) for decision in hits.decisions] == [{"bm25", "graph"}, {"bm25", "dense", "graph"}]
    assert [[name for name, _ in own] for own in hits] == [["b"], ["old"]]


def test_a_time_outside_the_calendar_names_its_query() -> None:
    engine = Engine()
    engine.add([Record("a", "tea")])
    with pytest.raises(QueryError, match="query 1: now"):
        engine.search([Query("tea", now=0.0), Query("tea", now=1e300)], strategy="recall")


def test_decisions_do_not_tell_an_emptied_namespace_from_none() -> None:
    emptied = Engine(encoder=OwnVectors(6))
    emptied.add([Record("a", "tea with Ana", entities=["ana"], embedding=vector("a"), type="Event", time=NOW - 9.0)])
    emptied.delete(["a"])
    query = Query("what about ana yesterday?", type="x", now=NOW, vector=vector("q"))
    one, other = (engine.search([query], strategy="recall") for engine in (emptied, Engine(encoder=OwnVectors(6))))
    assert replace(one.decisions[0], milliseconds=0.0) == replace(other.decisions[0], milliseconds=0.0)
    assert one.decisions[0].type == "x"


def test_graphs_are_made_once_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("entity_graph_of", "graph_of"):
        kept = getattr(graphs, name)
        monkeypatch.setattr(graphs, name, lambda *a, name=name, kept=kept, **k: made.append(name) or kept(*a, **k))
    engine = Engine()
    engine.add(Record(f"r{i}", "annabel sails", session=f"s{i}", entities=["annabel"]) for i in range(20))
    sessions = [Query("annabel", filter={"session": f"s{i}"}) for i in range(20)]
    engine.search(sessions, strategy="conversation")
    assert made == ["graph_of"] * 20  # a conversation asks for no entities
    made.clear()
    for _ in range(3):
        engine.search(["annabel"], strategy="graph")
        engine.search(sessions, strategy="conversation")
        engine.search(["annabel"], strategy="recall")
    assert made.count("entity_graph_of") == 1


def test_each_graph_channel_weighs_its_own_walks() -> None:
    engine = Engine()
    engine.add([Record("a", "x", entities=["ana"]), Record("b", "y", entities=["bob"])])
    engine.add([Record("c", "z", relations=[Relation("ana", "bob", "reports-to")])])
    wide, narrow = Graph(hops=2, name="wide"), Graph(hops=0, name="narrow")
    alone = engine.explain("ana", "b", strategy=Strategy("one", (wide,), ScoreRRF(scales={"wide": "clamp"})))
    for channels in ((wide, narrow), (narrow, wide)):
        strategy = Strategy("two", channels, ScoreRRF(scales={"wide": "clamp"}))
        shares = {share.channel: share.share for share in engine.explain("ana", "b", strategy=strategy).channels}  # type: ignore[union-attr]
        assert shares == {"wide": alone.score, "narrow": 0.0}


def test_a_query_names_one_time() -> None:
    with pytest.raises(ParameterError, match="one recent_days"):
        Strategy("x", (Temporal(recent_days=3.0, name="a"), Temporal(name="b")), ScoreRRF())


HOURS_24 = 86_400.0
WEDNESDAY = datetime(2024, 5, 15, 12, tzinfo=timezone.utc).timestamp()

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
    given = {"now": WEDNESDAY, "vector": ASKED, **more}
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
    hits = engine.search([fr.Query("boat notes of ana", now=WEDNESDAY)], 5, strategy=strategy)
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
    ended = Relation("tom", "sarah", "reports-to", valid_to=WEDNESDAY - HOURS_24)
    engine = memory_of([replace(TEAM[0], relations=[ended]), *TEAM[1:]])
    for now, score in ((WEDNESDAY, 0.6 * 0.3), (WEDNESDAY - 2 * HOURS_24, 0.6)):
        assert said(ask(engine, "who reports to Sarah?", now=now), "nuts")["graph"].score == pytest.approx(score)


def test_without_its_own_time_a_query_names_none() -> None:
    """SPEC A062: "yesterday" is the query's, not the machine's."""
    event = fr.Record("dentist", "dentist at nine", type="Event", time=WEDNESDAY - HOURS_24 / 2, embedding=near(0.5))
    hits = ask(memory_of([event]), "what happened yesterday?", now=None)
    assert decision(hits).when is None
    assert "temporal" in decision(hits).skipped
