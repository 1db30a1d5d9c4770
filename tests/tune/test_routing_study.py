"""What deciding per query would give, against loops over questions; and LoCoMo's published skip shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate import load_locomo, paired_bootstrap
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.evaluate.presets import find_preset
from fanrank.engine.evaluate.protocol import TAUS_A087, Evaluation, engine_of, prepare_dataset
from fanrank.engine.hybrid.strategy import STRATEGIES
from fanrank.engine.records.query import Query
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.tune.study import (
    Measured,
    captured_share,
    cascade_folds,
    cascade_sweep,
    corrupt_texts,
    differences,
    learning_curve,
    noise_grid,
    router_of,
    routers,
    splits,
)

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


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(0, 1000))
def test_the_sweep_answers_each_question_by_its_margin(n: int, seed: int) -> None:
    measured = questions(n, seed)
    found = cascade_sweep(measured, "dense")
    assert [row["tau"] for row in found] == list(TAUS_A087)
    for row in found:
        value, skip = answered(measured, "dense", [row["tau"]] * n, range(n))
        assert row["value"] == pytest.approx(value)
        assert row["skip"] == pytest.approx(skip)


def test_every_question_is_tested_once() -> None:
    found = splits(103)
    assert [len(test) for _, test in found] == [21, 21, 21, 20, 20]
    assert sorted(np.concatenate([test for _, test in found]).tolist()) == list(range(103))
    for train, test in found:
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(103))
    assert [test.tolist() for _, test in splits(103, seed=42)] == [test.tolist() for _, test in found]
    assert [test.tolist() for _, test in splits(103, seed=1)] != [test.tolist() for _, test in found]


def test_cross_validation_against_loops() -> None:
    pytest.importorskip("sklearn")
    measured = questions(200, 3)
    found = cascade_folds(measured, "rrf")
    assert [fold.places.tolist() for fold in found] == [test.tolist() for _, test in splits(200)]
    for fold, (train, test) in zip(found, splits(200), strict=True):
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


def test_a_fold_learns_nothing_from_its_own_questions() -> None:
    pytest.importorskip("sklearn")
    measured = questions(120, 5)
    first = cascade_folds(measured, "dense")[0]
    other = questions(120, 6)
    mixed = {name: column.copy() for name, column in measured.values.items()}
    confidence, types, texts = measured.confidence.copy(), list(measured.types), list(measured.texts)
    for place in first.places.tolist():
        for name in SYSTEMS:
            mixed[name][place] = other.values[name][place]
        confidence[place], types[place], texts[place] = other.confidence[place], "delta", "quite unseen words"
    again = cascade_folds(Measured(mixed, confidence, tuple(types), tuple(texts)), "dense")[0]
    assert (again.taus, again.tau) == (first.taus, first.tau)
    assert again.classifier.to_dict() == first.classifier.to_dict()
    assert again.accuracy == 0.0


def test_routers_against_loops() -> None:
    pytest.importorskip("sklearn")
    measured = questions(240, 7, vectors=True)
    soft = np.full(240, 0.5)
    found = routers(measured, soft=soft)
    table, default = winners(measured, range(240), least=1)
    expected: dict[str, list[float]] = {name: column.tolist() for name, column in measured.values.items()}
    expected["oracle"] = [measured.values[table[own]][place] for place, own in enumerate(measured.types)]
    expected["any"] = [max(measured.values[name][place] for name in SYSTEMS) for place in range(240)]
    expected["soft"] = soft.tolist()
    for name in ("oracle-table", "router-tfidf", "router-embedding", "router-both"):
        expected[name] = [math.nan] * 240
    told: dict[str, list[str]] = {name: [""] * 240 for name in ("tfidf", "embedding", "both")}
    for train, test in splits(240):
        routes, other = winners(measured, train.tolist())
        for place in test.tolist():
            expected["oracle-table"][place] = measured.values[routes.get(measured.types[place], other)][place]
        for features, own in told.items():
            policy = router_of(measured, train, features)
            assert {name: strategy.name for name, strategy in policy.table.items()} == routes
            assert policy.default.name == other
            assert policy.classifier is not None
            assert policy.classifier.dimension == (0 if features == "tfidf" else 3)
            assert bool(policy.classifier.terms) == (features != "embedding")
            for place in test.tolist():
                text = "" if features == "embedding" else measured.texts[place]
                assert measured.vectors is not None
                vectors = None if features == "tfidf" else measured.vectors[[place]]
                own[place] = policy.classifier.predict([text], vectors)[0]
                expected[f"router-{features}"][place] = measured.values[routes.get(own[place], other)][place]
    assert set(found["rows"]) == set(found["values"]) == set(expected)
    for name, column in expected.items():
        assert found["values"][name].tolist() == column, name
        assert found["rows"][name]["value"] == pytest.approx(mean(column))
    for features, own in told.items():
        right = mean([one == measured.types[place] for place, one in enumerate(own)])
        assert found["rows"][f"router-{features}"]["accuracy"] == pytest.approx(right)
    assert (found["best_static"], found["table"]) == (default, table)
    assert all(found["rows"][name]["captured"] is None for name in SYSTEMS)
    assert found["rows"]["oracle"]["captured"] == pytest.approx(100.0)
    assert found["gap"] == pytest.approx(mean(expected["oracle"]) - mean(expected[default]))
    assert found["rows"]["any"]["value"] >= found["rows"]["oracle"]["value"] >= found["rows"][default]["value"]


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
    found = captured_share(value, static, oracle)
    assert found is not None
    assert round(found) == printed
    soft = captured_share(0.274, 0.254, 0.266)
    assert soft is not None
    assert int(soft) == 166
    assert captured_share(0.5, 0.4, 0.4) is None


def test_clean_questions_are_routed_as_without_noise() -> None:
    pytest.importorskip("sklearn")
    measured = questions(200, 11)
    plain = routers(measured)["rows"]["router-tfidf"]
    rows = noise_grid(measured, levels=(0.0, 0.3, 1.0))
    assert rows[0] == {"noise": 0.0, "accuracy": plain["accuracy"], "value": plain["value"]}
    assert rows[0]["accuracy"] > rows[1]["accuracy"] > rows[2]["accuracy"]
    # Nothing is left to read of the last: one type, of all questions of a fold, or what is much like it.
    noisy = corrupt_texts(measured.texts, 0.3)
    got = []
    for train, test in splits(200):
        routes, other = winners(measured, train.tolist())
        told = measured.fit(train).predict([noisy[place] for place in test])
        got += [measured.values[routes.get(one, other)][place] for one, place in zip(told, test.tolist(), strict=True)]
    assert rows[1]["value"] == pytest.approx(mean(got))


def test_slips_hit_the_share_that_is_asked_for() -> None:
    text = "#" * 20_000
    (found,) = corrupt_texts([text], 0.2)
    letters = sum(character.isalpha() for character in found)
    # Half of the hits write a letter and half lose a character; a swap of two alike does not show, and spares one.
    hits = 20_000 * 0.2 / (1 + 0.2 / 4)
    spread = math.sqrt(20_000 * 0.1 * 0.9)
    assert abs(letters - hits / 2) < 5 * spread
    assert abs(found.count("#") - (20_000 - hits / 2)) < 5 * spread
    assert set(found) <= set("#abcdefghijklmnopqrstuvwxyz")
    swapped = corrupt_texts(["0123456789" * 500], 0.2)[0]
    assert any(pair in swapped for pair in ("10", "21", "32"))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=30), max_size=5), st.floats(0, 1), st.integers(0, 9))
def test_slips_are_a_texts_own(texts: list[str], share: float, seed: int) -> None:
    found = corrupt_texts(texts, share, seed)
    assert found == corrupt_texts(texts, share, seed)
    assert corrupt_texts(texts, 0.0, seed) == texts
    assert [*found[:1]] == corrupt_texts(texts[:1], share, seed)
    for text, noisy in zip(texts, found, strict=True):
        assert len(noisy) <= 2 * len(text)
    assert all(not noisy for text, noisy in zip(texts, found, strict=True) if not text)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, True, "a"])
def test_a_share_is_a_share(share: Any) -> None:
    with pytest.raises(ParameterError, match="share of corrupted characters"):
        corrupt_texts(["a"], share)


def test_the_learning_curve_against_loops() -> None:
    pytest.importorskip("sklearn")
    measured = questions(150, 13, telling=1.0)
    rows = learning_curve(measured, sizes=(20, 60, 110, 111), held_out=40, draws=3, seed=5)
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
            learning_curve(measured, **how)  # type: ignore[arg-type]


def test_differences_are_paired_and_never_above_1() -> None:
    values = {"a": np.array([1.0, 0.0, 1.0, 1.0]), "b": np.array([0.0, 0.0, 1.0, 1.0])}
    values["same"] = values["a"].copy()
    found = differences(values, [("a", "b"), ("a", "same"), ("a", "none")], ["x", "x", "y", "y"])
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
    assert "cluster" not in differences(values, [("a", "b")])[0]


def evaluation(dataset: Dataset, values: list[float], confidence: float) -> Evaluation:
    n = len(dataset.queries)
    return Evaluation(dataset, {}, np.full(n, confidence), {"hit@5": np.array(values)}, "scripted", {})


def test_columns_of_evaluations() -> None:
    queries = [Query("one?", id="a"), Query("two?", id="b")]
    dataset = Dataset(
        "toy", [], queries, {"a": {}, "b": {}}, {"a": "temporal", "b": "open-domain"}, {"a": "x", "b": "y"}
    )
    runs = {"bm25": evaluation(dataset, [1.0, 0.0], 0.5), "rrf": evaluation(dataset, [0.0, 1.0], 0.9)}
    found = Measured.of(runs, "hit@5")
    assert (found.types, found.texts) == (("temporal-reasoning", "open-domain"), ("one?", "two?"))
    assert found.clusters == ("x", "y")
    assert found.confidence.tolist() == [0.5, 0.5]
    assert {name: column.tolist() for name, column in found.values.items()} == {"bm25": [1.0, 0.0], "rrf": [0.0, 1.0]}
    with pytest.raises(ParameterError, match="'hit@1' was not measured for 'bm25'"):
        Measured.of(runs, "hit@1")
    with pytest.raises(ParameterError, match="an evaluation of 'bm25' is needed; there are: rrf"):
        Measured.of({"rrf": runs["rrf"]}, "hit@5")
    other = Dataset("toy", [], queries[:1], {"a": {}})
    with pytest.raises(ParameterError, match="'rrf' ran over other queries"):
        Measured.of({**runs, "rrf": evaluation(other, [1.0], 0.1)}, "hit@5")


def test_columns_must_fit_together() -> None:
    good: dict[str, Any] = {"values": {"bm25": np.ones(2)}, "confidence": np.ones(2), "types": "ab", "texts": "ab"}
    assert len(Measured(**good)) == 2
    for wrong, words in (
        ({"values": {"rrf": np.ones(2)}}, "'bm25' must be among the systems"),
        ({"confidence": np.ones(3)}, "confidence: 3 values for 2 questions"),
        ({"types": "a"}, "types: 1 values for 2 questions"),
        ({"vectors": np.ones((1, 4))}, "vectors: 1 values for 2 questions"),
        ({"clusters": ("x",)}, "clusters: 1 values for 2 questions"),
        ({"texts": "", "types": "", "values": {"bm25": np.ones(0)}, "confidence": np.ones(0)}, "0 questions"),
    ):
        with pytest.raises(ParameterError, match=words):
            Measured(**{**good, **wrong})
    with pytest.raises(ParameterError, match="'magic' was not measured; there are: bm25"):
        cascade_sweep(Measured(**good), "magic")
    with pytest.raises(ParameterError, match="unknown features 'letters'"):
        Measured(**good).fit(np.arange(2), "letters")
    with pytest.raises(ParameterError, match="need the questions' vectors"):
        Measured(**good).fit(np.arange(2), "both")


class Letters:
    """An encoder of letter counts."""

    name, version, dimension = "letters", "1", 26

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        return np.array([[t.lower().count(chr(97 + n)) + 0.1 for n in range(26)] for t in texts], dtype=np.float32)

    queries = documents


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
