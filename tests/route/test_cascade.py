"""The cascade's decision against Algorithm 4 as it is written, with X04's corrections."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.route.cascade import LONGMEMEVAL_THRESHOLDS, Cascade

TYPES = st.sampled_from([None, "multi-session", "single-session-assistant", "temporal-reasoning", "unheard of"])
SCORE = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.integers(0, 10_000_000).map(lambda n: n / 2.0**18))
ROW = st.lists(SCORE, max_size=6).map(lambda row: sorted(row, reverse=True))
TAU = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.5, math.inf]), st.floats(0.0, 1.2))


def algorithm_4(
    row: list[float],
    type: str | None,
    tau_c: float,
    taus: Mapping[str, float],
    lexical: tuple[str, ...],
    pi: Callable[[], str | None] | None,
) -> str:
    """SPEC A075 to A078, A081, line by line; X04: skip iff c >= tau, and without two scores escalate."""
    if len(row) < 2 or max(row) == 0:
        return "escalate"
    s0, s1 = row[0], row[1]
    c = (s0 - s1) / max(s0, 1e-300)
    if pi is not None:
        predicted = pi()
        if predicted in lexical:
            tau = 0.0
        elif predicted in taus:
            tau = taus[predicted]
        else:
            tau = tau_c
    else:
        tau = tau_c
    if c >= tau:
        return "skip"
    return "escalate"


def matrix(rows: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    scores = np.full((len(rows), 8), -np.inf)
    for query, row in enumerate(rows):
        scores[query, : len(row)] = row
    return scores, np.array([len(row) for row in rows], dtype=np.int64)


@given(
    st.lists(st.tuples(ROW, TYPES), max_size=8),
    TAU,
    st.dictionaries(TYPES.filter(lambda type: type is not None), TAU),
    st.sets(TYPES.filter(lambda type: type is not None), max_size=2),
)
def test_decisions_are_those_of_algorithm_4(
    queries: list[tuple[list[float], str | None]], tau: float, taus: dict[str, float], lexical: set[str]
) -> None:
    cascade = Cascade(tau=tau, taus=taus, lexical_types=tuple(lexical))
    types = [type for _, type in queries]
    confidence, thresholds, skipped = cascade.decide(*matrix([row for row, _ in queries]), types)
    assert (confidence.dtype, thresholds.dtype, skipped.dtype) == (np.float64, np.float64, np.bool_)
    assert confidence.shape == thresholds.shape == skipped.shape == (len(queries),)
    for query, (row, type) in enumerate(queries):
        pi = None if type is None else lambda type=type: type
        expected = algorithm_4(row, type, tau, taus, cascade.lexical_types, pi)
        assert skipped[query] == (expected == "skip"), (row, type)
        assert math.isnan(confidence[query]) == (len(row) < 2 or row[0] == 0)
    alone = [cascade.decide(*matrix([row]), [type])[2][0] for row, type in queries]
    assert list(skipped) == alone


def test_the_worked_examples() -> None:
    """SPEC A090: .756 skips at .10, .057 escalates."""
    rows = [[8.74, 2.13, 1.40, 0.91, 0.83], [4.21, 3.97, 3.48, 3.12, 2.90]]
    confidence, thresholds, skipped = Cascade().decide(*matrix(rows), [None, None])
    assert [round(value, 3) for value in confidence] == [0.756, 0.057]
    assert list(thresholds) == [0.10, 0.10]
    assert list(skipped) == [True, False]


def test_the_sources_thresholds_by_type() -> None:
    """SPEC A079; X09: what has the threshold 0 skips entirely."""
    assert LONGMEMEVAL_THRESHOLDS == {
        "knowledge-update": 0.12,
        "multi-session": 0.02,
        "single-session-assistant": 0.28,
        "single-session-preference": 0.0,
        "single-session-user": 0.0,
        "temporal-reasoning": 0.0,
    }
    types = [*LONGMEMEVAL_THRESHOLDS, "unheard of", None]
    scores, counts = matrix([[10.0, 9.0]] * len(types))
    _, thresholds, skipped = Cascade(tau=0.5, taus=LONGMEMEVAL_THRESHOLDS).decide(scores, counts, types)
    assert list(thresholds) == [*LONGMEMEVAL_THRESHOLDS.values(), 0.5, 0.5]
    assert list(skipped) == [False, True, False, True, True, True, False, False]


def test_the_depth_bounds_what_a_confidence_sees() -> None:
    scores, counts = np.array([[4.0, 2.0, 2.0, 8e-3]]), np.array([4])
    assert Cascade(confidence="fraction", depth=2).decide(scores, counts, [None])[0][0] == 4.0 / 6.0
    assert Cascade(confidence="fraction", depth=3).decide(scores, counts, [None])[0][0] == 0.5
    narrow = Cascade(confidence="entropy", depth=3).decide(scores, counts, [None])[0]
    assert narrow[0] == Cascade(confidence="entropy").decide(scores[:, :3], np.array([3]), [None])[0][0]


DECLINED: dict[str, list[tuple[object, str]]] = {
    "tau": [(bad, "tau must be") for bad in (-0.1, math.nan, True, "0.1")],
    "taus": [({"a": -1}, r"taus\['a'\]"), ({"": 1.0}, "a type in taus"), ([0.1], "taus must be a mapping")],
    "lexical_types": [("temporal-reasoning", "lexical_types"), ([3], "a lexical type")],
    "confidence": [("hunch", "margin, fraction, entropy"), (["margin"], "unknown confidence")],
    "depth": [(1, "depth"), (2.0, "depth")],
    "escalate": [
        ("everything", "unknown strategy"),
        (None, "a strategy is"),
        ({"kind": "router", "table": {}}, "default"),
    ],
    "classifier": [(3, "a classifier is")],
    "dialogue_words": [("dialogue", "'dialogue' compares vectors")],
    "name": [("", "name")],
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_declined(name: str) -> None:
    for bad, said in DECLINED[name]:
        with pytest.raises(ParameterError, match=said):
            Cascade(**{name: bad})  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match=said):
            Cascade.of({"kind": "cascade", name: bad})


@pytest.mark.parametrize("value", [None, 3, [], {}, {"kind": "router"}, {"kind": "cascade", "tua": 0.1}])
def test_what_is_no_cascade(value: object) -> None:
    with pytest.raises(ParameterError, match="cascade"):
        Cascade.of(value)  # type: ignore[arg-type]
