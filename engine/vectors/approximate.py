"""Approximate search through FAISS: an index finds candidates, the exact verbs score them (SPEC A068, B006).

So scores are exact, and only which documents are looked at is approximate. Of the exact 10 best, with all-MiniLM-L6-v2,
the index finds .997 on SciFact and .998 on Cranfield, of the 100 best .998 and .9996; of 20,000 random vectors in
clusters 1.000, of as many without any structure .50, which no graph can help.

An index is made of a `Vectors` when it is first asked for, and kept as long as the vectors are. Where faiss-gpu sees a
device, the index is a flat one on it.
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

# Stretches of fewer rows, and filters that leave fewer, are searched exactly. At 20,000 rows a batch of 20 took 4.4 ms
# through the index and 8.2 without, one of 300 took 68 both ways, and building took 10 s; at 5,183 (SciFact) they took
# 3.5 and 33 ms through the index, 3.1 and 23 without.
LEAST_ROWS = 20_000
# Rows asked of the index for each hit wanted, and as many times that where documents have several, which take several
# places: on 2,000 documents of 10 rows each a batch of 20 took 10 ms; asking for 20 rows a hit it took 36.
OVER_FETCH = 2
SEVERAL = 2
# Queries left with too few documents ask for so many times more rows, up to one in so many of all rows.
MORE = 4
EXACT_INSTEAD = 16
# What an index on a GPU returns at most.
MOST_FETCHED_ON_GPU = 2048


@dataclass(frozen=True)
class Parameters:
    """Of an HNSW index. Raises `ParameterError`.

    `neighbours` is M, `construction` efConstruction, `search` efSearch; an index built on more than one of `threads`
    differs from run to run.
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
    """As `DenseVerbs.best` with mode ``hnsw``: `verbs` search small stretches, and score the candidates of large ones.

    A query with fewer than k candidates in a stretch asks for more, and in the end exactly: no answer is short.
    Raises `MissingExtraError` without FAISS.
    """
    faiss = _faiss()
    scores = np.full((len(queries), k), -np.inf)
    documents = np.full((len(queries), k), -1, dtype=np.int64)
    if not k or not len(queries):
        return scores, documents, np.zeros(len(queries), dtype=np.int32)
    large = [_wanted_rows(stretch, interaction) >= parameters.least_rows for stretch in stretches]
    small = [stretch for stretch, is_large in zip(stretches, large, strict=True) if not is_large]
    found = [
        _of_stretch(faiss, verbs, queries, stretch, k, interaction, threads, parameters, k * parameters.over_fetch)
        for stretch, is_large in zip(stretches, large, strict=True)
        if is_large
    ]
    if small:
        found.append(verbs.best(queries, small, k, interaction, "exact", threads=threads))
    if found:
        scores = np.concatenate([own[0] for own in found], axis=1)
        documents = np.concatenate([own[1] for own in found], axis=1)
        order = np.lexsort((documents, -scores), axis=1)[:, :k]
        scores, documents = np.take_along_axis(scores, order, 1), np.take_along_axis(documents, order, 1)
    return scores, documents, (documents >= 0).sum(axis=1).astype(np.int32)


def _wanted_rows(stretch: Stretch, interaction: Interaction) -> int:
    vectors, _ = rows_to_compare(stretch.vectors, interaction)
    return len(vectors.matrix) if stretch.passing is None else int(np.diff(vectors.offsets)[stretch.passing].sum())


def _of_stretch(
    faiss: Any,
    verbs: DenseVerbs,
    queries: Halves,
    stretch: Stretch,
    k: int,
    interaction: Interaction,
    threads: int,
    parameters: Parameters,
    wanted: int,
) -> Output:
    """The k best of `wanted` rows, or of more where these belong to fewer than k documents."""
    vectors, _ = rows_to_compare(stretch.vectors, interaction)
    index = index_of(vectors, parameters)
    fetched = min(wanted if vectors.single else wanted * SEVERAL, len(vectors.matrix))
    rows = index.nearest(faiss, queries, fetched, _rows_of(stretch, vectors), threads)
    offsets, own = _documents(rows, vectors)
    documents, counts = own + stretch.first, np.diff(offsets)
    scores = verbs.scores_of(queries, [stretch], offsets, documents, interaction, "exact")
    query = np.repeat(np.arange(len(queries)), counts)
    order = np.lexsort((documents, -scores, query))
    rank = np.arange(len(order)) - np.repeat(offsets[:-1], counts)
    order, rank = order[rank < k], rank[rank < k]
    best_scores = np.full((len(queries), k), -np.inf)
    best_documents = np.full((len(queries), k), -1, dtype=np.int64)
    best_scores[query[order], rank], best_documents[query[order], rank] = scores[order], documents[order]
    held = stretch.vectors.held if stretch.passing is None else stretch.vectors.held & stretch.passing
    short = np.flatnonzero(counts < min(k, int(held.sum())))
    if len(short):
        if fetched * MORE * EXACT_INSTEAD <= len(vectors.matrix):
            again = _of_stretch(
                faiss, verbs, queries[short], stretch, k, interaction, threads, parameters, wanted * MORE
            )
        else:
            again = verbs.best(queries[short], [stretch], k, interaction, "exact", threads=threads)
        best_scores[short], best_documents[short] = again[0], again[1]
    return best_scores, best_documents, (best_documents >= 0).sum(axis=1).astype(np.int32)


def _rows_of(stretch: Stretch, vectors: Vectors) -> Flags | None:
    """Which rows may be found."""
    return None if stretch.passing is None else np.repeat(stretch.passing, np.diff(vectors.offsets))


def _documents(rows: Integers, vectors: Vectors) -> tuple[Integers, Integers]:
    """(offsets [B + 1], documents) of the rows [B, wanted] found, each document once; -1 is no row."""
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
            # Rows as they are stored, in half precision: half the bytes of float32, built in half the time.
            kind = faiss.ScalarQuantizer.QT_fp16
            inner = faiss.METRIC_INNER_PRODUCT
            self._index = faiss.IndexHNSWSQ(vectors.dimension, kind, parameters.neighbours, inner)
            self._index.hnsw.efConstruction = parameters.construction
        size = max(1, BLOCK_VALUES // vectors.dimension)
        with _threads(faiss, parameters.threads):
            if not self._index.is_trained:
                # Half precision learns nothing; FAISS wants it said.
                self._index.train(widen(vectors.matrix[:size]))
            for start in range(0, len(vectors.matrix), size):
                self._index.add(widen(vectors.matrix[start : start + size]))

    def nearest(self, faiss: Any, queries: Halves, wanted: int, passing: Flags | None, threads: int) -> Integers:
        """Row numbers [B, wanted], in no promised order; -1 where fewer were found."""
        asked = widen(np.ascontiguousarray(queries))
        if self._gpu:
            # A flat index on a GPU knows no mask; rows that do not pass are dropped after it.
            _, rows = self._index.search(asked, min(wanted, MOST_FETCHED_ON_GPU))
            return rows if passing is None else np.where((rows >= 0) & passing[rows], rows, -1)
        options = faiss.SearchParametersHNSW(efSearch=max(self._parameters.search, wanted))
        if passing is not None:
            bits = np.packbits(passing, bitorder="little")
            options.sel = faiss.IDSelectorBitmap(bits)
        with _threads(faiss, threads):
            _, rows = self._index.search(asked, wanted, params=options)
        found: Integers = rows
        return found


_indexes: weakref.WeakKeyDictionary[Vectors, dict[Parameters, Index]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def index_of(vectors: Vectors, parameters: Parameters = DEFAULT) -> Index:
    """The index of these vectors, made at the first call. Raises `MissingExtraError` without FAISS."""
    faiss = _faiss()
    with _lock:
        held = _indexes.setdefault(vectors, {})
        if parameters not in held:
            held[parameters] = Index(faiss, vectors, parameters)
        return held[parameters]


@contextmanager
def _threads(faiss: Any, threads: int) -> Iterator[None]:
    """FAISS on so many threads; the number is the calling thread's own."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "dense") from None
    return faiss
