"""A batch answered by a strategy: evidence from every channel, one fusion, one list a query.

::

    prepare ─┬─ bm25 ────┐
             ├─ learned ─┼─ candidates ─ fuse ─┬──────────────────────── best ─ rerank ─ hits
             └─ dense ───┘        ▲            └─ feedback ─ new vectors ─┐
                                  └───────────── dense scores again ◄─────┘

With `Strategy.search_again` dense channels search again instead, and the candidates are made anew.

Each channel lists its best documents. The candidates of a query are all documents that some channel listed. Dense
channels then score every candidate that has a vector, so that a fusion of scores compares like with like.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..backends.choose import Backend
from ..fuse.candidates import best, rank_row
from ..records.decision import Decision
from ..records.explanation import Explanation, FusedExplanation
from ..records.hits import Explain, Hits
from ..search.batch import Batch, PreparedQuery
from ..search.explain import position_of
from ..search.lexical import expand_duplicates
from ..search.notes import Notes
from ..search.options import SearchOptions
from ..search.shaping import Pages, with_fields
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
    pages = Pages.of(batch, sources.records)
    # The list of a single channel is as deep as the page needs. Deeper lists of several channels would be ranked in
    # another way.
    deeper = {} if pages is None or not strategy.single else pages.wanted
    searched = batch if not deeper else _deepen(batch, deeper)
    # The latest events are a list that needs no more places than the answer has: 11 us a query for 10 events of
    # 1,000,000, 57 us for 100.
    brief = pages is None and strategy.by_time and (strategy.depth or 0) > batch.width > 0
    listed = replace(strategy, depth=batch.width) if brief else strategy
    collector = make_collector(searched, backend, sources, listed, options)
    candidates, fused = collector.evidence()
    with collector.phases("fuse"):
        counts_asked = np.array([asked.k for asked in batch.asked], dtype=np.int64)
        scores, documents, _ = best(fused, candidates, counts_asked, batch.width)
        found = scores, documents, (documents >= 0).sum(axis=1).astype(np.int32)
    explain: Explain = partial(explain_hits, collector, candidates, fused)
    if brief:
        explain = partial(explain_deep, batch, backend, sources, strategy, options)
    if pages is not None:
        ranked = {row: rank_row(candidates, fused, row) for row in pages.wanted}
        pages.take(ranked, complete=not strategy.single)
        explain = _search_pages(pages, collector, explain)
        found = pages.fill(*found)
    scores, documents, counts = expand_duplicates(batch, *found)
    hits = Hits(
        scores,
        documents,
        counts,
        batch.queries,
        collector.served,
        batch.resolver(),
        explain,
        source=batch.source,
        annotator=Notes(batch.memory.indexer, batch.asked),
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


def explain_deep(
    batch: Batch,
    backend: Backend,
    sources: Sources,
    strategy: Strategy,
    options: SearchOptions,
    position: int,
    record_id: str,
) -> Explanation | FusedExplanation:
    """As `explain_hits`, from lists as deep as the strategy's although the answer needed less."""
    collector = make_collector(batch, backend, sources, strategy, options)
    return explain_hits(collector, *collector.evidence(), position, record_id)


def _deepen(batch: Batch, depths: Mapping[int, int]) -> Batch:
    """The batch with lists of at least these depths for some rows."""
    asked = {row: batch.asked[row]._replace(k=depth) for row, depth in depths.items()}
    return batch.limit_to(set(batch.rows), asked)


def _search_pages(pages: Pages, first: EvidenceCollector, explain: Explain) -> Explain:
    """Fill the pages of a strategy with a single channel from deeper lists.

    `first` collected the evidence so far, and `explain` explains it. Returns what explains all of it.
    """
    batch, strategy = pages.batch, first.strategy
    explainers: dict[int, tuple[Explain, int]] = {}
    while pages.wanted:
        for rows in pages.portions():
            part = batch.select([_with_vector(first, row)._replace(k=pages.wanted[row]) for row in rows])
            collector = make_collector(part, first.backend, first.sources, strategy, first.options)
            candidates, fused = collector.evidence()
            for name, spent in collector.phases.milliseconds.items():
                first.phases.add(name, spent)
            pages.take({row: rank_row(candidates, fused, place) for place, row in enumerate(rows)})
            part_explain = partial(explain_hits, collector, candidates, fused)
            explainers |= {row: (part_explain, place) for place, row in enumerate(rows)}
    if not explainers:
        return explain

    def explain_page(position: int, record_id: str) -> Explanation | FusedExplanation:
        position = position_of(batch, position)
        chosen, place = explainers.get(batch.source[position], (explain, position))
        return chosen(place, record_id).at(position)

    return explain_page


def _with_vector(collector: EvidenceCollector, row: int) -> PreparedQuery:
    """A row's query with the vector of its text, so that no text is encoded twice."""
    prepared = collector.batch.asked[row]
    if not collector.strategy.dense or not collector.vectors[1][row]:
        return prepared
    return prepared._replace(query=with_fields(prepared.query, vector=collector.vectors[0][row : row + 1]))


def collect_evidence(
    batch: Batch, backend: Backend, sources: Sources, strategy: Strategy, options: SearchOptions
) -> Evidence:
    """As `Engine.candidates`: the evidence of each query, and a function from all documents to record ids."""
    candidates = make_collector(batch, backend, sources, strategy, options).candidates()
    # Equal queries are searched once: each gets the candidates of the row that holds its answer.
    expanded, _ = candidates.take(np.array(batch.source, dtype=np.int64))

    def resolve(documents: Integers) -> npt.NDArray[np.object_]:
        ids = np.full(len(documents), None, dtype=object)
        for row, asked in enumerate(batch.asked):
            span = slice(*expanded.offsets[row : row + 2].tolist())
            if span.stop > span.start:
                ids[span] = asked.snapshot.ids_of(documents[span])
        return ids

    return expanded, resolve
