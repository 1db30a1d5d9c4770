"""The plain answer: loops over documents, a full sort, no arrays. Every other road is held to it, bit for bit.

Imports nothing of the engine on purpose: it states the contract a second time, from SPEC A010 to A012, B011, D006,
D007 and X01, so that a mistake would have to be made twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


class Oracle:
    """BM25 over documents given as terms: ``documents[d][f]`` lists the terms of field f of document d.

    `weights` gives each field's weight; with one field of weight 1 the formula is plain BM25.
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
        held = [term for term in terms if any(term in counts for counts in self.counts[document])]
        return sum(terms[term] * self.quanta(term, document) for term in held) if held else None

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
        """As `search`, with float64 sums instead of quanta: what the quanta are compared with."""
        terms = self._query_terms(query)
        scored = []
        for document, fields in enumerate(self.counts):
            held = [
                times * self.contribution(term, document)
                for term, times in terms.items()
                if any(term in counts for counts in fields)
            ]
            if held:
                scored.append((document, sum(held)))
        scored.sort(key=lambda pair: (-pair[1], pair[0]))
        return scored[:k]
