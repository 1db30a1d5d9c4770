"""Computes what policies that decide per query would give, from the values of every system on every question.

`Measured` holds these values as columns. A policy that takes one system's answer for each question needs no new search,
as its value is an index into the columns. So this file computes:

- a cascade's sweep (SPEC A087), and its thresholds tuned on other folds (A089)
- routers by predicted and by true type (A098, X07)
- the router on corrupted questions (A100), and the router fitted to few labels (A101)

A policy that makes an answer of its own, such as the soft router, must be measured by searching. So must all times.
That is done elsewhere.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fanrank.engine.arrays import Flags, Floats, Integers
from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate.protocol import TAUS_A087, TYPE_OF, Evaluation
from fanrank.engine.hybrid.strategy import BM25, Strategy
from fanrank.engine.metrics.bootstrap import TIE, cluster_bootstrap, paired_bootstrap
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.router import Router
from fanrank.engine.tune.thresholds import (
    LEAST,
    MARGIN,
    best,
    best_by_type,
    folds_of,
    smallest_tau,
    sweep,
    taus_by_type,
    thresholds,
)

FOLDS = 5
SEED = 42
"""The seed of the cross-validation (A089)."""
ESCALATED = "agent_rrf"
"""What AgentIR's cascade escalates to (A075)."""
NOISE = (0.0, 0.05, 0.10, 0.20)
"""Shares of corrupted characters (A100)."""
SIZES = (25, 50, 100, 200, 300, 400)
"""Labelled questions of the learning curve (A101)."""
HELD_OUT = 100
"""Questions that the learning curve is measured on (A101)."""
DRAWS = 10
"""Draws of the learning curve. AgentIR made one, which may have drawn lucky questions."""
FEATURES = ("tfidf", "embedding", "both")
"""What a classifier looks at (A095, A096)."""
_LETTERS = string.ascii_lowercase


@dataclass(frozen=True, eq=False)
class Measured:
    """What each system scored on n questions, and what a policy can know about the questions.

    values      float64 [n] for each system, ``bm25`` among them; of equally good systems the first is taken, so list
                cheap ones first
    confidence  float64 [n], NaN if there is none
    types, texts, clusters   [n]; a type may be any name, such as LoCoMo's categories
    vectors     float32 [n, dimension] of the questions, made by `model`; None: no features of embeddings
    """

    values: Mapping[str, Floats]
    confidence: Floats
    types: tuple[str, ...]
    texts: tuple[str, ...]
    clusters: tuple[str, ...] = ()
    vectors: npt.NDArray[np.float32] | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        n = len(self.texts)
        if BM25 not in self.values:
            raise ParameterError(f"{BM25!r} must be among the systems; there are: {', '.join(self.values) or 'none'}")
        columns: dict[str, Sized] = {**self.values, "confidence": self.confidence, "types": self.types}
        columns |= {} if self.vectors is None else {"vectors": self.vectors}
        columns |= {"clusters": self.clusters} if self.clusters else {}
        for name, column in columns.items():
            if not n or len(column) != n:
                raise ParameterError(f"{name}: {len(column)} values for {n} questions; one for each is needed")

    @classmethod
    def of(
        cls,
        evaluations: Mapping[str, Evaluation],
        metric: str,
        *,
        vectors: npt.NDArray[np.float32] | None = None,
        model: str | None = None,
    ) -> Measured:
        """The columns of `evaluations` of one dataset, by strategy.

        The confidence is that of the evaluation ``bm25``, its margin. The types are the dataset's categories, or the
        names of `TYPE_OF` if AgentIR names them differently. Raises `ParameterError` if the evaluations are not of the
        same queries, or if one lacks `metric`.
        """
        dataset = next(iter(evaluations.values())).dataset if evaluations else None
        if dataset is None or BM25 not in evaluations:
            raise ParameterError(f"an evaluation of {BM25!r} is needed; there are: {', '.join(evaluations) or 'none'}")
        for name, evaluation in evaluations.items():
            if list(evaluation.dataset.relevant) != list(dataset.relevant):
                raise ParameterError(f"the evaluation {name!r} ran over other queries")
            if metric not in evaluation.values:
                raise ParameterError(
                    f"{metric!r} was not measured for {name!r}; there are: {', '.join(evaluation.values)}"
                )
        ids = [str(query.id) for query in dataset.queries]
        return cls(
            {name: evaluation.values[metric] for name, evaluation in evaluations.items()},
            evaluations[BM25].confidence,
            tuple(TYPE_OF.get(category, category) for category in (dataset.categories.get(name, "") for name in ids)),
            tuple(query.text for query in dataset.queries),
            tuple(dataset.clusters[name] for name in ids) if dataset.clusters else (),
            vectors,
            model,
        )

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def table(self) -> Floats:
        """The values, [systems, n], in the systems' order."""
        return np.stack([np.asarray(column, dtype=np.float64) for column in self.values.values()])

    def column(self, system: str) -> Floats:
        """The values of one system, [n]. Raises `ParameterError` for a system that was not measured."""
        if system not in self.values:
            raise ParameterError(f"{system!r} was not measured; there are: {', '.join(self.values)}")
        return np.asarray(self.values[system], dtype=np.float64)

    def fit(self, places: Integers, features: str = "tfidf") -> Classifier:
        """A classifier fitted to the questions at these positions.

        Raises as `Classifier.fit`, and `ParameterError` for unknown features.
        """
        vectors = self.inputs(places, features)[1]
        types = [self.types[position] for position in places]
        model = None if vectors is None else self.model
        return Classifier.fit(self.inputs(places, features)[0], types, vectors, model=model)

    def inputs(
        self, places: Integers, features: str, texts: Sequence[str] | None = None
    ) -> tuple[list[str], npt.NDArray[np.float32] | None]:
        """(texts, vectors) of the questions at these positions, as a classifier of these features takes them.

        `texts` [n] replace the questions' own texts.
        """
        if features not in FEATURES:
            raise ParameterError(f"unknown features {features!r}; there are: {', '.join(FEATURES)}")
        texts = self.texts if texts is None else texts
        words = ["" if features == "embedding" else texts[position] for position in places]
        if features == "tfidf":
            return words, None
        if self.vectors is None:
            raise ParameterError(f"features {features!r} need the questions' vectors")
        return words, self.vectors[places]


@dataclass(frozen=True, eq=False)
class CascadeFold:
    """A cascade by type, and its result on the questions at `places`.

    Its classifier and thresholds were fitted to other questions.
    """

    places: Integers
    classifier: Classifier
    taus: Mapping[str, float]
    tau: float
    """The one threshold for all types, tuned on the same questions."""
    accuracy: float
    """The classifier's accuracy on `places`."""
    value: float
    skip: float
    value_single: float
    """The mean value under the one threshold."""
    skip_single: float

    def cascade(self, escalated: str = ESCALATED) -> Cascade:
        """This cascade as a policy that escalates to the system `escalated`."""
        return Cascade(self.tau, self.taus, escalate=Strategy.of(escalated), classifier=self.classifier)


def splits(n: int, folds: int = FOLDS, seed: int = SEED) -> list[tuple[Integers, Integers]]:
    """(training positions, tested positions) of each fold. Raises `ParameterError` for fewer than 2 folds."""
    numbers = folds_of(n, folds, seed)
    return [
        (np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)) for fold in range(int(numbers.max()) + 1)
    ]


def router_of(measured: Measured, places: Integers, features: str = "tfidf", *, soft: bool = False) -> Router:
    """A router fitted to the questions at these positions: a classifier, and the best system of each type.

    Systems must have names of strategies. Raises `ParameterError`, and as `Classifier.fit`.
    """
    systems = [Strategy.of(name) for name in measured.values]
    routes, default = _routes(measured, places)
    table = {name: systems[row] for name, row in routes.items()}
    return Router(table, systems[default], measured.fit(places, features), soft)


def cascade_sweep(
    measured: Measured, escalated: str = ESCALATED, taus: Sequence[float] = TAUS_A087
) -> list[dict[str, Any]]:
    """For each threshold the share of questions skipped, and the mean value."""
    steps = sweep(measured.confidence, measured.column(BM25), measured.column(escalated), taus)
    return [{"tau": step.tau, "skip": step.skip, "value": step.accuracy} for step in steps]


def cascade_folds(
    measured: Measured, escalated: str = ESCALATED, *, folds: int = FOLDS, seed: int = SEED, margin: float = MARGIN
) -> list[CascadeFold]:
    """The cascade by type on each fold, with its classifier and thresholds fitted to the other folds.

    Thresholds are fitted by the true types, and applied by the predicted types. Raises as `folds_of` and
    `Classifier.fit`.
    """
    lexical, other, confidence = measured.column(BM25), measured.column(escalated), measured.confidence
    results = []
    for train, test in splits(len(measured), folds, seed):
        types = [measured.types[position] for position in train]
        classifier = measured.fit(train)
        predicted = classifier.predict([measured.texts[position] for position in test])
        tau = smallest_tau(confidence[train], lexical[train], other[train], margin)
        taus = taus_by_type(confidence[train], lexical[train], other[train], types, margin)
        by_type = confidence[test] >= thresholds(predicted, tau, taus)
        single = confidence[test] >= tau
        results.append(
            CascadeFold(
                test,
                classifier,
                taus,
                tau,
                _share([name == measured.types[position] for name, position in zip(predicted, test, strict=True)]),
                float(np.where(by_type, lexical[test], other[test]).mean()),
                float(by_type.mean()),
                float(np.where(single, lexical[test], other[test]).mean()),
                float(single.mean()),
            )
        )
    return results


def routers(measured: Measured, *, folds: int = FOLDS, seed: int = SEED, soft: Floats | None = None) -> dict[str, Any]:
    """Every static system, and routers beside them: ``{"rows": {name: {"value", "captured", ...}}, ...}``.

    The rows beside the static systems, where a *table* is the best system of each type:

    - ``router-*``: the predicted type; classifier and table fitted to the other folds
    - ``oracle-table``: the true type; table of the other folds
    - ``oracle``: the true type; table of all questions. It is the upper bound of routing by type, which no user reaches
    - ``any``: the best value of any system for each question
    - ``soft``: the values [n] of the soft router, which the caller measured

    ``captured`` is the percentage (`captured_share`) of the ``gap`` between the best static system and ``oracle``; None
    for a static system. ``values`` holds the column [n] of each row.
    """
    table, systems = measured.table, list(measured.values)
    everything = np.arange(len(measured))
    columns: dict[str, Floats] = dict(zip(systems, table, strict=True))
    static = systems[best(table, np.zeros(len(systems)))]
    accuracy: dict[str, float] = {}
    offered = FEATURES if measured.vectors is not None else FEATURES[:1]
    chosen = {name: np.zeros(len(measured), dtype=np.int64) for name in (*offered, "table")}
    right = {name: np.zeros(len(measured), dtype=bool) for name in offered}
    for train, test in splits(len(measured), folds, seed):
        routes, default = _routes(measured, train)
        true = [measured.types[position] for position in test]
        chosen["table"][test] = [routes.get(name, default) for name in true]
        for features in offered:
            predicted = measured.fit(train, features).predict(*measured.inputs(test, features))
            chosen[features][test] = [routes.get(name, default) for name in predicted]
            right[features][test] = [name == true_name for name, true_name in zip(predicted, true, strict=True)]
    for features in offered:
        columns[f"router-{features}"] = table[chosen[features], everything]
        accuracy[f"router-{features}"] = _share(right[features])
    if soft is not None:
        columns["soft"] = np.asarray(soft, dtype=np.float64)
    columns["oracle-table"] = table[chosen["table"], everything]
    routes, default = _routes(measured, everything, least=1)
    columns["oracle"] = table[[routes.get(name, default) for name in measured.types], everything]
    columns["any"] = table.max(axis=0)
    floor, ceiling = float(columns[static].mean()), float(columns["oracle"].mean())
    return {
        "best_static": static,
        "gap": ceiling - floor,
        "table": {name: systems[row] for name, row in routes.items()},
        "rows": {
            name: {
                "value": float(column.mean()),
                "captured": None if name in systems else captured_share(float(column.mean()), floor, ceiling),
                **({"accuracy": accuracy[name]} if name in accuracy else {}),
            }
            for name, column in columns.items()
        },
        "values": columns,
    }


def captured_share(value: float, static: float, oracle: float) -> float | None:
    """The gain over the best static system, in percent of the oracle's gain; None if the oracle gains nothing."""
    gap = oracle - static
    return None if gap <= TIE else 100.0 * (value - static) / gap


def noise_grid(
    measured: Measured,
    *,
    levels: Sequence[float] = NOISE,
    folds: int = FOLDS,
    seed: int = SEED,
) -> list[dict[str, float]]:
    """The router by words, fitted to clean questions of the other folds, on corrupted questions.

    As in AgentIR, only the classifier reads the corrupted question; retrieval uses the clean one. ``accuracy`` is that
    of the classifier, ``value`` the mean value of the systems routed to.
    """
    table, everything = measured.table, np.arange(len(measured))
    fitted = [
        (measured.fit(train), _routes(measured, train), test) for train, test in splits(len(measured), folds, seed)
    ]
    rows = []
    for level in levels:
        noisy = corrupt_texts(measured.texts, level, seed)
        chosen, right = np.zeros(len(measured), dtype=np.int64), np.zeros(len(measured), dtype=bool)
        for classifier, (routes, default), test in fitted:
            predicted = classifier.predict([noisy[position] for position in test])
            chosen[test] = [routes.get(name, default) for name in predicted]
            right[test] = [name == measured.types[position] for name, position in zip(predicted, test, strict=True)]
        rows.append({"noise": level, "accuracy": _share(right), "value": float(table[chosen, everything].mean())})
    return rows


def corrupt_texts(texts: Sequence[str], share: float, seed: int = SEED) -> list[str]:
    """The texts, with typing errors at about this share of their characters.

    Each character is hit with probability `share`. A hit character is, with equal probability: replaced by a random
    letter, left out, preceded by a random letter, or swapped with the next one, which is then not hit itself. The
    errors of a text depend on the text, its position and the seed alone. Raises `ParameterError` for a share outside
    [0, 1].
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 <= share <= 1.0:
        raise ParameterError(f"the share of corrupted characters must lie in [0, 1], not {share!r}")
    return [_mistype(text, share, np.random.default_rng([seed, position])) for position, text in enumerate(texts)]


def _mistype(text: str, share: float, random: np.random.Generator) -> str:
    hit = random.random(len(text)) < share
    kinds, letters = random.integers(0, 4, len(text)), random.integers(0, len(_LETTERS), len(text))
    mistyped: list[str] = []
    position = 0
    while position < len(text):
        character, letter = text[position], _LETTERS[letters[position]]
        if not hit[position]:
            mistyped.append(character)
        elif kinds[position] == 0:
            mistyped.append(letter)
        elif kinds[position] == 2:
            mistyped += [letter, character]
        elif kinds[position] == 3:
            mistyped += [text[position + 1 : position + 2], character]
            position += 1
        position += 1
    return "".join(mistyped)


def learning_curve(
    measured: Measured,
    *,
    sizes: Sequence[int] = SIZES,
    held_out: int = HELD_OUT,
    draws: int = DRAWS,
    seed: int = SEED,
) -> list[dict[str, float]]:
    """The router by words on held-out questions, with classifier and table fitted to a number of labelled questions.

    There is a row for each of `sizes`, with means over `draws`: the classifier's ``accuracy``, the router's ``value``
    and its standard deviation ``deviation``, the value of the ``static`` system that is best on the labelled questions,
    and that of the ``oracle`` (true type, table of the held-out questions). Within a draw, a smaller size is a prefix
    of a larger one. Sizes that leave too few questions are left out. Raises `ParameterError` for counts below 1.
    """
    for what, count in (("held_out", held_out), ("draws", draws), *(("a size", size) for size in sizes)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ParameterError(f"{what} must be 1 or more, not {count!r}")
    table = measured.table
    rows = []
    for size in sizes:
        if size + held_out > len(measured):
            continue
        results = []
        for draw in range(draws):
            order = np.random.default_rng([seed, draw]).permutation(len(measured))
            test, train = order[:held_out], order[held_out : held_out + size]
            true = [measured.types[position] for position in test]
            predicted = measured.fit(train).predict([measured.texts[position] for position in test])
            routes, default = _routes(measured, train)
            known, other = _routes(measured, test, least=1)
            results.append(
                (
                    _share([name == true_name for name, true_name in zip(predicted, true, strict=True)]),
                    float(table[[routes.get(name, default) for name in predicted], test].mean()),
                    float(table[default, test].mean()),
                    float(table[[known.get(name, other) for name in true], test].mean()),
                )
            )
        accuracy, value, static, oracle = np.array(results).T
        rows.append(
            {
                "labels": size,
                "accuracy": float(accuracy.mean()),
                "value": float(value.mean()),
                "deviation": float(value.std()),
                "static": float(static.mean()),
                "oracle": float(oracle.mean()),
            }
        )
    return rows


# Sources: A121, X12.
def differences(
    values: Mapping[str, Floats],
    pairs: Iterable[tuple[str, str]],
    clusters: Sequence[str] = (),
    *,
    seed: int = SEED,
) -> list[dict[str, Any]]:
    """For each pair the paired bootstrap of first - second over questions.

    With `clusters`, the entry ``cluster`` of a row is the one-sided cluster bootstrap.
    """
    rows = []
    for first, second in pairs:
        if first in values and second in values:
            row = {
                "first": first,
                "second": second,
                **asdict(paired_bootstrap(values[first], values[second], seed=seed)),
            }
            if clusters:
                row["cluster"] = asdict(cluster_bootstrap(values[first], values[second], clusters, seed=seed))
            rows.append(row)
    return rows


def _routes(measured: Measured, places: Integers, least: int = LEAST) -> tuple[dict[str, int], int]:
    """(the best system of each type, the best of all), on the questions at these positions."""
    values, free = measured.table[:, places], np.zeros(len(measured.values))
    return best_by_type(values, free, [measured.types[position] for position in places], least), best(values, free)


def _share(flags: Sequence[bool] | Flags) -> float:
    return float(np.mean(flags)) if len(flags) else 0.0
