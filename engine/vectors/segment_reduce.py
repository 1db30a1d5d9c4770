"""The cosines of a document's rows as one number, for all documents of a batch (SPEC D001, D020)."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from .interaction import Interaction

Real = TypeVar("Real", bound=np.floating[Any])


def segment_reduce(cosines: npt.NDArray[Real], offsets: Integers, interaction: Interaction) -> npt.NDArray[Real]:
    """[B, S] of cosines [B, rows]: segment s has the rows ``[offsets[s], offsets[s + 1])``, and -inf if it is empty.

    ``late`` and ``top`` are exact in float64 (``top`` adds from the largest on and divides once); ``lse`` and ``lme``
    are as near as `Interaction.rounding` says. A segment's number depends on its own cosines alone. ``early`` reduces
    vectors, not cosines, and raises `ValueError`.
    """
    if interaction.kind == "early":
        raise ValueError("early is no reduction of cosines; take the rows of Vectors.centroids")
    counts = np.diff(offsets)
    filled = np.flatnonzero(counts)
    reduced = np.full((len(cosines), len(counts)), -np.inf, dtype=cosines.dtype)
    if not len(filled) or not len(cosines):
        return reduced
    starts, counts = offsets[:-1][filled], counts[filled]
    if interaction.kind == "late":
        reduced[:, filled] = np.maximum.reduceat(cosines, starts, axis=1)
    elif interaction.kind == "top":
        reduced[:, filled] = _mean_of_largest(cosines, starts, counts, interaction.rows)
    else:
        shift = np.maximum.reduceat(cosines, starts, axis=1)
        powers = np.exp((cosines - np.repeat(shift, counts, axis=1)) * interaction.beta)
        sums = np.add.reduceat(powers, starts, axis=1)
        if interaction.kind == "lme":
            sums /= counts
        reduced[:, filled] = shift + np.log(sums) / interaction.beta
    return reduced


def _mean_of_largest(cosines: npt.NDArray[Real], starts: Integers, counts: Integers, largest: int) -> npt.NDArray[Real]:
    """The mean of each segment's `largest` largest cosines.

    Segments of about one width are sorted together. They are padded to a power of two, which at most doubles them.
    """
    means = np.empty((len(cosines), len(starts)), dtype=cosines.dtype)
    widths = np.int64(1) << np.ceil(np.log2(counts)).astype(np.int64)
    for width in np.unique(widths).tolist():
        members = np.flatnonzero(widths == width)
        column = np.arange(width)
        rows = starts[members, None] + np.minimum(column, counts[members, None] - 1)
        padded = cosines[:, rows]
        padded[:, column >= counts[members, None]] = -np.inf
        summed = np.minimum(counts[members], largest)
        if width > 4 * largest:
            padded = np.partition(padded, width - largest, axis=2)[:, :, width - largest :]
        padded.sort(axis=2)
        total = padded[:, :, -1].copy()
        for rank in range(1, int(summed.max())):
            total += np.where(rank < summed, padded[:, :, -1 - rank], 0.0)
        means[:, members] = total / summed
    return means
