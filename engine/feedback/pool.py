"""The pool of hits that feedback works on, the interface of every method, and the arithmetic that methods share.

Feedback moves a query vector by the vectors of its first hits. Then the query is scored again.

A query's new vector has the same bits alone and in any batch: all arithmetic is elementwise float64, hits are added one
after another from the best on, and exponentials are taken one number at a time. Between machines the new vector may
differ in the last bit, because exp and pow differ between C libraries. Query vectors are then rounded to half
precision, which hides the difference except near a tie.
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
"""The finest step of half precision. The direction of a shorter sum is due to rounding, so the query stays (E039)."""


# Sources: E011.
@dataclass(frozen=True, eq=False)
class Pool:
    """The first hits of B queries, best first. Every hit has a vector.

    A fused score may give the order. Methods take the first K hits in this order and weigh them by cosine.
    """

    texts: Sequence[str]  # [B] the queries' texts
    scores: Floats  # [B, P] the scores that ordered the hits; -inf padding
    similarities: Floats  # [B, P] cosine of the query and each hit; -inf padding
    vectors: Halves  # [B, P, d] at length 1; 0 padding
    counts: Integers  # [B] number of hits
    first_sentences: Callable[[int], Floats] | None = None
    """n -> [B, n, d] vectors, at length 1, of the first sentence of each of the first n hits; 0 where there is none.
    The caller encodes and keeps them (E005)."""
    again: Callable[[Floats], Pool] | None = None
    """[B, d] other query vectors -> the pool of a search with them. The vectors are in half precision already and are
    not rounded again."""

    def mask_listed(self, k: int) -> Flags:
        """[B, min(k, P)] which columns hold a hit; the others are padding."""
        return np.arange(min(k, self.vectors.shape[1])) < self.counts[:, None]

    def cosines(self, k: int) -> Floats:
        """[B, min(k, P)] cosines of the first k hits; 0 where there is no hit."""
        return np.where(self.mask_listed(k), self.similarities[:, :k], 0.0)


@runtime_checkable
class Feedback(Protocol):
    """A frozen dataclass whose fields are JSON values or feedback. Calling it moves a batch's query vectors.

    ``queries`` [B, d] float64 have length 1 and values of half precision. The returned vectors have length 1 and are
    not rounded; `round_moved` does that. A query without hits, or whose moved vector would have no direction, keeps its
    own vector, bit for bit.
    """

    name: ClassVar[str]

    # Sources: E012.
    @property
    def depth(self) -> int:
        """How many hits of the pool the method reads. More hits change nothing."""
        raise NotImplementedError

    # Sources: E001.
    @property
    def cost(self) -> float:
        """Encoder passes for each query, including the pass that encodes the query itself."""
        return 1.0

    @property
    def needs_sentences(self) -> bool:
        """Whether the method calls the pool's ``first_sentences``."""
        return False

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        raise NotImplementedError


def apply_each(function: Callable[[float], float], values: Floats) -> Floats:
    """Apply `function` to each number by itself. numpy's loops may round the end of an array unlike its middle."""
    return np.array([function(value) for value in values.ravel().tolist()], dtype=np.float64).reshape(values.shape)


def weighted_sum(weights: Floats, vectors: npt.NDArray[np.floating]) -> Floats:
    """[B, d] the sum of the first hits' vectors [B, K or more, d] times their weights [B, K], from the best hit on."""
    total = np.zeros((vectors.shape[0], vectors.shape[2]))
    for rank in range(weights.shape[1]):
        total += weights[:, rank, None] * vectors[:, rank].astype(np.float64)
    return total


def row_sum(values: Floats) -> Floats:
    """[B] the sum of each row [B, K], added from left to right."""
    total = np.zeros(len(values))
    for column in range(values.shape[1]):
        total += values[:, column]
    return total


def weighted_mean(weights: Floats, vectors: npt.NDArray[np.floating]) -> tuple[Floats, Flags]:
    """([B, d] `weighted_sum` divided by the sum of the weights, [B] whether that sum is above 0)."""
    total = row_sum(weights)
    some = total > 0.0
    return weighted_sum(weights, vectors) / np.where(some, total, 1.0)[:, None], some


def lengths(vectors: Floats) -> Floats:
    """[B] the Euclidean length of each row [B, d]."""
    rows = np.ascontiguousarray(vectors)
    return np.asarray(np.sqrt((rows * rows).sum(axis=1)))


def normalize_moved(queries: Floats, sums: Floats, where: Flags) -> Floats:
    """[B, d] `sums` at length 1. The query keeps its vector where `where` is false or the sum has no direction."""
    long = lengths(sums)
    keep = where & (long > SHORTEST)
    return np.where(keep[:, None], sums / np.where(keep, long, 1.0)[:, None], queries)


def interpolate(queries: Floats, anchors: Floats, alpha: float, where: Flags) -> Floats:
    """[B, d] ``norm((1 - alpha) q + alpha anchor)``; a query keeps its vector as in `normalize_moved`."""
    return normalize_moved(queries, (1.0 - alpha) * queries + alpha * anchors, where)


def sentences_of(name: str, pool: Pool, n: int) -> Floats:
    """[B, n, d] vectors as of `Pool.first_sentences`, with n at most the width of the pool. Raises `ParameterError`."""
    if pool.first_sentences is None:
        raise ParameterError(f"feedback {name!r} encodes sentences of hits; this pool has no encoder and texts for it")
    n = min(n, pool.vectors.shape[1])
    return pool.first_sentences(n) if n else np.zeros((len(pool.counts), 0, pool.vectors.shape[2]))


def round_moved(queries: Floats, found: Floats) -> Floats:
    """[B, d] the moved vectors, rounded as the engine rounds queries. A query that was not moved keeps its bits.

    Normalising a vector that is rounded already may change its last bit, and with it the scores of a query that was not
    moved.
    """
    same = (queries == found).all(axis=1)
    return np.where(same[:, None], queries, normalize(found).astype(np.float64))


def next_pool(name: str, pool: Pool, queries: Floats, found: Floats, fresh: bool, rescored: int) -> tuple[Floats, Pool]:
    """The queries and the pool of the next round: ([B, d] the moved queries, `round_moved`; their pool).

    With `fresh` the pool is that of a new search. Otherwise the first `rescored` hits are ordered anew by cosine alone,
    and hits with equal cosines keep their order. Vectors in half precision have exact cosines, so a rescored hit gets
    the score that a search would give it. Raises `ParameterError` for a fresh search from a pool that cannot search.
    """
    moved = round_moved(queries, found)
    if fresh:
        if pool.again is None:
            raise ParameterError(
                f"feedback {name!r} with fresh=True searches again; this pool cannot (use fresh=False)"
            )
        return moved, pool.again(moved)
    vectors, listed = pool.vectors[:, :rescored], pool.mask_listed(rescored)
    similarities = np.einsum("bpd,bd->bp", vectors.astype(np.float64), moved)
    order = np.argsort(np.where(listed, -similarities, np.inf), axis=1, kind="stable")
    similarities = np.take_along_axis(np.where(listed, similarities, -np.inf), order, axis=1)
    ordered = vectors[np.arange(len(order))[:, None], order]
    counts = np.minimum(pool.counts, rescored)
    return moved, Pool(pool.texts, similarities, similarities, ordered, counts, again=pool.again)
