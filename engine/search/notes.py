"""Says why a query has no hits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..index.snapshot import Snapshot
from ..plan.passing import flags_of
from ..plan.requests import QuerySettings
from ..records.query import Query
from ..text.vocabulary import TermIndexer
from .batch import PreparedQuery

EMPTY = "the query holds no word"
UNSEARCHABLE = "no word of the query is searchable: the analyzer left none"
NO_RECORDS = "there are no records to search"
UNKNOWN = "no record holds a word of the query"
UNDATED = "no record has a time in its time range"
NARROWED = "no record that holds a word of the query passes its filter, scope and time range"
HIDDEN = "a newer record hides each one that holds a word of the query (latest)"
NO_KEYWORDS = "the index is being built, and a scan for keywords found none in the query"
SCANNED = "the index is being built, and a scan found no record for the first keywords of the query"


@dataclass(frozen=True, eq=False)
class Notes:
    """Says in a few words why a query of a batch has no hits. It works only when it is called."""

    indexer: TermIndexer
    asked: Sequence[PreparedQuery]

    def __call__(self, position: int, query: Query) -> str | None:
        # The query as it was searched: a batch may have set its offset.
        prepared = self.asked[position]
        return note_of(self.indexer, prepared.snapshot, prepared.query)

    def slice(self, start: int, stop: int) -> Notes:
        """The notes on the queries at [start, stop) alone. They hold nothing of other tenants."""
        return Notes(self.indexer, self.asked[start:stop])


def note_of(indexer: TermIndexer, snapshot: Snapshot, query: Query) -> str | None:
    """Why a query has no hits in the snapshot that it searched; None where nothing is known."""
    note = note_of_words(indexer, snapshot, query)
    dated = query.k == 0 or note in (EMPTY, UNSEARCHABLE, NO_RECORDS) or not is_undated(snapshot, query)
    return note if dated else UNDATED


def is_undated(snapshot: Snapshot, query: Query) -> bool:
    """Whether no live record has a time from `since` to `until`."""
    since = -math.inf if query.since is None else query.since
    until = math.inf if query.until is None else query.until
    flags = flags_of(snapshot, QuerySettings(since=since, until=until))
    return flags is not None and not flags.any()


def note_of_words(indexer: TermIndexer, snapshot: Snapshot, query: Query) -> str | None:
    """As `note_of`, where some record has a time in the query's range."""
    if query.k == 0:
        return None
    if query.newest:
        return None if snapshot.size else NO_RECORDS
    worded = query.vector is None and not query.weights
    words = indexer.analyzer(query.text) if query.terms is None else [*query.terms]
    if not words and worded:
        return UNSEARCHABLE if query.terms is None and any(map(str.isalnum, query.text)) else EMPTY
    if not snapshot.size:
        return NO_RECORDS
    terms = np.array(indexer.encode_terms(words), dtype=np.int32)
    if not snapshot.document_frequencies(terms).any():
        return UNKNOWN if worded else None
    if query.offset or query.min_score is not None:
        return None
    limits = (query.filter, query.scope, query.since, query.until, query.windows)
    if limits.count(None) < len(limits):
        return NARROWED
    return None if query.latest is None else HIDDEN
