"""SQLite FTS5, from the standard library: a contentless table in a file, a connection a thread."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..harness.corpora import Tokens
from .adapter import Arrays, interleave, pad, run_in_threads

SELECT = "SELECT rowid, rank FROM memory WHERE memory MATCH ? ORDER BY rank LIMIT ?"


class Peer:
    def version(self) -> str:
        return sqlite3.sqlite_version

    def load(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        self.documents = [(number, " ".join(terms)) for number, terms in enumerate(corpus.each_document())]
        self.file = scratch / "memory.sqlite"
        self.file.unlink(missing_ok=True)
        self.local = threading.local()

    def build(self, threads: int) -> None:
        connection = sqlite3.connect(self.file)
        connection.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
            "CREATE VIRTUAL TABLE memory USING fts5(text, content='', tokenize='ascii');"
        )
        with connection:
            connection.executemany("INSERT INTO memory(rowid, text) VALUES (?, ?)", self.documents)
        with connection:
            connection.execute("INSERT INTO memory(memory) VALUES ('optimize')")
        connection.close()
        del self.documents

    def index_bytes(self) -> int:
        return self.file.stat().st_size

    def prepare(self, queries: slice, phase: str) -> list[str]:
        return [_any_of(terms) for terms in self.corpus.query_terms()[queries]]

    def search(self, prepared: Any, k: int, threads: int, phase: str, options: Mapping[str, Any]) -> Any:
        def some(queries: Sequence[str]) -> list[list[tuple[int, float]]]:
            if not hasattr(self.local, "connection"):
                self.local.connection = sqlite3.connect(self.file)
                self.local.connection.execute("PRAGMA mmap_size=4000000000")
            connection = self.local.connection
            return [connection.execute(SELECT, (query, k)).fetchall() for query in queries]

        return run_in_threads(some, prepared, threads)

    def arrays(self, result: Any, k: int) -> Arrays:
        return pad([[(document, -rank) for document, rank in row] for row in interleave(result)], k)


def _any_of(terms: Sequence[str]) -> str:
    return " OR ".join(f'"{term}"' for term in terms)
