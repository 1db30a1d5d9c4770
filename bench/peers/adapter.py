"""The interface of an adapter, and helpers that several adapters share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..harness.corpora import Tokens

T = TypeVar("T")
R = TypeVar("R")
Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


class Adapter(Protocol):
    """One peer. The worker calls the methods in the order below; those marked * are inside a clock.

    `load` turns the prepared corpus into the form that the peer reads best: token lists, or lines of joined tokens.
    `build` * makes the index from that, with `threads` where the peer can. `index_bytes` is the size of what a search
    reads. `prepare` turns queries (terms, or raw text for the end-to-end phase) into the form that `search` * takes;
    what `search` returns is the peer's own form, and `arrays` makes it documents [Q, k] (padding -1) and scores [Q, k].

    `warm` is optional and called first: what is compiled or loaded once is no part of a build. `stream` is optional.
    It replaces `load` where the memory of a build is measured: documents are made as they are read.
    """

    def version(self) -> str: ...
    def load(self, corpus: Tokens, scratch: Path) -> None: ...
    def build(self, threads: int) -> None: ...
    def index_bytes(self) -> int: ...
    def prepare(self, queries: slice, phase: str) -> Any: ...
    def search(self, prepared: Any, k: int, threads: int, phase: str, options: Mapping[str, Any]) -> Any: ...
    def arrays(self, result: Any, k: int) -> Arrays: ...


class TextAdapter(Protocol):
    """One peer that is asked with texts, in the command `bench.fanout`: analysis by the peer itself is in the clock.

    The constructor takes the stop words, and the options of the system. `build` writes an index to `folder`. `open` *
    reads it and returns the backend or mode in use. `ask` * takes texts and returns ids and scores of the `k` best in
    the peer's own form; `arrays` makes it documents [Q, k] (padding -1) and scores [Q, k].
    """

    def version(self) -> str: ...
    def build(self, texts: Iterable[str], folder: Path) -> None: ...
    def open(self, folder: Path) -> str: ...
    def ask(self, texts: list[str], k: int) -> Any: ...
    def arrays(self, result: Any, k: int) -> Arrays: ...


_pools: dict[int, ThreadPoolExecutor] = {}


def run_in_threads(work: Callable[[Sequence[T]], R], items: Sequence[T], threads: int) -> list[R]:
    """`work` on `threads` equal parts of `items` at once, for peers that search one query at a time.

    The parts are strided, so that a run of heavy queries is spread over the threads. Results come part by part.
    """
    if threads == 1:
        return [work(items)]
    pool = _pools.setdefault(threads, ThreadPoolExecutor(threads))
    return list(pool.map(work, [items[part::threads] for part in range(threads)]))


def interleave(parts: Sequence[Sequence[T]]) -> list[T]:
    """The inverse of the strided split of `run_in_threads`."""
    whole: list[Any] = [None] * sum(map(len, parts))
    for number, part in enumerate(parts):
        whole[number :: len(parts)] = part
    return whole


def pad(rows: Sequence[Sequence[tuple[int, float]]], k: int) -> Arrays:
    """Lists of (document, score) as arrays [Q, k]."""
    documents = np.full((len(rows), k), -1, np.int64)
    scores = np.zeros((len(rows), k))
    for number, row in enumerate(rows):
        for rank, (document, score) in enumerate(row[:k]):
            documents[number, rank] = document
            scores[number, rank] = score
    return documents, scores


def folder_bytes(folder: Path) -> int:
    """The size of every file below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
