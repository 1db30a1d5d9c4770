"""fanrank itself, on its CPU backends."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.settings import ENVIRONMENT_VARIABLE

from ..harness.cases import HUGE, K1, B
from ..harness.corpora import Tokens
from .adapter import Arrays


def _records(texts: Iterable[str]) -> Iterator[fr.Record]:
    return (fr.Record(id=str(number), text=text) for number, text in enumerate(texts))


def _engine(records: Iterable[fr.Record], threads: int) -> fr.Engine:
    return fr.Engine.from_records(
        records, threads=threads, analyzer="minimal", method="lucene", k1=K1, b=B, keep_texts=False, backend="numpy"
    )


class Peer:
    records: Iterable[fr.Record]

    def version(self) -> str:
        return version("fanrank")

    def warm(self) -> None:
        with suppress(fr.FanrankError):
            backend.choose("native")  # loads the extension
        # More than one chunk, so that everything a large build needs is compiled.
        _engine((fr.Record(str(number), "a b") for number in range(1 << 15)), 2)

    def load(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        texts = (" ".join(terms) for terms in corpus.each_document())
        # Of a huge corpus only the texts are kept. A record takes twice the memory of its text, so records are made
        # inside the clock.
        self.records = _records(list(texts)) if corpus.documents >= HUGE else list(_records(texts))

    def stream(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        self.records = _records(" ".join(terms) for terms in corpus.each_document())

    def build(self, threads: int) -> None:
        self.engine = _engine(self.records, threads)
        self.backends = {name: backend.choose(name) for name in ("native", "numpy")}
        del self.records

    def index_bytes(self) -> int:
        # Scoring needs terms, offsets, documents, frequencies and lengths. No peer stores ids.
        return int(self.engine.stats()["posting_bytes"])

    def prepare(self, queries: slice, phase: str) -> list[Any]:
        if phase == "end_to_end":
            return self.corpus.query_texts[queries]
        return [fr.Query(terms=terms) for terms in self.corpus.query_terms()[queries]]

    def search(self, prepared: Any, k: int, threads: int, phase: str, options: Mapping[str, Any]) -> Any:
        # Change this line alone to measure the kernel phase with a lower-level call.
        self.engine.backend = self.backends[options.get("backend", "native")]
        hits = self.engine.search(prepared, k=k, threads=threads)
        if phase == "end_to_end":
            # Ids are looked up lazily. The end-to-end phase includes them.
            _ = hits.ids
        return hits

    def arrays(self, result: Any, k: int) -> Arrays:
        matched = np.arange(result.scores.shape[1]) < result.counts[:, None]
        return np.where(matched, result.documents, -1), np.where(matched, result.scores, 0.0)


class TextPeer:
    """The analyzer `nltk`, which holds the same stop words and stemmer that the others are given."""

    def __init__(self, stop: list[str]) -> None:
        self.stop = stop

    def version(self) -> str:
        return version("fanrank")

    def build(self, texts: Iterable[str], folder: Path) -> None:
        engine = fr.Engine.from_records(_records(texts), analyzer="nltk", method="lucene", k1=K1, b=B, keep_texts=False)
        engine.flush()  # or due merges are not in what is saved
        engine.save(folder)

    def open(self, folder: Path) -> str:
        name = os.environ.get(ENVIRONMENT_VARIABLE) or backend.choose(among=backend.CPU).name
        self.engine = fr.Engine.load(folder, backend=name)
        return name

    def ask(self, texts: list[str], k: int) -> Any:
        hits = self.engine.search(texts, k=k, threads=1)
        return hits.ids, hits.scores, hits

    def arrays(self, result: Any, k: int) -> Arrays:
        ids, scores, _ = result
        found = np.array([[-1 if name is None else int(name) for name in row] for row in ids], np.int64)
        return found, np.where(found >= 0, scores, 0.0)
