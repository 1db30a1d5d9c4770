"""Reads a query from a JSON object: the form of one line of a query file."""

from __future__ import annotations

from typing import Any

from ..errors import FanrankError, RecordError
from .query import Query, SearchScope

QUERY_FIELDS = (
    "id", "text", "k", "now", "filter", "namespace", "terms", "half_life", "since", "until", "windows", "statistics",
    "vector", "model", "weights", "type", "entities", "hints", "last_session_end", "timezone",
    "namespaces", "under", "strategy", "offset", "min_score", "distinct", "newest",
    "neighbours",
)  # fmt: skip
# Each scope and its default number of hits (C008).
SCOPES: dict[Any, int] = {"session": 3, "user": 2}


def parse_query(data: Any) -> Query:
    """The query that a JSON object describes. Raises `RecordError`."""
    if not isinstance(data, dict):
        raise RecordError("a query must be a JSON object")
    known = {*QUERY_FIELDS, *SCOPES}
    unknown = sorted(set(data) - known - {"_id", "metadata"})
    if unknown:
        raise RecordError(f"a query has no {unknown[0]!r}; it may have: {', '.join(sorted(known))}")
    values = {key: value for key, value in data.items() if key in QUERY_FIELDS}
    if "id" not in values and "_id" in data:
        values["id"] = data["_id"]
    try:
        scopes = [SearchScope(name, data[name], SCOPES[name]) for name in SCOPES if data.get(name) is not None]
        if len(scopes) > 1:
            raise RecordError("a query has one scope: a session or a user")
        return Query(**values, scope=scopes[0] if scopes else None)
    except (FanrankError, TypeError) as error:
        raise RecordError(str(error)) from None
