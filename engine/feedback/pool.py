"""What feedback works on, what every method offers, and the arithmetic that they share.

Feedback moves a query vector by the vectors of its first hits; then the query is scored again. All of it is elementwise
float64, hits added one after another from the best on, exponentials taken one number at a time: a query's new vector
has the same bits alone and in any batch. (exp and pow differ between C libraries, so between machines it may differ in
the last bit, which the rounding of query vectors to half precision then hides but for near-ties.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers
from ..errors import ParameterError
from ..vectors.vectors import Halves, normalize

SHORTEST = 2.0**-24
"""A sum shorter than the finest step of half precision points where rounding does: the query stays as it is (E039)."""


# Sources: E011.
@dataclass(frozen=True, eq=False)
class Pool:
    """The first hits of B queries, best first. Every hit has a vector.

    The order may be that of a fused score: methods take the first K in this order, and weigh them by cosine.
    """

    texts: Sequence[str]  # [B] the queries' texts
    scores: Floats  # [B, P] what ordered the hits; -inf padding
    similarities: Floats  # [B, P] cosine of the query and each; -inf padding
    vectors: Halves  # [B, P, d] at length 1; 0 padding
    counts: Integers  # [B] hits
    first_sentences: Callable[[int], Floats] | None = None
    """n -> [B, n, d] the vectors, at length 1, of the first sentence of each of the first n hits; 0 where there is
    none. The caller encodes and keeps them (E005)."""
    again: Callable[[Floats], Pool] | None = None
    """[B, d] other query vectors -> the pool of a search with them. They are in half precision already: taken as they
    are, not rounded again."""

    def mask_listed(self, k: int) -> Flags:
        """[B, min(k, P)] whether a query has that many hits."""
        return np.arange(min(k, self.vectors.shape[1])) < self.counts[:, None]

    def cosines(self, k: int) -> Floats:
        """[B, min(k, P)] of the first k hits, 0 where there is none."""
        return np.where(self.mask_listed(k), self.similarities[:, :k], 0.0)


@runtime_checkable
class Feedback(Protocol):
    """A frozen dataclass whose fields are JSON values (or feedback); calling it moves a batch's query vectors.

    ``queries`` [B, d] float64 are at length 1, in half precision; what is returned is at length 1, and not yet
    `round_moved`. A query without hits, or whose moved vector would have no direction, keeps its own, bit for bit.
    """

    name: ClassVar[str]

    # Sources: E012.
    @property
    def depth(self) -> int:
        """Hits of the pool that it reads; more of them change nothing."""
        raise NotImplementedError

    # Sources: E001.
    @property
    def cost(self) -> float:
        """Encoder passes a query, its own included."""
        return 1.0

    @property
    def needs_sentences(self) -> bool:
        """Whether it calls the pool's ``first_sentences``."""
        return False

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        raise NotImplementedError


def apply_each(function: Callable[[float], float], values: Floats) -> Floats:
    """`function` of each number by itself: numpy's own loops may round an array's end otherwise than its middle."""
    return np.array([function(value) for value in values.ravel().tolist()], dtype=np.float64).reshape(values.shape)


def weighted_sum(weights: Floats, vectors: npt.NDArray[np.floating]) -> Floats:
    """[B, d] the first hits' vectors [B, K or more, d], each times its weight [B, K], added from the best on."""
    total = np.zeros((vectors.shape[0], vectors.shape[2]))
    for place in range(weights.shape[1]):
        total += weights[:, place, None] * vectors[:, place].astype(np.float64)
    return total


def row_sum(values: Floats) -> Floats:
    """[B] the sum of each row [B, K], from the left."""
    total = np.zeros(len(values))
    for place in range(values.shape[1]):
        total += values[:, place]
    return total


def weighted_mean(weights: Floats, vectors: npt.NDArray[np.floating]) -> tuple[Floats, Flags]:
    """([B, d] `weighted_sum` over the sum of the weights, [B] whether that is above 0)."""
    total = row_sum(weights)
    some = total > 0.0
    return weighted_sum(weights, vectors) / np.where(some, total, 1.0)[:, None], some


def lengths(vectors: Floats) -> Floats:
    """[B] of each row [B, d]."""
    rows = np.ascontiguousarray(vectors)
    return np.asarray(np.sqrt((rows * rows).sum(axis=1)))


def normalize_moved(queries: Floats, sums: Floats, where: Flags) -> Floats:
    """[B, d] `sums` at length 1; the query's own vector where not `where`, or where the sum has no direction."""
    long = lengths(sums)
    keep = where & (long > SHORTEST)
    return np.where(keep[:, None], sums / np.where(keep, long, 1.0)[:, None], queries)


def interpolate(queries: Floats, anchors: Floats, alpha: float, where: Flags) -> Floats:
    """``norm((1 - alpha) q + alpha anchor)``, as `normalize_moved`."""
    return normalize_moved(queries, (1.0 - alpha) * queries + alpha * anchors, where)


def sentences_of(name: str, pool: Pool, n: int) -> Floats:
    """[B, n, d] as `Pool.first_sentences`, no more than there are hits in the pool. Raises `ParameterError`."""
    if pool.first_sentences is None:
        raise ParameterError(f"feedback {name!r} encodes sentences of hits; this pool has no encoder and texts for it")
    n = min(n, pool.vectors.shape[1])
    return pool.first_sentences(n) if n else np.zeros((len(pool.counts), 0, pool.vectors.shape[2]))


def round_moved(queries: Floats, found: Floats) -> Floats:
    """[B, d] the moved vectors as the engine rounds queries; a query that was not moved has its own bits.

    (Normalising what is rounded already may change the last bit, and with it the scores of a query left alone.)
    """
    same = (queries == found).all(axis=1)
    return np.where(same[:, None], queries, normalize(found).astype(np.float64))


def next_pool(name: str, pool: Pool, queries: Floats, found: Floats, fresh: bool, rescored: int) -> tuple[Floats, Pool]:
    """(the moved queries [B, d], `round_moved`; their pool): searched anew, or the first hits rescored.

    Vectors in half precision have exact cosines, so a rescored hit scores just what a search would give it. The first
    `rescored` hits are ordered anew by cosine alone; equal ones keep their order. Raises `ParameterError` for a fresh
    search from a pool that cannot search.
    """
    asked = round_moved(queries, found)
    if fresh:
        if pool.again is None:
            raise ParameterError(
                f"feedback {name!r} with fresh=True searches again; this pool cannot (use fresh=False)"
            )
        return asked, pool.again(asked)
    vectors, listed = pool.vectors[:, :rescored], pool.mask_listed(rescored)
    similarities = np.einsum("bpd,bd->bp", vectors.astype(np.float64), asked)
    order = np.argsort(np.where(listed, -similarities, np.inf), axis=1, kind="stable")
    similarities = np.take_along_axis(np.where(listed, similarities, -np.inf), order, axis=1)
    ordered = vectors[np.arange(len(order))[:, None], order]
    counts = np.minimum(pool.counts, rescored)
    return asked, Pool(pool.texts, similarities, similarities, ordered, counts, again=pool.again)
