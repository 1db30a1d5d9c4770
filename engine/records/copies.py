"""Records that an engine in memory keeps, and those that it hands out: a caller's changes reach neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import RecordError
from .record import Record


def kept_records(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records as they are at this moment, whatever their callers change later.

    A record is immutable but for its objects of JSON, so only records that hold some are copied. An empty one stays
    the caller's, as a copy of each record would take several times as long as keeping it. Raises `RecordError` for
    objects that hold themselves.
    """
    return tuple([own_copy(one) if one.extra or one.payload or one.fields else one for one in records])


def apart(records: Iterable[Record | None]) -> list[Record | None]:
    """The records, of which no two share what a caller can change: one that comes again is a copy.

    Equal queries may be of callers who know nothing of each other.
    """
    shown: set[int] = set()
    found: list[Record | None] = []
    for record in records:
        found.append(own_copy(record) if record is not None and id(record) in shown else record)
        shown.add(id(record))
    return found


def own_copy(record: Record, *, vectors: bool = True) -> Record:
    """The record with `fields`, `extra` and `payload` of its own; without ``vectors`` it has no embedding."""
    copied = object.__new__(type(record))  # as `Record.with_rows`: all fields are checked already
    values = copied.__dict__
    values.update(record.__dict__)
    try:
        for name in ("fields", "extra", "payload"):
            if (own := values[name]) is not None:
                # Empty ones too: a caller may fill what it was given.
                values[name] = _copy(own) if own else {}
    except RecursionError:
        raise RecordError("'extra' or 'payload' is nested too deeply", record_id=record.id) from None
    if not vectors:
        values["embedding"] = None
    return copied


def _copy(value: Any) -> Any:
    """A copy of a JSON value. What is no JSON, such as an object of a class, is taken as it is."""
    if isinstance(value, (dict, Mapping)):
        return {name: inner if type(inner) in _PLAIN else _copy(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [inner if type(inner) in _PLAIN else _copy(inner) for inner in value]
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})
