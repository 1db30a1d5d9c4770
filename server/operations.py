"""The table of the OpenAPI document: for each endpoint what it takes, what it answers, and an example.

Long because it is one table.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from ..engine.listing.orders import ORDERS
from ..engine.offered import Offered
from ..engine.records.declared import Declared
from ..engine.signatures import ABOUT_TWINS, KEEP, Twins
from . import backups, carry, changes, records, search, status, vector_stores, verbs
from .limits import Limits
from .records import LONGEST_PAGE, MODES, MOST_NAMESPACES, PAGE
from .schemas import (
    FILTER,
    ID,
    IMPORTED,
    NAMESPACE,
    SPAN,
    STRATEGY,
    Schema,
    field_schema,
    flag,
    mapping,
    number,
    optional,
    query_schema,
    ref,
    several,
    text,
    thing,
    whole,
)
from .state import DEADLINE

GUARDED = (401, 403, 422, 429, 500, 503, 504, 507)
"""Statuses of every endpoint that asks for a key."""
JSON = "application/json"
BODY = (400, 408, 413, 415)
"""Statuses of every endpoint that reads a body."""


@dataclass(frozen=True)
class Example:
    """A request that works as it stands, on a memory to which the examples above it were written."""

    path: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True)
class Operation:
    """An endpoint under one method. `problems` are statuses beside those of `GUARDED` and `BODY`."""

    method: str
    path: str
    endpoint: Callable[[Request], Awaitable[Response]]
    name: str
    answers: Mapping[int, Schema]
    example: Example = field(default_factory=Example)
    body: Schema | None = None
    parameters: tuple[Schema, ...] = ()
    problems: tuple[int, ...] = ()
    open: bool = False
    stream: Schema | None = None
    """The schema of a line, where the answer may be a stream."""
    streams: bool = False
    """Whether it is always one."""
    sent: str = JSON
    """How the body is sent."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """Every status that is no success, ascending."""
        guarded = () if self.open else GUARDED
        body = () if self.body is None else BODY if self.sent == JSON else (415,)
        return tuple(sorted({*guarded, *body, *self.problems}))


def parameter(name: str, schema: Schema, where: str = "query", example: Any = None) -> Schema:
    inner = {key: value for key, value in schema.items() if key != "description"}
    described = {"name": name, "in": where, "description": schema.get("description", ""), "schema": inner}
    if where == "path":
        described["required"] = True
    return described if example is None else {**described, "example": example}


def counted(name: str) -> Schema:
    return thing({name: whole("Records.")}, name)


def _example(field: Declared) -> Any:
    if field.kind in ("strings", "object"):
        return [*field.about.examples] if field.kind == "strings" else {}
    return field.about.examples[0]


def _offered(verb: Offered, endpoint: Callable[[Request], Awaitable[Response]]) -> Operation:
    """The endpoint of a verb, by its declaration."""
    fields, space = verb.parameters, {"namespace": NAMESPACE} if verb.in_namespace else {}
    examples = {name: _example(each) for name, each in fields.items() if each.required or each.about.examples}
    return Operation(
        "POST",
        f"/v1/{verb.name}",
        endpoint,
        re.sub("_(.)", lambda match: match[1].upper(), verb.name),
        {200: thing({verb.name: {"description": "The answer."}}, verb.name)},
        Example(body={**examples, **({"namespace": "users/ana"} if space else {})}),
        thing(
            {**{name: field_schema(each) for name, each in fields.items()}, **space},
            *(name for name, each in fields.items() if each.required),
        ),
        problems=(404,) if "`UnknownIdError`" in (verb.function.__doc__ or "") else (),
    )


def operations(limits: Limits) -> tuple[Operation, ...]:
    """Every endpoint, in an order in which the examples work."""
    namespace = parameter("namespace", NAMESPACE)
    one = parameter("id", ID, "path")
    filtered = parameter("filter", text("A filter as JSON."), example='{"role": "user"}')
    deadline = parameter(
        DEADLINE.title(),
        number(
            f"Seconds after which the answer is of no use (504); no more than the server's own limit, "
            f"{limits.seconds:g}.",
            exclusiveMinimum=0,
        ),
        "header",
    )
    ids = several({"type": "string"}, "Their ids; either these or a filter.", maxItems=limits.ids)
    selection = {
        "ids": ids,
        "filter": {**FILTER, "description": f"Those that pass. {FILTER['description']}"},
        "namespace": NAMESPACE,
        "missing_ok": flag("With ids: leave out those that are not there, instead of 404."),
    }
    either = {"oneOf": [{"required": ["ids"]}, {"required": ["filter"]}]}
    searched = {
        "query": ref("AnyQuery", "One query."),
        "queries": several(ref("AnyQuery"), "Several queries, in one launch.", maxItems=limits.queries),
        "k": whole("Hits of a query that says none.", default=10, maximum=limits.k),
        "strategy": STRATEGY,
        "texts": flag("Hits with their texts, times and metadata."),
        "payload": flag("Hits with their payloads."),
        "explain": flag("Hits with the parts of their scores."),
        "form": text(
            "hits: an object for each hit. columns: lists, of which a client makes the engine's own `Hits`.",
            enum=list(search.FORMS),
            default=search.FORMS[0],
        ),
        "partial": text(
            "allow: of a sharded memory, the hits of those shards that answer, and `missing_shards`. refuse: all, or "
            "a problem.",
            enum=list(search.PARTIAL),
            default=search.PARTIAL[0],
        ),
        "timing": flag("The times of the phases, of a launch by itself. Timed searches run one after another."),
        **{name: query_schema(limits)["properties"][name] for name in search.SHARED},
        "namespace": text("The namespace of queries that name none."),
    }
    first = {"id": "m1", "text": "Ana prefers tea", "role": "user", "time": "2026-11-23T09:00:00Z"}
    second = {"id": "m2", "text": "Error 4711: fixed by rotating the key", "role": "tool", "payload": {"run": 7}}
    named = several(text("An id."), "The records with the text of one that was added, the oldest first.")
    written = thing({"written": whole("Records."), "twins": several(named, "Where asked for.")}, "written")
    return (
        Operation(
            "POST",
            "/v1/records",
            records.write,
            "writeRecords",
            {200: counted("written"), 201: written},
            Example(body={"namespace": "users/ana", "records": [first, second]}),
            thing(
                {
                    "records": several(ref("Record"), "The records.", maxItems=limits.records),
                    "namespace": text("The namespace of records that name none."),
                    "mode": text(
                        "add: new ones (201). update: those that are there (200). upsert: both (200).",
                        enum=list(MODES),
                        default="add",
                    ),
                    "ttl": {
                        **SPAN,
                        "description": f"Records without `expires` expire after this. {SPAN['description']}",
                    },
                    "twins": text(ABOUT_TWINS, enum=[*get_args(Twins)], default=KEEP),
                },
                "records",
            ),
            problems=(404, 409),
        ),
        Operation(
            "POST",
            "/v1/search",
            search.search,
            "search",
            {200: {"anyOf": [ref("Results"), ref("Columns")]}},
            Example(body={"queries": ["last fix for error 4711", {"text": "tea", "k": 1}], "namespace": "users/ana"}),
            thing(searched, oneOf=[{"required": ["query"]}, {"required": ["queries"]}]),
            (deadline,),
            (),
            stream=ref("StreamLine"),
        ),
        Operation(
            "POST",
            "/v1/explain",
            search.explain,
            "explain",
            {200: ref("Explanation")},
            Example(body={"query": "error 4711", "id": "m2", "namespace": "users/ana"}),
            thing(
                {
                    "query": ref("AnyQuery"),
                    "id": text("The record."),
                    "namespace": text("The namespace of a query that names none."),
                    "strategy": STRATEGY,
                },
                "query",
                "id",
            ),
            (deadline,),
            (404,),
        ),
        Operation(
            "POST",
            "/v1/vector_stores/{namespace}/search",
            vector_stores.search,
            "searchVectorStore",
            {200: ref("VectorStoreResults")},
            Example(
                {"namespace": "users/ana"},
                body={"query": ["tea", "keys"], "filters": {"type": "eq", "key": "role", "value": "user"}},
            ),
            ref("VectorStoreSearch"),
            (parameter("namespace", text("The namespace.", minLength=1), "path"), deadline),
            (),
        ),
        Operation(
            "GET",
            "/v1/records",
            records.list_records,
            "listRecords",
            {
                200: thing(
                    {
                        "records": several(ref("StoredRecord"), "The page."),
                        "after": optional(text("The parameter `after` of the next page; null after the last.")),
                    },
                    "records",
                    "after",
                )
            },
            Example(parameters={"namespace": "users/ana", "filter": '{"role": "user"}', "order": "time"}),
            parameters=(
                namespace,
                filtered,
                parameter(
                    "order", text("The order; written: of the last write.", enum=list(ORDERS), default="written")
                ),
                parameter("reverse", flag("The other way round.")),
                parameter("after", text("Where the last page ended.")),
                parameter("limit", whole("Records of the page.", 1, maximum=LONGEST_PAGE, default=PAGE)),
            ),
        ),
        Operation(
            "POST",
            "/v1/records/fetch",
            records.fetch_many,
            "fetchRecords",
            {200: thing({"records": several(optional(ref("StoredRecord")), "In the order of the ids.")}, "records")},
            Example(body={"ids": ["m1", "m3"], "namespace": "users/ana"}),
            thing(
                {
                    "ids": several({"type": "string"}, "Their ids.", maxItems=limits.ids),
                    "namespace": NAMESPACE,
                },
                "ids",
            ),
        ),
        Operation(
            "GET",
            "/v1/count",
            records.count,
            "countRecords",
            {200: counted("count")},
            Example(parameters={"namespace": "users/ana", "filter": '{"role": "user"}'}),
            parameters=(namespace, filtered),
        ),
        Operation(
            "PATCH",
            "/v1/records",
            changes.patch,
            "patchRecords",
            {200: counted("patched")},
            Example(body={"ids": ["m1"], "namespace": "users/ana", "changes": {"importance": 0.9}}),
            thing(
                {
                    **selection,
                    "changes": {
                        "type": "object",
                        "description": "The fields with their new values; null takes a value away. Not id, namespace.",
                    },
                },
                "changes",
                **either,
            ),
            problems=(404,),
        ),
        Operation(
            "DELETE",
            "/v1/records",
            records.remove,
            "deleteRecords",
            {200: counted("deleted")},
            Example(body={"namespace": "users/ana", "filter": {"importance": {"<": 0.1}}}),
            thing(selection, **either),
            problems=(404,),
        ),
        Operation(
            "PUT",
            "/v1/records/{id}",
            changes.put,
            "putRecord",
            {200: counted("written")},
            Example({"id": "notes/1"}, {"namespace": "users/ana"}, {"text": "Meetings after ten"}),
            ref("OneRecord"),
            (one, namespace),
        ),
        Operation(
            "GET",
            "/v1/records/{id}",
            records.fetch,
            "getRecord",
            {200: ref("StoredRecord")},
            Example({"id": "notes/1"}, {"namespace": "users/ana"}),
            parameters=(one, namespace),
            problems=(404,),
        ),
        Operation(
            "DELETE",
            "/v1/records/{id}",
            records.remove_one,
            "deleteRecord",
            {200: counted("deleted")},
            Example({"id": "notes/1"}, {"namespace": "users/ana"}),
            parameters=(one, namespace),
            problems=(404,),
        ),
        Operation(
            "GET",
            "/v1/namespaces",
            records.list_namespaces,
            "listNamespaces",
            {200: ref("NamespacePage")},
            Example(parameters={"limit": "10"}),
            parameters=(
                parameter("after", text("Where the last page ended.")),
                parameter(
                    "limit", whole("Namespaces of the page.", 1, maximum=MOST_NAMESPACES, default=MOST_NAMESPACES)
                ),
            ),
        ),
        Operation(
            "GET",
            "/v1/stats",
            status.stats,
            "stats",
            {200: {"type": "object", "description": "Sizes, and work done."}},
            Example(parameters={"namespace": "users/ana"}),
            parameters=(parameter("namespace", text("One namespace; left out, the whole memory.")),),
        ),
        Operation(
            "GET",
            "/v1/columns",
            status.columns,
            "listColumns",
            {200: thing({"columns": mapping(text("category, number or json."), "Kinds by names.")}, "columns")},
        ),
        Operation(
            "GET",
            "/v1/monitor",
            status.monitor,
            "monitor",
            {200: ref("Monitor")},
            Example(parameters={"namespace": "users/ana"}),
            parameters=(namespace,),
        ),
        Operation(
            "POST",
            "/v1/drift",
            status.drift,
            "drift",
            {
                200: thing(
                    {
                        "jaccard": number("The share of terms that both have.", minimum=0, maximum=1),
                        "drifted": {"type": "boolean", "description": "Whether it is too low."},
                        "advice": text("What to look at."),
                    },
                    "jaccard",
                    "drifted",
                    "advice",
                )
            },
            Example(body={"namespace": "users/ana"}),
            thing({"namespace": NAMESPACE}),
        ),
        Operation(
            "GET",
            "/v1/strategies",
            status.list_strategies,
            "listStrategies",
            {
                200: thing(
                    {
                        "strategies": several(
                            thing({"name": text("Its name."), "about": text("What it is made of.")}, "name", "about"),
                            "As a search may name them.",
                        )
                    },
                    "strategies",
                )
            },
        ),
        Operation(
            "GET",
            "/v1/export",
            carry.export,
            "exportRecords",
            {200: ref("ExportLine")},
            Example(parameters={"namespace": "users/ana", "vectors": "false"}),
            parameters=(
                parameter("namespace", text("One namespace; left out, the whole memory.")),
                filtered,
                parameter("vectors", {**flag("With the embeddings."), "default": True}),
            ),
            stream=ref("ExportLine"),
            streams=True,
        ),
        Operation(
            "POST",
            "/v1/import",
            carry.import_records,
            "importRecords",
            {200: IMPORTED},
            Example(parameters={"namespace": "users/ana"}, body={"id": "m4", "text": "One of many lines"}),
            ref("Record"),
            (
                parameter(
                    "namespace",
                    text("The namespace of all records; left out, each names its own."),
                ),
                parameter("upsert", flag("Replace records that are there and say something else.")),
                parameter("resume", {**flag("Pass over records that are there as they are."), "default": True}),
            ),
            (409,),
            sent=search.NDJSON,
        ),
        Operation(
            "POST",
            "/v1/backup",
            backups.backup,
            "createBackup",
            {201: thing({"backup": ref("Backup")}, "backup")},
            Example(body={"name": "monday"}),
            thing({"name": text("Its name: letters, digits, - and _.", maxLength=100)}, "name"),
            problems=(404, 409),
        ),
        Operation(
            "GET",
            "/v1/backups",
            backups.list_backups,
            "listBackups",
            {200: thing({"backups": several(ref("Backup"), "By their names.")}, "backups")},
            problems=(404,),
        ),
        Operation(
            "POST",
            "/v1/restore",
            backups.restore,
            "restoreBackup",
            {200: thing({"restored": mapping(whole("Records."), "What was done.")}, "restored")},
            Example(body={"name": "monday", "namespace": "users/ana"}),
            thing(
                {
                    "name": text("The backup."),
                    "namespace": text("The namespace to bring back; left out, the whole memory."),
                },
                "name",
            ),
            problems=(404,),
        ),
        *(_offered(verb, endpoint) for verb, endpoint in verbs.ENDPOINTS),
        Operation(
            "DELETE",
            "/v1/namespaces/{namespace}",
            changes.drop,
            "dropNamespace",
            {200: thing({"dropped": text("The namespace.")}, "dropped")},
            Example({"namespace": "users/ana"}),
            parameters=(parameter("namespace", text("The namespace.", minLength=1), "path"),),
        ),
        Operation(
            "GET",
            "/v1/health",
            status.health,
            "health",
            {200: thing({"status": {"const": "alive"}}, "status")},
            open=True,
        ),
        Operation(
            "GET",
            "/v1/ready",
            status.ready,
            "ready",
            {
                200: thing(
                    {"status": {"const": "ready"}, "writes": text("Why writes are refused.", enum=["disk full"])},
                    "status",
                ),
                503: thing({"status": {"enum": ["opening", "stopping"]}}, "status"),
            },
            open=True,
        ),
    )
