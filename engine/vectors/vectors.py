"""Unit vectors in half precision, and why their products are exact.

A component of a stored vector is a multiple of 2**-24, as float16 has no finer step. A product of two components is a
multiple of 2**-48. By Cauchy and Schwarz no partial sum over two vectors of length at most ``1 + 2**-8`` exceeds 1.01
in absolute value, in any order. Such numbers fit float64's 53 bits. So a similarity summed in float64 is exact: BLAS, a
loop, FMA, any block size and any device give the same bits. Tests compare dense scores with tolerance zero, as they do
all other scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Integers, offsets_of, ranges
from ..locks import once

Halves = npt.NDArray[np.float16]

MAX_DIMENSION = 1 << 16

UNIT = 2.0**-10
"""How far from 1 the length of a vector of length 1 is at most, after its components are rounded to half precision."""

# Components of a row that are looked at first. Nearly every row that float16 does not hold exactly differs in them.
FIRST = 16

# Numbers that are widened at once. Widening and multiplying 100,000 rows of 384 dimensions took 13 to 17 ms in blocks
# of 1,024 to 4,096 rows, and 27 ms in blocks of 16,384 rows, which do not fit the second-level cache.
BLOCK_VALUES = 1 << 20


@dataclass(frozen=True, eq=False)
class Vectors:
    """The vectors of the documents of a segment: none, one, or one for each passage (late interaction)."""

    matrix: Halves  # [rows, dimension]; each row has length 1, but for rounding
    offsets: Integers  # [documents + 1] the rows of document i are [offsets[i], offsets[i + 1])

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.offsets) - 1

    @property
    def dimension(self) -> int:
        return int(self.matrix.shape[1])

    @once
    def single(self) -> bool:
        """Whether every document has exactly one row."""
        return len(self.matrix) == len(self) and bool((np.diff(self.offsets) == 1).all())

    @once
    def held(self) -> npt.NDArray[np.bool_]:
        """[documents] whether each document has a vector."""
        return np.diff(self.offsets) > 0

    # Sources: D001.
    @once
    def centroids(self) -> Vectors:
        """One row for each document that has any: the mean of its rows, scaled to length 1.

        If every document has exactly one row (`single`), this is the object itself. Sums of float16 are exact in
        float64, so the order of the rows does not matter. A mean of zero has no direction; the document then keeps its
        first row.
        """
        if self.single:
            return self
        counts = np.diff(self.offsets)
        documents = np.flatnonzero(counts)
        firsts, counts = self.offsets[:-1][documents], counts[documents]
        means = np.empty((len(documents), self.dimension), dtype=np.float16)
        for block in blocks_of(offsets_of(counts), max(1, BLOCK_VALUES // max(1, self.dimension))):
            rows = self.matrix[firsts[block.start] : firsts[block.stop - 1] + counts[block.stop - 1]]
            sums = np.add.reduceat(widen(rows).astype(np.float64), firsts[block] - firsts[block.start], axis=0)
            lengths = _row_lengths(sums)
            unchanged = (counts[block] == 1) | (lengths == 0.0)
            means[block] = sums / np.where(unchanged, 1.0, lengths)[:, None]
            means[block][unchanged] = self.matrix[firsts[block][unchanged]]
        return Vectors(means, offsets_of(self.held))

    @once
    def codes(self) -> tuple[npt.NDArray[np.int8], Floats]:
        """The codes and steps of all rows, as `quantized` returns them."""
        return quantized(self.matrix)

    @property
    def bytes(self) -> int:
        return self.matrix.nbytes + self.offsets.nbytes

    def take(self, documents: Integers) -> Vectors:
        """The vectors of these documents, in the order given."""
        counts = np.diff(self.offsets)[documents]
        return Vectors(self.matrix[ranges(self.offsets[documents], counts)], offsets_of(counts))

    @classmethod
    def of(cls, rows: Sequence[Halves | None], dimension: int) -> Vectors:
        """The vectors of documents from one entry for each: its rows [n, dimension], or None if it has no vector."""
        matrices = [matrix for matrix in rows if matrix is not None]
        joined = np.concatenate(matrices) if matrices else np.zeros((0, dimension), dtype=np.float16)
        return cls(joined, offsets_of([0 if matrix is None else len(matrix) for matrix in rows]))

    @classmethod
    def concatenate(cls, parts: Sequence[Vectors]) -> Vectors:
        """The documents of all parts, one part after another."""
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(np.concatenate([part.matrix for part in parts]), offsets_of(counts))


# Sources: B005.
def normalize(vectors: npt.ArrayLike) -> Halves:
    """These vectors [n, dimension] scaled to length 1, in half precision.

    Raises `ValueError` for values that are not numbers, another shape, fewer than 1 or more than `MAX_DIMENSION`
    dimensions, a value that is not finite, and a vector of length 0. The caller adds whose vectors they are.
    """
    try:
        array = np.asarray(vectors)
        if array.dtype.kind in "USb":
            raise TypeError
        array = array if np.iscomplexobj(array) else array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be numbers, all rows of one length") from None
    if array.ndim != 2 or np.iscomplexobj(array):
        raise ValueError(f"must be rows of numbers, not an array of shape {array.shape}")
    if not 1 <= array.shape[1] <= MAX_DIMENSION:
        raise ValueError(f"must have from 1 to {MAX_DIMENSION:,} dimensions, not {array.shape[1]}")
    if not np.isfinite(array).all():
        raise ValueError("holds a value that is not finite")
    # Divided by the largest component first, so that no square overflows or becomes zero.
    largest = np.abs(array).max(axis=1, keepdims=True)
    if len(array) and not largest.all():
        raise ValueError("has length 0, which is no direction")
    scaled = array / largest
    return np.ascontiguousarray((scaled / _row_lengths(scaled)[:, None]).astype(np.float16))


def _row_lengths(rows: Floats) -> Floats:
    """The length of each row. Squares are added from the first component to the last, so that the length of a row does
    not depend on the other rows.
    """
    lengths: Floats = np.sqrt(np.cumsum(rows * rows, axis=1)[:, -1])
    return lengths


def unit_rows(value: Any) -> Halves:
    """These vectors [d] or [n, d] as unit vectors in half precision, float16 [n, d], read-only.

    A row stays as it is if float16 holds it exactly and its length is 1 but for rounding (`UNIT`). So a row that was
    normalised once keeps its bits, however often it is read and written again. Raises `ValueError` for what `normalize`
    refuses, and if there is no row; the caller adds whose vectors they are.
    """
    try:
        values = as_rows(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be numbers, all rows of one length") from None
    units = normalize(values)
    if not len(units):
        raise ValueError("has no row; leave it out where there is no vector")
    # The first components rule out nearly all rows that float16 does not hold exactly, at next to no cost.
    for number in np.flatnonzero(_is_exact(values[:, :FIRST])).tolist():
        row = values[number].astype(np.float64)
        if _is_exact(row) and abs(math.sqrt(row @ row) - 1.0) <= UNIT:
            units[number] = row
    units.flags.writeable = False
    return units


def _is_exact(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether float16 holds all values along the last axis."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore"):
        same: npt.NDArray[np.bool_] = (wide.astype(np.float16) == wide).all(axis=-1)
    return same


def quantized(vectors: Halves) -> tuple[npt.NDArray[np.int8], Floats]:
    """Each vector as int8 codes [n, dimension] in [-127, 127], and the value of one step for each vector, float64 [n].

    A vector is about ``codes * step``. The step is the vector's largest absolute component / 127. Sums of products of
    codes are integers, the same on every backend, and stay below 2**31 up to 133,000 dimensions.
    """
    codes, steps = np.empty(vectors.shape, dtype=np.int8), np.empty(len(vectors))
    size = max(1, BLOCK_VALUES // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), size):
        block = slice(start, start + size)
        wide = widen(vectors[block]).astype(np.float64)
        steps[block] = np.abs(wide).max(axis=1, initial=0.0) / 127.0
        codes[block] = np.rint(wide / np.where(steps[block] > 0.0, steps[block], 1.0)[:, None])
    return codes, steps


def widen(halves: Halves, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """These float16 numbers, all below 2 in absolute value, as float32, which holds them exactly; into `out` if given.

    numpy converts one number at a time, in 2.1 ns. This takes .4 ns: it shifts exponent and mantissa to their places in
    float32 and multiplies by 2**112, the difference of the two exponent biases. Before that product, components below
    2**-14 are subnormal. Where a thread flushes subnormal numbers to zero, numpy converts instead.
    """
    out = np.empty(halves.shape, dtype=np.float32) if out is None else out
    if _flushes_subnormals():
        np.copyto(out, halves)
        return out
    bits = out.view(np.int32)
    np.copyto(bits, halves.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    # Clears the copies of the sign that widening to int32 put into the exponent.
    np.bitwise_and(bits, _NO_SIGN_COPIES, out=bits)
    np.multiply(out, _EXPONENTS, out=out)
    return out


_NO_SIGN_COPIES = np.int32(~0x70000000)
_EXPONENTS = np.float32(2.0**112)
_SUBNORMAL = np.array([1 << 13], dtype=np.int32).view(np.float32)


def _flushes_subnormals() -> bool:
    """Whether this thread treats subnormal numbers as zero. Libraries built for speed can switch a thread to that."""
    return float((_SUBNORMAL * _EXPONENTS)[0]) != 2.0**-24


def blocks_of(offsets: Integers, rows: int) -> Iterator[slice]:
    """Slices of neighbouring groups with at most `rows` rows together; a group with more rows is a slice of its own."""
    start, groups = 0, len(offsets) - 1
    while start < groups:
        stop = int(np.searchsorted(offsets, offsets[start] + rows, side="right")) - 1
        stop = min(max(stop, start + 1), groups)
        yield slice(start, stop)
        start = stop


def as_rows(value: Any) -> npt.NDArray[Any]:
    """One vector [d] as one row [1, d]; any other array as it is."""
    array = np.asarray(value)
    return array[None, :] if array.ndim == 1 else array
