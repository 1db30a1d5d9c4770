"""What fusion works on: the candidates of a batch as a ragged array, with what each channel says of them.

The candidates of query b are ``[offsets[b], offsets[b + 1])`` in every array, in order of document number. All sums
over a query's candidates run in that order over that stretch alone, so an answer depends on nothing but its query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers, ranges

# Candidates of a query, as a multiple of what is wanted, from which on the rest is cut off before it is sorted.
MANY = 4


# Sources: X30.
@dataclass(frozen=True, eq=False)
class Channel:
    """One kind of evidence.

    BM25 scores every candidate, 0 where it does not match or stands beyond the channel's depth; a dense channel
    scores the candidates that have a vector, those beyond its depth too. Only what a channel listed has a rank.
    """

    scores: Floats  # [candidates] 0 where not scored
    scored: Flags  # [candidates]
    listed: Flags  # [candidates] of those scored, which the channel returned
    offsets: Integers  # [B + 1] the candidates' own
    weights: Floats | None = None
    """[candidates] what a rank in the channel counts for, for reciprocal ranks; None: 1 everywhere (B052)."""
    tied: bool = False
    """Whether all that it lists share the first rank: a time window ranks nothing (B035)."""

    @classmethod
    def of(
        cls,
        scores: Floats,
        scored: Flags,
        listed: Flags,
        offsets: Integers,
        weights: Floats | None = None,
        *,
        tied: bool = False,
    ) -> Channel:
        """The channel of these scores, whatever stands where it did not score."""
        return cls(np.where(scored, scores, 0.0), scored, listed, offsets, weights, tied)

    @cached_property
    def ranks(self) -> Integers:
        """[candidates] from 1 by score, highest first, then by document, or all 1 where `tied`; 0 where not listed."""
        if self.tied:
            return self.listed.astype(np.int64)
        return ranks_of(self.scores, self.listed, self.offsets)

    def at(self, places: Integers, offsets: Integers) -> Channel:
        """What it says of the candidates at these places, which are `offsets` apart."""
        weights = None if self.weights is None else self.weights[places]
        return Channel(self.scores[places], self.scored[places], self.listed[places], offsets, weights, self.tied)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidates of B queries."""

    offsets: Integers  # [B + 1]
    documents: Integers  # [candidates] document numbers, ascending for each query
    channels: Mapping[str, Channel]  # by name, in the strategy's order
    now: Floats  # [B] the query's own time in seconds, NaN where it has none
    times: Floats  # [candidates] seconds, NaN where the record has none
    importance: Floats  # [candidates] in [0, 1], NaN where the record has none
    types: tuple[str | None, ...]  # [B] the query's type, where it is known

    def __len__(self) -> int:
        """Queries."""
        return len(self.offsets) - 1

    @cached_property
    def owners(self) -> Integers:
        """[candidates] the query of each."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def sums(self, values: npt.NDArray[np.float64 | np.bool_]) -> Floats:
        """[B] `values` [candidates] of each query added one after another in order, from 0; 0 where it has none.

        Not `np.add.reduceat`, which adds in pairs, in an order that numpy may change; this costs 4 ns a candidate.
        """
        return np.bincount(self.owners, weights=values, minlength=len(self)).astype(np.float64, copy=False)

    def extremes(self, values: Floats, among: Flags) -> tuple[Floats, Floats]:
        """([B], [B]) the least and the largest of `values` [candidates] `among` each query's; 0 and 0 of none."""
        low, high = np.full(len(self), np.inf), np.full(len(self), -np.inf)
        some = np.flatnonzero(np.diff(self.offsets))
        if len(some):
            starts = self.offsets[:-1][some]
            low[some] = np.minimum.reduceat(np.where(among, values, np.inf), starts)
            high[some] = np.maximum.reduceat(np.where(among, values, -np.inf), starts)
        none = low > high
        return np.where(none, 0.0, low), np.where(none, 0.0, high)


@dataclass(frozen=True, eq=False)
class Fused:
    """What a fusion makes of candidates: a score for each, and what each part of it adds.

    ``scores`` is the sum of the shares in their order, added one after another. `kept` are the candidates that may be
    hits.
    """

    scores: Floats  # [candidates]
    shares: Mapping[str, Floats]  # part -> [candidates]; parts are channels, and what a fusion adds of its own
    kept: Flags  # [candidates]

    @classmethod
    def of(cls, shares: Mapping[str, Floats], kept: Flags) -> Fused:
        scores = np.zeros(len(kept))
        for share in shares.values():
            scores = scores + share
        return cls(scores, shares, kept)


def ranks_of(scores: Floats, listed: Flags, offsets: Integers) -> Integers:
    """[candidates] ranks from 1 within each query: score descending, then document ascending; 0 where not listed.

    The scores listed are not NaN.
    """
    places = np.flatnonzero(listed)
    bounds = np.searchsorted(places, offsets)
    counts = np.diff(bounds)
    ranks = np.zeros(len(scores), dtype=np.int64)
    # Queries with about as many listed are sorted as the rows of one matrix, at most half of it padding: a quarter to a
    # half of what one lexsort over the batch takes (500 queries of 200 candidates, busy machine: 18 ms against 50).
    sizes = np.frexp(counts)[1]
    for size in np.unique(sizes[counts > 0]):
        rows = np.flatnonzero(sizes == size)
        held = np.arange(counts[rows].max()) < counts[rows, None]
        at = places[ranges(bounds[rows], counts[rows])]
        keys = np.full(held.shape, np.inf)
        keys[held] = -scores[at]
        order = np.argsort(keys, axis=1, kind="stable")  # equal keys stay in order of place, padding behind all
        own = np.empty(held.shape, dtype=np.int64)
        np.put_along_axis(own, order, np.arange(1, held.shape[1] + 1)[None, :], axis=1)
        ranks[at] = own[held]
    return ranks


def best(fused: Fused, candidates: Candidates, k: Integers, width: int) -> tuple[Floats, Integers, Integers]:
    """The k [B] best candidates of each query: (score [B, width], document [B, width], place among the candidates).

    By score, highest first, then by document number; padding is -inf, -1, -1.
    """
    scores = np.full((len(candidates), width), -np.inf)
    documents = np.full((len(candidates), width), -1, dtype=np.int64)
    places = np.full((len(candidates), width), -1, dtype=np.int64)
    ranks = ranks_of(fused.scores, _mask_promising(fused, candidates, width), candidates.offsets)
    chosen = np.flatnonzero((ranks > 0) & (ranks <= np.minimum(k, width)[candidates.owners]))
    at = candidates.owners[chosen], ranks[chosen] - 1
    scores[at], documents[at], places[at] = fused.scores[chosen], candidates.documents[chosen], chosen
    return scores, documents, places


def _mask_promising(fused: Fused, candidates: Candidates, width: int) -> Flags:
    """Those kept that may be among the `width` best of their query: a partition costs a tenth of a sort."""
    counts = np.diff(candidates.offsets)
    longest = int(counts.max(initial=0))
    # A matrix of queries of about equal length; others are sorted whole.
    if width < 1 or longest <= MANY * width or longest * len(counts) > 2 * len(fused.scores):
        return fused.kept
    held = np.arange(longest) < counts[:, None]
    keys = np.full(held.shape, np.inf)
    keys[held] = np.where(fused.kept, -fused.scores, np.inf)
    thresholds = np.partition(keys, width - 1, axis=1)[:, width - 1]
    return fused.kept & (-fused.scores <= thresholds[candidates.owners])
