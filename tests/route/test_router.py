"""Routers: the discrete one against its table, the soft one against loops over ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.hybrid.strategy import NAMED, Strategy
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.router import LONGMEMEVAL_SYSTEMS, Router

LABELS = ("knowledge-update", "multi-session", "single-session-user", "temporal-reasoning", "untabled")
CLASSIFIER = Classifier(LABELS, (), np.zeros(0), np.zeros((5, 0)), np.zeros(5))
SOFT = Router(LONGMEMEVAL_SYSTEMS, NAMED["fused"], CLASSIFIER, soft=True)

POSTERIOR = st.lists(st.sampled_from([0.0, 0.0, 0.125, 0.3, 1.0, 1e-9]), min_size=5, max_size=5)
TYPES = st.sampled_from([None, None, *LABELS, "unheard of"])


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
        Router({}, NAMED["rrf"]).weights(np.ones((1, 5)), [None])


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
