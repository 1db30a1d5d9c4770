"""The contributions of postings to scores, derived for one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import ranges
from ..locks import make_short_lock, once
from .bm25 import BM25, FloatArray, Statistics
from .segment import Segment

# Postings derived at a time: about 200 MB of float64 temporaries.
DERIVE_CHUNK = 1 << 22


class Contributions:
    """The contributions of one segment's postings in one epoch."""

    def __init__(self, segment: Segment, bm25: BM25, statistics: Statistics) -> None:
        self._segment = segment
        self._bm25 = bm25
        self._dtype: npt.DTypeLike = np.int64 if bm25.needs_int64(statistics) else np.int32
        self._statistics = statistics
        self.lock = make_short_lock()

    @property
    def bytes(self) -> int:
        """Bytes of what was derived so far."""
        arrays = [value for value in vars(self).values() if isinstance(value, np.ndarray)]
        return sum(array.nbytes for array in arrays)

    @once
    def saturated(self) -> FloatArray:
        """[impact_classes] the contribution of a posting of each impact class, without the idf (`BM25.saturated`)."""
        return saturations([self._segment], self._bm25, self._statistics)[0]

    @once
    def quanta(self) -> npt.NDArray[np.signedinteger[Any]]:
        """[postings] contributions in quanta; valid in the lists that are derived."""
        return np.empty(self._segment.postings, dtype=self._dtype)

    @once
    def maxima(self) -> npt.NDArray[np.int64]:
        """[terms] the largest absolute contribution in each posting list; 0 if the list is not derived yet."""
        return np.zeros(len(self._segment.terms), dtype=np.int64)

    @once
    def dense(self) -> npt.NDArray[np.signedinteger[Any]]:
        """[`Segment.dense_rows`, documents] the contribution to each document, 0 if it is not in the list.

        A row is valid once its list is derived.
        """
        return np.empty((self._segment.dense_rows, self._segment.size), dtype=self._dtype)

    def derive(self, positions: npt.NDArray[np.int64], idf: FloatArray) -> None:
        """Derive the lists at these positions of the segment's terms; `idf` [positions] is that of each term."""
        with self.lock:
            new = self.maxima[positions] == 0
            positions, idf = positions[new], idf[new]
            if not len(positions):
                return
            starts = self._segment.offsets[positions]
            lengths = self._segment.offsets[positions + 1] - starts
            chunk = np.cumsum(lengths) // DERIVE_CHUNK
            for lists in np.split(np.arange(len(positions)), np.flatnonzero(np.diff(chunk)) + 1):
                self._derive(positions[lists], starts[lists], lengths[lists], idf[lists])

    def derived(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the list at each of these positions of the segment's terms is derived."""
        with self.lock:
            return np.asarray(self.maxima[positions] > 0)

    def at(self, where: npt.NDArray[np.int64], idf: FloatArray) -> npt.NDArray[np.int64]:
        """The contributions of the postings with the numbers `where`; `idf` is that of each one's term, same shape."""
        return self._bm25.quanta(self.saturated[self._segment.impact_classes[where]], idf)

    def _derive(
        self,
        positions: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        idf: FloatArray,
    ) -> None:
        where = ranges(starts, lengths)
        quanta = self.at(where, np.repeat(idf, lengths))
        self.quanta[where] = quanta
        rows = self._segment.dense_row[positions]
        for position, number in zip(positions[rows >= 0].tolist(), rows[rows >= 0].tolist(), strict=True):
            start, end = self._segment.offsets[position : position + 2].tolist()
            row = self.dense[number]
            row[:] = 0
            row[self._segment.documents[start:end]] = self.quanta[start:end]
        # At least 1, because 0 means "not derived", and all contributions of a signed list can be 0.
        largest = np.maximum.reduceat(np.abs(quanta), np.cumsum(lengths) - lengths)
        self.maxima[positions] = np.maximum(largest, 1)


def saturations(segments: Sequence[Segment], bm25: BM25, statistics: Statistics) -> list[FloatArray]:
    """`Contributions.saturated` of each segment, worked out at once, as there may be a segment for each tenant."""
    if not segments:
        return []
    frequencies = np.concatenate([segment.class_frequencies for segment in segments], axis=1)
    lengths = np.concatenate([segment.class_lengths for segment in segments], axis=1)
    saturated = bm25.saturated(frequencies, bm25.norms(lengths, statistics))
    ends = accumulate((segment.class_lengths.shape[1] for segment in segments), initial=0)
    return [saturated[start:stop] for start, stop in pairwise(ends)]
