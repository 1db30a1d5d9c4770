"""bm25s with its numba backend."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
from bm25s.tokenization import Tokenizer

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


class TextPeer:
    """bm25s with Porter's stemmer of PyStemmer.

    `tokenizer` is "function" (`bm25s.tokenize`) or "object" (`Tokenizer`, which remembers the stems of words).
    """

    # Runs of letters and digits, as in the analyzer of fanrank. bm25s's own pattern drops what has one character.
    PATTERN = r"(?u)[^\W_]+"

    def __init__(self, stop: list[str], tokenizer: str = "function") -> None:
        self.options = {"stopwords": stop, "stemmer": Stemmer.Stemmer("porter")}
        self.tokenizer = Tokenizer(splitter=self.PATTERN, **self.options) if tokenizer == "object" else None

    def version(self) -> str:
        return f"{version('bm25s')} numba {version('numba')} PyStemmer {version('PyStemmer')}"

    def build(self, texts: Iterable[str], folder: Path) -> None:
        tokenizer = Tokenizer(splitter=self.PATTERN, **self.options)
        ids = tokenizer.tokenize(list(texts), show_progress=False)
        index = bm25s.BM25(backend="numba", method="lucene", k1=K1, b=B)
        index.index((ids, tokenizer.get_vocab_dict()), show_progress=False)
        index.save(folder, show_progress=False)
        tokenizer.save_vocab(str(folder))
        np.save(folder / "ids.npy", np.array([str(number) for number in range(len(ids))]))

    def open(self, folder: Path) -> str:
        self.index = bm25s.BM25.load(folder, load_corpus=False, show_progress=False)
        assert self.index.backend == "numba"
        if self.tokenizer is not None:
            self.tokenizer.load_vocab(str(folder))
        self.ids = np.load(folder / "ids.npy")
        return "numba"

    def ask(self, texts: list[str], k: int) -> Any:
        if self.tokenizer is not None:
            tokens = self.tokenizer.tokenize(texts, update_vocab=False, show_progress=False)
        else:
            tokens = bm25s.tokenize(texts, token_pattern=self.PATTERN, show_progress=False, **self.options)
        return self.index.retrieve(tokens, corpus=self.ids, k=k, n_threads=1, show_progress=False)

    def arrays(self, result: Any, k: int) -> Arrays:
        return result.documents.astype(np.int64), result.scores.astype(np.float64)
