"""The classifier that predicts the type of a question from its text (SPEC A095, A096).

A text's features are the TF-IDF values of its words and of its pairs of neighbouring words. If the classifier was
fitted with embeddings, the text's embedding follows them. A linear model with a softmax turns the features into
probabilities. The model is data: arrays of numbers, and prediction needs only numpy. Fitting needs scikit-learn (the
extra ``tune``).

TF-IDF is that of scikit-learn's `TfidfVectorizer(ngram_range=(1, 2))`. Words are runs of at least two letters, digits
or underscores of the lower-case text. A term's value is its count times
``ln((1 + texts) / (1 + texts that hold it)) + 1``. A text's values are then scaled to length 1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Integers
from ..errors import MissingExtraError, ParameterError, refuse_unknown
from ..fuse.age import exponential
from ..fuse.fusion import check_number
from ..locks import once

STEPS = 1000
"""The largest number of iterations of fitting."""
LARGEST = 1e100
"""The largest absolute value of weights and vectors. Their products, and sums of these, stay finite."""

_WORD = re.compile(r"\w\w+")


def terms_of(text: str) -> list[str]:
    """A text's words in order, then its pairs of neighbouring words, each written as "one two"."""
    words = _WORD.findall(text.lower())
    return words + [f"{word} {following}" for word, following in pairwise(words)]


@dataclass(frozen=True, eq=False)
class Classifier:
    """A fitted model. `fit` makes one; `to_dict` and `of` convert it to and from JSON values.

    labels      the types, at least one, all different
    terms       ascending, all different
    idf         float64 [terms]
    weights     float64 [labels, terms + dimension]
    bias        float64 [labels]
    dimension   of the embeddings that follow the terms; 0 for words alone
    model       name of the encoder of these embeddings, so that a caller can check where its vectors come from

    Raises `ParameterError` for values that do not fit together.
    """

    labels: tuple[str, ...]
    terms: tuple[str, ...]
    idf: Floats
    weights: Floats
    bias: Floats
    dimension: int = 0
    model: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _check_names("labels", self.labels))
        object.__setattr__(self, "terms", _check_names("terms", self.terms))
        if not self.labels:
            raise ParameterError("a classifier needs labels")
        if any(term >= following for term, following in pairwise(self.terms)):
            raise ParameterError("a classifier's terms must ascend")
        if isinstance(self.dimension, bool) or not isinstance(self.dimension, int) or self.dimension < 0:
            raise ParameterError(f"a classifier's dimension must be 0 or more, not {self.dimension!r}")
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ParameterError(f"a classifier's model must be a name or None, not {self.model!r}")
        width = len(self.terms) + self.dimension
        for name, shape in (
            ("idf", (len(self.terms),)),
            ("weights", (len(self.labels), width)),
            ("bias", (len(self.labels),)),
        ):
            object.__setattr__(self, name, _check_array(name, getattr(self, name), shape))
        if not (self.idf >= 1.0).all():
            raise ParameterError("a classifier's idf must be 1 or more")

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        types: Sequence[str],
        vectors: npt.ArrayLike | None = None,
        *,
        c: float = 1.0,
        seed: int = 0,
        model: str | None = None,
    ) -> Classifier:
        """Fit scikit-learn's logistic regression, with penalty ``1 / c`` on the squared weights, from texts to types.

        `vectors` [texts, dimension] follow the TF-IDF values and are not scaled. If there is only one type, it is
        always predicted. If no text has a word and there are no vectors, the probabilities are the shares of the types.
        The last bits of the weights depend on the linear algebra library, so a model that is fitted on another machine
        may differ; a model that is read from a file does not. Raises `ParameterError`, `MissingExtraError`.
        """
        check_number("c", c, 0.0, above=True)
        texts, types = _check_texts("texts", texts), _check_texts("types", types)
        if not texts or len(texts) != len(types):
            raise ParameterError(f"fitting needs a type for each text; there are {len(texts)} and {len(types)}")
        labels = tuple(sorted(set(types)))
        term_lists = [terms_of(text) for text in texts]
        holding = Counter(term for listed in term_lists for term in set(listed))
        terms = tuple(sorted(holding))
        shares = np.array([(1 + len(texts)) / (1 + holding[term]) for term in terms], dtype=np.float64)
        idf = np.log(shares) + 1.0
        dense = None if vectors is None else _check_vectors(vectors, len(texts), None)
        dimension = 0 if dense is None else dense.shape[1]
        width = len(terms) + dimension
        weights, bias = np.zeros((len(labels), width)), np.zeros(len(labels))
        untrained = cls(labels, terms, idf, weights, bias, dimension, model)
        if len(labels) == 1:
            return untrained
        if not width:
            counts = Counter(types)
            return cls(labels, terms, idf, weights, np.log([counts[label] / len(types) for label in labels]), 0, model)
        weights, bias = _fit_weights(untrained.features(texts), len(terms), dense, types, c, seed)
        return cls(labels, terms, idf, weights, bias, dimension, model)

    def features(self, texts: Sequence[str]) -> tuple[Integers, Integers, Floats]:
        """The TF-IDF of B texts as a sparse matrix: (offsets [B + 1], term numbers ascending in each row, values).

        Terms that the classifier does not know are left out. A text without a known term has an empty row.
        """
        counts = [Counter(self._places[term] for term in terms_of(text) if term in self._places) for text in texts]
        rows = [sorted(count.items()) for count in counts]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
        pairs = np.array([pair for row in rows for pair in row], dtype=np.int64).reshape(-1, 2)
        places = np.ascontiguousarray(pairs[:, 0])
        values = pairs[:, 1] * self.idf[places]
        owners = np.repeat(np.arange(len(texts)), np.diff(offsets))
        lengths = np.sqrt(np.bincount(owners, weights=values * values, minlength=len(texts)))
        return offsets, places, values / lengths[owners]

    def probabilities(self, texts: Sequence[str], vectors: npt.ArrayLike | None = None) -> Floats:
        """Probabilities float64 [B, labels]; each row sums to 1.

        `vectors` [B, dimension] are needed if the classifier has a dimension. A text's sums run over its own terms,
        ascending, and then over its vector, so a probability has the same bits in every batch. Raises `ParameterError`
        for vectors that are missing or have another dimension.
        """
        texts = _check_texts("texts", texts)
        offsets, places, values = self.features(texts)
        owners = np.repeat(np.arange(len(texts)), np.diff(offsets))
        logits = np.empty((len(texts), len(self.labels)))
        for label, weights in enumerate(self.weights):
            # A matrix product is not used: its order of addition depends on the library and on the shape.
            logits[:, label] = np.bincount(owners, weights=values * weights[places], minlength=len(texts))
        if self.dimension:
            if vectors is None:
                raise ParameterError(
                    f"this classifier needs the texts' vectors, {self.dimension} values each"
                    + (f", of {self.model}" if self.model else "")
                )
            dense = _check_vectors(vectors, len(texts), self.dimension)
            for column in range(self.dimension):
                logits += dense[:, column, None] * self.weights[:, len(self.terms) + column]
        logits += self.bias
        raised = exponential(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(raised / np.cumsum(raised, axis=1)[:, -1:])

    def predict(self, texts: Sequence[str], vectors: npt.ArrayLike | None = None) -> list[str]:
        """The likeliest label of each text; among equally likely labels, the first. Raises as `probabilities`."""
        return [self.labels[best] for best in self.probabilities(texts, vectors).argmax(axis=1)]

    def types(
        self, known: Sequence[str | None], texts: Sequence[str], vectors: npt.ArrayLike | None = None
    ) -> list[str]:
        """Each query's type: the `known` one, or the predicted one where that is None; `vectors` [B, dimension]."""
        return [
            predicted if label is None else label
            for label, predicted in zip(known, self.predict(texts, vectors), strict=True)
        ]

    @classmethod
    def of(cls, value: Classifier | Mapping[str, Any]) -> Classifier:
        """A classifier from the mapping of `to_dict`; a classifier is returned as it is. Raises `ParameterError`."""
        if isinstance(value, Classifier):
            return value
        if not isinstance(value, Mapping):
            raise ParameterError(f"a classifier is a Classifier or a mapping, not {type(value).__name__}")
        names = [field.name for field in fields(cls)]
        refuse_unknown(value, names, "a classifier has no")
        for name in names[:5]:
            if name not in value:
                raise ParameterError(f"a classifier needs {name!r}")
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which `of` makes a classifier with the same bits."""
        return {
            "labels": list(self.labels),
            "terms": list(self.terms),
            "idf": self.idf.tolist(),
            "weights": self.weights.tolist(),
            "bias": self.bias.tolist(),
            "dimension": self.dimension,
            "model": self.model,
        }

    def __str__(self) -> str:
        behind = f" and {self.dimension} dimensions of {self.model or 'a vector'}" if self.dimension else ""
        return f"{len(self.labels)} types by {len(self.terms)} terms{behind}"

    @once
    def _places(self) -> dict[str, int]:
        return {term: number for number, term in enumerate(self.terms)}


def _fit_weights(
    features: tuple[Integers, Integers, Floats],
    width: int,
    dense: Floats | None,
    types: Sequence[str],
    c: float,
    seed: int,
) -> tuple[Floats, Floats]:
    """Fit scikit-learn's logistic regression: (weights [labels, features], bias [labels]), labels ascending."""
    try:
        from scipy import sparse
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise MissingExtraError("scikit-learn", "tune") from None
    offsets, places, values = features
    words = sparse.csr_matrix((values, places, offsets), shape=(len(types), width))
    both = words if dense is None else sparse.hstack([words, sparse.csr_matrix(dense)], format="csr")
    model = LogisticRegression(C=c, max_iter=STEPS, random_state=seed).fit(both, list(types))
    weights, bias = np.asarray(model.coef_, np.float64), np.asarray(model.intercept_, np.float64)
    if len(weights) == 1:  # for two types scikit-learn gives one row; the softmax of 0 and that row is the same model
        weights, bias = np.vstack([np.zeros_like(weights), weights]), np.concatenate([[0.0], bias])
    return weights, bias


def _check_names(what: str, names: object) -> tuple[str, ...]:
    strings = _check_texts(f"a classifier's {what}", names)
    if "" in strings or len(set(strings)) < len(strings):
        raise ParameterError(f"a classifier's {what} must be different names, none of them empty")
    return tuple(strings)


def _check_texts(what: str, texts: object) -> list[str]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ParameterError(f"{what} must be a list of strings, not {texts!r}")
    strings = list(texts)
    for string in strings:
        if not isinstance(string, str):
            raise ParameterError(f"{what} must be strings, not {string!r}")
    return strings


def _check_array(what: str, values: object, shape: tuple[int, ...]) -> Floats:
    """A read-only copy."""
    try:
        array = np.array(values, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(f"a classifier's {what} must be numbers") from None
    if not array.size and not math.prod(shape):
        array = array.reshape(shape)
    if array.shape != shape:
        raise ParameterError(f"a classifier's {what} must have the shape {shape}, not {array.shape}")
    if not (np.abs(array) <= LARGEST).all():
        raise ParameterError(f"a classifier's {what} must be finite numbers, of at most {LARGEST:g}")
    array.flags.writeable = False
    return array


def _check_vectors(vectors: npt.ArrayLike, count: int, dimension: int | None) -> Floats:
    try:
        array = np.asarray(vectors, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError("the texts' vectors must be an array of numbers") from None
    if array.ndim != 2 or len(array) != count or (dimension is not None and array.shape[1] != dimension):
        size = "any number of" if dimension is None else str(dimension)
        raise ParameterError(f"{count} texts need a vector each of {size} values, not an array of {array.shape}")
    if not (np.abs(array) <= LARGEST).all():
        raise ParameterError(f"the texts' vectors must be finite numbers, of at most {LARGEST:g}")
    return array
