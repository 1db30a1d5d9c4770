"""The record ids of a snapshot's document numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..settings import compiled_loops
from .columns import Strings

LISTED = 64
"""The most documents whose ids are cut out one by one: .5 us each. Arrays cost 20 us at once, and .2 us each."""


class RecordIds:
    """Turns document numbers into record ids (str); -1 becomes None. `columns` holds the ids of the segments, in order.

    Every answer asks, so each step takes as few calls as it can.
    """

    def __init__(self, columns: Sequence[Strings]) -> None:
        self._columns = tuple(columns)
        firsts = np.cumsum([0, *map(len, columns)], dtype=np.int64)[:-1]
        self._firsts = firsts
        # Views, as an element of a view is a number of Python, and a slice of it becomes a string without a copy.
        self._parts = [
            (memoryview(column.block.data), memoryview(column.offsets.data), first)
            for column, first in zip(columns, firsts.tolist(), strict=True)
        ]
        compiled = compiled_loops()
        self._compiled = (
            None
            if compiled is None
            else compiled.record_ids(tuple((column.block, column.offsets) for column in columns))
        )
        self._single = self._columns[0] if len(self._columns) == 1 else None

    def __call__(self, documents: Integers) -> npt.NDArray[np.object_]:
        """The ids of these document numbers, same shape."""
        if self._compiled is not None:
            ids = np.empty(documents.shape, dtype=object)
            self._compiled.fill(documents if documents.flags.c_contiguous else documents.ravel(), ids)
            return ids
        numbers = documents.ravel()
        if self._single is not None:
            names = self._list_single(numbers) if numbers.size <= LISTED else _take(self._single, numbers)
            return np.array(names, dtype=object).reshape(documents.shape)
        if numbers.size <= LISTED:
            return np.array(self._list(numbers), dtype=object).reshape(documents.shape)
        ids = np.full(numbers.shape, None, dtype=object)
        for column, (_, _, first) in zip(self._columns, self._parts, strict=True):
            inside = (numbers >= first) & (numbers < first + len(column))
            if inside.any():
                ids[inside] = _take(column, numbers[inside] - first)
        return ids.reshape(documents.shape)

    def slice(self, start: int, stop: int) -> RecordIds:
        """Itself: all queries of a batch over one snapshot have the same documents."""
        return self

    def _list_single(self, numbers: Integers) -> list[str | None]:
        ((text, bounds, _),) = self._parts
        return [
            str(text[bounds[number] : bounds[number + 1]], "utf-8") if number >= 0 else None
            for number in numbers.tolist()
        ]

    def _list(self, numbers: Integers) -> list[str | None]:
        names: list[str | None] = []
        places = self._firsts.searchsorted(numbers, "right") - 1
        for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
            if place < 0:
                names += (None,)
                continue
            text, bounds, first = self._parts[place]
            names += (str(text[bounds[number - first] : bounds[number - first + 1]], "utf-8"),)
        return names


def _take(column: Strings, numbers: Integers) -> list[str | None]:
    """The ids of these documents of one segment; None for -1."""
    data, bounds = _gather(column, numbers)
    if data.isascii():
        # All are decoded at once, as each character is one byte. No id is empty.
        text = str(data, "ascii")
        return [text[start:end] or None for start, end in pairwise(bounds)]
    return [str(data[start:end], "utf-8") or None for start, end in pairwise(bounds)]


def _gather(column: Strings, numbers: Integers) -> tuple[bytes, list[int]]:
    """(the ids of these documents, one after another; where each begins, then where the last ends)."""
    starts = column.offsets[numbers]
    lengths = column.offsets[numbers + 1] - starts
    lengths[numbers < 0] = 0
    ends = lengths.cumsum()
    places = np.arange(ends[-1])
    places += (starts - ends + lengths).repeat(lengths)
    return column.block[places].tobytes(), [0, *ends.tolist()]
