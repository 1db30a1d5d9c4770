"""Fits a fusion's weight, alpha, to questions with known answers, by cross-validation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError

ALPHAS = tuple(step / 20 for step in range(21))
"""The weights that are tried: 0, .05, .. 1 (SPEC D004)."""


@dataclass(frozen=True, eq=False)
class AlphaFit:
    """The result of a fit. Every choice is the alpha with the largest mean; among equal means, the smallest alpha."""

    alphas: tuple[float, ...]  # [A] the grid
    curve: npt.NDArray[np.float64]  # [A] mean over all queries
    best: float  # fitted on all queries, so not cross-validated: for a plot, or for a deployment
    chosen: Mapping[Hashable, float]  # group -> the alpha fitted on all other groups; groups in order of appearance
    values: npt.NDArray[np.float64]  # [queries] the metric of each at the alpha chosen for its group: cross-validated

    @property
    def mean(self) -> float:
        """The cross-validated mean."""
        return math.fsum(self.values) / len(self.values)

    def to_dict(self) -> dict[str, Any]:
        return {
            "alphas": list(self.alphas),
            "curve": self.curve.tolist(),
            "best": self.best,
            "chosen": {str(group): alpha for group, alpha in self.chosen.items()},
            "mean": self.mean,
        }


# Sources: D004.
def fit_alpha(values: npt.ArrayLike, groups: Sequence[Hashable], alphas: Sequence[float] = ALPHAS) -> AlphaFit:
    """Leave one group out: each group's queries are measured at the alpha that is best for all other groups.

    `values` [alphas, queries] holds a metric of which higher is better. `groups` [queries] names each query's
    conversation, or its fold (see `folds`). Sums are rounded once (`math.fsum`), so they do not depend on the order of
    the queries, and equal sums compare equal. Raises `ParameterError` for shapes that do not fit, a value that is not
    finite, alphas that do not ascend, or fewer than two groups.
    """
    grid = tuple(float(alpha) for alpha in alphas)
    if not grid or not np.isfinite(grid).all() or any(low >= high for low, high in itertools.pairwise(grid)):
        raise ParameterError(f"alphas must be finite and ascend, not {list(grid)}")
    table = np.asarray(values, dtype=np.float64)
    if table.shape != (len(grid), len(groups)):
        raise ParameterError(
            f"the values must be an array [alphas, queries], here {(len(grid), len(groups))}, not {table.shape}"
        )
    if not np.isfinite(table).all():
        raise ParameterError("the values must be finite")
    numbers: dict[Hashable, int] = {}
    members = np.array([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)
    if len(numbers) < 2:
        raise ParameterError(
            f"leaving a group out needs two groups or more, not {len(numbers)}: name each query's conversation, or "
            "take folds(queries)"
        )
    chosen = {group: _best(table[:, members != number]) for group, number in numbers.items()}
    rows = np.array(list(chosen.values()))[members]
    return AlphaFit(
        alphas=grid,
        curve=np.array([math.fsum(row) / len(members) for row in table]),
        best=grid[_best(table)],
        chosen={group: grid[row] for group, row in chosen.items()},
        values=table[rows, np.arange(len(members))],
    )


# Sources: R12.
def folds(queries: int, count: int = 5, seed: int = 0) -> list[int]:
    """Assign each query to a fold, 0 to `count` - 1, at random. The sizes of the folds differ by at most one.

    `fit_alpha` takes folds as groups where the queries have none of their own. Raises `ParameterError` unless
    2 <= count <= queries.
    """
    if not 2 <= count <= queries:
        raise ParameterError(f"{queries} queries can be split into 2 to {queries} folds, not {count}")
    numbers = np.empty(queries, dtype=np.int64)
    numbers[np.random.default_rng(seed).permutation(queries)] = np.arange(queries) % count
    return [int(number) for number in numbers]


def _best(table: npt.NDArray[np.float64]) -> int:
    """The first row of the largest sum."""
    sums = [math.fsum(row) for row in table]
    return sums.index(max(sums))
