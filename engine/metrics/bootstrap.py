"""Paired bootstrap: tests whether two systems differ by more than chance, over questions or clusters of questions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError

_CHUNK = 1 << 21  # indices drawn at a time: 16 MB, for any number of resamples
TIE = 1e-12
"""Means that differ by less than this are equal. The order of the terms changes the last bits of a sum of fractions: a
mean that is exactly zero comes out as some 1e-17."""


@dataclass(frozen=True)
class Comparison:
    """The result of a bootstrap test of a first system against a second.

    `difference` is the mean of (first - second), and [`low`, `high`] its percentile confidence interval. `p` is
    two-sided (`paired_bootstrap`), or one-sided against "the first is not better" (`cluster_bootstrap`). It is never
    below 1 / `resamples`: fewer than one draw of so many cannot be seen.
    """

    difference: float
    low: float
    high: float
    p: float
    resamples: int
    units: int  # what was resampled: questions or clusters


# Sources: A121, X12.
def paired_bootstrap(
    first: npt.ArrayLike, second: npt.ArrayLike, *, resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> Comparison:
    """Resamples questions with replacement; ``p = min(1, 2 min(P(D <= 0), P(D >= 0)))``.

    `first` and `second` are the values [n] of one metric, paired by question. There are `resamples` draws, the same for
    the same `seed`, and `level` is the share of them that the interval holds.
    Raises `ParameterError` if the arrays differ in shape, are empty or not finite, or a parameter is out of range.
    """
    differences = _subtract(first, second, resamples, level)
    n = len(differences)
    random = np.random.default_rng(seed)
    means = np.concatenate(
        [differences[random.integers(0, n, (count, n))].mean(axis=1) for count in _chunks(resamples, n)]
    )
    tail = min(float(np.mean(means <= TIE)), float(np.mean(means >= -TIE)))
    return _compare(differences, means, min(1.0, 2.0 * tail), level, n)


# Sources: D009.
def cluster_bootstrap(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    clusters: Sequence[Hashable],
    *,
    resamples: int = 4_000,
    seed: int = 0,
    level: float = 0.95,
) -> Comparison:
    """Resamples whole clusters, for example conversations, with replacement; ``p = P(D <= 0)``, one-sided.

    The mean of a resample is over the questions of the drawn clusters, so a large cluster weighs more. `clusters` holds
    the name of each question's cluster [n]. `resamples`, `seed`, `level` and the errors are those of
    `paired_bootstrap`.
    """
    differences = _subtract(first, second, resamples, level)
    if len(clusters) != len(differences):
        raise ParameterError(f"{len(differences)} questions, but {len(clusters)} cluster names")
    numbers: dict[Hashable, int] = {}
    member = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    sums = np.bincount(member, weights=differences)
    sizes = np.bincount(member)
    n = len(sizes)
    random = np.random.default_rng(seed)
    chunk_means = []
    for count in _chunks(resamples, n):
        drawn = random.integers(0, n, (count, n))
        chunk_means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    means = np.concatenate(chunk_means)
    return _compare(differences, means, float(np.mean(means <= TIE)), level, n)


def holm(p: Sequence[float]) -> list[float]:
    """Each p corrected for the number of comparisons (Holm), in the order given: the chance of one false find or more.

    The smallest of m is multiplied by m, the next by m - 1, and so on. None falls below a smaller one's, or above 1.
    """
    corrected, highest = [0.0] * len(p), 0.0
    for rank, position in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[position]))
        corrected[position] = highest
    return corrected


def format_p(p: float) -> str:
    """p with four decimals; never 0.0000."""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def _subtract(first: npt.ArrayLike, second: npt.ArrayLike, resamples: int, level: float) -> npt.NDArray[np.float64]:
    left, right = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if left.ndim != 1 or left.shape != right.shape or not len(left):
        raise ParameterError(f"two arrays of the same n >= 1 questions are needed, not {left.shape} and {right.shape}")
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise ParameterError("the values must be finite")
    if resamples < 1:
        raise ParameterError(f"resamples must be 1 or more, not {resamples}")
    if not 0.0 < level < 1.0:
        raise ParameterError(f"level must lie between 0 and 1, not {level}")
    return left - right


def _chunks(resamples: int, n: int) -> list[int]:
    size = max(1, _CHUNK // n)
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def _compare(
    differences: npt.NDArray[np.float64], means: npt.NDArray[np.float64], p: float, level: float, units: int
) -> Comparison:
    low, high = np.quantile(means, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    p = max(p, 1.0 / len(means))
    return Comparison(float(differences.mean()), float(low), float(high), p, len(means), units)
