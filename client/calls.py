"""What each verb of a client sends, as a value: the same for the client that blocks and the one that is awaited."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from ..engine.carry.rows import to_json
from ..engine.encoders.embed import Given, add_embeddings
from ..engine.encoders.patch import join_changes
from ..engine.errors import ParameterError, QueryError, RecordError, check_names, choices
from ..engine.listing.orders import ORDERS
from ..engine.moments import Span, to_seconds, to_span
from ..engine.offered import Offered
from ..engine.records.declared import Declared
from ..engine.records.entities import Relation
from ..engine.records.filters import AnyFilter, parse_filter
from ..engine.records.jsonl import as_records, check_batch, checked_ids
from ..engine.records.query import Query, check_k
from ..engine.records.query_json import query_to_json
from ..engine.records.record import Record
from ..engine.route.by_namespace import ByNamespace, answerer_of
from ..engine.route.policy import answerer_to_dict
from ..engine.search.given import AnyBatch, own_queries, set_defaults
from ..engine.search.options import SearchOptions
from ..engine.signatures import KEEP, SearchKeywords, Twins, check_twins, split_defaults
from ..engine.writing import AnyRecord

LONGEST_PAGE = 1_000
"""Records of a page at most, as the server has it."""


STAYS = {
    "execution": "it changes how fast an engine answers, and the server chooses it",
    "rerank_depth": "it is for a reranker, which runs in the process of its engine",
    "reranker": "it is a Python object and runs in the process of its engine; rerank the hits of texts=True",
    "threads": "it changes how fast an engine answers, and the server chooses it",
}
"""Keywords of `Memory.search` that a client takes at their defaults alone, and why."""

UNSENT = SearchOptions()


class SentKeywords(SearchKeywords, total=False):
    """The keywords of a client's search; `Memory.search` and `ShardedEngine.search` say what each means."""

    partial: str | None


class Limit(NamedTuple):
    """Until when (by `time.monotonic`) an answer is waited for, and how many seconds that was from the start."""

    seconds: float
    until: float


@dataclass(frozen=True)
class Call:
    """One request. `repeatable` says that sending it twice does no more than sending it once."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    limit: Limit | None = None
    """The time of several calls together; None: the client's own."""

    def content(self) -> bytes | None:
        """The body as bytes. Raises `ParameterError` for values that JSON does not have."""
        if self.body is None:
            return None
        try:
            return json.dumps(self.body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ParameterError(f"this cannot be sent as JSON: {error}") from None


@dataclass(frozen=True)
class Asked:
    """A batch as it is sent, in one call or in several, and what its answer is read with."""

    queries: tuple[Query, ...]
    calls: tuple[Call, ...]
    strategy: Any
    texts: bool
    payload: bool


def search(queries: AnyBatch, k: int, options: SentKeywords, space: str | None, batch: int | None) -> Asked:
    """A search. Raises as `Engine.search` for what can be told without the engine."""
    known = SentKeywords.__annotations__
    check_names(options, known, (*known, "k", "batch", "deadline"), "search")
    defaults, rest = split_defaults(options)
    for name, why in STAYS.items():
        if rest.get(name, getattr(UNSENT, name)) != getattr(UNSENT, name):
            raise ParameterError(f"{name} cannot be sent to a server: {why}")
    asked = asked_queries(queries, space, defaults)
    strategy = strategy_to_json(rest.get("strategy", "bm25"))
    body: dict[str, Any] = {"k": check_k(k), "form": "columns"}
    if strategy != "bm25":
        body["strategy"] = strategy
    body |= {name: True for name in ("texts", "payload", "timing") if rest.get(name)}
    if rest.get("partial") is not None:
        body["partial"] = rest["partial"]
    parts = _parts([_as_sent(query) for query in asked], batch)
    calls = tuple([Call("POST", "/v1/search", {**body, "queries": part}) for part in parts])
    return Asked(asked, calls, strategy, bool(rest.get("texts")), bool(rest.get("payload")))


def asked_queries(queries: AnyBatch, space: str | None, defaults: Mapping[str, Any] = {}) -> tuple[Query, ...]:
    """The queries of a batch with what is set for all of them, in the namespace of the client's handle."""
    return set_defaults(queries, defaults) if space is None else own_queries(queries, space, defaults, "the client")


def _as_sent(query: Query) -> str | dict[str, Any]:
    values = query_to_json(query)
    if "strategy" in values:
        values["strategy"] = strategy_to_json(query.strategy)
    return query.text if len(values) == ("text" in values) else values


def strategy_to_json(strategy: Any) -> str | dict[str, Any]:
    """A strategy or policy by its name, or as JSON values. Raises `ParameterError`."""
    if isinstance(strategy, str):
        return strategy
    answerer = answerer_of(strategy)
    return answerer.to_dict() if isinstance(answerer, ByNamespace) else answerer_to_dict(answerer)


def _parts(rows: list[Any], batch: int | None) -> list[list[Any]]:
    """The rows in parts of at most `batch`; None: all in one."""
    if batch is None:
        return [rows]
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ParameterError(f"batch must be 1 or more, or None, not {batch!r}")
    return [rows[start : start + batch] for start in range(0, len(rows), batch)] or [rows]


def explain(query: Query, document: str, strategy: Any) -> Call:
    """How a record scores for a query."""
    if not isinstance(document, str):
        raise QueryError(f"a record's id is text, not {document!r}")
    body: dict[str, Any] = {"query": _as_sent(query), "id": document}
    sent = strategy_to_json(strategy)
    return Call("POST", "/v1/explain", body if sent == "bm25" else {**body, "strategy": sent})


def write(
    records: Iterable[AnyRecord],
    mode: str,
    vectors: Given,
    ttl: Span | None,
    space: str | None,
    batch: int | None,
    twins: Twins = KEEP,
) -> tuple[Call, ...]:
    """Records that are added, updated or both (``upsert``), in one write or in several."""
    check_batch(records, mode)
    if vectors is not None:
        records = _with_vectors(as_records(records), vectors)
    rows = [_row(record, space) for record in as_records(records)]
    check_twins(twins)
    body: dict[str, Any] = {"mode": mode} if twins == KEEP else {"mode": mode, "twins": twins}
    if ttl is not None:
        try:
            body["ttl"] = to_span(ttl)
        except ValueError as error:
            raise ParameterError(f"ttl {error}, not {ttl!r}") from None
    calls = [
        Call("POST", "/v1/records", {**body, "records": part}, repeatable=mode == "upsert")
        for part in _parts(rows, batch)
    ]
    return tuple(calls)


def _with_vectors(records: Iterable[Record], vectors: Given) -> Iterator[Record]:
    """The records with these vectors as their embeddings. The server knows which dimension they must have."""
    rows = np.asarray(next(iter(vectors.values()), ())) if isinstance(vectors, Mapping) else np.asarray(vectors)
    pin = {"name": "of the vectors", "dimension": rows.shape[-1] if rows.ndim else 0, "encodes": False}
    return add_embeddings(records, pin, None, vectors)


def _row(record: Record, space: str | None) -> dict[str, Any]:
    if space is not None and record.namespace not in ("", space):
        raise RecordError("the record names another namespace than the one it is given to", record_id=record.id)
    row = to_json(record)
    return row if space is None else {**row, "namespace": space}


def delete(ids: Iterable[str], namespace: str, missing_ok: bool) -> Call:
    """Records that are deleted."""
    body = {"ids": checked_ids(ids, "delete"), "namespace": namespace, "missing_ok": bool(missing_ok)}
    return Call("DELETE", "/v1/records", body, repeatable=False)


def delete_where(filter: AnyFilter, namespace: str) -> Call:
    """All records that pass a filter are deleted."""
    body = {"filter": _filter_to_json(filter, "delete_where"), "namespace": namespace}
    return Call("DELETE", "/v1/records", body, repeatable=False)


def patch(
    ids: str | Sequence[str],
    changes: Mapping[str, Any] | None,
    fields: Mapping[str, Any],
    namespace: str,
    missing_ok: bool,
) -> Call:
    """Some fields of records are changed."""
    body = {
        "ids": [ids] if isinstance(ids, str) else checked_ids(ids, "patch"),
        "changes": _changes(changes, fields),
        "namespace": namespace,
        "missing_ok": bool(missing_ok),
    }
    return Call("PATCH", "/v1/records", body, repeatable=False)


def update_where(
    filter: AnyFilter,
    changes: Mapping[str, Any] | Callable[[Record], Record] | None,
    fields: Mapping[str, Any],
    namespace: str,
) -> Call:
    """Some fields of all records that pass a filter are changed. Raises `ParameterError`."""
    if callable(changes):
        raise ParameterError("a function cannot be sent to a server; give changes as a mapping")
    body = {
        "filter": _filter_to_json(filter, "update_where"),
        "changes": _changes(changes, fields),
        "namespace": namespace,
    }
    return Call("PATCH", "/v1/records", body, repeatable=False)


def _changes(changes: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """New values of fields as JSON values. The server checks them. Raises `ParameterError` and `RecordError`."""
    given = join_changes(changes, fields)
    try:
        return {name: _plain(value) for name, value in given.items()}
    except ValueError as error:
        raise RecordError(str(error)) from None


def _plain(value: Any) -> Any:
    """A value of a field as JSON values."""
    if isinstance(value, dt.date):
        return to_seconds(value)
    if isinstance(value, Relation):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def drop(namespace: str) -> Call:
    """A namespace with all its records is deleted."""
    # Dots too: of an address that ends with ".." another one is made.
    name = quote(checked_name(namespace), safe="").replace(".", "%2E")
    return Call("DELETE", f"/v1/namespaces/{name}", repeatable=False)


def fetch(ids: Sequence[str], namespace: str) -> Call:
    """Records by their ids."""
    return Call("POST", "/v1/records/fetch", {"ids": checked_ids(ids, "fetch"), "namespace": namespace})


def count(filter: AnyFilter | None, namespace: str) -> Call:
    """How many records pass a filter."""
    return Call("GET", "/v1/count", params={"namespace": namespace, **_filter(filter)})


def page(
    namespace: str, filter: AnyFilter | None, order: str, reverse: bool, after: str | None, limit: int | None
) -> Call:
    """A page of records, of at most `limit`."""
    check_order(order, limit, least=1)
    params = {"namespace": namespace, "order": order, "limit": str(min(LONGEST_PAGE, limit or LONGEST_PAGE))}
    if reverse:
        params["reverse"] = "true"
    if after is not None:
        params["after"] = after
    return Call("GET", "/v1/records", params={**params, **_filter(filter)})


def check_order(order: str, limit: int | None, least: int = 0) -> None:
    """Raise `ParameterError` for an order or a number of records that no listing has."""
    if order not in ORDERS:
        raise ParameterError(f"unknown order {order!r}{choices(order, ORDERS)}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < least):
        raise ParameterError(f"limit must be {least} or more, or None, not {limit!r}")


def _filter_to_json(filter: AnyFilter, verb: str) -> dict[str, Any]:
    parsed = parse_filter(filter)
    if parsed is None:
        raise ParameterError(f"{verb} needs a filter that says something; to delete a whole namespace use drop")
    return parsed.to_dict()


def _filter(filter: AnyFilter | None) -> dict[str, str]:
    parsed = parse_filter(filter)
    return {} if parsed is None else {"filter": json.dumps(parsed.to_dict())}


def offered(verb: Offered, given: Sequence[Any], keywords: Mapping[str, Any], space: str | None) -> Call:
    """A verb by its declaration. Raises as the verb for what can be told without the memory."""
    values = verb.signature.bind(None, *given, **keywords).arguments
    body = {
        name: _value(field, values[name])
        for name, field in verb.parameters.items()
        if name in values and (field.required or values[name] is not field.default)
    }
    if verb.in_namespace:
        name = values.get("namespace", verb.namespace if space is None else "")
        if name is not None or verb.namespace is not None:  # else all of them, as the server takes it
            body["namespace"] = named(name, space)
    return Call("POST", f"/v1/{verb.name}", body, repeatable=not verb.writes)


def _value(field: Declared, value: Any) -> Any:
    """An argument as JSON values."""
    if field.kind == "filter":
        parsed = parse_filter(value)
        return None if parsed is None else parsed.to_dict()
    if field.kind == "strings":
        return checked_ids(value, field.name)
    try:
        return _plain(value)
    except ValueError as error:
        raise QueryError(f"{field.name!r} {error}, not {value!r}") from None


def export(namespace: str | None, filter: AnyFilter | None, vectors: bool) -> Call:
    """Records as lines."""
    params = _filter(filter) if vectors else {**_filter(filter), "vectors": "false"}
    return Call("GET", "/v1/export", params=params if namespace is None else {**params, "namespace": namespace})


def import_records(namespace: str | None, upsert: bool, resume: bool) -> Call:
    """Lines as records."""
    flags = {name: str(bool(value)).lower() for name, value in (("upsert", upsert), ("resume", resume))}
    params = flags if namespace is None else {**flags, "namespace": namespace}
    return Call("POST", "/v1/import", params=params, repeatable=False)


def namespaces(after: str | None) -> Call:
    """A page of the namespaces that the key reaches."""
    return Call("GET", "/v1/namespaces", params={} if after is None else {"after": after})


def columns() -> Call:
    """The declared columns."""
    return Call("GET", "/v1/columns")


def stats(namespace: str | None) -> Call:
    """Sizes and work, of one namespace or of the whole memory."""
    return Call("GET", "/v1/stats", params={} if namespace is None else {"namespace": namespace})


def checked_name(name: object) -> str:
    """The name of a namespace. Raises `QueryError`."""
    if not isinstance(name, str):
        raise QueryError(f"a namespace's name must be a string, not {type(name).__name__}")
    return name


def named(namespace: str | None, space: str | None) -> str:
    """The namespace that a verb means: the one that it names, or that of its handle. Raises `QueryError`."""
    if namespace is None:
        raise QueryError("a client reads one namespace at a time: name one of client.namespaces")
    if namespace == "":
        return space or ""
    if space is not None and checked_name(namespace) != space:
        raise QueryError(f"this handle is on the namespace {space!r}; ask the client for {namespace!r}")
    return checked_name(namespace)


def one_id(id: object) -> list[str]:
    """A batch of one id. Raises `RecordError`."""
    if not isinstance(id, str):
        raise RecordError(f"an id must be a string, not {id!r}")
    return [id]
