"""The dense verbs in numpy: products of whole blocks in float32 exclude most documents, float64 scores the others.

**Why nothing is lost.** Components of float16 have 11 bits, so their products are exact in float32 and only additions
round, each by at most 2**-24 of its result. Whatever the order in which BLAS adds d products, with or without FMA, the
sum is off by at most ``(d u / (1 - d u)) sum |a_i b_i|`` with u = 2**-24, and the last factor is below 1.01 for vectors
of length at most ``1 + 2**-8`` (Cauchy and Schwarz). No interaction changes by more than the largest change of a
cosine plus the interaction's own `rounding`. So if k documents have approximate scores of at least t, the k-th best
true score is at least ``t - e``, and a document whose approximate score is below ``t - 2e`` is not among the k best.
Those that remain are scored in float64, exactly.

**int8** goes the same way. A sum of products of codes is exact in float32 up to 1,040 dimensions; with more, it is
rounded as above, or summed in parts where it must be exact. The two steps are rounded and multiplied with the sum: four
more roundings. A vector of codes is longer than its original by at most half a step in each component.

**When float64 serves at once.** If a search asks for an eighth of the documents, most would be scored twice.

Nothing is kept between calls: widening a block of float16 takes a third of the time of its product with 20 queries,
and a float32 copy would take twice the bytes of the vectors themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Flags, Floats, Integers, offsets_of, ranges
from ..engine.locks import once
from ..engine.vectors.approximate import best as approximate_best
from ..engine.vectors.index_options import Approximate
from ..engine.vectors.interaction import Interaction
from ..engine.vectors.segment_reduce import segment_reduce
from ..engine.vectors.vectors import BLOCK_VALUES, Halves, Vectors, blocks_of, quantized, widen
from ..engine.vectors.verbs import DenseVerbs, Mode, Output, Stretch, check_mode, places_in, rows_to_compare

Singles = npt.NDArray[np.float32]

# Queries that are scored together, and scores in memory at once: 16 MiB in float32. Interactions that copy the scores
# take fewer.
QUERIES = 512
SCORES = 1 << 22
COPIED_SCORES = 1 << 20
# Rows waiting to be scored exactly.
PENDING = 1 << 20
# If fewer than one row in this many is needed, rows are gathered, else masked: gathering a row costs as much as
# multiplying it with 20 queries.
GATHER = 2
# A search for more than one document in this many is answered in float64 at once.
DENSE = 8
# Groups whose maxima bound the k-th best score.
GROUPS_PER_K = 4
MIN_GROUPS = 256
# Below every score, and above the -inf of what is masked.
LEAST = -1e30
# Dimensions whose sum of products of int8 codes is below 2**24: 127 * 127 * 1040 = 16,774,160.
EXACT_CODES = 1040


class NumpyDense:
    """`DenseVerbs` in numpy. BLAS takes the threads that it is set to; they change no bit."""

    name = "numpy"
    gpu: int | None = None

    def best(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        k: int,
        interaction: Interaction,
        mode: Mode,
        *,
        threads: int = 1,
        approximate: Approximate | None = None,
    ) -> Output:
        check_mode(mode)
        if mode == "hnsw":
            return approximate_best(self, queries, stretches, k, interaction, threads=threads, options=approximate)
        scores = np.full((len(queries), k), -np.inf)
        documents = np.full((len(queries), k), -1, dtype=np.int64)
        counts = np.zeros(len(queries), dtype=np.int32)
        for start in range(0, len(queries) if k else 0, QUERIES):
            part = slice(start, start + QUERIES)
            batch = _Queries(queries[part])
            best_hits = _Best(len(batch.halves), k)
            for stretch in stretches:
                _search(batch, stretch, interaction, mode, best_hits)
            best_hits.store(scores[part], documents[part], counts[part])
        return scores, documents, counts

    def scores_of(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        offsets: Integers,
        documents: Integers,
        interaction: Interaction,
        mode: Mode,
    ) -> Floats:
        check_mode(mode)
        batch = _Queries(queries)
        query = np.repeat(np.arange(len(queries)), np.diff(offsets))
        scores = np.full(len(documents), -np.inf)
        for stretch in stretches:
            vectors, reduction = rows_to_compare(stretch.vectors, interaction)
            pairs, numbers = places_in(stretch, documents)
            counts = np.diff(vectors.offsets)[numbers]
            for part in blocks_of(offsets_of(counts), PENDING):
                rows = ranges(vectors.offsets[numbers[part]], counts[part])
                cosines = _cosines(batch, vectors, np.repeat(query[pairs[part]], counts[part]), rows, mode)
                scores[pairs[part]] = segment_reduce(cosines[None], offsets_of(counts[part]), reduction)[0]
        return scores


verbs: DenseVerbs = NumpyDense()


@dataclass(frozen=True, eq=False)
class _Queries:
    """The queries in the forms that products take."""

    halves: Halves

    @once
    def singles(self) -> Singles:
        return widen(self.halves)

    @once
    def doubles(self) -> Floats:
        return self.singles.astype(np.float64)

    @once
    def codes(self) -> tuple[Singles, Floats]:
        codes, steps = quantized(self.halves)
        return codes.astype(np.float32), steps


class _Best:
    """The k best hits of each query so far, exact, and a threshold that k documents seen so far reach."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.thresholds = np.full(queries, -np.inf)
        self._reached = np.full((k, queries), -np.inf)
        self._query = np.zeros(0, dtype=np.int64)
        self._document = np.zeros(0, dtype=np.int64)
        self._score = np.zeros(0)

    def raise_thresholds(self, reached: Floats) -> None:
        """Raise the thresholds by scores [rows, queries]: each row is reached by a further document."""
        joined = np.concatenate([self._reached, reached])
        kth = len(joined) - self.k
        self._reached = np.partition(joined, kth, axis=0)[kth:]
        self.thresholds = self._reached[0]

    def add(self, query: Integers, document: Integers, score: Floats) -> None:
        query = np.concatenate([self._query, query])
        document = np.concatenate([self._document, document])
        score = np.concatenate([self._score, score])
        order = np.lexsort((document, -score, query))
        counts = np.bincount(query, minlength=len(self.thresholds))
        rank = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
        order = order[rank < self.k]
        # Zero has one sign.
        self._query, self._document, self._score = query[order], document[order], score[order] + 0.0

    def store(self, scores: Floats, documents: Integers, counts: npt.NDArray[np.int32]) -> None:
        counts[:] = np.bincount(self._query, minlength=len(counts))
        present = np.arange(self.k) < counts[:, None]
        scores[present], documents[present] = self._score, self._document


@dataclass(frozen=True, eq=False)
class _Block:
    """Neighbouring documents, or some of them, that are scored at once."""

    documents: Integers  # within the stretch; each has a row
    rows: slice | Integers  # of the matrix
    offsets: Integers  # [documents + 1] within the block
    passing: Flags | None  # None: all of them

    @property
    def single(self) -> bool:
        """Whether each document has one row."""
        return int(self.offsets[-1]) == len(self.documents)


@dataclass(frozen=True, eq=False)
class _Comparison:
    """A batch of queries compared with the vectors of a stretch."""

    queries: _Queries
    vectors: Vectors
    mode: Mode
    reduction: Interaction
    first: int  # number of the stretch's first document
    error: float  # an approximate score is off by at most this


def _search(queries: _Queries, stretch: Stretch, interaction: Interaction, mode: Mode, best_hits: _Best) -> None:
    """Add the hits of a stretch to the best."""
    vectors, reduction = rows_to_compare(stretch.vectors, interaction)
    wanted = vectors.held if stretch.passing is None else vectors.held & stretch.passing
    number = int(wanted.sum())
    if not number:
        return
    exact = best_hits.k * DENSE >= number
    error = 0.0 if exact else _error(queries, vectors, mode, reduction)
    comparison = _Comparison(queries, vectors, mode, reduction, stretch.first, error)
    scores = SCORES if reduction.kind == "late" else COPIED_SCORES
    pending: list[_Pending] = []
    for block in _blocks(vectors, wanted, stretch.passing, max(1, scores // len(queries.halves))):
        cosines, values = _score_block(comparison, block, exact)
        best_hits.raise_thresholds(_maxima(values, best_hits.k) - error)
        least = _lower_thresholds(best_hits.thresholds - error, values.dtype)
        flat = np.flatnonzero(values >= least)
        place, query = np.divmod(flat, len(queries.halves))
        value = values.ravel()[flat].astype(np.float64)
        if exact:
            best_hits.add(query, block.documents[place] + stretch.first, value)
            continue
        counts = np.diff(block.offsets)[place]
        rows, row_query = ranges(block.offsets[place], counts), np.repeat(query, counts)
        if reduction.kind == "late" and not block.single:
            # The best row of a hit reaches the threshold, too.
            kept = cosines[rows, row_query] >= least[row_query]
            rows, counts = rows[kept], np.add.reduceat(kept, offsets_of(counts)[:-1], dtype=np.int64)
        matrix_rows = rows + block.rows.start if isinstance(block.rows, slice) else block.rows[rows]
        pending.append(_Pending(query, block.documents[place], value, counts, matrix_rows))
        if sum(len(pairs.rows) for pairs in pending) > PENDING:
            _score_pending(comparison, pending, best_hits)
            pending = []
    if pending:
        _score_pending(comparison, pending, best_hits)


def _score_block(
    comparison: _Comparison, block: _Block, exact: bool
) -> tuple[npt.NDArray[np.float32] | Floats, npt.NDArray[np.float32] | Floats]:
    """(cosines [rows, queries], scores [documents, queries]) of a block; -inf for a document that does not pass."""
    reduction = comparison.reduction
    cosines = _products(comparison.queries, comparison.vectors, block.rows, comparison.mode, exact)
    values = cosines
    if not block.single:
        wide = cosines if reduction.kind == "late" else cosines.astype(np.float64)
        values = np.ascontiguousarray(segment_reduce(wide.T, block.offsets, reduction).T)
    if block.passing is not None:
        values[~block.passing] = -np.inf
    return cosines, values


def _error(queries: _Queries, vectors: Vectors, mode: Mode, reduction: Interaction) -> float:
    """An approximate score is off by at most this, as derived at the top of this file."""
    unit = (vectors.dimension + 4) * 2.0**-24
    error = 1.01 * unit / (1.0 - unit)
    if mode == "int8":
        for steps in (queries.codes[1], vectors.codes[1]):
            error *= 1.0 + 0.51 * float(steps.max()) * vectors.dimension**0.5
    return error + 2 * reduction.rounding(int(np.diff(vectors.offsets).max()))


@dataclass(frozen=True, eq=False)
class _Pending:
    """Pairs of a query and a document that wait for their exact scores, and the rows that can decide them."""

    query: Integers
    document: Integers
    value: Floats
    counts: Integers
    rows: Integers


def _score_pending(comparison: _Comparison, pending: Sequence[_Pending], best_hits: _Best) -> None:
    """Score the pairs exactly that can still be hits, and add them to the best."""
    query, document, value, counts, rows = (
        np.concatenate([getattr(pairs, name) for pairs in pending]) for name in _Pending.__dataclass_fields__
    )
    kept = value >= best_hits.thresholds[query] - comparison.error
    rows = rows[np.repeat(kept, counts)]
    query, document, counts = query[kept], document[kept], counts[kept]
    cosines = _cosines(comparison.queries, comparison.vectors, np.repeat(query, counts), rows, comparison.mode)
    scores = segment_reduce(cosines[None], offsets_of(counts), comparison.reduction)[0]
    best_hits.add(query, document + comparison.first, scores)


def _blocks(vectors: Vectors, wanted: Flags, passing: Flags | None, rows: int) -> Iterator[_Block]:
    """The documents that have a row, in blocks of about `rows` rows: only the wanted ones where they are few."""
    counts = np.diff(vectors.offsets)
    gathers = passing is not None and int(counts[wanted].sum()) * GATHER < len(vectors.matrix)
    documents = np.flatnonzero(wanted if gathers else vectors.held)
    starts, counts = vectors.offsets[:-1][documents], counts[documents]
    offsets = offsets_of(counts)
    for part in blocks_of(offsets, rows):
        members, bounds = documents[part], offsets[part.start : part.stop + 1]
        if gathers:
            yield _Block(members, ranges(starts[part], counts[part]), bounds - bounds[0], None)
        else:
            # Documents without a row are not in the matrix.
            stretch = slice(int(bounds[0]), int(bounds[-1]))
            yield _Block(members, stretch, bounds - bounds[0], None if passing is None else passing[members])


def _products(
    queries: _Queries, vectors: Vectors, rows: slice | Integers, mode: Mode, exact: bool
) -> npt.NDArray[np.float32] | Floats:
    """Cosines [rows, queries]: float64 if exact, else float32."""
    number = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    size = max(1, BLOCK_VALUES // vectors.dimension)
    buffer = np.empty((min(size, number), vectors.dimension), dtype=np.float32)
    out = np.empty((number, len(queries.halves)), dtype=np.float64 if exact else np.float32)
    for start in range(0, number, size):
        stop = min(start + size, number)
        part = slice(rows.start + start, rows.start + stop) if isinstance(rows, slice) else rows[start:stop]
        wide = buffer[: stop - start]
        if mode == "int8":
            codes, steps = vectors.codes
            np.copyto(wide, codes[part])
            out[start:stop] = _code_products(wide, queries.codes[0], exact)
            out[start:stop] *= queries.codes[1].astype(out.dtype)
            out[start:stop] *= steps[part][:, None].astype(out.dtype)
            continue
        widen(vectors.matrix[part], out=wide)
        if exact:
            np.matmul(wide.astype(np.float64), queries.doubles.T, out=out[start:stop])
        else:
            np.matmul(wide, queries.singles.T, out=out[start:stop])
    return out


def _code_products(codes: Singles, queries: Singles, exact: bool) -> npt.NDArray[np.float32] | Floats:
    """Sums of products of codes [rows, queries]."""
    if not exact or codes.shape[1] <= EXACT_CODES:
        return codes @ queries.T
    total = np.zeros((len(codes), len(queries)))
    for start in range(0, codes.shape[1], EXACT_CODES):
        part = slice(start, start + EXACT_CODES)
        total += codes[:, part] @ queries[:, part].T
    return total


def _maxima(values: npt.NDArray[np.float32] | Floats, k: int) -> Floats:
    """Maxima of groups of the values [documents, queries]. The k-th largest is a good threshold."""
    number, queries = values.shape
    groups = max(GROUPS_PER_K * k, MIN_GROUPS)
    members = number // groups
    if members > 1:
        values = values[: members * groups].reshape(members, groups, queries).max(axis=0)
    return values.astype(np.float64)


def _lower_thresholds(thresholds: Floats, dtype: np.dtype[Any]) -> npt.NDArray[np.float32] | Floats:
    """The thresholds in a type, none above its value, none infinite."""
    least = np.maximum(thresholds, LEAST)
    return least if dtype == np.float64 else np.nextafter(least.astype(np.float32), np.float32(-np.inf))


def _cosines(queries: _Queries, vectors: Vectors, query: Integers, row: Integers, mode: Mode) -> Floats:
    """The exact cosine of each (query, row) pair [pairs]."""
    cosines = np.empty(len(row))
    rows, place = np.unique(row, return_inverse=True)
    # A pair by itself takes about half a microsecond; 20 rows in one product with all queries take 8 + 0.3 a query.
    if len(row) * 24 > len(rows) * (16 + len(queries.halves)):
        size = max(1, SCORES // max(1, len(queries.halves)))
        order = np.argsort(place, kind="stable")
        for first in range(0, len(rows), size):
            start, stop = np.searchsorted(place[order], (first, first + size))
            pairs = order[start:stop]
            products = _products(queries, vectors, rows[first : first + size], mode, exact=True)
            cosines[pairs] = products[place[pairs] - first, query[pairs]]
        return cosines + 0.0
    size = max(1, BLOCK_VALUES // max(1, vectors.dimension))
    for start in range(0, len(row), size):
        part = slice(start, start + size)
        pair_rows, pair_queries = row[part], query[part]
        # Products of float16 or of codes are exact in float32.
        if mode == "int8":
            codes, steps = vectors.codes
            products = codes[pair_rows].astype(np.float32) * queries.codes[0][pair_queries]
            sums = products.sum(axis=1, dtype=np.float64)
            cosines[part] = (sums * queries.codes[1][pair_queries]) * steps[pair_rows]
        else:
            products = widen(vectors.matrix[pair_rows]) * queries.singles[pair_queries]
            cosines[part] = products.sum(axis=1, dtype=np.float64)
    return cosines + 0.0
