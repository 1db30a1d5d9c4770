"""Approximate search through FAISS: an index finds candidates, the exact verbs score them (SPEC A068, B006).

So scores are exact; only the choice of candidates is approximate. With all-MiniLM-L6-v2 HNSW finds .997 of the exact 10
best on SciFact and .998 on Cranfield, and .998 and .9996 of the 100 best. It finds 1.000 on 20,000 random vectors in
clusters, and .50 on 20,000 random vectors without any structure, where no graph can help. CAGRA was not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Flags, Integers, offsets_of
from .faiss_index import index_of, load_faiss
from .index_options import DEFAULT, Approximate
from .interaction import Interaction
from .vectors import Halves, Vectors
from .verbs import DenseVerbs, Output, Stretch, rows_to_compare

# Where documents have several rows, one document can take several of the fetched rows, so `SEVERAL` times as many are
# fetched: on 2,000 documents of 10 rows each a batch of 20 queries then took 10 ms; with 20 rows a hit it took 36 ms.
SEVERAL = 2
# A query that finds too few documents fetches `MORE` times as many rows. Where that would be more than one in
# `EXACT_INSTEAD` of all rows, it is searched exactly.
MORE = 4
EXACT_INSTEAD = 16


def best(
    verbs: DenseVerbs,
    queries: Halves,
    stretches: Sequence[Stretch],
    k: int,
    interaction: Interaction,
    *,
    threads: int = 1,
    options: Approximate | None = None,
) -> Output:
    """As `DenseVerbs.best` with mode ``hnsw``: `verbs` searches small stretches, and scores candidates of large ones.

    A query with fewer than k candidates in a stretch fetches more, and is in the end searched exactly. So no answer is
    short. `options` None: the defaults. Raises `MissingExtraError` without FAISS, `BackendUnavailableError` where it
    does not load, `DeviceMemoryError`.
    """
    load_faiss()
    options = DEFAULT if options is None else options
    scores = np.full((len(queries), k), -np.inf)
    documents = np.full((len(queries), k), -1, dtype=np.int64)
    if not k or not len(queries):
        return scores, documents, np.zeros(len(queries), dtype=np.int32)
    large = [_count_rows(stretch, interaction) >= options.least_rows for stretch in stretches]
    small = [stretch for stretch, is_large in zip(stretches, large, strict=True) if not is_large]
    answers = [
        _search_stretch(verbs, queries, stretch, k, interaction, threads, options, k * options.over_fetch)
        for stretch, is_large in zip(stretches, large, strict=True)
        if is_large
    ]
    if small:
        answers.append(verbs.best(queries, small, k, interaction, "exact", threads=threads))
    if answers:
        scores = np.concatenate([answer[0] for answer in answers], axis=1)
        documents = np.concatenate([answer[1] for answer in answers], axis=1)
        order = np.lexsort((documents, -scores), axis=1)[:, :k]
        scores, documents = np.take_along_axis(scores, order, 1), np.take_along_axis(documents, order, 1)
    return scores, documents, (documents >= 0).sum(axis=1).astype(np.int32)


def _count_rows(stretch: Stretch, interaction: Interaction) -> int:
    """How many rows the interaction compares, of the documents that may be hits."""
    vectors, _ = rows_to_compare(stretch.vectors, interaction)
    return len(vectors.matrix) if stretch.passing is None else int(np.diff(vectors.offsets)[stretch.passing].sum())


def _search_stretch(
    verbs: DenseVerbs,
    queries: Halves,
    stretch: Stretch,
    k: int,
    interaction: Interaction,
    threads: int,
    options: Approximate,
    budget: int,
) -> Output:
    """The k best documents among `budget` fetched rows (`SEVERAL` times as many where documents have several rows), or
    among more where those belong to fewer than k documents.
    """
    vectors, _ = rows_to_compare(stretch.vectors, interaction)
    index = index_of(verbs, vectors, options)
    fetched = min(budget if vectors.single else budget * SEVERAL, len(vectors.matrix))
    rows = index.nearest(queries, fetched, _passing_rows(stretch, vectors), threads)
    offsets, local = _distinct_documents(rows, vectors)
    documents, counts = local + stretch.first, np.diff(offsets)
    scores = verbs.scores_of(queries, [stretch], offsets, documents, interaction, "exact")
    query = np.repeat(np.arange(len(queries)), counts)
    order = np.lexsort((documents, -scores, query))
    rank = np.arange(len(order)) - np.repeat(offsets[:-1], counts)
    order, rank = order[rank < k], rank[rank < k]
    best_scores = np.full((len(queries), k), -np.inf)
    best_documents = np.full((len(queries), k), -1, dtype=np.int64)
    best_scores[query[order], rank], best_documents[query[order], rank] = scores[order], documents[order]
    eligible = stretch.vectors.held if stretch.passing is None else stretch.vectors.held & stretch.passing
    short = np.flatnonzero(counts < min(k, int(eligible.sum())))
    if len(short):
        if fetched * MORE * EXACT_INSTEAD <= len(vectors.matrix):
            again = _search_stretch(verbs, queries[short], stretch, k, interaction, threads, options, budget * MORE)
        else:
            again = verbs.best(queries[short], [stretch], k, interaction, "exact", threads=threads)
        best_scores[short], best_documents[short] = again[0], again[1]
    return best_scores, best_documents, (best_documents >= 0).sum(axis=1).astype(np.int32)


def _passing_rows(stretch: Stretch, vectors: Vectors) -> Flags | None:
    """[rows] whether a row's document may be a hit; None means all."""
    return None if stretch.passing is None else np.repeat(stretch.passing, np.diff(vectors.offsets))


def _distinct_documents(rows: Integers, vectors: Vectors) -> tuple[Integers, Integers]:
    """(offsets [B + 1], documents) of the fetched rows [B, fetched], each document once a query; -1 is no row."""
    documents = np.where(rows < 0, -1, np.searchsorted(vectors.offsets, rows, side="right") - 1)
    documents.sort(axis=1)
    first = documents >= 0
    first[:, 1:] &= documents[:, 1:] != documents[:, :-1]
    return offsets_of(first.sum(axis=1)), documents[first]
