"""``POST /v1/VERB``: the verbs that a memory offers by their declaration (engine/offered.py), an address for each."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..engine.memory import Memory
from ..engine.offered import REST, Offered, offered_at
from .access import Principal, check_reach, principal_of
from .answer_limits import too_large
from .bodies import as_filter, in_thread_if_large, read_json, read_parameters, require, take
from .cancelling import Cancellation, in_thread
from .changes import read_ids
from .journal import journaled
from .limits import Limits
from .problems import Problem
from .state import state_of

_TIMES = (str, int, float)
_KINDS: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "strings": list}
_KINDS |= {"object": dict, "filter": dict, "moment": _TIMES, "span": _TIMES}


def _endpoint(verb: Offered) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        state, principal = state_of(request), principal_of(request)
        read_parameters(request, ())
        body = await read_json(request, state.limits, (*verb.parameters, *(["namespace"] * verb.in_namespace)))
        given = await in_thread_if_large(request, read_arguments, verb, body, principal, state.limits)

        def work() -> str:
            written = json.dumps({verb.name: answer_of(verb, state.engine, given)})
            if len(written) > state.limits.answer_bytes:
                raise too_large(state.limits)
            return written

        if not verb.writes:
            cancellation = Cancellation.of(request)
            return Response(await in_thread(request, work, cancellation=cancellation), media_type="application/json")
        namespaces = (given.get("namespace", ""),) if verb.in_namespace else (None,)
        with journaled(verb.name, namespaces, ids=given.get("ids", ()), arguments=body):
            return Response(await in_thread(request, work, finish=True), media_type="application/json")

    answer.__doc__ = verb.about
    return answer


def answer_of(verb: Offered, memory: Memory, given: Mapping[str, Any]) -> Any:
    """What the verb of a memory gives, as JSON values."""
    return verb.to_json(getattr(memory, verb.name)(**given))


def read_arguments(verb: Offered, values: dict[str, Any], principal: Principal, limits: Limits) -> dict[str, Any]:
    """The arguments of a verb, whose caller may use it. Raises `Problem`."""
    given: dict[str, Any] = {}
    if verb.in_namespace:
        given["namespace"] = take(values, "namespace", str, verb.namespace)
    check_reach(principal, None if verb.whole else given.get("namespace"), write=verb.writes)
    for name, field in verb.parameters.items():
        value = (require if field.required else take)(values, name, _KINDS[field.kind])
        if field.kind == "filter" and value is not None:
            filter = as_filter(value, name, limits)
            value = {} if filter is None else filter
        if field.kind == "strings" and value is not None:
            value = read_ids(value, limits, name)
        if name == "k" and value is not None and value > limits.k:
            raise Problem(422, "TooManyHits", f"k may be {limits.k:,}, not {value:,}", field="k")
        # Null says something where another value is the default.
        if value is not None or (name in values and field.default is not None):
            given[name] = value
    return given


ENDPOINTS = [(verb, _endpoint(verb)) for verb in offered_at(REST)]
ROUTES = {f"/v1/{verb.name}": endpoint for verb, endpoint in ENDPOINTS}
"""The endpoints by their addresses."""
