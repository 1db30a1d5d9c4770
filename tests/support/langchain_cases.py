"""Embeddings, handlers and texts for the tests of LangChain's adapter."""

import random
import threading
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import Embeddings

WORDS = (
    *("tea", "coffee", "billing", "job", "error", "key", "login", "cache", "session"),
    *("token", "Ana", "Bo", "meeting", "invoice", "late", "fee"),
)


def texts(count: int, seed: int = 7) -> list[str]:
    """Random texts of a few words; some are equal, so that scores tie."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 6))) for _ in range(count)]


def metadatas(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """Random metadata; some keys are missing, and some have the names of fanrank's own columns."""
    chance = random.Random(seed)
    every = ({"type": chance.choice("ab"), "n": chance.randint(0, 9), "tags": ["x", "y"]} for _ in range(count))
    return [{name: value for name, value in one.items() if chance.random() < 0.8} for one in every]


class Letters(Embeddings):
    """Counts letters. It keeps the texts of each call; a query's vector is another one than a document's."""

    def __init__(self, model: str = "letters-1") -> None:
        self.model = model
        self.lock = threading.Lock()
        self.documents: list[list[str]] = []
        self.queries: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.documents.append(list(texts))
        return [self.count(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        with self.lock:
            self.queries.append(text)
        return [number + 0.25 for number in self.count(text)]

    @staticmethod
    def count(text: str) -> list[float]:
        return [text.lower().count(chr(97 + letter)) + 0.01 for letter in range(26)]


class Seen(BaseCallbackHandler):
    """Keeps what a handler is told of retrievers, by run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started: dict[Any, dict[str, Any]] = {}
        self.ended: dict[Any, Any] = {}
        self.failed: dict[Any, BaseException] = {}

    def on_retriever_start(self, serialized: Any, query: str, *, run_id: Any, **kwargs: Any) -> None:
        with self.lock:
            self.started[run_id] = {"query": query, **kwargs}

    def on_retriever_end(self, documents: Any, *, run_id: Any, **kwargs: Any) -> None:
        with self.lock:
            self.ended[run_id] = documents

    def on_retriever_error(self, error: BaseException, *, run_id: Any, **kwargs: Any) -> None:
        with self.lock:
            self.failed[run_id] = error

    def runs(self) -> list[tuple[str, str, tuple[str, ...], dict[str, Any], bool, bool, Any]]:
        """What each run was, in an order of its own: what does not depend on random ids."""
        return sorted(
            [
                (
                    start["query"],
                    str(start.get("name")),
                    tuple(sorted(start["tags"])),
                    start["metadata"],
                    start["parent_run_id"] is not None,
                    run in self.failed,
                    [document.id for document in self.ended.get(run, [])],
                )
                for run, start in self.started.items()
            ],
            key=repr,
        )
