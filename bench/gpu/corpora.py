"""Corpora of the GPU benchmarks as snapshots: real ones from their prepared tokens, shaped ones from a seed.

A shaped corpus has the counts of a known collection and a Zipf vocabulary; its postings are made by numpy alone,
without Python objects for documents, and are stored as plain arrays in the cache. Vocabulary ids are token numbers;
record ids and categories, which scoring never reads, are left empty.
"""

import json
import math
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fanrank.engine.index.bm25 import BM25
from fanrank.engine.index.columns import Columns, Ids
from fanrank.engine.index.postings import classes_of
from fanrank.engine.index.segment import Segment
from fanrank.engine.index.snapshot import MAX_SEGMENT_DOCUMENTS, Snapshot

from ..harness.cases import CORPORA as TOKEN_CORPORA
from ..harness.cases import K1, B
from ..harness.corpora import load, prepare
from ..harness.paths import CACHE

Integers = npt.NDArray[np.int64]

FORMAT = 2
# As in bench/harness/corpora.py: the shift that removes the head of stop words, and the spread of document lengths.
SHIFT = 10
SPREAD = 0.5
DOCUMENT_BITS = 32
PARTS = ("terms", "offsets", "documents", "impact_classes", "class_frequencies", "class_lengths", "lengths")


@dataclass(frozen=True)
class Shape:
    """A corpus in numbers. `tokens` is the mean length of a document, `terms` that of a query (from -1 to +1)."""

    name: str
    documents: int
    vocabulary: int
    tokens: int
    queries: int
    terms: int
    segment_documents: int = MAX_SEGMENT_DOCUMENTS
    seed: int = 1


SHAPES = {
    shape.name: shape
    for shape in (
        # About 40 distinct terms a document, 107 million postings.
        Shape("nq-shaped", documents=2_681_468, vocabulary=500_000, tokens=42, queries=3_452, terms=5),
        Shape("fiqa-shaped", documents=57_638, vocabulary=100_000, tokens=66, queries=648, terms=6),
    )
}
CORPORA = ("scifact", "sgd", *SHAPES)

SMOKE = {
    # Two segments, neither a multiple of any tile.
    "nq-shaped": replace(
        SHAPES["nq-shaped"], documents=700, vocabulary=900, tokens=9, queries=12, segment_documents=450
    ),
    "fiqa-shaped": replace(SHAPES["fiqa-shaped"], documents=150, vocabulary=300, tokens=12, queries=6),
}
"""The shapes, so small that the host build and Triton's interpreter answer them in seconds."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A snapshot and its queries: query q holds the vocabulary ids ``terms[offsets[q]:offsets[q + 1]]``, each once."""

    name: str
    snapshot: Snapshot
    terms: Integers  # [T]
    offsets: Integers  # [Q + 1]
    document_frequencies: Integers  # [vocabulary]

    @property
    def queries(self) -> int:
        return len(self.offsets) - 1

    @property
    def postings(self) -> int:
        return sum(segment.postings for segment in self.snapshot.segments)

    def query(self, number: int) -> list[int]:
        return self.terms[self.offsets[number] : self.offsets[number + 1]].tolist()

    def touched(self, start: int, stop: int) -> int:
        """The number of postings that the queries from `start` to `stop` touch, summed over queries."""
        return int(self.document_frequencies[self.terms[self.offsets[start] : self.offsets[stop]]].sum())

    def distinct(self, start: int, stop: int) -> int:
        """The number of postings in their distinct lists."""
        return int(self.document_frequencies[np.unique(self.terms[self.offsets[start] : self.offsets[stop]])].sum())


def problem(name: str, smoke: bool = False) -> Problem:
    """The corpus of this name; `smoke` makes a shaped one tiny. Raises `OSError` if a real one cannot be read."""
    if name in SHAPES:
        return load_shaped(SMOKE[name] if smoke else SHAPES[name])
    tokens = load(prepare(TOKEN_CORPORA[name]))
    lengths = np.diff(tokens.offsets)
    segments = []
    for first in range(0, tokens.documents, MAX_SEGMENT_DOCUMENTS):
        last = min(first + MAX_SEGMENT_DOCUMENTS, tokens.documents)
        own = slice(tokens.offsets[first], tokens.offsets[last])
        segments.append(_segment(tokens.tokens[own], lengths[first:last]))
    return _problem(name, segments, tokens.query_tokens.astype(np.int64), tokens.query_offsets, len(tokens.vocabulary))


def load_shaped(shape: Shape) -> Problem:
    """A shaped corpus, from the cache if it is there."""
    folder = CACHE / "gpu" / f"{shape.name}-{shape.documents}"
    stamp = json.dumps([FORMAT, repr(shape)])
    firsts = range(0, shape.documents, shape.segment_documents)
    if not (folder / "stamp.json").is_file() or (folder / "stamp.json").read_text() != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with ThreadPoolExecutor(min(len(firsts), os.cpu_count() or 1)) as pool:
            list(pool.map(lambda first: _save(folder, first, _make_segment(shape, first)), firsts))
        (folder / "stamp.json").write_text(stamp)
    segments = [
        _bare_segment(*(np.load(folder / f"{first}.{part}.npy", allow_pickle=False) for part in PARTS))
        for first in firsts
    ]
    held = np.zeros(shape.vocabulary, dtype=np.bool_)
    for segment in segments:
        held[segment.terms] = True
    terms, offsets = _queries(shape, held)
    return _problem(shape.name, segments, terms, offsets, shape.vocabulary)


def zipf(postings: int) -> Shape:
    """The shape of a corpus with about this many postings and the documents of ``nq-shaped``."""
    documents = max(1, postings // 40)
    vocabulary = min(SHAPES["nq-shaped"].vocabulary, max(500, documents))
    return replace(
        SHAPES["nq-shaped"], name=f"zipf-{postings:,}", documents=documents, vocabulary=vocabulary, queries=1
    )


def with_queries(of: Problem, queries: int, terms: int) -> Problem:
    """The same corpus with other queries: `count` of them, of `terms` distinct terms each (one more or less)."""
    held = of.document_frequencies > 0
    most = int(held.sum())
    if terms >= most:
        raise ValueError(f"{of.name} has {most} terms, fewer than a query is to hold")
    shape = Shape(of.name, of.snapshot.size, len(held), 1, queries, terms)
    drawn, offsets = _queries(shape, held)
    return replace(of, terms=drawn, offsets=offsets)


def first_queries(problem: Problem, count: int) -> Problem:
    """The problem with only its first `count` queries."""
    count = min(count, problem.queries)
    return replace(problem, terms=problem.terms[: problem.offsets[count]], offsets=problem.offsets[: count + 1])


@dataclass(frozen=True, eq=False)
class Flat:
    """The whole snapshot as one CSR over vocabulary ids and document numbers: the input of the other systems."""

    offsets: Integers  # [vocabulary + 1]
    documents: npt.NDArray[np.int32]  # [postings]
    frequencies: npt.NDArray[np.int32]  # [postings]
    lengths: npt.NDArray[np.int32]  # [documents]


def flat(of: Problem) -> Flat:
    """The segments' lists joined, term by term."""
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(of.document_frequencies)])
    documents, frequencies = (np.empty(of.postings, dtype=np.int32) for _ in range(2))
    free = offsets[:-1].copy()
    for first, segment in zip(of.snapshot.firsts, of.snapshot.segments, strict=True):
        counts = np.diff(segment.offsets)
        target = np.repeat(free[segment.terms] - segment.offsets[:-1], counts) + np.arange(segment.postings)
        documents[target] = segment.documents + np.int32(first)
        frequencies[target] = segment.frequencies()[0]
        free[segment.terms] += counts
    return Flat(
        offsets, documents, frequencies, np.concatenate([segment.lengths[0] for segment in of.snapshot.segments])
    )


def _problem(name: str, segments: Sequence[Segment], terms: Integers, offsets: Integers, vocabulary: int) -> Problem:
    frequencies = np.zeros(vocabulary, dtype=np.int64)
    for segment in segments:
        frequencies[segment.terms] += np.diff(segment.offsets)
    return Problem(name, Snapshot(tuple(segments), BM25("lucene", k1=K1, b=B)), terms, offsets, frequencies)


def _zipf(shape: Shape, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Term numbers from uniform random numbers. Number r has a share of about ``1 / (r + SHIFT + 1.5)``."""
    ratio = (shape.vocabulary + SHIFT + 1) / (SHIFT + 1)
    ranks = (SHIFT + 1) * (np.exp(uniform * math.log(ratio)) - 1)
    return np.minimum(ranks.astype(np.int64), shape.vocabulary - 1)


def _make_segment(shape: Shape, first: int) -> Segment:
    random_numbers = np.random.default_rng([shape.seed, first])
    size = min(shape.segment_documents, shape.documents - first)
    mean = math.log(shape.tokens) - SPREAD**2 / 2
    lengths = np.maximum(1, random_numbers.lognormal(mean, SPREAD, size)).astype(np.int64)
    return _segment(_zipf(shape, random_numbers.random(int(lengths.sum()))), lengths)


def _queries(shape: Shape, held: npt.NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """Terms of queries, drawn like those of documents. They are distinct, and each occurs in some document."""
    random_numbers = np.random.default_rng([shape.seed, shape.documents, shape.queries])
    sizes = random_numbers.integers(shape.terms - 1, shape.terms + 2, shape.queries)
    queries = []
    for size in sizes.tolist():
        drawn: dict[int, None] = {}
        while len(drawn) < size:
            drawn.update(dict.fromkeys(term for term in _zipf(shape, random_numbers.random(16)).tolist() if held[term]))
        queries.append(list(drawn)[:size])
    return np.array([term for query in queries for term in query], dtype=np.int64), np.concatenate(
        [np.zeros(1, dtype=np.int64), np.cumsum(sizes)]
    )


def _segment(tokens: npt.NDArray[np.integer], lengths: Integers) -> Segment:
    """The segment of documents whose tokens are concatenated."""
    keys = tokens.astype(np.int64) << DOCUMENT_BITS
    keys |= np.repeat(np.arange(len(lengths)), lengths)
    keys.sort()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    frequencies = np.diff(starts, append=len(keys))
    keys = keys[starts]
    documents = (keys & ((1 << DOCUMENT_BITS) - 1)).astype(np.int32)
    of_posting = (keys >> DOCUMENT_BITS).astype(np.int32)
    borders = np.flatnonzero(np.diff(of_posting, prepend=-1))
    lengths = lengths.astype(np.int32)
    impact_classes, representatives = classes_of([frequencies, lengths[documents]])
    return _bare_segment(
        of_posting[borders],
        np.append(borders, len(keys)).astype(np.int64),
        documents,
        impact_classes,
        frequencies[representatives].astype(np.int32)[None, :],
        lengths[documents[representatives]][None, :],
        lengths[None, :],
    )


def _bare_segment(*arrays: npt.NDArray[Any]) -> Segment:
    """The segment of the arrays that `PARTS` names; its documents have neither ids nor columns."""
    parts = dict(zip(PARTS, arrays, strict=True))
    return Segment(**parts, ids=Ids.of([]), columns=Columns(parts["lengths"].shape[1], {}, {}))


def _save(folder: Path, first: int, segment: Segment) -> None:
    for part in PARTS:
        np.save(folder / f"{first}.{part}.npy", getattr(segment, part))
