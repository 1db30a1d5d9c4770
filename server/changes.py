"""Records and namespaces are changed where they are: ``PATCH`` and ``PUT`` of records, ``DELETE`` of a namespace."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from errno import ENOSPC
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..engine.carry.rows import from_json
from ..engine.errors import FanrankError, RecordError, StorageError, UnknownIdError
from ..engine.records.filters import Filter
from ..engine.records.record import Record
from .access import check_write, principal_of
from .bodies import HELD, LARGE_BODY, as_filter, in_thread_if_large, read_json, read_parameters, require, take
from .cancelling import in_thread
from .encoding import json_response
from .limits import Limits
from .problems import Problem
from .quotas import Growths, Hold
from .record_limits import check_payload, check_record, may_be_large
from .spans import DELETE_STORE, UPDATE, UPSERT
from .state import state_of
from .turns import Queues
from .watched import write_engine

PATCH_FIELDS = ("ids", "filter", "changes", "namespace", "missing_ok")


async def patch(request: Request) -> Response:
    """Change some fields of the records with these ids, or of all that pass a filter; the other fields stay."""
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    body = await read_json(request, state.limits, PATCH_FIELDS)
    namespace = take(body, "namespace", str, "")
    check_write(principal, namespace, "namespace")
    changes = require(body, "changes", dict)
    if may_be_large(request, state.limits):
        check_payload(changes.get("payload"), "changes.payload", state.limits)
    ids, filter, missing_ok = await in_thread_if_large(request, read_selection, body, state.limits)
    if ids is not None:
        work = partial(state.engine.patch, ids, changes, namespace=namespace, missing_ok=missing_ok)
    else:
        work = partial(state.engine.update_where, {} if filter is None else filter, changes, namespace=namespace)

    def patched() -> Growths:
        """What the change adds at most."""
        many = state.engine.count(filter, namespace=namespace) if ids is None else len(ids)
        return {namespace: (0, many * len(json.dumps(changes).encode()))}

    try:
        number, said = None if ids is None else len(ids), {"changes": changes, "filter": body.get("filter")}
        count = await change(
            request, UPDATE, (namespace,), work, records=number, patch=patched, ids=ids or (), said=said
        )
    except UnknownIdError:
        raise
    except FanrankError as error:
        field = "changes" if isinstance(error, RecordError) else None
        raise Problem.of(error, field=field) from None
    return json_response({"patched": count})


async def put(request: Request) -> Response:
    """Write one record, whole: the record of this id is replaced, or added where there is none."""
    state, principal = state_of(request), principal_of(request)
    namespace, name = read_parameters(request, ("namespace",)).get("namespace", ""), request.path_params["id"]
    check_write(principal, namespace, "namespace")
    body = await read_json(request, state.limits, None)
    for field, value in (("id", name), ("namespace", namespace)):
        if body.get(field, value) != value:
            raise Problem(422, "InvalidField", f"{field} is {value!r} by the address; leave it out", field=field)
    try:
        record, _ = from_json({**body, "id": name, "namespace": namespace})
        check_record(record, None, state.limits, payload=may_be_large(request, state.limits))
        count = await change(
            request,
            UPSERT,
            (namespace,),
            state.engine.upsert,
            [record],
            awaited=state.engine.aupsert,
            records=1,
            id=name,
            written=[record],
        )
    except RecordError as error:
        raise Problem.of(error) from None
    return json_response({"written": count})


async def drop(request: Request) -> Response:
    """Delete a namespace with all its records and what was learned of it. One that is not there is no error."""
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    name = request.path_params["namespace"]
    if not name:
        detail = "name the namespace; records of the namespace without a name are deleted by id or by filter"
        raise Problem(422, "MissingField", detail, field="namespace")
    check_write(principal, name, "namespace")

    def drop_it() -> int:
        state.engine.drop(name)
        return 0

    await change(request, DELETE_STORE, (name,), drop_it)
    return json_response({"dropped": name})


async def change(
    request: Request,
    operation: str,
    namespaces: Iterable[str],
    blocking: Callable[..., int],
    *given: Any,
    awaited: Callable[..., Awaitable[int]] | None = None,
    records: int | None = None,
    id: str | None = None,
    ids: Sequence[str] = (),
    said: Mapping[str, Any] | None = None,
    written: Sequence[Record] = (),
    patch: Callable[[], Growths] | None = None,
    **keywords: Any,
) -> int:
    """As `write_engine`, by this verb of the engine, once it is the caller's turn. What was begun is waited for.

    Small writes go to the engine `awaited`, which writes them together. Others block a thread each. `written` and
    `patch` are as in `within_quota`, `ids` and what is `said` as in `journaled`.
    """
    state, size = state_of(request), request.scope.get(HELD, 0)
    verb: Callable[..., Any] = blocking
    queues: Queues = state.threads
    # One of unknown size, or of a large body, takes long, and is to leave small ones alone.
    if records is not None and size < LARGE_BODY:
        queues, verb = (state.writers, blocking) if awaited is None else (state.writes, awaited)
    verb = partial(verb, *given, **keywords)
    try:
        async with within_quota(request, written, patch):
            work = in_thread(request, verb, threads=queues, cost=size + 1_000, finish=True)
            about: dict[str, Any] = {
                "ids": ids or ((id,) if id is not None else ()),
                "written": written,
                **(said or {}),
            }
            count = await write_engine(operation, namespaces, work, records=records, id=id, **about)
    except StorageError as error:
        state.metrics.disk_full = error.errno == ENOSPC
        state.metrics.refused_writes += state.metrics.disk_full
        raise
    state.metrics.disk_full = False
    return count


def within_quota(
    request: Request | None, records: Sequence[Record] = (), patch: Callable[[], Growths] | None = None
) -> AbstractAsyncContextManager[None]:
    """Count a write of these records, or a change that adds as much as `patch` says, while it is made.

    Raises `QuotaError` before it is. `request`: None where no key is asked for, and so no quota holds.
    """
    if request is None or not (records or patch) or not state_of(request).quotas.bind(principal_of(request)):
        return nullcontext()
    return _counted(request, records, patch)


@asynccontextmanager
async def _counted(
    request: Request, records: Sequence[Record], patch: Callable[[], Growths] | None
) -> AsyncIterator[None]:
    quotas, principal = state_of(request).quotas, principal_of(request)
    hold, exact, done = Hold(), patch or partial(quotas.grows_exactly, records), False
    try:
        if patch is not None or not quotas.take(hold, principal, quotas.grows_by(records)):
            await in_thread(request, lambda: quotas.take(hold, principal, exact(), exact), finish=True, watched=False)
        yield
        done = True
    finally:
        quotas.settle(hold, done)


def read_selection(body: dict[str, Any], limits: Limits) -> tuple[list[str] | None, Filter | None, bool]:
    """Which records a body means: their ids or a filter, and whether ids may be missing. Raises `Problem`."""
    ids, filter = take(body, "ids", list), take(body, "filter", dict)
    if (ids is None) == (filter is None):
        raise Problem(422, "InvalidBody", "give either ids or filter", field="ids")
    missing_ok = take(body, "missing_ok", bool, False)
    if ids is None:
        if "missing_ok" in body:
            raise Problem(422, "InvalidBody", "missing_ok is for ids; leave it out", field="missing_ok")
        return None, as_filter(filter or {}, "filter", limits), False
    return read_ids(ids, limits), None, missing_ok


def read_ids(ids: list[Any], limits: Limits, field: str = "ids") -> list[str]:
    """The ids that a body names. Raises `Problem`."""
    if len(ids) > limits.ids:
        raise Problem(422, "TooManyIds", f"a request may name {limits.ids:,} {field}", field=field)
    if not all(isinstance(name, str) for name in ids):
        raise Problem(422, "InvalidField", f"{field} must be a list of text", field=field)
    return ids
