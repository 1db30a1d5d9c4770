"""Drift: its tests against SciPy's, and what a policy's reference says of the questions that are asked later."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.six_words import MIXED, SYSTEMS, Words, memory

import fanrank as fr
from fanrank.engine.errors import ParameterError, PolicyFileError
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route import policy as policies
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.router import Router
from fanrank.engine.tune.drift import check, fisher, kolmogorov_smirnov, reference_of
from fanrank.engine.tune.measure import Labelled, Questions
from fanrank.engine.tune.tuner import tune


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30), st.integers(1, 30))
def test_fisher_against_scipy(first: int, second: int, n: int, m: int) -> None:
    first, second = min(first, n), min(second, m)
    expected = stats.fisher_exact([[first, n - first], [second, m - second]]).pvalue
    assert fisher(first, n, second, m) == pytest.approx(expected, rel=1e-6)


@given(st.integers(2, 40), st.integers(2, 40), st.integers(0, 99))
@settings(max_examples=50)
def test_kolmogorov_smirnov_against_scipy(n: int, m: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = random.integers(0, 30, n) / 10, random.integers(0, 40, m) / 10
    distance, p = kolmogorov_smirnov(first, second)
    assert distance == pytest.approx(stats.ks_2samp(first, second).statistic, abs=1e-12)
    scaled = distance * math.sqrt(n * m / (n + m))
    assert p == pytest.approx(stats.kstwobign.sf(scaled), abs=1e-9)


def test_drift_is_told_from_no_drift(tmp_path: Path) -> None:
    engine = memory()
    many = MIXED * 5
    found = tune(
        engine, [Labelled(one.query, one.relevant) for one in many], systems=SYSTEMS, metric="hit@1", repeats=1
    )
    forced = Cascade(0.3, escalate="dense")
    policies.save(tmp_path / "policy.json", found.policy, found.about)
    policy, about = policies.load(tmp_path / "policy.json")
    assert policy.to_dict() == found.policy.to_dict()
    assert not check(policy, about, engine, many).drifted

    run = Questions(engine, many, "hit@1").answer(forced)
    about = {**about, "reference": reference_of(run, "labelled")}
    same = check(forced, about, engine, many[::-1])
    assert [test.name for test in same.tests] == ["skip", "confidence", "accuracy"]
    assert not same.drifted
    assert all(test.then == pytest.approx(test.now) for test in same.tests)
    # Only questions of one kind are asked now: another skip share, other confidences.
    changed = check(forced, about, engine, [one for one in many if one.type == "sense"])
    assert changed.drifted
    assert changed.to_dict()["drifted"] is True
    # Questions without labels say nothing of accuracy.
    plain = check(forced, about, engine, [one.query for one in many])
    assert [test.name for test in plain.tests] == ["skip", "confidence"]
    # The records' vectors are of another model now.
    other = Words()
    other.version = "2"  # type: ignore[misc]
    moved = check(forced, about, memory(other), many)
    assert moved.model_changed
    assert moved.drifted
    with pytest.raises(ParameterError, match="says nothing"):
        check(forced, {}, engine, many)
    with pytest.raises(ParameterError, match="with a judge"):
        check(forced, {**about, "judged": True}, engine, many)


REFERENCE = {"of": "x", "n": 2, "decided": 2, "escalated": 1, "types": {"a": 1}, "confidences": [0.5, None],
             "values": [1.0, 0.0]}  # fmt: skip

DAMAGED: dict[str, list[Any]] = {
    "n": [3, None],
    "values": [[1.0], [1.0, "x"], [1.0, None], [1.0, math.nan], [1.0, 10**400], [True, 1.0]],
    "decided": [None, 3, "2", 0],
    "escalated": [3, -1, 0.5],
    "types": [[], {"a": "1"}, {"a": 2, "b": 1}],
    "confidences": [[], [0.5, "x"], None],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_reference_is_named(name: str) -> None:
    policy, engine = Cascade(0.3, escalate="dense"), memory()
    assert check(policy, {"metric": "hit@1", "reference": REFERENCE}, engine, MIXED).reference == 2
    without = {other: own for other, own in REFERENCE.items() if other != name}
    for damaged in ([], without, *({**REFERENCE, name: bad} for bad in DAMAGED[name])):
        with pytest.raises(PolicyFileError, match=r"damaged: .*reference"):
            check(policy, {"metric": "hit@1", "reference": damaged}, engine, MIXED)
    for about in ({"metric": 3}, {"k": "5"}, {"k": 0}):
        with pytest.raises(PolicyFileError, match="damaged"):
            check(policy, {"reference": REFERENCE, **about}, engine, MIXED)


@pytest.mark.parametrize(
    "how",
    [NAMED["bm25"], Router({"name": NAMED["bm25"], "sense": NAMED["dense"]}, NAMED["bm25"])],
    ids=["a strategy for all, which decides nothing", "a router"],
)
def test_drift_of_types(how: Any) -> None:
    engine = memory()
    typed = [Labelled(fr.Query(one.query.text, type=one.type), one.relevant) for one in MIXED] * 4
    about = {"metric": "hit@1", "reference": reference_of(Questions(engine, typed, "hit@1").answer(how), "labelled")}
    same = check(how, about, engine, typed)
    assert [test.name for test in same.tests][-1] == "accuracy"
    assert not same.drifted
    for kind in ("name", "sense"):
        found = check(how, about, engine, [one for one in typed if one.query.type == kind])
        assert found.drifted
        assert found.tests[0].name.startswith("share of ")
        assert found.tests[0].p == pytest.approx(min(1.0, 2 * fisher(24, 48, 24, 24)))


def test_a_judge_s_values_are_not_compared_with_a_metric_s() -> None:
    engine = memory()
    found = tune(engine, MIXED, systems=("bm25", "dense"), metric="hit@1", repeats=1)
    with pytest.raises(ParameterError, match="tuned on hit@1, which a judge's values are no match for"):
        check(found.policy, found.about, engine, MIXED, judge=lambda query, ids: 5.0)
