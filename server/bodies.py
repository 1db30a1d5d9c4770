"""A request's body: read within its limit, as a JSON object whose fields are known."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import types
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from ..engine.errors import QueryError, choices
from ..engine.records.filters import Filter, columns_in, parse_filter
from .access import ANYONE, principal_of
from .cancelling import in_thread
from .encoding import decode
from .limits import Limits
from .problems import RETRY_AFTER, Problem
from .state import header_of, state_of

T = TypeVar("T")

HELD = "fanrank.held"
"""Where a request keeps how many bytes of its body are held. `app.py` gives them back at its end."""
DEPTH = 64
"""How deeply a body may be nested. Filters have a bound of their own below it."""

LARGE_BODY = 64 << 10
"""Bytes of a body from which on it is read in a thread: a body of 7 MB that is one filter takes 2 seconds."""
LARGE = re.compile(r"\d[eE]\+?\d{3}|\d{300}")
"""A number that may lie beyond float64."""


async def read_json(request: Request, limits: Limits, fields: Collection[str] | None) -> dict[str, Any]:
    """The JSON object of a request, which may have these fields and no others; None: any. Raises `Problem`."""
    check_json(request)
    return await in_thread_if_large(request, _read, await read_bytes(request, limits), fields)


async def in_thread_if_large(request: Request, function: Callable[..., T], *arguments: Any) -> T:
    """What the function returns. It runs in a thread where the request has a large body, as it may take seconds."""
    if request.scope.get(HELD, 0) < LARGE_BODY:
        return function(*arguments)
    work, cost = partial(function, *arguments), request.scope[HELD]
    return await in_thread(request, work, threads=state_of(request).parsers, cost=cost)


def _read(content: bytes, fields: Collection[str] | None) -> dict[str, Any]:
    decoded = decode(content)
    body = _parse(content) if decoded is None else decoded[0]
    if not isinstance(body, dict):
        raise Problem(422, "InvalidBody", "the body must be a JSON object")
    # Each level has a bracket, so most bodies need not be walked through, which takes 136 us for 20 vectors.
    if content.count(b"[") + content.count(b"{") > DEPTH and _is_deeper(body, DEPTH):
        raise Problem(422, "InvalidBody", f"the body is nested more than {DEPTH} deep")
    if fields is not None:
        _check_known(body, fields)
    return body


def _parse(content: bytes) -> Any:
    text = content.decode("utf-8", "surrogateescape")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Problem(400, "InvalidEncoding", f"the body is not UTF-8, at character {error.start}") from None
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_float_of(text))
    except RecursionError:
        raise Problem(400, "InvalidJson", f"the body is nested more than {DEPTH} deep") from None
    except ValueError as error:
        raise Problem(400, "InvalidJson", f"the body is not JSON: {error}") from None


def check_json(request: Request) -> None:
    """Raise `Problem` 415 unless the body is sent as JSON. A page can send text to another site unasked, JSON not."""
    sent = [value for name, value in request.scope["headers"] if name == b"content-type"]
    if len(sent) != 1 or sent[0].partition(b";")[0].strip().lower() != b"application/json":
        raise Problem(415, "UnsupportedMediaType", "send the body with Content-Type: application/json")


async def read_bytes(request: Request, limits: Limits) -> bytes:
    """The body of a request, within its limits of size and time. Raises `Problem` 408, 413 and 503."""
    sent = header_of(request, b"content-length") or ""
    if sent.isdecimal() and len(sent) < 16 and int(sent) > limits.body_bytes:
        raise _too_large(limits)
    receiving = _receive(request, limits)
    try:
        # Most bodies have come by now. A limit of time that is set and taken back makes 20 calls of functions.
        waiting = receiving.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    except ClientDisconnect:
        raise _disconnected() from None
    try:
        if sys.version_info >= (3, 11):
            # Without a task of its own, which takes 18 us more.
            async with asyncio.timeout(limits.body_seconds):
                return await _go_on(receiving, waiting)
        return await asyncio.wait_for(_go_on(receiving, waiting), limits.body_seconds)
    except ClientDisconnect:
        raise _disconnected() from None
    except asyncio.TimeoutError:
        raise Problem(408, "BodyTimeout", f"the body did not arrive within {limits.body_seconds:g} s") from None


@types.coroutine
def _go_on(work: Coroutine[Any, Any, T], waiting: Any) -> Generator[Any, Any, T]:
    """What a coroutine returns that was begun by hand, and waits for this."""
    while True:
        try:
            step = partial(work.send, (yield waiting))
        except BaseException as error:
            step = partial(work.throw, error)
        try:
            waiting = step()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def _disconnected() -> Problem:
    return Problem(400, "ClientDisconnected", "the connection ended within the body")


def read_parameters(request: Request, names: Collection[str]) -> dict[str, str]:
    """The parameters of a request's address, which may have these names, each once. Raises `Problem`."""
    if not request.scope["query_string"]:
        return {}
    given = request.query_params
    _check_known(given, names)
    for name in given:
        if len(given.getlist(name)) > 1:
            raise Problem(422, "InvalidField", f"{name} is given more than once", field=name)
    return dict(given)


def read_filter(text: str, limits: Limits) -> Filter | None:
    """A filter in a parameter of the address, as JSON. Raises `Problem`."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_float_of(text))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or _is_deeper(value, DEPTH):
        raise Problem(422, "InvalidField", 'filter must be a JSON object, such as {"role": "tool"}', field="filter")
    return as_filter(value, "filter", limits)


def as_filter(value: Mapping[str, Any], field: str, limits: Limits) -> Filter | None:
    """The filter that an object describes; None where it says nothing. Raises `Problem`."""
    try:
        filter = parse_filter(value)
    except QueryError as error:
        raise Problem.of(error, field=field) from None
    check_filter(filter, field, limits)
    return filter


def check_filter(filter: Filter | None, field: str, limits: Limits) -> None:
    """Raise `Problem` for a filter beyond the limits."""
    if filter is None:
        return
    if filter.depth > limits.filter_depth:
        raise Problem(422, "FilterTooDeep", f"a filter may be nested {limits.filter_depth} deep", field=field)
    if sum(1 for _ in columns_in(filter)) > limits.comparisons:
        detail = f"a filter may have {limits.comparisons:,} comparisons; one with a list of values counts once"
        raise Problem(422, "FilterTooLarge", detail, field=field)


def _check_known(given: Iterable[str], names: Collection[str]) -> None:
    unknown = set(given).difference(names)
    if unknown:
        first = min(unknown)
        known = choices(first, sorted(names))
        raise Problem(422, "UnknownField", f"there is no {first!r}{known}", field=first)


async def _receive(request: Request, limits: Limits) -> bytes:
    state, principal, parts, size = state_of(request), principal_of(request), [], 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        state.body_bytes += len(part)
        state.body_bytes_of[principal.name] += len(part)
        request.scope[HELD] = size
        if size > limits.body_bytes:
            raise _too_large(limits)
        # Small bodies always find room: so many as may be under way have 64 MiB, and large ones cannot keep them out.
        if size > LARGE_BODY:
            headers = {"Retry-After": RETRY_AFTER}
            if principal.name != ANYONE.name and state.body_bytes_of[principal.name] > limits.bodies_bytes_per_key:
                detail = "too many bytes of bodies with this key are under way; come back"
                raise Problem(429, "TooManyRequests", detail, headers=headers)
            if state.body_bytes > limits.bodies_bytes:
                raise Problem(503, "OverloadedError", "too many bodies are under way; come back", headers=headers)
        parts.append(part)
    return b"".join(parts)


def _too_large(limits: Limits) -> Problem:
    return Problem(413, "BodyTooLarge", f"the body may have {limits.body_bytes:,} bytes; send it in parts")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _float_of(text: str) -> Callable[[str], float] | None:
    """What reads the numbers of a text: None, which is fastest, where none of them can lie beyond float64."""
    return _finite if LARGE.search(text) else None


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits:.40} lies beyond float64")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def take(body: dict[str, Any], name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of the body, of one of these types; `default` where it is missing or null. Raises `Problem`."""
    value = body.get(name)
    if value is None:
        return default
    expected = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        names |= {list: "a list", dict: "an object"}
        wanted = " or ".join(names[kind] for kind in expected)
        raise Problem(422, "InvalidField", f"{name} must be {wanted}", field=name)
    return value


def require(body: dict[str, Any], name: str, kinds: type | tuple[type, ...]) -> Any:
    """As `take`, of a field that must be there."""
    value = take(body, name, kinds)
    if value is None:
        raise Problem(422, "MissingField", f"{name} is missing", field=name)
    return value
