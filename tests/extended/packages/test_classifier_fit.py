"""The classifier of question types against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from support.questions import TEXT, TEXTS, TYPES

from fanrank.engine.route.classifier import Classifier


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
