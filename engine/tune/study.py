"""What deciding per query would give, worked out from what every system scored on every question.

`Measured` holds these columns. Whatever picks one system's answer for a question is an index into them: a cascade's
sweep (SPEC A087), its thresholds tuned on other folds (A089), routers by predicted and by true type (A098, X07), the
router of corrupted questions (A100), the router of few labels (A101). What makes an answer of its own, such as the soft
router, and every millisecond is measured by really searching, elsewhere.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers
from ..errors import ParameterError
from ..evaluate.protocol import TAUS_A087, TYPE_OF, Evaluation
from ..hybrid.strategy import BM25, Strategy
from ..metrics.bootstrap import TIE, cluster_bootstrap, paired_bootstrap
from ..route.cascade import Cascade
from ..route.classifier import Classifier
from ..route.router import Router
from .thresholds import (
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
"""Of the cross-validation (A089)."""
ESCALATED = "agent_rrf"
"""What AgentIR's cascade escalates to (A075)."""
NOISE = (0.0, 0.05, 0.10, 0.20)
"""Shares of corrupted characters (A100)."""
SIZES = (25, 50, 100, 200, 300, 400)
"""Labelled questions of the learning curve (A101)."""
HELD_OUT = 100
"""Questions that the learning curve is measured on (A101)."""
DRAWS = 10
"""Draws of the learning curve. AgentIR had one, whose labelled questions may be lucky."""
FEATURES = ("tfidf", "embedding", "both")
"""What a classifier looks at (A095, A096)."""
_LETTERS = string.ascii_lowercase


@dataclass(frozen=True, eq=False)
class Measured:
    """What each system scored on n questions, and what a policy can know of these.

    values      by system float64 [n], ``bm25`` among them; of equally good ones the first is taken, so cheap ones first
    confidence  float64 [n], NaN where there is none
    types, texts, clusters   [n]; a type may be any name, such as LoCoMo's categories
    vectors     float32 [n, dimension] of the questions, and the `model` they are of; None: no features of embeddings
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
        """Of evaluations of one dataset by strategy; the confidence is the margin of ``bm25``'s, the types are the
        dataset's categories (`TYPE_OF` for those that AgentIR knows under another name).

        Raises `ParameterError` if they are not of the same queries, or one lacks `metric`.
        """
        dataset = next(iter(evaluations.values())).dataset if evaluations else None
        if dataset is None or BM25 not in evaluations:
            raise ParameterError(f"an evaluation of {BM25!r} is needed; there are: {', '.join(evaluations) or 'none'}")
        for name, own in evaluations.items():
            if list(own.dataset.relevant) != list(dataset.relevant):
                raise ParameterError(f"the evaluation {name!r} ran over other queries")
            if metric not in own.values:
                raise ParameterError(f"{metric!r} was not measured for {name!r}; there are: {', '.join(own.values)}")
        ids = [str(query.id) for query in dataset.queries]
        return cls(
            {name: own.values[metric] for name, own in evaluations.items()},
            evaluations[BM25].confidence,
            tuple(TYPE_OF.get(own, own) for own in (dataset.categories.get(name, "") for name in ids)),
            tuple(query.text for query in dataset.queries),
            tuple(dataset.clusters[name] for name in ids) if dataset.clusters else (),
            vectors,
            model,
        )

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def table(self) -> Floats:
        """[systems, n] the values, in the systems' order."""
        return np.stack([np.asarray(column, dtype=np.float64) for column in self.values.values()])

    def column(self, system: str) -> Floats:
        """[n] of one system. Raises `ParameterError` for one that was not measured."""
        if system not in self.values:
            raise ParameterError(f"{system!r} was not measured; there are: {', '.join(self.values)}")
        return np.asarray(self.values[system], dtype=np.float64)

    def fit(self, places: Integers, features: str = "tfidf") -> Classifier:
        """A classifier of the questions at these places. Raises as `Classifier.fit`, and for unknown features."""
        vectors = self.inputs(places, features)[1]
        types = [self.types[place] for place in places]
        model = None if vectors is None else self.model
        return Classifier.fit(self.inputs(places, features)[0], types, vectors, model=model)

    def inputs(
        self, places: Integers, features: str, texts: Sequence[str] | None = None
    ) -> tuple[list[str], npt.NDArray[np.float32] | None]:
        """(texts, vectors) as a classifier of these features takes them; `texts` [n] instead of the questions' own."""
        if features not in FEATURES:
            raise ParameterError(f"unknown features {features!r}; there are: {', '.join(FEATURES)}")
        given = self.texts if texts is None else texts
        words = ["" if features == "embedding" else given[place] for place in places]
        if features == "tfidf":
            return words, None
        if self.vectors is None:
            raise ParameterError(f"features {features!r} need the questions' vectors")
        return words, self.vectors[places]


@dataclass(frozen=True, eq=False)
class CascadeFold:
    """A cascade by type whose classifier and thresholds saw none of the questions at `places`, and what it gives."""

    places: Integers
    classifier: Classifier
    taus: Mapping[str, float]
    tau: float
    """The one threshold for all types, tuned on the same questions."""
    accuracy: float
    """Of the classifier, on `places`."""
    value: float
    skip: float
    value_single: float
    """Of the one threshold."""
    skip_single: float

    def cascade(self, escalated: str = ESCALATED) -> Cascade:
        """As a policy."""
        return Cascade(self.tau, self.taus, escalate=Strategy.of(escalated), classifier=self.classifier)


def splits(n: int, folds: int = FOLDS, seed: int = SEED) -> list[tuple[Integers, Integers]]:
    """(training places, tested places) of each fold. Raises `ParameterError` for fewer than 2 folds."""
    own = folds_of(n, folds, seed)
    return [(np.flatnonzero(own != fold), np.flatnonzero(own == fold)) for fold in range(int(own.max()) + 1)]


def router_of(measured: Measured, places: Integers, features: str = "tfidf", *, soft: bool = False) -> Router:
    """The router that the questions at these places make: classifier, and best system of each type.

    Systems are named as strategies are. Raises `ParameterError`, and as `Classifier.fit`.
    """
    systems = [Strategy.of(name) for name in measured.values]
    routes, default = _routes(measured, places)
    table = {name: systems[row] for name, row in routes.items()}
    return Router(table, systems[default], measured.fit(places, features), soft)


def cascade_sweep(
    measured: Measured, escalated: str = ESCALATED, taus: Sequence[float] = TAUS_A087
) -> list[dict[str, Any]]:
    """For each threshold the share skipped and the mean value."""
    steps = sweep(measured.confidence, measured.column(BM25), measured.column(escalated), taus)
    return [{"tau": step.tau, "skip": step.skip, "value": step.accuracy} for step in steps]


def cascade_folds(
    measured: Measured, escalated: str = ESCALATED, *, folds: int = FOLDS, seed: int = SEED, margin: float = MARGIN
) -> list[CascadeFold]:
    """The cascade by type: on each fold, with classifier and thresholds fitted to the other folds.

    Thresholds are fitted to questions whose type is known, and applied by the predicted type. Raises as `folds_of` and
    `Classifier.fit`.
    """
    lexical, other, confidence = measured.column(BM25), measured.column(escalated), measured.confidence
    found = []
    for train, test in splits(len(measured), folds, seed):
        types = [measured.types[place] for place in train]
        classifier = measured.fit(train)
        told = classifier.predict([measured.texts[place] for place in test])
        tau = smallest_tau(confidence[train], lexical[train], other[train], margin)
        taus = taus_by_type(confidence[train], lexical[train], other[train], types, margin)
        by_type = confidence[test] >= thresholds(told, tau, taus)
        single = confidence[test] >= tau
        found.append(
            CascadeFold(
                test,
                classifier,
                taus,
                tau,
                _share([one == measured.types[place] for one, place in zip(told, test, strict=True)]),
                float(np.where(by_type, lexical[test], other[test]).mean()),
                float(by_type.mean()),
                float(np.where(single, lexical[test], other[test]).mean()),
                float(single.mean()),
            )
        )
    return found


def routers(measured: Measured, *, folds: int = FOLDS, seed: int = SEED, soft: Floats | None = None) -> dict[str, Any]:
    """Every static system, and routers beside them: ``{"rows": {name: {"value", "captured", ...}}, ...}``.

    ``router-*``: each question by its predicted type, classifier and table (best system of a type) of the other folds.
    ``oracle-table``: by its true type, table of the other folds. ``oracle``: by its true type, table of all questions,
    the upper bound of routing by type, which no user has. ``any``: where any system is right. ``soft``: the
    values [n] of the soft router, which the caller measured. ``captured`` is in percent (`captured_share`) of the
    ``gap`` between the best static system and ``oracle``, None of a static system. ``values`` holds each row's column
    [n].
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
        true = [measured.types[place] for place in test]
        chosen["table"][test] = [routes.get(one, default) for one in true]
        for features in offered:
            told = measured.fit(train, features).predict(*measured.inputs(test, features))
            chosen[features][test] = [routes.get(one, default) for one in told]
            right[features][test] = [one == own for one, own in zip(told, true, strict=True)]
    for features in offered:
        columns[f"router-{features}"] = table[chosen[features], everything]
        accuracy[f"router-{features}"] = _share(right[features])
    if soft is not None:
        columns["soft"] = np.asarray(soft, dtype=np.float64)
    columns["oracle-table"] = table[chosen["table"], everything]
    routes, default = _routes(measured, everything, least=1)
    columns["oracle"] = table[[routes.get(one, default) for one in measured.types], everything]
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
    """Percent of the way from the best static system to the oracle; None where there is no such way."""
    gap = oracle - static
    return None if gap <= TIE else 100.0 * (value - static) / gap


def noise_grid(
    measured: Measured,
    *,
    levels: Sequence[float] = NOISE,
    folds: int = FOLDS,
    seed: int = SEED,
) -> list[dict[str, float]]:
    """The router by words, fitted on clean questions of the other folds, that decides on corrupted ones.

    As in AgentIR, retrieval is that of the clean question: ``accuracy`` is the classifier's, ``value`` the routed
    system's.
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
            told = classifier.predict([noisy[place] for place in test])
            chosen[test] = [routes.get(one, default) for one in told]
            right[test] = [one == measured.types[place] for one, place in zip(told, test, strict=True)]
        rows.append({"noise": level, "accuracy": _share(right), "value": float(table[chosen, everything].mean())})
    return rows


def corrupt_texts(texts: Sequence[str], share: float, seed: int = SEED) -> list[str]:
    """The texts with about this share of their characters hit by a slip of the keyboard.

    Each character is hit with probability `share`, and then, each as often: replaced by a random letter, left out,
    preceded by a random letter, or swapped with the next, which is then spared. A text's slips depend on the text, its
    place and the seed alone. Raises `ParameterError` for a share out of [0, 1].
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 <= share <= 1.0:
        raise ParameterError(f"the share of corrupted characters must lie in [0, 1], not {share!r}")
    return [_mistype(text, share, np.random.default_rng([seed, place])) for place, text in enumerate(texts)]


def _mistype(text: str, share: float, random: np.random.Generator) -> str:
    hit = random.random(len(text)) < share
    kinds, letters = random.integers(0, 4, len(text)), random.integers(0, len(_LETTERS), len(text))
    found: list[str] = []
    place = 0
    while place < len(text):
        own, letter = text[place], _LETTERS[letters[place]]
        if not hit[place]:
            found.append(own)
        elif kinds[place] == 0:
            found.append(letter)
        elif kinds[place] == 2:
            found += [letter, own]
        elif kinds[place] == 3:
            found += [text[place + 1 : place + 2], own]
            place += 1
        place += 1
    return "".join(found)


def learning_curve(
    measured: Measured,
    *,
    sizes: Sequence[int] = SIZES,
    held_out: int = HELD_OUT,
    draws: int = DRAWS,
    seed: int = SEED,
) -> list[dict[str, float]]:
    """The router by words, classifier and table of so many labelled questions, on questions held out.

    A row a size: means over `draws` of the classifier's ``accuracy``, the router's ``value`` and its spread
    ``deviation``, the ``static`` system that is best on the labelled questions, and the ``oracle`` (true type, table of
    the questions held out). A draw's sizes are prefixes of one another. Sizes that leave too few questions are left
    out. Raises `ParameterError` for counts below 1.
    """
    for what, count in (("held_out", held_out), ("draws", draws), *(("a size", size) for size in sizes)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ParameterError(f"{what} must be 1 or more, not {count!r}")
    table = measured.table
    rows = []
    for size in sizes:
        if size + held_out > len(measured):
            continue
        found = []
        for draw in range(draws):
            order = np.random.default_rng([seed, draw]).permutation(len(measured))
            test, train = order[:held_out], order[held_out : held_out + size]
            true = [measured.types[place] for place in test]
            told = measured.fit(train).predict([measured.texts[place] for place in test])
            routes, default = _routes(measured, train)
            known, other = _routes(measured, test, least=1)
            found.append(
                (
                    _share([one == own for one, own in zip(told, true, strict=True)]),
                    float(table[[routes.get(one, default) for one in told], test].mean()),
                    float(table[default, test].mean()),
                    float(table[[known.get(one, other) for one in true], test].mean()),
                )
            )
        accuracy, value, static, oracle = np.array(found).T
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
    """First - second: the paired bootstrap over questions, and with clusters ``cluster``'s one-sided."""
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
    """(the best system of each type, the best of all), by the questions at these places."""
    own, free = measured.table[:, places], np.zeros(len(measured.values))
    return best_by_type(own, free, [measured.types[place] for place in places], least), best(own, free)


def _share(flags: Sequence[bool] | Flags) -> float:
    return float(np.mean(flags)) if len(flags) else 0.0
