"""The k best of every row of a score matrix, exact, in one order: score descending, then smaller document."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Integers
from ..engine.plan.verbs import Output

Scores = npt.NDArray[np.signedinteger[Any]]

NO_KEY = np.iinfo(np.int64).min
"""Key of an empty place; below every real key."""

_LOW = (1 << 32) - 1

# Rows of at least CONTIGUOUS_GROUP times the number of groups are grouped by neighbours, shorter ones by stride: at
# 463,284 documents neighbours take 70 us against 120, at 50,000 the maxima of strided groups take 5 us against 23.
CONTIGUOUS_GROUP = 512
GROUPS_PER_K = 4
MIN_GROUPS = 256
# If more than one group in this many holds a candidate, the whole row is compared instead.
READ_AGAIN = 4


def select_candidates(scores: Scores, k: int, thresholds: Integers) -> tuple[Integers, Integers, Integers]:
    """(row, column, score), row-major, of all that can be among their row's k best and reach its threshold.

    `scores` is [rows, width] with k from 1 to width, `thresholds` [rows]. At least k different documents reach the k-th
    largest of any set of group maxima, so nothing below it can be selected.
    """
    rows, width = scores.shape
    groups = max(GROUPS_PER_K * k, MIN_GROUPS)
    thresholds = thresholds.astype(scores.dtype)
    contiguous = width >= groups * CONTIGUOUS_GROUP
    if contiguous:
        groups = width // CONTIGUOUS_GROUP
    members = width // groups
    if members < 2:
        thresholds = np.maximum(thresholds, _kth_largest(scores, k))
        row, column = nonzero(scores >= thresholds[:, None])
        return row, column, scores[row, column].astype(np.int64)
    whole = groups * members
    if contiguous:
        blocks = scores[:, :whole].reshape(rows, groups, members)
    else:
        # Groups of strided columns: their maximum runs along whole vectors.
        blocks = scores[:, :whole].reshape(rows, members, groups).transpose(0, 2, 1)
    maxima = blocks.max(axis=2)
    thresholds = np.maximum(thresholds, _kth_largest(maxima, k))
    row, group = nonzero(maxima >= thresholds[:, None])
    if len(row) * READ_AGAIN > maxima.size:
        row, column = nonzero(scores >= thresholds[:, None])
        return row, column, scores[row, column].astype(np.int64)
    # Only the groups that hold a candidate are read again, and the columns beyond the last group.
    which, member = nonzero(blocks[row, group] >= thresholds[row][:, None])
    column = group[which] * members + member if contiguous else member * groups + group[which]
    row = row[which]
    if whole < width:
        tail_row, tail_column = nonzero(scores[:, whole:] >= thresholds[:, None])
        if len(tail_row):
            row, column = np.concatenate([row, tail_row]), np.concatenate([column, tail_column + whole])
            order = np.argsort(row, kind="stable")
            row, column = row[order], column[order]
    return row, column, scores[row, column].astype(np.int64)


def _kth_largest(values: Scores, k: int) -> Scores:
    place = values.shape[1] - k
    kth: Scores = np.partition(values, place, axis=1)[:, place]
    return kth


def nonzero(mask: npt.NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """`np.nonzero` of a matrix; numpy's own is several times slower on two dimensions than on one."""
    flat = np.flatnonzero(mask)
    if len(mask) == 1:
        return np.zeros_like(flat), flat
    row = flat // max(mask.shape[1], 1)
    return row, flat - row * mask.shape[1]


def best_narrow(row: Integers, document: Integers, score: Integers, rows: int, k: int) -> Integers:
    """The k best candidates of each row as keys int64 [rows, k], best first, padded with `NO_KEY`.

    Candidates are row-major; scores lie in int32, documents in uint32. A key is ``score << 32 | ~document``, so that
    the order of keys is the order of the contract.
    """
    counts = np.bincount(row, minlength=rows)
    width = max(int(counts.max(initial=0)), k)
    keys = np.full((rows, width), NO_KEY, dtype=np.int64)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    keys[row, place] = pack(score, document)
    return best_keys(keys, k)


def best_keys(keys: Integers, k: int) -> Integers:
    """The k largest keys of each row [rows, k], largest first."""
    place = keys.shape[1] - k
    # Sorting a few hundred keys is cheaper than partitioning them first.
    if keys.shape[1] > max(4 * k, 512):
        keys = np.partition(keys, place, axis=1)[:, place:]
    keys = np.sort(keys, axis=1)
    return keys[:, ::-1][:, :k]


def pack(score: Integers, document: Integers) -> Integers:
    return (score << 32) + (_LOW - document)


def unpack(keys: Integers) -> tuple[Integers, Integers]:
    """(scores, documents) of keys."""
    return keys >> 32, _LOW - (keys & _LOW)


def best_wide(row: Integers, document: Integers, score: Integers, rows: int, k: int) -> tuple[Integers, Integers]:
    """The k best candidates of each row, best first, for scores that leave int32: (documents [rows, k], scores).

    Candidates come in any order. The documents of empty places are -1, their scores `NO_KEY`.
    """
    documents = np.full((rows, k), -1, dtype=np.int64)
    scores = np.full((rows, k), NO_KEY, dtype=np.int64)
    # ~score falls as the score rises, and has no overflow.
    order = np.lexsort((document, ~score, row))
    row = row[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    kept = place < k
    row, place, order = row[kept], place[kept], order[kept]
    documents[row, place], scores[row, place] = document[order], score[order]
    return documents, scores


def store_wide(documents: Integers, scores: Integers, rows: Integers, wanted: Integers, out: Output) -> None:
    """Write what `best_wide` gave to these rows of the answer, ``wanted[r]`` hits at most."""
    width = documents.shape[1]
    present = (documents >= 0) & (np.arange(width) < wanted[:, None])
    out[0][rows, :width] = np.where(present, scores, 0)
    out[1][rows, :width] = np.where(present, documents, -1)
    out[2][rows] = present.sum(axis=1)
