"""How many bytes a state holds in memory, by what they are for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..index.segment import NESTED, Segment
from ..index.snapshot import Snapshot
from .renumber import vocabularies_of
from .state import MemoryState


def sizes_of(state: MemoryState) -> dict[str, int]:
    """The keys of `Engine.stats` that end with "_bytes", for the index.

    Arrays that are mapped from files count too. What a compiled loop or a device keeps does not.
    """
    held = sizes_in(state.snapshots.values())
    vocabularies = vocabularies_of(state).values()
    cached = held.pop("cache_bytes") + state.indexer.cache_bytes
    held["vocabulary_bytes"] = sum(vocabulary.bytes for vocabulary in vocabularies)
    return {"index_bytes": sum(held.values()), **held, "cache_bytes": cached}


def sizes_in(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """As `sizes_of`, for these snapshots, without their sum and without what namespaces share."""
    held = dict.fromkeys(
        (
            "posting_bytes",
            "evidence_bytes",
            "vector_bytes",
            "id_bytes",
            "column_bytes",
            "deleted_bytes",
            "cache_bytes",
        ),
        0,
    )
    for snapshot in snapshots:
        for segment in snapshot.segments:
            held["posting_bytes"] += segment.index_bytes
            held["evidence_bytes"] += sum(inner.index_bytes for name in NESTED if (inner := segment.held(name)))
            held["vector_bytes"] += 0 if segment.vectors is None else segment.vectors.bytes
            held["id_bytes"] += segment.ids.bytes
            held["column_bytes"] += segment.columns.bytes
            held["cache_bytes"] += _cached_in(segment)
        held["deleted_bytes"] += _deleted_in(snapshot)
        held["cache_bytes"] += _cached_by(snapshot)
    return held


def _cached_in(segment: Segment) -> int:
    """What searches worked out for a segment and its nested ones."""
    nested = (inner for name in NESTED if (inner := segment.held(name)) is not None)
    return sum(_arrays_in(own.cached()) for own in (segment, *nested))


def _cached_by(snapshot: Snapshot) -> int:
    """What searches worked out for a snapshot: contributions, idf, filtered corpora, the snapshots at some clocks."""
    held: dict[str, Any] = vars(snapshot)
    size = _arrays_in([held.get("term_idf")])
    size += sum(contributions.bytes for contributions in held.get("contributions", ()))
    size += sum(_cached_by(held[name]) for name in NESTED if name in held)
    for part, numbers in list(held.get("_filtered", {}).values()):
        size += int(numbers.nbytes) + sum(sizes_in([part]).values())
    for past in list(held.get("_at", {}).values()):
        if past is not snapshot:
            size += _deleted_in(past) + _cached_by(past)
    return int(size)


def _deleted_in(snapshot: Snapshot) -> int:
    """What a snapshot keeps of deletions and of its document frequencies."""
    tombstones = sum(tombstones.bytes for tombstones in snapshot.tombstones.values())
    return tombstones + (0 if snapshot.counts is None else snapshot.counts.nbytes)


def _arrays_in(values: Iterable[Any]) -> int:
    return sum(int(value.nbytes) for value in values if isinstance(value, np.ndarray))
