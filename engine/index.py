"""The segments of one namespace with live statistics, and the contributions derived from them.

Nothing derived is the truth: statistics are sums over immutable segments, and contributions belong to the snapshot
(the epoch) whose statistics made them, so no answer can be stale (A011 cannot happen) and an index that grew equals
one built at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .bm25 import BM25, Statistics
from .columns import ranges
from .segment import Segment, merge_segments

# A segment of this many documents is sealed: large enough that per-segment overhead vanishes, small enough that
# merging one stays under a second.
MAX_SEGMENT_DOCUMENTS = 1 << 20
# A tile is 2**TILE_BITS neighbouring documents. On SGD (463,284 turns, k 10) tiles of 64, 256 and 1,024 documents
# leave 21, 47 and 68 % of the postings to score.
TILE_BITS = 6
# A list that holds at least one in DENSE_SHARE of a segment's documents, and at least DENSE_POSTINGS, is also kept as a
# row of contributions by document, which adds at vector speed; the longest lists first, up to DENSE_BYTES a segment.
DENSE_SHARE = 8
DENSE_POSTINGS = 256
DENSE_BYTES = 1 << 26
# Postings derived in one go: about 200 MB of float64 temporaries.
DERIVE_CHUNK = 1 << 22


@dataclass(frozen=True, eq=False)
class TileBounds:
    """The tiles that one posting list enters."""

    tiles: npt.NDArray[np.int32]  # [tiles] ascending
    starts: npt.NDArray[np.int64]  # [tiles + 1] into the segment's postings
    maxima: npt.NDArray[np.signedinteger[Any]]  # [tiles] largest absolute contribution there, in quanta


class Contributions:
    """The quanta of one segment's postings for one epoch, derived list by list when a query first touches them."""

    def __init__(self, segment: Segment, bm25: BM25, statistics: Statistics) -> None:
        self._segment = segment
        self._bm25 = bm25
        self._statistics = statistics
        self.quanta: npt.NDArray[np.signedinteger[Any]] = np.empty(
            segment.postings, dtype=np.int64 if bm25.needs_int64(statistics) else np.int32
        )
        self.maxima = np.zeros(len(segment.terms), dtype=np.int64)
        """Largest absolute contribution of each posting list; 0 where not derived yet."""
        self._tile_bounds: dict[int, TileBounds] = {}
        lengths = np.diff(segment.offsets)
        dense = np.flatnonzero(lengths >= max(segment.size // DENSE_SHARE, DENSE_POSTINGS))
        room = DENSE_BYTES // max(segment.size * self.quanta.itemsize, 1)
        if len(dense) > room:
            dense = dense[np.argsort(-lengths[dense], kind="stable")[:room]]
        self.dense_row = np.full(len(segment.terms), -1, dtype=np.int64)
        """Row in `dense` of each list's contributions, or -1."""
        self.dense_row[dense] = np.arange(len(dense))
        self.dense = np.empty((len(dense), segment.size), dtype=self.quanta.dtype)
        """Contributions by document, 0 where the list lacks it; a row is valid once its list is derived."""
        self._lock = threading.Lock()

    @cached_property
    def _norms(self) -> npt.NDArray[np.float64]:
        return self._bm25.norms(self._segment.lengths, self._statistics)

    def tile_bounds(self, position: int) -> TileBounds:
        """Where the (derived) list at this position enters each tile, and how much it can add there."""
        bounds = self._tile_bounds.get(position)
        if bounds is None:
            start, end = self._segment.offsets[position : position + 2].tolist()
            tiles = self._segment.documents[start:end] >> TILE_BITS
            first = np.flatnonzero(np.diff(tiles, prepend=-1))
            maxima = np.maximum.reduceat(np.abs(self.quanta[start:end]), first)
            bounds = TileBounds(tiles[first], np.append(first, end - start) + start, maxima)
            self._tile_bounds[position] = bounds
        return bounds

    def derive(self, positions: npt.NDArray[np.int64], idf: npt.NDArray[np.float64]) -> None:
        """Make the lists at these positions of the segment's terms ready; `idf` [positions] is each term's."""
        with self._lock:
            new = self.maxima[positions] == 0
            positions, idf = positions[new], idf[new]
            if not len(positions):
                return
            starts = self._segment.offsets[positions]
            lengths = self._segment.offsets[positions + 1] - starts
            chunk = np.cumsum(lengths) // DERIVE_CHUNK
            for part in np.split(np.arange(len(positions)), np.flatnonzero(np.diff(chunk)) + 1):
                self._derive(positions[part], starts[part], lengths[part], idf[part])

    def _derive(
        self,
        positions: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        idf: npt.NDArray[np.float64],
    ) -> None:
        where = ranges(starts, lengths)
        norms = self._norms[:, self._segment.documents[where]]
        quanta = self._bm25.quanta(self._segment.frequencies[:, where], norms, np.repeat(idf, lengths))
        self.quanta[where] = quanta
        for position in positions[self.dense_row[positions] >= 0].tolist():
            start, end = self._segment.offsets[position : position + 2].tolist()
            row = self.dense[self.dense_row[position]]
            row[:] = 0
            row[self._segment.documents[start:end]] = self.quanta[start:end]
        # At least 1, so that 0 keeps meaning "not derived" where all of a signed list is 0.
        largest = np.maximum.reduceat(np.abs(quanta), np.cumsum(lengths) - lengths)
        self.maxima[positions] = np.maximum(largest, 1)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An immutable state of a namespace: one epoch of statistics over its segments."""

    segments: tuple[Segment, ...]
    bm25: BM25

    @cached_property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @cached_property
    def statistics(self) -> Statistics:
        fields = len(self.bm25.fields)
        totals = [sum(int(s.lengths[f].sum(dtype=np.int64)) for s in self.segments) for f in range(fields)]
        frequencies = self._all_document_frequencies() if self.bm25.method == "okapi" else None
        return Statistics(self.size, tuple(totals), frequencies)

    def _all_document_frequencies(self) -> npt.NDArray[np.int64]:
        if not self.segments:
            return np.zeros(0, dtype=np.int64)
        _, inverse = np.unique(np.concatenate([segment.terms for segment in self.segments]), return_inverse=True)
        counts = np.concatenate([np.diff(segment.offsets) for segment in self.segments])
        return np.bincount(inverse.reshape(-1), weights=counts).astype(np.int64)

    @cached_property
    def term_idf(self) -> npt.NDArray[np.float64]:
        """The idf of every term of the namespace by vocabulary id, float64 [largest id + 1]; 0 where it has none."""
        df = np.zeros(max((int(s.terms[-1]) + 1 for s in self.segments if len(s.terms)), default=0), dtype=np.int64)
        for segment in self.segments:
            df[segment.terms] += np.diff(segment.offsets)
        held = df > 0
        idf = np.zeros(len(df))
        idf[held] = self.bm25.idf(df[held], self.statistics)
        return idf

    @cached_property
    def long(self) -> bool:
        """Whether contributions are kept in int64, as a single one could leave int32."""
        return self.bm25.needs_int64(self.statistics)

    @cached_property
    def highest_bound(self) -> float:
        """Quanta that no contribution exceeds in absolute value."""
        return float(self.bm25.bounds(self.term_idf).max(initial=0.0))

    @cached_property
    def contributions(self) -> tuple[Contributions, ...]:
        return tuple(Contributions(segment, self.bm25, self.statistics) for segment in self.segments)

    def document_frequencies(self, located: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        """The document frequency of each term, given its position in each segment (`Segment.locate`)."""
        total = np.zeros(len(located[0]) if located else 0, dtype=np.int64)
        for segment, positions in zip(self.segments, located, strict=True):
            present = positions >= 0
            found = positions[present]
            total[present] += segment.offsets[found + 1] - segment.offsets[found]
        return total

    def find(self, record_id: str) -> tuple[Segment, int] | None:
        """The segment that holds the record with this id, and its position there; or None."""
        for segment in self.segments:
            position = segment.ids.find(record_id)
            if position is not None:
                return segment, position
        return None

    def ids_of(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """The record ids (str) of these document numbers, same shape [n]."""
        ids = np.empty(len(documents), dtype=object)
        for segment in self.segments:
            own = (documents >= segment.first) & (documents < segment.first + segment.size)
            ids[own] = segment.ids.strings.take(documents[own] - segment.first)
        return ids

    def extended(self, new: Sequence[Segment], *, compact: bool = False) -> Snapshot:
        """The snapshot with these segments after its own, neighbours merged so that sizes at least halve.

        So there are O(log N) segments, and a document is copied O(log N) times in its life. `compact` merges all
        neighbours as far as `MAX_SEGMENT_DOCUMENTS` allows.
        """
        groups: list[list[Segment]] = []
        sizes: list[int] = []
        for segment in (*self.segments, *new):
            groups.append([segment])
            sizes.append(segment.size)
            while (
                len(sizes) > 1
                and (compact or sizes[-2] < 2 * sizes[-1])
                and sizes[-2] + sizes[-1] <= MAX_SEGMENT_DOCUMENTS
            ):
                groups[-2:] = [groups[-2] + groups[-1]]
                sizes[-2:] = [sizes[-2] + sizes[-1]]
        return Snapshot(tuple(group[0] if len(group) == 1 else merge_segments(group) for group in groups), self.bm25)
