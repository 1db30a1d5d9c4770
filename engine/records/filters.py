"""Filter expressions, which say what records a query may return, and their JSON form (SPEC A003).

>>> (col("session") == "s1") & ~col("role").isin(["tool", None]) | (col("priority") < 3)
((col('session') == 's1') & ~col('role').isin(['tool', None])) | (col('priority') < 3)

A value is a string, a number, true or false, or a `datetime`, which is read as seconds. For the columns ``time`` and
``expires`` it may also be ISO 8601 text. What names no time zone is UTC.

Every comparison is true or false, also for a record without a value. Such a record matches ``== None``, and ``in`` with
None among the values. ``!=`` and ``not in`` are the exact negations of ``==`` and ``in``. All other comparisons never
match a record without a value. `engine/records/values.py` says how JSON values compare.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import QueryError, choices
from ..moments import Moment, read_moment, to_seconds
from .values import DATES, FLOATS, MEMBERSHIPS, ORDERINGS, PATTERNS, SEVERAL, WHOLE, Whole, json_text

TIMES = ("time", "expires")
"""The columns that hold times. They may be compared with dates too, which are then read as seconds."""

Scalar = str | int | float | None
"""A value that a column is compared with; True and False are of type int."""

LISTS = ("in", "not in", *SEVERAL)
"""Operators that take several values."""
EXISTS = "exists"
"""In the JSON form: ``{"exists": true}`` is ``!= None``, and false ``== None``."""
OPERATORS = ("==", "!=", "in", "not in", *ORDERINGS, *MEMBERSHIPS, *SEVERAL, *PATTERNS, *WHOLE, *FLOATS, *DATES)
USUAL = (*OPERATORS[: OPERATORS.index(FLOATS[0])], EXISTS)
"""The operators that messages name. The others serve the forms of other libraries."""
CONNECTIVES = ("and", "or", "not")
"""Keys of the JSON form that join filters and are not columns."""

PAYLOAD = "payload."
"""Begins the names of columns whose values are read from `Record.payload` alone, whatever built-in ones are called."""

MAX_DEPTH = 50
"""How deeply expressions may be nested. Python's own recursion limit is far higher."""


class Filter:
    """A condition on a record's metadata columns, immutable and hashable. Combine filters with ``&``, ``|``, ``~``."""

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

    def _set_depth(self, filters: Iterable[Filter]) -> None:
        object.__setattr__(self, "depth", 1 + max((inner.depth for inner in filters), default=0))
        if self.depth > MAX_DEPTH:
            raise _too_deep_error()


def _parts(kind: type[Junction], value: Filter) -> tuple[Filter, ...]:
    """The filters that `value` joins if it is of this kind, else `value` alone. Keeps a long chain of ``&`` flat."""
    return value.filters if type(value) is kind else (value,)


def _too_deep_error() -> QueryError:
    return QueryError(f"a filter is nested more than {MAX_DEPTH} deep; write long lists as one 'in', 'and' or 'or'")


@dataclass(frozen=True, repr=False)
class ColumnComparison(Filter):
    """Compares a column with one value, or with several where the operator is one of `LISTS`. Raises `QueryError`."""

    column: str
    operator: str  # one of OPERATORS
    value: Scalar | tuple[Scalar, ...] | Whole

    def __post_init__(self) -> None:
        _check_name(self.column)
        if self.operator not in OPERATORS:
            raise QueryError(
                f"filter on {self.column!r}: unknown operator {self.operator!r}{choices(self.operator, USUAL)}"
            )
        object.__setattr__(self, "value", self._checked(self.value))
        self._set_depth(())

    def _checked(self, value: Any) -> Scalar | tuple[Scalar, ...] | Whole:
        where = f"filter on {self.column!r}"
        if self.operator in WHOLE:
            if isinstance(value, Whole):
                return value
            try:
                return Whole(json_text(value))
            except ValueError as error:
                raise QueryError(f"{where}: {self.operator!r} takes a JSON value: {error}") from None
        if self.operator in LISTS:
            if not _is_several(value):
                raise QueryError(f"{where}: {self.operator!r} takes a list of values, not {value!r}")
            values = tuple(_scalar(self.column, item) for item in value)
            if self.operator in SEVERAL and None in values:
                raise QueryError(f"{where}: {self.operator!r} compares values, and None is none")
            return values
        if _is_several(value):
            raise QueryError(
                f"{where}: {self.operator!r} takes one value, not {type(value).__name__}; "
                f"for several there are 'in' and 'not in', and for a whole list 'equals'"
            )
        checked = _scalar(self.column, value)
        if self.operator not in ("==", "!="):
            self._check_operand(checked)
        return checked

    def _check_operand(self, value: Scalar) -> None:
        where = f"filter on {self.column!r}"
        if value is None or (self.operator in ORDERINGS and self.column in TIMES and isinstance(value, str)):
            raise QueryError(f"{where}: {self.operator!r} compares numbers or strings, not {value!r}")
        if self.operator in (*PATTERNS, *DATES) and not isinstance(value, str):
            raise QueryError(f"{where}: {self.operator!r} takes a string, not {value!r}")
        if self.operator in FLOATS and isinstance(value, str):
            raise QueryError(f"{where}: {self.operator!r} takes a number, not {value!r}")
        if self.operator in DATES:
            try:
                read_moment(str(value))
            except ValueError:
                raise QueryError(f"{where}: {self.operator!r} takes an ISO 8601 date, not {value!r}") from None

    def to_dict(self) -> dict[str, Any]:
        if self.operator == "==":
            return {self.column: self.value}
        value: Any = self.value
        value = list(value) if isinstance(value, tuple) else value.value if isinstance(value, Whole) else value
        return {self.column: {self.operator: value}}

    def __repr__(self) -> str:
        if self.operator in _METHODS:
            value = self.value.value if isinstance(self.value, Whole) else self.value
            shown = list(value) if isinstance(value, tuple) else value
            return f"col({self.column!r}).{_METHODS[self.operator]}({shown!r})"
        if self.operator in (*FLOATS, *DATES):
            return f"ColumnComparison({self.column!r}, {self.operator!r}, {self.value!r})"
        return f"col({self.column!r}) {self.operator} {self.value!r}"


_METHODS = {
    "in": "isin",
    "not in": "not_in",
    "any": "contains_any",
    "all": "contains_all",
    **{name: name for name in (*MEMBERSHIPS, *PATTERNS, *WHOLE)},
}
"""The methods of `Column` that make comparisons by these operators."""


@dataclass(frozen=True, repr=False)
class Junction(Filter):
    """Several filters joined: the base of `And` and `Or`."""

    filters: tuple[Filter, ...]

    def __post_init__(self) -> None:
        if isinstance(self.filters, Filter) or not _is_several(self.filters):
            raise QueryError(f"{type(self).__name__} takes a list of filters, not {self.filters!r}")
        filters = tuple(_check_filter(inner) for inner in self.filters)
        object.__setattr__(self, "filters", filters)
        self._set_depth(filters)

    def to_dict(self) -> dict[str, Any]:
        return {type(self).__name__.lower(): [inner.to_dict() for inner in self.filters]}

    def __repr__(self) -> str:
        if len(self.filters) < 2:
            return f"{type(self).__name__}({list(self.filters)!r})"
        return (" & " if isinstance(self, And) else " | ").join(map(_in_brackets, self.filters))


class And(Junction):
    """Matches a record that passes all of `filters`. Without filters it matches every record."""


class Or(Junction):
    """Matches a record that passes at least one of `filters`. Without filters it matches no record."""


@dataclass(frozen=True, repr=False)
class Not(Filter):
    """Matches a record that does not pass `filter`."""

    filter: Filter

    def __post_init__(self) -> None:
        self._set_depth((_check_filter(self.filter),))

    def to_dict(self) -> dict[str, Any]:
        return {"not": self.filter.to_dict()}

    def __repr__(self) -> str:
        return f"~{_in_brackets(self.filter)}"


def _in_brackets(filter: Filter) -> str:
    text = repr(filter)
    plain = isinstance(filter, Not) or (isinstance(filter, ColumnComparison) and text.endswith(")"))
    return text if plain or (isinstance(filter, Junction) and len(filter.filters) < 2) else f"({text})"


class Column:
    """A metadata column. Comparing it gives a filter: ``col("role") == "tool"``, ``col("time").between(a, b)``."""

    # Makes numpy's scalars leave ``np.float64(0.5) < column`` to the column.
    __array_ufunc__ = None
    # Not hashable: == makes a filter, so a column cannot be a key.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        _check_name(name)
        self.name = name

    def __eq__(self, value: object) -> ColumnComparison:  # type: ignore[override]
        return ColumnComparison(self.name, "==", value)  # type: ignore[arg-type]

    def __ne__(self, value: object) -> ColumnComparison:  # type: ignore[override]
        return ColumnComparison(self.name, "!=", value)  # type: ignore[arg-type]

    def __lt__(self, value: Moment) -> ColumnComparison:
        return ColumnComparison(self.name, "<", value)  # type: ignore[arg-type]

    def __le__(self, value: Moment) -> ColumnComparison:
        return ColumnComparison(self.name, "<=", value)  # type: ignore[arg-type]

    def __gt__(self, value: Moment) -> ColumnComparison:
        return ColumnComparison(self.name, ">", value)  # type: ignore[arg-type]

    def __ge__(self, value: Moment) -> ColumnComparison:
        return ColumnComparison(self.name, ">=", value)  # type: ignore[arg-type]

    def isin(self, values: Iterable[Scalar]) -> ColumnComparison:
        """The value is one of these. None stands for a missing value."""
        return ColumnComparison(self.name, "in", values)  # type: ignore[arg-type]

    def not_in(self, values: Iterable[Scalar]) -> ColumnComparison:
        """The value is none of these: the exact negation of `isin`."""
        return ColumnComparison(self.name, "not in", values)  # type: ignore[arg-type]

    def contains(self, value: Scalar) -> ColumnComparison:
        """The value is a string of which this is a part, a list of which it is a member, or an object with this key."""
        return ColumnComparison(self.name, "contains", value)

    def icontains(self, value: Scalar) -> ColumnComparison:
        """As `contains`, whatever the case of letters."""
        return ColumnComparison(self.name, "icontains", value)

    def contains_any(self, values: Iterable[Scalar]) -> ColumnComparison:
        """`contains` at least one of these."""
        return ColumnComparison(self.name, "any", values)  # type: ignore[arg-type]

    def contains_all(self, values: Iterable[Scalar]) -> ColumnComparison:
        """`contains` each of these."""
        return ColumnComparison(self.name, "all", values)  # type: ignore[arg-type]

    def like(self, pattern: str) -> ColumnComparison:
        """The value is a string of this form: ``%`` is any text, ``_`` any character, a backslash takes the next one
        as it is.
        """
        return ColumnComparison(self.name, "like", pattern)

    def ilike(self, pattern: str) -> ColumnComparison:
        """As `like`, whatever the case of letters."""
        return ColumnComparison(self.name, "ilike", pattern)

    def equals(self, value: Any) -> ColumnComparison:
        """The whole value equals this JSON value, which may be a list or an object."""
        return ColumnComparison(self.name, "equals", value)

    def matches(self, value: Any) -> ColumnComparison:
        """As `equals`, but objects may have further keys, at any depth."""
        return ColumnComparison(self.name, "matches", value)

    def exists(self) -> ColumnComparison:
        """The record has a value: ``column != None``."""
        return ColumnComparison(self.name, "!=", None)

    def between(self, low: Moment, high: Moment) -> Filter:
        """``low <= column <= high``, both ends included."""
        return (self >= low) & (self <= high)

    def __bool__(self) -> bool:
        raise QueryError(f"{self!r} alone is no filter; compare it, and combine comparisons with & | ~")

    def _refuse_unbracketed(self, other: object) -> Filter:
        raise QueryError(f"{self!r} meets & or | before it is compared; put brackets around each comparison")

    __and__ = __rand__ = __or__ = __ror__ = _refuse_unbracketed

    def __invert__(self) -> Filter:
        return self._refuse_unbracketed(None)

    def __repr__(self) -> str:
        return f"col({self.name!r})"


def col(name: str) -> Column:
    """The metadata column `name`, for filter expressions. Raises `QueryError` if it cannot be the name of a column."""
    return Column(name)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise QueryError(f"a filter's column must be a non-empty string, not {name!r}")
    if name in CONNECTIVES:
        raise QueryError(f"{name!r} is no column: it joins filters")


def _is_several(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping))


def _scalar(column: str, value: object) -> Scalar:
    """The value as a plain Python object: numpy's scalars and string enumerations have another `repr`."""
    if value is None:
        return None
    if isinstance(value, dt.date) or (column in TIMES and isinstance(value, str)):
        with suppress(ValueError):  # what is no moment is refused below, or where the column's kind is known
            return to_seconds(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bool, np.bool_)) and column not in TIMES:
        return bool(value)
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        number = int(value) if isinstance(value, (int, np.integer)) else float(value)
        try:
            if math.isfinite(number):
                return number
        except OverflowError:
            raise QueryError(f"filter on {column!r}: an integer lies beyond float64") from None
        raise QueryError(f"filter on {column!r}: a number must be finite, not {number!r}")
    raise QueryError(f"filter on {column!r}: a value must be a string, a number, true, false or None, not {value!r}")


def _check_filter(value: object) -> Filter:
    if not isinstance(value, Filter):
        raise QueryError(f"a filter must be a comparison such as col('role') == 'tool', not {value!r}")
    return value


def all_of(*filters: Filter | None) -> Filter | None:
    """A filter that passes what each of these passes. None stands for no filter; returns None if all are None."""
    present = tuple(filter for filter in filters if filter is not None)
    return And(present) if present else None


AnyFilter = Filter | Mapping[str, Any]
"""A filter, or its JSON form."""


def parse_filter(value: Filter | Mapping[str, Any] | None) -> Filter | None:
    """The filter expression for `value`: an expression itself, or its JSON form. None and ``{}`` give None, no filter.

    The JSON form maps columns to a value, to a list of values, or to comparisons (``{"importance": {">=": 0.5}}``). It
    maps ``and`` and ``or`` to lists of filters, and ``not`` to one filter. Several keys mean "and".

    Raises `QueryError`.
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
        raise _too_deep_error()
    filters: list[Filter] = []
    for name, operand in value.items():
        if name == "not":
            filters.append(Not(_parse(operand, depth + 1)))
        elif name in ("and", "or"):
            if not _is_several(operand):
                raise QueryError(f"a filter's {name!r} takes a list of filters, not {type(operand).__name__}")
            filters.append((And if name == "and" else Or)(tuple(_parse(inner, depth + 1) for inner in operand)))
        elif not isinstance(operand, Mapping):
            filters.append(ColumnComparison(name, "in" if _is_several(operand) else "==", operand))
        elif not operand:
            raise QueryError(f"filter on {name!r}: no comparison; give one of {', '.join(USUAL)}")
        else:
            filters.extend(_comparison(name, comparison, compared) for comparison, compared in operand.items())
    return filters[0] if len(filters) == 1 else And(tuple(filters))


def _comparison(column: str, operator: str, value: Any) -> ColumnComparison:
    if operator != EXISTS:
        return ColumnComparison(column, operator, value)
    if not isinstance(value, bool):
        raise QueryError(f"filter on {column!r}: {EXISTS!r} takes true or false, not {value!r}")
    return ColumnComparison(column, "!=" if value else "==", None)


def columns_in(filter: Filter) -> Iterator[str]:
    """The name of each column that a filter compares, with repeats."""
    waiting = [filter]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ColumnComparison):
            yield one.column
        elif isinstance(one, Not):
            waiting.append(one.filter)
        elif isinstance(one, Junction):
            waiting += one.filters
