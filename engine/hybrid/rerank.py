"""Reorders the first hits of a batch by a reranker, which reads the records' texts."""

from __future__ import annotations

from dataclasses import replace

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


def rerank_hits(
    hits: Hits,
    batch: Batch,
    sources: Sources,
    reranker: CheckedReranker,
    depth: int,
    vectors: tuple[Halves, Flags] | None = None,
) -> Hits:
    """The hits of a batch in the order of a reranker, which reads the first `depth`.

    `vectors` is the result of `query_vectors`: the queries' vectors and which rows have one. They choose the passage of
    a record that is read.
    """
    documents = hits.documents
    if sources.records is None:
        raise QueryError(
            "a reranker reads the records' texts, and this engine keeps none; use Engine.open, or an engine in memory "
            "without keep_texts=False"
        )
    positive("rerank_depth", depth)
    heads = documents[:, :depth]
    resolver = batch.resolver()
    ids, spaces = resolver(heads), resolver.namespaces(heads)
    ids_of: dict[str, set[str]] = {}
    for space, name in zip(spaces.reshape(-1).tolist(), ids.reshape(-1).tolist(), strict=True):
        if name is not None:
            ids_of.setdefault(space, set()).add(name)
    record_of: dict[tuple[str, str], Record] = {}
    for namespace, names in ids_of.items():
        records = sources.records(namespace, sorted(names))
        record_of |= {(namespace, record.id): record for record in records if record is not None}
    halves, has = (None, None) if vectors is None else vectors

    def text(position: int, place: int) -> str:
        record = record_of[spaces[position, place], ids[position, place]]
        row = batch.source[position]
        if record.passages is None or record.embedding is None or halves is None or has is None or not has[row]:
            return record.text
        # The reranker reads the nearest passage of a record with many passages, as the source does (D015).
        return record.passages[int(np.argmax(record.embedding.astype(np.float64) @ halves[row].astype(np.float64)))]

    # A record that was deleted after the search began has no text; it stands behind those that have one.
    lists = [
        [place for place in range(heads.shape[1]) if (spaces[row, place], ids[row, place]) in record_of]
        for row in range(len(batch))
    ]
    answers: list[Reranked[int]] = rerank([query.text for query in batch.queries], lists, text, reranker, depth)
    order = np.broadcast_to(np.arange(documents.shape[1]), documents.shape).copy()
    scores = np.full(documents.shape, np.nan)
    for row, answer in enumerate(answers):
        ranked = set(answer.ranking)
        unranked = [place for place in range(heads.shape[1]) if place not in ranked]
        order[row, : heads.shape[1]] = [*answer.ranking, *unranked]
        scores[row, : len(answer.scores)] = answer.scores
    return replace(
        hits,
        scores=np.take_along_axis(hits.scores, order, 1),
        documents=np.take_along_axis(documents, order, 1),
        reranked=scores,
    )
