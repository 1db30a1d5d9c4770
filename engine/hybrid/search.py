"""A batch answered by a strategy: evidence from every channel, one fusion, one list a query.

::

    prepare ─┬─ bm25 ────┐
             ├─ learned ─┼─ candidates ─ fuse ─┬──────────────────────── best ─ rerank ─ hits
             └─ dense ───┘        ▲            └─ feedback ─ new vectors ─┐
                                  └───────────── dense scores again ◄─────┘

A channel lists its best documents; the candidates of a query are all that a channel listed. Dense channels then score
every candidate that has a vector, so that a fusion of scores compares like with like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..arrays import offsets_of, ranges
from ..backends.choose import Backend
from ..fuse.candidates import Candidates, best
from ..records.decision import Decision
from ..records.hits import Hits
from ..search.batch import AnyQuery, Batch, as_queries, prepare
from ..search.lexical import check_how, spread
from ..storage.memory import Memory
from .evidence import Evidence, Gathering, Integers
from .explain import explain_hits
from .rerank import DEPTH, CheckedReranker, check_reranker, reranked
from .sources import Sources
from .strategy import Strategy


def gathering_of(
    batch: Batch, backend: Backend, sources: Sources, strategy: Strategy, *, threads: int, execution: str
) -> Gathering:
    """What gathers a strategy's evidence."""
    if not strategy.recalls:
        return Gathering(batch, backend, sources, strategy, threads=threads, execution=execution)
    # Not above: it is a `Gathering`.
    from .recall import Recalling

    return Recalling(batch, backend, sources, strategy, threads=threads, execution=execution)


def search(
    memory: Memory,
    backend: Backend,
    sources: Sources,
    queries: Sequence[AnyQuery],
    k: int,
    strategy: Strategy,
    *,
    threads: int,
    execution: str,
    timing: bool,
    windows: Callable[[str], int],
    reranker: CheckedReranker | None = None,
    rerank_depth: int = DEPTH,
) -> Hits:
    """As `Engine.search`."""
    asked = as_queries(queries, "search")
    check_how(threads, execution)
    check_reranker(reranker)
    batch = prepare(memory, asked, k, windows, aged=strategy.aged)
    return answer(
        batch,
        backend,
        sources,
        strategy,
        threads=threads,
        execution=execution,
        timing=timing,
        reranker=reranker,
        rerank_depth=rerank_depth,
    )


def answer(
    batch: Batch,
    backend: Backend,
    sources: Sources,
    strategy: Strategy,
    *,
    threads: int,
    execution: str,
    timing: bool,
    reranker: CheckedReranker | None = None,
    rerank_depth: int = DEPTH,
) -> Hits:
    """The hits of a batch by a strategy; `Batch` is one that was made with its `aged`."""
    gathering = gathering_of(batch, backend, sources, strategy, threads=threads, execution=execution)
    candidates, fused = gathering.evidence()
    with gathering.phases("fuse"):
        wanted = np.array([asked.k for asked in batch.asked], dtype=np.int64)
        scores, documents, _ = best(fused, candidates, wanted, batch.width)
    scores, documents, counts = spread(batch, scores, documents, (documents >= 0).sum(axis=1).astype(np.int32))
    hits = Hits(
        scores,
        documents,
        counts,
        batch.queries,
        gathering.served,
        batch.resolver(),
        partial(explain_hits, gathering, candidates, fused),
        source=batch.source,
    )
    if reranker is not None:
        with gathering.phases("rerank"):
            vectors = gathering.vectors if strategy.dense else None
            hits = reranked(hits, batch, sources, reranker, rerank_depth, vectors)
    decided = gathering.decisions()
    if decided is not None:
        plain = Decision(strategy.name)
        hits = replace(hits, decisions=tuple(decided.get(row, plain) for row in batch.source))
    return replace(hits, timing=gathering.phases.milliseconds) if timing else hits


def gather(
    memory: Memory,
    backend: Backend,
    sources: Sources,
    queries: Sequence[AnyQuery],
    strategy: Strategy,
    *,
    threads: int,
    execution: str,
    windows: Callable[[str], int],
) -> Evidence:
    """As `Engine.candidates`: the evidence, and what turns its documents into ids."""
    asked = as_queries(queries, "candidates")
    check_how(threads, execution)
    batch = prepare(memory, asked, 1, windows, aged=strategy.aged)
    gathering = gathering_of(batch, backend, sources, strategy, threads=threads, execution=execution)
    candidates = gathering.candidates()
    # Equal queries are worked out once: each gets the candidates of the row that holds its answer.
    source = np.array(batch.source, dtype=np.int64)
    counts = np.diff(candidates.offsets)[source]
    places = ranges(candidates.offsets[source], counts)
    offsets = offsets_of(counts)
    channels = {name: channel.at(places, offsets) for name, channel in candidates.channels.items()}
    spread_out = Candidates(
        offsets,
        candidates.documents[places],
        channels,
        candidates.now,
        candidates.times[places],
        candidates.importance[places],
        candidates.types,
    )

    def resolve(documents: Integers) -> npt.NDArray[np.object_]:
        ids = np.full(len(documents), None, dtype=object)
        for row, query in enumerate(batch.queries):
            own = slice(int(offsets[row]), int(offsets[row + 1]))
            if own.stop > own.start:
                ids[own] = batch.snapshots[query.namespace].ids_of(documents[own])
        return ids

    return spread_out, resolve
