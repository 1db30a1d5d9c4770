"""The records that the segments of an engine in memory keep beside their postings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Integers
from ..records.record import Record
from .snapshot import Snapshot


def records_of(snapshot: Snapshot, ids: Sequence[str]) -> dict[str, Record]:
    """The live records with these ids, by id."""
    found: dict[str, Record] = {}
    for record_id, place in snapshot.find_all(ids).items():
        records = snapshot.segments[place.segment].records
        assert records is not None
        found[record_id] = records[place.position]
    return found


def records_at(snapshot: Snapshot, documents: Integers) -> list[Record]:
    """The records of these document numbers [n]."""
    places = np.searchsorted(np.array(snapshot.firsts), documents, side="right") - 1
    found: list[Record] = []
    for number, document in zip(places.tolist(), documents.tolist(), strict=True):
        records = snapshot.segments[number].records
        assert records is not None
        found.append(records[document - snapshot.firsts[number]])
    return found
