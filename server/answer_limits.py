"""How large an answer may be. A record of 8 MB that one request brings 10,000 times would be an answer of 80 GB."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..engine.records.record import Record
from .limits import Limits
from .problems import Problem


def too_large(limits: Limits) -> Problem:
    """The refusal of an answer beyond the limit."""
    detail = f"the answer would have more than {limits.answer_bytes:,} bytes; ask for less at once"
    return Problem(422, "AnswerTooLarge", detail)


def check_records(records: Iterable[Record | None], limits: Limits) -> None:
    """Raise `Problem` where the texts, payloads and extra values of these records are more than an answer may have."""
    sizes: dict[int, int] = {}
    total = 0
    for record in records:
        if record is None:
            continue
        size = sizes.get(id(record))
        if size is None:
            size = sizes[id(record)] = len(record.text) + sum(
                len(json.dumps(part, default=str)) for part in (record.payload, dict(record.extra)) if part
            )
        total += size
        if total > limits.answer_bytes:
            raise too_large(limits)
