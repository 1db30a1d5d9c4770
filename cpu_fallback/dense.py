"""The dense verbs in numpy: products of whole blocks in float32 to leave out most documents, the rest in float64.

**Why nothing is lost.** Components of float16 have 11 bits, so their products are exact in float32 and only additions
round, each by at most 2**-24 of its result. Whatever the order in which BLAS adds d products, with or without FMA, the
sum is off by at most ``(d u / (1 - d u)) sum |a_i b_i|`` with u = 2**-24, and the last factor is below 1.01 for vectors
of length at most ``1 + 2**-8`` (Cauchy and Schwarz). No interaction changes by more than the largest change of a
cosine, but for its own `rounding`. So if k documents have approximate scores of at least t, the k-th best true score
is at least ``t - e``, and a document whose approximate score is below ``t - 2e`` is not among the k best. Those that
remain are scored in float64, exactly.

**int8** goes the same way: a sum of products of codes is exact in float32 up to 1,040 dimensions (beyond them it is
rounded as above, or summed in parts where it must be exact), the two steps are rounded and multiplied with it, four
roundings more; and a vector of codes is longer than its original by at most half a step in each component.

**When float64 serves at once.** If a search asks for an eighth of the documents, most would be scored twice.

Nothing is kept between calls: widening a block of float16 takes a third of the time of its product with 20 queries,
and a float32 copy would take twice the bytes of the vectors themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import offsets_of, ranges
from ..engine.vectors.interaction import Interaction
from ..engine.vectors.vectors import BLOCK_VALUES, Floats, Halves, Integers, Vectors, blocks_of, quantized, widened
from ..engine.vectors.verbs import DenseVerbs, Flags, Mode, Output, Stretch, check_mode, compared, places_in
from .segment_reduce import segment_reduce

Singles = npt.NDArray[np.float32]

# Queries that are scored together, and scores held at once: 16 MiB in float32. Interactions that copy them take fewer.
QUERIES = 512
SCORES = 1 << 22
COPIED_SCORES = 1 << 20
# Rows waiting to be scored exactly.
PENDING = 1 << 20
# Fewer rows than one in so many are gathered rather than masked: gathering a row costs as much as multiplying it with
# 20 queries.
GATHER = 2
# A search for more than one document in so many is answered in float64 at once.
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

    def best(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        k: int,
        interaction: Interaction,
        mode: Mode,
        *,
        threads: int = 1,
    ) -> Output:
        check_mode(mode)
        if mode == "hnsw":
            from ..engine.vectors.approximate import best

            return best(self, queries, stretches, k, interaction, threads=threads)
        scores = np.full((len(queries), k), -np.inf)
        documents = np.full((len(queries), k), -1, dtype=np.int64)
        counts = np.zeros(len(queries), dtype=np.int32)
        for start in range(0, len(queries) if k else 0, QUERIES):
            part = slice(start, start + QUERIES)
            asked = _Asked(queries[part])
            found = _Best(len(asked.halves), k)
            for stretch in stretches:
                _search(asked, stretch, interaction, mode, found)
            found.store(scores[part], documents[part], counts[part])
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
        asked = _Asked(queries)
        query = np.repeat(np.arange(len(queries)), np.diff(offsets))
        scores = np.full(len(documents), -np.inf)
        for stretch in stretches:
            vectors, reduction = compared(stretch.vectors, interaction)
            place, own = places_in(stretch, documents)
            counts = np.diff(vectors.offsets)[own]
            for part in blocks_of(offsets_of(counts), PENDING):
                rows = ranges(vectors.offsets[own[part]], counts[part])
                cosines = _cosines(asked, vectors, np.repeat(query[place[part]], counts[part]), rows, mode)
                scores[place[part]] = segment_reduce(cosines[None], offsets_of(counts[part]), reduction)[0]
        return scores


verbs: DenseVerbs = NumpyDense()


@dataclass(frozen=True, eq=False)
class _Asked:
    """The queries in the forms that products take."""

    halves: Halves

    @cached_property
    def singles(self) -> Singles:
        return widened(self.halves)

    @cached_property
    def doubles(self) -> Floats:
        return self.singles.astype(np.float64)

    @cached_property
    def codes(self) -> tuple[Singles, Floats]:
        codes, steps = quantized(self.halves)
        return codes.astype(np.float32), steps


class _Best:
    """The k best hits of each query so far, exact, and a floor that k documents seen so far reach."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.floors = np.full(queries, -np.inf)
        self._reached = np.full((k, queries), -np.inf)
        self._query = np.zeros(0, dtype=np.int64)
        self._document = np.zeros(0, dtype=np.int64)
        self._score = np.zeros(0)

    def raise_floors(self, reached: Floats) -> None:
        """By what as many documents more as there are rows reach [rows, queries], each another one."""
        joined = np.concatenate([self._reached, reached])
        place = len(joined) - self.k
        self._reached = np.partition(joined, place, axis=0)[place:]
        self.floors = self._reached[0]

    def add(self, query: Integers, document: Integers, score: Floats) -> None:
        query = np.concatenate([self._query, query])
        document = np.concatenate([self._document, document])
        score = np.concatenate([self._score, score])
        order = np.lexsort((document, -score, query))
        counts = np.bincount(query, minlength=len(self.floors))
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


def _search(asked: _Asked, stretch: Stretch, interaction: Interaction, mode: Mode, found: _Best) -> None:
    """Add what a stretch holds to the best."""
    vectors, reduction = compared(stretch.vectors, interaction)
    wanted = vectors.held if stretch.passing is None else vectors.held & stretch.passing
    number = int(wanted.sum())
    if not number:
        return
    queries = len(asked.halves)
    exact = found.k * DENSE >= number
    error = 0.0 if exact else _error(asked, vectors, mode, reduction)
    scores = SCORES if reduction.kind == "late" else COPIED_SCORES
    pending: list[_Pending] = []
    for block in _blocks(vectors, wanted, stretch.passing, max(1, scores // queries)):
        cosines = _products(asked, vectors, block.rows, mode, exact)
        values = cosines
        if not block.single:
            wide = cosines if reduction.kind == "late" else cosines.astype(np.float64)
            values = np.ascontiguousarray(segment_reduce(wide.T, block.offsets, reduction).T)
        if block.passing is not None:
            values[~block.passing] = -np.inf
        found.raise_floors(_maxima(values, found.k) - error)
        least = _below(found.floors - error, values.dtype)
        flat = np.flatnonzero(values >= least)
        place, query = np.divmod(flat, queries)
        value = values.ravel()[flat].astype(np.float64)
        if exact:
            found.add(query, block.documents[place] + stretch.first, value)
            continue
        counts = np.diff(block.offsets)[place]
        rows, row_query = ranges(block.offsets[place], counts), np.repeat(query, counts)
        if reduction.kind == "late" and not block.single:
            # The best row of a hit is itself not below the floor.
            kept = cosines[rows, row_query] >= least[row_query]
            rows, counts = rows[kept], np.add.reduceat(kept, offsets_of(counts)[:-1], dtype=np.int64)
        matrix_rows = rows + block.rows.start if isinstance(block.rows, slice) else block.rows[rows]
        pending.append(_Pending(query, block.documents[place], value, counts, matrix_rows))
        if sum(len(part.rows) for part in pending) > PENDING:
            _settle(asked, vectors, mode, reduction, stretch.first, pending, error, found)
            pending = []
    if pending:
        _settle(asked, vectors, mode, reduction, stretch.first, pending, error, found)


def _error(asked: _Asked, vectors: Vectors, mode: Mode, reduction: Interaction) -> float:
    """What an approximate score is off by at most, as derived above."""
    unit = (vectors.dimension + 4) * 2.0**-24
    error = 1.01 * unit / (1.0 - unit)
    if mode == "int8":
        for steps in (asked.codes[1], vectors.codes[1]):
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


def _settle(
    asked: _Asked,
    vectors: Vectors,
    mode: Mode,
    reduction: Interaction,
    first: int,
    pending: Sequence[_Pending],
    error: float,
    found: _Best,
) -> None:
    query, document, value, counts, rows = (
        np.concatenate([getattr(part, name) for part in pending]) for name in _Pending.__dataclass_fields__
    )
    kept = value >= found.floors[query] - error
    rows = rows[np.repeat(kept, counts)]
    query, document, counts = query[kept], document[kept], counts[kept]
    cosines = _cosines(asked, vectors, np.repeat(query, counts), rows, mode)
    found.add(query, document + first, segment_reduce(cosines[None], offsets_of(counts), reduction)[0])


def _blocks(vectors: Vectors, wanted: Flags, passing: Flags | None, rows: int) -> Iterator[_Block]:
    """The documents that have a row in blocks of about so many rows: all, or only the wanted where they are few."""
    counts = np.diff(vectors.offsets)
    gathers = passing is not None and int(counts[wanted].sum()) * GATHER < len(vectors.matrix)
    documents = np.flatnonzero(wanted if gathers else vectors.held)
    starts, counts = vectors.offsets[:-1][documents], counts[documents]
    offsets = offsets_of(counts)
    for part in blocks_of(offsets, rows):
        own, bounds = documents[part], offsets[part.start : part.stop + 1]
        if gathers:
            yield _Block(own, ranges(starts[part], counts[part]), bounds - bounds[0], None)
        else:
            # Documents without a row take no place in the matrix.
            stretch = slice(int(bounds[0]), int(bounds[-1]))
            yield _Block(own, stretch, bounds - bounds[0], None if passing is None else passing[own])


def _products(
    asked: _Asked, vectors: Vectors, rows: slice | Integers, mode: Mode, exact: bool
) -> npt.NDArray[np.float32] | Floats:
    """Cosines [rows, queries]: float64 if exact, else float32."""
    number = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    size = max(1, BLOCK_VALUES // vectors.dimension)
    buffer = np.empty((min(size, number), vectors.dimension), dtype=np.float32)
    out = np.empty((number, len(asked.halves)), dtype=np.float64 if exact else np.float32)
    for start in range(0, number, size):
        stop = min(start + size, number)
        part = slice(rows.start + start, rows.start + stop) if isinstance(rows, slice) else rows[start:stop]
        wide = buffer[: stop - start]
        if mode == "int8":
            codes, steps = vectors.codes
            np.copyto(wide, codes[part])
            out[start:stop] = _code_products(wide, asked.codes[0], exact)
            out[start:stop] *= asked.codes[1].astype(out.dtype)
            out[start:stop] *= steps[part][:, None].astype(out.dtype)
            continue
        widened(vectors.matrix[part], out=wide)
        if exact:
            np.matmul(wide.astype(np.float64), asked.doubles.T, out=out[start:stop])
        else:
            np.matmul(wide, asked.singles.T, out=out[start:stop])
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
    """Maxima of groups of the values [documents, queries]: enough of them that the k-th largest is a good floor."""
    number, queries = values.shape
    groups = max(GROUPS_PER_K * k, MIN_GROUPS)
    members = number // groups
    if members > 1:
        values = values[: members * groups].reshape(members, groups, queries).max(axis=0)
    return values.astype(np.float64)


def _below(floors: Floats, dtype: np.dtype[Any]) -> npt.NDArray[np.float32] | Floats:
    """The floors in a type, none above its value, none infinite."""
    least = np.maximum(floors, LEAST)
    return least if dtype == np.float64 else np.nextafter(least.astype(np.float32), np.float32(-np.inf))


def _cosines(asked: _Asked, vectors: Vectors, query: Integers, row: Integers, mode: Mode) -> Floats:
    """The exact cosine of each (query, row) pair [pairs]."""
    cosines = np.empty(len(row))
    rows, place = np.unique(row, return_inverse=True)
    # A pair by itself takes about half a microsecond; 20 rows in one product with all queries take 8 + 0.3 a query.
    if len(row) * 24 > len(rows) * (16 + len(asked.halves)):
        size = max(1, SCORES // max(1, len(asked.halves)))
        order = np.argsort(place, kind="stable")
        for first in range(0, len(rows), size):
            start, stop = np.searchsorted(place[order], (first, first + size))
            own = order[start:stop]
            products = _products(asked, vectors, rows[first : first + size], mode, exact=True)
            cosines[own] = products[place[own] - first, query[own]]
        return cosines + 0.0
    size = max(1, BLOCK_VALUES // max(1, vectors.dimension))
    for start in range(0, len(row), size):
        part = slice(start, start + size)
        own, asking = row[part], query[part]
        # Products of float16 or of codes are exact in float32.
        if mode == "int8":
            codes, steps = vectors.codes
            products = codes[own].astype(np.float32) * asked.codes[0][asking]
            sums = products.sum(axis=1, dtype=np.float64)
            cosines[part] = (sums * asked.codes[1][asking]) * steps[own]
        else:
            products = widened(vectors.matrix[own]) * asked.singles[asking]
            cosines[part] = products.sum(axis=1, dtype=np.float64)
    return cosines + 0.0
