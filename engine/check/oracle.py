"""The oracle: plain Python search with loops over documents and a full sort. Every other path must equal it in bits.

It imports nothing of the engine on purpose. It states the contract a second time, from SPEC A010 to A012, B011, D006,
D007 and X01, A060, A105 to A107 and D001, so that a mistake would have to be made twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence


class Oracle:
    """BM25 over documents given as terms: ``documents[d][f]`` lists the terms of field f of document d.

    `weights` holds each field's weight. With one field of weight 1 the formula is plain BM25.
    """

    def __init__(
        self,
        documents: Sequence[Sequence[Sequence[str]]],
        *,
        method: str = "lucene",
        k1: float = 1.2,
        b: float = 0.75,
        delta: float = 0.0,
        query_tf: str = "count",
        weights: Sequence[float] = (1.0,),
    ) -> None:
        self.method, self.k1, self.b, self.delta = method, k1, b, delta
        self.query_tf, self.weights = query_tf, weights
        self.counts = [[Counter(field) for field in document] for document in documents]
        self.lengths = [[len(field) for field in document] for document in documents]
        self.totals = [sum(lengths[f] for lengths in self.lengths) for f in range(len(weights))]
        self.df: Counter[str] = Counter()
        for fields in self.counts:
            self.df.update({term for counts in fields for term in counts})
        self._mean_idf: float | None = None

    def idf(self, term: str) -> float:
        n, total = self.df[term], len(self.counts)
        if self.method == "lucene":
            return math.log(1.0 + (total - n + 0.5) / (n + 0.5))
        if self.method == "bm25l":
            return math.log((total + 1) / (n + 0.5))
        if self.method == "bm25+":
            return math.log((total + 1) / n)
        robertson = math.log((total - n + 0.5) / (n + 0.5))
        if self.method == "robertson_floor0" and robertson < 0.0:
            return 0.0
        if self.method == "okapi" and robertson < 0.0:
            if self._mean_idf is None:
                values = [math.log((total - m + 0.5) / (m + 0.5)) for m in self.df.values()]
                self._mean_idf = math.fsum(values) / len(values)
            return 0.25 * self._mean_idf
        return robertson

    def contribution(self, term: str, document: int) -> float:
        """The float64 contribution of one query term to one document that holds it."""
        k1, b, delta = self.k1, self.b, self.delta

        def norm(field: int) -> float:
            average = self.totals[field] / len(self.counts)
            return (1.0 - b) + b * (self.lengths[document][field] / average)

        idf = self.idf(term)
        if len(self.weights) == 1 and self.weights[0] == 1.0:
            tf = float(self.counts[document][0][term])
            if self.method == "bm25l":
                c = tf / norm(0)
            else:
                saturated = tf * (k1 + 1.0) / (tf + k1 * norm(0))
        else:
            c = 0.0
            for field, weight in enumerate(self.weights):
                tf = float(self.counts[document][field][term])
                if tf > 0.0:
                    c += weight * tf / norm(field)
            if self.method != "bm25l":
                saturated = c * (k1 + 1.0) / (k1 + c)
        if self.method == "bm25l":
            saturated = (k1 + 1.0) * (c + delta) / (k1 + (c + delta))
        if self.method == "bm25+":
            saturated = delta + saturated
        return idf * saturated

    def quanta(self, term: str, document: int) -> int:
        """``round_half_even(contribution * 2**18)``, at least 1 if unsigned."""
        quanta = round(self.contribution(term, document) * 262144.0)
        return quanta if self.method in ("robertson", "okapi") else max(quanta, 1)

    def _query_terms(self, query: Sequence[str]) -> dict[str, int]:
        terms = Counter(term for term in query if term in self.df)
        return dict.fromkeys(terms, 1) if self.query_tf == "unique" else dict(terms)

    def score(self, query: Sequence[str], document: int) -> int | None:
        """The document's score in quanta, or None if it holds no term of the query."""
        return self._score(self._query_terms(query), document)

    def _score(self, terms: dict[str, int], document: int) -> int | None:
        shared = [term for term in terms if any(term in counts for counts in self.counts[document])]
        return sum(terms[term] * self.quanta(term, document) for term in shared) if shared else None

    def search(self, query: Sequence[str], k: int, passing: Sequence[bool] | None = None) -> list[tuple[int, int]]:
        """The k best as (document, quanta): score descending, then smaller document."""
        terms = self._query_terms(query)
        scored = []
        for document in range(len(self.counts)):
            score = self._score(terms, document) if passing is None or passing[document] else None
            if score is not None:
                scored.append((document, score))
        scored.sort(key=lambda pair: (-pair[1], pair[0]))
        return scored[:k]

    def search_float(self, query: Sequence[str], k: int) -> list[tuple[int, float]]:
        """As `search`, with float64 sums instead of quanta, to measure what rounding to quanta changes."""
        terms = self._query_terms(query)
        scored = []
        for document, fields in enumerate(self.counts):
            products = [
                times * self.contribution(term, document)
                for term, times in terms.items()
                if any(term in counts for counts in fields)
            ]
            if products:
                scored.append((document, sum(products)))
        scored.sort(key=lambda pair: (-pair[1], pair[0]))
        return scored[:k]


class VectorOracle:
    """Late interaction: a document's score is the largest similarity of the query with one of its rows.

    ``documents[d]`` holds the rows of document d, none or more. Rows have length 1 and numbers of half precision, so a
    sum of products is exact in float64 in any order, and a plain loop gives the same bits as any other. With `int8` the
    products are those of integer codes, times the two steps.
    """

    def __init__(self, documents: Sequence[Sequence[Sequence[float]]], *, int8: bool = False) -> None:
        self.int8 = int8
        self.documents = [[self._prepare(row) for row in rows] for rows in documents]

    def _prepare(self, row: Sequence[float]) -> tuple[Sequence[float], float]:
        """(the numbers that are multiplied, the step by which their products are multiplied)."""
        if not self.int8:
            return row, 1.0
        step = max(abs(number) for number in row) / 127.0
        return [round(number / step) for number in row], step

    def score(self, query: Sequence[float], document: int) -> float | None:
        """The document's score, or None if it has no row."""
        return self._score(self._prepare(query), document)

    def _score(self, query: tuple[Sequence[float], float], document: int) -> float | None:
        numbers, worth = query
        scores = [
            sum([a * b for a, b in zip(numbers, row, strict=True)]) * worth * step
            for row, step in self.documents[document]
        ]
        return max(scores) if scores else None

    def search(self, query: Sequence[float] | None, k: int) -> list[tuple[int, float]]:
        """The k best as (document, score): score descending, then smaller document. A query of None has no hits."""
        if query is None:
            return []
        prepared = self._prepare(query)
        return _best({document: self._score(prepared, document) for document in range(len(self.documents))}, k)


class WeightOracle:
    """Learned term weights: a document's score is the sum, over shared terms, of the product of the two weights.

    Weights are rounded to multiples of 2**-10, halves to even. A term whose weight is then 0 is left out.
    """

    def __init__(self, documents: Sequence[Mapping[str, float]]) -> None:
        self.documents = [self._whole(weights) for weights in documents]

    @staticmethod
    def _whole(weights: Mapping[str, float]) -> dict[str, int]:
        whole = {term: round(weight * 1024.0) for term, weight in weights.items()}
        return {term: weight for term, weight in whole.items() if weight}

    def score(self, query: Mapping[str, float], document: int) -> float | None:
        """The document's score, or None if it holds no term of the query."""
        return self._score(self._whole(query), document)

    def _score(self, query: dict[str, int], document: int) -> float | None:
        weights = self.documents[document]
        shared = [weight * weights[term] for term, weight in query.items() if term in weights]
        return sum(shared) / 1048576.0 if shared else None

    def search(self, query: Mapping[str, float], k: int) -> list[tuple[int, float]]:
        """The k best as (document, score): score descending, then smaller document."""
        whole = self._whole(query)
        return _best({document: self._score(whole, document) for document in range(len(self.documents))}, k)


def borrow(scores: Sequence[int | None], sessions: Sequence[object], weights: Sequence[int]) -> list[int | None]:
    """Sums in 64ths of documents' `scores` and of those of their neighbours; None where nobody has a score.

    Neighbours of a document are those of its session (None: it has none) up to ``len(weights)`` places before and after
    it. ``weights[o - 1]`` is the weight of those at distance o, in 64ths.
    """
    members: dict[object, list[int]] = {}
    for document, session in enumerate(sessions):
        members.setdefault(session, []).append(document)
    sums: list[int | None] = [None] * len(scores)
    for session, documents in members.items():
        for position, document in enumerate(documents):
            parts = [(64, scores[document])]
            for distance, weight in enumerate(weights, 1):
                near = [other for other in (position - distance, position + distance) if 0 <= other < len(documents)]
                parts.extend((weight, scores[documents[other]]) for other in near if session is not None)
            present = [weight * score for weight, score in parts if score is not None]
            sums[document] = sum(present) if present else None
    return sums


def reciprocal_ranks(lists: Sequence[Sequence[int]], k: int, constant: float = 60.0) -> list[tuple[int, float]]:
    """The k best documents by ``1 / (constant + rank)``, summed in order over the lists that have the document."""
    scores: dict[int, float] = {}
    for documents in lists:
        for rank, document in enumerate(documents, 1):
            scores[document] = scores.get(document, 0.0) + 1.0 / (constant + rank)
    return _best(scores, k)


def _best(scores: Mapping[int, float | None], k: int) -> list[tuple[int, float]]:
    scored = [(document, score) for document, score in scores.items() if score is not None]
    scored.sort(key=lambda pair: (-pair[1], pair[0]))
    return scored[:k]
