"""Filters of LangGraph's stores, compared as its `InMemoryStore` does.

A key maps to a value, or to operators (``{"price": {"$gt": 5}}``). Lists are compared member by member, and nested
objects may have further keys. Orderings compare what ``float`` makes of a value, so the text "5" is a number. Where
that store raises an error at an item (a text that is no number, a missing value), the item does not match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..filters import Filter
from .place import NEVER, Place

_ORDERINGS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_OPERATORS = ("$eq", "$ne", *_ORDERINGS)


def read(spec: Any, place: Place) -> Filter | None:
    """The filter for LangGraph's `spec`; None for an empty one. Raises `QueryError`."""
    conditions = place.a_mapping(spec)
    if not conditions:
        return None
    return place.both(_condition(key, value, place.inner(key)) for key, value in conditions.items())


def _condition(key: Any, value: Any, place: Place) -> Filter:
    if isinstance(value, Mapping) and _operators(value):
        return place.both(_operation(key, name, wanted, place.inner(name)) for name, wanted in value.items())
    if isinstance(value, (list, tuple, Mapping)) and not _has_operators(value, place):
        return place.compare(key, "matches", value)
    if isinstance(value, (list, tuple)):
        raise place.error("operators inside a list are not supported; compare the list with $eq, or a key of its own")
    if isinstance(value, Mapping):
        return place.both(_nested(key, value, place))
    return place.compare(key, "==", value)


def _nested(key: Any, value: Mapping[Any, Any], place: Place) -> Iterator[Filter]:
    """What an object holds, as comparisons of its own keys. Without the first, a missing object would pass ``$ne``."""
    yield place.compare(key, "matches", {})
    for name, wanted in value.items():
        if not isinstance(name, str) or "." in name:
            raise place.error(f"a nested key with operators must be a string without a dot, not {name!r}")
        yield _condition(f"{key}.{name}", wanted, place.inner(name))


def _operation(key: Any, operator: Any, value: Any, place: Place) -> Filter:
    if operator == "$eq":
        return place.equality(key, value)
    if operator == "$ne":
        return place.negate(place.equality(key, value))
    if operator not in _ORDERINGS:
        raise place.error(f"unknown operator {operator!r}; there are: {', '.join(_OPERATORS)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise place.error(f"{operator} compares numbers, not {value!r}") from None
    return NEVER if math.isnan(number) else place.compare(key, f"float {_ORDERINGS[operator]}", number)


def _operators(value: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in value)


def _has_operators(value: Any, place: Place) -> bool:
    """Whether an operator stands anywhere in this value."""
    if isinstance(value, Mapping):
        return _operators(value) or any(_has_operators(inner, place.inner(key)) for key, inner in value.items())
    return isinstance(value, (list, tuple)) and any(_has_operators(one, place.inner(n)) for n, one in enumerate(value))
