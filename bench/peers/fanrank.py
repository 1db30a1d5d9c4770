"""fanrank itself, on its CPU backends."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine import backend

from ..cases import K1, B
from ..corpora import Tokens
from .adapter import Arrays


class Peer:
    def version(self) -> str:
        return version("fanrank")

    def load(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        self.records = [
            fr.Record(id=str(number), text=" ".join(terms)) for number, terms in enumerate(corpus.document_terms())
        ]

    def build(self) -> None:
        self.engine = fr.Engine.from_records(
            self.records, analyzer="minimal", method="lucene", k1=K1, b=B, backend="numpy"
        )
        self.backends = {name: backend.choose(name) for name in ("numba", "numpy")}
        del self.records

    def index_bytes(self) -> int:
        # Terms, offsets, documents, frequencies and lengths: what scoring needs. No peer stores ids.
        return int(self.engine.stats()["index_bytes"])

    def prepare(self, queries: slice, phase: str) -> list[Any]:
        if phase == "end_to_end":
            return self.corpus.query_texts[queries]
        return [fr.Query(terms=terms) for terms in self.corpus.query_terms()[queries]]

    def search(self, prepared: Any, k: int, threads: int, phase: str, options: Mapping[str, Any]) -> Any:
        # The one place to switch the kernel phase to a lower call, should the engine offer one.
        self.engine.backend = self.backends[options.get("backend", "numba")]
        hits = self.engine.search(prepared, k=k, threads=threads)
        if phase == "end_to_end":
            # Ids are looked up when they are asked for; end to end they are.
            _ = hits.ids
        return hits

    def arrays(self, result: Any, k: int) -> Arrays:
        matched = np.arange(result.scores.shape[1]) < result.counts[:, None]
        return np.where(matched, result.documents, -1), np.where(matched, result.scores, 0.0)
