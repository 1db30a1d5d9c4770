"""Why a query over several shards has no hits, from what each of them says."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.records.query import Query
from ..engine.search.notes import EMPTY, NARROWED, NO_RECORDS, UNKNOWN, UNSEARCHABLE


def note_over(query: Query, notes: Sequence[str | None]) -> str | None:
    """The note of one engine with all records, from those of shards with a part each.

    A shard may hold no records of a namespace that has some, and lack a word that another one has.
    """
    for same in (EMPTY, UNSEARCHABLE):
        if same in notes:
            return same
    some = [note for note in notes if note != NO_RECORDS]
    if not some:
        return NO_RECORDS if notes else None
    if set(some) == {UNKNOWN}:
        return UNKNOWN
    return NARROWED if NARROWED in some and not query.offset and query.min_score is None else None
