"""How large a record may be that is written: its id, its namespace and its payload."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from ..engine.records.record import Record
from .bodies import HELD
from .limits import Limits
from .problems import Problem


def may_be_large(request: Request, limits: Limits) -> bool:
    """Whether the body has bytes enough for a payload beyond the limit. One that has not is not measured."""
    return bool(request.scope.get(HELD, 0) > limits.payload_bytes)


def check_record(record: Record, field: str | None, limits: Limits, *, payload: bool) -> None:
    """Raise `Problem` for a record beyond the limits. `field` is where it stands; `payload`: measure its payload."""
    start = "" if field is None else f"{field}."
    for name in ("id", "namespace"):
        if len(getattr(record, name)) > limits.id_length:
            detail = f"{name} may have {limits.id_length:,} characters"
            raise Problem(422, "IdTooLong", detail, field=f"{start}{name}")
    if payload:
        check_payload(record.payload, f"{start}payload", limits)


def check_payload(payload: Any, field: str, limits: Limits) -> None:
    """Raise `Problem` for a payload beyond the limit."""
    if payload is None:
        return
    if len(json.dumps(payload, ensure_ascii=False).encode("utf-8", "surrogatepass")) > limits.payload_bytes:
        detail = f"a payload may have {limits.payload_bytes:,} bytes as JSON; keep larger things elsewhere"
        raise Problem(422, "PayloadTooLong", detail, field=field)
