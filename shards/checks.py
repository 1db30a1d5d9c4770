"""What is checked of a batch for several shards before any of them sees it, so that none can refuse its part.

A batch for one shard needs no check: its engine refuses it whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..engine.errors import DuplicateIdError, UnknownIdError
from ..engine.index.build import entities_of, learned_of, vectors_of
from ..engine.index.columns import Columns, Ids, Schema
from ..engine.records.record import Record
from ..engine.storage.row_codec import encode
from ..engine.storage.writes import group_by_namespace
from ..engine.text.vocabulary import Vocabulary


def check_removed(removed: Mapping[str, Sequence[str]], live: Mapping[str, Collection[str]]) -> None:
    """Raise `UnknownIdError` for an id to remove that no live record has, as `Engine.delete`."""
    for namespace, ids in removed.items():
        missing = next((record_id for record_id in ids if record_id not in live.get(namespace, ())), None)
        if missing is not None:
            where = f" in namespace {namespace!r}" if namespace else ""
            raise UnknownIdError(f"no live record with id {missing!r}{where}; nothing was changed")


def check_added(
    added: Sequence[Record],
    removed: Mapping[str, Sequence[str]],
    live: Mapping[str, Collection[str]],
    schema: Schema,
) -> None:
    """Raise `DuplicateIdError` and `RecordError` for records that an engine would refuse, as `Engine.add`."""
    for namespace, records in group_by_namespace(added).items():
        where = f"namespace {namespace!r}" if namespace else None
        taken = {*live.get(namespace, ())} - {*removed.get(namespace, ())}
        for record in records:
            if record.id in taken:
                message = "the id is already taken; give another, or replace the record with update"
                raise DuplicateIdError(message, where=where, record_id=record.id)
        seen: set[str] = set()
        for record in records:
            if record.id in seen:
                message = "the batch has this id twice; ids must be unique"
                raise DuplicateIdError(message, where=where, record_id=record.id)
            seen.add(record.id)
        _check_values(records, schema)


def _check_values(records: Sequence[Record], schema: Schema) -> None:
    """Build all of a segment that can refuse a record: its columns, weights, entities and vectors."""
    columns = Columns.of(records, schema, {name: Vocabulary() for name in schema.categories})
    ids = Ids.of([record.id for record in records])
    learned_of(records, Vocabulary(), ids, columns)
    entities_of(records, Vocabulary(), ids, columns)
    vectors_of(records)
    for record in records:
        encode(record)
