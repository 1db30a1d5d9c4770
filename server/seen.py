"""What a request was seen to do: its metrics, its span and its line in the log are made from this.

Each request has one `Seen`, in a context variable, so that an endpoint or a tool fills it in wherever it runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..engine.hybrid.strategy import NAMED
from ..engine.records.query import Query
from ..engine.route.policy import POLICIES

CUSTOM, MIXED = "custom", "mixed"
"""Names for a strategy that a caller describes, and for several in one batch."""
STRATEGY_NAMES = (*NAMED, *POLICIES, CUSTOM, MIXED)
"""Every name that `name_strategy` gives."""
_NAME_OF = {id(value): name for name, value in [*NAMED.items(), *POLICIES.items()]}


class Journaled(Protocol):
    """Takes a line for each write."""

    texts: bool

    def put(self, line: dict[str, Any], /) -> None: ...


@dataclass(slots=True)
class Seen:
    """One request. Times are those of `time.perf_counter`, in seconds."""

    id: str
    began: float = field(default_factory=time.perf_counter)
    route: str | None = None
    """The template of its address; None where it has none."""
    key: str = ""
    """The name of the key, as its owner calls it."""
    journal: Journaled | None = None
    """Where its writes are told."""
    problem: str | None = None
    """The title of the problem by which it ended."""
    strategy: str | None = None
    queries: int = 0
    hits: int = 0
    records: int | None = None
    """Records that it wrote or deleted."""
    keeps_texts: bool = False
    """Whether the log's owner asked for the texts of queries."""
    texts: list[str | None] = field(default_factory=list)
    writes: list[tuple[str, int, float]] = field(default_factory=list)
    """Its writes that succeeded: their operation, records and seconds."""
    search_began: float = 0.0
    search_ended: float = 0.0
    search_seconds: float = 0.0
    """Of the time between the two, what it waited for hits. A stream searches several times."""


SEEN: ContextVar[Seen | None] = ContextVar("fanrank_seen", default=None)
"""The request that is being answered; None outside of one, as over a pipe."""


def note_problem(title: str) -> None:
    """Note the problem by which the request ends."""
    seen = SEEN.get()
    if seen is not None:
        seen.problem = title


def name_strategy(strategy: Any, queries: Sequence[Query] = ()) -> str:
    """One of `STRATEGY_NAMES` for the strategy of a batch, whose queries may have others of their own.

    Names are a bounded set: what a caller describes is ``custom``, whatever name it has there.
    """
    own = [query.strategy for query in queries if query.strategy is not None]
    if not own:
        return _name_one(strategy)
    names = {_name_one(one) for one in own}
    if len(own) < len(queries):
        names.add(_name_one(strategy))
    return names.pop() if len(names) == 1 else MIXED


def _name_one(strategy: Any) -> str:
    if isinstance(strategy, str):
        return strategy if strategy in NAMED or strategy in POLICIES else CUSTOM
    return _NAME_OF.get(id(strategy), CUSTOM)


def common_namespace(namespaces: Iterable[str]) -> str | None:
    """The one namespace of a batch; None where it has several or none."""
    names = set(namespaces)
    return names.pop() if len(names) == 1 else None
