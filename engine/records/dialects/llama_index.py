"""Filters of LlamaIndex: `MetadataFilters` objects or their dictionaries, compared as its `SimpleVectorStore` does.

Filters may be nested. A missing value passes ``!=``, ``nin`` and ``is_empty`` alone, and the condition ``not`` passes
where none of its filters does. Where that store raises an error at a node, the node does not match.
"""

from __future__ import annotations

import re
from typing import Any

from ..filters import Filter
from .place import ALWAYS, NEVER, Place, part_of, word_of

_ORDERINGS = (">", "<", ">=", "<=")
_OPERATORS = (
    *("==", "!=", *_ORDERINGS, "in", "nin", "any", "all"),
    *("text_match", "text_match_insensitive", "contains", "is_empty"),
)
_MISSING = object()


def read(spec: Any, place: Place) -> Filter | None:
    """The filter for LlamaIndex's `spec`; None for one without filters. Raises `QueryError`."""
    if spec == {}:
        return None
    inner = part_of(spec, "filters")
    if part_of(spec, "key", _MISSING) is _MISSING and isinstance(inner, (list, tuple)) and not inner:
        return None
    return _read(spec, place)


def _read(spec: Any, place: Place) -> Filter:
    if part_of(spec, "key", _MISSING) is not _MISSING:
        operator = part_of(spec, "operator", "==")
        return _comparison(part_of(spec, "key"), word_of(operator), part_of(spec, "value"), place)
    filters = part_of(spec, "filters", _MISSING)
    if filters is _MISSING:
        raise place.error(f"must be MetadataFilters, or have 'key' or 'filters', not {type(spec).__name__}")
    below = place.inner("filters")
    inner = [_read(one, below.inner(number)) for number, one in enumerate(below.a_list(filters))]
    if not inner:
        return ALWAYS
    condition = word_of(part_of(spec, "condition"))
    if condition is None or condition == "and":
        return place.both(inner)
    if condition == "or":
        return place.either(inner)
    if condition == "not":
        return place.negate(place.either(inner))
    raise place.error(f"unknown condition {condition!r}; there are: and, or, not")


def _comparison(key: Any, operator: Any, value: Any, place: Place) -> Filter:
    if operator == "is_empty":
        return place.either([place.compare(key, "in", [None, ""]), place.compare(key, "equals", [])])
    if operator in ("==", "!="):
        equal = NEVER if value is None else place.equality(key, value)
        return equal if operator == "==" else place.negate(equal)
    if operator in _ORDERINGS or operator == "contains":
        return place.compare(key, operator, value)
    if operator in ("in", "nin"):
        among = place.among(key, [one for one in place.inner("value").a_list(value) if one is not None])
        return among if operator == "in" else place.negate(among)
    if operator in ("any", "all"):
        return place.compare(key, operator, place.inner("value").a_list(value))
    if operator in ("text_match", "text_match_insensitive"):
        if not isinstance(value, str):
            raise place.error(f"{operator!r} takes a string, not {value!r}")
        pattern = "%" + re.sub(r"([\\%_])", r"\\\1", value) + "%"
        return place.compare(key, "like" if operator == "text_match" else "ilike", pattern)
    raise place.error(f"unknown operator {operator!r}; there are: {', '.join(_OPERATORS)}")
