"""What is asked: a query, its scope and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from typing import Any, Literal

import numpy as np

from ..errors import QueryError
from ..vectors.vectors import unit_rows
from .checks import checked_weights, is_finite, shorten
from .filters import Filter, parse_filter

DEFAULT_K = 10


# Sources: C008.
@dataclass(frozen=True)
class SearchScope:
    """How far a query looks back: this session, all of a user's, or everything."""

    column: Literal["session", "user"] | None
    id: str | None
    limit: int | None
    """Hits of a query that does not say its own k."""

    @classmethod
    def session(cls, id: str, limit: int | None = 3) -> SearchScope:
        """The warm tier: one session, 3 hits."""
        return cls("session", id, limit)

    @classmethod
    def user(cls, id: str, limit: int | None = 2) -> SearchScope:
        """The cold tier: all sessions of a user, 2 hits."""
        return cls("user", id, limit)

    @classmethod
    def everything(cls, limit: int | None = None) -> SearchScope:
        """The whole namespace, as many hits as the batch asks for."""
        return cls(None, None, limit)

    def __post_init__(self) -> None:
        if self.column not in ("session", "user", None) or (self.column is None) != (self.id is None):
            raise QueryError("a scope is made by SearchScope.session(id), .user(id) or .everything()")
        if self.id is not None and not isinstance(self.id, str):
            raise QueryError(f"a scope's id must be a string, not {type(self.id).__name__}")
        if self.limit is not None:
            check_k(self.limit)

    def __str__(self) -> str:
        return "everything" if self.column is None else self.column


# Sources: A062, A003, C001, B034, A030, A032, B041, B030.
@dataclass(frozen=True)
class Query:
    """One lookup.

    `text` is analysed with the engine's analyzer; `terms`, if given, are used as they stand (pre-analysed; a term
    repeated counts as often as it stands). `k` overrides the batch's k. `now` is the query's own time in seconds, for
    strategies that look at age. `filter` is an expression on metadata columns (``col("role") == "tool"``) or its JSON
    form (``{"role": "tool"}``, see `parse_filter`), kept as an expression; it is applied before selection, so a
    filtered query returns its k best among the records that pass. Raises `QueryError`; a column that the engine does
    not have is only found out by the search.

    `half_life` (seconds) makes a record's score fade with its age at `now`: BM25 times ``2 ** -(age / half_life)``,
    exactly (see `engine/index/decay.py`). `since` and `until` (seconds) let only records with ``since <= time <=
    until`` be hits. `windows` searches only the newest so many time windows that hold records, up to the window of
    `now` if that is given; ``"auto"`` takes as many as the k* rule says. `scope` narrows the query to a session or a
    user. `statistics` says what N, document frequencies and lengths are counted over: the whole ``"namespace"``, or
    only the ``"filtered"`` records, those that `filter` and `scope` let pass.

    `vector` is the query's own embedding [d], kept as a unit vector in half precision, float16 [1, d] (`unit_rows`),
    and left out of comparisons; `model` names the model that made it. `weights` are learned sparse term weights. `type`
    is the kind of question, for fusions that weigh by it.

    `entities` are the ids of the entities that it is about; None: those whose names its text holds. `hints` are the
    record types that it asks for; None: what its words tell. `last_session_end` (seconds) is what expressions
    such as "last time" start from, and `timezone` the IANA name of the zone whose days and weeks its expressions of
    time mean (``"Europe/Berlin"``; None: UTC).
    """

    text: str = ""
    k: int | None = None
    now: float | None = None
    filter: Filter | Mapping[str, Any] | None = None
    namespace: str = ""
    terms: Sequence[str] | None = None
    id: str | None = None
    half_life: float | None = None
    since: float | None = None
    until: float | None = None
    windows: int | Literal["auto"] | None = None
    scope: SearchScope | None = None
    statistics: Literal["namespace", "filtered"] = "namespace"
    vector: Any = field(default=None, compare=False, repr=False)
    model: str | None = None
    weights: Mapping[str, float] | None = None
    type: str | None = None
    entities: Sequence[str] | None = None
    hints: Sequence[str] | None = None
    last_session_end: float | None = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise QueryError(f"a query's text must be a string, not {type(self.text).__name__}")
        if self.k is not None:
            check_k(self.k)
        for name, value in (("namespace", self.namespace), ("id", self.id)):
            if not isinstance(value, str) and not (name == "id" and value is None):
                raise QueryError(f"a query's {name} must be a string, not {type(value).__name__}")
        if self.terms is not None and (
            not isinstance(self.terms, Sequence)
            or isinstance(self.terms, (str, bytes))
            or not all(isinstance(term, str) for term in self.terms)
        ):
            raise QueryError("a query's terms must be a sequence of strings")
        if self.terms is not None:
            object.__setattr__(self, "terms", tuple(self.terms))  # nobody changes what a launch reads
        for name in ("now", "since", "until", "half_life", "last_session_end"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool)
                or not isinstance(value, (int, float, np.integer, np.floating))
                or not is_finite(value)
            ):
                unit = "seconds" if name == "half_life" else "seconds since 1970-01-01 UTC"
                raise QueryError(f"a query's {name!r} must be finite {unit}, not {shorten(value)}")
        if self.half_life is not None:
            if not self.half_life > 1e-300:
                raise QueryError(f"a query's 'half_life' must be above 0 seconds, not {shorten(self.half_life)}")
            if self.now is None:
                raise QueryError(
                    "a query with a half_life needs its own 'now' in seconds; pass time.time() for the wall clock"
                )
        if self.windows is not None and self.windows != "auto" and not _positive(self.windows):
            raise QueryError(f"a query's 'windows' must be 1 or more, or 'auto', not {self.windows!r}")
        if self.scope is not None and not isinstance(self.scope, SearchScope):
            raise QueryError(f"a query's scope must be a SearchScope, not {type(self.scope).__name__}")
        if self.statistics not in ("namespace", "filtered"):
            raise QueryError(f"a query's statistics must be 'namespace' or 'filtered', not {self.statistics!r}")
        object.__setattr__(self, "filter", parse_filter(self.filter))
        self._check_evidence()

    def _check_evidence(self) -> None:
        for name, value in (("model", self.model), ("type", self.type)):
            if value is not None and not isinstance(value, str):
                raise QueryError(f"a query's {name!r} must be a string, not {type(value).__name__}")
        for name, names in (("entities", self.entities), ("hints", self.hints)):
            if names is None:
                continue
            if (
                not isinstance(names, Sequence)
                or isinstance(names, (str, bytes))
                or not all(isinstance(own, str) and own for own in names)
            ):
                raise QueryError(f"a query's {name!r} must be a sequence of strings that are not empty, not {names!r}")
            object.__setattr__(self, name, tuple(names))
        if self.timezone is not None:
            zone_of(self.timezone)
        if self.weights is not None:
            try:
                object.__setattr__(self, "weights", checked_weights(self.weights))
            except ValueError as error:
                raise QueryError(f"a query's 'weights' {error}") from None
        if self.vector is not None:
            try:
                rows = unit_rows(self.vector)
            except ValueError as error:
                raise QueryError(f"a query's 'vector' {error}") from None
            if len(rows) != 1:
                raise QueryError(f"a query's 'vector' must be one vector, not {len(rows)}")
            object.__setattr__(self, "vector", rows)


def zone_of(name: str | None) -> tzinfo:
    """The time zone of an IANA name, UTC for None. Raises `QueryError` for a name that the system does not know."""
    if name is None or name == "UTC":
        return timezone.utc
    # Most queries name no zone, and the module takes some ms to load.
    import zoneinfo

    try:
        if not isinstance(name, str):
            raise ValueError
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # of no zone, of what is no name, of a folder of zones
        raise QueryError(
            f"unknown time zone {shorten(name)}: give an IANA name such as 'Europe/Berlin' (where the system has no "
            "database of zones, install tzdata)"
        ) from None


def _positive(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


def check_k(k: object) -> int:
    """`k` as an int, or `QueryError` if it is no integer or negative."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise QueryError(f"k must be an integer, not {k!r}")
    if k < 0:
        raise QueryError(f"k must be 0 or more, not {k}")
    return int(k)
