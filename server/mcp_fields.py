"""The fields of a query that the tool `search_memory` takes by their declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from pydantic import Field

from ..engine.records.declared import declared
from ..engine.records.query import DEFAULTS, Query

MOMENT = "ISO 8601, such as 2026-03-01, or seconds since 1970 UTC."
NOT_OFFERED = {
    *("namespace", "namespaces", "under", "newest"),
    *("now", "half_life", "statistics", "timezone", "last_session_end", "type", "entities", "hints"),
    *("offset", "min_score", "distinct"),
}
"""The fields that `search_memory` leaves out: another argument or tool has their place, or a model has no use for them
that is worth what each argument costs to read."""
OFFERED = {name: each for name, each in declared(Query, DEFAULTS - NOT_OFFERED).items() if each.kind != "other"}
"""The fields that it takes by their declaration."""


def with_fields(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the offered fields of a query as parameters, in place of its ``**fields``."""
    signature = inspect.signature(function, eval_str=True)
    plain = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(plain) == len(signature.parameters):
        return function

    @wraps(function)
    async def taken(**arguments: Any) -> Any:
        return await function(**arguments)

    for name, field in OFFERED.items():
        moment = field.kind == "moment"
        kind: Any = str | float | None if moment else field.type
        about = f"{field.about.text} {MOMENT}" if moment else field.about.text
        said = Field(default=field.default, description=about)
        plain.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=said, annotation=kind))
    parameters: Any = taken
    parameters.__signature__ = signature.replace(parameters=plain)
    parameters.__annotations__ = {each.name: each.annotation for each in plain}
    return taken
