"""Unit vectors in half precision, and why their products are exact.

A component of a stored vector is a multiple of 2**-24, as float16 has no finer step. A product of two is a multiple of
2**-48, and by Cauchy and Schwarz no partial sum over two vectors of length at most ``1 + 2**-8`` exceeds 1.01 in
absolute value, in any order. Such numbers fit float64's 53 bits. So a similarity summed in float64 is exact: BLAS, a
loop, FMA, any block size and any device give the same bits, and dense scores are held to tolerance zero like all
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..columns import offsets_of, ranges

Halves = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

MAX_DIMENSION = 1 << 16


@dataclass(frozen=True, eq=False)
class Vectors:
    """The vectors of the documents of a segment: none, one, or one for each passage (late interaction)."""

    matrix: Halves  # [rows, dimension] of length 1, but for rounding
    offsets: Integers  # [documents + 1] the rows of document i are [offsets[i], offsets[i + 1])

    def __len__(self) -> int:
        """Documents."""
        return len(self.offsets) - 1

    @property
    def dimension(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def single(self) -> bool:
        """Whether every document has exactly one row."""
        return len(self.matrix) == len(self) and bool((np.diff(self.offsets) == 1).all())

    @cached_property
    def held(self) -> npt.NDArray[np.bool_]:
        """[documents] whether it has a vector."""
        return np.diff(self.offsets) > 0

    @cached_property
    def centroids(self) -> Vectors:
        """One row for each document that has any: the mean of its rows, at length 1 (D001's mean); itself if single.

        Sums of float16 are exact in float64, so the order of the rows does not matter. A mean of zero is no direction;
        the document then keeps its first row.
        """
        if self.single:
            return self
        counts = np.diff(self.offsets)
        sums = np.zeros((len(self), self.dimension))
        if len(self.matrix):
            some = np.flatnonzero(counts)
            sums[some] = np.add.reduceat(self.matrix.astype(np.float64), self.offsets[:-1][some], axis=0)
        lengths = np.sqrt((sums * sums).sum(axis=1))
        lost = (lengths == 0.0) & (counts > 0)
        sums[lost] = self.matrix[self.offsets[:-1][lost]]
        lengths[lost] = 1.0
        held = np.flatnonzero(counts)
        means = np.where(counts[held, None] == 1, sums[held], sums[held] / lengths[held, None])
        return Vectors(means.astype(np.float16), offsets_of((counts > 0).astype(np.int64)))

    @cached_property
    def codes(self) -> tuple[npt.NDArray[np.int8], Floats]:
        """As `quantized`."""
        return quantized(self.matrix)

    @property
    def bytes(self) -> int:
        return self.matrix.nbytes + self.offsets.nbytes

    def take(self, documents: Integers) -> Vectors:
        """Those of these documents, in their order."""
        counts = np.diff(self.offsets)[documents]
        return Vectors(self.matrix[ranges(self.offsets[documents], counts)], offsets_of(counts))

    @classmethod
    def of(cls, rows: Sequence[Halves | None], dimension: int) -> Vectors:
        """One entry a document: its rows [n, dimension], or None."""
        held = [own for own in rows if own is not None]
        matrix = np.concatenate(held) if held else np.zeros((0, dimension), dtype=np.float16)
        return cls(matrix, offsets_of([0 if own is None else len(own) for own in rows]))

    @classmethod
    def concatenate(cls, parts: Sequence[Vectors]) -> Vectors:
        """The documents of all parts, one part after another."""
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(np.concatenate([part.matrix for part in parts]), offsets_of(counts))


def normalized(vectors: npt.ArrayLike) -> Halves:
    """These vectors [n, dimension] at length 1, in half precision (B005).

    Raises `ValueError`, for the caller to name what they are of: a shape other than that, no dimension, a value that is
    not finite, or a vector of length 0.
    """
    try:
        given = np.asarray(vectors)
        array = given.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError("must be numbers, all rows of one length") from None
    if array.ndim != 2 or np.iscomplexobj(given):
        raise ValueError(f"must be rows of numbers, not an array of shape {array.shape}")
    if not 1 <= array.shape[1] <= MAX_DIMENSION:
        raise ValueError(f"must have from 1 to {MAX_DIMENSION:,} dimensions, not {array.shape[1]}")
    if not np.isfinite(array).all():
        raise ValueError("holds a value that is not finite")
    # The largest component first, so that no square overflows or vanishes.
    largest = np.abs(array).max(axis=1, keepdims=True)
    if len(array) and not largest.all():
        raise ValueError("has length 0, which is no direction")
    scaled = array / largest
    halves = (scaled / np.sqrt((scaled * scaled).sum(axis=1, keepdims=True))).astype(np.float16)
    return np.ascontiguousarray(halves)


def quantized(vectors: Halves) -> tuple[npt.NDArray[np.int8], Floats]:
    """Each vector as int8 codes [n, dimension] in [-127, 127] and the value of one step [n], float64.

    A vector is about ``codes * step``, its step being its largest component / 127. Sums of products of codes are
    integers, below 2**31 up to 133,000 dimensions, and the same on every backend.
    """
    wide = vectors.astype(np.float64)
    steps = np.abs(wide).max(axis=1, initial=0.0) / 127.0
    codes = np.rint(np.divide(wide, steps[:, None], out=np.zeros_like(wide), where=steps[:, None] > 0.0))
    return codes.astype(np.int8), steps


def as_rows(value: Any) -> npt.NDArray[Any]:
    """One vector, or rows of them, as rows."""
    array = np.asarray(value)
    return array[None, :] if array.ndim == 1 else array
