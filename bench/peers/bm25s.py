"""bm25s with its numba backend."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from ..harness.cases import K1, B
from ..harness.corpora import WORD, Tokens
from .adapter import Arrays, folder_bytes


class Peer:
    def version(self) -> str:
        return f"{version('bm25s')} numba {version('numba')}"

    def load(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        self.documents = corpus.document_terms()
        self.ids = np.array([str(number) for number in range(corpus.documents)])
        self.folder = scratch / "index"
        shutil.rmtree(self.folder, ignore_errors=True)

    def warm(self) -> None:
        small = self._new()
        small.index([["a", "b"], ["b"]], show_progress=False)
        small.retrieve([["a"]], k=1, show_progress=False)

    def _new(self) -> Any:
        return bm25s.BM25(backend="numba", method="lucene", k1=K1, b=B)

    def build(self, threads: int) -> None:
        self.index = self._new()
        self.index.index(self.documents, show_progress=False)
        del self.documents

    def index_bytes(self) -> int:
        self.index.save(self.folder, show_progress=False)
        return folder_bytes(self.folder)

    def prepare(self, queries: slice, phase: str) -> list[str] | list[list[str]]:
        if phase == "end_to_end":
            return self.corpus.query_texts[queries]
        # Strings, not numbers: bm25s checks each number against a set in Python, which is slower than its dictionary.
        return self.corpus.query_terms()[queries]

    def search(self, prepared: Any, k: int, threads: int, phase: str, options: Mapping[str, Any]) -> Any:
        ids = None
        if phase == "end_to_end":
            ids = self.ids
            prepared = bm25s.tokenize(
                prepared, stopwords=None, token_pattern=WORD.pattern, return_ids=False, show_progress=False
            )
        return self.index.retrieve(prepared, corpus=ids, k=k, n_threads=threads, show_progress=False)

    def arrays(self, result: Any, k: int) -> Arrays:
        return result.documents.astype(np.int64), result.scores.astype(np.float64)
