"""The query, and the scope that it may search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import numpy as np

from ..errors import QueryError
from ..moments import NO_TIME, Moment, MomentField, Span, SpanField, to_seconds, to_span, zone_named
from ..vectors.vectors import unit_rows
from .checks import About, checked_weights, is_finite, naming, shorten
from .filters import Filter, parse_filter
from .neighbours import Neighbours

DEFAULT_K = 10
UNITS = ("record", "exchange")
"""What one hit may be."""
RECORD, EXCHANGE = UNITS
TEXT = "text"
"""The value of `collapse` that compares texts. No column has this name."""
SPACES = ("namespace", "namespaces", "under")
"""The fields of a query that say where it searches; it sets one of them at most."""
SINGLE = ("text", "terms", "id", "k", "vector", "model", "weights", "strategy")
"""The fields of a query that no search sets for all its queries."""
SCORED = ("min_score", "strategy", "half_life", "neighbours")
"""The fields of a query that concern scores; one for the newest records has none of them."""


# Sources: C008.
@dataclass(frozen=True)
class SearchScope:
    """What a query searches: one session, all sessions of a user, or everything."""

    column: Literal["session", "user"] | None
    id: str | None
    limit: int | None
    """Number of hits for a query that sets no k itself."""

    @classmethod
    def session(cls, id: str, limit: int | None = 3) -> SearchScope:
        """The warm tier: one session, by default 3 hits."""
        return cls("session", id, limit)

    @classmethod
    def user(cls, id: str, limit: int | None = 2) -> SearchScope:
        """The cold tier: all sessions of a user, by default 2 hits."""
        return cls("user", id, limit)

    @classmethod
    def everything(cls, limit: int | None = None) -> SearchScope:
        """The whole namespace, by default as many hits as the batch asks for."""
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
@naming
@dataclass(frozen=True)
class Query:
    """One lookup.

    `text` is analysed with the engine's analyzer. `terms`, if given, are searched as they are, without analysis; a
    repeated term counts once for each repetition. `k` overrides the batch's k. `now` is the time of the query, for
    strategies that use age. `filter` is an expression on metadata columns (``col("role") == "tool"``) or
    its JSON form (``{"role": "tool"}``, see `parse_filter`); it is stored as an expression. It is applied before
    selection, so a filtered query returns its k best among the records that pass. Raises `QueryError`. Only the search
    itself reports a column that the engine does not have.

    `now`, `since`, `until` and `last_session_end` are points in time: a `datetime`, ISO 8601 text, or seconds since
    1970-01-01 UTC. A date without a time is its first moment; what names no time zone is in `timezone`. `half_life` is
    a `timedelta`, a number with a unit such as ``"7d"``, or seconds. All are stored as float seconds.

    `half_life` makes a record's score fade with its age at `now`: BM25 times ``2 ** -(age / half_life)``,
    exactly (see `engine/index/decay.py`). With `since` and `until`, only records with ``since <= time <=
    until`` can be hits. `windows` is a number of time windows: only the newest windows that hold records are searched,
    up to the window of `now` if `now` is given. ``"auto"`` takes the number from the k* rule where at least 100,000
    records are searched, and searches all of fewer. `scope` limits the query to a session or a user. `statistics` says
    which records N, document frequencies and lengths are counted over: the
    whole ``"namespace"``, or only the ``"filtered"`` records, which pass `filter` and `scope`.

    `vector` is the query's embedding [d]. It is stored as a unit vector in half precision, float16 [1, d]
    (`unit_rows`), and comparisons of queries ignore it. `model` names the model that computed it. `weights` are learned
    sparse term weights. `type` is the kind of question, for fusions whose weights depend on it.

    `entities` are the ids of the entities that the query is about. If None, they are the entities whose names occur in
    the text. `hints` are the record types that the query asks for. Strategies with a `Hinted` channel raise them; to
    see no others, use `filter`. If None, they are derived from the words of the text. `last_session_end` is the start
    of the interval that expressions such as "last time" name. `timezone` is the IANA name of the zone that defines days
    and weeks in time expressions (``"Europe/Berlin"``; None: UTC).

    `namespaces` searches several namespaces as if their records stood in one: N, lengths and document frequencies are
    those of the union. Of documents with equal scores, those of the namespace whose name sorts first come first, older
    ones first within a namespace. `under` searches all namespaces at a path and below: ``"users/ana"`` stands for
    ``users/ana`` and every ``users/ana/...``. A query has one of `namespace`, `namespaces` and `under`.

    `strategy` answers this query instead of the strategy of the batch: anything that `Engine.search` takes as its
    strategy, but for a mapping from namespaces, which is for a batch. `offset` skips the first hits of the answer.
    `min_score` leaves out hits that score less. `collapse` keeps the best hit alone of those that agree in a column, or
    in their texts with ``"text"``; records without a value in the column are all kept. `Hit.copies` names the others
    that the query may find. `newest` asks for the newest records that pass the filter, scope and time range, without
    ranking: newest first, of equal times the last written first, records without a time last. Of several namespaces,
    those of the name that sorts last count as written last. Its scores are the times, 0.0 for a record without one; its
    text is not read.

    `latest` names one or two columns. Of the records that pass the filter, scope and time range and agree in them only
    the newest can be a hit: the one with the last time that is not after `now` (None: the present moment), of equal
    times the last written; a record without a time is the oldest. Records without a value in one of the columns are
    not affected. The statistics stay those of all records, unless they are ``"filtered"``: then those that `latest`
    leaves out do not count.

    `unit` ``"exchange"`` keeps the best hit alone of each exchange: a user's turn and what answers it, by `Record.role`
    and `Record.session` (see `engine/index/neighbours.py`). Its hits name all ids of theirs (`Hit.exchange`). A record
    that is of no exchange stands alone. Exchanges come before `collapse`.

    `neighbours` says what a record borrows from the records before and after it in its session, by BM25 and by vectors
    (`Neighbours`, or a mapping with its fields). It takes the place of what the channels of the strategy say; a window
    of 0 borrows nothing. None: as the channels say, and plain BM25 borrows nothing. A neighbour lends whether or not it
    passes the query's filter, scope and time range itself. With `half_life` the whole sum fades with the age of the
    record that borrows.
    """

    text: Annotated[str, About("What is looked for.")] = ""
    k: Annotated[
        int | None, About("Hits; the batch's k where it is left out. With offset within the limit of k.", least=0)
    ] = None
    now: Annotated[MomentField, About("The time of the query, for strategies and half-lives that use age.")] = NO_TIME
    filter: Filter | Mapping[str, Any] | None = None
    namespace: Annotated[str, About("The namespace; empty for the one without a name.", examples=("users/ana",))] = ""
    terms: Annotated[Sequence[str] | None, About("Terms that are searched as they are, instead of the text.")] = None
    id: Annotated[str | None, About("A name of the query, which its result bears.")] = None
    half_life: Annotated[SpanField, About("Scores halve with each such span of age at `now`.")] = NO_TIME
    since: Annotated[MomentField, About("Records of this time or later.")] = NO_TIME
    until: Annotated[MomentField, About("Records of this time or earlier.")] = NO_TIME
    windows: Annotated[int | Literal["auto"] | None, About("Search the newest windows of time alone.")] = None
    scope: Annotated[SearchScope | None, About("As session or user, with a limit of hits.")] = None
    statistics: Annotated[Literal["namespace", "filtered"], About("The records that document frequencies count.")] = (
        "namespace"
    )
    vector: Annotated[Any, About("The embedding, or half-precision numbers.")] = field(
        default=None, compare=False, repr=False
    )
    model: Annotated[str | None, About("The model of the vector.")] = None
    weights: Mapping[str, float] | None = None
    type: Annotated[str | None, About("The kind of question.")] = None
    entities: Annotated[Sequence[str] | None, About("Ids of entities that the query is about.", least=1)] = None
    hints: Annotated[Sequence[str] | None, About("Types of records that the query asks for.", least=1)] = None
    last_session_end: Annotated[MomentField, About('The start of the interval that "last time" names.')] = NO_TIME
    timezone: Annotated[
        str | None, About("The IANA name of the zone of days and weeks.", examples=("Europe/Berlin",))
    ] = None
    namespaces: Annotated[Sequence[str] | None, About("Several namespaces, as if they were one.")] = None
    under: Annotated[str | None, About("A path: its namespace and all below it.", least=1)] = None
    strategy: Any = None
    offset: Annotated[int, About("Hits that are skipped.", least=0)] = 0
    min_score: Annotated[float | None, About("Hits that score less are left out.")] = None
    collapse: Annotated[
        str | None, About("The best hit alone of those that agree in this column, or in `text`.", least=1)
    ] = None
    unit: Annotated[
        Literal["record", "exchange"], About("Whether a hit is a record, or a user's turn with its answer.")
    ] = "record"
    latest: Annotated[
        str | Sequence[str] | None,
        "strings",
        About("The newest alone of the records that agree in this column, or pair of columns.", least=1),
    ] = None
    newest: Annotated[bool, About("The newest records that pass, without ranking.")] = False
    neighbours: Annotated[
        Neighbours | Mapping[str, Any] | None, About("What a record borrows from those beside it in its session.")
    ] = None

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
            # A copy: the caller must not change the terms while a launch reads them.
            object.__setattr__(self, "terms", tuple(self.terms))
        for name in ("now", "since", "until", "half_life", "last_session_end"):
            value = getattr(self, name)
            if value is not None and not (type(value) is float and -math.inf < value < math.inf):
                self._set_time(name, value)
        if self.half_life is not None:
            if not self.half_life > 1e-300:
                raise QueryError(f"a query's 'half_life' must be above 0 seconds, not {shorten(self.half_life)}")
            if self.now is None:
                raise QueryError(
                    "a query with a half_life needs its own 'now' in seconds; pass time.time() for the wall clock"
                )
        if self.windows is not None and self.windows != "auto" and not _is_positive(self.windows):
            raise QueryError(f"a query's 'windows' must be 1 or more, or 'auto', not {self.windows!r}")
        if self.scope is not None and not isinstance(self.scope, SearchScope):
            raise QueryError(f"a query's scope must be a SearchScope, not {type(self.scope).__name__}")
        self._check_answer()
        if self.statistics not in ("namespace", "filtered"):
            raise QueryError(f"a query's statistics must be 'namespace' or 'filtered', not {self.statistics!r}")
        object.__setattr__(self, "filter", parse_filter(self.filter))
        if self.neighbours is not None:
            object.__setattr__(self, "neighbours", Neighbours.of(self.neighbours))
        self._check_evidence()

    def _set_time(self, name: str, value: object) -> None:
        """Store what was given as seconds. What names no time zone is in the query's."""
        try:
            seconds = to_span(value) if name == "half_life" else to_seconds(value, zone_of(self.timezone))
        except ValueError as error:
            if isinstance(error, QueryError):
                raise
            raise QueryError(f"a query's {name!r} {error}, not {shorten(value)}") from None
        object.__setattr__(self, name, seconds)

    def _check_answer(self) -> None:
        """Check which namespaces are searched, and what is kept of the hits."""
        if self.namespaces is not None:
            names = self.namespaces
            if (
                not isinstance(names, Sequence)
                or isinstance(names, (str, bytes))
                or not names
                or not all(isinstance(name, str) for name in names)
            ):
                raise QueryError(f"a query's 'namespaces' must be a sequence of names, not {shorten(names)}")
            object.__setattr__(self, "namespaces", tuple(sorted({*names})))
        if self.under is not None and (not isinstance(self.under, str) or not self.under.strip("/")):
            raise QueryError(f"a query's 'under' must be a path of namespaces such as 'users/ana', not {self.under!r}")
        if bool(self.namespace) + (self.namespaces is not None) + (self.under is not None) > 1:
            raise QueryError("a query has one of 'namespace', 'namespaces' and 'under'")
        check_k(self.offset, "a query's 'offset'")
        if self.min_score is not None and (
            isinstance(self.min_score, bool)
            or not isinstance(self.min_score, (int, float, np.integer, np.floating))
            or not is_finite(self.min_score)
        ):
            raise QueryError(f"a query's 'min_score' must be a finite number, not {shorten(self.min_score)}")
        if self.collapse is not None and (not isinstance(self.collapse, str) or not self.collapse):
            raise QueryError(f"a query's 'collapse' must be 'text' or the name of a column, not {self.collapse!r}")
        if self.latest is not None:
            names = (self.latest,) if isinstance(self.latest, str) else self.latest
            listed = isinstance(names, Sequence) and 0 < len(names) <= 2
            if not listed or not all(isinstance(name, str) and name for name in names):
                raise QueryError(f"a query's 'latest' must be the name of a column, or two, not {shorten(self.latest)}")
            object.__setattr__(self, "latest", tuple(names))
        if self.unit not in UNITS:
            raise QueryError(f"a query's 'unit' must be 'record' or 'exchange', not {self.unit!r}")
        if not isinstance(self.newest, bool):
            raise QueryError(f"a query's 'newest' must be true or false, not {self.newest!r}")
        if self.newest:
            for name in SCORED:
                if getattr(self, name) is not None:
                    raise QueryError(
                        f"a query for the newest records is not scored, so it has no {name!r}; limit it by 'since', "
                        "'until' and 'filter'"
                    )

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
                or not all(isinstance(text, str) and text for text in names)
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


FIELDS = tuple(Query.__dataclass_fields__)
DEFAULTS = frozenset(FIELDS) - {*SINGLE}
"""The fields that a search may set for all its queries."""

if TYPE_CHECKING:

    class QueryDefaults(TypedDict, total=False):
        """The fields of `Query` that a search may set for all queries that set none of their own."""

        filter: Filter | Mapping[str, Any] | None
        namespace: str
        namespaces: Sequence[str] | None
        under: str | None
        now: Moment | None
        since: Moment | None
        until: Moment | None
        half_life: Span | None
        windows: int | Literal["auto"] | None
        scope: SearchScope | None
        statistics: Literal["namespace", "filtered"]
        timezone: str | None
        last_session_end: Moment | None
        type: str | None
        entities: Sequence[str] | None
        hints: Sequence[str] | None
        offset: int
        min_score: float | None
        collapse: str | None
        unit: Literal["record", "exchange"]
        latest: str | Sequence[str] | None
        newest: bool
        neighbours: Neighbours | Mapping[str, Any] | None
else:
    # Type checkers read the list above. At run time the declaration of the fields is enough.
    QueryDefaults = TypedDict("QueryDefaults", {name: Any for name in FIELDS if name in DEFAULTS}, total=False)


searched_fields = attrgetter(*SPACES)
"""The fields of a query that say which namespaces it searches."""


def zone_of(name: str | None) -> tzinfo:
    """The time zone of an IANA name, UTC for None. Raises `QueryError` for a name that the system does not know."""
    if name is None:
        return timezone.utc
    try:
        return zone_named(name)
    except ValueError as error:
        raise QueryError(f"unknown time zone {shorten(name)}: {error}") from None


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


def check_k(k: object, name: str = "k") -> int:
    """`k` as an int. Raises `QueryError`, which calls it `name`, if it is not an integer or is negative."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise QueryError(f"{name} must be an integer, not {k!r}")
    if k < 0:
        raise QueryError(f"{name} must be 0 or more, not {k}")
    return int(k)
