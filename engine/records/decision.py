"""The decision about one query, as the answer reports it: its strategy, its cost and the reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..text.time_expressions.parse import When


@dataclass(frozen=True)
class Decision:
    """How one query of a batch was answered, and how long that took.

    `strategy` names the strategy that the hits come from. `milliseconds` is the query's share of the batch's wall-clock
    time: the time of each stage is divided evenly among the queries that went through it.

    The other fields are None or empty where nothing of the kind was decided:

    - A cascade sets `confidence` (None: fewer than two records matched), `threshold` and `escalated`.
    - A router sets `type`, the question type that it used. A soft router also sets `weights`, one for each strategy.
    - ``recall`` sets what it read in the query: `when`, `entities` with their confidence, and `hints`. It also sets the
      channels that it left out and why (`skipped`), and whether the type filter was dropped (`widened`).
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

    @classmethod
    def skipping(cls, strategy: str, milliseconds: float, skipped: Mapping[str, str]) -> Decision:
        """A decision of these fields, in a tenth of the constructor's time: plain queries ask for one each call."""
        made = object.__new__(cls)
        values = {**_SILENT, "strategy": strategy, "milliseconds": milliseconds, "skipped": skipped, "entities": {}}
        object.__setattr__(made, "__dict__", values)
        return made

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, an infinite threshold as "inf". Fields that nothing set are left out."""
        values: dict[str, Any] = {}
        for decided in fields(self):
            value = getattr(self, decided.name)
            if value is None or value in ((), {}) or (decided.name == "widened" and not value):
                continue
            values[decided.name] = (
                _describe(value) if isinstance(value, When) else "inf" if value == math.inf else value
            )
        return {
            name: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Decision:
        """The decision that `to_dict` gave."""
        read = dict(values)
        if read.get("when") is not None:
            read["when"] = When(**read["when"])
        if read.get("threshold") == "inf":
            read["threshold"] = math.inf
        if "hints" in read:
            read["hints"] = tuple(read["hints"])
        return cls(**read)


_SILENT = vars(Decision(""))


def skip_share(decisions: Iterable[Decision]) -> float | None:
    """The share of queries that a cascade answered by BM25 alone. None if no cascade decided about any query."""
    escalated = [decision.escalated for decision in decisions if decision.escalated is not None]
    return escalated.count(False) / len(escalated) if escalated else None


def _describe(when: When) -> dict[str, Any]:
    return {
        "start": when.start,
        "end": when.end,
        "expression": when.expression,
        "kind": when.kind,
        "speculative": when.speculative,
    }
