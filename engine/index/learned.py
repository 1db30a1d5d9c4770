"""Learned sparse weights in the CSR of BM25: documents and queries are maps from terms to weights (SPEC A105 to A107).

A score is ``sum over shared terms of query weight * document weight``: no idf, no saturation, no length (A106). Weights
become integers: a document's weight is the frequency of a posting, a query's weight the multiplicity of a term. So
segments, plans, kernels and selection are those of BM25 with the method `dot`. The score is the sum of integers times
`SCORE_UNIT`.

Two documents and what they become::

    {"cat": 1.5, "dog": 0.25}       terms             [0 1]
    {"dog": 1.5}                    offsets           [0 1 3]
                                    documents         [0  0 1]
                                    impact_classes    [1  0 1]      which distinct weight a posting has
                                    class_frequencies [[256 1536]]  weight / DOCUMENT_STEP
                                    lengths           [[0 0]]

A weight w becomes ``round_half_even(w / step)`` and changes by at most half a step. So a score changes by at most
``sum (w_q * DOCUMENT_STEP + w_d * QUERY_STEP + DOCUMENT_STEP * QUERY_STEP / 2) / 2`` over the shared terms.

The steps were chosen on SciFact (300 queries). The document weights were BM25's contributions or their log1p; the query
weights were counts or real numbers. Steps of 2**-10 change the nDCG@10 of no query, and the ten best documents of at
most one query; the largest error is .012 of a score of 95. With steps of 2**-8, up to three queries change. With
expansions by random terms, which make many near-ties, steps of 2**-10 change two queries and steps of 2**-12 still
change one. Finer steps would lose two advantages. SPLADE's weights, which are below 4, fit the 12 bits that a word on a
device has for a frequency. The sums of queries of hundreds of terms fit int32.

Published impact indexes hold integers: 8 bits, or weights times 100. Those are multiples of the step, so their scores
are the exact products. A document's integer is below 2**26, and the integers of a query add up to less than 2**27. So
every sum is below 2**53: int64 holds it with room, and float64 holds the score without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from ..arrays import Integers, ranges
from ..errors import QueryError, RecordError
from ..records.term_weights import TermWeights, WeightRows
from ..text.vocabulary import Vocabulary
from .bm25 import BM25, DOT, MAX_IMPACT
from .columns import Columns, Ids
from .segment import Segment, nested_segment, numbered_segment

IMPACTS = BM25(method=DOT)
"""The scoring of snapshots of such segments."""

DOCUMENT_STEP = QUERY_STEP = 2.0**-10
"""The value of one unit of a document's integer weight and of a query's."""
MAX_MULTIPLICITY = (1 << 27) - 1
"""What the integer weights of a query may add up to."""
SCORE_UNIT = DOCUMENT_STEP * QUERY_STEP
"""The value of one unit of a sum: a power of two, so that a score is exact."""

MAX_DOCUMENT_WEIGHT = MAX_IMPACT * DOCUMENT_STEP  # 65,535.999
MAX_QUERY_WEIGHT = MAX_MULTIPLICITY * QUERY_STEP  # 131,071.999

_NUMBERS = (int, float, np.integer, np.floating)


def fault(weight: object, largest: float) -> str | None:
    """What is wrong with a weight, as the end of an error message; None if nothing is wrong."""
    if isinstance(weight, bool) or not isinstance(weight, _NUMBERS):
        return f"must be a number, not {weight!r}"
    try:
        number = float(weight)
    except OverflowError:  # an integer beyond float64
        number = math.inf
    # NaN fails every comparison.
    return None if 0.0 <= number <= largest else f"must lie in [0, {largest:,.3f}], not {weight!r}"


def quantize(weight: float, step: float = DOCUMENT_STEP) -> int:
    """The nearest integer to ``weight / step``, halves to even. A term with 0 is left out. `weight` has no `fault`."""
    return round(float(weight) / step)


def build_learned(
    weights: Sequence[Mapping[str, float] | None], vocabulary: Vocabulary, ids: Ids, columns: Columns
) -> Segment:
    """The segment of the learned weights of the documents with these `ids` and `columns`.

    `weights` has an entry for each document; None means no weights. New terms enter the vocabulary, numbered
    alphabetically among themselves, whatever the order of the documents.
    Weights of 0, and those that round to 0, have no posting. Raises `RecordError` for a weight that is not a number,
    negative, not finite or above `MAX_DOCUMENT_WEIGHT`, and for a term that is not a string or cannot be stored; the
    vocabulary is then unchanged.
    """
    if (matrix := _matrix_of(weights)) is not None:
        return _build_from_rows(matrix, weights, vocabulary, ids, columns)
    maps: list[Mapping[str, float]] = [{} if weight_map is None else weight_map for weight_map in weights]
    documents = np.repeat(np.arange(len(maps)), np.fromiter(map(len, maps), np.int64, len(maps)))
    names = list(chain.from_iterable(maps))
    impacts = _quantize_all(list(chain.from_iterable(weight_map.values() for weight_map in maps)))
    if impacts is None:
        entries = ((document, *item) for document, weight_map in enumerate(maps) for item in weight_map.items())
        raise next(
            RecordError(f"the weight of {term!r} {problem}", record_id=ids.strings[document])
            for document, term, weight in entries
            if (problem := fault(weight, MAX_DOCUMENT_WEIGHT))
        )
    for name_type in set(map(type, names)):
        if not issubclass(name_type, str):
            index = next(index for index, name in enumerate(names) if not isinstance(name, str))
            raise RecordError(
                f"a learned term must be a string, not {names[index]!r}", record_id=ids.strings[int(documents[index])]
            )
    nonzero = np.flatnonzero(impacts)
    if len(nonzero) < len(names):
        names = [names[index] for index in nonzero.tolist()]
        documents, impacts = documents[nonzero], impacts[nonzero]
    for name in sorted(set(names).difference(vocabulary.ids)):
        if not name.isascii() and name.encode("utf-8", "replace").decode() != name:
            holder = ids.strings[int(documents[names.index(name)])]
            raise RecordError(
                f"the learned term {name!r} holds a lone surrogate, which no file can store", record_id=holder
            )
    return nested_segment(names, documents, impacts, vocabulary, ids, columns)


def _matrix_of(weights: Sequence[Mapping[str, float] | None]) -> WeightRows | None:
    """The matrix that holds all of these weights; None if there is no such matrix."""
    matrices = {id(one.matrix): one.matrix for one in weights if isinstance(one, TermWeights)}
    if len(matrices) != 1 or not all(isinstance(one, TermWeights) or not one for one in weights):
        return None
    (matrix,) = matrices.values()
    return matrix


def _build_from_rows(
    matrix: WeightRows,
    weights: Sequence[Mapping[str, float] | None],
    vocabulary: Vocabulary,
    ids: Ids,
    columns: Columns,
) -> Segment:
    """As `build_learned`, for rows of one matrix, without an object for each posting."""
    rows = np.array([one.row if isinstance(one, TermWeights) else -1 for one in weights], dtype=np.int64)
    starts = matrix.starts[rows]
    # Row -1 stands for no weights, so its length is 0 whatever lies at its place.
    lengths = np.where(rows >= 0, matrix.starts[rows + 1] - starts, 0)
    places = ranges(starts, lengths)
    documents = np.repeat(np.arange(len(rows)), lengths)
    values = matrix.values[places].astype(np.float64)
    heavy = np.flatnonzero(values > MAX_DOCUMENT_WEIGHT)
    if len(heavy):
        first = int(heavy[0])
        term, problem = matrix.names[matrix.columns[places[first]]], fault(float(values[first]), MAX_DOCUMENT_WEIGHT)
        raise RecordError(f"the weight of {term!r} {problem}", record_id=ids.strings[int(documents[first])])
    impacts = np.rint(values / DOCUMENT_STEP).astype(np.int64)
    nonzero = np.flatnonzero(impacts)
    used, positions = np.unique(matrix.columns[places[nonzero]], return_inverse=True)
    names = [str(matrix.names[column]) for column in used.tolist()]
    for name in sorted(set(names).difference(vocabulary.ids)):
        vocabulary.add(name)
    numbers = np.fromiter(map(vocabulary.ids.__getitem__, names), np.int64, len(names))
    return numbered_segment(numbers[positions.reshape(-1)], documents[nonzero], impacts[nonzero], ids, columns)


def _quantize_all(weights: Sequence[float]) -> Integers | None:
    """`quantize` of each of these weights of documents; None if one has a `fault`."""
    weight_types = set(map(type, weights))
    if bool in weight_types or not all(issubclass(weight_type, _NUMBERS) for weight_type in weight_types):
        return None
    try:
        numbers = np.fromiter(weights, np.float64, len(weights))
    except OverflowError:
        return None
    if not ((numbers >= 0.0) & (numbers <= MAX_DOCUMENT_WEIGHT)).all():
        return None
    return np.rint(numbers / DOCUMENT_STEP).astype(np.int64)


def query_terms(weights: Mapping[str, float], vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """(vocabulary ids, integer weights in units of `QUERY_STEP`) of a query, as `Request` of engine/plan/plan.py takes
    them.

    Terms that no document ever had, weights of 0 and those that round to 0 are left out. Raises `QueryError` for a
    weight that is not a number, negative, not finite or above `MAX_QUERY_WEIGHT`, and for weights that add up to more
    than that, whether or not a document has their terms.
    """
    terms, integers, total = [], [], 0
    for term, weight in weights.items():
        if (problem := fault(weight, MAX_QUERY_WEIGHT)) is not None:
            raise QueryError(f"the weight of the query's term {term!r} {problem}")
        number, integer = vocabulary.ids.get(term), quantize(weight, QUERY_STEP)
        total += integer
        if integer and number is not None:
            terms.append(number)
            integers.append(integer)
    if total > MAX_MULTIPLICITY:
        raise QueryError(
            f"the weights of a query add up to {total * QUERY_STEP:,.3f}, and sums are exact up to "
            f"{MAX_QUERY_WEIGHT:,.3f}; divide all of them by the same number, which keeps the order"
        )
    return terms, integers
