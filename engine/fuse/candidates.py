"""The candidates of a batch as a ragged array, with each channel's scores. Fusion works on these.

The candidates of query b stand at ``[offsets[b], offsets[b + 1])`` in every array, in order of document number. A sum
over a query's candidates runs in that order and over that range alone, so an answer depends on its query alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers, offsets_of, ranges
from ..locks import once

# With more than this many times as many candidates as hits asked for, the worst are cut off before the sort.
MANY = 4


# Sources: X30.
@dataclass(frozen=True, eq=False)
class Channel:
    """One kind of evidence: the scores that one retriever gives the candidates.

    BM25 scores every candidate; the score is 0 where the candidate does not match or stands beyond the channel's depth.
    A dense channel scores the candidates that have a vector, also those beyond its depth. Only a candidate that the
    channel listed has a rank.
    """

    scores: Floats  # [candidates] 0 where not scored
    scored: Flags  # [candidates]
    listed: Flags  # [candidates] those scored that the channel returned
    offsets: Integers  # [B + 1] as of `Candidates`
    weights: Floats | None = None
    """[candidates] by which a reciprocal rank of this channel is multiplied; None: 1 everywhere (B052)."""
    latest: Floats | None = None
    """[candidates] the times of what it lists, else -inf, where all of it shares the first rank: a time window ranks
    nothing (B035). Of candidates with equal fused scores the later then comes first. None: ranks go by score."""
    tied: bool = False
    """Whether all that it lists shares the first rank, in no other order than the documents'."""

    @classmethod
    def of(
        cls,
        scores: Floats,
        scored: Flags,
        listed: Flags,
        offsets: Integers,
        weights: Floats | None = None,
        *,
        latest: Floats | None = None,
        tied: bool = False,
    ) -> Channel:
        """The channel of these scores. Scores of candidates that are not `scored` become 0."""
        return cls(np.where(scored, scores, 0.0), scored, listed, offsets, weights, latest, tied)

    @once
    def ranks(self) -> Integers:
        """[candidates] ranks from 1, by score descending, then by document ascending; 0 where not listed.

        With `latest`, or where `tied`, every rank is 1.
        """
        if self.tied or self.latest is not None:
            return self.listed.astype(np.int64)
        return ranks_of(self.scores, self.listed, self.offsets)

    def at(self, places: Integers, offsets: Integers) -> Channel:
        """The channel over the candidates at these places alone; `offsets` [B + 1] delimit each query's places."""
        weights, latest = (None if values is None else values[places] for values in (self.weights, self.latest))
        return Channel(
            self.scores[places], self.scored[places], self.listed[places], offsets, weights, latest, self.tied
        )


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
        """The number of queries."""
        return len(self.offsets) - 1

    def take(self, rows: Integers) -> tuple[Candidates, Integers]:
        """(the candidates of these queries alone, in this order, the places that they have here)."""
        counts = np.diff(self.offsets)[rows]
        places, offsets = ranges(self.offsets[rows], counts), offsets_of(counts)
        channels = {name: channel.at(places, offsets) for name, channel in self.channels.items()}
        times, importance = self.times[places], self.importance[places]
        types = tuple(self.types[row] for row in rows.tolist())
        return Candidates(offsets, self.documents[places], channels, self.now[rows], times, importance, types), places

    @once
    def owners(self) -> Integers:
        """[candidates] the number of each candidate's query."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @once
    def latest(self) -> Floats | None:
        """`Channel.latest` of the first channel that has it: which of equal fused scores comes first. None: no channel
        has it, and equal scores stay in order of document.
        """
        return next((channel.latest for channel in self.channels.values() if channel.latest is not None), None)

    def sums(self, values: npt.NDArray[np.float64 | np.bool_]) -> Floats:
        """[B] the sum of each query's `values` [candidates], added one after another in order; 0 without candidates.

        `np.add.reduceat` is not used: it adds in pairs, in an order that numpy may change. This costs 4 ns a candidate.
        """
        return np.bincount(self.owners, weights=values, minlength=len(self)).astype(np.float64, copy=False)

    def extremes(self, values: Floats, among: Flags) -> tuple[Floats, Floats]:
        """([B] smallest, [B] largest) of each query's `values` [candidates], over the candidates in `among` alone.

        Both are 0 for a query without such a candidate.
        """
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
    """The result of a fusion: a score for each candidate, and the shares that add up to it.

    ``scores`` is the sum of the shares, added one after another in their order. `kept` marks the candidates that may be
    hits.
    """

    scores: Floats  # [candidates]
    shares: Mapping[str, Floats]  # name -> [candidates]; of each channel, and of each bonus that the fusion adds
    kept: Flags  # [candidates]

    @classmethod
    def of(cls, shares: Mapping[str, Floats], kept: Flags) -> Fused:
        scores = np.zeros(len(kept))
        for share in shares.values():
            scores = scores + share
        return cls(scores, shares, kept)


def ranks_of(scores: Floats, listed: Flags, offsets: Integers, latest: Floats | None = None) -> Integers:
    """[candidates] ranks from 1 within each query: score descending, then document ascending; 0 where not listed.

    Of equal scores, those with the higher `latest` [candidates] come first. No listed score may be NaN.
    """
    places = np.flatnonzero(listed)
    bounds = np.searchsorted(places, offsets)
    counts = np.diff(bounds)
    ranks = np.zeros(len(scores), dtype=np.int64)
    # Queries that list about equally many are sorted as the rows of one matrix. At most half of it is padding. This
    # takes a quarter to a half of the time of one lexsort over the batch: 18 ms instead of 50 for 500 queries of 200
    # candidates on a busy machine.
    sizes = np.frexp(counts)[1]
    for size in np.unique(sizes[counts > 0]):
        rows = np.flatnonzero(sizes == size)
        filled = np.arange(counts[rows].max()) < counts[rows, None]
        at = places[ranges(bounds[rows], counts[rows])]
        keys = np.full(filled.shape, np.inf)
        keys[filled] = -scores[at]
        if latest is None:
            order = np.argsort(keys, axis=1, kind="stable")  # equal keys keep their order; padding comes last
        else:
            moments = np.full(filled.shape, -np.inf)
            moments[filled] = latest[at]
            order = np.lexsort((-moments, keys), axis=1)
        row_ranks = np.empty(filled.shape, dtype=np.int64)
        np.put_along_axis(row_ranks, order, np.arange(1, filled.shape[1] + 1)[None, :], axis=1)
        ranks[at] = row_ranks[filled]
    return ranks


def best(fused: Fused, candidates: Candidates, k: Integers, width: int) -> tuple[Floats, Integers, Integers]:
    """The best candidates of each query, `k` [B] of them: (scores, documents, places among the candidates).

    All three are [B, width], ordered by score descending, then by `Candidates.latest` descending, then by document
    number ascending. Padding is -inf, -1, -1.
    """
    scores = np.full((len(candidates), width), -np.inf)
    documents = np.full((len(candidates), width), -1, dtype=np.int64)
    places = np.full((len(candidates), width), -1, dtype=np.int64)
    ranks = ranks_of(fused.scores, _mask_promising(fused, candidates, width), candidates.offsets, candidates.latest)
    chosen = np.flatnonzero((ranks > 0) & (ranks <= np.minimum(k, width)[candidates.owners]))
    at = candidates.owners[chosen], ranks[chosen] - 1
    scores[at], documents[at], places[at] = fused.scores[chosen], candidates.documents[chosen], chosen
    return scores, documents, places


def rank_row(candidates: Candidates, fused: Fused, row: int) -> tuple[Floats, Integers]:
    """(scores, documents) of all candidates of one query that may be hits, in the order of `best`."""
    start, end = candidates.offsets[row : row + 2].tolist()
    kept = start + np.flatnonzero(fused.kept[start:end])
    # Both sorts leave equal scores in order of document.
    latest, keys = candidates.latest, -fused.scores[kept]
    ordered = kept[np.argsort(keys, kind="stable") if latest is None else np.lexsort((-latest[kept], keys))]
    return fused.scores[ordered], candidates.documents[ordered]


def _mask_promising(fused: Fused, candidates: Candidates, width: int) -> Flags:
    """The kept candidates that may be among the `width` best of their query. A partition costs a tenth of a sort."""
    counts = np.diff(candidates.offsets)
    longest = int(counts.max(initial=0))
    # The matrix pays only where queries have about equally many candidates; other batches are sorted whole.
    if width < 1 or longest <= MANY * width or longest * len(counts) > 2 * len(fused.scores):
        return fused.kept
    filled = np.arange(longest) < counts[:, None]
    keys = np.full(filled.shape, np.inf)
    keys[filled] = np.where(fused.kept, -fused.scores, np.inf)
    thresholds = np.partition(keys, width - 1, axis=1)[:, width - 1]
    return fused.kept & (-fused.scores <= thresholds[candidates.owners])
