"""Why a query over several shards has no hits, from what each of them says."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.records.query import Query
from ..engine.search.notes import EMPTY, NO_RECORDS, UNKNOWN, UNSEARCHABLE


def note_over(query: Query, notes: Sequence[str | None]) -> str | None:
    """The note of one engine with all records. A word that one shard lacks may be in another."""
    if not notes:
        return None
    known = [note for note in notes if note != UNKNOWN]
    if not known:
        return UNKNOWN
    first = known[0]
    if first in (EMPTY, UNSEARCHABLE, NO_RECORDS):
        return first
    return None if query.offset or query.min_score is not None else first
