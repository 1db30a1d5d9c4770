"""The cascade through callbacks: Algorithm 4 as a plain program, and the engine's own cascade, bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank import Cascade, Engine, OwnVectors, Query, Record
from fanrank.engine.errors import ParameterError, QueryError
from fanrank.engine.route.callbacks import CascadeRouter
from fanrank.engine.route.classifier import Classifier
from fanrank.strategies import RRF, AgentRRF

WORDS = ["tea", "rain", "boat", "red", "wind", "moon"]
DAY = 86400.0

Hits = list[tuple[Any, float]]

TYPES = st.sampled_from([None, "a", "b", "c"])


def ranked(scores: list[float], prefix: int = 0) -> Hits:
    """Records named by number, best first."""
    return [(prefix + number, score) for number, score in enumerate(sorted(scores, reverse=True))]


@pytest.mark.parametrize(("confidence", "wanted"), [("margin", 20), ("fraction", 30), ("entropy", 30)])
def test_how_many_hits_are_asked_for(confidence: str, wanted: int) -> None:
    asked: list[int] = []

    def search(_: str, number: int) -> Hits:
        asked.append(number)
        return ranked([1.0] * 50)[:number]

    router = CascadeRouter(Cascade(math.inf, confidence=confidence, depth=30), depth=20)
    router.retrieve("q", 5, search, search)
    router.retrieve("q", 45, search, search)
    assert asked == [wanted, wanted, 45, 45]


def vector(text: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(text.encode()) + len(text)).normal(size=8)


texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), max_size=20)
question = st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=4).map(" ".join)
cascades = st.sampled_from(
    [
        Cascade(0.0, escalate="rrf"),  # type: ignore[arg-type]
        Cascade(0.1, escalate="rrf"),  # type: ignore[arg-type]
        Cascade(0.5, {"b": 0.05}, ("a",), escalate="rrf"),  # type: ignore[arg-type]
        Cascade(0.3, confidence="fraction", depth=7, escalate="rrf"),  # type: ignore[arg-type]
        Cascade(0.3, confidence="entropy", escalate="rrf"),  # type: ignore[arg-type]
        Cascade(math.inf, escalate="rrf"),  # type: ignore[arg-type]
    ]
)


@settings(max_examples=20)
@given(texts, question, cascades, st.integers(0, 24), TYPES)
def test_over_the_engines_searches_it_is_the_engines_cascade(
    texts: list[str], text: str, cascade: Cascade, k: int, type: str | None
) -> None:
    engine = Engine(encoder=OwnVectors(8), analyzer="minimal")
    engine.add(
        Record(f"r{i}", own, time=i * DAY, embedding=vector(own) if i % 5 else None) for i, own in enumerate(texts)
    )
    query = Query(text, vector=vector(text + "?"), now=40 * DAY, type=type)

    def by(strategy: str) -> Any:
        return lambda own, wanted: engine.search([own], wanted, strategy=strategy)[0]

    router = CascadeRouter(cascade)
    found = router.retrieve(query, k, by("bm25"), by("dense"), qtype_fn=lambda own: own.type)
    expected = engine.search([query], k, strategy=cascade)
    decision = expected.decisions[0]
    assert (found.escalated, found.confidence) == (decision.escalated, decision.confidence)
    assert [score for _, score in found.results] == [score for _, score in expected[0]]
    # The engine breaks ties by age, which callbacks do not tell.
    scores = [
        score for _, score in router.retrieve(query, 100, by("bm25"), by("dense"), None, lambda q: q.type).results
    ]
    if len(set(scores)) == len(scores) or not found.escalated:
        assert found.results == expected[0]

    # What the engine fuses, whole.
    agent = engine.search([query], k, strategy=replace(cascade, escalate="agent_rrf"))[0]  # type: ignore[arg-type]
    whole = router.retrieve(
        query, k, by("bm25"), by("dense"), lambda own, *_: by("agent_rrf")(own, k), lambda own: own.type
    )
    assert whole.results == agent

    # Algorithm 4: it fuses itself, by what it is told of the records.
    alike = replace(cascade, escalate="agent_rrf")  # type: ignore[arg-type]
    told = {record.id: record for record in engine.records()}
    own = CascadeRouter(alike).retrieve(
        query, 100, by("bm25"), by("dense"), None, lambda own: own.type, records=told, now=query.now
    )
    whole_list = engine.search([query], 100, strategy=alike)[0]
    assert sorted(own.results, key=lambda hit: (-hit[1], int(hit[0][1:]))) == list(whole_list)


@pytest.mark.parametrize(
    ("hits", "said"),
    [
        ([("a", 1.0), ("b", 2.0)], r"best first; hit 2 scores 2\.0 after 1\.0"),
        ([("a", 1.0), ("a", 0.5)], "twice"),
        ([("a", math.inf)], "not finite"),
        ([("a", math.nan)], "not finite"),
    ],
)
def test_callbacks_that_answer_wrongly(hits: Hits, said: str) -> None:
    router = CascadeRouter()
    with pytest.raises(ParameterError, match=f"bm25_fn .*{said}"):
        router.retrieve("q", 5, lambda *_: hits, lambda *_: [])
    with pytest.raises(ParameterError, match=f"dense_fn .*{said}"):
        router.retrieve("q", 5, lambda *_: [], lambda *_: hits)


def test_what_is_declined() -> None:
    for k in (-1, 1.5, True):
        with pytest.raises(QueryError, match="k must be"):
            CascadeRouter().retrieve("q", k, lambda *_: [], lambda *_: [])  # type: ignore[arg-type]
    for depth in (1, 2.5, True):
        with pytest.raises(ParameterError, match="depth"):
            CascadeRouter(depth=depth)  # type: ignore[arg-type]
    classifier = Classifier(("a",), (), np.zeros(0), np.zeros((1, 0)), np.zeros(1))
    with pytest.raises(ParameterError, match="qtype_fn"):
        CascadeRouter(Cascade(classifier=classifier))
    with pytest.raises(ParameterError, match="cascade"):
        CascadeRouter("margin")  # type: ignore[arg-type]


def test_records_and_times_that_do_not_fit() -> None:
    skip = [("a", 9.0), ("b", 1.0)]

    def ask(**how: Any) -> None:
        CascadeRouter().retrieve("q", 2, lambda *_: skip, lambda *_: [], **how)

    with pytest.raises(QueryError, match="now"):
        ask(records={})  # even though the query skips
    with pytest.raises(ParameterError, match="give records too"):
        ask(now=1.0)
    with pytest.raises(ParameterError, match="leave out fuse_fn"):
        ask(records={}, now=1.0, fuse_fn=lambda *_: [])
    with pytest.raises(ParameterError, match="an AgentRRF, not RRF"):
        CascadeRouter(fusion=RRF())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="holds an id twice"):
        AgentRRF().fuse({"bm25": ["a", "a"]}, now=1.0)
    with pytest.raises(ParameterError, match=r"the time of 'a' must be finite seconds .*'2026'"):
        AgentRRF().fuse({"bm25": ["a"]}, times={"a": "2026"}, now=1.0)  # type: ignore[dict-item]
    with pytest.raises(ParameterError, match="the importance of 'a'"):
        AgentRRF().fuse({"bm25": ["a"]}, importances={"a": 2.0}, now=1.0)
    with pytest.raises(QueryError, match="give 'now'"):
        AgentRRF().fuse({"bm25": ["a"]})
    for ids in ("abc", 3, [["a"]]):
        with pytest.raises(ParameterError, match="the list 'bm25' must be a list of ids"):
            AgentRRF().fuse({"bm25": ids}, now=1.0)  # type: ignore[dict-item]
    with pytest.raises(ParameterError, match="lists must map names"):
        AgentRRF().fuse([["a"]], now=1.0)  # type: ignore[arg-type]
