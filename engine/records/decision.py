"""What was decided for a query, as the answer reports it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..text.time_expressions.parse import When


@dataclass(frozen=True)
class Decision:
    """How one query of a batch was answered, and what that cost.

    `strategy` names what its hits come from. `milliseconds` is its share of the batch's wall-clock time: each stage's
    time divided evenly among the queries that went through it. The rest is None, or empty, where nothing of the kind
    was decided: of a cascade `confidence` (None: fewer than two records matched), `threshold` and `escalated`; of a
    router the `type` that it went by and, of a soft one, the `weights` of the strategies; of ``recall`` what the query
    was taken to say (`when`, `entities` with their confidence, `hints`), the channels left out and why (`skipped`), and
    whether the type filter was dropped (`widened`).
    """

    strategy: str
    milliseconds: float = 0.0
    type: str | None = None
    confidence: float | None = None
    threshold: float | None = None
    escalated: bool | None = None
    weights: Mapping[str, float] | None = None
    when: When | None = None
    entities: Mapping[str, float] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    widened: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, an infinite threshold as "inf"; what was not decided is left out."""
        found: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None or value in ((), {}) or (one.name == "widened" and not value):
                continue
            found[one.name] = _when(value) if isinstance(value, When) else "inf" if value == math.inf else value
        return {
            name: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
        }


def skip_share(decisions: Iterable[Decision]) -> float | None:
    """The share of queries that a cascade answered by BM25 alone; None where none decided so."""
    escalated = [one.escalated for one in decisions if one.escalated is not None]
    return escalated.count(False) / len(escalated) if escalated else None


def _when(when: When) -> dict[str, Any]:
    return {
        "start": when.start,
        "end": when.end,
        "expression": when.expression,
        "kind": when.kind,
        "speculative": when.speculative,
    }
