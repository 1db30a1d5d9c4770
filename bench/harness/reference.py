"""Plain BM25 in float64. Every system's answers are checked against it before it is timed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .cases import K1, B
from .corpora import Tokens
from .systems import Formula, Lengths


@dataclass(frozen=True)
class ReferencePostings:
    """Term-major postings: term t owns ``documents[offsets[t]:offsets[t + 1]]``, ascending, with `frequencies`."""

    offsets: npt.NDArray[np.int64]  # [V + 1]
    documents: npt.NDArray[np.int32]  # [P]
    frequencies: npt.NDArray[np.int32]  # [P]
    lengths: npt.NDArray[np.int64]  # [N]


def postings_of(corpus: Tokens) -> ReferencePostings:
    """The postings of a prepared corpus."""
    lengths = np.diff(corpus.offsets)
    # In place, and with narrow dtypes: a hundred million tokens take 2 GB here instead of 6.
    keys = corpus.tokens.astype(np.int64)
    keys *= max(1, corpus.documents)
    keys += np.repeat(np.arange(corpus.documents, dtype=np.int32), lengths)
    keys.sort()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    frequencies = np.diff(starts, append=len(keys)).astype(np.int32)
    keys = keys[starts]
    offsets = np.searchsorted(keys, np.arange(len(corpus.vocabulary) + 1) * corpus.documents)
    return ReferencePostings(offsets, (keys % max(1, corpus.documents)).astype(np.int32), frequencies, lengths)


def byte4(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Lengths as Lucene and tantivy keep them in one byte: exact to 40, then the excess over 24 to four bits."""
    excess = np.maximum(lengths - 24, 0)
    shift = np.maximum(np.frexp(excess.astype(np.float64))[1].astype(np.int64) - 4, 0)
    return np.where(lengths < 24, lengths, 24 + ((excess >> shift) << shift))


def scores(
    postings: ReferencePostings, query: npt.NDArray[np.int32], formula: Formula = "lucene", lengths: Lengths = "exact"
) -> npt.NDArray[np.float64]:
    """The score of every document, shape [N], for the distinct terms of one query; 0 where nothing matches.

    ``lucene``: ln(1 + (N - df + .5) / (df + .5)) * tf / (tf + k1 (1 - b + b l / mean)). ``robertson_floor``: without
    the 1 inside the logarithm, and never below 1e-6. The mean length is of the exact lengths in both modes.
    """
    total = np.zeros(len(postings.lengths))
    document_lengths = postings.lengths if lengths == "exact" else byte4(postings.lengths)
    norm = K1 * (1 - B + B * document_lengths / postings.lengths.mean())
    for term in query:
        span = slice(postings.offsets[term], postings.offsets[term + 1])
        documents, tf = postings.documents[span], postings.frequencies[span]
        odds = (len(total) - len(documents) + 0.5) / (len(documents) + 0.5)
        idf = np.log1p(odds) if formula == "lucene" else max(1e-6, np.log(odds))
        total[documents] += idf * tf / (tf + norm[documents])
    return total
