"""A batch of plain BM25 answered by one compiled call, from its texts to its hits.

The number of Python calls does not grow with the batch. What this file does not serve goes the general way
(`lexical.py`), which gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..backends.choose import Backend
from ..index.masks import EVERYTHING
from ..plan.requests import QuerySettings
from ..plan.verbs import COUNTED, TEXT_PHASES
from ..records.hits import Hits, Resolver
from ..records.query import TEXT, Query
from ..records.record import RecordsOf
from ..storage.state import MemoryState
from ..timing import Phases, annotate
from .alike import Alike, read_alike
from .given import AnyBatch, as_query
from .lexical import number_terms
from .options import SearchOptions

if TYPE_CHECKING:
    from .twins import TwinIds


def answer(
    memory: MemoryState,
    queries: AnyBatch,
    k: int,
    windows: Callable[[str], int],
    backend: Backend,
    options: SearchOptions,
    sources: Callable[[MemoryState, Sequence[Query]], Any],
) -> Hits | None:
    """The hits of a batch by plain BM25; None where it is not served here, and the caller goes the general way.

    `windows` is as in `prepare`, and `sources` gives the `Sources` of queries. Whatever the general way refuses is left
    to it: None, and no error of its own.
    """
    if backend.texts is None:
        return None
    started = time.perf_counter() if options.timing else 0.0
    alike = read_alike(memory, queries, k, windows, collapse=True)
    if alike is None or alike.corpus[1] is not EVERYTHING:
        return None
    settings, collapsed = alike.settings, None
    if alike.collapse is not None:
        collapsed = _collapse(memory, alike, sources)
        if collapsed is None:
            return None
        settings = collapsed[0]
    indexer = memory.indexer
    if alike.termed:
        analysed: Any = number_terms(alike.texts, indexer.vocabulary)
    else:
        analysed = indexer.encode_queries(alike.texts) if indexer.native is None else indexer.native
    ready = time.perf_counter() if options.timing else 0.0
    with annotate("search"):
        found = backend.texts(
            alike.snapshot,
            settings,
            analysed,
            alike.texts,
            alike.k,
            threads=options.threads,
            execution=options.execution,
        )
    if found is None:
        return None
    scores, documents, counts, source, counted, nanoseconds = found
    resolver: Resolver = alike.snapshot.record_ids if collapsed is None else collapsed[1]
    if not options.timing:
        return Hits.of(scores, documents, counts, alike, backend.name, resolver, source=source)
    milliseconds = {"prepare": (ready - started) * 1e3}
    milliseconds |= zip(TEXT_PHASES, [spent * 1e-6 for spent in nanoseconds], strict=True)
    phases = Phases()
    # A device counts nothing.
    for name, number in zip(COUNTED, counted, strict=False):
        phases.count(name, number)
    postings = phases.counts.get(COUNTED[0])
    return Hits.of(scores, documents, counts, alike, backend.name, resolver, milliseconds, postings, source)


def _collapse(
    memory: MemoryState, alike: Alike, sources: Callable[[MemoryState, Sequence[Query]], Any]
) -> tuple[QuerySettings, TwinIds] | None:
    """The settings by which the first record of each text alone may be a hit, and what names the others.

    None where another one may score better, or texts are not kept.
    """
    if alike.collapse != TEXT or alike.settings.rate or len(memory.bm25.fields) > 1:
        return None
    from .twins import first_texts  # a plain search loads it not

    def read() -> RecordsOf | None:
        records: RecordsOf | None = sources(memory, (as_query(alike.given[0], 0),)).records
        return records

    return first_texts(alike.memory, alike.snapshot, alike.settings, alike.namespace, read)
