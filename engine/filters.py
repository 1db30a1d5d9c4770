"""Which records a query may return: filter expressions, their JSON form, and the masks they compile to (SPEC A003).

>>> (col("session") == "s1") & ~col("role").isin(["tool", None]) | (col("priority") < 3)
((col('session') == 's1') & ~col('role').isin(['tool', None])) | (col('priority') < 3)

Two-valued: a record without a value is matched by ``== None`` and by ``in`` with None among the values, ``!=`` and
``not in`` are their exact negations, and ``<``, ``<=``, ``>``, ``>=`` never match it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import QueryError

if TYPE_CHECKING:
    from .columns import Columns, Schema
    from .vocabulary import Vocabulary

Scalar = str | int | float | None

ORDERINGS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS = ("==", "!=", "in", "not in", *ORDERINGS)
CONNECTIVES = ("and", "or", "not")
"""Keys of the JSON form that are no columns."""

MAX_DEPTH = 50
"""How deeply expressions may be nested: far from where Python's own recursion ends."""


class Filter:
    """A condition on a record's metadata columns: immutable, hashable, combined with ``&``, ``|`` and ``~``."""

    depth: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `parse_filter` reads it back as an equal expression."""
        raise NotImplementedError

    def __and__(self, other: object) -> Filter:
        return And((*_parts(And, self), *_parts(And, other))) if isinstance(other, Filter) else NotImplemented

    def __or__(self, other: object) -> Filter:
        return Or((*_parts(Or, self), *_parts(Or, other))) if isinstance(other, Filter) else NotImplemented

    def __invert__(self) -> Filter:
        return Not(self)

    def __bool__(self) -> bool:
        raise QueryError(
            f"{self!r} is neither true nor false before it meets a record: combine filters with & | ~ instead of "
            f"and, or, not, and write a < column < b as col(...).between or as two comparisons"
        )

    def _nested(self, filters: Iterable[Filter]) -> None:
        object.__setattr__(self, "depth", 1 + max((inner.depth for inner in filters), default=0))
        if self.depth > MAX_DEPTH:
            raise _too_deep()


def _parts(kind: type[_Junction], value: Filter) -> tuple[Filter, ...]:
    """So that a chain of ``&`` stays flat, however long."""
    return value.filters if type(value) is kind else (value,)


def _too_deep() -> QueryError:
    return QueryError(f"a filter is nested more than {MAX_DEPTH} deep; write long lists as one 'in', 'and' or 'or'")


@dataclass(frozen=True, repr=False)
class Comparison(Filter):
    """One column against a value, or against several with ``in`` and ``not in``. Raises `QueryError`."""

    column: str
    operator: str  # one of OPERATORS
    value: Scalar | tuple[Scalar, ...]

    def __post_init__(self) -> None:
        _check_name(self.column)
        if self.operator not in OPERATORS:
            raise QueryError(
                f"filter on {self.column!r}: unknown operator {self.operator!r}; there are: {', '.join(OPERATORS)}"
            )
        value: Any = self.value
        if self.operator in ("in", "not in"):
            if not _is_several(value):
                raise QueryError(f"filter on {self.column!r}: {self.operator!r} takes a list of values, not {value!r}")
            value = tuple(_scalar(self.column, one) for one in value)
        elif _is_several(value):
            raise QueryError(
                f"filter on {self.column!r}: {self.operator!r} takes one value, not {type(value).__name__}; "
                f"for several there are 'in' and 'not in'"
            )
        else:
            value = _scalar(self.column, value)
            if self.operator in ORDERINGS and (value is None or isinstance(value, str)):
                raise QueryError(f"filter on {self.column!r}: {self.operator!r} compares numbers, not {value!r}")
        object.__setattr__(self, "value", value)
        self._nested(())

    def to_dict(self) -> dict[str, Any]:
        if self.operator == "==":
            return {self.column: self.value}
        return {self.column: {self.operator: list(self.value) if isinstance(self.value, tuple) else self.value}}

    def __repr__(self) -> str:
        if isinstance(self.value, tuple):
            return f"col({self.column!r}).{'isin' if self.operator == 'in' else 'not_in'}({list(self.value)!r})"
        return f"col({self.column!r}) {self.operator} {self.value!r}"


@dataclass(frozen=True, repr=False)
class _Junction(Filter):
    filters: tuple[Filter, ...]

    def __post_init__(self) -> None:
        if isinstance(self.filters, Filter) or not _is_several(self.filters):
            raise QueryError(f"{type(self).__name__} takes a list of filters, not {self.filters!r}")
        filters = tuple(_checked(one) for one in self.filters)
        object.__setattr__(self, "filters", filters)
        self._nested(filters)

    def to_dict(self) -> dict[str, Any]:
        return {type(self).__name__.lower(): [inner.to_dict() for inner in self.filters]}

    def __repr__(self) -> str:
        if len(self.filters) < 2:
            return f"{type(self).__name__}({list(self.filters)!r})"
        return (" & " if isinstance(self, And) else " | ").join(map(_in_brackets, self.filters))


class And(_Junction):
    """What passes all of `filters`; everything where there are none."""


class Or(_Junction):
    """What passes one of `filters` or more; nothing where there are none."""


@dataclass(frozen=True, repr=False)
class Not(Filter):
    """What does not pass `filter`."""

    filter: Filter

    def __post_init__(self) -> None:
        self._nested((_checked(self.filter),))

    def to_dict(self) -> dict[str, Any]:
        return {"not": self.filter.to_dict()}

    def __repr__(self) -> str:
        return f"~{_in_brackets(self.filter)}"


def _in_brackets(filter: Filter) -> str:
    shown = repr(filter)
    plain = isinstance(filter, Not) or (isinstance(filter, Comparison) and isinstance(filter.value, tuple))
    return shown if plain or (isinstance(filter, _Junction) and len(filter.filters) < 2) else f"({shown})"


class Column:
    """A metadata column, to be compared: ``col("role") == "tool"``, ``col("time").between(a, b)``."""

    # numpy's scalars then leave ``np.float64(0.5) < column`` to the column.
    __array_ufunc__ = None
    # A column is compared, not looked up: its == makes a filter.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        _check_name(name)
        self.name = name

    def __eq__(self, value: object) -> Comparison:  # type: ignore[override]
        return Comparison(self.name, "==", value)  # type: ignore[arg-type]

    def __ne__(self, value: object) -> Comparison:  # type: ignore[override]
        return Comparison(self.name, "!=", value)  # type: ignore[arg-type]

    def __lt__(self, value: float) -> Comparison:
        return Comparison(self.name, "<", value)

    def __le__(self, value: float) -> Comparison:
        return Comparison(self.name, "<=", value)

    def __gt__(self, value: float) -> Comparison:
        return Comparison(self.name, ">", value)

    def __ge__(self, value: float) -> Comparison:
        return Comparison(self.name, ">=", value)

    def isin(self, values: Iterable[Scalar]) -> Comparison:
        """One of these values; None stands for no value."""
        return Comparison(self.name, "in", values)  # type: ignore[arg-type]

    def not_in(self, values: Iterable[Scalar]) -> Comparison:
        """None of these values: the exact negation of `isin`."""
        return Comparison(self.name, "not in", values)  # type: ignore[arg-type]

    def between(self, low: float, high: float) -> Filter:
        """``low <= column <= high``, both ends included."""
        return (self >= low) & (self <= high)

    def __bool__(self) -> bool:
        raise QueryError(f"{self!r} alone is no filter; compare it, and combine comparisons with & | ~")

    def _unbracketed(self, other: object) -> Filter:
        raise QueryError(f"{self!r} meets & or | before it is compared; put brackets around each comparison")

    __and__ = __rand__ = __or__ = __ror__ = _unbracketed

    def __invert__(self) -> Filter:
        return self._unbracketed(None)

    def __repr__(self) -> str:
        return f"col({self.name!r})"


def col(name: str) -> Column:
    """The metadata column `name`, for filter expressions. Raises `QueryError` for what cannot be a column's name."""
    return Column(name)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise QueryError(f"a filter's column must be a non-empty string, not {name!r}")
    if name in CONNECTIVES:
        raise QueryError(f"{name!r} is no column: it joins filters")


def _is_several(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping))


def _scalar(column: str, value: object) -> Scalar:
    """The value as one of Python's own: numpy's scalars and string enumerations print in their own ways."""
    if value is None:
        return None
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        number = int(value) if isinstance(value, (int, np.integer)) else float(value)
        try:
            if math.isfinite(number):
                return number
        except OverflowError:
            raise QueryError(f"filter on {column!r}: an integer lies beyond float64") from None
        raise QueryError(f"filter on {column!r}: a number must be finite, not {number!r}")
    raise QueryError(f"filter on {column!r}: a value must be a string, a number or None, not {value!r}")


def _checked(value: object) -> Filter:
    if not isinstance(value, Filter):
        raise QueryError(f"a filter must be a comparison such as col('role') == 'tool', not {value!r}")
    return value


def all_of(*filters: Filter | None) -> Filter | None:
    """What passes each of these; None, which everything passes, where there is none."""
    parts = tuple(part for part in filters if part is not None)
    return And(parts) if parts else None


def parse_filter(value: Filter | Mapping[str, Any] | None) -> Filter | None:
    """The expression that `value` says, which is one or its JSON form; None, no filter, for None and ``{}``.

    The JSON form maps columns to a value, to a list of values, or to comparisons (``{"importance": {">=": 0.5}}``),
    and ``and``, ``or`` to lists of filters, ``not`` to one; several keys mean "and". Raises `QueryError`.
    """
    if value is None or (isinstance(value, Mapping) and not value):
        return None
    return _parse(value, 1)


def _parse(value: object, depth: int) -> Filter:
    if isinstance(value, Filter):
        return value
    if not isinstance(value, Mapping):
        raise QueryError(
            f"a filter must map columns to values, as {{'role': 'tool'}}, or be a comparison such as "
            f"col('role') == 'tool', not {type(value).__name__}"
        )
    if depth > MAX_DEPTH:
        raise _too_deep()
    parts: list[Filter] = []
    for name, wanted in value.items():
        if name == "not":
            parts.append(Not(_parse(wanted, depth + 1)))
        elif name in ("and", "or"):
            if not _is_several(wanted):
                raise QueryError(f"a filter's {name!r} takes a list of filters, not {type(wanted).__name__}")
            parts.append((And if name == "and" else Or)(tuple(_parse(one, depth + 1) for one in wanted)))
        elif not isinstance(wanted, Mapping):
            parts.append(Comparison(name, "in" if _is_several(wanted) else "==", wanted))
        elif not wanted:
            raise QueryError(f"filter on {name!r}: no comparison; give one of {', '.join(OPERATORS)}")
        else:
            parts.extend(Comparison(name, comparison, one) for comparison, one in wanted.items())
    return parts[0] if len(parts) == 1 else And(tuple(parts))


class CompiledFilter:
    """A filter in the codes of an engine's vocabularies: one canonical, hashable form."""

    def passing(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Which documents pass, bool [columns.size]: a new array."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Among(CompiledFilter):
    """Whether (`inside`) or not the value is among `values`: codes of a category, or numbers."""

    column: str
    values: tuple[float, ...]  # ascending, distinct
    absent: bool  # no value is among them too
    inside: bool

    def passing(self, columns: Columns) -> npt.NDArray[np.bool_]:
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

    def passing(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if self.column not in columns.numbers:
            return np.full(columns.size, not self.inside, dtype=np.bool_)
        mask = _bool(ORDERINGS[self.operator](columns.numbers[self.column], self.value))
        return mask if self.inside else np.logical_not(mask, out=mask)


@dataclass(frozen=True)
class _All(CompiledFilter):
    parts: tuple[CompiledFilter, ...] = field(default=())

    def passing(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if not self.parts:
            return np.ones(columns.size, dtype=np.bool_)
        mask = self.parts[0].passing(columns)
        for part in self.parts[1:]:
            mask &= part.passing(columns)
        return mask


@dataclass(frozen=True)
class _Any(CompiledFilter):
    parts: tuple[CompiledFilter, ...] = field(default=())

    def passing(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if not self.parts:
            return np.zeros(columns.size, dtype=np.bool_)
        mask = self.parts[0].passing(columns)
        for part in self.parts[1:]:
            mask |= part.passing(columns)
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
    if isinstance(filter, _Junction):
        parts = [_compile(part, inside, schema, values) for part in filter.filters]
        return _joined(isinstance(filter, And) == inside, parts)
    assert isinstance(filter, Comparison)
    return _compared(filter, inside, schema, values)


def _compared(filter: Comparison, inside: bool, schema: Schema, values: Mapping[str, Vocabulary]) -> CompiledFilter:
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


def _joined(every: bool, parts: Iterable[CompiledFilter]) -> CompiledFilter:
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
