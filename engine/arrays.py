"""Ragged arrays: rows of different lengths, one after another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`lengths[0]` numbers counted up from ``starts[0]``, then `lengths[1]` from ``starts[1]``, and so on."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def offsets_of(lengths: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Where groups of these lengths begin, one after another, and where the last one ends: int64 [groups + 1]."""
    counts = np.asarray(lengths)
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
