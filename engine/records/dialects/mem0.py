"""Filters of mem0, as its users write them (``AND``, ``OR``, ``NOT``) or its stores receive them (``$or``, ``$not``).

A key maps to a value, to a list of values, to ``"*"`` (any value), or to operators. ``NOT`` passes where none of its
filters does. Orderings compare numbers with numbers; where an operand is an ISO 8601 date, points in time; else text
with text. ``contains`` is a substring, a member of a list or a key of an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...moments import read_moment
from ..filters import Filter
from .place import Place

_ORDERINGS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_OPERATORS = ("eq", "ne", *_ORDERINGS, "in", "nin", "contains", "icontains")
_CONNECTIVES = {"AND": "AND", "OR": "OR", "NOT": "NOT", "$and": "AND", "$or": "OR", "$not": "NOT"}


def read(spec: Any, place: Place) -> Filter | None:
    """The filter for mem0's `spec`; None for an empty one. Raises `QueryError`."""
    return _read(spec, place) if place.a_mapping(spec) else None


def _read(spec: Any, place: Place) -> Filter:
    conditions = place.a_mapping(spec)
    if not conditions:
        raise place.error("an empty filter; leave it out")
    return place.both(_condition(key, value, place.inner(key)) for key, value in conditions.items())


def _condition(key: Any, value: Any, place: Place) -> Filter:
    connective = _CONNECTIVES.get(key) if isinstance(key, str) else None
    if connective is not None:
        inner = [_read(one, place.inner(number)) for number, one in enumerate(place.a_list(value))]
        if not inner:
            raise place.error("needs at least one filter")
        if connective == "AND":
            return place.both(inner)
        return place.either(inner) if connective == "OR" else place.negate(place.either(inner))
    if isinstance(value, Mapping):
        if not value:
            raise place.error(f"no operator; give one of {', '.join(_OPERATORS)}")
        return place.both(_operation(key, name, wanted, place.inner(name)) for name, wanted in value.items())
    if isinstance(value, str) and value == "*":
        return place.compare(key, "!=", None)
    if isinstance(value, (list, tuple)):
        return place.among(key, value)
    return place.equality(key, value)


def _operation(key: Any, operator: Any, value: Any, place: Place) -> Filter:
    if operator == "eq":
        return place.equality(key, value)
    if operator == "ne":
        return place.negate(place.equality(key, value))
    if operator in ("in", "nin"):
        among = place.among(key, place.a_list(value))
        return among if operator == "in" else place.negate(among)
    if operator in ("contains", "icontains"):
        return place.compare(key, operator, value)
    if operator not in _ORDERINGS:
        raise place.error(f"unknown operator {operator!r}; there are: {', '.join(_OPERATORS)}")
    return place.compare(key, f"date {_ORDERINGS[operator]}" if _is_date(value) else _ORDERINGS[operator], value)


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and read_moment(value) is not None
    except ValueError:
        return False
