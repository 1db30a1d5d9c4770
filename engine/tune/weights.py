"""Fits the weights of a `Linear` fusion to labelled questions, and measures them on questions that did not fit them.

The evidence of the questions is collected once. The weights maximise the likelihood of the relevant candidates under a
softmax over all candidates of a question, with a small penalty on their squares. That function is concave, so Newton's
method finds its one maximum from any start. A question none of whose relevant records is a candidate fits nothing, and
counts where weights are measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers, offsets_of
from ..errors import ParameterError
from ..evaluate.tables import table
from ..fuse.candidates import Candidates
from ..fuse.linear import Linear
from ..hybrid.strategy import AnyStrategy, Strategy
from ..memory import Memory
from ..metrics.bootstrap import Comparison, paired_bootstrap
from ..route import policy as policies
from .measure import Labelled, Questions
from .parameters import question_folds

PENALTY = 1e-4
"""Of the squared weights of columns brought to deviation 1: enough that a column that never differs gets weight 0."""
FLAT = 1e-9
"""A column whose deviation is at most this share of its largest value counts as one that never differs."""
STEPS = 50
"""Steps of Newton's method; ten are usual."""
CLOSE = 1e-9
"""The fit ends where no part of the gradient is larger."""
AT_ONCE = 200
"""Questions whose evidence is collected at once."""
METRIC = "ndcg@10"
DIGITS = 4
"""Significant digits of the weights that a fit gives."""


@dataclass(frozen=True, eq=False)
class FittedWeights:
    """The result of `fit_weights`.

    `fitted` is the strategy with the weights that all questions gave. `folds` [folds] are the weights that each fold's
    other questions gave; `values` [questions] is the metric of each question by the weights of its fold, and `unseen`
    compares them with the weights that the strategy had. `chosen` is `fitted` if that interval lies above 0, else the
    strategy as it was.
    """

    metric: str
    strategy: Strategy
    fitted: Strategy
    chosen: Strategy
    folds: tuple[Mapping[str, float], ...]
    values: Floats
    unseen: Comparison

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "metric": self.metric,
            "n": self.unseen.units,
            "strategy": self.strategy.name,
            "current": dict(_fusion(self.strategy).weights),
            "fitted": dict(_fusion(self.fitted).weights),
            "changed": self.chosen is not self.strategy,
            "cross_validated": float(self.values.mean()),
            "difference": {
                "mean": self.unseen.difference,
                "low": self.unseen.low,
                "high": self.unseen.high,
                "p": self.unseen.p,
            },
            "folds": [dict(weights) for weights in self.folds],
        }


def fit_weights(
    engine: Memory,
    questions: Sequence[Labelled],
    strategy: AnyStrategy = "dialogue",
    *,
    metric: str = METRIC,
    count: int = 5,
    seed: int = 0,
) -> FittedWeights:
    """Fit the weights of a strategy whose fusion is `Linear`; the engine itself stays as it is.

    There are `count` folds, drawn by `seed`. Questions of one namespace stay in one fold where there are as many
    namespaces. `metric` is what the weights are measured in. Raises `ParameterError` for another fusion, fewer
    questions than folds, a question without a relevant record, or questions none of which finds one, and what the
    search raises.
    """
    strategy = Strategy.of(strategy)
    fusion = _fusion(strategy)
    groups = np.array(question_folds(questions, count, seed), dtype=np.int64)
    found = Evidence.of(collect(engine, questions, strategy), questions, fusion)
    measured = np.zeros(len(questions))
    chosen_by_folds = []
    for fold in range(count):
        weights = found.fit(groups != fold)
        chosen_by_folds.append(weights)
        own = np.flatnonzero(groups == fold)
        measured[own] = _values(engine, [questions[place] for place in own.tolist()], strategy, weights, metric)
    before = _values(engine, questions, strategy, fusion.weights, metric)
    unseen = paired_bootstrap(measured, before, seed=seed)
    fitted = _with(strategy, found.fit(np.ones(len(questions), dtype=np.bool_)))
    chosen = fitted if unseen.low > 0.0 else strategy
    return FittedWeights(metric, strategy, fitted, chosen, tuple(chosen_by_folds), measured, unseen)


Collected = tuple[Candidates, npt.NDArray[np.object_]]
"""The candidates of some questions, and the record id of each."""


def collect(engine: Memory, questions: Sequence[Labelled], strategy: Strategy) -> list[Collected]:
    """The candidates of the questions, in order, `AT_ONCE` questions a part."""
    parts = []
    for start in range(0, len(questions), AT_ONCE):
        asked = [question.query for question in questions[start : start + AT_ONCE]]
        candidates, ids_of = engine.candidates(asked, strategy)
        parts.append((candidates, ids_of(candidates.documents)))
    return parts


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the weights multiply, over the questions that have a relevant candidate."""

    names: tuple[str, ...]
    columns: Floats  # [candidates, names]
    targets: Floats  # [candidates] of each question's relevant candidates, adding up to 1
    offsets: Integers  # [fitting questions + 1]
    questions: Integers  # [fitting questions] the place of each among all questions

    @classmethod
    def of(cls, parts: Sequence[Collected], questions: Sequence[Labelled], fusion: Linear) -> Evidence:
        """The evidence for the weights of `fusion`. Raises `ParameterError` where no candidate is relevant."""
        names = tuple(fusion.weights)
        columns, targets, counts, places = [], [], [], []
        number = 0
        for candidates, ids in parts:
            scaled = np.stack([fusion.scaled(name, candidates) for name in names], axis=1)
            for place in range(len(candidates)):
                question, number = questions[number], number + 1
                span = slice(int(candidates.offsets[place]), int(candidates.offsets[place + 1]))
                wanted = {name for name, grade in question.relevant.items() if grade > 0}
                right = np.array([name in wanted for name in ids[span]], dtype=np.float64)
                if not right.any():
                    continue
                kept = np.array([name != question.own for name in ids[span]], dtype=np.bool_)
                columns.append(scaled[span][kept])
                targets.append(right[kept] / right[kept].sum())
                counts.append(len(targets[-1]))
                places.append(number - 1)
        if not columns:
            raise ParameterError("no question has a relevant record among its candidates; label others")
        return cls(names, np.concatenate(columns), np.concatenate(targets), offsets_of(counts), np.array(places))

    def fit(self, among: Flags) -> dict[str, float]:
        """The weights that the questions in `among` [questions] give."""
        used = np.flatnonzero(among[self.questions])
        if not len(used):
            raise ParameterError("a fold's other questions have no relevant record among their candidates; label more")
        counts = np.diff(self.offsets)[used]
        owners = np.repeat(np.arange(len(used)), counts)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        rows = np.concatenate([np.arange(self.offsets[place], self.offsets[place + 1]) for place in used.tolist()])
        spread = self.columns[rows].std(axis=0)
        # A column that never differs has a deviation of rounding errors.
        unit = np.where(spread > FLAT * np.abs(self.columns[rows]).max(axis=0), spread, 1.0)
        columns, targets = self.columns[rows] / unit, self.targets[rows]
        weights = np.zeros(len(self.names))

        def likelihood(tried: Floats) -> tuple[float, Floats]:
            sums = columns @ tried
            sums -= np.maximum.reduceat(sums, starts)[owners]
            raised = np.exp(sums)
            totals = np.add.reduceat(raised, starts)
            gain = float((targets * (sums - np.log(totals)[owners])).sum()) / len(used)
            return gain - PENALTY * float(tried @ tried), raised / totals[owners]

        value, shares = likelihood(weights)
        for _ in range(STEPS):
            gradient = columns.T @ (targets - shares) / len(used) - 2.0 * PENALTY * weights
            if np.abs(gradient).max() < CLOSE:
                break
            weighted = (columns * shares[:, None]).T
            centred = columns - np.stack([np.add.reduceat(row, starts)[owners] for row in weighted], axis=1)
            curvature = (centred * shares[:, None]).T @ centred / len(used) + 2.0 * PENALTY * np.eye(len(weights))
            step = np.linalg.solve(curvature, gradient)
            length = 1.0
            while length > CLOSE:
                tried, others = likelihood(weights + length * step)
                if tried > value:
                    break
                length /= 2.0
            else:
                break
            weights, value, shares = weights + length * step, tried, others
        # Few digits: a weight is read by people, and the last bits depend on the machine.
        return {
            name: float(f"{weight:.{DIGITS}g}")
            for name, weight in zip(self.names, (weights / unit).tolist(), strict=True)
        }


def _fusion(strategy: Strategy) -> Linear:
    if not isinstance(strategy.fusion, Linear):
        raise ParameterError(f"strategy {strategy.name!r} is not fused by Linear, so it has no weights to fit")
    return strategy.fusion


def _with(strategy: Strategy, weights: Mapping[str, float]) -> Strategy:
    return replace(strategy, fusion=replace(_fusion(strategy), weights=weights))


def _values(
    engine: Memory, questions: Sequence[Labelled], strategy: Strategy, weights: Mapping[str, float], metric: str
) -> Floats:
    return Questions(engine, questions, metric).answer(_with(strategy, weights)).values


def write_weights(path: str | os.PathLike[str], fitted: FittedWeights) -> None:
    """Write the chosen strategy, as `fanrank search --policy` reads it. Raises `PolicyFileError`."""
    policies.save(path, fitted.chosen, {"n": fitted.unseen.units, "metric": fitted.metric})


def render_weights(result: dict[str, Any]) -> str:
    """A result as text: the weights before and after, those of each fold, and what unseen questions say."""
    body = [
        [name, f"{result['current'][name]:g}", f"{value:g}", " ".join(f"{fold[name]:g}" for fold in result["folds"])]
        for name, value in result["fitted"].items()
    ]
    test = result["difference"]
    verdict = (
        "take the fitted weights"
        if result["changed"]
        else "keep the weights: the gain on unseen questions is not above chance"
    )
    return "\n\n".join(
        [
            f"{result['source']}: {result['n']:,} questions, {result['metric']}, strategy {result['strategy']}",
            table(["channel", "weight", "fitted", "by fold"], body),
            f"on unseen folds {result['cross_validated']:.4f}, {100 * test['mean']:+.2f} points to the strategy's own "
            f"weights [{100 * test['low']:+.2f}, {100 * test['high']:+.2f}]",
            verdict + (f"\nwritten to {result['out']}" if "out" in result else ""),
        ]
    )
