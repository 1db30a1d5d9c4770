"""A query as a JSON object: the form of one line of a query file, and of a query that is sent to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import FanrankError, RecordError, refuse_unknown
from ..vectors.carried import halves_from_json, halves_to_json
from .filters import Filter
from .neighbours import Neighbours
from .query import FIELDS, SCORED, SPACES, Query, SearchScope

SCOPE = "scope"
"""The field of a scope with all that it says: ``{"column": "session", "id": "s1", "limit": 5}``."""
QUERY_FIELDS = tuple(name for name in FIELDS if name != SCOPE)
# Each scope and its default number of hits (C008).
SCOPES: dict[Any, int] = {"session": 3, "user": 2}
_KNOWN = {*QUERY_FIELDS, *SCOPES, SCOPE, "_id", "metadata"}


def parse_query(data: Any) -> Query:
    """The query that a JSON object describes; a field that is null is left out. Raises `RecordError`."""
    if not isinstance(data, dict):
        raise RecordError("a query must be a JSON object")
    if unknown := data.keys() - _KNOWN:
        refuse_unknown(sorted(unknown), sorted((*QUERY_FIELDS, *SCOPES, SCOPE)), "a query has no", RecordError)
    values = {key: value for key, value in data.items() if key in QUERY_FIELDS and value is not None}
    if "id" not in values and "_id" in data:
        values["id"] = data["_id"]
    try:
        if isinstance(values.get("vector"), Mapping):
            values["vector"] = _vector_of(values["vector"])
        return Query(**values, scope=parse_scope(data))
    except (FanrankError, TypeError) as error:
        raise RecordError(str(error)) from None


def fill(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a query with these values in those that it does not have; null is none.

    It has one scope, and one way to say where it searches. One for the newest records is not scored.
    """
    own = {name for name, value in data.items() if value is not None}
    for way in (SPACES, (*SCOPES, SCOPE)):
        own |= {*way} if not own.isdisjoint(way) else set()
    own |= {*SCORED} if data.get("newest") is True else set()
    return {**data, **{name: value for name, value in defaults.items() if name not in own}}


def parse_scope(data: Mapping[str, Any]) -> SearchScope | None:
    """The scope that an object names as ``session``, ``user`` or ``scope``. Raises `RecordError` and `QueryError`."""
    scopes = [SearchScope(name, data[name], SCOPES[name]) for name in SCOPES if data.get(name) is not None]
    if data.get(SCOPE) is not None:
        scopes.append(_scope_of(data[SCOPE]))
    if len(scopes) > 1:
        raise RecordError("a query has one scope: a session or a user")
    return scopes[0] if scopes else None


def _scope_of(value: Any) -> SearchScope:
    if isinstance(value, SearchScope):
        return value
    if isinstance(value, Mapping):
        refuse_unknown(value, ("column", "id", "limit"), "a query's 'scope' has no", RecordError)
    if not isinstance(value, Mapping) or not {"column", "id"} <= {*value}:
        raise RecordError("a query's 'scope' must be an object with 'column', 'id' and 'limit'")
    return SearchScope(value["column"], value["id"], value.get("limit"))


def _vector_of(value: Mapping[str, Any]) -> Any:
    try:
        return halves_from_json(value)
    except ValueError as error:
        raise RecordError(f"a query's 'vector' {error}") from None


def query_to_json(query: Query) -> dict[str, Any]:
    """The query as JSON values, without the fields that it leaves at their defaults. `parse_query` reads it back.

    The vector keeps its bits. A strategy is its name or its ``to_dict``.
    """
    values: dict[str, Any] = {}
    for name in QUERY_FIELDS:
        value = getattr(query, name)
        # A vector is an array, which has no one truth.
        if value is None or (name != "vector" and value == _DEFAULTS[name]):
            continue
        if name == "strategy":
            value = value if isinstance(value, (str, Mapping)) else value.to_dict()
        elif isinstance(value, (Filter, Neighbours)):
            value = value.to_dict()
        elif isinstance(value, Mapping):
            value = dict(value.items())
        elif isinstance(value, tuple):
            value = list(value)
        elif name == "vector":
            value = halves_to_json(value)
        elif hasattr(value, "item"):  # a scalar of numpy
            value = value.item()
        values[name] = value
    if query.scope is not None:
        values[SCOPE] = {"column": query.scope.column, "id": query.scope.id, "limit": query.scope.limit}
    return values


_DEFAULTS = {name: getattr(Query(), name) for name in QUERY_FIELDS}
