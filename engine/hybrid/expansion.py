"""BM25 for queries that the words of their first hits joined (`engine/feedback/rm3.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..backends.choose import Backend
from ..errors import QueryError
from ..feedback.rm3 import RM3, STEPS
from ..index.union import namespaces_of
from ..records.record import RecordsOf
from ..search.batch import Batch
from ..search.lexical import RetrieverResults, analyse_queries, search_lists
from ..search.options import SearchOptions
from ..timing import Phases


# Sources: A132.
def search_expanded(
    batch: Batch,
    backend: Backend,
    depths: Mapping[int, int],
    options: SearchOptions,
    feedback: RM3,
    records: RecordsOf | None,
) -> RetrieverResults:
    """As `search_lists` by BM25, for the queries as `feedback` makes them from the first hits.

    Raises `QueryError` where nobody keeps the records, whose words are read, and for a query with neighbours.
    """
    if records is None:
        raise QueryError(
            "rm3 reads the words of the first hits, which this engine does not keep; use Engine.open(path), or an "
            "engine in memory without keep_texts=False"
        )
    if any(batch.asked[row].settings.lent for row in batch.rows):
        raise QueryError("rm3 does not let records borrow from their neighbours; ask a query for one of the two")
    rows, indexer, fields = batch.rows, batch.memory.indexer, list(batch.memory.bm25.fields)
    phases = Phases(timed=False)
    sizes = {row: min(feedback.documents, batch.asked[row].snapshot.size) for row in rows}
    first = search_lists(batch, backend, sizes, options, phases)
    texts: list[str] = []
    hits: list[list[tuple[float, slice]]] = []
    for row in rows:
        scores, documents = first.ranked(row)
        asked = batch.asked[row]
        ids = asked.snapshot.ids_of(documents)
        spaces = namespaces_of(asked.snapshot, asked.query.namespace, documents)
        found = np.full(len(documents), None, dtype=object)
        for space in dict.fromkeys(spaces.tolist()):
            own = np.flatnonzero(spaces == space)
            found[own] = records(space, ids[own].tolist())
        hits.append([])
        for score, record in zip(scores.tolist(), found.tolist(), strict=True):
            # A record that was deleted after the search began has no words any more.
            if record is not None:
                begin = len(texts)
                texts += [record.text if name == "text" else record.fields.get(name, "") for name in fields]
                hits[-1].append((score, slice(begin, len(texts))))
    terms, offsets = indexer.encode_queries(texts)
    asked_words = analyse_queries(batch.memory, [batch.queries[row] for row in rows])
    names = indexer.vocabulary.strings

    def words_of(span: slice) -> Sequence[int]:
        numbers: list[int] = terms[offsets[span.start] : offsets[span.stop]].tolist()
        return numbers

    expanded = {}
    for place, row in enumerate(rows):
        start, stop = asked_words.offsets[place : place + 2].tolist()
        query = asked_words.terms[start:stop]
        # A word that only deleted records held still has a number, and must not count.
        query = query[batch.asked[row].snapshot.document_frequencies(query) > 0]
        expanded[row] = feedback(query.tolist(), [(score, words_of(span)) for score, span in hits[place]], names)
    return search_lists(batch, backend, depths, options, phases, expanded=expanded, steps=STEPS)
