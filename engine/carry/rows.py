"""A record as a JSON object that carries all of it, vectors bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import RecordError
from ..records.entities import Relation
from ..records.record import CATEGORIES, NUMBERS, Record
from ..vectors.carried import halves_from_json, halves_to_json


class Carried(NamedTuple):
    """A record that came from a file."""

    where: str
    """Its position: ``file:line``, or ``file:row`` in a table."""
    record: Record
    model: str | None = None
    """The model of its embedding, as `model_of` names it; None where the file does not say."""


def model_of(pin: Mapping[str, Any] | None) -> str | None:
    """The name and version of a pinned model as one string."""
    return None if pin is None else f"{pin['name']} {pin['version']}"


def to_json(record: Record, model: str | None = None, *, vectors: bool = True) -> dict[str, Any]:
    """The fields of a stored record as JSON values, without those that it does not have.

    An embedding becomes ``{"rows": n, "float16": base64 of its rows as little-endian half precision, "model": ...}``.
    Without `vectors` it is left out.
    """
    row: dict[str, Any] = {"id": record.id, "text": record.text}
    if record.namespace:
        row["namespace"] = record.namespace
    for name in (*CATEGORIES, *NUMBERS):
        value = getattr(record, name)
        if value is not None:
            row[name] = value
    for name in ("fields", "extra"):
        if value := getattr(record, name):
            row[name] = dict(value)
    for name in ("payload", "weights", "entities"):
        value = getattr(record, name)
        if value is not None:
            row[name] = dict(value.items())
    if record.passages is not None:
        row["passages"] = list(record.passages)
    if record.relations is not None:
        row["relations"] = [Relation.of(relation).to_dict() for relation in record.relations]
    if record.embedding is not None and vectors:
        row["embedding"] = halves_to_json(record.embedding)
        if model is not None:
            row["embedding"]["model"] = model
    return row


def from_json(row: Any) -> tuple[Record, str | None]:
    """(the record of a JSON object, the model of its embedding).

    Takes what `to_json` returns, and all that `Record.from_dict` takes. Raises `RecordError`.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("embedding"), Mapping):
        return Record.from_dict(row), None
    carried = row["embedding"]
    known = row["id"] if isinstance(row.get("id"), str) else None
    try:
        rows = halves_from_json(carried)
    except ValueError as error:
        raise RecordError(f"'embedding' {error}", record_id=known) from None
    model = carried.get("model")
    return Record.from_dict({**row, "embedding": rows}), model if isinstance(model, str) else None
