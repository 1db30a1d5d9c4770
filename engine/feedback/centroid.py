"""Centroid feedback moves the query towards a weighted centroid c of its first hits (E004, E014).

The moved query is ``norm((1 - alpha) q + alpha c)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from ..arrays import Flags, Floats
from ..errors import ParameterError, choices
from .fields import check_above, check_whole
from .pool import Feedback, Pool, apply_each, interpolate, weighted_mean

Weighting = Literal["uniform", "linear", "cosine", "top"]
WEIGHTINGS: tuple[str, ...] = get_args(Weighting)


# Sources: E004, E034.
@dataclass(frozen=True)
class SoftCentroid(Feedback):
    """Weights ``softmax(cosine / tau)`` over the first K hits.

    Alpha 1 replaces the query by the centroid. A lower tau moves the weight to the best hit; hits with equal cosines
    share it. A higher tau makes the weights equal. Use K 3 for encoders with task adapters, and up to 10 for others.
    """

    name: ClassVar[str] = "softcentroid"
    k: int = 3
    alpha: float = 0.5
    tau: float = 0.05

    def __post_init__(self) -> None:
        check_whole(self.name, "k", self.k)
        check_above(self.name, "alpha", self.alpha, 0.0, 1.0)
        check_above(self.name, "tau", self.tau, 0.0)

    @property
    def depth(self) -> int:
        return self.k

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        weights = softmax(pool.similarities[:, : self.k], pool.mask_listed(self.k), self.tau)
        centroid, some = weighted_mean(weights, pool.vectors)
        return interpolate(queries, centroid, self.alpha, some)


# Sources: E014, E003.
@dataclass(frozen=True)
class WeightedCentroid(Feedback):
    """A centroid with other weights than softmax, over the first n hits; n is K, or fewer where there are fewer hits.

    - ``uniform``: 1 for each hit. The centroid is the mean, as in Rocchio with ``beta = alpha / (1 - alpha)``.
    - ``linear``: n, n - 1, …, 1 in the order of the hits.
    - ``cosine``: max(0, cosine) ** `power`.
    - ``top``: the first hit alone. With alpha 1 it is the paper's hard top-1.

    The Test-Time Compute paper gives only the name of linear, and its exponent of the cosine is not legible. Weights by
    rank and the power 2 are choices of this project.
    """

    name: ClassVar[str] = "weighted-centroid"
    k: int = 3
    alpha: float = 0.5
    weighting: Weighting = "cosine"
    power: float = 2.0

    def __post_init__(self) -> None:
        check_whole(self.name, "k", self.k)
        check_above(self.name, "alpha", self.alpha, 0.0, 1.0)
        check_above(self.name, "power", self.power, 0.0)
        if self.weighting not in WEIGHTINGS:
            raise ParameterError(
                f"feedback {self.name!r}: unknown weighting {self.weighting!r}{choices(self.weighting, WEIGHTINGS)}"
            )

    @property
    def depth(self) -> int:
        return 1 if self.weighting == "top" else self.k

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        centroid, some = weighted_mean(self._weights(pool), pool.vectors)
        return interpolate(queries, centroid, self.alpha, some)

    def _weights(self, pool: Pool) -> Floats:
        listed = pool.mask_listed(self.depth)
        if self.weighting == "linear":
            return np.maximum(np.minimum(pool.counts, self.k)[:, None] - np.arange(listed.shape[1]), 0).astype(float)
        if self.weighting == "cosine":
            # Divided by the largest, so that a high power does not underflow for all hits.
            cosines = np.maximum(pool.cosines(self.k), 0.0)
            largest = cosines.max(axis=1, initial=0.0, keepdims=True)
            return apply_each(
                lambda share: math.pow(share, self.power), cosines / np.where(largest > 0.0, largest, 1.0)
            )
        return listed.astype(float)


def softmax(similarities: Floats, listed: Flags, tau: float) -> Floats:
    """[B, K] ``exp((s - max) / tau)`` of each listed similarity, 0 for the others. This is softmax before division."""
    values = np.where(listed, similarities, -np.inf)
    best = values.max(axis=1, initial=-np.inf, keepdims=True)
    with np.errstate(over="ignore"):
        return apply_each(math.exp, (values - np.where(np.isfinite(best), best, 0.0)) / tau)
