"""`tune_bm25`, `fit_weights` and `Classifier.fit` find what was planted, and keep what they cannot better."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from support.commands import run, run_json, write_questions
from support.questions import TEXT, TEXTS, TYPES

import fanrank as fr
from fanrank.engine.route import policy as policies
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.tune import parameters
from fanrank.engine.tune.parameters import scored_by
from fanrank.evaluation import Labelled, fit_weights, tune_bm25
from fanrank.strategies import Cue, Lexical, Linear


def memory(**options: object) -> tuple[fr.Engine, list[Labelled]]:
    """Long records that answer and short ones that do not: every question gains by a small b."""
    engine = fr.Engine(analyzer="minimal", **options)  # type: ignore[arg-type]
    questions = []
    for space in range(8):
        name = f"s{space}"
        for number in range(4):
            word = f"x{number}"
            long = " ".join([word] * 3 + [f"{name}y{number}n{i}" for i in range(40)])
            engine.add(
                [fr.Record(f"right{number}", long, namespace=name), fr.Record(f"w{number}", word, namespace=name)]
            )
            questions.append(Labelled(fr.Query(word, namespace=name), {f"right{number}": 1}))
    engine.namespace("s0").delete(["w3"])
    return engine, questions


@pytest.mark.parametrize("method", ["lucene", "okapi", "bm25l", "bm25+"])
def test_other_parameters_over_the_same_segments_are_those_of_an_engine_made_with_them(method: str) -> None:
    engine, questions = memory()
    other, _ = memory(method=method, k1=0.7, b=0.2)
    batch = [question.query for question in questions]
    with scored_by(engine, other.bm25) as shared:
        found, expected = shared.search(batch, 50), other.search(batch, 50)
    assert found.scores.tobytes() == expected.scores.tobytes()
    assert np.array_equal(found.ids, expected.ids)
    assert engine.search(batch, 50).scores.tobytes() != expected.scores.tobytes()


def test_it_takes_what_unseen_questions_gain_by() -> None:
    engine, questions = memory()
    before = engine.search([question.query for question in questions]).scores.tobytes()
    tuned = tune_bm25(engine, questions, methods=["lucene"], k1=[1.2], b=[0.0, 0.9])
    assert [(point.method, point.k1, point.b) for point in tuned.points] == [
        ("lucene", 1.2, 0.75), ("lucene", 1.2, 0.0), ("lucene", 1.2, 0.9),
    ]  # fmt: skip
    assert tuned.chosen is tuned.best is tuned.points[1]
    assert tuned.current.value == pytest.approx(33 / 64)
    assert tuned.best.value == 1.0
    assert tuned.folds_chose == (tuned.points[1],) * 5
    assert tuned.cross_validated == 1.0
    assert tuned.unseen.low > 0.0
    assert fr.Engine(**tuned.chosen.options()).bm25 == fr.BM25("lucene", 1.2, 0.0)
    assert engine.search([question.query for question in questions]).scores.tobytes() == before


def test_it_keeps_what_it_cannot_better(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, questions = memory(b=0.0)
    tuned = tune_bm25(engine, questions, methods=["lucene"], k1=[1.2], b=[0.0, 0.9])
    assert len(tuned.points) == 2
    assert tuned.chosen is tuned.current
    assert tuned.to_dict()["changed"] is False
    # Where each fold's others choose badly, the best over all questions is luck.
    engine, questions = memory()
    table = {0.75: 0.5, 0.0: 0.6}
    noise = np.random.default_rng(0).normal(0.0, 1.0, len(questions))
    monkeypatch.setattr(
        parameters, "_values", lambda _e, q, bm25, _m: np.full(len(q), table[bm25.b]) + noise * (bm25.b == 0.0)
    )
    lucky = tune_bm25(engine, questions, methods=["lucene"], k1=[1.2], b=[0.0])
    assert lucky.best.value > lucky.current.value or lucky.best is lucky.current
    assert lucky.chosen is lucky.current


def test_what_it_refuses() -> None:
    engine, questions = memory()
    with pytest.raises(fr.errors.ParameterError, match="4 questions cannot be split into 5 folds"):
        tune_bm25(engine, questions[:4])
    with pytest.raises(fr.errors.ParameterError, match="unknown BM25 method 'dot'"):
        tune_bm25(engine, questions, methods=["dot"])
    with pytest.raises(fr.errors.ParameterError, match=r"b must lie in \[0, 1\]"):
        tune_bm25(engine, questions, b=[2.0])
    with pytest.raises(fr.errors.ParameterError, match="'tea' has no relevant record"):
        tune_bm25(engine, [*questions, Labelled(fr.Query("tea"), {"1": 0})])


def test_the_command_writes_options_of_an_engine(tmp_path: Path) -> None:
    made, questions = memory()
    with fr.Engine.open(tmp_path / "memory", analyzer="minimal", profile="literature") as engine:
        for name in made.namespaces:
            engine.add(fr.Record(record.id, record.text, namespace=name) for record in made.namespace(name).records())
    asked, out = write_questions(tmp_path / "questions.jsonl", questions), tmp_path / "bm25.json"
    told = ("tune", tmp_path / "memory", "--questions", asked, "--bm25")
    result = run_json(*told, "--out", out)
    options = json.loads(out.read_text())
    assert result["chosen"] == options
    assert (result["changed"], result["n"], result["metric"]) == (True, 32, "map")
    assert len(result["points"]) == 3 * 5 * 6  # the engine's own is one of them
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.copy_to(tmp_path / "copy", **options)
    with fr.Engine.open(tmp_path / "copy") as copy:
        assert {name: getattr(copy.bm25, name) for name in options} == options
    assert f"take --method {options['method']} --k1 {options['k1']:g} --b {options['b']:g}" in run(*told).stdout
    assert "--bm25 fits no policy: leave out --system" in run(*told, "--system", "bm25", code=2).stderr


WORDS = ["lake", "boat", "rain", "sale", "tool", "blue", "euro", "plan", "trip", "tea"]
OWN = fr.Strategy(
    "own", (Lexical(), Cue("asks"), Cue("answers"), Cue("length")), Linear({"bm25": 1.0, "asks": 0.0, "answers": 0.0})
)


def talk(seed: int, right: str = "answers") -> tuple[list[fr.Record], list[Labelled]]:
    """Sessions in which each word is asked for and answered; what is right is the answer, or the question."""
    draw = random.Random(seed)
    records, questions = [], []
    for space in range(6):
        for number, word in enumerate(draw.sample(WORDS, 8)):
            for place, text in enumerate(("{} today", f"the {word} {{}}?", f"a {word} {{}}")):
                own = {"session": f"s{number}", "namespace": f"n{space}"}
                records.append(fr.Record(f"t{number}-{place}", text.format(draw.choice(WORDS)), **own))
            wanted = f"t{number}-{2 if right == 'answers' else 1}"
            questions.append(Labelled(fr.Query(word, namespace=f"n{space}"), {wanted: 1}))
    return records, questions


@pytest.mark.parametrize(("right", "sign"), [("answers", 1.0), ("asks", -1.0)])
def test_it_finds_what_tells_the_right_records(right: str, sign: float) -> None:
    records, questions = talk(0, right)
    engine = fr.Engine.from_records(records)
    before = engine.search([one.query for one in questions], strategy=OWN).scores.tobytes()
    found = fit_weights(engine, questions, OWN)
    weights = found.to_dict()["fitted"]
    assert sign * (weights["answers"] - weights["asks"]) > 1.0
    assert found.unseen.low > 0.0
    assert found.chosen is found.fitted
    assert found.values.mean() > 0.8
    assert len(found.folds) == 5
    assert found.fitted.channels == OWN.channels
    first = engine.search([one.query for one in questions], 1, strategy=found.chosen).ids[:, 0]
    assert np.mean([name in one.relevant for name, one in zip(first, questions, strict=True)]) > 0.6
    assert engine.search([one.query for one in questions], strategy=OWN).scores.tobytes() == before
    again = fit_weights(engine, questions, found.fitted)
    assert not again.to_dict()["changed"]
    assert again.chosen is found.fitted, "nothing is above chance, so the strategy stays"
    assert again.to_dict()["fitted"] == weights, "the one maximum, from any start"


def test_what_cannot_be_fitted_is_refused_by_name() -> None:
    records, questions = talk(0)
    engine = fr.Engine.from_records(records)
    with pytest.raises(fr.errors.ParameterError, match="'bm25' is not fused by Linear"):
        fit_weights(engine, questions, "bm25")
    with pytest.raises(fr.errors.ParameterError, match="4 questions cannot be split into 5 folds"):
        fit_weights(engine, questions[:4], OWN)
    lost = [Labelled(one.query, {"elsewhere": 1}) for one in questions]
    with pytest.raises(fr.errors.ParameterError, match="no question has a relevant record"):
        fit_weights(engine, lost, OWN)


def test_the_command_writes_a_strategy_that_search_takes(tmp_path: Path) -> None:
    records, questions = talk(0)
    with fr.Engine.open(tmp_path / "memory") as memory:
        memory.add(records)
    out, asked = tmp_path / "own.json", write_questions(tmp_path / "asked.jsonl", questions)
    told = ("tune", tmp_path / "memory", "--questions", asked, "--weights")
    assert "48 questions, ndcg@10, strategy dialogue-words" in run(*told, "--out", out).stdout
    found = run_json(*told)
    assert [*found["fitted"]] == [*fr.strategies.STRATEGIES["dialogue-words"].fusion.weights]
    chosen, about = policies.load(out)
    assert chosen.to_dict() == fr.Strategy.of({k: v for k, v in found["policy"].items() if k != "kind"}).to_dict()
    assert about["n"] == 48
    assert "leave out --bm25" in run(*told, "--bm25", code=2).stderr


def vectors_of(count: int, dimension: int = 5) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(count, dimension)).astype(np.float32)


def dense(classifier: Classifier, texts: list[str]) -> np.ndarray:
    offsets, places, values = classifier.features(texts)
    found = np.zeros((len(texts), len(classifier.terms)))
    for text in range(len(texts)):
        own = slice(offsets[text], offsets[text + 1])
        found[text, places[own]] = values[own]
    return found


@settings(deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=8), st.lists(TEXT, max_size=4))
def test_features_are_scikit_learns(texts: list[str], others: list[str]) -> None:
    texts = [*texts, "when visit"]  # its vocabulary must not be empty
    theirs = TfidfVectorizer(ngram_range=(1, 2)).fit(texts)
    ours = Classifier.fit(texts, ["one"] * len(texts))
    assert list(ours.terms) == list(theirs.get_feature_names_out())
    np.testing.assert_allclose(ours.idf, theirs.idf_, rtol=0, atol=1e-12)
    for some in (texts, others):
        if some:
            np.testing.assert_allclose(dense(ours, some), theirs.transform(some).toarray(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("embedded", [False, True])
def test_probabilities_are_scikit_learns(labels: int, embedded: bool) -> None:
    types = [type if labels == 3 or type != "several" else "user" for type in TYPES]
    vectors = vectors_of(len(TEXTS)) if embedded else None
    theirs = TfidfVectorizer(ngram_range=(1, 2)).fit(TEXTS)

    def features(texts: list[str], own: np.ndarray | None) -> np.ndarray:
        words = theirs.transform(texts).toarray()
        return words if own is None else np.hstack([words, own.astype(np.float64)])

    model = LogisticRegression(C=2.0, max_iter=1000, random_state=0).fit(features(TEXTS, vectors), types)
    ours = Classifier.fit(TEXTS, types, vectors, c=2.0)
    assert ours.labels == tuple(model.classes_)
    assert ours.dimension == (5 if embedded else 0)
    asked = [*TEXTS, "how many visits to Paris", "", "zebra", "which which when"]
    own = vectors_of(len(asked)) if embedded else None
    # The fit itself ends within its own tolerance, so the model is handed over for the comparison of the arithmetic.
    np.testing.assert_allclose(ours.probabilities(asked, own), model.predict_proba(features(asked, own)), atol=1e-6)
    coefficients, intercepts = model.coef_, model.intercept_
    if labels == 2:
        coefficients, intercepts = np.vstack([0 * coefficients, coefficients]), np.array([0.0, *intercepts])
    same = Classifier(ours.labels, ours.terms, theirs.idf_, coefficients, intercepts, ours.dimension)
    expected = model.predict_proba(features(asked, own))
    np.testing.assert_allclose(same.probabilities(asked, own), expected, rtol=0, atol=1e-12)
    assert same.predict(asked, own) == list(model.predict(features(asked, own)))


def test_fitting_learns_and_is_repeatable() -> None:
    one, two = (Classifier.fit(TEXTS[:6], TYPES[:6], c=100.0, seed=4) for _ in range(2))
    assert one.predict(TEXTS[:6]) == TYPES[:6]
    np.testing.assert_array_equal(one.weights, two.weights)
    assert one.model is None
    assert Classifier.fit(TEXTS, TYPES, vectors_of(8), model="some/model").model == "some/model"
