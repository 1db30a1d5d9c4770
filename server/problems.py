"""Errors as problem documents (RFC 9457): which status each named error has, and what its document says."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from errno import ENOSPC
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..engine.advice import in_fields
from ..engine.errors import (
    DeadlineError,
    DeviceMemoryError,
    DuplicateIdError,
    FanrankError,
    OverloadedError,
    QuotaError,
    RecordError,
    ShardError,
    SplitNamespaceError,
    StorageError,
    UnknownColumnError,
    UnknownIdError,
)
from .seen import note_problem

logger = logging.getLogger("fanrank.server")

STATUS: tuple[tuple[type[FanrankError], int], ...] = (
    (UnknownIdError, 404),
    (DuplicateIdError, 409),
    (QuotaError, 403),
    (OverloadedError, 503),
    (DeadlineError, 504),
    (DeviceMemoryError, 503),
    (StorageError, 503),
    (SplitNamespaceError, 422),
    (ShardError, 503),
)
"""The status of each class of errors, the first that fits. All others are about what the request says: 422."""
UNPROCESSABLE = 422
WORDS = "fanrank-words"
"""The header by which a client in Python asks for messages in the words of `Engine`, which it raises."""
RETRY_AFTER = "1"
"""Seconds after which a caller who was turned away may come back."""


class Problem(Exception):
    """What is wrong with a request, as the server itself finds it.

    `code` is the name of the error, by which a program tells it from others of its status. `field` is where in the
    body, such as ``queries[3].k``. `about` are further members of the document.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.field = status, code, detail, field
        self.headers = dict(headers or {})
        self.about = dict(about or {})

    @classmethod
    def of(cls, error: FanrankError, *, field: str | None = None) -> Problem:
        """The problem of a library's error, at this field."""
        problem = as_problem(error)
        problem.field = field
        return problem

    def document(self, request: Request) -> dict[str, Any]:
        """The problem document (RFC 9457) for this request."""
        document: dict[str, Any] = {
            "type": f"urn:fanrank:{self.code}",
            "title": self.code,
            "status": self.status,
            "detail": self.detail if request.headers.get(WORDS) else in_fields(self.detail),
            "instance": request.url.path,
            **self.about,
        }
        return document if self.field is None else {**document, "field": self.field}


def stopping() -> Problem:
    """The refusal of a server that stops."""
    return Problem(503, "StoppingError", "the server stops; come back", headers={"Retry-After": RETRY_AFTER})


def status_of(kind: type[FanrankError]) -> int:
    """The status of a class of the library's errors."""
    return next((status for known, status in STATUS if issubclass(kind, known)), UNPROCESSABLE)


def as_problem(error: Exception) -> Problem:
    """The problem that an error is for the caller. The text of an unknown error stays in the log."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        title = {404: "there is nothing at this address", 405: "this address does not take this method"}
        detail = title.get(error.status_code, str(error.detail))
        return Problem(error.status_code, "HTTPError", detail, headers=error.headers)
    if isinstance(error, FanrankError):
        status = status_of(type(error))
        headers = {"Retry-After": RETRY_AFTER} if status == 503 else {}
        detail = str(error)
        if isinstance(error, StorageError) and error.errno == ENOSPC:
            logger.error("storage", exc_info=error)
            return Problem(507, "StorageError", "the disk of the memory is full; nothing was written")
        if isinstance(error, StorageError):
            # The message names files of this machine.
            logger.error("storage", exc_info=error)
            detail = "the memory cannot be read or written at present; the server's log says why"
        elif isinstance(error, ShardError) and status == 503:
            # It may name machines and directories.
            logger.error("shard", exc_info=error)
            detail = "a shard of the memory does not answer at present; the server's log says why"
        return Problem(status, type(error).__name__, detail, headers=headers, about=_about(error))
    logger.error("unexpected", exc_info=error)
    return Problem(500, "InternalError", "the server failed on this request; its log says why")


def _about(error: FanrankError) -> dict[str, Any]:
    """What an error knows beside its message."""
    return _place(error) if error.imported is None else {**_place(error), "imported": vars(error.imported)}


def _place(error: FanrankError) -> dict[str, Any]:
    if isinstance(error, UnknownColumnError):
        return {"columns": list(error.columns)}
    if isinstance(error, RecordError):
        return {
            name: value for name, value in (("where", error.where), ("record", error.record_id)) if value is not None
        }
    return {}


def answer_problem(request: Request, error: Exception) -> Response:
    """The response to a request that ended with an error."""
    problem = as_problem(error)
    note_problem(problem.code)
    return Response(
        json.dumps(problem.document(request)),
        problem.status,
        headers=problem.headers,
        media_type="application/problem+json",
    )
