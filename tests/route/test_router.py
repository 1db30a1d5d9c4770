"""Routers: the discrete one against its table, the soft one against loops over ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.fuse.candidates import Candidates, Channel
from fanrank.engine.hybrid.strategy import STRATEGIES, Strategy
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.router import LONGMEMEVAL_SYSTEMS, Router

LABELS = ("knowledge-update", "multi-session", "single-session-user", "temporal-reasoning", "untabled")
CLASSIFIER = Classifier(LABELS, (), np.zeros(0), np.zeros((5, 0)), np.zeros(5))
SOFT = Router(LONGMEMEVAL_SYSTEMS, STRATEGIES["fused"], CLASSIFIER, soft=True)

POSTERIOR = st.lists(st.sampled_from([0.0, 0.0, 0.125, 0.3, 1.0, 1e-9]), min_size=5, max_size=5)
TYPES = st.sampled_from([None, None, *LABELS, "unheard of"])
LISTS = st.fixed_dictionaries({name: st.permutations(range(6)).map(lambda all: all[:4]) for name in SOFT.strategies})


def test_the_sources_table() -> None:
    """SPEC A095; of single-session-user's tie the one that runs one list."""
    assert {type: own.name for type, own in LONGMEMEVAL_SYSTEMS.items()} == {
        "knowledge-update": "rrf",
        "multi-session": "agent_rrf",
        "single-session-assistant": "dense",
        "single-session-preference": "rrf",
        "single-session-user": "dense",
        "temporal-reasoning": "bm25",
    }


def test_a_discrete_router_goes_by_the_table() -> None:
    router = Router(LONGMEMEVAL_SYSTEMS, STRATEGIES["fused"])
    assert [router.best(type).name for type in (*LONGMEMEVAL_SYSTEMS, "unheard of", None)] == [
        "rrf",
        "agent_rrf",
        "dense",
        "rrf",
        "dense",
        "bm25",
        "fused",
        "fused",
    ]
    assert list(router.strategies) == ["rrf", "agent_rrf", "dense", "bm25", "fused"]
    assert router.strategies["dense"] is STRATEGIES["dense"]
    assert list(Router(LONGMEMEVAL_SYSTEMS, STRATEGIES["rrf"]).strategies) == ["rrf", "agent_rrf", "dense", "bm25"]


@given(st.lists(st.tuples(POSTERIOR, TYPES), max_size=6))
def test_weights_are_sums_of_the_posterior(queries: list[tuple[list[float], str | None]]) -> None:
    """SPEC A097: ``w(s) = sum over types of P(type) [best(type) = s]``."""
    types = [type for _, type in queries]
    posterior = np.array([own for own, _ in queries]).reshape(-1, 5)
    found = SOFT.weights(posterior, types)
    assert len(found) == len(queries)
    for (own, type), weights in zip(queries, found, strict=True):
        expected = {}
        for name in SOFT.strategies:
            total = 0.0
            for label, probability in zip(LABELS, own, strict=True):
                best = LONGMEMEVAL_SYSTEMS[label].name if label in LONGMEMEVAL_SYSTEMS else "fused"
                total += probability if best == name else 0.0
            if type is not None:
                total = float((LONGMEMEVAL_SYSTEMS[type].name if type in LONGMEMEVAL_SYSTEMS else "fused") == name)
            if total:
                expected[name] = total
        assert weights == expected
        assert list(weights) == list(expected)


def test_probabilities_of_what_is_declined() -> None:
    with pytest.raises(ParameterError, match="shape"):
        SOFT.weights(np.ones((1, 4)), [None])
    with pytest.raises(ParameterError, match="no classifier"):
        Router({}, STRATEGIES["rrf"]).weights(np.ones((1, 5)), [None])


@given(st.lists(st.tuples(POSTERIOR, TYPES, LISTS), min_size=1, max_size=4), st.sampled_from([60.0, 0.0, 7.5]))
def test_a_blend_is_the_sum_over_lists(
    queries: list[tuple[list[float], str | None, dict[str, list[int]]]], k: float
) -> None:
    """SPEC A097: ``score(d) = sum over strategies of w(s) / (k + rank_s(d))``."""
    router = Router(LONGMEMEVAL_SYSTEMS, STRATEGIES["fused"], CLASSIFIER, soft=True, k=k)
    weights = router.weights(np.array([own for own, _, _ in queries]), [type for _, type, _ in queries])
    fused = router.blend(weights, candidates_of([lists for _, _, lists in queries]))
    place = 0
    for (_, _, lists), own in zip(queries, weights, strict=True):
        for document in range(6):
            expected, kept = 0.0, False
            for name in router.strategies:
                if document in lists[name] and own.get(name, 0.0) > 0.0:
                    expected += own[name] / (k + lists[name].index(document) + 1)
                    kept = True
            assert fused.scores[place] == expected
            assert fused.kept[place] == kept
            place += 1


def candidates_of(queries: list[dict[str, list[int]]]) -> Candidates:
    """Six documents a query, and in each channel the ranks of a list of some of them."""
    offsets = np.arange(len(queries) + 1) * 6
    channels = {}
    for name in queries[0]:
        scores = np.zeros(6 * len(queries))
        for query, lists in enumerate(queries):
            for rank, document in enumerate(lists[name]):
                scores[6 * query + document] = 10.0 - rank
        channels[name] = Channel.of(scores, scores > 0.0, scores > 0.0, offsets)
    nothing = np.full(6 * len(queries), np.nan)
    documents = np.tile(np.arange(6), len(queries))
    return Candidates(
        offsets, documents, channels, np.full(len(queries), np.nan), nothing, nothing, (None,) * len(queries)
    )


def test_what_is_inside() -> None:
    plain = Router({}, STRATEGIES["bm25"])
    assert (plain.dense, plain.learned, plain.aged) == (False, False, False)
    assert Router({"a": STRATEGIES["dense"]}, STRATEGIES["bm25"]).dense
    assert Router({}, STRATEGIES["sparse"]).learned
    assert Router({"a": STRATEGIES["decay"]}, STRATEGIES["bm25"]).aged
    deep = SOFT.deep(complete=True)
    assert deep.table == {type: own.deep(complete=True) for type, own in LONGMEMEVAL_SYSTEMS.items()}
    assert deep.default == STRATEGIES["fused"].deep(complete=True)
    assert (deep.classifier, deep.soft) == (CLASSIFIER, True)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"table": []}, "table must be a mapping"),
        ({"table": {"": "rrf"}}, "a type"),
        ({"table": {"a": "everything"}}, "unknown strategy"),
        ({"default": None}, "a strategy is"),
        ({"table": {"a": Strategy("rrf")}}, "two different strategies"),
        ({"classifier": "tfidf"}, "a classifier is"),
        ({"soft": 1}, "soft"),
        ({"k": -1.0}, "k must be"),
        ({"k": float("inf")}, "k must be"),
        ({"name": None}, "name"),
    ],
)
def test_what_is_declined(given_: dict[str, object], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Router(**{"table": {}, "default": "rrf", **given_})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [None, "router", {"kind": "router", "table": {}}, {"kind": "router", "table": {}, "default": "rrf", "x": 1}],
)
def test_what_is_no_router(value: object) -> None:
    with pytest.raises(ParameterError, match="router"):
        Router.of(value)  # type: ignore[arg-type]
