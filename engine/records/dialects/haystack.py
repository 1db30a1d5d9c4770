"""Filters of Haystack, compared as its `document_matches_filter` does.

A field is ``meta.KEY``, or a key of the metadata alone. Equality also holds for ISO 8601 texts of one point in time,
and orderings compare numbers or such texts; where one of two names no time zone, it is in that of the other. Where
Haystack raises an error at a document, the document does not match. Other fields of a document have no column.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from ...moments import read_moment
from ..filters import Filter
from .place import NEVER, Place

_ORDERINGS = (">", ">=", "<", "<=")
_OPERATORS = ("==", "!=", *_ORDERINGS, "in", "not in")
_META = "meta."
_FIELDS = ("id", "content", "blob", "meta", "score", "embedding", "sparse_embedding")


def read(spec: Any, place: Place) -> Filter | None:
    """The filter for Haystack's `spec`; None for an empty one. Raises `QueryError`."""
    return _read(spec, place) if place.a_mapping(spec) else None


def _read(spec: Any, place: Place) -> Filter:
    condition = place.a_mapping(spec)
    if "field" in condition:
        return _comparison(condition, place)
    for name in ("operator", "conditions"):
        if name not in condition:
            raise place.error(f"{name!r} is missing")
    operator, below = condition["operator"], place.inner("conditions")
    if operator not in ("AND", "OR", "NOT"):
        raise place.error(f"unknown operator {operator!r} of conditions; there are: AND, OR, NOT")
    inner = [_read(one, below.inner(number)) for number, one in enumerate(below.a_list(condition["conditions"]))]
    if operator == "OR":
        return place.either(inner)
    every = place.both(inner)
    return every if operator == "AND" else place.negate(every)


def _comparison(condition: Mapping[Any, Any], place: Place) -> Filter:
    for name in ("operator", "value"):
        if name not in condition:
            raise place.error(f"{name!r} is missing")
    key, operator, value = _key(condition["field"], place), condition["operator"], condition["value"]
    if operator in ("==", "!="):
        equal = _equality(key, value, place)
        return equal if operator == "==" else place.negate(equal)
    if operator in ("in", "not in"):
        below = place.inner("value")
        values = below.a_list(value)
        texts = [one for one in values if not isinstance(one, dt.date)]
        parts = [place.among(key, texts)]
        parts += [place.compare(key, "date ==", date) for one in values if (date := _date(one)) is not None]
        among = place.either(parts)
        return among if operator == "in" else place.negate(among)
    if operator not in _ORDERINGS:
        raise place.error(f"unknown operator {operator!r}; there are: {', '.join(_OPERATORS)}")
    if value is None:
        return NEVER
    if isinstance(value, (str, dt.date)):
        date = _date(value)
        if date is None:
            raise place.error(f"{operator!r} compares numbers and ISO 8601 dates, not {value!r}")
        return place.compare(key, f"date {operator}", date)
    return place.compare(key, operator, value)


def _key(field: Any, place: Place) -> str:
    if not isinstance(field, str) or not field:
        raise place.error(f"'field' must be a non-empty string, not {field!r}")
    if field.startswith(_META) and len(field) > len(_META):
        return field[len(_META) :]
    if field in _FIELDS or "." in field:
        raise place.error(f"'field' must be {_META}KEY, not {field!r}: filters are on the metadata")
    return field


def _equality(key: str, value: Any, place: Place) -> Filter:
    date = _date(value)
    if date is None:
        return place.equality(key, value)
    same = place.compare(key, "date ==", date)
    return same if isinstance(value, dt.date) else place.either([place.equality(key, value), same])


def _date(value: object) -> str | None:
    """The ISO 8601 text of a date; None for what is none."""
    if isinstance(value, dt.date):
        return value.isoformat()
    try:
        return value if isinstance(value, str) and read_moment(value) is not None else None
    except ValueError:
        return None
