"""Learned sparse weights in the CSR of BM25: documents and queries are maps from terms to weights (SPEC A105 to A107).

A score is ``sum over shared terms of query weight * document weight``: no idf, no saturation, no length (A106). Weights
become integers, a document's the frequency of a posting and a query's the multiplicity of a term, so segments, plans,
kernels and selection are those of BM25 with the method `dot`, and a sum of integers times `SCORE_UNIT` is the score.

Two documents and what they become::

    {"cat": 1.5, "dog": 0.25}       terms             [0 1]
    {"dog": 1.5}                    offsets           [0 1 3]
                                    documents         [0  0 1]
                                    impact_classes    [1  0 1]      which distinct weight a posting has
                                    class_frequencies [[256 1536]]  weight / DOCUMENT_STEP
                                    lengths           [[0 0]]

A weight w becomes ``round_half_even(w / step)`` and moves by at most half a step, so a score moves by at most
``sum (w_q * DOCUMENT_STEP + w_d * QUERY_STEP + DOCUMENT_STEP * QUERY_STEP / 2) / 2`` over the shared terms. On SciFact,
with BM25's contributions as weights and with their log1p, with counts and with real numbers as queries, steps of 2**-10
change the nDCG@10 of no query, and the ten best of none or one of 300 (largest error .012 of a score of 95); at 2**-8
up to three change. Among expansions by random terms, full of near-ties, two do, and still one at 2**-12. Finer steps
would lose two things that pay: SPLADE's weights, below 4, fit the 12 bits that a word on a device has for a frequency,
and the sums of queries of hundreds of terms fit int32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from ..arrays import Integers
from ..errors import QueryError, RecordError
from ..text.vocabulary import Vocabulary
from .bm25 import BM25, DOT, MAX_IMPACT
from .columns import Columns, Ids
from .segment import Segment, nested_segment

IMPACTS = BM25(method=DOT)
"""How snapshots of such segments score."""

DOCUMENT_STEP = QUERY_STEP = 2.0**-10
"""What one unit of a stored weight, and of a query's, is worth."""
MAX_MULTIPLICITY = 1 << 20
SCORE_UNIT = DOCUMENT_STEP * QUERY_STEP
"""What one unit of a sum is worth: a power of two, so that a score is exact."""

MAX_DOCUMENT_WEIGHT = MAX_IMPACT * DOCUMENT_STEP  # 63.999
MAX_QUERY_WEIGHT = MAX_MULTIPLICITY * QUERY_STEP  # 1024

_NUMBERS = (int, float, np.integer, np.floating)


def fault(weight: object, largest: float) -> str | None:
    """What is wrong with a weight, for a message about it; None if nothing is."""
    if isinstance(weight, bool) or not isinstance(weight, _NUMBERS):
        return f"must be a number, not {weight!r}"
    try:
        number = float(weight)
    except OverflowError:  # an integer beyond float64
        number = math.inf
    # NaN fails every comparison.
    return None if 0.0 <= number <= largest else f"must lie in [0, {largest:g}], not {weight!r}"


def quantize(weight: float, step: float = DOCUMENT_STEP) -> int:
    """The nearest integer to ``weight / step``, halves to even; 0: the term is left out. The weight has no `fault`."""
    return round(float(weight) / step)


def build_learned(
    weights: Sequence[Mapping[str, float] | None], vocabulary: Vocabulary, ids: Ids, columns: Columns
) -> Segment:
    """The segment of documents with these weights (None: without), whose `ids` and `columns` are given.

    New terms enter the vocabulary, numbered alphabetically among themselves, whatever the order of the documents.
    Weights of 0, and those that round to 0, have no posting. Raises `RecordError` for a weight that is not a number,
    negative, not finite or above `MAX_DOCUMENT_WEIGHT`, and for a term that is not a string or cannot be stored; the
    vocabulary is then as before.
    """
    held: list[Mapping[str, float]] = [{} if own is None else own for own in weights]
    documents = np.repeat(np.arange(len(held)), np.fromiter(map(len, held), np.int64, len(held)))
    names = list(chain.from_iterable(held))
    impacts = _impacts(list(chain.from_iterable(own.values() for own in held)))
    if impacts is None:
        wrong = ((place, *item) for place, own in enumerate(held) for item in own.items())
        raise next(
            RecordError(f"the weight of {term!r} {found}", record_id=ids.strings[place])
            for place, term, weight in wrong
            if (found := fault(weight, MAX_DOCUMENT_WEIGHT))
        )
    for python_type in set(map(type, names)):
        if not issubclass(python_type, str):
            place = next(place for place, name in enumerate(names) if not isinstance(name, str))
            raise RecordError(
                f"a learned term must be a string, not {names[place]!r}", record_id=ids.strings[int(documents[place])]
            )
    kept = np.flatnonzero(impacts)
    if len(kept) < len(names):
        names = [names[place] for place in kept.tolist()]
        documents, impacts = documents[kept], impacts[kept]
    for name in sorted(set(names).difference(vocabulary.ids)):
        if not name.isascii() and name.encode("utf-8", "replace").decode() != name:
            holder = ids.strings[int(documents[names.index(name)])]
            raise RecordError(
                f"the learned term {name!r} holds a lone surrogate, which no file can store", record_id=holder
            )
    return nested_segment(names, documents, impacts, vocabulary, ids, columns)


def _impacts(weights: Sequence[float]) -> Integers | None:
    """`quantize` of documents' weights; None if one has a `fault`."""
    types = set(map(type, weights))
    if bool in types or not all(issubclass(python_type, _NUMBERS) for python_type in types):
        return None
    try:
        numbers = np.fromiter(weights, np.float64, len(weights))
    except OverflowError:
        return None
    if not ((numbers >= 0.0) & (numbers <= MAX_DOCUMENT_WEIGHT)).all():
        return None
    return np.rint(numbers / DOCUMENT_STEP).astype(np.int64)


def query_terms(weights: Mapping[str, float], vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """(vocabulary ids, integer weights in `QUERY_STEP`) of a query, as `plan.Request` takes them.

    Terms that no document ever held, weights of 0 and those that round to 0 are left out. Raises `QueryError` for a
    weight that is not a number, negative, not finite or above `MAX_QUERY_WEIGHT`.
    """
    terms, integers = [], []
    for term, weight in weights.items():
        if (found := fault(weight, MAX_QUERY_WEIGHT)) is not None:
            raise QueryError(f"the weight of the query's term {term!r} {found}")
        number, integer = vocabulary.ids.get(term), quantize(weight, QUERY_STEP)
        if integer and number is not None:
            terms.append(number)
            integers.append(integer)
    return terms, integers
