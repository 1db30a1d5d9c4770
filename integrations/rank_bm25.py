"""rank_bm25: `BM25Okapi`, `BM25L` and `BM25Plus` with its scores, and with verbs for many queries at once.

    from fanrank.integrations.rank_bm25 import BM25Okapi  # in place of: from rank_bm25 import BM25Okapi

A corpus is a list of lists of tokens, or of texts with a `tokenizer`. What each posting adds to a score is computed
once, by the formulas of rank_bm25 in float64. An engine's scores are whole quanta, which are coarser than 1e-6, so none
is used here: for records that come and go, filters and namespaces take `fanrank.Engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import ParameterError

Tokens = Sequence[Hashable]
Floats = NDArray[np.float64]
T = TypeVar("T")

COUNTS_AT_ONCE = 2**17
"""Scores that are added up at once, a megabyte: a batch is worked off in parts that a cache holds."""


class _BM25:
    def __init__(self, corpus: Iterable[Any], tokenizer: Callable[[Any], Tokens] | None = None) -> None:
        self.tokenizer = tokenizer
        documents = [*corpus] if tokenizer is None else [tokenizer(text) for text in corpus]
        self.corpus_size = len(documents)
        lengths = np.array([len(tokens) for tokens in documents], dtype=np.int64)
        if not lengths.sum():
            raise ParameterError("the corpus holds no token, so nothing can be ranked")
        self.doc_len: list[int] = lengths.tolist()
        self.avgdl = float(lengths.sum() / self.corpus_size)
        known = dict.fromkeys(chain.from_iterable(documents))
        self._terms: dict[Hashable, int] = {token: number for number, token in enumerate(known)}
        tokens = np.fromiter(map(self._terms.__getitem__, chain.from_iterable(documents)), np.int64)
        # A posting is a term and a document; sorted, the postings of a term lie side by side.
        places = tokens * self.corpus_size + np.repeat(np.arange(self.corpus_size), lengths)
        postings, frequencies = np.unique(places, return_counts=True)
        term_of, self._documents = np.divmod(postings, self.corpus_size)
        self._frequencies = frequencies
        counts = np.bincount(term_of)
        self._ends = np.concatenate(([0], np.cumsum(counts)))
        idf = self._idf(counts)
        self.idf: dict[Hashable, float] = dict(zip(self._terms, idf.tolist(), strict=True))
        self._contributions = self._weighted(idf[term_of], frequencies, lengths[self._documents] / self.avgdl)
        self._without = self._weighted(idf, np.zeros(1), np.ones(1))
        """What each term adds to a document that lacks it."""

    def _idf(self, counts: NDArray[np.int64]) -> Floats:
        raise NotImplementedError

    def _weighted(self, idf: Floats, frequency: NDArray[Any], length: NDArray[Any]) -> Floats:
        """What terms of these idf add to documents with their frequencies; `length` is in multiples of the average."""
        raise NotImplementedError

    @property
    def _at_once(self) -> int:
        """Queries whose scores are added up at once."""
        return max(1, COUNTS_AT_ONCE // self.corpus_size)

    @property
    def doc_freqs(self) -> list[dict[Hashable, int]]:
        """For each document how often it holds each of its tokens."""
        found: list[dict[Hashable, int]] = [{} for _ in range(self.corpus_size)]
        for token, number in self._terms.items():
            part = slice(self._ends[number], self._ends[number + 1])
            for document, count in zip(self._documents[part].tolist(), self._frequencies[part].tolist(), strict=True):
                found[document][token] = count
        return found

    def get_scores(self, query: Tokens) -> Floats:
        """The score of every document, in the corpus's order. A token that the query repeats counts each time."""
        scores: Floats = self.get_scores_many([query])[0]
        return scores

    def get_scores_many(self, queries: Sequence[Tokens]) -> Floats:
        """`get_scores` of each query, a row each: all postings of the batch are added up at once, in float64."""
        numbers = [[self._terms[token] for token in query if token in self._terms] for query in queries]
        scores = np.zeros((len(queries), self.corpus_size))
        step = self._at_once
        for start in range(0, len(queries), step):
            part = numbers[start : start + step]
            spans = [slice(self._ends[one], self._ends[one + 1]) for row in part for one in row]
            if not spans:
                continue
            sizes = [sum(int(self._ends[one + 1] - self._ends[one]) for one in row) for row in part]
            cells = np.repeat(np.arange(len(part)) * self.corpus_size, sizes)
            cells += np.concatenate([self._documents[span] for span in spans])
            added = np.concatenate([self._contributions[span] for span in spans])
            every = np.array([self._without[row].sum() for row in part])
            if every.any():
                added -= np.repeat(np.concatenate([self._without[row] for row in part if row]), [*map(_size, spans)])
            summed = np.bincount(cells, added, minlength=len(part) * self.corpus_size)
            scores[start : start + step] = summed.reshape(len(part), -1) + every[:, None]
        return scores

    def get_batch_scores(self, query: Tokens, doc_ids: Sequence[int]) -> list[float]:
        """The scores of the documents at these places of the corpus: one query, in rank_bm25's name for it."""
        wrong = next((place for place in doc_ids if place >= self.corpus_size), None)
        if wrong is not None:
            raise ParameterError(f"doc_ids holds {wrong}, and the corpus has {self.corpus_size:,} documents")
        scores: list[float] = self.get_scores(query)[list(doc_ids)].tolist() if len(doc_ids) else []
        return scores

    def get_top_n(self, query: Tokens, documents: Sequence[T], n: int = 5) -> list[T]:
        """The `n` best of `documents`, which are the corpus in any form. Of equal scores the last comes first."""
        return self.get_top_n_many([query], documents, n)[0]

    def get_top_n_many(self, queries: Sequence[Tokens], documents: Sequence[T], n: int = 5) -> list[list[T]]:
        """`get_top_n` of each query; the scores are added up as in `get_scores_many`."""
        if len(documents) != self.corpus_size:
            raise ParameterError(f"{len(documents):,} documents were given, and the corpus has {self.corpus_size:,}")
        found: list[list[T]] = []
        step = self._at_once
        for start in range(0, len(queries), step):
            rows = self.get_scores_many(queries[start : start + step])
            found += [[documents[place] for place in _best(row, n)] for row in rows]
        return found


def _size(span: slice) -> int:
    return int(span.stop - span.start)


def _best(scores: Floats, n: int) -> list[int]:
    """The places of the `n` highest scores. rank_bm25 leaves open which of equal ones; here the last come first."""
    places = np.arange(len(scores))
    if 0 < n < len(scores):
        places = np.flatnonzero(scores >= np.partition(scores, len(scores) - n)[len(scores) - n])
    best: list[int] = places[np.argsort(scores[places], kind="stable")[::-1]][: max(n, 0)].tolist()
    return best


class BM25Okapi(_BM25):
    """BM25 with the idf log((N - n + .5) / (n + .5)); a negative one becomes `epsilon` of the mean over all tokens."""

    def __init__(
        self,
        corpus: Iterable[Any],
        tokenizer: Callable[[Any], Tokens] | None = None,
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
    ) -> None:
        self.k1, self.b, self.epsilon = k1, b, epsilon
        super().__init__(corpus, tokenizer)

    def _idf(self, counts: NDArray[np.int64]) -> Floats:
        idf = np.log(self.corpus_size - counts + 0.5) - np.log(counts + 0.5)
        self.average_idf = float(idf.sum() / len(idf))
        return np.where(idf < 0, self.epsilon * self.average_idf, idf)

    def _weighted(self, idf: Floats, frequency: NDArray[Any], length: NDArray[Any]) -> Floats:
        weighted: Floats = idf * (frequency * (self.k1 + 1)) / (frequency + self.k1 * (1 - self.b + self.b * length))
        return weighted


class BM25L(_BM25):
    """BM25 for long documents: `delta` is added to the frequency by length."""

    def __init__(
        self,
        corpus: Iterable[Any],
        tokenizer: Callable[[Any], Tokens] | None = None,
        k1: float = 1.5,
        b: float = 0.75,
        delta: float = 0.5,
    ) -> None:
        self.k1, self.b, self.delta = k1, b, delta
        super().__init__(corpus, tokenizer)

    def _idf(self, counts: NDArray[np.int64]) -> Floats:
        idf: Floats = np.log(self.corpus_size + 1) - np.log(counts + 0.5)
        return idf

    def _weighted(self, idf: Floats, frequency: NDArray[Any], length: NDArray[Any]) -> Floats:
        shifted = frequency / (1 - self.b + self.b * length) + self.delta
        weighted: Floats = idf * frequency * (self.k1 + 1) * shifted / (self.k1 + shifted)
        return weighted


class BM25Plus(_BM25):
    """BM25 in which a token of the query adds `delta` times its idf to every document, also to one without it."""

    def __init__(
        self,
        corpus: Iterable[Any],
        tokenizer: Callable[[Any], Tokens] | None = None,
        k1: float = 1.5,
        b: float = 0.75,
        delta: float = 1,
    ) -> None:
        self.k1, self.b, self.delta = k1, b, delta
        super().__init__(corpus, tokenizer)

    def _idf(self, counts: NDArray[np.int64]) -> Floats:
        return np.log((self.corpus_size + 1) / counts)

    def _weighted(self, idf: Floats, frequency: NDArray[Any], length: NDArray[Any]) -> Floats:
        saturated = (frequency * (self.k1 + 1)) / (self.k1 * (1 - self.b + self.b * length) + frequency)
        weighted: Floats = idf * (self.delta + saturated)
        return weighted
