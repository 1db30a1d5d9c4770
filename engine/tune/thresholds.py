"""Fits a cascade's thresholds to labelled questions: sweeps, the smallest threshold, by type, cross-validation.

All functions work on columns over n questions, float64 [n]. `lexical` is the value of BM25's answer to each question,
`escalated` the value of the other strategy's answer, and `confidence` is NaN if there is none (SPEC X04). A question is
skipped (BM25 alone answers it) if its confidence is its threshold or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Floats, Integers
from ..errors import ParameterError
from ..metrics.bootstrap import TIE

Types = Sequence["str | None"]

HUNDREDTHS: tuple[float, ...] = tuple(step / 100 for step in range(101))
"""The thresholds that are tried, in [0, 1] (SPEC A080). AgentIR's own are hundredths too (A079, A084)."""
MARGIN = 0.005
"""How far accuracy may fall below that of escalating always (A080)."""
LEAST = 5
"""A type with fewer labelled questions has no threshold and no best strategy of its own.

A single question would decide them.
"""
ALWAYS = 2.0
"""The threshold that escalates always, as a confidence is 1 at most."""


@dataclass(frozen=True)
class Step:
    """One threshold of a sweep: the share of questions skipped, and the mean value of all questions."""

    tau: float
    skip: float
    accuracy: float


@dataclass(frozen=True)
class Fold:
    """The result of thresholds on one fold, which were fitted to the other folds."""

    n: int
    skip: float
    accuracy: float


def sweep(confidence: Floats, lexical: Floats, escalated: Floats, taus: Sequence[float] = HUNDREDTHS) -> list[Step]:
    """A step for each threshold, in their order. Raises `ParameterError` for empty columns, or of different lengths."""
    _check_columns(confidence, lexical, escalated)
    skipped = confidence >= np.asarray(taus, dtype=np.float64)[:, None]
    accuracy = np.where(skipped, lexical, escalated).mean(axis=1)
    return [
        Step(float(tau), float(share), float(value))
        for tau, share, value in zip(taus, skipped.mean(axis=1), accuracy, strict=True)
    ]


# Sources: A080, X10.
def smallest_tau(
    confidence: Floats, lexical: Floats, escalated: Floats, margin: float = MARGIN, taus: Sequence[float] = HUNDREDTHS
) -> float:
    """The smallest threshold whose mean value is within `margin` of escalating always.

    It skips the most questions of all that qualify. `ALWAYS` if none does. Raises `ParameterError` as `sweep`.
    """
    least = float(escalated.mean()) - margin - TIE if len(escalated) else 0.0
    return min(
        (step.tau for step in sweep(confidence, lexical, escalated, taus) if step.accuracy >= least), default=ALWAYS
    )


# Sources: A078, A080.
def taus_by_type(
    confidence: Floats,
    lexical: Floats,
    escalated: Floats,
    types: Types,
    margin: float = MARGIN,
    taus: Sequence[float] = HUNDREDTHS,
    least: int = LEAST,
) -> dict[str, float]:
    """`smallest_tau` of the questions of each type, by type, for types with `least` questions or more.

    Raises `ParameterError` as `sweep`.
    """
    _check_columns(confidence, lexical, escalated)
    return {
        name: smallest_tau(confidence[of], lexical[of], escalated[of], margin, taus)
        for name, of in members(types).items()
        if len(of) >= least
    }


def best_by_type(values: Floats, ms: Floats, types: Types, least: int = LEAST) -> dict[str, int]:
    """The row of `values` [systems, n] with the highest mean over each type's questions, by type.

    Of equal means the one of the smaller `ms` [systems] is taken, then the first. Only types with `least` questions or
    more are there.
    """
    return {name: best(values[:, of], ms) for name, of in members(types).items() if len(of) >= least}


def best(values: Floats, ms: Floats) -> int:
    """The row of `values` [systems, n] with the highest mean; of equal means that of smaller `ms`, then the first."""
    means = values.mean(axis=1)
    tied = np.flatnonzero(means >= means.max() - TIE)
    return int(tied[np.argmin(ms[tied])])


def members(types: Types) -> dict[str, Integers]:
    """The positions of each type's questions, types in alphabetical order; a question without a type is in none."""
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(types):
        if name is not None:
            positions.setdefault(name, []).append(position)
    return {name: np.array(positions[name], dtype=np.int64) for name in sorted(positions)}


def thresholds(types: Types, tau: float, taus: dict[str, float]) -> Floats:
    """The threshold of each question, [n]: that of its type, or `tau`."""
    return np.array([tau if name is None else taus.get(name, tau) for name in types], dtype=np.float64)


def folds_of(n: int, folds: int, seed: int) -> Integers:
    """The fold of each question, [n], drawn by `seed`.

    The sizes of the folds differ by 1 at most, and there are no more folds than questions. Raises `ParameterError` for
    fewer than 2 folds, or a seed below 0.
    """
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
        raise ParameterError(f"cross-validation needs 2 folds or more, not {folds!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ParameterError(f"a seed must be an integer of 0 or more, not {seed!r}")
    order = np.random.default_rng(seed).permutation(n)
    numbers = np.empty(n, dtype=np.int64)
    numbers[order] = np.arange(n) % min(folds, max(n, 1))
    return numbers


# Sources: A089.
def cross_validate(
    confidence: Floats,
    lexical: Floats,
    escalated: Floats,
    folds: Integers,
    fit: Callable[[Integers], Callable[[Integers], Floats]],
) -> tuple[list[Fold], Floats]:
    """(each fold under thresholds fitted to the other folds, the value of each question under these thresholds [n]).

    ``fit(training positions)`` returns a function from tested positions to their thresholds. With a single fold nothing
    is left to fit to: the list of folds is then empty, and the values are those of escalating.
    """
    _check_columns(confidence, lexical, escalated)
    values = escalated.copy()
    results: list[Fold] = []
    for fold in range(int(folds.max()) + 1):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if not len(train):
            break
        skipped = confidence[test] >= fit(train)(test)
        values[test] = np.where(skipped, lexical[test], escalated[test])
        results.append(Fold(len(test), float(skipped.mean()), float(values[test].mean())))
    return results, values


def _check_columns(confidence: Floats, lexical: Floats, escalated: Floats) -> None:
    if confidence.ndim != 1 or not confidence.shape == lexical.shape == escalated.shape or not len(confidence):
        raise ParameterError(
            f"columns of the same n >= 1 questions are needed, not {confidence.shape}, {lexical.shape}, "
            f"{escalated.shape}"
        )
