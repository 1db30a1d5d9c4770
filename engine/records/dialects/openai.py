"""Filters of OpenAI's vector stores: ``{"type": "gt", "key": "year", "value": 2020}``, joined by ``and`` and ``or``.

A missing value passes ``ne`` and ``nin``.
"""

from __future__ import annotations

from typing import Any

from ..filters import Filter
from .place import Place, part_of

_ORDERINGS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TYPES = ("eq", "ne", *_ORDERINGS, "in", "nin", "and", "or")
_MISSING = object()


def read(spec: Any, place: Place) -> Filter | None:
    """The filter for OpenAI's `spec`; None for an empty one. Raises `QueryError`."""
    return None if spec == {} else _read(spec, place)


def _read(spec: Any, place: Place) -> Filter:
    kind = part_of(spec, "type")
    if kind in ("and", "or"):
        below = place.inner("filters")
        inner = [_read(one, below.inner(n)) for n, one in enumerate(below.a_list(part_of(spec, "filters")))]
        return place.both(inner) if kind == "and" else place.either(inner)
    if kind not in _TYPES:
        raise place.error(f"unknown type {kind!r}; there are: {', '.join(_TYPES)}")
    key, value = part_of(spec, "key"), part_of(spec, "value", _MISSING)
    if value is _MISSING:
        raise place.error("'value' is missing")
    if kind in ("eq", "ne"):
        equal = place.equality(key, value)
        return equal if kind == "eq" else place.negate(equal)
    if kind in ("in", "nin"):
        among = place.among(key, place.inner("value").a_list(value))
        return among if kind == "in" else place.negate(among)
    return place.compare(key, _ORDERINGS[kind], value)
