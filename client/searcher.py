"""`ServedSearcher`: what a coalescer over a client asks, so that callers of one process share requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.encoders.pins import Models
from ..engine.records.hits import Hits
from ..engine.route.by_namespace import AnyAnswerer
from ..engine.search.given import AnyBatch
from ..engine.search.options import SearchOptions
from ..engine.searcher import Searcher
from ..engine.signatures import SearchKeywords, ThreadedKeywords
from ..engine.storage.state import MemoryState


class ServedSearcher(Searcher):
    """Answers batches by requests. The server encodes and counts them."""

    building = pins = False

    def __init__(self, send: Callable[..., Hits]) -> None:
        self._send = send
        self.models = Models(None, None)
        unread: Any = self
        self.index = self.monitor = unread

    def search(self, queries: AnyBatch, k: int, keywords: SearchKeywords | ThreadedKeywords) -> Hits:
        sent: Any = {name: value for name, value in keywords.items() if name != "threads"}
        return self._send(queries, k, **sent)

    def answer(
        self,
        queries: AnyBatch,
        k: int,
        answerer: AnyAnswerer,
        options: SearchOptions,
        state: MemoryState | None = None,
        clock: float | None = None,
    ) -> Hits:
        keywords: Any = {name: value for name, value in vars(options).items() if name != "threads"}
        return self._send(queries, k, strategy=answerer, **keywords)

    def count(self, hits: Hits, seconds: float) -> None:
        """The server counts."""

    def count_failure(self, queries: object, error: object) -> None:
        """The server counts."""
