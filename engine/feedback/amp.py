"""The amp family of the Test-Time Compute paper: the query plus its weighted best hit (SPEC E008, E013).

The weight is the confidence in the best hit. These programs of E013 are available: P1 is `Amp`; P32 is `TailGap`; P19
and P97 are `SentenceAmp`; P33 and P76 are `Gated` over `SentenceAmp`; P102 is `Gated` over `Amp`; P28 is
`NormConvergence`; P164 is `Projection`; P40 and P103 are `Iterated`.

These are not available: P174 projects ``w d_1`` onto a span that contains d_1, which is P1; P24 is an early P19; P37
ranks by votes and moves no query; P77 encodes chunks of documents; P171 has an adaptive rank that is defined nowhere;
P203, P22 and P47 need encoders with several adapters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from .fields import check_whole, check_within, feedback, flag
from .pool import (
    Feedback,
    Pool,
    lengths,
    next_pool,
    normalize_moved,
    row_sum,
    weighted_sum,
)


@dataclass(frozen=True)
class Amp(Feedback):
    """``norm(q + cos(q, d_1) d_1)``."""

    name: ClassVar[str] = "amp"

    @property
    def depth(self) -> int:
        return 1

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        return _move_toward_first(queries, pool, row_sum(pool.cosines(1)))


@dataclass(frozen=True)
class TailGap(Feedback):
    """``norm(q + w d_1)`` with ``w = cos(q, d_1) - cos(q, d_K)``.

    Where there are fewer than K hits, d_K is the last one. Hits that are not ordered by cosine can make w negative; it
    then counts as 0.
    """

    name: ClassVar[str] = "tail-gap"
    k: int = 3

    def __post_init__(self) -> None:
        check_whole(self.name, "k", self.k, least=2)

    @property
    def depth(self) -> int:
        return self.k

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        return _move_toward_first(queries, pool, gaps(pool, self.k))


@dataclass(frozen=True)
class Projection(Feedback):
    """``norm(sum cos(q, d_i) d_i)`` over the first K hits: the query is turned into the span of these hits."""

    name: ClassVar[str] = "projection"
    k: int = 3

    def __post_init__(self) -> None:
        check_whole(self.name, "k", self.k)

    @property
    def depth(self) -> int:
        return self.k

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        return normalize_moved(queries, weighted_sum(pool.cosines(self.k), pool.vectors), pool.counts > 0)


@dataclass(frozen=True)
class Gated(Feedback):
    """Applies `of` where the mean cosine of the first K hits is above `floor`; otherwise the query stays as it is.

    With K 1 this is a similarity floor, with a larger K a concentration gate. The Test-Time Compute paper gives no
    number for either. Which `floor` is right depends on the encoder.
    """

    name: ClassVar[str] = "gated"
    of: Feedback = Amp()
    k: int = 3
    floor: float = 0.5

    def __post_init__(self) -> None:
        feedback(self.name, "of", self.of)
        check_whole(self.name, "k", self.k)
        check_within(self.name, "floor", self.floor, -1.0, 1.0)

    @property
    def depth(self) -> int:
        return max(self.k, self.of.depth)

    @property
    def cost(self) -> float:
        return self.of.cost

    @property
    def needs_sentences(self) -> bool:
        return self.of.needs_sentences

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        hits = np.minimum(pool.counts, self.k)
        sure = (hits > 0) & (row_sum(pool.cosines(self.k)) / np.maximum(hits, 1) > self.floor)
        return np.where(sure[:, None], self.of(queries, pool), queries) if sure.any() else queries


@dataclass(frozen=True)
class NormConvergence(Feedback):
    """Repeats `Amp` until a step is longer than the one before, `rounds` times at most.

    Each round takes the best hit of the query that the round before moved. With `fresh` that hit comes from a new
    search; otherwise it is the best of the first `rescored` hits of the first search. The last, longer step counts too,
    as in the figure of the Test-Time Compute paper.
    """

    name: ClassVar[str] = "norm-convergence"
    rounds: int = 6
    fresh: bool = False
    rescored: int = 100

    def __post_init__(self) -> None:
        check_whole(self.name, "rounds", self.rounds)
        flag(self.name, "fresh", self.fresh)
        check_whole(self.name, "rescored", self.rescored)

    @property
    def depth(self) -> int:
        return 1 if self.fresh or self.rounds == 1 else self.rescored

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        amp = Amp()
        moved = queries
        going, last = pool.counts > 0, np.full(len(queries), np.inf)
        for left in reversed(range(self.rounds)):
            amped = amp(queries, pool)
            step = lengths(amped - queries)
            moved = np.where(going[:, None], amped, moved)
            going, last = going & (step <= last), step
            if not left or not going.any():
                break
            queries, pool = next_pool(self.name, pool, queries, moved, self.fresh, self.rescored)
        return moved


def gaps(pool: Pool, k: int) -> Floats:
    """[B] ``cos(q, d_1) - cos(q, d_K)``, at least 0. Where there are fewer than K hits, d_K is the last one."""
    cosines = pool.cosines(k)
    if not cosines.shape[1]:
        return np.zeros(len(cosines))
    last = np.maximum(np.minimum(pool.counts, k), 1) - 1
    return np.maximum(cosines[:, 0] - np.take_along_axis(cosines, last[:, None], axis=1)[:, 0], 0.0)


def boost(queries: Floats, pool: Pool, k: int) -> Floats:
    """Add the first hit, times the tail gap of the pool, to queries that other feedback has moved."""
    return _move_toward_first(queries, pool, gaps(pool, k))


def _move_toward_first(queries: Floats, pool: Pool, weights: Floats) -> Floats:
    weights = np.where(pool.counts > 0, weights, 0.0)
    first = weighted_sum(weights[:, None][:, : pool.vectors.shape[1]], pool.vectors)
    return normalize_moved(queries, queries + first, weights != 0.0)
