"""A memory's state with other metadata columns, whose values come from what the stored records hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..index.columns import ABSENT, Columns, Schema
from ..index.segment import Segment
from ..index.snapshot import Snapshot
from ..records.record import Record
from ..text.vocabulary import Vocabulary
from .record_stream import in_groups
from .state import MemoryState
from .writes import group_by_namespace

# Records that are looked at together.
COLUMN_RECORDS = 1_000

Arrays = dict[str, npt.NDArray[Any]]


def with_columns(state: MemoryState, schema: Schema, records: Iterable[Record]) -> MemoryState:
    """The state with the columns of `schema`; `records` are all that are live. Nothing is changed in place.

    Columns that the state has stay as they are, and those that `schema` leaves out are gone. Raises `RecordError` with
    the id of a record whose value is of the wrong type.
    """
    known = state.schema
    fresh = Schema(
        tuple(n for n in schema.categories if n not in known.categories or (n in schema.json) != (n in known.json)),
        tuple(name for name in schema.numbers if name not in known.numbers),
        schema.json,
    )
    values = {name: state.values.get(name) or Vocabulary() for name in schema.categories}
    values |= {name: Vocabulary() for name in fresh.categories}
    made = {name: [_empty(segment, fresh) for segment in held.segments] for name, held in state.snapshots.items()}
    if fresh.categories or fresh.numbers:
        for chunk in in_groups(records, COLUMN_RECORDS):
            for namespace, group in group_by_namespace(chunk).items():
                columns = Columns.of(group, fresh, values)
                _place(state.snapshot(namespace), group, columns, made.get(namespace, []))
    snapshots = {
        name: _rebuilt(held, [_joined(s, schema, new) for s, new in zip(held.segments, made[name], strict=True)])
        for name, held in state.snapshots.items()
    }
    return replace(state, schema=schema, values=values, snapshots=snapshots, unions={})


def _empty(segment: Segment, fresh: Schema) -> Arrays:
    return {
        **{name: np.full(segment.size, ABSENT, dtype=np.int32) for name in fresh.categories},
        **{name: np.full(segment.size, np.nan) for name in fresh.numbers},
    }


def _place(snapshot: Snapshot, records: list[Record], columns: Columns, made: list[Arrays]) -> None:
    """Write the records' values where their documents are."""
    places = snapshot.find_all([record.id for record in records])
    found: Mapping[str, npt.NDArray[Any]] = {**columns.categories, **columns.numbers}
    for row, record in enumerate(records):
        place = places.get(record.id)
        if place is not None:
            for name, column in found.items():
                made[place.segment][name][place.position] = column[row]


def _joined(segment: Segment, schema: Schema, made: Arrays) -> Segment:
    """The segment with the columns of `schema`: those that were `made`, and the others as they are."""
    before = segment.columns
    columns = Columns(
        segment.size,
        {
            **{n: column for n, column in before.categories.items() if n in schema.categories and n not in made},
            **{n: column for n, column in made.items() if n in schema.categories and (column != ABSENT).any()},
        },
        {
            **{name: column for name, column in before.numbers.items() if name in schema.numbers},
            **{n: column for n, column in made.items() if n in schema.numbers and not np.isnan(column).all()},
        },
    )
    learned, entities = (held and replace(held, columns=columns) for held in (segment.learned, segment.entities))
    return replace(segment, columns=columns, learned=learned, entities=entities)


def _rebuilt(snapshot: Snapshot, segments: list[Segment]) -> Snapshot:
    # Tombstones keep what they worked out for nested segments, which are new ones now.
    deleted = {number: replace(tombstones) for number, tombstones in snapshot.tombstones.items()}
    return replace(snapshot, segments=tuple(segments), tombstones=MappingProxyType(deleted))
