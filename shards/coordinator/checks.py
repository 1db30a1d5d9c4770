"""What is checked before any shard sees it.

A batch of records for several shards is checked whole, so that none can refuse its part. One for a single shard needs
no check: its engine refuses it whole.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from math import inf

from ...engine.errors import ParameterError, RecordError, UnknownIdError
from ...engine.index.build import entities_of, learned_of, vectors_of
from ...engine.index.bulk import check_ids
from ...engine.index.columns import ORDER, Columns, Ids, Schema
from ...engine.index.masks import compile_filter
from ...engine.records.query import Query
from ...engine.records.record import Record
from ...engine.search.batch import combine_filters
from ...engine.search.latest import check_latest
from ...engine.search.shaping import check_collapse
from ...engine.storage.state import MemoryState
from ...engine.storage.writes import group_by_namespace
from ...engine.text.vocabulary import Vocabulary


def check_opening(storage: object, address: object, *, num_gpus: object, num_cpus: object, actors: bool) -> None:
    """Raise `ParameterError` for arguments of `ShardedEngine.open` that are of no use.

    `actors` says whether the shards are actors of Ray.
    """
    if storage is not None and (not isinstance(storage, (str, os.PathLike)) or not os.fspath(storage)):
        raise ParameterError(f"storage must be the path of a folder, not {storage!r}")
    for name, value in (("num_gpus", num_gpus), ("num_cpus", num_cpus)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < inf:
            raise ParameterError(f"{name} must be a number of 0 or more, not {value!r}")
    if actors:
        return
    for name, given in (("address", address is not None), ("num_gpus", num_gpus), ("num_cpus", num_cpus)):
        if given:
            raise ParameterError(f"{name} is for actors of Ray; with transport='local' there are none, so leave it out")


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
        ids = [record.id for record in records]
        check_ids(namespace, ids, {*live.get(namespace, ())}.difference(removed.get(namespace, ())).intersection(ids))
        _check_values(records, schema)


def check_unnumbered(added: Sequence[Record]) -> None:
    """Raise `RecordError` for a record that brings the number of a write."""
    numbered = next((record for record in added if ORDER in record.extra), None)
    if numbered is not None:
        raise RecordError(f"'extra' holds {ORDER!r}, which shards keep for themselves", record_id=numbered.id)


def check_columns(queries: Sequence[Query], state: MemoryState) -> None:
    """Raise `UnknownColumnError` for a filter, a `collapse` or a `latest` that names no column of the caller's.

    Shards have a column more, which is not to be named.
    """
    compiled: set[tuple[int, int]] = set()
    for query in queries:
        key = id(query.filter), id(query.scope)
        if key not in compiled and (query.filter is not None or query.scope is not None):
            compile_filter(combine_filters(query), state.schema, state.values)
            compiled.add(key)
    for row, query in enumerate(queries):
        if query.collapse is not None:
            check_collapse(state, query.collapse, row, lambda namespace, ids: ())
        if query.latest is not None:
            check_latest(state, tuple(query.latest))


def _check_values(records: Sequence[Record], schema: Schema) -> None:
    """Build all of a segment that can refuse a record: its columns, weights, entities and vectors.

    What cannot be stored, a shard refuses when it prepares its part, and a record has checked its own fields.
    """
    if schema.names == Schema.of(None).names and all(map(_is_plain, records)):
        return
    columns = Columns.of(records, schema, {name: Vocabulary() for name in schema.categories})
    ids = Ids.of([record.id for record in records])
    learned_of(records, Vocabulary(), ids, columns)
    entities_of(records, Vocabulary(), ids, columns)
    vectors_of(records)


def _is_plain(record: Record) -> bool:
    held = record.embedding, record.weights, record.entities, record.relations
    return all(value is None for value in held)
