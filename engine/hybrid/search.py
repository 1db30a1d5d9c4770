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
from ..encoders.models import positive
from ..errors import ParameterError, QueryError
from ..fuse.candidates import Candidates, Fused, best
from ..records.decision import Decision
from ..records.explanation import ChannelShare, Explanation, FusedExplanation
from ..records.record import Hits, Record
from ..search.lexical import AnyQuery, Batch, as_queries, check_how, number_of, position_of, prepare, spread
from ..storage.memory import Memory
from ..vectors.vectors import Halves
from .evidence import Evidence, Flags, Gathering, Integers
from .rerank import DEPTH, CheckedReranker, Reranked, rerank
from .sources import Sources
from .strategy import Lexical, Strategy


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
        partial(_explain, gathering, candidates, fused),
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


def check_reranker(reranker: object) -> None:
    """Raise `ParameterError` for what is no reranker that was checked."""
    if reranker is not None and not isinstance(reranker, CheckedReranker):
        raise ParameterError(
            f"a reranker must be a CheckedReranker, not {type(reranker).__name__}: rerankers often do harm, so wrap it "
            "with the verdict of fanrank.validate, or with unchecked=True"
        )


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


def reranked(
    hits: Hits,
    batch: Batch,
    sources: Sources,
    reranker: CheckedReranker,
    depth: int,
    vectors: tuple[Halves, Flags] | None = None,
) -> Hits:
    """The hits of a batch in the order of a reranker, which reads the first `depth`.

    `vectors` are those of the rows that are worked out and which of them have one, as `query_vectors`: they say which
    passage of a record is read.
    """
    documents = hits.documents
    if sources.records is None:
        raise QueryError(
            "a reranker reads the records' texts, which an engine in memory does not keep; use Engine.open"
        )
    positive("rerank_depth", depth)
    heads = documents[:, :depth]
    ids = batch.resolver()(heads)
    wanted: dict[str, set[str]] = {}
    for query, own in zip(batch.queries, ids, strict=True):
        wanted.setdefault(query.namespace, set()).update(name for name in own if name is not None)
    held: dict[tuple[str, str], Record] = {}
    for namespace, names in wanted.items():
        records = sources.records(namespace, sorted(names))
        held |= {(namespace, record.id): record for record in records if record is not None}
    halves, has = (None, None) if vectors is None else vectors

    def text(position: int, place: int) -> str:
        record = held[batch.queries[position].namespace, ids[position, place]]
        row = batch.source[position]
        if record.passages is None or record.embedding is None or halves is None or has is None or not has[row]:
            return record.text
        # Of a record with many passages the reranker reads the nearest, as the source does (D015).
        return record.passages[int(np.argmax(record.embedding.astype(np.float64) @ halves[row].astype(np.float64)))]

    # A record that was deleted since the search began has no text; it stands behind those that have one.
    lists = [
        [place for place in range(heads.shape[1]) if (query.namespace, ids[row, place]) in held]
        for row, query in enumerate(batch.queries)
    ]
    answers: list[Reranked[int]] = rerank([query.text for query in batch.queries], lists, text, reranker, depth)
    order = np.broadcast_to(np.arange(documents.shape[1]), documents.shape).copy()
    scores = np.full(documents.shape, np.nan)
    for row, found in enumerate(answers):
        asked = set(found.ranking)
        rest = [place for place in range(heads.shape[1]) if place not in asked]
        order[row, : heads.shape[1]] = [*found.ranking, *rest]
        scores[row, : len(found.scores)] = found.scores
    return replace(
        hits,
        scores=np.take_along_axis(hits.scores, order, 1),
        documents=np.take_along_axis(documents, order, 1),
        reranked=scores,
    )


def _explain(
    gathering: Gathering, candidates: Candidates, fused: Fused, position: int, record_id: str
) -> FusedExplanation:
    batch = gathering.batch
    position = position_of(batch, position)
    row, document = batch.source[position], number_of(batch, position, record_id)
    lexical: Explanation | None = None
    for own in gathering.strategy.channels:
        if isinstance(own, Lexical):
            explain = gathering.explainer(own, row)
            lexical = None if explain is None else explain(position, record_id)
    name = gathering.strategy.name
    found = explained(candidates, fused, row, document, query=position, id=record_id, strategy=name)
    return replace(found, lexical=lexical)


def explained(
    candidates: Candidates, fused: Fused, row: int, document: int, *, query: int, id: str, strategy: str
) -> FusedExplanation:
    """What the channels say of a document for the candidates' query `row`."""
    start, end = candidates.offsets[row : row + 2].tolist()
    at = start + int(np.searchsorted(candidates.documents[start:end], document))
    found = at < end and candidates.documents[at] == document
    shares = []
    for name in dict.fromkeys([*candidates.channels, *fused.shares]):
        channel = candidates.channels.get(name)
        listed_at = 0 if channel is None or not found else int(channel.ranks[at])
        scored = channel is not None and found and bool(channel.scored[at])
        share = fused.shares.get(name)
        shares.append(
            ChannelShare(
                channel=name,
                rank=listed_at or None,
                score=float(channel.scores[at]) if channel is not None and scored else None,
                share=float(share[at]) if share is not None and found else 0.0,
            )
        )
    return FusedExplanation(
        query=query,
        id=id,
        document=document,
        strategy=strategy,
        score=float(fused.scores[at]) if found and fused.kept[at] else None,
        channels=tuple(shares),
        lexical=None,
    )
