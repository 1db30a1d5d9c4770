"""Which records a query may return: filter expressions, their JSON form, and the masks they compile to (SPEC A003).

>>> (col("session") == "s1") & ~col("role").isin(["tool", None]) | (col("priority") < 3)
((col('session') == 's1') & ~col('role').isin(['tool', None])) | (col('priority') < 3)

Two-valued: a record without a value is matched by ``== None`` and by ``in`` with None among the values, ``!=`` and
``not in`` are their exact negations, and ``<``, ``<=``, ``>``, ``>=`` never match it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import QueryError

if TYPE_CHECKING:
    pass

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
            raise _too_deep_error()


def _parts(kind: type[Junction], value: Filter) -> tuple[Filter, ...]:
    """So that a chain of ``&`` stays flat, however long."""
    return value.filters if type(value) is kind else (value,)


def _too_deep_error() -> QueryError:
    return QueryError(f"a filter is nested more than {MAX_DEPTH} deep; write long lists as one 'in', 'and' or 'or'")


@dataclass(frozen=True, repr=False)
class ColumnComparison(Filter):
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
class Junction(Filter):
    filters: tuple[Filter, ...]

    def __post_init__(self) -> None:
        if isinstance(self.filters, Filter) or not _is_several(self.filters):
            raise QueryError(f"{type(self).__name__} takes a list of filters, not {self.filters!r}")
        filters = tuple(_check_depth(one) for one in self.filters)
        object.__setattr__(self, "filters", filters)
        self._nested(filters)

    def to_dict(self) -> dict[str, Any]:
        return {type(self).__name__.lower(): [inner.to_dict() for inner in self.filters]}

    def __repr__(self) -> str:
        if len(self.filters) < 2:
            return f"{type(self).__name__}({list(self.filters)!r})"
        return (" & " if isinstance(self, And) else " | ").join(map(_in_brackets, self.filters))


class And(Junction):
    """What passes all of `filters`; everything where there are none."""


class Or(Junction):
    """What passes one of `filters` or more; nothing where there are none."""


@dataclass(frozen=True, repr=False)
class Not(Filter):
    """What does not pass `filter`."""

    filter: Filter

    def __post_init__(self) -> None:
        self._nested((_check_depth(self.filter),))

    def to_dict(self) -> dict[str, Any]:
        return {"not": self.filter.to_dict()}

    def __repr__(self) -> str:
        return f"~{_in_brackets(self.filter)}"


def _in_brackets(filter: Filter) -> str:
    shown = repr(filter)
    plain = isinstance(filter, Not) or (isinstance(filter, ColumnComparison) and isinstance(filter.value, tuple))
    return shown if plain or (isinstance(filter, Junction) and len(filter.filters) < 2) else f"({shown})"


class Column:
    """A metadata column, to be compared: ``col("role") == "tool"``, ``col("time").between(a, b)``."""

    # numpy's scalars then leave ``np.float64(0.5) < column`` to the column.
    __array_ufunc__ = None
    # A column is compared, not looked up: its == makes a filter.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        _check_name(name)
        self.name = name

    def __eq__(self, value: object) -> ColumnComparison:  # type: ignore[override]
        return ColumnComparison(self.name, "==", value)  # type: ignore[arg-type]

    def __ne__(self, value: object) -> ColumnComparison:  # type: ignore[override]
        return ColumnComparison(self.name, "!=", value)  # type: ignore[arg-type]

    def __lt__(self, value: float) -> ColumnComparison:
        return ColumnComparison(self.name, "<", value)

    def __le__(self, value: float) -> ColumnComparison:
        return ColumnComparison(self.name, "<=", value)

    def __gt__(self, value: float) -> ColumnComparison:
        return ColumnComparison(self.name, ">", value)

    def __ge__(self, value: float) -> ColumnComparison:
        return ColumnComparison(self.name, ">=", value)

    def isin(self, values: Iterable[Scalar]) -> ColumnComparison:
        """One of these values; None stands for no value."""
        return ColumnComparison(self.name, "in", values)  # type: ignore[arg-type]

    def not_in(self, values: Iterable[Scalar]) -> ColumnComparison:
        """None of these values: the exact negation of `isin`."""
        return ColumnComparison(self.name, "not in", values)  # type: ignore[arg-type]

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


def _check_depth(value: object) -> Filter:
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
        raise _too_deep_error()
    parts: list[Filter] = []
    for name, wanted in value.items():
        if name == "not":
            parts.append(Not(_parse(wanted, depth + 1)))
        elif name in ("and", "or"):
            if not _is_several(wanted):
                raise QueryError(f"a filter's {name!r} takes a list of filters, not {type(wanted).__name__}")
            parts.append((And if name == "and" else Or)(tuple(_parse(one, depth + 1) for one in wanted)))
        elif not isinstance(wanted, Mapping):
            parts.append(ColumnComparison(name, "in" if _is_several(wanted) else "==", wanted))
        elif not wanted:
            raise QueryError(f"filter on {name!r}: no comparison; give one of {', '.join(OPERATORS)}")
        else:
            parts.extend(ColumnComparison(name, comparison, one) for comparison, one in wanted.items())
    return parts[0] if len(parts) == 1 else And(tuple(parts))
