"""``/openapi.json``: the OpenAPI 3.1 document, made from the tables of operations, schemas and problems."""

from __future__ import annotations

import inspect
import json
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..engine import errors
from ..engine.errors import FanrankError
from .limits import Limits
from .operations import Operation, operations
from .problems import status_of
from .schemas import IMPORTED, Schema, ref, schemas
from .search import NDJSON
from .state import state_of

JSON, PROBLEM = "application/json", "application/problem+json"
VERSION = "1"
"""Of the interface, as in its paths."""

CODES: dict[str, tuple[tuple[int, ...], str]] = {
    "HTTPError": ((404, 405), "There is nothing at the address, or it does not take the method."),
    "InvalidEncoding": ((400,), "The body is not UTF-8."),
    "InvalidJson": ((400,), "The body is not JSON."),
    "ClientDisconnected": ((400,), "The connection ended within the body."),
    "KeyRequired": ((401,), "The request has no key."),
    "KeyUnknown": ((401,), "The server does not know the key."),
    "KeyExpired": ((401,), "The key, or the secret that was rotated out, has expired."),
    "NamespaceForbidden": ((403,), "The key does not reach the namespace, whether or not it exists."),
    "MetricsForbidden": ((403,), "The key may not read the counts of the server."),
    "ReadOnlyKey": ((403,), "The key may read and not write."),
    "ReadOnlyServer": ((403,), "The server reads and does not write."),
    "HostForbidden": ((403,), "Without keys: the header Host does not name this machine."),
    "OriginForbidden": ((403,), "Without keys: a page of another site asks."),
    "BodyTimeout": ((408,), "The body did not arrive in time."),
    "BodyTooLarge": ((413,), "The body has more bytes than the server takes."),
    "UnsupportedMediaType": ((415,), "The body is not sent as `application/json`."),
    "InvalidBody": ((422,), "The body is no object of the right form."),
    "InvalidField": ((422,), "A field or parameter has the wrong type or is out of range."),
    "InvalidHeader": ((422,), "A header has no such value."),
    "MissingField": ((422,), "A field is missing."),
    "UnknownField": ((422,), "There is no such field or parameter."),
    "TextTooLong": ((422,), "A query's text is too long."),
    "TooManyHits": (
        (422,),
        "A query, with its offset, or a search over all its queries asks for too many hits.",
    ),
    "TooManyIds": ((422,), "The request names too many ids."),
    "TooManyNamespaces": ((422,), "A query searches too many namespaces."),
    "TooManyTerms": ((422,), "A query has too many terms, weights, entities or hints."),
    "FilterTooDeep": ((422,), "A filter is nested too deep."),
    "FilterTooLarge": ((422,), "A filter has too many comparisons."),
    "StrategyTooLarge": ((422,), "A strategy object asks for too many channels, candidates or rounds."),
    "IdTooLong": ((422,), "The id or the namespace of a record that is written is too long."),
    "PayloadTooLong": ((422,), "The payload of a record that is written is too long."),
    "AnswerTooLarge": ((422,), "The records of the answer have too many bytes."),
    "TooManyQueries": ((422,), "The search has too many queries."),
    "TooManyRecords": ((422,), "The write has too many records."),
    "TooManyRequests": ((429,), "Too many requests with the key are under way."),
    "NoBackups": ((404,), "The server keeps no backups."),
    "UnknownBackup": ((404,), "There is no backup of this name."),
    "BackupExists": ((409,), "There is a backup of this name."),
    "JournalFailed": ((503,), "The journal cannot be written. It does not say whether the write was made."),
    "InternalError": ((500,), "The server failed; its log says why."),
    "StoppingError": ((503,), "The server stops."),
    "WriterLost": ((503,), "The process that writes ended. Whether the write was done is not known."),
}
"""The problems that the server itself finds: their statuses, and what they mean."""

NEVER = ("DatasetError", "AnswerError", "RecencyWarning", "FanrankError")
"""Names of `fanrank.errors` that no request meets."""


def problem_codes() -> dict[str, tuple[tuple[int, ...], str]]:
    """Every ``title`` of a problem document: the server's own, and the classes of the library's errors."""
    classes = {
        name: ((status_of(kind),), inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " "))
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, FanrankError) and name not in NEVER
    }
    full = ((*classes["StorageError"][0], 507), f"{classes['StorageError'][1]} With 507 the disk is full.")
    return {**CODES, **classes, "StorageError": full}


def make_document(limits: Limits) -> dict[str, Any]:
    """The OpenAPI document of a server with these limits."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations(limits):
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fanrank",
            "version": VERSION,
            "summary": "Batch retrieval for the memory of agents.",
            "description": "Ids and namespaces in a path are percent-encoded, or stand there with their slashes. "
            "Errors are problem documents (RFC 9457); programs tell them apart by `title`.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas(limits), "Problem": _problem_schema()},
            "responses": {_response_name(status): _problem_response(status) for status in _statuses(limits)},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key, where the server has keys."}
            },
        },
    }


@lru_cache(maxsize=8)
def make_text(limits: Limits) -> str:
    """The document as it is served and committed."""
    return json.dumps(make_document(limits), indent=1) + "\n"


async def serve_document(request: Request) -> Response:
    """The OpenAPI document with the limits of this server. It says nothing of the memory, so it needs no key."""
    return Response(make_text(state_of(request).limits), media_type=JSON)


def _describe(operation: Operation) -> dict[str, Any]:
    summary, _, rest = inspect.cleandoc(operation.endpoint.__doc__ or "").partition("\n\n")
    described: dict[str, Any] = {"operationId": operation.name, "summary": " ".join(summary.split())}
    if rest:
        described["description"] = " ".join(rest.split())
    if operation.open:
        described["security"] = []
    if operation.parameters:
        described["parameters"] = [_with_example(one, operation) for one in operation.parameters]
    if operation.body is not None:
        content = {"schema": operation.body, "example": operation.example.body}
        described["requestBody"] = {"required": True, "content": {operation.sent: content}}
    answers = {}
    for status, schema in operation.answers.items():
        content = {} if operation.streams else {JSON: {"schema": schema}}
        if operation.stream is not None:
            content[NDJSON] = {"schema": operation.stream}
        answers[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    problems = {
        str(status): {"$ref": f"#/components/responses/{_response_name(status)}"} for status in operation.statuses
    }
    return {**described, "responses": {**answers, **problems}}


def _with_example(parameter: Schema, operation: Operation) -> Schema:
    given = {**operation.example.path, **operation.example.parameters}
    return {**parameter, "example": given[parameter["name"]]} if parameter["name"] in given else parameter


def _statuses(limits: Limits) -> list[int]:
    return sorted({status for operation in operations(limits) for status in operation.statuses})


def _response_name(status: int) -> str:
    return HTTPStatus(status).name.title().replace("_", "")


def _problem_response(status: int) -> dict[str, Any]:
    codes = {name: meaning for name, (statuses, meaning) in problem_codes().items() if status in statuses}
    described = "\n".join(f"- `{name}`: {meaning}" for name, meaning in codes.items())
    response: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}.\n\n{described}".strip(),
        "content": {PROBLEM: {"schema": ref("Problem")}},
    }
    if status in (429, 503):
        about = "Seconds after which to come back."
        response["headers"] = {"Retry-After": {"description": about, "schema": {"type": "string"}}}
    return response


def _problem_schema() -> Schema:
    names = list(problem_codes())
    return {
        "type": "object",
        "description": "What is wrong with a request, as RFC 9457 has it.",
        "properties": {
            "type": {"enum": [f"urn:fanrank:{name}" for name in names]},
            "title": {"enum": names, "description": "By this a program tells problems of one status apart."},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string", "description": "What is wrong, and what to do."},
            "instance": {"type": "string", "description": "The path of the request."},
            "field": {"type": "string", "description": "Where it is wrong, such as `queries[3].k`."},
            "where": {"type": "string", "description": "The place of a record that is not accepted."},
            "record": {"type": "string", "description": "The id of a record that is not accepted, if it is known."},
            "imported": {**IMPORTED, "description": "What an import had written when it ended."},
            "columns": {"type": "array", "items": {"type": "string"}, "description": "Columns that nobody declared."},
        },
        "required": ["type", "title", "status", "detail", "instance"],
        "additionalProperties": False,
    }
