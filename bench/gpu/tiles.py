"""The (tile, query) pairs of a batch, counted: postings, bounds, and the k-th best sum of every tile.

What a scored tile tells its query is its own k-th best sum, whatever the order in which tiles are scored. So the sums
are made once, and every order, number of blocks and threshold is a matter of these few numbers a pair (`schedule.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fanrank.engine.arrays import offsets_of, ranges

from .corpora import Problem

Integers = npt.NDArray[np.signedinteger[Any]]

ALIGNED_BITS = 15
"""Segments begin at multiples of the largest tile, so that every tile size cuts the same line of documents."""
KS = (10, 100, 1000)
"""The k of lists whose k-th best contribution a first threshold can be taken from (`engine/index/native.py`)."""
CHUNK = 1 << 24
"""Postings looked at together."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of one tile size, [queries, tiles]."""

    bits: int
    bounds: Integers  # the sum of the largest contributions
    best: Integers  # the largest of them: some document of the tile scores no less
    postings: Integers
    rounds: Integers  # steps in which the warps of a block take the postings, a run of each at a time
    slots: Integers  # [queries]
    tiles: int

    def first_thresholds(self, k: int) -> Integers:
        """[queries] the k-th largest `best`: k documents of different tiles score no less. 1 of fewer tiles."""
        if k > self.tiles:
            return np.ones(len(self.best), dtype=np.int64)
        return np.maximum(1, np.partition(self.best, self.tiles - k, axis=1)[:, self.tiles - k]).astype(np.int64)


class Lists:
    """The posting lists of a problem's queries, over the documents of all segments in one line."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.terms, slots = np.unique(problem.terms, return_inverse=True)
        self.slots: Integers = slots.reshape(-1)
        snapshot = problem.snapshot
        places, quanta, owners = [], [], []
        base = 0
        self.segment_bases: list[int] = []
        self.segment_sizes: list[int] = []
        for number, segment in enumerate(snapshot.segments):
            found = segment.locate(self.terms.astype(np.int32))
            held = np.flatnonzero(found >= 0)
            starts = segment.offsets[found[held]]
            lengths = segment.offsets[found[held] + 1] - starts
            ends = offsets_of(lengths)
            idf = snapshot.term_idf[self.terms[held]]
            for first, last in _chunks(ends):
                where = ranges(starts[first:last], lengths[first:last])
                own = np.repeat(idf[first:last], lengths[first:last])
                quanta.append(snapshot.contributions[number].at(where, own).astype(np.int32))
                places.append((segment.documents[where] + base).astype(np.int32))
                owners.append(np.repeat(held[first:last], lengths[first:last]).astype(np.int32))
            self.segment_bases.append(base)
            self.segment_sizes.append(segment.size)
            base += -(-segment.size >> ALIGNED_BITS) << ALIGNED_BITS
        self.size = base
        of_term = np.concatenate(owners)
        order = np.argsort(of_term, kind="stable")
        self.starts = offsets_of(np.bincount(of_term, minlength=len(self.terms)))
        self.places: npt.NDArray[np.int32] = np.concatenate(places)[order]
        self.quanta: npt.NDArray[np.int32] = np.concatenate(quanta)[order]

    @property
    def queries(self) -> int:
        return self.problem.queries

    def own(self, query: int) -> Integers:
        """The numbers of the query's lists."""
        return self.slots[self.problem.offsets[query] : self.problem.offsets[query + 1]]

    def exists(self, bits: int) -> npt.NDArray[np.bool_]:
        """[places >> bits] which tiles hold documents of a segment."""
        made = np.zeros(self.size >> bits, dtype=np.bool_)
        for base, size in zip(self.segment_bases, self.segment_sizes, strict=True):
            made[base >> bits : -(-(base + size) >> bits)] = True
        return made

    def cut(self, bits: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """(postings, largest contribution) of each list in each tile, [lists, tiles]."""
        tiles = self.size >> bits
        counts, maxima = (np.zeros(len(self.terms) * tiles, dtype=np.int32) for _ in range(2))
        for first, last in _chunks(self.starts):
            own = slice(self.starts[first], self.starts[last])
            lists = np.repeat(np.arange(first, last), np.diff(self.starts[first : last + 1]))
            keys = lists * tiles + (self.places[own] >> bits)
            borders = np.flatnonzero(np.diff(keys, prepend=-1))
            if len(borders):
                counts[keys[borders]] = np.diff(borders, append=len(keys))
                maxima[keys[borders]] = np.maximum.reduceat(self.quanta[own], borders)
        exists = self.exists(bits)
        return counts.reshape(-1, tiles)[:, exists], maxima.reshape(-1, tiles)[:, exists]

    def pairs(self, bits: int, cut: tuple[Integers, Integers], run: int, warps: int) -> Pairs:
        """The pairs of all queries. A warp takes `run` postings of one list at a time; a block has `warps`."""
        counts, maxima = cut
        runs = -(-counts // run)
        firsts = self.problem.offsets[:-1]

        def summed(of_list: Integers, how: np.ufunc = np.add) -> Integers:
            return np.asarray(how.reduceat(of_list[self.slots], firsts, axis=0, dtype=np.int32))

        slots = np.diff(self.problem.offsets)
        rounds = -(-summed(runs) // warps)
        return Pairs(bits, summed(maxima), summed(maxima, np.maximum), summed(counts), rounds, slots, counts.shape[1])

    def sums(self, query: int, dense: npt.NDArray[np.int32]) -> Integers:
        """Add the query's contributions to `dense` [size], which is all 0. Returns the places that were touched."""
        touched = []
        for number in self.own(query).tolist():
            own = slice(self.starts[number], self.starts[number + 1])
            dense[self.places[own]] += self.quanta[own]
            touched.append(self.places[own])
        return np.concatenate(touched) if touched else np.zeros(0, dtype=np.int32)

    def kth_scores(self, queries: Integers, k: int) -> Integers:
        """[all queries] the k-th best score of these queries; 1 of the others, and where fewer documents match."""
        found = np.ones(self.queries, dtype=np.int64)
        dense = np.zeros(self.size, dtype=np.int32)
        for query in queries.tolist():
            touched = self.sums(query, dense)
            values = dense[np.unique(touched)]
            dense[touched] = 0
            if len(values) >= k:
                found[query] = np.partition(values, len(values) - k)[len(values) - k]
        return found

    @cached_property
    def best_of_lists(self) -> tuple[Integers, Integers]:
        """(the k-th best contribution of each list in each segment, 0 where it has fewer, for each of `KS`; the list's
        postings there): [ks, lists, segments], [lists, segments]."""
        borders = [*self.segment_bases, self.size]
        best = np.zeros((len(KS), len(self.terms), len(borders) - 1), dtype=np.int32)
        lengths = np.zeros(best.shape[1:], dtype=np.int64)
        for number in range(len(self.terms)):
            own = slice(self.starts[number], self.starts[number + 1])
            cuts = np.searchsorted(self.places[own], borders)
            lengths[number] = np.diff(cuts)
            for segment, (first, last) in enumerate(pairwise(cuts.tolist())):
                part = np.sort(self.quanta[own][first:last])[::-1]
                for row, k in enumerate(KS):
                    if len(part) >= k:
                        best[row, number, segment] = part[k - 1]
        return best, lengths

    def first_thresholds(self, k: int, least: int = 0, bits: int = ALIGNED_BITS) -> Integers:
        """[queries] the best k-th contribution of a query's lists: a score that k documents reach.

        Only lists of at least `least` postings a tile of their segment are asked.
        """
        best, lengths = self.best_of_lists
        tiles = -(-np.array(self.segment_sizes) >> bits)
        usable = np.where(lengths >= least * tiles, best[KS.index(k)], 0).max(axis=1)
        return np.maximum(1, np.maximum.reduceat(usable[self.slots], self.problem.offsets[:-1]))


def kth_sums(lists: Lists, sizes: Collection[int], ks: Collection[int]) -> dict[tuple[int, int], Integers]:
    """For each (tile size, k): [queries, tiles] the tile's k-th best sum, 0 where fewer documents match."""
    sizes = sorted(sizes)
    exists = {bits: np.flatnonzero(lists.exists(bits)) for bits in sizes}
    found = {(bits, k): np.zeros((lists.queries, len(exists[bits])), dtype=np.int32) for bits in sizes for k in ks}
    dense = np.zeros(lists.size, dtype=np.int32)
    for query in range(lists.queries):
        touched = lists.sums(query, dense)
        best = dense
        for bits in sizes:
            # The best of a tile are among the best of the smaller tiles that it holds.
            ordered = np.sort(best.reshape(lists.size >> bits, -1), axis=1)
            best = ordered[:, -max(ks) :]
            for k in ks:
                if k <= ordered.shape[1]:
                    found[bits, k][query] = ordered[exists[bits], -k]
        dense[touched] = 0
    return found


def _chunks(ends: Integers) -> Iterator[tuple[int, int]]:
    """(first, last) groups of about `CHUNK` postings together; group g has the postings [ends[g], ends[g + 1])."""
    first = 0
    while first < len(ends) - 1:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + CHUNK, side="right")) - 1)
        yield first, last
        first = last
