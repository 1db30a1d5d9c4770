"""The k best of every row of a score matrix, exact, in one order: score descending, then smaller document."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.signedinteger[Any]]
Integers = npt.NDArray[np.int64]

NO_KEY = np.iinfo(np.int64).min
"""Key of an empty place; below every real key."""

_LOW = (1 << 32) - 1

# Contiguous groups pay once a row is longer than the second-level cache's share: finding candidates then reads only
# the groups that hold one. At 463,284 documents, k 10: 70 us against 120 us a query.
CONTIGUOUS_GROUP = 512
GROUPS_PER_K = 4
MIN_GROUPS = 256


def candidates(scores: Scores, k: int, floors: Integers) -> tuple[Integers, Integers, Integers]:
    """(row, column, score), row-major, of all that can be among their row's k best and reach its floor.

    `scores` is [rows, width] with k from 1 to width, `floors` [rows]. The k-th largest of any set of group maxima is
    reached by k different documents, so nothing below it can be selected.
    """
    rows, width = scores.shape
    groups = max(GROUPS_PER_K * k, MIN_GROUPS)
    floors = floors.astype(scores.dtype)
    if width >= groups * CONTIGUOUS_GROUP:
        whole = width - width % CONTIGUOUS_GROUP
        blocks = scores[:, :whole].reshape(rows, -1, CONTIGUOUS_GROUP)
        maxima = blocks.max(axis=2)
        floors = np.maximum(floors, _kth_largest(maxima, k))
        row, block = _where(maxima >= floors[:, None])
        if len(row) * 4 < maxima.size:
            which, place = _where(blocks[row, block] >= floors[row][:, None])
            tail_row, tail_column = _where(scores[:, whole:] >= floors[:, None])
            row = np.concatenate([row[which], tail_row])
            column = np.concatenate([block[which] * CONTIGUOUS_GROUP + place, tail_column + whole])
            if len(tail_row) and rows > 1:
                order = np.argsort(row, kind="stable")
                row, column = row[order], column[order]
            return row, column, scores[row, column].astype(np.int64)
    elif width >= 2 * groups:
        # Groups of strided columns: the maximum runs along whole vectors.
        whole = width - width % groups
        maxima = scores[:, :whole].reshape(rows, -1, groups).max(axis=1)
        floors = np.maximum(floors, _kth_largest(maxima, k))
    else:
        floors = np.maximum(floors, _kth_largest(scores, k))
    row, column = _where(scores >= floors[:, None])
    return row, column, scores[row, column].astype(np.int64)


def _kth_largest(values: Scores, k: int) -> Scores:
    place = values.shape[1] - k
    kth: Scores = np.partition(values, place, axis=1)[:, place]
    return kth


def _where(mask: npt.NDArray[np.bool_]) -> tuple[Integers, Integers]:
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


def best_wide(document: Integers, score: Integers, k: int) -> tuple[Integers, Integers]:
    """(documents, scores) of one row's k best candidates, best first, for scores that leave int32."""
    order = np.lexsort((document, -score))[:k]
    return document[order], score[order]
