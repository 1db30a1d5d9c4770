"""Recall, and the source's own form, against a plain reading: each list by a search of its own, fused by loops."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank import Engine, OwnVectors, Query, Record, Relation, Strategy
from fanrank.engine.backends.choose import statuses
from fanrank.engine.errors import ParameterError, QueryError
from fanrank.engine.fuse import ScoreRRF
from fanrank.engine.hybrid.strategy import Conversation, Dense, Graph, Lexical, Temporal
from fanrank.engine.recall import graphs
from fanrank.engine.recall.conversation import PageRank
from fanrank.engine.recall.optimizer import Optimizer
from fanrank.engine.records.decision import Decision
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


def engine_of(rows: list[tuple[Any, ...]], backend: str | None = None) -> Engine:
    engine = Engine(encoder=OwnVectors(6), analyzer="minimal", backend=backend)
    engine.add(record(number, *row) for number, row in enumerate(rows))
    return engine


def asked(text: str) -> Query:
    return Query(text, vector=vector(text + "?"), now=NOW)


def by_the_source(engine: Engine, rows: list[tuple[Any, ...]], query: Query, hits: Hits, row: int) -> dict[str, float]:
    """The scores of the records that `recall-source` may return, by its definition."""
    assert hits.decisions is not None
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
        assert decision.when is not None
        total[name] = total.get(name, 0.0) + (0.5 if decision.when.speculative else 1.0) / 61.0
    return total


def times_inside(rows: list[tuple[Any, ...]], query: Query, decision: Decision) -> dict[str, float]:
    """The times of the events in the query's window, by id, where the temporal channel was asked."""
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
    assert hits.decisions is not None
    decision = hits.decisions[row]
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
        scored = {one: lists[name].get(one, 0.0) for one in found if name == "bm25" or one in lists[name]}
        counted = [score for one, score in scored.items() if one in searched]
        mean = reduce(add, counted, 0.0) / max(len(counted), 1)
        spread = math.sqrt(
            reduce(add, [(score - mean) * (score - mean) for score in counted], 0.0) / max(len(counted), 1)
        )
        z = {one: 0.0 if spread < 1e-9 else (score - mean) / spread for one, score in scored.items()}
        lowest = min((z[one] for one in scored if one in searched), default=0.0)
        for one in found:
            own = z.get(one, lowest)
            weight = 0.6 if name == "bm25" else 1.0 - 0.6
            total[one] += weight * (0.5 * own if own < 0.0 else own)

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
@settings(deadline=None, max_examples=120)
@given(rows=records, questions=questions)
def test_recall_fuses_what_its_retrievers_find(
    strategy: str, rows: list[tuple[Any, ...]], questions: list[str]
) -> None:
    engine = engine_of(rows)
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


@settings(deadline=None, max_examples=40)
@given(records, questions)
def test_a_batch_is_its_queries_alone(rows: list[tuple[Any, ...]], questions: list[str]) -> None:
    engine = engine_of(rows)
    strategy = Strategy(
        "all",
        (Lexical(), Dense(), Graph(), Temporal(newest_first=True), Conversation(PageRank(window=9, overlap=1))),
        ScoreRRF(),
        optimizer=Optimizer(triggers="words", filters=True, widen_below=2),
    )
    for chosen in ("recall", "recall-source", "graph", "temporal", "conversation", strategy):
        together = engine.search([asked(text) for text in questions], strategy=chosen)
        for row, text in enumerate(questions):
            alone = engine.search([asked(text)], strategy=chosen)
            assert together[row] == alone[0]
            if together.decisions is not None and alone.decisions is not None:
                assert replace(together.decisions[row], milliseconds=0.0) == replace(
                    alone.decisions[0], milliseconds=0.0
                )


@pytest.mark.parametrize(
    "backend", ["native", "cuda-host", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("cuda", "triton"))]
)
def test_every_backend_recalls_the_same(backend: str) -> None:
    if not any(status.name == backend and status.usable for status in statuses()):
        pytest.skip(f"{backend} is not to be had here")
    generator = np.random.default_rng(3)
    rows = [
        (
            " ".join(generator.choice(WORDS, generator.integers(0, 6))),
            TYPES[generator.integers(5)],
            int(generator.integers(0, 60)),
            [None, "ana", "bob", "eve"][generator.integers(4)],
            bool(generator.integers(2)),
        )
        for _ in range(300)
    ]
    batch = [asked(" ".join(generator.choice([*WORDS, "yesterday", "when did"], 3))) for _ in range(40)]
    for strategy in FORMS:
        one, other = (engine_of(rows, name).search(batch, strategy=strategy) for name in ("numpy", backend))
        assert np.array_equal(one.documents, other.documents)
        assert np.array_equal(one.scores, other.scores)


def test_words_are_not_encoded_where_dense_is_left_out() -> None:
    seen: list[str] = []

    class Counting:
        name, version, dimension = "counting", "1", 6

        def documents(self, texts: list[str], *, progress: bool = False) -> Any:
            return np.stack([vector(text) for text in texts])

        def queries(self, texts: list[str]) -> Any:
            seen.extend(texts)
            return self.documents(texts)

    engine = Engine(encoder=Counting(), analyzer="minimal")  # type: ignore[arg-type]
    engine.add([Record("a", "boat trip", type="Event", time=NOW - DAY / 2), Record("b", "tea")])
    hits = engine.search([Query("what happened yesterday?", now=NOW), Query("tea", now=NOW)], strategy="recall")
    assert seen == ["tea"]
    assert [[name for name, _ in own] for own in hits] == [["a"], ["b", "a"]]


def test_an_engine_without_vectors_recalls_by_the_rest() -> None:
    engine = Engine()
    engine.add([Record("a", "tea with Ana", entities={"Ana": "ana"}), Record("b", "rain")])
    hits = engine.search([Query("what about Ana?", now=NOW), "rain"], strategy="recall")
    assert hits.decisions is not None
    assert hits.decisions[0].skipped["dense"] == "the namespace holds no vectors"
    assert hits.decisions[1].skipped["temporal"] == "the query has no 'now' to read times by"
    assert [[name for name, _ in own] for own in hits] == [["a"], ["b"]]


def test_the_query_may_say_what_it_is_about() -> None:
    engine = Engine()
    engine.add(
        [
            Record("a", "tea with her", entities=["ana"], type="Fact"),
            Record("b", "rain", entities=["bob"], type="Preference"),
            *(Record(f"p{i}", "tea", type="Preference") for i in range(5)),
        ]
    )
    named = engine.search([Query("and she?", entities=["ana"])], strategy="graph")
    assert [name for name, _ in named[0]] == ["a"]
    asked = [Query("tea", hints=["Fact"]), Query("tea", hints=["Preference"])]
    raised = engine.search(asked, strategy="recall")
    assert [{name for name, _ in own} for own in raised] == [{"a", *(f"p{i}" for i in range(5))}] * 2
    assert [own[0][0] for own in raised] == ["a", "p0"]
    hinted = engine.search(asked, strategy="recall-source")
    assert hinted.decisions is not None
    assert [decision.widened for decision in hinted.decisions] == [True, False]
    assert {name for name, _ in hinted[0]} == {"a", *(f"p{i}" for i in range(5))}
    assert {name for name, _ in hinted[1]} == {f"p{i}" for i in range(5)}


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


def test_deleted_records_take_what_they_said_with_them() -> None:
    engine = Engine()
    engine.add(
        [
            Record("a", "x", entities=["ana"]),
            Record("b", "y", entities=["bob"]),
            Record("edge", "z", relations=[Relation("ana", "bob", "reports-to")]),
        ]
    )
    assert [name for name, _ in engine.search(["about ana"], strategy="graph")[0]] == ["a", "edge", "b"]
    engine.delete(["edge"])
    assert [name for name, _ in engine.search(["about ana"], strategy="graph")[0]] == ["a"]


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
    assert hits.decisions is not None
    assert [set(decision.skipped) for decision in hits.decisions] == [{"bm25", "graph"}, {"bm25", "dense", "graph"}]
    assert [[name for name, _ in own] for own in hits] == [["b"], ["old"]]


def test_equal_queries_are_explained_alike() -> None:
    engine = Engine(analyzer="minimal")
    engine.add([Record(f"e{i}", "tea " * (i + 1), type="Event", role="user") for i in range(5)])
    engine.add([Record("f", "tea happened", type="Fact", role="user")])
    for statistics in ("namespace", "filtered"):
        query = Query("tea happened", filter={"role": "user"}, statistics=statistics)  # type: ignore[arg-type]
        hits = engine.search([query, query], strategy="recall")
        for record, _ in hits[0]:
            one, other = hits.explain(0, record), hits.explain(1, record)
            assert replace(one, query=0, lexical=None) == replace(other, query=0, lexical=None)  # type: ignore[call-arg]
            assert replace(one.lexical, query=0) == replace(other.lexical, query=0)  # type: ignore[union-attr, type-var]


def test_terms_of_the_caller_s_are_words_too() -> None:
    engine = Engine(analyzer="minimal")
    engine.add([Record("e", "boat", type="Event", time=NOW - DAY / 2), Record("t", "tea")])
    hits = engine.search([Query("yesterday", terms=("tea",), now=NOW)], strategy="recall")
    assert {name for name, _ in hits[0]} == {"e", "t"}


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
    assert one.decisions is not None
    assert other.decisions is not None
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


def test_costs_are_of_the_stages_that_a_query_went_through() -> None:
    class Random:
        name, version, dimension = "random", "1", 6

        def documents(self, texts: list[str], *, progress: bool = False) -> Any:
            return np.stack([vector(text) for text in texts])

        def queries(self, texts: list[str]) -> Any:
            return self.documents(texts)

    engine = Engine(encoder=Random(), analyzer="minimal")  # type: ignore[arg-type]
    engine.add([Record("a", "boat trip", type="Event", time=NOW - DAY / 2), Record("b", "tea")])
    batch = [Query("what happened yesterday?", now=NOW), Query("tea", now=NOW)]
    hits = engine.search(batch, strategy="recall", timing=True)
    assert hits.decisions is not None
    assert hits.timing is not None
    # Neither asked the graph, so that both bear the look at it.
    shared = sum(hits.timing[stage] for stage in ("parse", "fuse", "graph")) / 2
    first, second = (decision.milliseconds for decision in hits.decisions)
    assert first == pytest.approx(shared + hits.timing["temporal"])
    others = sum(hits.timing[stage] for stage in ("encode", "bm25", "dense"))
    assert second == pytest.approx(shared + others)
    assert first + second == pytest.approx(sum(hits.timing.values()))


def test_relations_count_as_far_as_the_channel_relies_on_them() -> None:
    engine = Engine()
    engine.add([Record("a", "x", entities=["ana"]), Record("b", "y", entities=["bob"])])
    engine.add([Record("c", "z", relations=[Relation("ana", "bob", "mentioned-with")])])
    scores = {
        prior: dict(engine.search(["ana"], strategy=Strategy("g", (Graph(type_prior={"semantic": prior}),)))[0])["b"]
        for prior in (1.0, 0.5)
    }
    assert scores == {1.0: 0.6, 0.5: 0.3}
    with pytest.raises(ParameterError, match="type_prior"):
        Graph(type_prior={"semantic": 2.0})


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
