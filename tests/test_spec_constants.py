"""Defaults are the documents' numbers, by their ids in docs/sources.md; tests set borders wherever one is held.

Tables stand with what uses them: A079 in test_cascade.py, B021 to B023 in test_entity_graph.py, B041 in test_hints.py,
A068 and B006 in test_approximate.py, E009's patterns in test_feedback.py.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from support import borders

import fanrank as fr
from fanrank.engine.evaluate.protocol import TAUS_A087 as TAUS
from fanrank.engine.feedback.centroid import SoftCentroid
from fanrank.engine.feedback.registry import feedback_of
from fanrank.engine.feedback.routed import FACTOID, AdaptiveSoftCentroid, FactoidRoute
from fanrank.engine.fuse.age import DAY
from fanrank.engine.fuse.agent_rrf import SAFE_ALPHA, TAU_DAYS_BY_TYPE, AgentRRF
from fanrank.engine.fuse.rrf import RRF
from fanrank.engine.fuse.score_rrf import GRAPH_WEIGHT, MULTI_HOP_WEIGHT, SPECULATIVE_WEIGHT, TEMPORAL_WEIGHT, ScoreRRF
from fanrank.engine.hybrid.strategy import NAMED, Graph, Strategy, Temporal
from fanrank.engine.index import snapshot
from fanrank.engine.metrics.bootstrap import paired_bootstrap
from fanrank.engine.monitor.recency import Recency
from fanrank.engine.recall.conversation import MIN_LENGTH, PageRank
from fanrank.engine.recall.entity_graph import EXPIRED, HOP_SCORES, HOPS, MANY_HOPS
from fanrank.engine.recall.optimizer import Optimizer
from fanrank.engine.recall.resolution import COMMIT
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.confidence import CONFIDENCES
from fanrank.engine.route.cost import BM25_MS, CLASSIFIER_MS, ENCODER_MS, ESCALATED_MS
from fanrank.engine.route.router import LONGMEMEVAL_SYSTEMS, Router
from fanrank.engine.storage import storage
from fanrank.engine.text.time_expressions.parse import parse_when

NOW = 1_742_394_600.0


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def ages(text: str) -> tuple[float, float]:
    """Days from now to the oldest and the newest moment that is meant."""
    when = parse_when(text, NOW)
    return (NOW - when.start) / DAY, (NOW - when.end) / DAY


AGENT, RECALL, PAGE_RANK = AgentRRF(), NAMED["recall-source"], PageRank()
FACTOIDS = FactoidRoute().of
ADAPTIVE = AdaptiveSoftCentroid()

E009 = {
    **{"when": "was is", "who": "was founded", "where": "was is", "which": "country year"},
    **{"what": "year city name", "how": "many much long old"},
}
CONSTANTS: list[tuple[str, object, object]] = [
    # Windows
    ("A030 windows at most", default(Recency, "max_windows"), 4),
    ("A032 epsilon", default(Recency, "epsilon"), 0.05),
    ("A032 rate", default(Recency, "rate"), 1.4),
    # Fusion
    ("A060 k, ranks from 1", (RRF().k, RRF().base), (60.0, 1)),
    ("A061 k, alpha, tau, beta", (AGENT.k, AGENT.alpha, AGENT.tau_days, AGENT.beta), (60.0, 0.005, 30.0, 0.0)),
    ("A063 types", set(AGENT.recency_types or ()), {"temporal-reasoning", "knowledge-update", "multi-session"}),
    ("A064 tau by type", TAU_DAYS_BY_TYPE, {"multi-session": 120.0}),
    ("A065 guard", SAFE_ALPHA, 0.01),
    # Cascade
    ("A075 escalates to agent_rrf", Cascade().escalate, NAMED["agent_rrf"]),
    ("A076 tau", Cascade().tau, 0.10),
    ("A078 no classifier", (Cascade().classifier, Cascade().taus), (None, None)),
    ("A080 margin", default(fr.evaluation.tune, "margin"), 0.005),
    ("A084 confidences", (tuple(CONFIDENCES), Cascade().confidence), (("margin", "fraction", "entropy"), "margin")),
    ("A085 ms", (BM25_MS, ESCALATED_MS, CLASSIFIER_MS), (0.4, 53.2, 0.5)),
    ("A086 taus", TAUS, (0.0, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50, 1.0)),
    ("A089 folds", default(fr.evaluation.tune, "folds"), 5),
    ("A091 ms", ENCODER_MS, 52.0),
    (
        "A095 table",
        {type: own.name for type, own in LONGMEMEVAL_SYSTEMS.items()},
        {
            "knowledge-update": "rrf",
            "multi-session": "agent_rrf",
            "single-session-assistant": "dense",
            "single-session-preference": "rrf",
            "single-session-user": "dense",
            "temporal-reasoning": "bm25",
        },
    ),
    ("A097 k", Router({}, NAMED["rrf"]).k, 60.0),
    (
        "A121 resamples, interval",
        (default(paired_bootstrap, "resamples"), default(paired_bootstrap, "level")),
        (10_000, 0.95),
    ),
    # Recall
    ("B021 hop scores", HOP_SCORES, (1.0, 0.6, 0.35, 0.15)),
    ("B021 hops", (HOPS, Graph().hops, MANY_HOPS), (2, 2, 3)),
    ("B022 expired", EXPIRED, 0.3),
    ("B025 commits", COMMIT, 0.7),
    ("B032 recently", (Temporal().recent_days, ages("recently"), ages("lately")), (30.0, (30.0, 0.0), (30.0, 0.0))),
    ("B032 a few months ago", ages("a few months ago"), (90.0, 30.0)),
    ("B035 no order", Temporal().newest_first, False),
    ("B043 widens below", Optimizer().widen_below, 5),
    ("B050 k, depth", (ScoreRRF().k, RECALL.fusion, RECALL.depth), (60.0, ScoreRRF(), 100)),
    ("B050 channels", [own.name for own in RECALL.channels], ["bm25", "dense", "graph", "temporal"]),
    ("B052 graph", (GRAPH_WEIGHT, MULTI_HOP_WEIGHT), (1.0, 0.8)),
    ("B052 temporal", (TEMPORAL_WEIGHT, SPECULATIVE_WEIGHT), (1.0, 0.5)),
    ("B052 bm25 and dense", ScoreRRF().weights, None),
    # Conversation
    ("C009 keywords", MIN_LENGTH, 4),
    ("C030 overlap", PAGE_RANK.overlap, 2),
    ("C031 iterations, damping", (PAGE_RANK.iterations, PAGE_RANK.damping), (20, 0.85)),
    ("C032 in no default", [name for name, own in NAMED.items() if "conversation" in str(own)], ["conversation"]),
    ("X21 literal only if asked", PAGE_RANK.compat, False),
    # Feedback
    ("E004 K, alpha, tau", (SoftCentroid().k, SoftCentroid().alpha, SoftCentroid().tau), (3, 0.5, 0.05)),
    ("E007 characters", ADAPTIVE.long_chars, 350),
    ("E007 cost", ADAPTIVE.cost, 1.5),
    ("E009 K, alpha, tau", FACTOIDS, SoftCentroid(k=3, alpha=0.524, tau=0.05)),
    ("E009 by name", feedback_of("factoid-route"), FactoidRoute()),
    ("E009 first words", set(FACTOID), {"when", "who", "where", "which", "what", "how"}),
    ("E009 what follows", [word for word, own in E009.items() if not set(FACTOID[word]) >= set(own.split())], []),
]


@pytest.mark.parametrize(("value", "expected"), [own[1:] for own in CONSTANTS], ids=[own[0] for own in CONSTANTS])
def test_defaults(value: object, expected: object) -> None:
    assert value == expected


def test_depth_of_every_list() -> None:
    """SPEC B050: up to 100 candidates, of strategies without feedback, whose pools are larger."""
    assert {own.depth for own in NAMED.values() if own.feedback is None} == {100}
    assert Strategy("bm25").depth == 100


def test_a_border_is_set_wherever_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot.MAX_SEGMENT_DOCUMENTS
    with monkeypatch.context() as patch:
        borders.shrink(patch, MAX_SEGMENT_DOCUMENTS=7)
        assert (snapshot.MAX_SEGMENT_DOCUMENTS, storage.MAX_SEGMENT_DOCUMENTS) == (7, 7)
        assert borders.value("MAX_SEGMENT_DOCUMENTS") == 7
    assert before == snapshot.MAX_SEGMENT_DOCUMENTS == storage.MAX_SEGMENT_DOCUMENTS
    for name, words in (("NOT_THERE", "no module"), ("QUERIES", "cpu_fallback.dense"), ("MAX_BATCH", "once, when")):
        with pytest.raises(LookupError, match=words):
            borders.shrink(monkeypatch, {name: 1})
