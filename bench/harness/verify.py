"""Compares a system's top k with the reference before it is timed. The result goes into its rows."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .corpora import Tokens
from .reference import ReferencePostings, scores
from .systems import Peer


@dataclass(frozen=True)
class Verdict:
    """`overlap`: the share of the reference's hits that were found, where a document that ties with the last hit
    (within the tolerance) counts as found. `error`: the largest relative difference of a returned score to the
    reference's score of that document."""

    overlap: float
    error: float
    queries: int

    def passed(self, tolerance: float) -> bool:
        return self.queries > 0 and self.overlap == 1.0 and self.error <= tolerance


def overlap(found: npt.NDArray[np.int64], truth: npt.NDArray[np.float64], k: int, tolerance: float) -> float:
    """The share of the best `k` of `truth` [N] that `found` holds.

    Counted are distinct, matched documents that score at least the k-th best.
    """
    count = min(k, int((truth > 0).sum()))
    if count == 0:
        return 1.0 if not len(found) else 0.0
    last = np.partition(truth, len(truth) - count)[len(truth) - count]
    good = np.unique(found)
    return float((truth[good] >= last * (1 - tolerance)).sum()) / count


def check(
    peer: Peer,
    corpus: Tokens,
    postings: ReferencePostings,
    queries: Iterable[int],
    k: int,
    documents: npt.NDArray[np.int64],
    found: npt.NDArray[np.float64],
) -> Verdict:
    """Compare `documents` [Q, k] (padding: -1) and scores `found` [Q, k] with the reference of the peer's formula.

    A padded or zero-scored hit is dropped first: some systems fill a short answer with unmatched documents.
    """
    shares, errors = [], [0.0]
    for row, query in enumerate(queries):
        terms = corpus.query_ids(query)
        truth = scores(postings, terms, peer.formula, peer.lengths)
        matched = (documents[row] >= 0) & (found[row] > 0)
        hits, values = documents[row][matched], found[row][matched] / peer.scale
        shares.append(overlap(hits, truth, k, peer.tolerance))
        if len(hits):
            expected = truth[hits]
            # For a score near zero (a clamped IDF) a relative error means nothing.
            floor = max(1e-3, peer.tolerance * float(expected.max()))
            errors.append(float((np.abs(values - expected) / np.maximum(expected, floor)).max()))
    return Verdict(float(np.mean(shares)), max(errors), len(shares))
