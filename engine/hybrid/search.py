"""A batch answered by a strategy: evidence from every channel, one fusion, one list a query.

::

    prepare ─┬─ bm25 ────┐
             ├─ learned ─┼─ candidates ─ fuse ─┬──────────────────────── best ─ rerank ─ hits
             └─ dense ───┘        ▲            └─ feedback ─ new vectors ─┐
                                  └───────────── dense scores again ◄─────┘

Each channel lists its best documents. The candidates of a query are all documents that some channel listed. Dense
channels then score every candidate that has a vector, so that a fusion of scores compares like with like.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..arrays import Integers, offsets_of, ranges
from ..backends.choose import Backend
from ..fuse.candidates import Candidates, best
from ..records.decision import Decision
from ..records.hits import Hits
from ..search.batch import Batch
from ..search.lexical import expand_duplicates
from ..search.options import SearchOptions
from .evidence import Evidence, EvidenceCollector
from .explain import explain_hits
from .recall import RecallCollector
from .rerank import rerank_hits
from .sources import Sources
from .strategy import Strategy


def make_collector(
    batch: Batch, backend: Backend, sources: Sources, strategy: Strategy, options: SearchOptions
) -> EvidenceCollector:
    """The collector of a strategy's evidence."""
    kind = RecallCollector if strategy.recalls else EvidenceCollector
    return kind(batch, backend, sources, strategy, options)


def answer(batch: Batch, backend: Backend, sources: Sources, strategy: Strategy, options: SearchOptions) -> Hits:
    """The hits of a batch by a strategy. The batch must be prepared with the strategy's `aged`."""
    collector = make_collector(batch, backend, sources, strategy, options)
    candidates, fused = collector.evidence()
    with collector.phases("fuse"):
        counts_asked = np.array([asked.k for asked in batch.asked], dtype=np.int64)
        scores, documents, _ = best(fused, candidates, counts_asked, batch.width)
    scores, documents, counts = expand_duplicates(
        batch, scores, documents, (documents >= 0).sum(axis=1).astype(np.int32)
    )
    hits = Hits(
        scores,
        documents,
        counts,
        batch.queries,
        collector.served,
        batch.resolver(),
        partial(explain_hits, collector, candidates, fused),
        source=batch.source,
    )
    if options.reranker is not None:
        with collector.phases("rerank"):
            vectors = collector.vectors if strategy.dense else None
            hits = rerank_hits(hits, batch, sources, options.reranker, options.rerank_depth, vectors)
    decisions = collector.decisions()
    if decisions is not None:
        plain = Decision(strategy.name)
        hits = replace(hits, decisions=tuple(decisions.get(row, plain) for row in batch.source))
    return replace(hits, timing=collector.phases.milliseconds) if options.timing else hits


def collect_evidence(
    batch: Batch, backend: Backend, sources: Sources, strategy: Strategy, options: SearchOptions
) -> Evidence:
    """As `Engine.candidates`: the evidence of each query, and a function from all documents to record ids."""
    candidates = make_collector(batch, backend, sources, strategy, options).candidates()
    # Equal queries are searched once: each gets the candidates of the row that holds its answer.
    source = np.array(batch.source, dtype=np.int64)
    counts = np.diff(candidates.offsets)[source]
    places = ranges(candidates.offsets[source], counts)
    offsets = offsets_of(counts)
    channels = {name: channel.at(places, offsets) for name, channel in candidates.channels.items()}
    expanded = Candidates(
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
        for row, asked in enumerate(batch.asked):
            span = slice(int(offsets[row]), int(offsets[row + 1]))
            if span.stop > span.start:
                ids[span] = asked.snapshot.ids_of(documents[span])
        return ids

    return expanded, resolve
