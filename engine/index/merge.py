"""Neighbouring segments that become one, and those that stay apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .segment import Segment, merge_segments

# From this many documents on, a segment also closes when the next record lies in another time window. With a smaller
# number a search of all windows would have to visit too many segments.
WINDOW_DOCUMENTS = 1 << 16


@dataclass(frozen=True, eq=False)
class Merge:
    """Neighbouring segments that are to become one, and their deleted documents at the time of that decision."""

    segments: tuple[Segment, ...]
    deleted: tuple[npt.NDArray[np.bool_] | None, ...]

    def run(self) -> Segment | None:
        """The merged segment, or None if no document is left."""
        merged = merge_segments(self.segments, self.deleted)
        return merged if merged.size else None


Tally = Callable[[Merge, Segment | None], None]
"""What counts a merge and its result."""


def count_nothing(_: Merge, __: Segment | None) -> None:
    """A `Tally` that counts nothing."""


def closes(older: tuple[float, float] | None, newer: tuple[float, float] | None, window: float, size: int) -> bool:
    """Whether two neighbours, given by their earliest and latest times, stay separate segments.

    They do if the older one has at least `WINDOW_DOCUMENTS` documents (it has `size`) and the newer one begins in
    another time window than the older one ends in.
    """
    if size < WINDOW_DOCUMENTS or older is None or newer is None:
        return False
    return math.floor(older[1] / window) != math.floor(newer[0] / window)
