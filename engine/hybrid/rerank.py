"""The first hits of a batch in the order of a reranker, which reads their records' texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Flags
from ..encoders.models import positive
from ..errors import QueryError
from ..records.hits import Hits
from ..records.record import Record
from ..rerank.reranker import CheckedReranker, Reranked, rerank
from ..search.batch import Batch
from ..vectors.vectors import Halves
from .sources import Sources

if TYPE_CHECKING:
    pass


def rerank_hits(
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
