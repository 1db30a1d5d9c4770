"""Thresholds, folds, the front and what drift compares, against plain loops (SPEC A080, A093)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.records.decision import Decision, skip_share
from fanrank.engine.tune.drift import KEPT, reference_of, two_means
from fanrank.engine.tune.front import Point, beats, cheapest, pareto
from fanrank.engine.tune.measure import PolicyRun
from fanrank.engine.tune.thresholds import (
    ALWAYS,
    HUNDREDTHS,
    LEAST,
    MARGIN,
    best,
    best_by_type,
    cross_validate,
    folds_of,
    smallest_tau,
    sweep,
    taus_by_type,
    thresholds,
)

VALUE = st.sampled_from([0.0, 0.5, 1.0, 1 / 3])
SURE = st.one_of(st.just(math.nan), st.integers(0, 100).map(lambda n: n / 100), st.floats(0.0, 1.0))
TYPE = st.sampled_from([None, "a", "b", "c"])
QUESTION = st.tuples(SURE, VALUE, VALUE, TYPE)
POINT = st.builds(
    Point, st.just("p"), st.integers(0, 5).map(float), st.integers(1, 5).map(float), st.none(),
    st.one_of(st.none(), st.integers(0, 5).map(float)), st.booleans(),
)  # fmt: skip


def columns(questions: Sequence[tuple[float, float, float, str | None]]) -> tuple[Any, Any, Any, list[str | None]]:
    sure, lexical, escalated, types = zip(*questions, strict=True)
    return np.array(sure), np.array(lexical), np.array(escalated), list(types)


def mean_at(questions: Sequence[tuple[float, float, float, Any]], tau: float) -> float:
    total = 0.0
    for sure, lexical, escalated, _ in questions:
        total += lexical if not math.isnan(sure) and sure >= tau else escalated
    return total / len(questions)


def loop_tau(questions: Sequence[tuple[float, float, float, Any]], margin: float) -> float:
    always = sum(escalated for _, _, escalated, _ in questions) / len(questions)
    for step in range(101):
        if mean_at(questions, step / 100) >= always - margin - 1e-9:
            return step / 100
    return 2.0


def test_the_constants_of_the_sources() -> None:
    """SPEC A080: thresholds of [0, 1], a margin of .005; A093: the four systems."""
    assert (HUNDREDTHS[0], HUNDREDTHS[10], HUNDREDTHS[-1], len(HUNDREDTHS), MARGIN) == (0.0, 0.1, 1.0, 101, 0.005)
    assert ALWAYS > 1.0


@settings(max_examples=40)
@given(st.lists(QUESTION, min_size=1, max_size=30), st.sampled_from([0.0, 0.005, 0.1, 1.0]))
def test_thresholds_are_the_smallest_within_the_margin(questions: Any, margin: float) -> None:
    sure, lexical, escalated, types = columns(questions)
    for step in sweep(sure, lexical, escalated):
        skipped = [not math.isnan(own) and own >= step.tau for own, *_ in questions]
        assert step.skip == pytest.approx(sum(skipped) / len(questions), abs=1e-12)
        assert step.accuracy == pytest.approx(mean_at(questions, step.tau), abs=1e-12)
    assert smallest_tau(sure, lexical, escalated, margin) == loop_tau(questions, margin)
    expected = {}
    for name in sorted({own for own in types if own is not None}):
        of = [question for question in questions if question[3] == name]
        if len(of) >= 2:
            expected[name] = loop_tau(of, margin)
    assert taus_by_type(sure, lexical, escalated, types, margin, least=2) == expected
    given_taus = thresholds(types, 0.3, expected)
    assert given_taus.tolist() == [0.3 if name is None else expected.get(name, 0.3) for name in types]


def test_thresholds_at_the_edges() -> None:
    nowhere = np.full(4, np.nan)
    worse, better = np.zeros(4), np.ones(4)
    # Without any confidence everything escalates, at every threshold.
    assert smallest_tau(nowhere, worse, better) == 0.0
    assert {step.skip for step in sweep(nowhere, worse, better)} == {0.0}
    # All values equal: BM25 is enough.
    assert smallest_tau(np.full(4, 0.2), better, better) == 0.0
    # A confidence of 1 is skipped at every threshold of [0, 1].
    assert smallest_tau(np.ones(4), worse, better) == ALWAYS
    # Three of four may be answered by BM25 alone; the margin is not rounded away.
    sure = np.array([0.1, 0.2, 0.3, 0.4])
    assert smallest_tau(sure, np.array([0.0, 1.0, 1.0, 1.0]), better, 0.0) == 0.11
    assert smallest_tau(sure, np.array([0.0, 1.0, 1.0, 1.0]), better, 0.25) == 0.0
    # Fewer questions of a type than LEAST decide nothing.
    assert taus_by_type(sure, worse, better, ["a"] * 4) == {}
    assert list(
        taus_by_type(np.tile(sure, 2)[:LEAST], worse[:1].repeat(LEAST), better[:1].repeat(LEAST), ["a"] * LEAST)
    )
    for wrong in ((sure, worse, better[:3]), (sure[:0],) * 3, (sure[None], worse[None], better[None])):
        with pytest.raises(ParameterError, match="same n >= 1 questions"):
            sweep(*wrong)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(2, 9), st.integers(0, 5))
def test_folds_are_disjoint_even_and_seeded(n: int, folds: int, seed: int) -> None:
    found = folds_of(n, folds, seed)
    sizes = [int(np.sum(found == fold)) for fold in range(int(found.max()) + 1)]
    assert len(found) == n
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(folds, n)
    assert found.tolist() == folds_of(n, folds, seed).tolist()


def test_folds_are_drawn() -> None:
    assert folds_of(40, 5, 0).tolist() != folds_of(40, 5, 1).tolist()
    for wrong in (1, 0, True, 2.0):
        with pytest.raises(ParameterError, match="2 folds"):
            folds_of(9, wrong, 0)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(st.lists(QUESTION, min_size=1, max_size=20), st.integers(2, 6), st.integers(0, 3))
def test_cross_validation_never_sees_what_it_tests(questions: Any, folds: int, seed: int) -> None:
    sure, lexical, escalated, _ = columns(questions)
    number = folds_of(len(questions), folds, seed)

    def fit(train: Any) -> Any:
        tau = smallest_tau(sure[train], lexical[train], escalated[train])

        def thresholds_of(test: Any) -> Any:
            assert not set(train.tolist()) & set(test.tolist())
            assert len(train) + len(test) == len(questions)
            return np.full(len(test), tau)

        return thresholds_of

    found, values = cross_validate(sure, lexical, escalated, number, fit)
    if len(questions) == 1:
        assert found == []
        assert values.tolist() == escalated.tolist()
        return
    for fold, own in enumerate(found):
        train = [question for question, other in zip(questions, number, strict=True) if other != fold]
        test = [question for question, other in zip(questions, number, strict=True) if other == fold]
        tau = loop_tau(train, MARGIN)
        assert own.n == len(test)
        assert own.accuracy == pytest.approx(mean_at(test, tau), abs=1e-12)
        assert own.skip == sum(sure >= tau for sure, *_ in test) / len(test)
        assert np.mean(values[number == fold]) == pytest.approx(own.accuracy)


def test_the_best_system_and_its_ties() -> None:
    values = np.array([[1, 0, 1, 0, 0.0], [0, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert best(values[:2], np.array([5.0, 3.0])) == 1
    assert best(values[:2], np.array([3.0, 3.0])) == 0
    assert best(values, np.array([1.0, 1.0, 99.0])) == 2
    types = ["b", "a", "a", None, "b"]
    assert best_by_type(values[:2], np.array([5.0, 3.0]), types, least=2) == {"a": 1, "b": 0}
    assert best_by_type(values, np.ones(3), types, least=3) == {}


@settings(max_examples=40)
@given(st.lists(POINT, max_size=12), st.integers(0, 5), st.sampled_from([0.0, 1.0]))
def test_the_front_and_the_cheapest_by_brute_force(points: list[Point], least: int, slack: float) -> None:
    front = pareto(points)
    expected = []
    for point in points:
        beaten = False
        for other in points:
            no_worse = other.accuracy >= point.accuracy and other.milliseconds <= point.milliseconds
            better = other.accuracy > point.accuracy or other.milliseconds < point.milliseconds
            beaten = beaten or (no_worse and better)
        if not beaten:
            expected.append(point)
    assert sorted(map(id, front)) == sorted(map(id, expected))
    for point in points:
        assert any(beats(other, point) for other in points) == (point not in front)
    assert [p.milliseconds for p in front] == sorted(p.milliseconds for p in expected)

    def sure(point: Point) -> float:
        if point.learned and point.cross_validated is not None:
            return min(point.accuracy, point.cross_validated)
        return point.accuracy

    enough = [point for point in points if sure(point) >= least]
    if not enough:
        with pytest.raises(ParameterError, match="none of"):
            cheapest(points, least, slack)
        return
    found = cheapest(points, least, slack)
    lowest = min(point.milliseconds for point in enough)
    near = [point for point in enough if point.milliseconds <= lowest + slack]
    top = max(sure(point) for point in near)
    assert found is next(point for point in near if sure(point) == top)


def test_two_means() -> None:
    random = np.random.default_rng(3)
    same = (random.random((2, 400)) < 0.6).astype(float)
    assert two_means(same[0], same[1]) > 0.05
    assert two_means(same[0], same[1], seed=1) == two_means(same[0], same[1], seed=1)
    assert two_means(same[0], (random.random(400) < 0.4).astype(float)) < 0.001
    assert two_means(np.ones(50), np.ones(9)) == 1.0
    # Fifty right of fifty and two wrong of two are not the same; one wrong of one may be.
    assert two_means(np.ones(50), np.zeros(1)) > two_means(np.ones(50), np.zeros(20))


@settings(max_examples=40)
@given(st.lists(st.sampled_from([None, True, False]), max_size=9))
def test_the_skipped_share_of_decisions(flags: list[bool | None]) -> None:
    decided = [flag for flag in flags if flag is not None]
    expected = sum(not flag for flag in decided) / len(decided) if decided else None
    assert skip_share([Decision("bm25", escalated=flag) for flag in flags]) == expected


def test_a_reference_is_a_sample() -> None:
    n = 5 * KEPT
    decisions = tuple(
        Decision("bm25", confidence=place / n, escalated=place >= n // 2, type="late" if place >= n // 2 else None)
        for place in range(n)
    )
    run = PolicyRun(np.arange(n, dtype=float), 1.0, tuple(one.type for one in decisions), decisions)
    found = reference_of(run, "held_out", 3)
    values = [int(value) for value in found["values"]]
    assert found["n"] == len(values) == len(set(values)) == found["decided"] == KEPT
    # All columns are of the same questions, from everywhere among them.
    assert found["confidences"] == [value / n for value in values]
    assert found["escalated"] == found["types"]["late"] == sum(value >= n // 2 for value in values)
    assert abs(found["escalated"] - KEPT / 2) < 5 * math.sqrt(KEPT / 4)
    assert reference_of(run, "held_out", 3) == found
    assert reference_of(run, "held_out", 4) != found
    few = PolicyRun(run.values[:7], 1.0, (None,) * 7, None)
    assert reference_of(few, "labelled", 3) == {
        "of": "labelled",
        "n": 7,
        "decided": 0,
        "escalated": 0,
        "types": {},
        "confidences": [],
        "values": list(range(7)),
    }
