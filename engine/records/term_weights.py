"""Learned term weights of many texts in three arrays, as a CSR matrix has them (SPEC A105, A106).

A dictionary of a text's weights takes some 65 bytes a posting, so the 32 million postings of a large corpus would take
2 GB. A `TermWeights` looks like a dictionary and is a row of arrays that all rows share: 8 bytes a posting where
weights are float32, 12 where they are float64.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..locks import once


class WeightRows:
    """The arrays of a matrix of weights: row r has the terms ``names[columns[i]]`` and the weights ``values[i]`` for i
    from ``starts[r]`` to ``starts[r + 1]``.

    `columns` ascend within a row, no two alike. `names` are different strings without lone surrogates, and `values` are
    finite and above 0; `weights_of` checks that. The arrays become read-only.
    """

    def __init__(
        self,
        starts: Integers,
        columns: npt.NDArray[np.int32],
        values: npt.NDArray[np.floating[Any]],
        names: Sequence[str],
    ) -> None:
        self.starts, self.columns, self.values, self.names = starts, columns, values, names
        for array in (starts, columns, values):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self) -> list[TermWeights]:
        """The weights of each row."""
        return [TermWeights(self, row) for row in range(len(self))]

    @once
    def column_of(self) -> dict[str, int]:
        """The column of each name."""
        return {name: column for column, name in enumerate(self.names)}


class TermWeights(Mapping[str, float]):
    """One row of `WeightRows` as an immutable mapping from terms to weights, in the order of the columns."""

    __slots__ = ("matrix", "row")

    def __init__(self, matrix: WeightRows, row: int) -> None:
        self.matrix, self.row = matrix, row

    @property
    def span(self) -> slice:
        """Where the row lies in the arrays."""
        start, stop = self.matrix.starts[self.row : self.row + 2].tolist()
        return slice(start, stop)

    def __getitem__(self, term: str) -> float:
        column, span = self.matrix.column_of.get(term), self.span
        if column is not None:
            place = span.start + int(np.searchsorted(self.matrix.columns[span], column))
            if place < span.stop and self.matrix.columns[place] == column:
                return float(self.matrix.values[place])
        raise KeyError(term)

    def __iter__(self) -> Iterator[str]:
        return map(self.matrix.names.__getitem__, self.matrix.columns[self.span].tolist())

    def __len__(self) -> int:
        return int(np.diff(self.matrix.starts[self.row : self.row + 2])[0])

    def to_dict(self) -> dict[str, float]:
        """The same as a dictionary of its own."""
        return dict(zip(self, self.matrix.values[self.span].tolist(), strict=True))

    # Those of `Mapping` look up each term.
    def items(self) -> ItemsView[str, float]:
        return self.to_dict().items()

    def values(self) -> ValuesView[float]:
        return self.to_dict().values()

    def __repr__(self) -> str:
        return repr(self.to_dict())

    def __reduce__(self) -> tuple[type, tuple[dict[str, float]]]:
        # A row that is pickled does not bring the whole matrix.
        return dict, (self.to_dict(),)
