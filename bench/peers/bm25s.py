"""bm25s with its numba backend and Porter's stemmer of PyStemmer."""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
from bm25s.tokenization import Tokenizer

from ..harness.cases import K1, B
from .adapter import Arrays


class Peer:
    """`tokenizer` is "function" (`bm25s.tokenize`) or "object" (`Tokenizer`, which remembers the stems of words)."""

    # Runs of letters and digits, as in the analyzer of fanrank. bm25s's own pattern drops what has one character.
    PATTERN = r"(?u)[^\W_]+"

    def __init__(self, stop: list[str], tokenizer: str = "function") -> None:
        self.options = {"stopwords": stop, "stemmer": Stemmer.Stemmer("porter")}
        self.tokenizer = Tokenizer(splitter=self.PATTERN, **self.options) if tokenizer == "object" else None

    def version(self) -> str:
        return f"{version('bm25s')} numba {version('numba')} PyStemmer {version('PyStemmer')}"

    def build(self, texts: Iterable[str], folder: Path, threads: int) -> None:
        tokenizer = Tokenizer(splitter=self.PATTERN, **self.options)
        ids = tokenizer.tokenize(list(texts), show_progress=False)
        self.index = bm25s.BM25(backend="numba", method="lucene", k1=K1, b=B)
        self.index.index((ids, tokenizer.get_vocab_dict()), show_progress=False)
        self.index.save(folder, show_progress=False)
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
