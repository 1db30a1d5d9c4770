"""BM25 and its variants: (term frequency, length, statistics) become an integer number of quanta.

The contribution of a posting is ``round_half_even(formula * 2**18)`` quanta. The formula is evaluated in float64 with
exactly the operations written here (add, multiply, divide; no contraction), so that every backend and the oracle get
the same integer. Logarithms are taken on the host.

N is the number of documents, n the document frequency, dl the length, avgdl the mean length, and
``norm = 1 - b + b * dl / avgdl``:

====================  =====================================  =====================================================
method                idf                                    contribution
====================  =====================================  =====================================================
``lucene``            ``ln(1 + (N - n + .5) / (n + .5))``    ``idf * tf * (k1 + 1) / (tf + k1 * norm)``
``robertson``         ``ln((N - n + .5) / (n + .5))``        as lucene; may be negative
``robertson_floor0``  ``max(0, robertson)``                  as lucene
``okapi``             robertson, where negative              as lucene; negative only if the mean idf is
                      ``epsilon * mean idf`` (.25)
``bm25l``             ``ln((N + 1) / (n + .5))``             ``idf * (k1 + 1) * (c + delta) / (k1 + c + delta)``,
                                                             ``c = tf / norm``, delta .5
``bm25+``             ``ln((N + 1) / n)``                    ``idf * (delta + tf * (k1 + 1) / (tf + k1 * norm))``,
                                                             delta 1
``dot``               1                                      ``tf / 2**18``: tf itself, in quanta
====================  =====================================  =====================================================

With several fields (BM25F, B011), ``c = sum_f weight_f * tf_f / norm_f`` replaces ``tf / norm`` throughout, so the
saturation becomes ``c * (k1 + 1) / (k1 + c)``. `dot` is for learned weights (`engine/index/learned.py`), not for texts:
it has one field, and a frequency is a weight of at most `MAX_IMPACT`. Lucene (from version 8) and bm25s's ``lucene``
leave the factor k1 + 1 out, so their scores are these divided by it; the order is the same. Sources: SPEC A010 to A012,
A106, B011, D006, D007, X01, X02.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError, choices

QUANTUM_BITS = 18
SCALE = float(1 << QUANTUM_BITS)

METHODS = ("lucene", "robertson", "robertson_floor0", "okapi", "bm25l", "bm25+")
"""The methods for texts."""
DOT = "dot"
MAX_IMPACT = (1 << 26) - 1
"""The largest frequency of `dot`."""
QUERY_TF = ("count", "unique")
INT32_MAX = (1 << 31) - 1
OKAPI_EPSILON = 0.25
# From this many terms on, the logarithm is taken once for each distinct document frequency.
DISTINCT_LEAST = 1 << 10
MAX_PARAMETER = 1000.0
"""The upper limit of k1, delta and field weights. It keeps every contribution far below the integers that float64
cannot hold exactly."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Exact corpus statistics of one namespace at one moment."""

    documents: int
    total_lengths: tuple[int, ...]  # [fields] tokens in the corpus
    document_frequencies: npt.NDArray[np.int64] | None = None
    """Document frequency of every term in use, in any order; only `okapi` needs it."""

    def average_length(self, position: int) -> float:
        """The mean number of tokens in a document, float64. It is 1 if there are no tokens; no posting uses it then."""
        total = self.total_lengths[position]
        return total / self.documents if total else 1.0


@dataclass(frozen=True)
class BM25:
    """The parameters of scoring. Raises `ParameterError` for a value out of range.

    The method ``lucene`` has Lucene's idf and keeps the factor k1 + 1, which Lucene and bm25s leave out. So its scores
    are k1 + 1 times theirs, 2.2 times with the defaults (but for lengths, which Lucene rounds). Order, confidences and
    fused scores do not change by it. A threshold on scores, such as `Query.min_score`, does: multiply one that was
    chosen for Lucene's scores by k1 + 1.
    """

    method: str = "lucene"
    k1: float = 1.2
    b: float = 0.75
    delta: float | None = None
    query_tf: str = "count"
    fields: Mapping[str, float] = field(default_factory=lambda: {"text": 1.0})

    def __post_init__(self) -> None:
        if self.method not in (*METHODS, DOT):
            raise ParameterError(f"unknown BM25 method {self.method!r}{choices(self.method, METHODS)}")
        if self.query_tf not in QUERY_TF:
            raise ParameterError(f"query_tf must be 'count' or 'unique', not {self.query_tf!r}")
        if self.delta is None:
            object.__setattr__(self, "delta", {"bm25l": 0.5, "bm25+": 1.0}.get(self.method, 0.0))
        for name, low, high in (("k1", 0.0, MAX_PARAMETER), ("b", 0.0, 1.0), ("delta", 0.0, MAX_PARAMETER)):
            object.__setattr__(self, name, _check_number(name, getattr(self, name), low, high))
        if not isinstance(self.fields, Mapping) or "text" not in self.fields:
            raise ParameterError("fields must map field names to weights, and hold 'text'")
        for name in self.fields:
            if not isinstance(name, str) or name.encode("utf-8", "replace").decode() != name:
                raise ParameterError(f"a field's name must be a string without lone surrogates, not {name!r}")
        weights = {
            name: _check_number(f"the weight of field {name!r}", weight, 0.0, MAX_PARAMETER)
            for name, weight in self.fields.items()
        }
        if not all(weights.values()):
            raise ParameterError("a field's weight must be above 0; leave the field out instead")
        object.__setattr__(self, "fields", weights)
        if self.method == DOT and self.fielded:
            raise ParameterError("method 'dot' has no fields: its frequencies are weights already")

    @property
    def signed(self) -> bool:
        """Whether a contribution can be negative or zero. Its sum then does not tell whether a document matched."""
        return self.method in ("robertson", "okapi")

    @property
    def fielded(self) -> bool:
        return len(self.fields) > 1 or self.fields["text"] != 1.0

    def delta_for(self, method: str) -> float | None:
        """This delta for its own method; None, which stands for the default, for another one."""
        return self.delta if method == self.method else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "k1": self.k1,
            "b": self.b,
            "delta": self.delta,
            "query_tf": self.query_tf,
            "fields": dict(self.fields),
        }

    def idf(self, document_frequencies: npt.NDArray[np.int64], statistics: Statistics) -> FloatArray:
        """The idf of terms with these document frequencies (each at least 1), float64, same shape."""
        if len(document_frequencies) < DISTINCT_LEAST:
            return self._idf(document_frequencies, statistics)
        distinct, ranks = np.unique(document_frequencies, return_inverse=True)
        return self._idf(distinct, statistics)[ranks.reshape(-1)]

    def _idf(self, document_frequencies: npt.NDArray[np.int64], statistics: Statistics) -> FloatArray:
        values = self._raw_idf(document_frequencies, statistics.documents)
        if self.method == "okapi" and any(value < 0.0 for value in values):
            floor = OKAPI_EPSILON * self._mean_idf(statistics)
            values = [floor if value < 0.0 else value for value in values]
        return np.array(values, dtype=np.float64)

    def _raw_idf(self, n: npt.NDArray[np.int64], documents: int) -> list[float]:
        if self.method == DOT:
            return [1.0] * len(n)
        if self.method == "lucene":
            odds = 1.0 + (documents - n + 0.5) / (n + 0.5)
        elif self.method == "bm25l":
            odds = (documents + 1) / (n + 0.5)
        elif self.method == "bm25+":
            odds = (documents + 1) / n
        else:
            odds = (documents - n + 0.5) / (n + 0.5)
        # numpy's logarithm gives other bits on other processors, so Python's is used.
        values = list(map(math.log, odds.tolist()))
        return [max(0.0, value) for value in values] if self.method == "robertson_floor0" else values

    def _mean_idf(self, statistics: Statistics) -> float:
        if statistics.document_frequencies is None:
            raise ParameterError("okapi needs the document frequencies of the whole vocabulary")
        distinct, counts = np.unique(statistics.document_frequencies, return_counts=True)
        # fsum rounds once, at the end, so the mean does not depend on the order in which terms arrived.
        pairs = zip(self._raw_idf(distinct, statistics.documents), counts.tolist(), strict=True)
        repeated = itertools.starmap(itertools.repeat, pairs)
        return math.fsum(itertools.chain.from_iterable(repeated)) / len(statistics.document_frequencies)

    def bounds(self, idf: FloatArray, largest: int = MAX_IMPACT) -> FloatArray:
        """Upper bounds, in quanta, of the absolute contribution of any posting of a term with this idf, same shape.

        `largest` is the largest frequency, if it is known. Only `dot`, which does not saturate, uses it.
        """
        assert self.delta is not None
        if self.method == DOT:
            return np.abs(idf) * float(largest)
        # The saturated frequency stays below k1 + 1; bm25+ adds delta to it. One quantum covers the rounding.
        return np.abs(idf) * (self.k1 + 1.0 + (self.delta if self.method == "bm25+" else 0.0)) * SCALE + 1.0

    def needs_int64(self, statistics: Statistics) -> bool:
        """Whether a single contribution could exceed int32 under these statistics."""
        # No idf exceeds ln(2N + 2).
        highest = np.array([math.log(2 * statistics.documents + 2)])
        return bool(self.bounds(highest)[0] >= INT32_MAX)

    def norms(self, lengths: npt.NDArray[np.int32], statistics: Statistics) -> FloatArray:
        """``1 - b + b * dl / avgdl`` for lengths [fields, documents], float64, same shape."""
        out = np.empty(lengths.shape, dtype=np.float64)
        for position in range(len(lengths)):
            out[position] = (1.0 - self.b) + self.b * (lengths[position] / statistics.average_length(position))
        return out

    def saturated(self, frequencies: npt.NDArray[np.integer[Any]], norms: FloatArray) -> FloatArray:
        """The formula without the idf, float64 [n], for frequencies and norms [fields, n]."""
        k1, delta = self.k1, self.delta
        assert delta is not None
        if self.method == DOT:
            # SCALE is a power of two, so nothing is rounded here or in `quanta`.
            impacts: FloatArray = frequencies[0].astype(np.float64)
            return impacts / SCALE
        if self.fielded:
            c = np.zeros(norms.shape[1], dtype=np.float64)
            for position, weight in enumerate(self.fields.values()):
                tf = frequencies[position].astype(np.float64)
                # A field that lacks the term has norm 0 where b = 1 and the field is empty; it adds nothing.
                c += np.divide(weight * tf, norms[position], out=np.zeros_like(c), where=tf > 0.0)
            saturated = c * (k1 + 1.0) / (k1 + c) if self.method != "bm25l" else c
        else:
            tf = frequencies[0].astype(np.float64)
            norm = norms[0]
            saturated = tf / norm if self.method == "bm25l" else tf * (k1 + 1.0) / (tf + k1 * norm)
        if self.method == "bm25l":
            shifted = saturated + delta
            saturated = (k1 + 1.0) * shifted / (k1 + shifted)
        elif self.method == "bm25+":
            saturated = delta + saturated
        return saturated

    def quanta(self, saturated: FloatArray, idf: FloatArray) -> npt.NDArray[np.int64]:
        """The contributions of postings in quanta, int64 [n], from `saturated` [n] and `idf` [n].

        A contribution is at least 1 quantum, unless the method is signed.
        """
        quanta = np.rint(idf * saturated * SCALE).astype(np.int64)
        return quanta if self.signed else np.maximum(quanta, 1)


def _check_number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ParameterError(f"{name} must be a number, not {value!r}")
    if not low <= value <= high:
        raise ParameterError(f"{name} must lie in [{low:g}, {high:g}], not {value!r}")
    return float(value)
