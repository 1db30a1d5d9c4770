"""How many bytes a state holds in memory, by what they are for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..index.segment import NESTED, Segment
from ..index.snapshot import Snapshot
from ..index.tombstones import Tombstones
from .renumber import vocabularies_of
from .state import MemoryState

KEYS = "posting_bytes", "evidence_bytes", "vector_bytes", "id_bytes", "column_bytes", "deleted_bytes"
"""What the segments of a namespace hold."""
_WORKED_OUT = frozenset(("term_idf", "contributions", "_filtered", "_at", *NESTED))
"""Where a snapshot keeps what searches worked out."""


def sizes_of(state: MemoryState) -> dict[str, int]:
    """The keys of `Engine.stats` that end with "_bytes", for the index.

    Arrays that are mapped from files count too. What a compiled loop or a device keeps does not.
    """
    snapshots = list(state.snapshots.values())
    held = sizes_in(snapshots)
    held["deleted_bytes"] += sum(map(_counts_of, snapshots))
    held["vocabulary_bytes"] = sum(vocabulary.bytes for vocabulary in vocabularies_of(state).values())
    unions = [union for _, union in list(state.unions.values())]
    # The tombstones of a union are those of its namespaces.
    cached = sum(map(_cached_by, snapshots)) + sum(_counts_of(union) + _cached_by(union, ()) for union in unions)
    segments = [segment for snapshot in snapshots for segment in snapshot.segments]
    cached += sum(map(_cached_in, segments)) + state.indexer.cache_bytes
    return {"index_bytes": sum(held.values()), **held, "cache_bytes": cached}


def sizes_in(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """`KEYS` of these snapshots: what does not depend on other namespaces and on searches."""
    held = dict.fromkeys(KEYS, 0)
    snapshots = list(snapshots)
    segments = [segment for snapshot in snapshots for segment in snapshot.segments]
    fixed = "posting_bytes", "evidence_bytes", "id_bytes", "column_bytes"
    held |= zip(fixed, map(sum, zip(*(segment.sizes for segment in segments), strict=True)), strict=False)
    held["vector_bytes"] = sum(segment.vectors.bytes for segment in segments if segment.vectors is not None)
    for snapshot in snapshots:
        if snapshot.tombstones:
            held["deleted_bytes"] += sum(tombstones.bytes for tombstones in snapshot.tombstones.values())
    return held


def _nested_in(segment: Segment) -> list[Segment]:
    return [inner for name in NESTED if (inner := segment.held(name)) is not None]


def _cached_in(segment: Segment) -> int:
    """What searches worked out for a segment and its nested ones."""
    return sum(_arrays_in(own.cached()) for own in (segment, *(_nested_in(segment) if segment.sizes[1] else ())))


def _cached_by(snapshot: Snapshot, deleted: Iterable[Tombstones] | None = None) -> int:
    """What searches worked out for a snapshot: contributions, idf, filtered corpora, the snapshots at some clocks.

    `deleted` are those of its tombstones that count; None: all.
    """
    held: dict[str, Any] = vars(snapshot)
    if not snapshot.tombstones and _WORKED_OUT.isdisjoint(held):
        return 0
    size = _arrays_in([held.get("term_idf")])
    size += sum(each.cache_bytes for each in (snapshot.tombstones.values() if deleted is None else deleted))
    size += sum(contributions.bytes for contributions in held.get("contributions", ()))
    # The nested tombstones are counted with those that they belong to.
    size += sum(_counts_of(held[name]) + _cached_by(held[name], ()) for name in NESTED if name in held)
    for part, numbers in list(held.get("_filtered", {}).values()):
        size += int(numbers.nbytes) + sum(sizes_in([part]).values()) + _counts_of(part) + _cached_by(part)
        size += sum(map(_cached_in, part.segments))
    for past in list(held.get("_at", {}).values()):
        if past is not snapshot:
            size += _derived_of(past) + _cached_by(past)
    return int(size)


def _derived_of(snapshot: Snapshot) -> int:
    """What a snapshot keeps that was made of the segments of another one."""
    return _counts_of(snapshot) + sum(tombstones.bytes for tombstones in snapshot.tombstones.values())


def _counts_of(snapshot: Snapshot) -> int:
    return 0 if snapshot.counts is None else int(snapshot.counts.nbytes)


def _arrays_in(values: Iterable[Any]) -> int:
    return sum(int(value.nbytes) for value in values if isinstance(value, np.ndarray))


def snapshot_stats(snapshot: Snapshot) -> dict[str, int]:
    """Sizes of a namespace's part of the index."""
    sizes = sizes_in([snapshot])
    return {
        "documents": snapshot.size,
        "deleted": snapshot.numbers - snapshot.size,
        "segments": len(snapshot.segments),
        "postings": sum(segment.postings for segment in snapshot.segments),
        "index_bytes": sum(sizes.values()),
        **sizes,
        **evidence_stats(snapshot.segments),
    }


def evidence_stats(segments: Sequence[Segment]) -> dict[str, int]:
    """What these segments hold beside BM25's postings: rows of vectors, bytes of vectors, postings of learned weights,
    postings of entities.
    """
    stored = [segment.vectors for segment in segments if segment.vectors is not None]
    return {
        "vectors": sum(len(vectors.matrix) for vectors in stored),
        "vector_bytes": sum(vectors.bytes for vectors in stored),
        "weights": sum(segment.sizes[4] for segment in segments),
        "entities": sum(segment.sizes[5] for segment in segments),
    }
