"""Rocchio feedback on embeddings: the query plus beta times the mean of its first hits (SPEC E003, E006)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..arrays import Floats
from .fields import check_above, check_whole, check_within
from .pool import Feedback, Pool, normalize_moved, weighted_mean

KS = (2, 3, 5, 10)
BETAS = (0.1, 0.3, 0.5, 0.7)
"""The grid of the Test-Time Compute paper (E003)."""


# Sources: E003, E006, P40.
@dataclass(frozen=True)
class Rocchio(Feedback):
    """``norm(q + beta mean(d_1 .. d_K))``.

    The Test-Time Compute paper has a grid for this form and no default, so the defaults are those of `RocchioFloor`.
    `Iterated` over this class is multi-round Rocchio.
    """

    name: ClassVar[str] = "rocchio"
    k: int = 2
    beta: float = 0.5

    def __post_init__(self) -> None:
        check_whole(self.name, "k", self.k)
        check_above(self.name, "beta", self.beta, 0.0)

    @property
    def depth(self) -> int:
        return self.k

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        mean, some = weighted_mean(pool.mask_listed(self.k).astype(float), pool.vectors)
        return normalize_moved(queries, queries + self.beta * mean, some)


@dataclass(frozen=True)
class RocchioFloor(Feedback):
    """`Rocchio` over those of the first K hits whose cosine is at least `floor`; without such a hit the query stays."""

    name: ClassVar[str] = "rocchio-floor"
    k: int = 2
    beta: float = 0.5
    floor: float = 0.75

    def __post_init__(self) -> None:
        check_whole(self.name, "k", self.k)
        check_above(self.name, "beta", self.beta, 0.0)
        check_within(self.name, "floor", self.floor, -1.0, 1.0)

    @property
    def depth(self) -> int:
        return self.k

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        near = pool.mask_listed(self.k) & (pool.similarities[:, : self.k] >= self.floor)
        mean, some = weighted_mean(near.astype(float), pool.vectors)
        return normalize_moved(queries, queries + self.beta * mean, some)
