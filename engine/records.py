"""The nouns of the engine: what goes in (`Record`), what is asked (`Query`), what comes out (`Hits`).

Sources: SPEC A001 and A002 (record), B003 (predicate, type, entities), A062 and B030 (the query carries its own time).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .entities import Relation, checked_entities, checked_relations
from .errors import MissingExtraError, QueryError, RecordError, StorageError
from .filters import Filter, parse_filter

if TYPE_CHECKING:
    from .dense.vectors import Halves
    from .explain import Explanation, FusedExplanation
    from .route.decision import Decision

T = TypeVar("T")

DEFAULT_K = 10
MAX_TIME = 1e15
"""Seconds from 1970, 31 million years: windows of a millisecond can still be counted in int64."""

UNIT = 2.0**-10
"""How far from 1 the length of a vector of length 1 is after its components are rounded to half precision, at most."""

FIRST = 16
"""Components that tell most rows that float16 does not hold exactly."""

CATEGORIES = ("role", "session", "user", "agent", "tool", "type")
"""The built-in metadata columns that hold strings."""


@dataclass(frozen=True)
class Record:
    """One memory: text with the metadata that an agent framework has at hand.

    Only `id` and `text` are required. `time` is in seconds since 1970-01-01 UTC; `importance` lies in [0, 1];
    `fields` holds further text fields for BM25F (``{"predicate": "prefers tea"}``); `extra` is whatever else its origin
    says. The index keeps ids and the metadata columns (`engine/columns.py`); texts and the rest stand in the
    record store, where there is one.

    `passages` are what is embedded instead of `text`, a vector each (late interaction). `embedding` is a vector [d],
    or one for each passage [n, d], of any array-like; it becomes unit vectors in half precision, float16 [n, d] and
    read-only (`unit_rows`), and does not count when records are compared. `weights` are learned sparse term weights,
    finite and not negative.

    `entities` are what the record mentions, ``{name in the text: entity id}`` or a list of ids, and becomes a
    dictionary; `relations` are the edges between entities that it states (`Relation`, or mappings of its fields), and
    becomes a tuple. Both are terms of an index of their own (`engine/entities.py`). Raises `RecordError` for a value of
    the wrong type or out of range.
    """

    id: str
    text: str
    namespace: str = ""
    role: str | None = None
    session: str | None = None
    user: str | None = None
    agent: str | None = None
    tool: str | None = None
    type: str | None = None
    time: float | None = None
    importance: float | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    passages: Sequence[str] | None = None
    embedding: Any = field(default=None, compare=False, repr=False)
    weights: Mapping[str, float] | None = None
    entities: Mapping[str, str] | Sequence[str] | None = None
    relations: Sequence[Relation | Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise RecordError(f"'id' must be a non-empty string, not {self.id!r}")
        if not isinstance(self.text, str):
            raise RecordError(f"'text' must be a string, not {type(self.text).__name__}", record_id=self.id)
        self._check_encodable("id", self.id)
        for name in ("namespace", *CATEGORIES):
            value = getattr(self, name)
            if value is None and name != "namespace":
                continue
            if not isinstance(value, str):
                raise RecordError(f"{name!r} must be a string, not {type(value).__name__}", record_id=self.id)
            self._check_encodable(name, value)
        if self.time is not None:
            self._check_number("time", self.time, "seconds since 1970-01-01 UTC")
            if not -MAX_TIME <= self.time <= MAX_TIME:
                raise RecordError(f"'time' must lie within {MAX_TIME:g} seconds of 1970", record_id=self.id)
        if self.importance is not None:
            self._check_number("importance", self.importance, "a number in [0, 1]")
            if not 0.0 <= self.importance <= 1.0:
                raise RecordError(f"'importance' must lie in [0, 1], not {self.importance!r}", record_id=self.id)
        for name in ("fields", "extra"):
            if not isinstance(getattr(self, name), Mapping):
                raise RecordError(f"{name!r} must be a mapping", record_id=self.id)
        for name, value in self.fields.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise RecordError(f"text field {name!r} must be a string", record_id=self.id)
        if self.passages is not None:
            object.__setattr__(self, "passages", self._checked_passages(self.passages))
        if self.weights is not None:
            try:
                object.__setattr__(self, "weights", checked_weights(self.weights))
            except ValueError as error:
                raise RecordError(f"'weights' {error}", record_id=self.id) from None
        if self.entities is not None or self.relations is not None:
            self._check_said()
        if self.embedding is not None:
            try:
                rows = unit_rows(self.embedding)
            except ValueError as error:
                raise RecordError(f"'embedding' {error}", record_id=self.id) from None
            self._check_rows(rows)
            object.__setattr__(self, "embedding", rows)

    def with_rows(self, rows: Halves) -> Record:
        """The record with this embedding, rows as `unit_rows` made them once: no bit of them is rounded again.

        Raises `RecordError` if there are more or fewer than passages.
        """
        self._check_rows(rows)
        made = object.__new__(type(self))  # a tenth of the time of `replace`, which checks all fields again
        made.__dict__.update(self.__dict__, embedding=rows)
        return made

    def _check_rows(self, rows: Halves) -> None:
        if self.passages is not None and len(rows) != len(self.passages):
            raise RecordError(
                f"'embedding' must have a row for each of {len(self.passages)} passages, not {len(rows)}",
                record_id=self.id,
            )

    def _check_said(self) -> None:
        name = "entities"
        try:
            if self.entities is not None:
                object.__setattr__(self, name, checked_entities(self.entities))
            name = "relations"
            if self.relations is not None:
                object.__setattr__(self, name, checked_relations(self.relations))
        except ValueError as error:
            raise RecordError(f"{name!r} {error}", record_id=self.id) from None

    def _checked_passages(self, passages: object) -> tuple[str, ...]:
        if not isinstance(passages, Sequence) or isinstance(passages, (str, bytes)):
            raise RecordError(
                f"'passages' must be a sequence of strings, not {type(passages).__name__}", record_id=self.id
            )
        if not passages:
            raise RecordError("no passages; leave them out to embed the text", record_id=self.id)
        for number, passage in enumerate(passages):
            if not isinstance(passage, str):
                raise RecordError(f"passage {number} must be a string, not {type(passage).__name__}", record_id=self.id)
            if not passage.strip():
                raise RecordError(f"passage {number} is blank and has no vector; leave it out", record_id=self.id)
        return tuple(passages)

    def _check_encodable(self, name: str, value: str) -> None:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RecordError(
                f"{name!r} holds a lone surrogate at character {error.start}, which no file can store; "
                f"repair it with value.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')",
                record_id=None if name == "id" else self.id,
            ) from None

    def _check_number(self, name: str, value: object, unit: str) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise RecordError(f"{name!r} must be {unit}, not {value!r}", record_id=self.id)
        if not _finite(value):
            raise RecordError(f"{name!r} must be finite, not {_shown(value)}", record_id=self.id)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """A record from a JSON-like mapping.

        ``_id`` is read as ``id`` (BEIR), `time` may also be an ISO 8601 string (UTC where it names no zone), and
        unknown keys go to `extra`. Raises `RecordError`.
        """
        if not isinstance(data, Mapping):
            raise RecordError(f"a record must be a JSON object, not {type(data).__name__}")
        values: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in data.items():
            if key in _RECORD_FIELDS:
                values[key] = value
            else:
                extra[key] = value
        if "id" not in values and "_id" in extra:
            values["id"] = extra.pop("_id")
        known_id = values.get("id") if isinstance(values.get("id"), str) else None
        for name in ("id", "text"):
            if name not in values:
                raise RecordError(f"{name!r} is missing", record_id=known_id)
        if isinstance(values.get("time"), str):
            values["time"] = parse_time(values["time"], known_id)
        for name in ("fields", "extra"):
            if values.get(name) is None:
                values.pop(name, None)
        if extra:
            carried = values.get("extra", {})
            if not isinstance(carried, Mapping):
                raise RecordError("'extra' must be a mapping", record_id=known_id)
            values["extra"] = {**carried, **extra}
        return cls(**values)


def unit_rows(value: Any) -> Halves:
    """These vectors [d] or [n, d] as unit vectors in half precision, float16 [n, d], read-only.

    A row that float16 holds exactly and whose length is 1 but for rounding (`UNIT`) stays as it is, so that what was
    normalised once keeps its bits however often it is read and written again. Raises `ValueError` as `normalized`, for
    the caller to name what they are of, and for no row at all.
    """
    # Not above: engine/dense/vectors.py needs engine/columns.py, and that needs this module.
    from .dense.vectors import as_rows, normalized

    try:
        given = as_rows(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be numbers, all rows of one length") from None
    made = normalized(given)
    if not len(made):
        raise ValueError("has no row; leave it out where there is no vector")
    # Their first components tell nearly all other rows, which cost next to nothing so.
    for row in np.flatnonzero(_exact(given[:, :FIRST])).tolist():
        own = given[row].astype(np.float64)
        if _exact(own) and abs(math.sqrt(own @ own) - 1.0) <= UNIT:
            made[row] = own
    made.flags.writeable = False
    return made


def _exact(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether float16 holds all values along the last axis."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore"):
        same: npt.NDArray[np.bool_] = (wide.astype(np.float16) == wide).all(axis=-1)
    return same


def checked_weights(weights: object) -> dict[str, float]:
    """Term weights as a dictionary of their own. Raises `ValueError`, for the caller to name what they are of."""
    if not isinstance(weights, Mapping):
        raise ValueError(f"must map terms to numbers, not {type(weights).__name__}")
    for term, weight in weights.items():
        if not isinstance(term, str):
            raise ValueError(f"must have strings as terms, not {_shown(term)}")
        if not term.isascii() and term.encode("utf-8", "replace").decode() != term:
            raise ValueError(f"must have terms without lone surrogates, which no file can store, not {term!r}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.integer, np.floating)):
            raise ValueError(f"must map terms to numbers, not {term!r} to {_shown(weight)}")
        if not _finite(weight) or weight < 0:
            raise ValueError(f"must be finite and 0 or more, not {_shown(weight)} as that of {term!r}")
    return {term: float(weight) for term, weight in weights.items()}


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def _shown(value: object) -> str:
    """`repr`, cut: an integer can be any length."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "an integer beyond float64"
    return text if len(text) <= 80 else text[:79] + "…"


_RECORD_FIELDS = frozenset(Record.__dataclass_fields__)


def parse_time(text: str, record_id: str | None) -> float:
    """Seconds since 1970-01-01 UTC of an ISO 8601 date, UTC where it names no zone. Raises `RecordError`."""
    try:
        # Python 3.10's parser knows no trailing Z.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise RecordError(f"'time' is not an ISO 8601 date: {text!r}", record_id=record_id) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()


def read_json_lines(path: str | os.PathLike[str], parse: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """``(place, parse(object))`` for each line of a JSON lines file; `place` is ``file:line``, blank lines skipped.

    Raises `RecordError` naming file and line for a line that is not UTF-8 or not JSON, and adds the place to a
    `RecordError` that `parse` raises; `StorageError` if the file cannot be read.
    """
    path = Path(path)
    try:
        handle = path.open("rb")
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    with handle:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                continue
            where = f"{path.name}:{number}"
            try:
                data = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise RecordError(f"not UTF-8 at byte {error.start}", where=where) from None
            except ValueError as error:
                raise RecordError(f"not JSON: {error}", where=where) from None
            except RecursionError:
                raise RecordError("not usable JSON: nested too deeply", where=where) from None
            try:
                parsed = parse(data)
            except RecordError as error:
                raise error.at(where) from None
            yield where, parsed


def check_batch(records: object, verb: str) -> None:
    """Raise `RecordError` for what is no batch of records, as a single one."""
    if isinstance(records, (Record, Mapping, str)) or not isinstance(records, Iterable):
        raise RecordError(f"{verb} takes a batch: pass a list of records")


def as_records(records: Iterable[Record | Mapping[str, Any]]) -> Iterator[Record]:
    """The records, mappings read by `Record.from_dict`. Raises `RecordError`."""
    for number, record in enumerate(records, 1):
        if isinstance(record, Record):
            yield record
            continue
        try:
            yield Record.from_dict(record)
        except RecordError as error:
            raise error.at(f"record {number}") from None


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a JSON lines file, one object a line, read as they are consumed. Raises as `read_json_lines`."""
    for _, record in read_json_lines(path, Record.from_dict):
        yield record


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
    exactly (see `engine/decay.py`). `since` and `until` (seconds) let only records with ``since <= time <= until`` be
    hits. `windows` searches only the newest so many time windows that hold records, up to the window of `now` if that
    is given; ``"auto"`` takes as many as the k* rule says. `scope` narrows the query to a session or a user.
    `statistics` says what N, document frequencies and lengths are counted over: the whole ``"namespace"``, or only the
    ``"filtered"`` records, those that `filter` and `scope` let pass.

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
                or not _finite(value)
            ):
                unit = "seconds" if name == "half_life" else "seconds since 1970-01-01 UTC"
                raise QueryError(f"a query's {name!r} must be finite {unit}, not {_shown(value)}")
        if self.half_life is not None:
            if not self.half_life > 1e-300:
                raise QueryError(f"a query's 'half_life' must be above 0 seconds, not {_shown(self.half_life)}")
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
            f"unknown time zone {_shown(name)}: give an IANA name such as 'Europe/Berlin' (where the system has no "
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


class Resolver(Protocol):
    """Document numbers [B, n] to record ids, of each query's namespace; None for -1."""

    def __call__(self, documents: npt.NDArray[np.int64], /) -> npt.NDArray[np.object_]: ...

    def part(self, start: int, stop: int) -> Resolver:
        """That of the queries at [start, stop) alone."""
        ...


@dataclass(frozen=True, eq=False)
class Hits:
    """The answer to a batch of B queries as arrays of shape [B, k].

    Row b holds `counts[b]` hits in order of score, highest first, equal scores in order of document number (older
    first); the rest of the row is padding: score ``-inf``, document -1, id ``None``.
    """

    scores: npt.NDArray[np.float64]  # [B, k]
    documents: npt.NDArray[np.int64]  # [B, k] document numbers in the query's namespace
    counts: npt.NDArray[np.int32]  # [B]
    queries: tuple[Query, ...]
    backend: str
    resolver: Resolver = field(repr=False)
    explainer: Callable[[int, str], Explanation | FusedExplanation] = field(repr=False)
    timing: dict[str, float] | None = None
    """Milliseconds of each phase of the search, in order, where `Engine.search` was asked for it."""
    postings: int | None = None
    """Postings that were read from lists, likewise (not those of rows kept by document, nor look-ups); None where the
    backend does not count them."""
    reranked: npt.NDArray[np.float64] | None = None
    """[B, k] the reranker's scores where one decided the order, NaN behind the hits that it read; `scores` stay the
    strategy's."""
    decisions: tuple[Decision, ...] | None = None
    """What was decided for each query, where something was: by a cascade, a router, or ``recall``."""
    source: Sequence[int] | None = None
    """[B] a number for each query, the same where two are equal: such are answered once. None: each by itself."""

    @property
    def distinct(self) -> int | None:
        """Different queries."""
        return None if self.source is None else len(set(self.source))

    def part(self, start: int, stop: int, width: int, queries: tuple[Query, ...]) -> Hits:
        """The answer to the queries at [start, stop), as if they had been the batch: arrays [stop - start, width].

        `queries` are what stands in their places, and `width` is their largest k. The arrays are copies, so that a part
        does not keep the whole; what explains a strategy other than ``bm25`` does keep what was gathered for the whole.
        Times and counts of the whole are left out, and `backend` names who served the whole.
        """
        rows = slice(start, stop)
        whole, count = self.explainer, stop - start

        def explain(position: int, record_id: str) -> Explanation | FusedExplanation:
            if not -count <= position < count:
                raise QueryError(f"no query {position} in a batch of {count}")
            position %= count
            return whole(start + position, record_id).at(position)

        cut = getattr(whole, "part", None)
        return Hits(
            self.scores[rows, :width].copy(),
            self.documents[rows, :width].copy(),
            self.counts[rows].copy(),
            queries,
            self.backend,
            self.resolver.part(start, stop),
            explain if cut is None else cut(start, stop),
            reranked=None if self.reranked is None else self.reranked[rows, :width].copy(),
            decisions=None if self.decisions is None else self.decisions[rows],
            source=None if self.source is None else self.source[rows],
        )

    @cached_property
    def ids(self) -> npt.NDArray[np.object_]:
        """[B, k] record ids (str) or None; resolved when first asked for."""
        return self.resolver(self.documents)

    def __len__(self) -> int:
        """The number of queries in the batch."""
        return len(self.counts)

    def __getitem__(self, query: int) -> list[tuple[str, float]]:
        """The hits of one query as ``(id, score)`` pairs, best first."""
        count = int(self.counts[query])
        return list(zip(self.ids[query, :count].tolist(), self.scores[query, :count].tolist(), strict=True))

    def __iter__(self) -> Iterator[list[tuple[str, float]]]:
        return (self[query] for query in range(len(self)))

    def query_ids(self) -> list[str]:
        """The id of each query, or its position in the batch where it has none."""
        return [str(number) if query.id is None else query.id for number, query in enumerate(self.queries)]

    def to_run(self) -> dict[str, dict[str, float]]:
        """``{query id: {record id: score}}``, each inner dict best first (the form of BEIR, MTEB and ranx).

        Evaluators sort a run by its scores, so where a reranker decided the order these are 1 / rank. Raises
        `QueryError` if two queries have the same id.
        """
        names = self.query_ids()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise QueryError(f"two queries of the batch have the id {twice!r}; a run holds one answer for each id")
        return {name: dict(self._ordered(query)) for query, name in enumerate(names)}

    def _ordered(self, query: int) -> list[tuple[str, float]]:
        """As ``self[query]``, with scores that give the order back."""
        hits = self[query]
        return hits if self.reranked is None else [(name, 1.0 / rank) for rank, (name, _) in enumerate(hits, 1)]

    def to_trec(self, tag: str = "fanrank") -> Iterator[str]:
        """TREC run lines ``qid Q0 docid rank score tag``, ranks from 1. Scores are those of `to_run`, printed exactly.

        Raises `QueryError` if a query's or a record's id holds white space, which the format cannot carry.
        """
        for query, name in enumerate(self.query_ids()):
            for rank, (record, score) in enumerate(self._ordered(query), 1):
                for value in (name, record):
                    if not value or value.split() != [value]:
                        raise QueryError(f"id {value!r} is empty or holds white space; a TREC run cannot carry it")
                yield f"{name} Q0 {record} {rank} {score!r} {tag}"

    def _columns(self) -> dict[str, Any]:
        present = np.arange(self.scores.shape[1]) < self.counts[:, None]
        rows, ranks = np.nonzero(present)
        names = np.array(self.query_ids(), dtype=object)
        return {
            "query": names[rows] if len(names) else names,
            "rank": ranks.astype(np.int64) + 1,
            "id": self.ids[present],
            "score": self.scores[present],
        }

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the columns query, rank (from 1), id, score, a row per hit."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("pandas", "tables") from None
        return pd.DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` with the columns query, rank (from 1), id, score, a row per hit."""
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingExtraError("pyarrow", "tables") from None
        columns = self._columns()
        return pa.table(
            {
                "query": pa.array(columns["query"], pa.string()),
                "rank": pa.array(columns["rank"], pa.int64()),
                "id": pa.array(columns["id"], pa.string()),
                "score": pa.array(columns["score"], pa.float64()),
            }
        )

    def to_torch(self) -> tuple[Any, Any, Any]:
        """``(scores, documents, counts)`` as torch tensors that share memory with the arrays."""
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "gpu") from None
        return torch.from_numpy(self.scores), torch.from_numpy(self.documents), torch.from_numpy(self.counts)

    def explain(self, query: int, document: str) -> Explanation | FusedExplanation:
        """How the record with id `document` scored for the query at this position: BM25's score term by term, or what
        each channel of a strategy says and adds.

        Computed against the index as it was when the batch was searched. Raises `UnknownIdError`, `QueryError`.
        """
        return self.explainer(query, document)
