"""`Patch`: changes to single fields of records, checked and encoded once, then applied to each record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy.typing as npt

from ..errors import ParameterError, RecordError, choices
from ..index.columns import holds_key
from ..moments import Moment
from ..records.entities import Relation
from ..records.jsonl import as_records
from ..records.record import Record
from ..vectors.vectors import Halves
from .pins import Models


class RecordFields(TypedDict, total=False):
    """The fields of a record that a patch can change, for type checkers."""

    text: str
    role: str | None
    session: str | None
    user: str | None
    agent: str | None
    tool: str | None
    type: str | None
    time: Moment | None
    importance: float | None
    fields: Mapping[str, str]
    extra: Mapping[str, Any]
    passages: Sequence[str] | None
    embedding: npt.ArrayLike
    weights: Mapping[str, float] | None
    entities: Mapping[str, str] | Sequence[str] | None
    relations: Sequence[Relation | Mapping[str, Any]] | None
    payload: Mapping[str, Any] | None
    expires: Moment | None


FIELDS = tuple(name for name in Record.__dataclass_fields__ if name not in ("id", "namespace"))


@dataclass(frozen=True)
class Patch:
    """New values of some fields, and the vectors and weights that follow from them.

    All texts are encoded when the patch is made. So applying it, which happens while other writes wait, calls no model.
    """

    values: Mapping[str, Any]
    """New values of fields, as `Record` stores them; without the embedding."""
    columns: Mapping[str, Any]
    """New values of declared columns; None takes a value away."""
    rows: Halves | None
    """The embedding that is given, or that of the new passages or the new text."""
    fixed: bool
    """Whether `rows` are those of the record even where it has passages that stay."""
    encoded: Mapping[str, float] | None
    """Learned weights of the new text, if an encoder makes them."""

    @classmethod
    def of(
        cls,
        changes: Mapping[str, Any] | None,
        fields: Mapping[str, Any],
        columns: Collection[str],
        searched: Collection[str],
        models: Models,
    ) -> Patch:
        """The patch of `changes` and `fields` together.

        `columns` are the names of the declared columns, `searched` those of the engine's text fields.

        Raises `ParameterError` for a name that is no field and no column, `RecordError` for a value that no record may
        have, and as `Models.encode`.
        """
        given = join_changes(changes, fields)
        for name in given:
            if name not in FIELDS and name not in columns:
                raise ParameterError(f"no field {name!r} to change{choices(name, (*FIELDS, *columns))}")
        values = {name: value for name, value in given.items() if name in FIELDS}
        if "embedding" in values and values["embedding"] is None:
            raise ParameterError("a patch cannot take a vector away; give another embedding, or update the record")
        if values.get("passages", ()) is None and not {"text", "embedding"} & values.keys():
            raise ParameterError("a patch that takes passages away must give the text or the embedding that counts now")
        try:
            checked = next(as_records([Record(**{"id": "patched", "text": "", **values})], searched))
            text = next(models.encode([Record("patched", checked.text)], None)) if "text" in values else checked
            # A blank text has no vector, and nothing is encoded.
            whole = {"embedding": checked.embedding, "passages": checked.passages}
            rows = next(models.encode([Record("patched", "", weights={}, **whole)], None)).embedding
        except RecordError as error:
            raise RecordError(error.message) from None
        fixed = rows is not None
        stored = {name: getattr(checked, name) for name in values if name != "embedding"}
        in_columns = {name: value for name, value in given.items() if name not in FIELDS}
        return cls(stored, in_columns, rows if fixed else text.embedding, fixed, text.weights)

    def apply(self, record: Record) -> Record:
        """The record with the new values.

        Where text or passages change, so do the vectors; where the text changes, so do the learned weights. All others
        stay, to the bit. Raises `RecordError`.
        """
        values = dict(self.values)
        if self.columns:
            extra = {**values.get("extra", record.extra), **self.columns}
            # Where `extra` lacks a key, the column has the payload's value. None in `extra` is no value.
            payload = values.get("payload", record.payload) or {}
            values["extra"] = {
                name: value
                for name, value in extra.items()
                if value is not None or name not in self.columns or holds_key(payload, name)
            }
        if "text" in values and "weights" not in values:
            values["weights"] = self.encoded
        passages = values.get("passages", record.passages)
        stays = not self.fixed and "passages" not in values and ("text" not in values or passages is not None)
        rows = record.embedding if stays else self.rows
        changed = replace(record, embedding=None, **values)
        return changed if rows is None else changed.with_rows(rows)


def join_changes(changes: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Both as one. Raises `ParameterError`."""
    if changes is not None and not isinstance(changes, Mapping):
        raise ParameterError(f"changes must map names of fields to values, not {type(changes).__name__}")
    twice = fields.keys() & (changes or {}).keys()
    if twice:
        raise ParameterError(f"{min(twice)!r} is given twice")
    given = {**(changes or {}), **fields}
    if not given:
        raise ParameterError("nothing to change: give at least one field")
    wrong = next((name for name in given if not isinstance(name, str)), None)
    if wrong is not None:
        raise ParameterError(f"the name of a field must be a string, not {wrong!r}")
    return given
