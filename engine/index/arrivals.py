"""The numbers of the last writes of a snapshot's documents, where no store keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import Integers


@dataclass(frozen=True, eq=False)
class Arrivals:
    """By segment, the number of each document's last write. They ascend through the segments.

    Documents that were written together have a range, which takes no memory. Merges that leave documents out make
    arrays.
    """

    parts: tuple[range | Integers, ...] = ()

    def extended(self, sizes: Sequence[int], first: int) -> Arrivals:
        """With segments of these sizes behind the others; their documents are numbered from `first` on."""
        parts = list(self.parts)
        for size in sizes:
            parts.append(range(first, first + size))
            first += size
        return Arrivals(tuple(parts))

    def merged(self, start: int, deleted: Sequence[npt.NDArray[np.bool_] | None], kept: bool) -> Arrivals:
        """With one segment for those from `start` on, without the deleted documents; with none if not `kept`."""
        stop = start + len(deleted)
        middle = (_join(self.parts[start:stop], deleted),) if kept else ()
        return Arrivals((*self.parts[:start], *middle, *self.parts[stop:]))

    def of(self, segment: int, position: int) -> int:
        """The number of this document of a segment."""
        return int(self.parts[segment][position])


def _join(parts: Sequence[range | Integers], deleted: Sequence[npt.NDArray[np.bool_] | None]) -> range | Integers:
    if all(gone is None for gone in deleted) and all(isinstance(part, range) for part in parts):
        size = sum(map(len, parts))
        if parts[-1][-1] - parts[0][0] + 1 == size:
            return range(int(parts[0][0]), int(parts[0][0]) + size)
    arrays = [np.asarray(part, dtype=np.int64) for part in parts]
    return np.concatenate(
        [array if gone is None else array[~gone] for array, gone in zip(arrays, deleted, strict=True)]
    )
