"""``/v1/records`` and ``/v1/namespaces``: records are written, read, listed and deleted."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..engine.carry.rows import from_json, to_json
from ..engine.errors import ParameterError, RecordError, UnknownIdError
from ..engine.records.record import Record
from ..engine.signatures import KEEP, check_twins
from .access import Principal, check_read, check_write, principal_of
from .answer_limits import too_large
from .bodies import in_thread_if_large, read_filter, read_json, read_parameters, require, take
from .cancelling import Cancellation, in_thread
from .changes import change, read_ids, read_selection
from .encoding import json_response
from .limits import Limits
from .problems import Problem
from .record_limits import check_record, may_be_large
from .spans import CREATE, DELETE, UPDATE, UPSERT
from .state import state_of

WRITE_FIELDS = ("records", "namespace", "mode", "ttl", "twins")
FETCH_FIELDS = ("ids", "namespace")
DELETE_FIELDS = ("ids", "filter", "namespace", "missing_ok")
MODES = {"add": CREATE, "update": UPDATE, "upsert": UPSERT}
"""Ways to write, and how traces call them."""
COUNT_PARAMETERS = ("namespace", "filter")
LIST_PARAMETERS = ("namespace", "filter", "order", "reverse", "after", "limit")
NAMESPACE_PARAMETERS = ("after", "limit")
PAGE, LONGEST_PAGE = 100, 1_000
MOST_NAMESPACES = 1_000
"""Namespaces of a page, and how many it has where the request does not say."""
AT_ONCE = 64
"""Records that are read at once. In between the answer's size is looked at, and whether it is still wanted."""


async def write(request: Request) -> Response:
    """Write records, durably and all or none: ``add``, ``update`` or ``upsert``."""
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    body = await read_json(request, state.limits, WRITE_FIELDS)
    mode = take(body, "mode", str, "add")
    if mode not in MODES:
        raise Problem(422, "InvalidField", f"mode must be one of {', '.join(MODES)}", field="mode")
    records = await in_thread_if_large(request, _read_records, request, body, principal, state.limits)
    ttl, twins = take(body, "ttl", (str, int, float)), body.get("twins", KEEP)
    if twins != KEEP:
        try:
            check_twins(take(body, "twins", str))
        except ParameterError as error:
            raise Problem.of(error, field="twins") from None
    if mode != "add" and twins != KEEP:
        raise Problem(422, "InvalidField", "twins are for new records: leave it out, or add", field="twins")
    try:
        work, awaited = getattr(state.engine, mode), getattr(state.engine, f"a{mode}")
        namespaces = (record.namespace for record in records)
        counts: dict[str, Any] = {"records": len(records), "written": records}
        counts |= {} if twins == KEEP else {"twins": twins}
        count = await change(request, MODES[mode], namespaces, work, records, awaited=awaited, ttl=ttl, **counts)
    except RecordError as error:
        raise Problem.of(error, field="records") from None
    answer = {"written": count} if twins == KEEP else {"written": count, "twins": getattr(count, "twins", [])}
    return json_response(answer, 201 if mode == "add" else 200)


def _read_records(request: Request, body: dict[str, Any], principal: Principal, limits: Limits) -> list[Record]:
    given = require(body, "records", list)
    if len(given) > limits.records:
        raise Problem(422, "TooManyRecords", f"a write may have {limits.records:,} records", field="records")
    namespace = take(body, "namespace", str)
    measured, records = may_be_large(request, limits), []
    for place, data in enumerate(given):
        field = f"records[{place}]"
        if not isinstance(data, dict):
            raise Problem(422, "RecordError", "a record must be an object", field=field)
        if namespace is not None:
            data = {"namespace": namespace, **data}
        try:
            record, _ = from_json(data)
        except RecordError as error:
            raise Problem.of(error, field=field) from None
        check_write(principal, record.namespace, f"{field}.namespace")
        check_record(record, field, limits, payload=measured)
        records.append(record)
    if not records:
        check_write(principal, namespace or "", "namespace")
    return records


async def remove(request: Request) -> Response:
    """Delete the records with these ids, or all that pass a filter: all of them, or none after an error."""
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    body = await read_json(request, state.limits, DELETE_FIELDS)
    namespace = take(body, "namespace", str, "")
    check_write(principal, namespace, "namespace")
    ids, filter, missing_ok = await in_thread_if_large(request, read_selection, body, state.limits)
    if ids is not None:
        count = await _delete(request, namespace, ids, missing_ok=missing_ok)
    else:
        work = partial(state.engine.delete_where, {} if filter is None else filter, namespace=namespace)
        count = await change(request, DELETE, (namespace,), work, said={"filter": body["filter"]})
    return json_response({"deleted": count})


async def remove_one(request: Request) -> Response:
    """Delete one record."""
    principal = principal_of(request)
    namespace = read_parameters(request, ("namespace",)).get("namespace", "")
    check_write(principal, namespace, "namespace")
    name = request.path_params["id"]
    return json_response({"deleted": await _delete(request, namespace, [name], id=name)})


async def _delete(
    request: Request, namespace: str, ids: list[str], *, missing_ok: bool = False, id: str | None = None
) -> int:
    engine = state_of(request).engine
    work = partial(engine.delete, ids, namespace=namespace, missing_ok=missing_ok)
    awaited = partial(engine.adelete, ids, namespace=namespace, missing_ok=missing_ok)
    return await change(request, DELETE, (namespace,), work, awaited=awaited, records=len(ids), id=id, ids=ids)


async def fetch(request: Request) -> Response:
    """One record, whole."""
    state, principal = state_of(request), principal_of(request)
    namespace, name = read_parameters(request, ("namespace",)).get("namespace", ""), request.path_params["id"]
    check_read(principal, namespace, "namespace")
    (record,) = await in_thread(request, partial(state.engine.fetch, [name], namespace=namespace))
    if record is None:
        raise UnknownIdError(f"no record {name!r}")
    return json_response(to_json(record, None))


async def fetch_many(request: Request) -> Response:
    """The records with these ids, whole and in their order; null for an id that is not there."""
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    body = await read_json(request, state.limits, FETCH_FIELDS)
    namespace = take(body, "namespace", str, "")
    check_read(principal, namespace, "namespace")
    ids, cancellation = read_ids(require(body, "ids", list), state.limits), Cancellation.of(request)

    def answer() -> str:
        texts = dict[str, str]()
        size = 0

        def take(names: Sequence[str], records: Sequence[Record | None]) -> None:
            nonlocal size
            for name, record in zip(names, records, strict=True):
                cancellation.check()
                # Shards may begin anew.
                size -= len(texts.get(name, ""))
                texts[name] = json.dumps(None if record is None else to_json(record))
                size += len(texts[name])
                if size > state.limits.answer_bytes:
                    raise too_large(state.limits)

        # An id that is given again and again costs one record.
        state.engine.searcher.fetch_parts(list(dict.fromkeys(ids)), namespace, AT_ONCE, take)
        if sum(len(texts[name]) for name in ids) > state.limits.answer_bytes:
            raise too_large(state.limits)
        return f'{{"records": [{", ".join(texts[name] for name in ids)}]}}'

    cost = len(ids)
    return Response(
        await in_thread(request, answer, cancellation=cancellation, cost=cost), media_type="application/json"
    )


async def count(request: Request) -> Response:
    """How many records of a namespace pass a filter."""
    state, principal = state_of(request), principal_of(request)
    given = read_parameters(request, COUNT_PARAMETERS)
    namespace = given.get("namespace", "")
    check_read(principal, namespace, "namespace")
    wanted = read_filter(given["filter"], state.limits) if "filter" in given else None
    return json_response({"count": await in_thread(request, partial(state.engine.count, wanted, namespace=namespace))})


async def list_records(request: Request) -> Response:
    """A page of records, in the order of their last write unless it names another; with a filter those that pass."""
    state, principal = state_of(request), principal_of(request)
    given = read_parameters(request, LIST_PARAMETERS)
    namespace = given.get("namespace", "")
    check_read(principal, namespace, "namespace")
    limit = _read_limit(given, PAGE, LONGEST_PAGE)
    reverse = given.get("reverse", "false")
    if reverse not in ("true", "false"):
        raise Problem(422, "InvalidField", "reverse must be true or false", field="reverse")
    filter = read_filter(given["filter"], state.limits) if "filter" in given else None
    cancellation = Cancellation.of(request)

    def page() -> str:
        listing = state.engine.records(
            filter=filter,
            namespace=namespace,
            order=given.get("order", "written"),
            reverse=reverse == "true",
            after=given.get("after"),
            limit=limit,
        )
        rows: list[str] = []
        size = 0
        for record in listing:
            cancellation.check()
            rows.append(json.dumps(to_json(record, None)))
            size += len(rows[-1])
            if size > state.limits.answer_bytes:
                # The rest of the page is the next one.
                break
        return f'{{"records": [{", ".join(rows)}], "after": {json.dumps(listing.cursor)}}}'

    written = await in_thread(request, page, cancellation=cancellation, cost=limit)
    return Response(written, media_type="application/json")


async def list_namespaces(request: Request) -> Response:
    """A page of the namespaces that the caller may read, by name, with the number of their records.

    ``after`` is there where more follow.
    """
    state, principal = state_of(request), principal_of(request)
    given = read_parameters(request, NAMESPACE_PARAMETERS)
    limit, after = _read_limit(given, MOST_NAMESPACES, MOST_NAMESPACES), given.get("after")

    def page() -> dict[str, Any]:
        names = sorted(state.engine.namespaces)
        names = names[0 if after is None else bisect_right(names, after) :]
        some = list(islice(filter(principal.allows, names), limit + 1))
        rows = [{"namespace": name, "records": state.engine.count(namespace=name)} for name in some[:limit]]
        return {"namespaces": rows, **({"after": some[limit - 1]} if len(some) > limit else {})}

    return json_response(await in_thread(request, page))


def _read_limit(given: Mapping[str, str], default: int, most: int) -> int:
    limit = given.get("limit", str(default))
    if not limit.isascii() or not limit.isdecimal() or len(limit) > 9 or not 1 <= int(limit) <= most:
        raise Problem(422, "InvalidField", f"limit must be 1 to {most:,}", field="limit")
    return int(limit)
