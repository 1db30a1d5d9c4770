"""The record: one memory that is written to the engine.

Sources: SPEC A001 and A002 (record), B003 (predicate, type, entities), A062 and B030 (the query carries its own time).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, get_type_hints

import numpy as np

from ..errors import RecordError
from ..moments import MAX_TIME, NO_TIME, MomentField, to_seconds
from ..vectors.vectors import Halves, unit_rows
from .checks import About, checked_weights, is_finite, naming, shorten
from .entities import Relation, checked_entities, checked_relations


@naming
@dataclass(frozen=True, repr=False)
class Record:
    """One memory: text with the metadata that an agent framework has at hand.

    Only `id` and `text` are required. `time` is a `datetime`, ISO 8601 text, or seconds since 1970-01-01 UTC. What
    names no time zone is UTC. It is stored as float seconds, as `expires` is. `importance` lies in [0, 1].
    `fields` holds further text fields for BM25F (``{"predicate": "prefers tea"}``). `extra` holds any other values that
    came with the record. The index keeps ids and the metadata columns (`engine/index/columns.py`). The record store
    keeps texts and everything else, where there is a store.

    `passages` are texts that are embedded instead of `text`, one vector each (late interaction). `embedding` is a
    vector [d], or one vector for each passage [n, d], in any array-like. It is stored as unit vectors in half
    precision, float16 [n, d] and read-only (`unit_rows`). Comparisons of records ignore it. `weights` are learned
    sparse term weights, finite and not negative.

    `entities` are the entities that the record mentions: ``{name in the text: entity id}`` or a list of ids. They are
    stored as a dictionary. `relations` are the edges between entities that the record states: `Relation` objects, or
    mappings of their fields. They are stored as a tuple. Both are indexed as terms, in an index separate from that of
    the text (`engine/records/entities.py`).

    `payload` is a JSON object of the caller's own, which is kept and given back, and never indexed. From the moment
    `expires` (given as `time` is) on, the record counts in no answer and in no statistics; it is deleted
    later. Raises `RecordError` for a value of the wrong type or out of range.
    """

    id: Annotated[str, About("The id, one of its namespace.", least=1)]
    text: Annotated[str, About("The text that is searched and returned.")]
    namespace: Annotated[str, About("The namespace; empty for the one without a name.", examples=("users/ana",))] = ""
    role: Annotated[str | None, About("Who said it: user, assistant, tool.")] = None
    session: Annotated[str | None, About("The conversation that it came from.")] = None
    user: Annotated[str | None, About("Whom it is about or from.")] = None
    agent: Annotated[str | None, About("The agent that wrote it.")] = None
    tool: Annotated[str | None, About("The tool that gave it.")] = None
    type: Annotated[str | None, About("The kind of record, such as fact or preference.")] = None
    time: Annotated[MomentField, About("When it happened.")] = NO_TIME
    importance: Annotated[float | None, About("Its importance, from 0 to 1.", least=0, most=1)] = None
    fields: Annotated[Mapping[str, str], About("Further text fields, for BM25F.")] = field(default_factory=dict)
    extra: Annotated[
        Mapping[str, Any], About("Any other values; columns that the engine declares are read from here.")
    ] = field(default_factory=dict)
    passages: Annotated[Sequence[str] | None, About("Texts that are embedded instead.", least=1)] = None
    embedding: Annotated[
        Any, About("A vector, one for each passage, or half-precision numbers as an answer gives them.")
    ] = field(default=None, compare=False, repr=False)
    weights: Annotated[Mapping[str, float] | None, About("Learned weights of terms.")] = None
    entities: Annotated[Mapping[str, str] | Sequence[str] | None, About("The entities that the text mentions.")] = None
    relations: Annotated[
        Sequence[Relation | Mapping[str, Any]] | None, About("Edges between entities that the record states.")
    ] = None
    payload: Annotated[Mapping[str, Any] | None, About("A JSON object that is kept and never searched.")] = None
    expires: Annotated[MomentField, About("When it expires.")] = NO_TIME

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise RecordError(f"'id' must be a non-empty string, not {self.id!r}")
        if not isinstance(self.text, str):
            raise RecordError(f"'text' must be a string, not {type(self.text).__name__}", record_id=self.id)
        # Records are made by the million. So the checks of what most of them lack are passed over together.
        if not self.id.isascii():
            self._check_encodable("id", self.id)
        self._check_string("namespace", self.namespace)
        if _categories_of(self) != _NO_CATEGORIES:
            for name in CATEGORIES:
                if (value := getattr(self, name)) is not None:
                    self._check_string(name, value)
        # Almost every time is a float in range.
        time = self.time
        if time is not None and not (type(time) is float and -MAX_TIME <= time <= MAX_TIME):
            self._set_time("time", time)
        if self.importance is not None:
            self._check_number("importance", self.importance, "a number in [0, 1]")
            if not 0.0 <= self.importance <= 1.0:
                raise RecordError(f"'importance' must lie in [0, 1], not {self.importance!r}", record_id=self.id)
        expires = self.expires
        if expires is not None and not (type(expires) is float and -MAX_TIME <= expires <= MAX_TIME):
            self._set_time("expires", expires)
        if self.payload is not None and not isinstance(self.payload, Mapping):
            raise RecordError(f"'payload' must be a JSON object, not {type(self.payload).__name__}", record_id=self.id)
        if self.fields != {} or self.extra != {}:
            self._check_mappings()
        if self.passages is not None:
            object.__setattr__(self, "passages", self._check_passages(self.passages))
        if self.weights is not None:
            try:
                object.__setattr__(self, "weights", checked_weights(self.weights))
            except ValueError as error:
                raise RecordError(f"'weights' {error}", record_id=self.id) from None
        if self.entities is not None or self.relations is not None:
            self._check_statements()
        if self.embedding is not None:
            try:
                rows = unit_rows(self.embedding)
            except ValueError as error:
                raise RecordError(f"'embedding' {error}", record_id=self.id) from None
            self._check_rows(rows)
            object.__setattr__(self, "embedding", rows)

    def _check_mappings(self) -> None:
        for name in ("fields", "extra"):
            if not isinstance(getattr(self, name), Mapping):
                raise RecordError(f"{name!r} must be a mapping", record_id=self.id)
        for name, value in self.fields.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise RecordError(f"text field {name!r} must be a string", record_id=self.id)

    def with_expiry(self, expires: float) -> Record:
        """A copy of the record that expires at this time, in seconds since 1970-01-01 UTC."""
        record = object.__new__(type(self))  # as in `with_rows`
        record.__dict__.update(self.__dict__, expires=expires)
        return record

    def __repr__(self) -> str:
        namespace = f", namespace={self.namespace!r}" if self.namespace else ""
        return f"{type(self).__name__}({self.id!r}, {shorten(self.text)}{namespace})"

    def expired(self, clock: float) -> bool:
        """Whether the record has expired by `clock` (seconds since 1970-01-01 UTC)."""
        return self.expires is not None and self.expires <= clock

    def with_rows(self, rows: Halves) -> Record:
        """A copy of the record with this embedding. `rows` come from `unit_rows` and are not rounded again.

        Raises `RecordError` if the record has passages and their number differs from that of the rows.
        """
        self._check_rows(rows)
        record = object.__new__(type(self))  # a tenth of the time of `replace`, which checks all fields again
        record.__dict__.update(self.__dict__, embedding=rows)
        return record

    def _check_rows(self, rows: Halves) -> None:
        if self.passages is not None and len(rows) != len(self.passages):
            raise RecordError(
                f"'embedding' must have a row for each of {len(self.passages)} passages, not {len(rows)}",
                record_id=self.id,
            )

    def _check_statements(self) -> None:
        name = "entities"
        try:
            if self.entities is not None:
                object.__setattr__(self, name, checked_entities(self.entities))
            name = "relations"
            if self.relations is not None:
                object.__setattr__(self, name, checked_relations(self.relations))
        except ValueError as error:
            raise RecordError(f"{name!r} {error}", record_id=self.id) from None

    def _check_passages(self, passages: object) -> tuple[str, ...]:
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

    def _check_string(self, name: str, value: object) -> None:
        if not isinstance(value, str):
            raise RecordError(f"{name!r} must be a string, not {type(value).__name__}", record_id=self.id)
        if not value.isascii():
            self._check_encodable(name, value)

    def _check_encodable(self, name: str, value: str) -> None:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RecordError(
                f"{name!r} holds a lone surrogate at character {error.start}, which no file can store; "
                f"repair it with value.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')",
                record_id=None if name == "id" else self.id,
            ) from None

    def _set_time(self, name: str, value: object) -> None:
        try:
            seconds = to_seconds(value)
        except ValueError as error:
            raise RecordError(f"{name!r} {error}, not {shorten(value)}", record_id=self.id) from None
        if not -MAX_TIME <= seconds <= MAX_TIME:
            raise RecordError(f"{name!r} must lie within {MAX_TIME:g} seconds of 1970", record_id=self.id)
        object.__setattr__(self, name, seconds)

    def _check_number(self, name: str, value: object, unit: str) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise RecordError(f"{name!r} must be {unit}, not {value!r}", record_id=self.id)
        if not is_finite(value):
            raise RecordError(f"{name!r} must be finite, not {shorten(value)}", record_id=self.id)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Makes a record from a JSON-like mapping.

        ``_id`` is read as ``id`` (BEIR). Unknown keys go to `extra`. Raises `RecordError`.
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
        for name in ("fields", "extra"):
            if values.get(name) is None:
                values.pop(name, None)
        if extra:
            carried = values.get("extra", {})
            if not isinstance(carried, Mapping):
                raise RecordError("'extra' must be a mapping", record_id=known_id)
            values["extra"] = {**carried, **extra}
        return cls(**values)


_TYPES = get_type_hints(Record)
_RECORD_FIELDS = frozenset(_TYPES)
CATEGORIES = tuple(name for name, kind in _TYPES.items() if kind == str | None)
"""The built-in metadata columns that hold strings: the fields of this type."""
NUMBERS = tuple(name for name, kind in _TYPES.items() if kind == float | None)
"""The built-in metadata columns that hold numbers: the fields of this type, and times, which are stored as seconds."""
_categories_of = attrgetter(*CATEGORIES)
_NO_CATEGORIES = (None,) * len(CATEGORIES)

RecordsOf = Callable[[str, Sequence[str]], Sequence[Record | None]]
"""Fetches records of a namespace by id; None for an id that is not there."""
