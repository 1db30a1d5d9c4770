"""The classifier against scikit-learn and against plain loops, to the bit whatever the batch."""

import json
import math
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.questions import TEXT, TEXTS, TYPES

from fanrank.engine.errors import MissingExtraError, ParameterError
from fanrank.engine.route.classifier import Classifier, terms_of


def plain(classifier: Classifier, text: str, vector: np.ndarray | None = None) -> list[float]:
    """Probabilities in loops over the definition."""
    counts = Counter(term for term in terms_of(text) if term in classifier.terms)
    values = {term: count * classifier.idf[classifier.terms.index(term)] for term, count in counts.items()}
    length = math.sqrt(sum(value * value for value in values.values()))
    logits = []
    for label in range(len(classifier.labels)):
        total = float(classifier.bias[label])
        for term, value in values.items():
            total += value / length * classifier.weights[label, classifier.terms.index(term)]
        for place in range(classifier.dimension):
            total += float(vector[place]) * classifier.weights[label, len(classifier.terms) + place]
        logits.append(total)
    raised = [math.exp(logit - max(logits)) for logit in logits]
    return [value / sum(raised) for value in raised]


def made_up(dimension: int = 0) -> Classifier:
    terms = tuple(sorted({term for text in TEXTS for term in terms_of(text)}))
    random = np.random.default_rng(3)
    width = len(terms) + dimension
    return Classifier(
        ("several", "time", "user"),
        terms,
        random.uniform(1.0, 3.0, len(terms)),
        random.normal(size=(3, width)) * 3.0,
        random.normal(size=3),
        dimension,
        "some/model" if dimension else None,
    )


def test_terms() -> None:
    assert terms_of("It's E-47821: a Café_x!") == ["it", "47821", "café_x", "it 47821", "47821 café_x"]
    assert terms_of("") == terms_of("a b ?") == []


@pytest.mark.parametrize("dimension", [0, 5])
@settings(max_examples=30)
@given(st.lists(TEXT, min_size=1, max_size=6))
def test_probabilities_are_the_definition_and_do_not_know_the_batch(dimension: int, texts: list[str]) -> None:
    classifier = made_up(dimension)
    drawn = np.random.default_rng(7).normal(size=(len(texts), dimension)).astype(np.float32)
    vectors = drawn if dimension else None
    together = classifier.probabilities(texts, vectors)
    assert together.dtype == np.float64
    assert together.shape == (len(texts), 3)
    np.testing.assert_allclose(together.sum(axis=1), 1.0, rtol=1e-15)
    for place, text in enumerate(texts):
        own = None if vectors is None else vectors[place : place + 1]
        np.testing.assert_array_equal(together[place], classifier.probabilities([text], own)[0])
        expected = plain(classifier, text, None if vectors is None else vectors[place])
        np.testing.assert_allclose(together[place], expected, rtol=1e-12)
    turned = classifier.probabilities(texts[::-1], None if vectors is None else vectors[::-1])
    np.testing.assert_array_equal(turned[::-1], together)


def test_equal_labels_go_to_the_first() -> None:
    flat = Classifier(("b", "a"), (), np.zeros(0), np.zeros((2, 0)), np.zeros(2))
    assert flat.predict(["when", ""]) == ["b", "b"]
    np.testing.assert_array_equal(flat.probabilities(["when"]), [[0.5, 0.5]])


def test_a_known_type_goes_before_a_predicted_one() -> None:
    classifier = made_up()
    told = classifier.predict(TEXTS[:3])
    assert classifier.types([None, "mine", None], TEXTS[:3]) == [told[0], "mine", told[2]]


def test_one_label_is_always_predicted() -> None:
    one = Classifier.fit(["when did I", "which book"], ["only", "only"])
    np.testing.assert_array_equal(one.probabilities(["when", "zebra", ""]), np.ones((3, 1)))
    assert one.predict(["when"]) == ["only"]


def test_texts_without_words_leave_the_shares() -> None:
    shares = Classifier.fit(["", "?", "a", ""], ["x", "x", "x", "y"])
    np.testing.assert_allclose(shares.probabilities(["when", ""]), [[0.75, 0.25]] * 2, rtol=1e-15)


@pytest.mark.parametrize("dimension", [0, 5])
def test_to_json_and_back_to_the_bit(dimension: int) -> None:
    before = made_up(dimension)
    after = Classifier.of(json.loads(json.dumps(before.to_dict(), allow_nan=False)))
    assert (after.labels, after.terms) == (before.labels, before.terms)
    assert (after.dimension, after.model) == (before.dimension, before.model)
    for name in ("idf", "weights", "bias"):
        assert getattr(after, name).tobytes() == getattr(before, name).tobytes()
    assert Classifier.of(before) is before
    assert not before.weights.flags.writeable
    assert "3 types" in str(before)
    empty = Classifier(("x", "y"), (), np.zeros(0), np.zeros((2, 0)), np.zeros(2))
    assert Classifier.of(json.loads(json.dumps(empty.to_dict()))).weights.shape == (2, 0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": []}, "needs labels"),
        ({"labels": ["x", "x"]}, "labels must be different"),
        ({"labels": "xy"}, "labels must be a list"),
        ({"labels": ["x", 3]}, "labels must be strings"),
        ({"terms": ["b", "a"]}, "ascend"),
        ({"idf": [1.0]}, r"idf must have the shape \(2,\), not \(1,\)"),
        ({"weights": [[1.0, 2.0]]}, "weights must have the shape"),
        ({"weights": [[1.0], [2.0, 3.0]]}, "weights must be numbers"),
        ({"weights": [[1.0, 2.0], [1.0, "two"]]}, "weights must be numbers"),
        ({"bias": [0.0, math.nan]}, "bias must be finite"),
        ({"bias": [0.0, 1e101]}, "at most 1e"),
        ({"idf": [1.0, 0.5]}, "idf must be 1 or more"),
        ({"bias": [0.0, 10**400]}, "bias must be numbers"),
        ({"dimension": -1}, "dimension"),
        ({"dimension": 1}, "weights must have the shape"),
        ({"dimension": True}, "dimension"),
        ({"model": ""}, "model"),
        ({"code": "import os"}, "no 'code'"),
    ],
)
def test_what_is_declined(changed: dict[str, object], said: str) -> None:
    data = {"labels": ["x", "y"], "terms": ["a", "b"], "idf": [1.0, 1.0], "weights": [[1.0, 2.0]] * 2, "bias": [0, 0]}
    Classifier.of(data)
    with pytest.raises(ParameterError, match=said):
        Classifier.of({**data, **changed})
    with pytest.raises(ParameterError, match="needs 'bias'"):
        Classifier.of({name: value for name, value in data.items() if name != "bias"})


def test_calls_that_are_declined() -> None:
    with pytest.raises(ParameterError, match="needs the texts' vectors, 5 values each, of some/model"):
        made_up(5).probabilities(["when"])
    with pytest.raises(ParameterError, match="a vector each of 5 values"):
        made_up(5).probabilities(["when"], np.zeros((1, 4)))
    with pytest.raises(ParameterError, match="a vector each"):
        made_up(5).probabilities(["when"], np.zeros((2, 5)))
    with pytest.raises(ParameterError, match="finite"):
        made_up(5).probabilities(["when"], np.full((1, 5), np.nan))
    with pytest.raises(ParameterError, match="list of strings"):
        made_up().probabilities("when")
    with pytest.raises(ParameterError, match="a type for each text"):
        Classifier.fit(["when"], [])
    with pytest.raises(ParameterError, match="a type for each text"):
        Classifier.fit([], [])
    with pytest.raises(ParameterError, match="types must be strings"):
        Classifier.fit(["when"], [None])  # type: ignore[list-item]
    with pytest.raises(ParameterError, match="c must be"):
        Classifier.fit(["when"], ["x"], c=0.0)


def test_fitting_without_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(MissingExtraError, match=r"fanrank\[tune\]"):
        Classifier.fit(TEXTS, TYPES)
