"""Array types that the whole package shares, and helpers for ragged arrays.

A ragged array holds rows of different lengths, one after another in one flat array.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
"""64-bit integers: numbers, positions, counts or offsets."""

Floats = npt.NDArray[np.float64]
"""64-bit floating-point numbers: scores, weights or times."""

Flags = npt.NDArray[np.bool_]
"""One boolean for each element."""


def ranges(starts: Integers, lengths: Integers) -> Integers:
    """Concatenates ranges: ``lengths[0]`` numbers counted up from ``starts[0]``, then ``lengths[1]`` from ``starts[1]``..."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def offsets_of(lengths: npt.ArrayLike) -> Integers:
    """Start of each group of these lengths, laid out one after another, then the end of the last: int64 [groups + 1]."""
    counts = np.asarray(lengths)
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
