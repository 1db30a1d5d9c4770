"""What a posting list contributes at most, and at least how often how much: the bounds that pruning goes by (A017).

A bound is a fact about a segment, which never changes, and about the average length and the number of documents, which
every write changes a little. So a list is surveyed once, in the segment's life, by the statistics of that moment (the
reference); under others all of it is off by a factor between two numbers, which one look at the impact classes of
postings gives. The idf is not part of it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from .bm25 import FloatArray

# Besides its largest contribution, that of a list's 10th, 100th and 1,000th best posting: as many documents reach it,
# so that no query for so few hits needs to look at a smaller score.
RANKS = 1, 10, 100, 1000
# Bounds further off than this are made anew.
DRIFT = 1.02
# More than float32 and the products round away.
MARGIN = 1e-6


class UpperBounds:
    """Of one segment's lists, by position in its terms: saturated frequencies (`BM25.saturated`) of the best posting of
    each rank of `RANKS`, by the reference. Zeros where a list was not surveyed, or is shorter.
    """

    def __init__(self, terms: int, reference: FloatArray) -> None:
        self.reference = reference
        """[impact_classes] what a posting of each impact class contributes, but for the idf."""
        self.values = np.zeros((terms, len(RANKS)), dtype=np.float32)
        self.ranks = np.array(RANKS, dtype=np.int64)

    @cached_property
    def best_classes(self) -> npt.NDArray[np.int64]:
        """[impact_classes] the impact classes, those that contribute most first."""
        return np.argsort(-self.reference, kind="stable")

    def factors(self, saturated: FloatArray) -> tuple[float, float]:
        """(least, largest) factor between what each impact class contributes now and by the reference, with the
        margin."""
        held = self.reference > 0
        if saturated[~held].any():
            return 0.0, np.inf
        ratio = saturated[held] / self.reference[held]
        return float(ratio.min(initial=1.0)) * (1.0 - MARGIN), float(ratio.max(initial=1.0)) * (1.0 + MARGIN)
