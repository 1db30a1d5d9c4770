"""A sparse product: queries times a term-by-document matrix of float32 contributions, then argpartition a row."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..harness.cases import K1, B
from ..harness.corpora import Tokens
from .adapter import Arrays, interleave, pad, run_in_threads


class Peer:
    def version(self) -> str:
        return version("scipy")

    def load(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        self.documents = corpus.document_terms()

    def build(self, threads: int) -> None:
        number = {term: place for place, term in enumerate(self.corpus.vocabulary)}
        lengths = np.array([len(document) for document in self.documents])
        columns = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        rows = np.fromiter((number[term] for document in self.documents for term in document), np.int32, len(columns))
        shape = (len(number), len(lengths))
        tf = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
        tf.sum_duplicates()
        df = np.diff(tf.indptr)
        idf = np.log1p((len(lengths) - df + 0.5) / (df + 0.5))
        norm = K1 * (1 - B + B * lengths / lengths.mean())
        tf.data = (np.repeat(idf, df) * tf.data / (tf.data + norm[tf.indices])).astype(np.float32)
        self.index = tf
        del self.documents

    def index_bytes(self) -> int:
        return int(self.index.data.nbytes + self.index.indices.nbytes + self.index.indptr.nbytes)

    def prepare(self, queries: slice, phase: str) -> list[Any]:
        # A few queries at a time: one product of all would hold every matched document of every query.
        terms, offsets = self.corpus.query_tokens, self.corpus.query_offsets
        start, stop, _ = queries.indices(self.corpus.queries)
        part = terms[offsets[start] : offsets[stop]]
        matrix = sp.csr_matrix(
            (np.ones(len(part), np.float32), part, offsets[start : stop + 1] - offsets[start]),
            shape=(stop - start, len(self.corpus.vocabulary)),
        )
        return [matrix[first : first + 8] for first in range(0, stop - start, 8)]

    def search(self, prepared: Any, k: int, threads: int, phase: str, options: Mapping[str, Any]) -> Any:
        return run_in_threads(lambda part: [self._some(queries, k) for queries in part], prepared, threads)

    def _some(self, queries: Any, k: int) -> list[tuple[Any, Any]]:
        product = queries @ self.index
        hits = []
        for start, stop in zip(product.indptr, product.indptr[1:], strict=False):
            scores, documents = product.data[start:stop], product.indices[start:stop]
            if stop - start > k:
                best = np.argpartition(scores, len(scores) - k)[-k:]
                scores, documents = scores[best], documents[best]
            order = np.argsort(-scores)
            hits.append((documents[order], scores[order]))
        return hits

    def arrays(self, result: Any, k: int) -> Arrays:
        rows = [hits for group in interleave(result) for hits in group]
        return pad([list(zip(*row, strict=True)) for row in rows], k)
