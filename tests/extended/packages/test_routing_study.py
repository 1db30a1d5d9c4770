"""What deciding per query would give, against loops over questions; and LoCoMo's published skip shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.benches import load
from support.evaluations import Letters

from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate import load_locomo, paired_bootstrap
from fanrank.engine.evaluate.presets import find_preset
from fanrank.engine.evaluate.protocol import TAUS_A087, engine_of, prepare_dataset
from fanrank.engine.hybrid.strategy import STRATEGIES
from fanrank.engine.route.cascade import Cascade

(routing,) = load("harness.routing")
Measured = routing.Measured

SYSTEMS = ("bm25", "dense", "rrf")
TYPES = ("alpha", "beta", "gamma")


def questions(n: int, seed: int = 0, *, telling: float = 0.8, vectors: bool = False) -> Measured:
    """Questions whose text names their type as often as `telling` says; each type has a system that is often right."""
    random = np.random.default_rng(seed)
    types = [TYPES[place] for place in random.integers(0, 3, n)]
    named = [own if random.random() < telling else TYPES[random.integers(0, 3)] for own in types]
    texts = [f"what about {own} number {random.integers(0, 9)}" for own in named]
    values = {
        name: np.array([float(random.random() < (0.8 if TYPES.index(own) == place else 0.5)) for own in types])
        for place, name in enumerate(SYSTEMS)
    }
    confidence = np.where(random.random(n) < 0.1, np.nan, random.random(n))
    made = random.normal(size=(n, 3)).astype(np.float32) if vectors else None
    if made is not None:
        made[np.arange(n), [TYPES.index(own) for own in types]] += 3.0
    return Measured(values, confidence, tuple(types), tuple(texts), vectors=made, model="made" if vectors else None)


# The oracle: question by question.


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def answered(measured: Measured, other: str, thresholds: Sequence[float], places: Sequence[int]) -> tuple[float, float]:
    """(mean value, share skipped) of a cascade over these questions."""
    got, skipped = [], 0
    for place, threshold in zip(places, thresholds, strict=True):
        sure = not math.isnan(measured.confidence[place]) and measured.confidence[place] >= threshold
        got.append(measured.values["bm25" if sure else other][place])
        skipped += sure
    return mean(got), skipped / len(got)


def smallest(measured: Measured, other: str, places: Sequence[int]) -> float:
    """The smallest hundredth that keeps within .005 of always escalating."""
    least = mean([measured.values[other][place] for place in places]) - 0.005
    for step in range(101):
        if answered(measured, other, [step / 100] * len(places), places)[0] >= least - 1e-12:
            return step / 100
    return math.inf


def winners(measured: Measured, places: Sequence[int], least: int = 5) -> tuple[dict[str, str], str]:
    """(the best system of each type with enough questions, the best of all); of equal ones the first."""

    def best(of: Sequence[int]) -> str:
        return max(measured.values, key=lambda name: round(mean([measured.values[name][place] for place in of]), 9))

    found = {}
    for name in sorted(set(measured.types)):
        of = [place for place in places if measured.types[place] == name]
        if len(of) >= least:
            found[name] = best(of)
    return found, best(places)


def test_the_numbers_of_the_source() -> None:
    """Folds and seed (SPEC A089), shares of noise (A100) and numbers of labels (A101)."""
    assert (routing.FOLDS, routing.SEED) == (5, 42)
    assert routing.NOISE == (0.0, 0.05, 0.10, 0.20)
    assert routing.SIZES == (25, 50, 100, 200, 300, 400)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(0, 1000))
def test_the_sweep_answers_each_question_by_its_margin(n: int, seed: int) -> None:
    measured = questions(n, seed)
    found = routing.cascade_sweep(measured, "dense")
    assert [row["tau"] for row in found] == list(TAUS_A087)
    for row in found:
        value, skip = answered(measured, "dense", [row["tau"]] * n, range(n))
        assert row["value"] == pytest.approx(value)
        assert row["skip"] == pytest.approx(skip)


def test_cross_validation_against_loops() -> None:
    measured = questions(200, 3)
    found = routing.cascade_folds(measured, "rrf")
    assert [fold.places.tolist() for fold in found] == [test.tolist() for _, test in routing.splits(200)]
    for fold, (train, test) in zip(found, routing.splits(200), strict=True):
        by_type = {name: [p for p in train.tolist() if measured.types[p] == name] for name in TYPES}
        assert fold.taus == {name: smallest(measured, "rrf", places) for name, places in by_type.items()}
        assert fold.tau == smallest(measured, "rrf", train.tolist())
        told = fold.classifier.predict([measured.texts[place] for place in test])
        assert fold.accuracy == pytest.approx(mean([t == measured.types[p] for t, p in zip(told, test, strict=True)]))
        value, skip = answered(measured, "rrf", [fold.taus[name] for name in told], test.tolist())
        assert (fold.value, fold.skip) == pytest.approx((value, skip))
        value, skip = answered(measured, "rrf", [fold.tau] * len(test), test.tolist())
        assert (fold.value_single, fold.skip_single) == pytest.approx((value, skip))
        policy = fold.cascade("rrf")
        assert (policy.tau, policy.taus, policy.escalate) == (fold.tau, fold.taus, STRATEGIES["rrf"])
        assert policy.classifier is fold.classifier


@pytest.mark.parametrize(
    ("value", "static", "oracle", "printed"),
    [
        (0.258, 0.254, 0.266, 33),
        (0.262, 0.254, 0.266, 67),
        (0.266, 0.254, 0.266, 100),
        (0.308, 0.254, 0.266, 450),
        (0.296, 0.288, 0.300, 67),
        (0.298, 0.288, 0.300, 83),
        (0.292, 0.288, 0.300, 33),
    ],
)
def test_captured_shares_of_the_source(value: float, static: float, oracle: float, printed: int) -> None:
    """SPEC A098; the paper cut 166.7 to 166."""
    found = routing.captured_share(value, static, oracle)
    assert found is not None
    assert round(found) == printed
    soft = routing.captured_share(0.274, 0.254, 0.266)
    assert soft is not None
    assert int(soft) == 166
    assert routing.captured_share(0.5, 0.4, 0.4) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=30), max_size=5), st.floats(0, 1), st.integers(0, 9))
def test_slips_are_a_texts_own(texts: list[str], share: float, seed: int) -> None:
    found = routing.corrupt_texts(texts, share, seed)
    assert found == routing.corrupt_texts(texts, share, seed)
    assert routing.corrupt_texts(texts, 0.0, seed) == texts
    assert [*found[:1]] == routing.corrupt_texts(texts[:1], share, seed)
    for text, noisy in zip(texts, found, strict=True):
        assert len(noisy) <= 2 * len(text)
    assert all(not noisy for text, noisy in zip(texts, found, strict=True) if not text)


def test_the_learning_curve_against_loops() -> None:
    measured = questions(150, 13, telling=1.0)
    rows = routing.learning_curve(measured, sizes=(20, 60, 110, 111), held_out=40, draws=3, seed=5)
    assert [row["labels"] for row in rows] == [20, 60, 110]  # 111 would leave 39
    for row in rows:
        values, statics, oracles, rights = [], [], [], []
        for draw in range(3):
            order = np.random.default_rng([5, draw]).permutation(150).tolist()
            test, train = order[:40], order[40 : 40 + row["labels"]]
            routes, other = winners(measured, train)
            own, rest = winners(measured, test, least=1)
            told = measured.fit(np.array(train)).predict([measured.texts[place] for place in test])
            rights.append(mean([one == measured.types[place] for one, place in zip(told, test, strict=True)]))
            values.append(mean([measured.values[routes.get(n, other)][p] for n, p in zip(told, test, strict=True)]))
            statics.append(mean([measured.values[other][place] for place in test]))
            oracles.append(mean([measured.values[own.get(measured.types[p], rest)][p] for p in test]))
        assert row["value"] == pytest.approx(mean(values))
        assert row["deviation"] == pytest.approx(math.sqrt(mean([(v - mean(values)) ** 2 for v in values])))
        assert row["static"] == pytest.approx(mean(statics))
        assert row["oracle"] == pytest.approx(mean(oracles))
        assert row["accuracy"] == pytest.approx(mean(rights))
    assert rows[-1]["accuracy"] == 1.0
    for how in ({"sizes": (0,)}, {"held_out": 0}, {"draws": 1.5}):
        with pytest.raises(ParameterError, match="must be 1 or more"):
            routing.learning_curve(measured, **how)  # type: ignore[arg-type]


def test_differences_are_paired_and_never_above_1() -> None:
    values = {"a": np.array([1.0, 0.0, 1.0, 1.0]), "b": np.array([0.0, 0.0, 1.0, 1.0])}
    values["same"] = values["a"].copy()
    found = routing.differences(values, [("a", "b"), ("a", "same"), ("a", "none")], ["x", "x", "y", "y"])
    assert [(row["first"], row["second"]) for row in found] == [("a", "b"), ("a", "same")]
    alone = paired_bootstrap(values["a"], values["b"], seed=42)
    assert {name: found[0][name] for name in ("difference", "low", "high", "p")} == {
        "difference": 0.25,
        "low": alone.low,
        "high": alone.high,
        "p": alone.p,
    }
    # Ties on both sides would make it 2 (SPEC X12).
    assert found[1]["p"] == 1.0
    assert found[0]["cluster"]["units"] == 2
    assert "cluster" not in routing.differences(values, [("a", "b")])[0]


@pytest.mark.parametrize("passages", [False, True])
def test_skip_shares_of_the_source(data: Path, passages: bool) -> None:
    """SPEC A087, R40: exactly, whatever the vectors are of, and whatever the encoder."""
    file = data / "locomo" / "locomo10.json"
    if not file.exists():
        pytest.skip(f"no locomo/locomo10.json in {data}; set FANRANK_DATA to the folder that holds it")
    preset = find_preset("agentir", "locomo")
    dataset = prepare_dataset(load_locomo(file, passages=passages, **preset.reading), Cascade(), "none")
    engine = engine_of(dataset, preset, encoder=Letters())
    found = []
    for tau in TAUS_A087:
        decisions = engine.search(dataset.queries, 1, strategy=Cascade(tau)).decisions
        assert decisions is not None
        found.append(round(100 * sum(not own.escalated for own in decisions) / 1982, 1))
    assert found == [100.0, 82.0, 67.9, 56.5, 47.2, 30.0, 8.2, 0.0]
