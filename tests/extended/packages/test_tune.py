"""Tuning: what is chosen against what is known of made-up engines."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.six_words import AXES, MIXED, SYSTEMS, WORDS, Words, dense, lexical, memory

import fanrank as fr
from fanrank.engine.encoders.cache import CachedEncoder
from fanrank.engine.errors import MissingExtraError, ParameterError
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.metrics.bootstrap import paired_bootstrap
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.tune import measure, tuner
from fanrank.engine.tune.command import render_tuned
from fanrank.engine.tune.front import Point, pareto
from fanrank.engine.tune.measure import Labelled, Questions, encode_afresh
from fanrank.engine.tune.thresholds import HUNDREDTHS, MARGIN
from fanrank.engine.tune.tuner import tune


def test_questions_are_asked_timed_and_judged() -> None:
    engine = memory()
    asked = [lexical("tea"), lexical("river"), dense("tea")]
    questions = Questions(engine, [*asked, asked[0]], "hit@1")
    run = questions.answer(NAMED["bm25"])
    for value, one in zip(run.values, [*asked, asked[0]], strict=True):
        top = engine.search([one.query], 1)[0][0][0]
        assert value == (1.0 if top in one.relevant else 0.0)
    assert run.milliseconds > 0
    assert run.decisions is None
    assert run.skip is None
    assert questions.select([1]).answer(NAMED["bm25"]).values.tolist() == [run.values[1]]
    calls: list[tuple[str, tuple[str, ...]]] = []

    def judge(query: fr.Query, ids: list[str]) -> float:
        calls.append((query.text, tuple(ids)))
        return len(ids) / 10

    judged = Questions(engine, asked, judge=judge, k=2)
    first = judged.compare({"bm25": NAMED["bm25"]}, repeats=2)["bm25"]
    assert first.values.tolist() == [len(ids) / 10 for _, ids in calls]
    assert len(calls) == 3
    judged.answer(NAMED["bm25"])
    assert len(calls) == 3  # the same answers are not judged again
    with pytest.raises(ParameterError, match="finite number"):
        Questions(engine, asked, judge=lambda *_: math.nan).answer(NAMED["bm25"])
    with pytest.raises(ParameterError, match="no questions"):
        Questions(engine, [])
    # The record that is the question itself does not count as found.
    own = Labelled(fr.Query("tea"), {"says error": 1}, own="says tea")
    assert Questions(engine, [own], "hit@1").answer(NAMED["bm25"]).values.tolist() == [1.0]


def test_a_cache_does_not_falsify_times(tmp_path: Path) -> None:
    encoder = Words()
    with CachedEncoder(encoder, tmp_path / "cache") as cached:
        engine = memory(cached)
        questions = Questions(engine, [lexical("tea"), dense("river")])
        for run in range(3):
            questions.answer(NAMED["dense"])
            assert encoder.asked == 2 * (run + 1)
        assert engine.encoder is cached
        # What another thread took meanwhile goes on to work: records by the cache, queries by the model.
        with encode_afresh(engine):
            taken = engine.encoder
        assert taken is not None
        asked, known = encoder.asked, cached.hits
        assert taken.documents(["tea"]).tolist() == encoder.documents(["tea"]).tolist()
        assert taken.documents(["tea"]).tolist() == encoder.documents(["tea"]).tolist()
        assert cached.hits > known
        assert taken.queries(["tea"]).tolist() == encoder.documents(["tea"]).tolist()
        assert encoder.asked == asked + 1
        assert (taken.name, taken.version, taken.dimension) == (cached.name, cached.version, cached.dimension)


@pytest.mark.parametrize(("repeats", "size"), [(1, None), (3, 2), (2, 99)])
def test_ways_take_turns_and_each_batch_counts_with_its_least_time(
    monkeypatch: pytest.MonkeyPatch, repeats: int, size: int | None
) -> None:
    clock, calls, random = [0.0], [], np.random.default_rng(1)
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    engine = memory()
    search = engine.search

    def timed(batch: Any, k: int, *, strategy: Any = "bm25") -> Any:
        took = float(random.integers(1, 9))
        clock[0] += took
        calls.append((getattr(strategy, "name", strategy), len(batch), took))
        return search(batch, k, strategy=strategy)

    monkeypatch.setattr(engine, "search", timed)
    asked = [lexical("tea"), dense("river"), lexical("error"), dense("tea"), lexical("garden")]
    ticks: list[int] = []
    ways = {"x": NAMED["bm25"], "y": NAMED["dense"], "z": Cascade(0.1, escalate="dense")}
    found = Questions(engine, asked, "hit@1").compare(
        ways, repeats=repeats, size=size, progress=lambda: ticks.append(1)
    )
    # Every question by BM25 and one of each namespace by every way warm up.
    assert [(name, n) for name, n, _ in calls[:4]] == [("bm25", 5), ("bm25", 1), ("dense", 1), ("cascade", 1)]
    place, sums = 4, dict.fromkeys(ways, 0.0)
    for start in range(0, 5, size or 5):
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, how in ways.items():
                own, n, took = calls[place]
                assert (own, n) == (how.name, min(size or 5, 5 - start))
                times[name].append(took)
                place += 1
        for name, own_times in times.items():
            sums[name] += min(own_times)
    assert place == len(calls)
    assert len(ticks) == len(calls) - 4
    for name, how in ways.items():
        assert found[name].milliseconds == pytest.approx(1e3 * sums[name] / 5)
        hits = search([one.query for one in asked], 1, strategy=how)
        right = [float(own[0][0] in one.relevant) for own, one in zip(hits, asked, strict=True)]
        assert found[name].values.tolist() == right
        if hits.decisions is not None:
            assert found[name].decisions is not None
            told = [one.escalated for one in found[name].decisions or ()]
            assert told == [one.escalated for one in hits.decisions]


def test_tuning_finds_what_was_planted() -> None:
    engine = memory()
    found = tune(engine, MIXED, systems=SYSTEMS, metric="hit@1", held_out=MIXED[::-1], folds=3, repeats=1)
    told = found.to_dict()
    json.dumps(told, allow_nan=False)
    # Accuracy of every system is what a search gives.
    for name in SYSTEMS:
        expected = [float(engine.search([one.query], 1, strategy=name)[0][0][0] in one.relevant) for one in MIXED]
        assert told["systems"][name]["accuracy"] == pytest.approx(np.mean(expected))
    target = max(own["accuracy"] for own in told["systems"].values()) - 0.005
    assert found.chosen.sure >= target - 1e-9
    # The policy gives what the point says, on these questions and on the same ones held out.
    hits = engine.search([one.query for one in MIXED], 1, strategy=found.policy)
    values = [float(row[0][0] in one.relevant) for row, one in zip(hits, MIXED, strict=True)]
    assert found.chosen.accuracy == pytest.approx(np.mean(values))
    assert found.confirmation is not None
    assert (found.confirmation.n, found.confirmation.chosen.accuracy) == (12, found.chosen.accuracy)
    assert {p.name for p in pareto(found.points)} == set(told["front"])
    lexical_values = [float(engine.search([one.query], 1)[0][0][0] in one.relevant) for one in MIXED]
    assert told["parity"]["bm25"] == vars(paired_bootstrap(values, lexical_values))
    assert [step["tau"] for step in told["sweep"]] == list(HUNDREDTHS)
    assert set(told["cross_validation"]) == {"one threshold", "by type, predicted", "by type, oracle"}
    assert sum(fold["n"] for fold in told["cross_validation"]["by type, predicted"]["folds"]) == 12
    assert {name: own["n"] for name, own in told["types"].items()} == {"name": 6, "sense": 6}
    assert 0.0 <= told["classifier"]["accuracy"] <= 1.0
    names = [point["name"] for point in told["points"]]
    assert len(set(names)) == len(names)
    assert {"router", "soft router"} < set(names)
    # Every way that was fitted is among the points.
    assert sum(name.startswith("cascade dense ") for name in names) >= 1
    assert sum(name.startswith("trigger ") for name in names) == 1


class Costly(Words):
    """Encoding a query takes 2 ms of the clock by which `tune` measures; nothing else takes any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.seconds = 0.0
        monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: self.seconds))

    def queries(self, texts: Sequence[str]) -> Any:
        self.seconds += 0.002 * len(texts)
        return super().queries(texts)


def test_the_cascade_that_costs_half_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense system is always right; BM25 is where it is sure, and is not sure of the other half."""
    sure = [Labelled(fr.Query(f"{word} {word} {word}"), {f"says {word}": 1}) for word in WORDS]
    # Two records say as much; the first to arrive stands in front, and the last word is meant.
    torn = [Labelled(fr.Query(f"{WORDS[n - 2]} {word}"), {f"says {word}": 1}) for n, word in enumerate(WORDS) if n > 1]
    found = tune(memory(Costly(monkeypatch)), sure + torn, systems=("bm25", "dense"), metric="hit@1", held_out=torn)
    assert (found.chosen.name, found.chosen.accuracy) == ("cascade dense 0.01", 1.0)
    assert found.chosen.skip == pytest.approx(6 / 10)
    assert isinstance(found.policy, Cascade)
    assert (found.policy.tau, found.policy.escalate) == (0.01, NAMED["dense"])
    assert found.confirmation is not None
    assert (found.confirmation.chosen.skip, found.confirmation.chosen.accuracy) == (0.0, 1.0)


def test_degenerate_labels() -> None:
    engine = memory()
    # One type alone is no types, and fewer questions than folds are each a fold.
    one_type = [Labelled(one.query, one.relevant, "only") for one in MIXED[:3]]
    found = tune(engine, one_type, systems=("bm25", "dense"), metric="hit@1", repeats=1)
    assert found.types == {}
    assert len(found.folds["one threshold"]) == 3
    assert found.confirmation is None
    assert found.about["reference"]["of"] == "labelled"
    # No question has a confidence: nothing is ever skipped, and the point says so.
    alone = fr.Engine.from_records([{"id": f"says {word}", "text": word} for word in WORDS], encoder=Words())
    single = [Labelled(fr.Query(word), {f"says {word}": 1}) for word in WORDS]
    found = tune(alone, single, systems=("bm25", "dense"), metric="hit@1", repeats=1)
    assert {p.skip for p in found.points if p.name.startswith("cascade")} == {0.0}
    assert found.chosen.accuracy == 1.0
    # Nothing is ever found: all are equally good, and one of them is chosen.
    lost = [Labelled(one.query, {"nobody": 1}) for one in MIXED]
    found = tune(engine, lost, systems=SYSTEMS, repeats=1)
    assert found.chosen.accuracy == 0.0
    assert found.to_dict()["parity"]["bm25"]["p"] == 1.0


def test_queries_that_say_their_type_need_no_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.linear_model", None)
    typed = [Labelled(fr.Query(one.query.text, type=one.type), one.relevant) for one in MIXED]
    found = tune(memory(), typed, systems=SYSTEMS, metric="hit@1", folds=3, repeats=1)
    assert set(found.types) == {"name", "sense"}
    assert found.classified is None
    by_type = [p for p in found.points if p.name.endswith("by type")]
    assert len(by_type) == 1
    told = found.to_dict()["cross_validation"]
    assert [fold["accuracy"] for fold in told["by type, predicted"]["folds"]] == [
        pytest.approx(fold["accuracy"]) for fold in told["by type, oracle"]["folds"]
    ]
    with pytest.raises(MissingExtraError, match=r"fanrank\[tune\]"):
        tune(memory(), MIXED, systems=SYSTEMS, metric="hit@1", repeats=1)


def test_a_classifier_is_not_judged_on_what_it_learned_by_heart() -> None:
    """No question shares a word with another, so what a type looks like cannot be learned, only remembered."""
    asked = [
        Labelled(fr.Query(f"first{n} second{n} {WORDS[n % 6]}", terms=[WORDS[n % 6]]), {"says tea": 1}, "ab"[n % 2])
        for n in range(6)
    ]
    found = tune(memory(), asked, systems=("bm25", "dense"), metric="hit@1", folds=6, repeats=1)
    assert found.classified is not None
    assert found.classified < 0.5
    router = next(point for point in found.points if point.name == "router")
    assert router.learned
    assert router.cross_validated is not None


def test_a_classifier_may_read_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC A096: no two questions share a word, and the vector alone tells what type a question is of."""
    engine = memory()
    asked = [
        Labelled(
            fr.Query(f"u{n} v{n}", terms=[WORDS[n % 6]], vector=AXES[n % 6]), {f"says {WORDS[n % 6]}": 1}, "ab"[n % 2]
        )
        for n in range(24)
    ]
    made: list[Classifier] = []
    fit = Classifier.fit

    def noted(*given: Any, **how: Any) -> Classifier:
        made.append(fit(*given, **how))
        return made[-1]

    monkeypatch.setattr(tuner.Classifier, "fit", noted)
    blind, seeing = (
        tune(engine, asked, systems=("bm25", "dense"), metric="hit@1", folds=4, repeats=1, vectors=vectors)
        for vectors in (False, True)
    )
    assert blind.classified is not None
    assert blind.classified < 0.7
    assert seeing.classified == 1.0
    assert (blind.about["vectors"], seeing.about["vectors"]) == (False, True)
    assert (made[0].dimension, made[-1].dimension, made[-1].model) == (0, 6, "words@1")
    policy = Cascade(0.1, escalate=NAMED["dense"], classifier=made[-1])
    hits = engine.search([one.query for one in asked], 1, strategy=policy)
    assert [decision.type for decision in hits.decisions or ()] == [one.type for one in asked]


def test_vectors_where_none_can_be_read() -> None:
    plain = fr.Engine.from_records([{"id": "1", "text": "tea"}], analyzer="minimal")
    with pytest.raises(ParameterError, match="encoder"):
        tune(plain, MIXED, systems=("bm25", "sparse"), metric="hit@1", repeats=1, vectors=True)
    typed = [Labelled(fr.Query(one.query.text, type=one.type), one.relevant) for one in MIXED]
    for questions in (typed, [replace(one, type=None) for one in MIXED]):
        with pytest.raises(ParameterError, match="none is fitted"):
            tune(memory(), questions, systems=SYSTEMS, metric="hit@1", repeats=1, vectors=True)


def test_a_judge_takes_the_metrics_place() -> None:
    """SPEC A118: the caller's own judge, here one who likes what the dense system finds."""
    engine = memory()
    liked = {one.query.text: engine.search([one.query], 1, strategy="dense")[0][0][0] for one in MIXED}
    found = tune(
        engine,
        [Labelled(one.query, {}) for one in MIXED],
        systems=("bm25", "dense"),
        judge=lambda query, ids: float(ids[:1] == [liked[query.text]]),
        repeats=1,
    )
    told = found.to_dict()
    assert told["systems"]["dense"]["accuracy"] == 1.0
    assert told["metric"] == "judge"
    assert found.chosen.accuracy >= 1.0 - MARGIN


def test_a_choice_off_the_front_says_so() -> None:
    points = (Point("bm25", 0.5, 1.0), Point("fused", 0.9, 10.0), Point("cascade fused 0.30", 0.9, 11.0, 0.3))
    swept = Point("cascade fused 1.00", 0.9, 9.0, 0.0)
    sure = [Labelled(fr.Query(f"{word} {word} {word}"), {f"says {word}": 1}) for word in WORDS]
    found = tune(memory(), sure, systems=("bm25", "dense"), metric="hit@1", repeats=1)
    on = replace(found, points=points, chosen=points[0])
    assert on.beaten_by == []
    assert on.to_dict()["chosen"]["on_front"] is True
    off = replace(found, points=(*points, swept), chosen=points[2])
    assert off.beaten_by == [swept]
    told = off.to_dict()["chosen"]
    assert (told["on_front"], told["beaten_by"]) == (False, ["cascade fused 1.00"])
    text = render_tuned({**off.to_dict(), "source": "toy"})
    assert "the chosen point is off the front: cascade fused 1.00" in text
    row = next(line for line in text.splitlines() if line.startswith("cascade fused 0.30"))
    assert row.split()[-1] == "chosen"
    assert "off the front" not in render_tuned({**on.to_dict(), "source": "toy"})
    row = next(line for line in render_tuned({**on.to_dict(), "source": "toy"}).splitlines() if line[:5] == "bm25 ")
    assert row.split()[-2:] == ["front", "chosen"]


def test_systems_that_count_ages_need_times(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = memory()
    undated = [Labelled(one.query, one.relevant) for one in MIXED]
    dated = [Labelled(fr.Query(one.query.text, now=1.0), one.relevant) for one in MIXED]
    found = tune(engine, undated, metric="hit@1", repeats=1)
    assert [point.name for point in found.systems] == ["bm25", "dense", "rrf", "fused"]
    assert list(found.about["left_out"]) == list(found.to_dict()["left_out"]) == ["agent_rrf"]
    found = tune(engine, dated, metric="hit@1", repeats=1)
    assert [point.name for point in found.systems] == ["bm25", "dense", "rrf", "agent_rrf", "fused"]
    # One that counts ages of some types alone needs a time of those.
    never = fr.Strategy("calm", NAMED["rrf"].channels, fr.strategies.AgentRRF(recency_types=["news"]))
    monkeypatch.setattr(engine, "search", lambda *given, **how: pytest.fail("it searched"))
    for systems, asked, held_out in (
        (("bm25", "agent_rrf"), undated, ()),
        (("bm25", "decay"), undated, ()),
        (("bm25", never), undated, ()),
        (None, [*dated, undated[0]], ()),
        (None, dated, undated),
    ):
        with pytest.raises(ParameterError, match=r"counts ages .*--system"):
            tune(engine, asked, systems=systems, metric="hit@1", held_out=held_out)
    typed = [Labelled(fr.Query(one.query.text, type="talk"), one.relevant) for one in MIXED]
    monkeypatch.undo()
    assert tune(engine, typed, systems=("bm25", never), metric="hit@1", repeats=1).about["left_out"] == {}


def test_a_policy_may_be_chosen_beside_what_it_is_made_of() -> None:
    systems = ("bm25", Cascade(0.3, escalate="dense", name="mine"))
    found = tune(memory(), MIXED, systems=systems, metric="hit@1", repeats=1)
    assert [point.name for point in found.points][:3] == ["bm25", "dense", "mine"]


def test_what_cannot_be_tuned() -> None:
    engine = memory()
    for how, message in (
        ({"systems": ("bm25",)}, "bm25 and another"),
        ({"systems": ("dense", "rrf")}, "bm25 and another"),
        ({"systems": ("bm25", "bm25", "rrf")}, "bm25 and another"),
        ({"margin": -0.1}, "margin"),
        ({"folds": 1}, "2 folds"),
        ({"repeats": 0}, "repeats"),
        ({"confidence": "hope"}, "unknown confidence 'hope'"),
        ({"metric": "luck@5"}, "no metric"),
    ):
        with pytest.raises(ParameterError, match=message):
            tune(engine, MIXED, **{"systems": SYSTEMS, **how})
    with pytest.raises(ParameterError, match="2 labelled questions"):
        tune(engine, MIXED[:1], systems=SYSTEMS)
