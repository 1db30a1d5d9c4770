"""Filters compiled to the codes of an engine, and the masks that they make of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import QueryError
from ..records.filters import ORDERINGS, And, ColumnComparison, Filter, Junction, Not, Scalar

if TYPE_CHECKING:
    from ..text.vocabulary import Vocabulary
    from .columns import Columns, Schema


class CompiledFilter:
    """A filter in the codes of an engine's vocabularies: one canonical, hashable form."""

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Which documents pass, bool [columns.size]: a new array."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Among(CompiledFilter):
    """Whether (`inside`) or not the value is among `values`: codes of a category, or numbers."""

    column: str
    values: tuple[float, ...]  # ascending, distinct
    absent: bool  # no value is among them too
    inside: bool

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if self.column in columns.categories:
            return self._categories(columns.categories[self.column])
        if self.column in columns.numbers:
            return self._numbers(columns.numbers[self.column])
        return np.full(columns.size, self.absent == self.inside, dtype=np.bool_)

    def _categories(self, codes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        # Of 5,000,000 codes one comparison takes 1 ms, each further one 1 to 2, and a table 5 (np.isin: 5 to 50).
        if not self.values:
            return _bool(codes < 0 if self.inside else codes >= 0)
        if len(self.values) == 1 and not self.absent:
            return _bool(codes == self.values[0] if self.inside else codes != self.values[0])
        # Place 0 is for no value (`ABSENT`, -1), place c + 1 for code c, the last one, by "clip", for all codes beyond.
        # Negative places would be as right, and three times as slow where codes and ABSENT alternate.
        table = np.full(int(self.values[-1]) + 3, not self.inside)
        table[np.array(self.values, dtype=np.int64) + 1] = self.inside
        table[0] = self.absent == self.inside
        mask = np.empty(len(codes), dtype=np.bool_)
        for start in range(0, len(codes), _CHUNK):
            part = slice(start, start + _CHUNK)
            np.take(table, codes[part] + np.int32(1), out=mask[part], mode="clip")
        return mask

    def _numbers(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        one = len(self.values) == 1
        mask = _bool(numbers == self.values[0]) if one else np.isin(numbers, np.array(self.values))
        if self.absent:
            mask |= np.isnan(numbers)
        return mask if self.inside else np.logical_not(mask, out=mask)


def _bool(mask: Any) -> npt.NDArray[np.bool_]:
    """What a comparison of arrays gives, for the type checker."""
    return np.asarray(mask)


_CHUNK = 1 << 18
"""Codes looked up at a time: `np.take` widens them to 8 bytes, which then stay in the cache (half the time)."""


@dataclass(frozen=True)
class _Ordering(CompiledFilter):
    """Whether (`inside`) or not the number compares so; NaN never does."""

    column: str
    operator: str
    value: float
    inside: bool

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if self.column not in columns.numbers:
            return np.full(columns.size, not self.inside, dtype=np.bool_)
        mask = _bool(ORDERINGS[self.operator](columns.numbers[self.column], self.value))
        return mask if self.inside else np.logical_not(mask, out=mask)


@dataclass(frozen=True)
class _All(CompiledFilter):
    parts: tuple[CompiledFilter, ...] = field(default=())

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if not self.parts:
            return np.ones(columns.size, dtype=np.bool_)
        mask = self.parts[0].mask(columns)
        for part in self.parts[1:]:
            mask &= part.mask(columns)
        return mask


@dataclass(frozen=True)
class _Any(CompiledFilter):
    parts: tuple[CompiledFilter, ...] = field(default=())

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if not self.parts:
            return np.zeros(columns.size, dtype=np.bool_)
        mask = self.parts[0].mask(columns)
        for part in self.parts[1:]:
            mask |= part.mask(columns)
        return mask


EVERYTHING: CompiledFilter = _All()


NOTHING: CompiledFilter = _Any()


def compile_filter(filter: Filter | None, schema: Schema, values: Mapping[str, Vocabulary]) -> CompiledFilter:
    """The filter in codes, in one canonical form so that equal filters are shared in a batch.

    `EVERYTHING`, itself, for None and for what nothing can fail. A category value that no record has matches nothing.
    Raises `QueryError` for an unknown column and for a comparison that does not suit the column's kind.
    """
    return EVERYTHING if filter is None else _compile(filter, True, schema, values)


def _compile(filter: Filter, inside: bool, schema: Schema, values: Mapping[str, Vocabulary]) -> CompiledFilter:
    """`filter`, or its negation where not `inside`: negations end in the comparisons (De Morgan)."""
    if isinstance(filter, Not):
        return _compile(filter.filter, not inside, schema, values)
    if isinstance(filter, Junction):
        parts = [_compile(part, inside, schema, values) for part in filter.filters]
        return _join_parts(isinstance(filter, And) == inside, parts)
    assert isinstance(filter, ColumnComparison)
    return _compile_comparison(filter, inside, schema, values)


def _compile_comparison(
    filter: ColumnComparison, inside: bool, schema: Schema, values: Mapping[str, Vocabulary]
) -> CompiledFilter:
    name, of_numbers = filter.column, filter.column in schema.numbers
    if not of_numbers and name not in schema.categories:
        there = ", ".join((*schema.categories, *schema.numbers))
        raise QueryError(f"no column {name!r} to filter on; there are: {there}")
    if filter.operator in ORDERINGS:
        if not of_numbers:
            raise QueryError(
                f"filter on {name!r}: {filter.operator!r} compares numbers, and {name!r} holds strings; "
                f"use one of ==, !=, in, not in"
            )
        return _Ordering(name, filter.operator, float(filter.value) + 0.0, inside)  # type: ignore[arg-type]
    if filter.operator in ("!=", "not in"):
        inside = not inside
    options: Sequence[Scalar] = filter.value if isinstance(filter.value, tuple) else (filter.value,)
    found: set[float] = set()
    for option in options:
        if option is None:
            continue
        if isinstance(option, str) is of_numbers:
            kind = "number" if of_numbers else "string"
            raise QueryError(f"filter on {name!r}: a value must be a {kind} or None, not {option!r}")
        if isinstance(option, str):
            code = values[name].ids.get(option)
            if code is not None:
                found.add(code)
        else:
            found.add(float(option) + 0.0)  # so that -0.0 is 0.0 in what is printed and sorted, too
    absent = None in options
    if not found and not absent:
        return NOTHING if inside else EVERYTHING
    return _Among(name, tuple(sorted(found)), absent, inside)


def _join_parts(every: bool, parts: Iterable[CompiledFilter]) -> CompiledFilter:
    """All of `parts` (`every`) or any of them: flat, each once, in one order."""
    kind, neutral, absorbing = (_All, EVERYTHING, NOTHING) if every else (_Any, NOTHING, EVERYTHING)
    # The neutral one has no parts, so that it leaves here.
    flat = {inner for part in parts for inner in (part.parts if isinstance(part, kind) else (part,))}
    if absorbing in flat:
        return absorbing
    distinct = sorted(flat, key=repr)
    if len(distinct) == 1:
        return distinct[0]
    return kind(tuple(distinct)) if distinct else neutral
