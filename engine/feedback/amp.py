"""The query plus its best hit, times how sure it is: the amp family of Test-Time Compute (SPEC E008, E013).

Of E013 these are here or combine to: P1 `Amp`; P32 `TailGap`; P19 and P97 `SentenceAmp`; P33 and P76 `Gated` over
`SentenceAmp`; P102 `Gated` over `Amp`; P28 `NormConvergence`; P164 `Projection`; P40 and P103 `Iterated`. Not here:
P174 projects ``w d_1`` onto a span that holds d_1, which is P1; P24 is an early P19; P37 ranks by votes and moves no
query; P77 encodes chunks of documents; P171's adaptive rank is nowhere defined; P203, P22 and P47 need encoders with
several adapters.
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

    K is the last hit where there are fewer. An order other than by cosine can make w negative; it then counts as 0.
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
    """``norm(sum cos(q, d_i) d_i)`` over the first K hits: the query turned into their span."""

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
    """`of` where the mean cosine of the first K hits is above `floor`, else the query as it is.

    K 1 is a similarity floor, more is a concentration gate. The Test-Time Compute paper gives no number for either; a
    floor belongs to an encoder.
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
    """`Amp` again and again until a step is longer than the one before, `rounds` times at most.

    Each round goes by the best hit of the query as it stands: of a fresh search, or among the first `rescored` hits of
    the first. The step that was longer counts, as in the figure of the Test-Time Compute paper.
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
        found = queries
        going, last = pool.counts > 0, np.full(len(queries), np.inf)
        for left in reversed(range(self.rounds)):
            amped = amp(queries, pool)
            step = lengths(amped - queries)
            found = np.where(going[:, None], amped, found)
            going, last = going & (step <= last), step
            if not left or not going.any():
                break
            queries, pool = next_pool(self.name, pool, queries, found, self.fresh, self.rescored)
        return found


def gaps(pool: Pool, k: int) -> Floats:
    """[B] ``cos(q, d_1) - cos(q, d_K)``, d_K being the last hit where there are fewer; at least 0."""
    cosines = pool.cosines(k)
    if not cosines.shape[1]:
        return np.zeros(len(cosines))
    last = np.maximum(np.minimum(pool.counts, k), 1) - 1
    return np.maximum(cosines[:, 0] - np.take_along_axis(cosines, last[:, None], axis=1)[:, 0], 0.0)


def boost(queries: Floats, pool: Pool, k: int) -> Floats:
    """Queries that other feedback has moved, plus the tail gap of their pool times their first hit."""
    return _move_toward_first(queries, pool, gaps(pool, k))


def _move_toward_first(queries: Floats, pool: Pool, weights: Floats) -> Floats:
    weights = np.where(pool.counts > 0, weights, 0.0)
    first = weighted_sum(weights[:, None][:, : pool.vectors.shape[1]], pool.vectors)
    return normalize_moved(queries, queries + first, weights != 0.0)
