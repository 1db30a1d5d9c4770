"""The corpora, and BM25's parameters. They are declared here and nowhere else."""

from dataclasses import dataclass, field
from typing import Literal

K1, B = 1.2, 0.75


@dataclass(frozen=True)
class Shape:
    """What a synthetic corpus is like: distinct words, tokens a document (mean), terms a query (from, to).

    A query's terms come from one document.
    """

    vocabulary: int = 100_000
    length: int = 60
    terms: tuple[int, int] = (5, 6)


@dataclass(frozen=True)
class Corpus:
    """One corpus with its queries.

    `documents` and `shape` are set for a synthetic corpus. `stop_words` says whether the NLTK English list is taken
    out of documents and queries.
    """

    name: str
    source: Literal["beir", "sgd", "synthetic"]
    queries: int
    documents: int | None = None
    stop_words: bool = False
    seed: int = 1
    # Left out, so that corpora of the usual shape keep the stamp under which they were prepared.
    shape: Shape = field(default=Shape(), repr=False)

    @property
    def stamp(self) -> str:
        """A text that holds everything a prepared corpus depends on."""
        return repr(self) if self.shape == Shape() else f"{self!r} {self.shape!r}"


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("scifact", "beir", queries=300),
        Corpus("synthetic-50k", "synthetic", queries=500, documents=50_000),
        Corpus("synthetic-300k", "synthetic", queries=500, documents=300_000),
        Corpus("sgd", "sgd", queries=1_000, stop_words=True),
        Corpus("synthetic-5k", "synthetic", queries=200, documents=5_000),
        # Records of some three to eight words.
        Corpus(
            "short-100k", "synthetic", 200, documents=100_000, shape=Shape(vocabulary=5_000, length=6, terms=(2, 3))
        ),
        # The number and the mean length of passages are those of NQ.
        Corpus(
            "nq-shaped",
            "synthetic",
            1_000,
            documents=2_681_468,
            shape=Shape(vocabulary=500_000, length=42, terms=(4, 6)),
        ),
    )
}
