"""Approximate search through FAISS: an index finds candidates, the exact verbs score them (SPEC A068, B006).

So scores are exact; only the choice of candidates is approximate. With all-MiniLM-L6-v2 the index finds .997 of the
exact 10 best on SciFact and .998 on Cranfield, and .998 and .9996 of the 100 best. It finds 1.000 on 20,000 random
vectors in clusters, and .50 on 20,000 random vectors without any structure, where no graph can help.

The index of a `Vectors` is built at its first use and kept as long as the vectors are. Where faiss-gpu sees a device,
the index is a flat one on that device.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Flags, Integers, offsets_of
from ..errors import MissingExtraError, ParameterError
from .interaction import Interaction
from .vectors import BLOCK_VALUES, Halves, Vectors, widen
from .verbs import DenseVerbs, Output, Stretch, rows_to_compare

# Stretches of fewer rows, and filters that leave fewer, are searched exactly. At 20,000 rows a batch of 20 queries took
# 4.4 ms with the index and 8.2 ms without, a batch of 300 took 68 ms both ways, and building took 10 s. At 5,183 rows
# (SciFact) the two batches took 3.5 and 33 ms with the index, 3.1 and 23 ms without.
LEAST_ROWS = 20_000
# Rows fetched from the index for each hit. Where documents have several rows, one document can take several of the
# fetched rows, so `SEVERAL` times as many are fetched: on 2,000 documents of 10 rows each a batch of 20 queries then
# took 10 ms; with 20 rows a hit it took 36 ms.
OVER_FETCH = 2
SEVERAL = 2
# A query that finds too few documents fetches `MORE` times as many rows. Where that would be more than one in
# `EXACT_INSTEAD` of all rows, it is searched exactly.
MORE = 4
EXACT_INSTEAD = 16
# The most rows that an index on a GPU returns for a query.
MOST_FETCHED_ON_GPU = 2048


@dataclass(frozen=True)
class Parameters:
    """Parameters of an HNSW index and of the search in it. Raises `ParameterError`.

    `neighbours` is M, `construction` is efConstruction, `search` is efSearch. With more than one of `threads` the built
    index differs from run to run.
    """

    neighbours: int = 32
    construction: int = 200
    search: int = 64
    least_rows: int = LEAST_ROWS
    over_fetch: int = OVER_FETCH
    threads: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 2 if name == "neighbours" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ParameterError(f"{name} of approximate search must be {least} or more, not {value!r}")


DEFAULT = Parameters()


def best(
    verbs: DenseVerbs,
    queries: Halves,
    stretches: Sequence[Stretch],
    k: int,
    interaction: Interaction,
    *,
    threads: int = 1,
    parameters: Parameters = DEFAULT,
) -> Output:
    """As `DenseVerbs.best` with mode ``hnsw``: `verbs` searches small stretches, and scores candidates of large ones.

    A query with fewer than k candidates in a stretch fetches more, and is in the end searched exactly. So no answer is
    short. Raises `MissingExtraError` without FAISS.
    """
    faiss = _import_faiss()
    scores = np.full((len(queries), k), -np.inf)
    documents = np.full((len(queries), k), -1, dtype=np.int64)
    if not k or not len(queries):
        return scores, documents, np.zeros(len(queries), dtype=np.int32)
    large = [_count_rows(stretch, interaction) >= parameters.least_rows for stretch in stretches]
    small = [stretch for stretch, is_large in zip(stretches, large, strict=True) if not is_large]
    answers = [
        _search_stretch(faiss, verbs, queries, stretch, k, interaction, threads, parameters, k * parameters.over_fetch)
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
    faiss: Any,
    verbs: DenseVerbs,
    queries: Halves,
    stretch: Stretch,
    k: int,
    interaction: Interaction,
    threads: int,
    parameters: Parameters,
    budget: int,
) -> Output:
    """The k best documents among `budget` fetched rows (`SEVERAL` times as many where documents have several rows), or
    among more where those belong to fewer than k documents.
    """
    vectors, _ = rows_to_compare(stretch.vectors, interaction)
    index = index_of(vectors, parameters)
    fetched = min(budget if vectors.single else budget * SEVERAL, len(vectors.matrix))
    rows = index.nearest(faiss, queries, fetched, _passing_rows(stretch, vectors), threads)
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
            again = _search_stretch(
                faiss, verbs, queries[short], stretch, k, interaction, threads, parameters, budget * MORE
            )
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


class Index:
    """An index of the rows of a `Vectors`: HNSW on the CPU, flat on a GPU."""

    def __init__(self, faiss: Any, vectors: Vectors, parameters: Parameters) -> None:
        self._parameters = parameters
        self._gpu = bool(faiss.get_num_gpus())
        if self._gpu:
            config = faiss.GpuIndexFlatConfig()
            config.useFloat16 = True
            self._resources = faiss.StandardGpuResources()
            self._index = faiss.GpuIndexFlatIP(self._resources, vectors.dimension, config)
        else:
            # Rows stay in half precision, as stored: half the bytes of float32, and half the time to build.
            kind = faiss.ScalarQuantizer.QT_fp16
            inner = faiss.METRIC_INNER_PRODUCT
            self._index = faiss.IndexHNSWSQ(vectors.dimension, kind, parameters.neighbours, inner)
            self._index.hnsw.efConstruction = parameters.construction
        size = max(1, BLOCK_VALUES // vectors.dimension)
        with _set_threads(faiss, parameters.threads):
            if not self._index.is_trained:
                # FAISS requires this call, although half precision has nothing to learn.
                self._index.train(widen(vectors.matrix[:size]))
            for start in range(0, len(vectors.matrix), size):
                self._index.add(widen(vectors.matrix[start : start + size]))

    def nearest(self, faiss: Any, queries: Halves, count: int, passing: Flags | None, threads: int) -> Integers:
        """Row numbers [B, count], in no promised order; -1 where fewer were found.

        On a GPU there are at most `MOST_FETCHED_ON_GPU` for each query.
        """
        wide_queries = widen(np.ascontiguousarray(queries))
        if self._gpu:
            # A flat index on a GPU takes no mask; rows that do not pass are dropped afterwards.
            _, rows = self._index.search(wide_queries, min(count, MOST_FETCHED_ON_GPU))
            return rows if passing is None else np.where((rows >= 0) & passing[rows], rows, -1)
        options = faiss.SearchParametersHNSW(efSearch=max(self._parameters.search, count))
        if passing is not None:
            bits = np.packbits(passing, bitorder="little")
            options.sel = faiss.IDSelectorBitmap(bits)
        with _set_threads(faiss, threads):
            _, rows = self._index.search(wide_queries, count, params=options)
        nearest_rows: Integers = rows
        return nearest_rows


_indexes: weakref.WeakKeyDictionary[Vectors, dict[Parameters, Index]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def index_of(vectors: Vectors, parameters: Parameters = DEFAULT) -> Index:
    """The index of these vectors, built at the first call. Raises `MissingExtraError` without FAISS."""
    faiss = _import_faiss()
    with _lock:
        by_parameters = _indexes.setdefault(vectors, {})
        if parameters not in by_parameters:
            by_parameters[parameters] = Index(faiss, vectors, parameters)
        return by_parameters[parameters]


@contextmanager
def _set_threads(faiss: Any, threads: int) -> Iterator[None]:
    """Run FAISS on this many threads inside the block. FAISS keeps the number for each calling thread."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "dense") from None
    return faiss
