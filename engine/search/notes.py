"""Says why a query has no hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..index.snapshot import Snapshot
from ..records.query import Query
from ..text.vocabulary import TermIndexer

EMPTY = "the query holds no word"
STOP_WORDS = "no word of the query is searchable: only stop words"
NO_RECORDS = "the namespace holds no records"
UNKNOWN = "no record of the namespace holds a word of the query"
NARROWED = "no record that holds a word of the query passes its filter, scope and time range"


@dataclass(frozen=True, eq=False)
class Notes:
    """Says in a short word why a query over these snapshots has no hits. It works only when it is called."""

    indexer: TermIndexer
    snapshots: Mapping[str, Snapshot]
    """Those that the queries search, by namespace."""

    def __call__(self, query: Query) -> str | None:
        """The note for a query that has no hits; None where nothing is known."""
        if query.k == 0 or query.offset or query.newest or query.min_score is not None:
            return None
        words = self.indexer.analyzer(query.text) if query.terms is None else [*query.terms]
        if not words and query.vector is None and not query.weights:
            return STOP_WORDS if any(map(str.isalnum, query.text)) else EMPTY
        snapshots = [snapshot for snapshot in self.snapshots_of(query) if snapshot.size]
        if not snapshots:
            return NO_RECORDS
        terms = np.array(self.indexer.encode_terms(words), dtype=np.int32)
        if not any(snapshot.document_frequencies(terms).any() for snapshot in snapshots):
            return None if query.vector is not None or query.weights else UNKNOWN
        limits = (query.filter, query.scope, query.since, query.until, query.windows)
        return None if limits.count(None) == len(limits) else NARROWED

    def slice(self, queries: Sequence[Query]) -> Notes:
        """The notes on these queries alone. They hold nothing of other tenants."""
        spaces = {query.namespace for query in queries}
        return Notes(self.indexer, {name: snapshot for name, snapshot in self.snapshots.items() if name in spaces})

    def snapshots_of(self, query: Query) -> list[Snapshot]:
        """The snapshots that the query searches."""
        snapshot = self.snapshots.get(query.namespace)
        return [] if snapshot is None else [snapshot]
