"""Upper bounds of the contributions in posting lists, by which pruning works (A017).

The bounds of a list depend on its segment, which never changes, and on the average length and the number of documents,
which every write changes a little. So the bounds of a list are computed once, with the statistics of that moment (the
reference). With other statistics every contribution differs from the reference by a factor between two numbers, and
these two numbers follow from the impact classes alone. The bounds leave the idf out.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from .bm25 import FloatArray

# For each list the contributions of the postings of these ranks are kept: the largest, the 10th, the 100th and the
# 1,000th. That many documents reach the contribution of that rank. So a query for at most that many hits can ignore
# smaller scores.
RANKS = 1, 10, 100, 1000
# Bounds that differ from the current statistics by more than this factor are computed anew.
DRIFT = 1.02
# A margin, relative to a bound, that is larger than the rounding of float32 and of the products.
MARGIN = 1e-6


class UpperBounds:
    """Upper bounds of one segment's lists.

    `values` [terms, ranks] are the saturated frequencies (`BM25.saturated`) of the posting of each rank of `RANKS` in
    each list, by the reference. They are 0 if the bounds of a list were not computed, and for ranks beyond its length.
    """

    def __init__(self, terms: int, reference: FloatArray) -> None:
        self.reference = reference
        """[impact_classes] the contribution of a posting of each impact class, without the idf."""
        self.values = np.zeros((terms, len(RANKS)), dtype=np.float32)
        self.ranks = np.array(RANKS, dtype=np.int64)

    @cached_property
    def best_classes(self) -> npt.NDArray[np.int64]:
        """[impact_classes] the numbers of the impact classes, largest contribution first."""
        return np.argsort(-self.reference, kind="stable")

    def factors(self, saturated: FloatArray) -> tuple[float, float]:
        """(least, largest) factor between the contribution of an impact class now and by the reference, with `MARGIN`.

        `saturated` [impact_classes] are the contributions now.
        """
        positive = self.reference > 0
        if saturated[~positive].any():
            return 0.0, np.inf
        ratio = saturated[positive] / self.reference[positive]
        return float(ratio.min(initial=1.0)) * (1.0 - MARGIN), float(ratio.max(initial=1.0)) * (1.0 + MARGIN)
