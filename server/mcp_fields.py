"""Arguments of tools by their declaration: fields of queries and of records, and parameters of verbs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from pydantic import Field

from ..engine.records.declared import Declared, declared
from ..engine.records.query import DEFAULTS, Query

MOMENT = "ISO 8601, such as 2026-03-01, or seconds since 1970 UTC."
NOT_OFFERED = {
    *("namespace", "namespaces", "under", "newest"),
    *("now", "half_life", "statistics", "timezone", "last_session_end", "type", "entities", "hints"),
    *("offset", "min_score"),
}
"""The fields that `search_memory` leaves out: another argument or tool has their place, or a model has no use for them
that is worth what each argument costs to read."""
OFFERED = {name: each for name, each in declared(Query, DEFAULTS - NOT_OFFERED).items() if each.kind != "other"}
"""The fields that it takes by their declaration."""


_KINDS: dict[str, Any] = {
    "moment": str | float,
    "span": str | float,
    "filter": dict[str, Any],
    "object": dict[str, Any],
}


def argument(field: Declared) -> tuple[Any, Any]:
    """The type of an argument, and what is said of it."""
    about = f"{field.about.text} {MOMENT}" if field.kind == "moment" else field.about.text
    kind = list[str] if field.kind == "strings" else _KINDS.get(field.kind, field.type)
    if field.required:
        return kind, Field(description=about)
    return kind | None if field.kind in _KINDS else kind, Field(default=field.default, description=about)


def with_fields(function: Callable[..., Any], fields: Mapping[str, Declared]) -> Callable[..., Any]:
    """The function with these fields as parameters, in place of its ``**fields``."""
    signature = inspect.signature(function, eval_str=True)
    plain = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(plain) == len(signature.parameters):
        return function

    @wraps(function)
    async def taken(**arguments: Any) -> Any:
        return await function(**arguments)

    for name, field in fields.items():
        kind, said = argument(field)
        plain.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=said, annotation=kind))
    parameters: Any = taken
    parameters.__signature__ = signature.replace(parameters=plain)
    parameters.__annotations__ = {each.name: each.annotation for each in plain}
    return taken
