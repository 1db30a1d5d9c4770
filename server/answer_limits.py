"""How large an answer may be. A record of 8 MB that one request brings 10,000 times would be an answer of 80 GB."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..engine.records.hits import Hits
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


def collapses(hits: Hits) -> bool:
    """Whether hits may stand for others, which may be all records that are searched."""
    return bool(getattr(hits.resolver, "twins", ()))


def check_copies(hits: Hits, limits: Limits) -> None:
    """Raise `Problem` where the ids of the records that the hits stand for are more than an answer may have.

    It looks at one query after another, as those of all may not fit into memory.
    """
    total = 0
    resolver: Any = hits.resolver
    for row in range(len(hits.documents)):
        copies = resolver.slice(row, row + 1).copies(hits.documents[row : row + 1])
        total += sum(len(name) for names in copies.ravel().tolist() for name in names or ())
        if total > limits.answer_bytes:
            raise too_large(limits)
