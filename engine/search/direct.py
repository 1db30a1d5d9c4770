"""A batch of plain BM25 answered by one compiled call, from its texts to its hits.

The number of Python calls does not grow with the batch. What this file does not serve goes the general way
(`lexical.py`), which gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ...cpu_fallback.native import COUNTED, NAME, native_setting, score_options
from ..backends.choose import Backend
from ..index.bm25 import SCALE
from ..index.masks import EVERYTHING
from ..index.native import native_snapshot
from ..records.hits import Hits
from ..storage.memory import Memory
from ..timing import Phases, annotate
from .alike import read_alike
from .batch import AnyQuery
from .options import SearchOptions

_UNIT = 1.0 / SCALE
_PHASES = "analyse", "plan", "score and select"


def answer(
    memory: Memory,
    queries: Sequence[AnyQuery],
    k: int,
    windows: Callable[[str], int],
    backend: Backend,
    options: SearchOptions,
) -> Hits | None:
    """The hits of a batch by plain BM25; None where it is not served here, and the caller goes the general way.

    `windows` is as in `prepare`. Whatever the general way refuses is left to it: None, and no error of its own.
    """
    if backend.name != NAME:
        return None
    started = time.perf_counter() if options.timing else 0.0
    alike = read_alike(memory, queries, k, windows)
    if alike is None or alike.corpus[1] is not EVERYTHING:
        return None
    snapshot = native_snapshot(alike.snapshot)
    if snapshot is None:
        return None
    indexer, texts, width = memory.indexer, alike.texts, alike.k
    analysed = indexer.native or indexer.encode_queries(texts)
    shape = len(texts), width
    scores, documents = np.empty(shape), np.empty(shape, np.int64)
    counts, source = np.empty(len(texts), np.int32), np.empty(len(texts), np.int64)
    ready = time.perf_counter() if options.timing else 0.0
    with annotate("search"):
        counted = snapshot.search_texts(
            analysed,
            texts,
            width,
            native_setting(alike.snapshot, alike.settings),
            score_options(options.execution),
            options.threads,
            _UNIT,
            scores,
            documents,
            counts,
            source,
        )
    if counted is None:
        return None
    resolver = alike.snapshot.ids_of
    if not options.timing:
        return Hits.of(scores, documents, counts, alike, NAME, resolver, source=source)
    milliseconds = {"prepare": (ready - started) * 1e3}
    milliseconds |= zip(_PHASES, (nanoseconds * 1e-6 for nanoseconds in counted[len(COUNTED) :]), strict=True)
    phases = Phases()
    for name, number in zip(COUNTED, counted, strict=False):
        phases.count(name, number)
    return Hits.of(scores, documents, counts, alike, NAME, resolver, milliseconds, counted[0], source)
