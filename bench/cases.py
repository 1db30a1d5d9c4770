"""What is measured: the corpora, and the grid of k and threads. Declared here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["kernel", "end_to_end"]

K1, B = 1.2, 0.75
KS = (10, 100)
THREADS = (1, 2)


@dataclass(frozen=True)
class Corpus:
    """One corpus with its queries.

    `documents` is the size of a synthetic corpus and None for a real one; `stop_words` says whether the NLTK
    English list is taken out of documents and queries.
    """

    name: str
    source: Literal["beir", "sgd", "synthetic"]
    queries: int
    documents: int | None = None
    stop_words: bool = False
    seed: int = 1


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("scifact", "beir", queries=300),
        Corpus("synthetic-50k", "synthetic", queries=500, documents=50_000),
        Corpus("synthetic-300k", "synthetic", queries=500, documents=300_000),
        Corpus("sgd", "sgd", queries=1_000, stop_words=True),
        Corpus("synthetic-5k", "synthetic", queries=200, documents=5_000),
    )
}

FULL = ("scifact", "synthetic-50k", "synthetic-300k", "sgd")
QUICK = ("scifact", "synthetic-5k")


@dataclass(frozen=True)
class Cell:
    """One way to ask: how many hits, how many threads, and whether the query's analysis is part of the clock."""

    k: int
    threads: int
    phase: Phase


def grid(ks: tuple[int, ...], threads: tuple[int, ...], phases: tuple[Phase, ...]) -> list[Cell]:
    """Every combination, kernel first."""
    return [Cell(k, count, phase) for phase in phases for k in ks for count in threads]
