"""Answers while there is no index yet: a scan of the stored texts for keywords, newest first (SPEC C009)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ..errors import QueryError, UnknownIdError
from ..index.columns import Columns
from ..index.masks import compile_filter
from ..records.explanation import Explanation
from ..records.filters import ColumnComparison, all_of, columns_in
from ..records.hits import Hits
from ..records.query import Query, check_k, searched_fields
from ..records.record import Record
from ..storage.state import searched_names
from ..storage.storage import Storage
from ..text.keywords import keywords
from ..text.vocabulary import Vocabulary
from .batch import combine_filters, k_of
from .given import AnyBatch, as_queries
from .notes import NO_KEYWORDS, SCANNED
from .options import SearchOptions
from .shaping import is_shaped

BACKEND = "keyword-scan"
PLAIN = SearchOptions()


def scan(memory: Storage, queries: AnyBatch, k: int, options: SearchOptions = PLAIN) -> Hits:
    """Each query's k newest records that hold one of its first three keywords, scored by how many they hold.
    Of several namespaces, those of the first by name come first.

    Filters, scopes and time ranges hold; decay, windows and statistics are ignored. There is no index to number the
    documents, so they are numbered from 0 through the whole answer. Of the options, `texts` and `payload` count.
    """
    assert memory.store is not None
    batch = as_queries(queries, "search")
    for position, query in enumerate(batch):
        if query.newest or query.latest is not None or is_shaped(query):
            raise QueryError(
                f"query {position}: offset, min_score, collapse, unit, latest and newest need the index, which is "
                "being built; ask again once it is, or open the directory with wait=True"
            )
    k = check_k(k)
    wanted = [k_of(query, k) for query in batch]
    shape = (len(batch), max(wanted, default=k))
    scores, documents = np.full(shape, -np.inf), np.full(shape, -1, dtype=np.int64)
    counts = np.zeros(len(batch), dtype=np.int32)
    ids: list[str] = []
    spaces: list[str] = []
    records: list[Record] = []
    now = time.time()
    for row, query in enumerate(batch):
        words = _words_of(query)
        place = 0
        accept = partial(_accepts, memory, query, now if query.now is None else float(query.now), records)
        for name in searched_names(*searched_fields(query), memory.store.namespaces):
            for record_id, matched in memory.store.keyword_scan(name, words, wanted[row] - place, accept):
                scores[row, place], documents[row, place] = matched, len(ids)
                ids.append(record_id)
                spaces.append(name)
                place += 1
        counts[row] = place

    def explain(position: int, record_id: str) -> Explanation:
        raise UnknownIdError("there is no index yet to explain a score with")

    hits = Hits(scores, documents, counts, batch, BACKEND, _Ids(ids, spaces), explain, annotator=_annotate)
    if not (options.texts or options.payload):
        return hits
    arranged = np.array([*records, None], dtype=object)[documents]
    return hits.with_records(arranged, texts=options.texts, payload=options.payload)


def _words_of(query: Query) -> list[str]:
    return keywords(query.text) if query.terms is None else list(query.terms)


def _annotate(position: int, query: Query) -> str | None:
    """Why a query has no hits. No index says whether a record holds one of its words."""
    if query.k == 0:
        return None
    return SCANNED if any(_words_of(query)) else NO_KEYWORDS


@dataclass(frozen=True)
class _Ids:
    """Numbers that were given through the answer."""

    ids: list[str]
    spaces: list[str]

    def namespaces(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        return np.array([*self.spaces, None], dtype=object)[documents]

    def __call__(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        return np.array([*self.ids, None], dtype=object)[documents]

    def slice(self, start: int, stop: int) -> _Ids:
        return self


def _accepts(memory: Storage, query: Query, now: float, accepted: list[Record], record: Record) -> bool:
    """Whether the record passes the query's filter, scope and time range; if so, it enters `accepted`."""
    if record.expired(now):
        return False
    since = None if query.since is None else ColumnComparison("time", ">=", query.since)
    until = None if query.until is None else ColumnComparison("time", "<=", query.until)
    filter = all_of(since, until, combine_filters(query))
    # What a column of an undeclared key would hold is read from the record.
    schema = memory.schema if filter is None else memory.schema.reaching(columns_in(filter))
    values = {name: Vocabulary() for name in schema.categories}
    columns = Columns.of([record], schema, values)
    mask = compile_filter(filter, schema, values).mask(columns)
    if mask[0]:
        accepted.append(record)
    return bool(mask[0])
