"""Fits BM25's method, k1 and b to labelled questions, by cross-validation over one index (SPEC C013).

The postings do not depend on these parameters. So every point of the grid searches the same segments, and nothing is
analysed or indexed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays import Floats
from ..engine import Engine
from ..errors import ParameterError, StorageError, choices
from ..evaluate.tables import table
from ..fuse.alpha import fit_alpha, folds
from ..hybrid.strategy import PLAIN
from ..index.bm25 import BM25, METHODS
from ..memory import Memory
from ..metrics.bootstrap import Comparison, paired_bootstrap
from .measure import Labelled, Questions

# C013 names k1 of 1.2 to 2.0 and b of .5 to .9; turns of chats do best below both.
METHODS_TRIED = ("lucene", "bm25l", "bm25+")
K1S = (0.9, 1.2, 1.5, 1.8, 2.0)
BS = (0.3, 0.4, 0.5, 0.6, 0.75, 0.9)
METRIC = "map"
DEPTH = 100
"""Hits that a metric without a cutoff reads."""
SHOWN = 8
"""Points of the grid that the text shows."""


@dataclass(frozen=True)
class Point:
    """One point of the grid, and its mean over all questions."""

    method: str
    k1: float
    b: float
    value: float

    def options(self) -> dict[str, Any]:
        """The keywords of `Engine`, `Engine.open` and `copy_to`."""
        return {"method": self.method, "k1": self.k1, "b": self.b}


@dataclass(frozen=True, eq=False)
class TunedBM25:
    """The result of `tune_bm25`.

    `points` are the grid, the engine's own parameters first. `best` is the best over all questions. `folds_chose` holds
    the point that each fold's other questions chose. `unseen` compares those choices, each on its own fold, with the
    engine's own parameters. `chosen` is `best` if that interval lies above 0, else the engine's own.
    """

    metric: str
    points: tuple[Point, ...]
    best: Point
    chosen: Point
    folds_chose: tuple[Point, ...]
    unseen: Comparison
    cross_validated: float

    @property
    def current(self) -> Point:
        """The engine's own parameters."""
        return self.points[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""

        def shown(point: Point) -> dict[str, Any]:
            return {**point.options(), "value": point.value}

        return {
            "metric": self.metric,
            "n": self.unseen.units,
            "current": shown(self.current),
            "best": shown(self.best),
            "chosen": self.chosen.options(),
            "changed": self.chosen is not self.current,
            "cross_validated": self.cross_validated,
            "difference": {
                "mean": self.unseen.difference,
                "low": self.unseen.low,
                "high": self.unseen.high,
                "p": self.unseen.p,
            },
            "folds_chose": [point.options() for point in self.folds_chose],
            "points": [shown(point) for point in self.points],
        }


def tune_bm25(
    engine: Memory,
    questions: Sequence[Labelled],
    *,
    methods: Sequence[str] = METHODS_TRIED,
    k1: Sequence[float] = K1S,
    b: Sequence[float] = BS,
    metric: str = METRIC,
    count: int = 5,
    seed: int = 0,
    progress: Callable[[], object] = lambda: None,
) -> TunedBM25:
    """Try every method, k1 and b on the questions; the engine itself stays as it is.

    There are `count` folds, drawn by `seed`. Questions of one namespace stay in one fold where there are as many
    namespaces. The point with the best mean of `metric` counts, and of equal means the first: the engine's own, then
    the order of `methods`, `k1`, `b`. Raises `ParameterError` for parameters out of range, fewer questions than folds,
    or a question without a relevant record, and what the search raises.
    """
    groups = question_folds(questions, count, seed)
    own = engine.bm25
    grid = [own]
    for method in methods:
        if method not in METHODS:
            raise ParameterError(f"unknown BM25 method {method!r}{choices(method, METHODS)}")
        for k1_tried in k1:
            for b_tried in b:
                tried = replace(own, method=method, k1=k1_tried, b=b_tried, delta=own.delta_for(method))
                if tried != own:
                    grid.append(tried)
    rows = []
    for tried in grid:
        rows.append(_values(engine, questions, tried, metric))
        progress()
    values = np.stack(rows)
    fit = fit_alpha(values, groups, tuple(range(len(grid))))
    points = tuple(
        Point(one.method, one.k1, one.b, float(mean)) for one, mean in zip(grid, fit.curve.tolist(), strict=True)
    )
    unseen = paired_bootstrap(fit.values, values[0], seed=seed)
    best = points[int(fit.best)]
    return TunedBM25(
        metric,
        points,
        best,
        best if unseen.low > 0.0 else points[0],
        tuple(points[int(place)] for place in fit.chosen.values()),
        unseen,
        fit.mean,
    )


def question_folds(questions: Sequence[Labelled], count: int, seed: int) -> list[int]:
    """The fold of each question, 0 to `count` - 1. Those of one namespace stay together where there are enough.

    Raises `ParameterError` for fewer questions than folds, or a question without a relevant record.
    """
    if len(questions) < count or count < 2:
        raise ParameterError(f"{len(questions)} questions cannot be split into {count} folds; label more")
    for question in questions:
        if not any(grade > 0 for grade in question.relevant.values()):
            raise ParameterError(
                f"question {question.query.text[:60]!r} has no relevant record to learn from; label it"
            )
    spaces = [question.query.namespace for question in questions]
    names = sorted(set(spaces))
    if len(names) < count:
        return folds(len(questions), count, seed)
    of_name = dict(zip(names, folds(len(names), count, seed), strict=True))
    return [of_name[space] for space in spaces]


def _values(engine: Memory, questions: Sequence[Labelled], bm25: BM25, metric: str) -> Floats:
    with scored_by(engine, bm25) as other:
        depth = None if "@" in metric else DEPTH
        return Questions(other, questions, metric, k=depth).answer(PLAIN).values


@contextmanager
def scored_by(engine: Memory, bm25: BM25) -> Iterator[Engine]:
    """An engine in memory over the same segments, scored with other parameters.

    Sharing them costs no copy. It holds no texts, and what is written to `engine` later is not seen.
    """
    memory = engine.index.ready()
    saved = memory.saved()
    parameters = bm25.to_dict()
    other = Engine(analyzer=memory.analyzer, columns=saved.columns, window=memory.window, **parameters)
    other.backend = engine.backend
    spaces = {name: replace(snapshot, bm25=bm25) for name, snapshot in saved.namespaces.items()}
    other.index.memory.restore(replace(saved, parameters=parameters, namespaces=spaces))
    try:
        yield other
    finally:
        other.close()


def write_parameters(path: str | os.PathLike[str], tuned: TunedBM25) -> None:
    """Write the chosen parameters as one JSON object, whose items are keywords of `Engine`. Raises `StorageError`."""
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(json.dumps(tuned.chosen.options()) + "\n")
    except OSError as error:
        raise StorageError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}") from error


def render_bm25(result: dict[str, Any]) -> str:
    """A result as text: the best points, what unseen questions say, and the options that take them."""
    order = sorted(range(len(result["points"])), key=lambda place: (-result["points"][place]["value"], place))[:SHOWN]
    body = [
        [point["method"], f"{point['k1']:g}", f"{point['b']:g}", f"{point['value']:.4f}", "own" if place == 0 else ""]
        for place, point in ((place, result["points"][place]) for place in sorted({0, *order}, key=[*order, 0].index))
    ]
    test, options = result["difference"], result["chosen"]
    flags = " ".join(f"--{name} {value if name == 'method' else format(value, 'g')}" for name, value in options.items())
    verdict = (
        f"take {flags}"
        if result["changed"]
        else "keep the parameters: the gain on unseen questions is not above chance"
    )
    return "\n\n".join(
        [
            f"{result['source']}: {result['n']:,} questions, {result['metric']}, {len(result['points'])} points",
            table(["method", "k1", "b", result["metric"], ""], body),
            f"on unseen folds {result['cross_validated']:.4f}, {100 * test['mean']:+.2f} points to the engine's own "
            f"[{100 * test['low']:+.2f}, {100 * test['high']:+.2f}]",
            verdict + (f"\nwritten to {result['out']}" if "out" in result else ""),
        ]
    )
