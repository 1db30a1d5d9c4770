"""Compares every path of the engine with the oracle over given records: ids, scores and order must be equal."""

from __future__ import annotations

import hashlib
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ..backends import choose as backends
from ..encoders.encoder import OwnVectors
from ..engine import Engine
from ..errors import ParameterError, QueryError
from ..hybrid.strategy import DEPTH
from ..index.bm25 import BM25, SCALE
from ..plan.device_options import FAMILY, DeviceOptions
from ..plan.options import EXECUTIONS
from ..records.hits import Hits
from ..records.neighbours import Neighbours
from ..records.query import Query
from ..records.record import Record
from ..text.analyzers import Analyzer
from ..vectors.vectors import unit_rows
from .oracle import Oracle, VectorOracle, WeightOracle, borrow, reciprocal_ranks

# Queries of the path that asks one at a time, and pieces of the path that grows. These are enough to see a difference.
ONE_BY_ONE = 50
PIECES = 7

STRATEGIES = ("dense", "dense-int8", "sparse", "rrf")
# Queries for each of these. Over SciFact the oracle's vectors take 80 ms for a query, its BM25 34 ms.
STRATEGY_QUERIES = 50
DIMENSION = 32
# What records borrow by the strategy BORROWED, which is BM25 of queries with neighbours.
NEIGHBOURS = Neighbours(2, [0.375, 0.125])
BORROWED = "neighbours"
# Where no record has a session, each belongs to one of so many, in turns.
SESSIONS = 7
# One record in three has three passages with a vector each; the others have one.
PASSAGES = 3

Ranking = list[tuple[str, int]]
Scored = list[tuple[str, float]]


@dataclass(frozen=True)
class PathResult:
    """How many queries a path answered, and for how many its answer differs from the oracle's."""

    name: str
    queries: int
    differences: int


def oracle_answers(
    records: Sequence[Record],
    queries: Sequence[Query],
    k: int,
    analyzer: Analyzer,
    bm25: BM25,
    *,
    progress: bool = False,
) -> list[Ranking]:
    """The oracle's hits for each query as (id, quanta); `records` are those that have not expired.

    A query with a filter raises `QueryError`.
    """
    return _WordOracles(records, queries, analyzer, bm25).search(queries, k, progress)


class _WordOracles:
    """The oracles of the namespaces that queries ask for, and their records."""

    def __init__(self, records: Sequence[Record], queries: Sequence[Query], analyzer: Analyzer, bm25: BM25) -> None:
        if any(query.filter is not None for query in queries):
            raise QueryError("the check does not take queries with filters")
        names, self.terms_of = list(bm25.fields), analyzer
        self.members: dict[str, list[Record]] = {query.namespace: [] for query in queries}
        for record in records:
            if record.namespace in self.members:
                self.members[record.namespace].append(record)
        self.oracles = {
            namespace: Oracle(
                [
                    [self.terms_of(r.text if name == "text" else r.fields.get(name, "")) for name in names]
                    for r in members
                ],
                method=bm25.method,
                k1=bm25.k1,
                b=bm25.b,
                delta=bm25.delta or 0.0,
                query_tf=bm25.query_tf,
                weights=list(bm25.fields.values()),
            )
            for namespace, members in self.members.items()
        }

    def search(self, queries: Sequence[Query], k: int, progress: bool) -> list[Ranking]:
        answers: list[Ranking] = []
        for query in tqdm(queries, "oracle", unit=" queries", disable=not (progress and sys.stderr.isatty())):
            members = self.members[query.namespace]
            hits = self.oracles[query.namespace].search(self._terms(query), k if query.k is None else query.k)
            answers.append([(members[document].id, quanta) for document, quanta in hits])
        return answers

    def borrow(self, queries: Sequence[Query], k: int, progress: bool) -> list[Scored]:
        """The hits as (id, score), where records borrow as `NEIGHBOURS` says."""
        answers: list[Scored] = []
        shown = tqdm(queries, "oracle, neighbours", unit=" queries", disable=not (progress and sys.stderr.isatty()))
        for query in shown:
            members, plain = self.members[query.namespace], self.oracles[query.namespace]
            terms, limit = self._terms(query), k if query.k is None else query.k
            scores = [plain.score(terms, document) for document in range(len(members))]
            sums = borrow(scores, [record.session for record in members], NEIGHBOURS.steps)
            passing = [(document, total) for document, total in enumerate(sums) if total is not None]
            passing.sort(key=lambda pair: (-pair[1], pair[0]))
            answers.append([(members[document].id, total / (64.0 * SCALE)) for document, total in passing[:limit]])
        return answers

    def _terms(self, query: Query) -> list[str]:
        return list(query.terms) if query.terms is not None else self.terms_of(query.text)


def lasting(records: Iterable[Record]) -> list[Record]:
    """The records that have not expired, without their times of expiry: the check asks at one moment."""
    clock = time.time()
    return [
        record if record.expires is None else replace(record, expires=None)
        for record in records
        if not record.expired(clock)
    ]


def _with_sessions(records: list[Record]) -> list[Record]:
    if any(record.session is not None for record in records):
        return records
    return [replace(record, session=f"s{number % SESSIONS}") for number, record in enumerate(records)]


def engine_answers(hits: Hits) -> list[Ranking]:
    """A batch's hits as (id, quanta), to be compared with the oracle's."""
    return [
        list(
            zip(
                hits.ids[row, :count].tolist(),
                np.rint(hits.scores[row, :count] * SCALE).astype(np.int64).tolist(),
                strict=True,
            )
        )
        for row, count in enumerate(hits.counts.tolist())
    ]


class WordEvidence:
    """Makes vectors and learned weights for any text without a model. The check does not need them to mean anything.

    A word's vector has the signs of 32 bits of its hash. A text's vector is the sum over its words, so similar texts
    are near and equal texts tie. The weight of a word is an arbitrary number that grows with its count in the text. A
    text without a word has neither vector nor weights.
    """

    def __init__(self) -> None:
        self._bits: dict[str, bytes] = {}

    def records(self, records: Sequence[Record]) -> list[Record]:
        """The records with these vectors and weights in place of their own."""
        words = [self._hash_words(record.text) for record in records]
        passages = [_cut(hashes, PASSAGES if n % PASSAGES == 0 else 1) for n, hashes in enumerate(words)]
        rows = iter(self._rows([passage for parts in passages for passage in parts]))
        changed = []
        for record, hashes, parts in zip(records, words, passages, strict=True):
            bare = replace(record, passages=None, embedding=None, weights=self._weights(hashes))
            changed.append(bare.with_rows(np.stack([next(rows) for _ in parts])) if parts else bare)
        return changed

    def query(self, query: Query) -> Query:
        """The query with the vector and weights of its text, or of its terms if it has no text."""
        words = self._hash_words(query.text) or self._hash_words(" ".join(query.terms or ()))
        vector = self._rows([words])[0] if words else None
        return replace(query, vector=vector, model=None, weights=self._weights(words))

    def _hash_words(self, text: str) -> list[bytes]:
        bits = self._bits
        for word in (words := text.lower().split()):
            if word not in bits:
                bits[word] = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=DIMENSION // 8).digest()
        return [bits[word] for word in words]

    @staticmethod
    def _rows(texts: Sequence[list[bytes]]) -> npt.NDArray[np.float16]:
        """[texts, DIMENSION] vectors of length 1. An even number of words gets one more, so no sum of signs is 0."""
        sums = np.empty((len(texts), DIMENSION))
        for row, words in enumerate(texts):
            odd = b"".join(words if len(words) % 2 else [*words, bytes(DIMENSION // 8)])
            bits = np.unpackbits(np.frombuffer(odd, dtype=np.uint8)).reshape(-1, DIMENSION)
            sums[row] = 2.0 * bits.sum(axis=0) - len(bits)
        return unit_rows(sums) if len(sums) else sums.astype(np.float16)

    @staticmethod
    def _weights(words: list[bytes]) -> dict[str, float]:
        return {word.hex(): math.log1p(times) * (1.0 + word[0] / 256.0) for word, times in Counter(words).items()}


def _cut(words: list[bytes], pieces: int) -> list[list[bytes]]:
    """Split the words into at most `pieces` pieces, none of them empty."""
    size = max(1, -(-len(words) // pieces))
    return [words[start : start + size] for start in range(0, len(words), size)]


def strategy_answers(
    records: Sequence[Record], queries: Sequence[Query], k: int, lexical: Sequence[Ranking], *, progress: bool = False
) -> dict[str, list[Scored]]:
    """The oracle's hits for each query by each of `STRATEGIES`, as (id, score).

    Records and queries must have vectors and weights. `lexical` holds the BM25 hits of each query, `DEPTH` or more.
    """
    by_namespace: dict[str, list[Record]] = {query.namespace: [] for query in queries}
    for record in records:
        if record.namespace in by_namespace:
            by_namespace[record.namespace].append(record)
    oracles = {}
    for namespace, members in by_namespace.items():
        rows = [[] if record.embedding is None else record.embedding.tolist() for record in members]
        numbers = {record.id: number for number, record in enumerate(members)}
        weights = WeightOracle([record.weights or {} for record in members])
        oracles[namespace] = members, numbers, VectorOracle(rows), VectorOracle(rows, int8=True), weights
    answers: dict[str, list[Scored]] = {name: [] for name in STRATEGIES}
    shown = tqdm(queries, "oracle, strategies", unit=" queries", disable=not (progress and sys.stderr.isatty()))
    for query, words in zip(shown, lexical, strict=True):
        members, numbers, exact, codes, weights = oracles[query.namespace]
        limit = k if query.k is None else query.k
        depth = max(DEPTH, limit)
        vector = None if query.vector is None else query.vector[0].tolist()
        near = exact.search(vector, depth)
        lists = [[numbers[name] for name, _ in words[:depth]], [document for document, _ in near]]
        for name, hits in (
            ("dense", near[:limit]),
            ("dense-int8", codes.search(vector, limit)),
            ("sparse", weights.search(query.weights or {}, limit)),
            ("rrf", reciprocal_ranks(lists, limit)),
        ):
            answers[name].append([(members[document].id, score) for document, score in hits])
    return answers


def check(
    records: Sequence[Record],
    queries: Sequence[Query],
    *,
    corpus: str,
    k: int = 100,
    backend: str | None = None,
    device: DeviceOptions = FAMILY,
    progress: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Run every path of every usable backend (or of `backend`) and compare each with the oracle.

    `device` holds options of `backend`; `options` are the engine's, without encoders. Vectors and learned weights come
    from `WordEvidence`, so any corpus has some, and a corpus without sessions gets `SESSIONS`. BM25 answers all
    queries. Each of `STRATEGIES` answers the first `STRATEGY_QUERIES`, and so does BM25 where records borrow from their
    `NEIGHBOURS`. Returns ``{"corpus", "queries", "roads": [{"name", "queries", "differences"}], "differences"}``, with
    an entry of ``roads`` for each path. A difference is a query whose ids, scores or order are not the oracle's. Raises
    `ParameterError` for options of a device without a `backend`, or that it does not have.
    """
    if device.given and backend is None:
        raise ParameterError(f"{device.given[0]} is an option of one backend; name the backend")
    if not queries:
        raise QueryError(f"{corpus}: no queries to check with")
    names = [s.name for s in backends.statuses() if s.usable and not s.by_name] if backend is None else [backend]
    evidence = WordEvidence()
    records, queries = evidence.records(_with_sessions(lasting(records))), [evidence.query(query) for query in queries]
    results: list[PathResult] = []
    expected: dict[str, Sequence[object]] | None = None
    options = {**options, "encoder": OwnVectors(DIMENSION, "words of the check")}
    for name in names:
        engine = _serve(Engine.from_records(records, backend=name, progress=progress, **options), name, device)
        if expected is None:
            expected = _expect_answers(engine, records, queries, k, progress)
        for path in _list_paths(engine, records, name, device, options):
            selected = queries[: path.most]
            answers = path.ask(selected, k)
            wrong = sum(a != b for a, b in zip(answers, expected[path.strategy][: len(selected)], strict=True))
            results.append(PathResult(f"{name}: {path.name}", len(selected), wrong))
    return {
        "corpus": corpus,
        "queries": len(queries),
        "roads": [vars(result) for result in results],
        "differences": sum(result.differences for result in results),
    }


def _expect_answers(
    engine: Engine, records: Sequence[Record], queries: Sequence[Query], k: int, progress: bool
) -> dict[str, Sequence[object]]:
    """The oracle's answers by strategy. BM25 is searched once, as deep as a fusion's lists."""
    limits = [k if query.k is None else query.k for query in queries]
    deep = [replace(query, k=max(DEPTH, limit)) for query, limit in zip(queries, limits, strict=True)]
    words = _WordOracles(records, queries, engine.analyzer, engine.bm25)
    lexical = words.search(deep, k, progress)
    first = queries[:STRATEGY_QUERIES]
    return {
        "bm25": [answer[:limit] for answer, limit in zip(lexical, limits, strict=True)],
        BORROWED: words.borrow(first, k, progress),
        **strategy_answers(records, first, k, lexical[: len(first)], progress=progress),
    }


Ask = Callable[[Sequence[Query], int], Sequence[object]]


@dataclass(frozen=True)
class _Path:
    name: str
    ask: Ask
    strategy: str = "bm25"
    most: int | None = None
    """How many queries the path answers; None: all."""


def _serve(engine: Engine, backend: str, device: DeviceOptions) -> Engine:
    """The engine, served by the backend with these options."""
    if device.given:
        engine.backend = backends.choose(backend, options=device)
    return engine


def _list_paths(
    engine: Engine, records: Sequence[Record], backend: str, device: DeviceOptions, options: dict[str, Any]
) -> Iterator[_Path]:
    def batch(searched: Engine, **keywords: Any) -> Ask:
        return lambda queries, k: engine_answers(searched.search(queries, k, **keywords))

    def scored(searched: Engine, strategy: str) -> Ask:
        return lambda queries, k: list(searched.search(queries, k, strategy=strategy))

    def borrowed(searched: Engine, **keywords: Any) -> Ask:
        def ask(queries: Sequence[Query], k: int) -> Sequence[object]:
            return list(searched.search([replace(query, neighbours=NEIGHBOURS) for query in queries], k, **keywords))

        return ask

    def one_by_one(ask: Ask) -> Ask:
        return lambda queries, k: [answer for query in queries for answer in ask([query], k)]

    for execution in EXECUTIONS:
        yield _Path(f"batch, {execution}", batch(engine, execution=execution))
    yield _Path("batch, 2 threads", batch(engine, threads=2))
    yield _Path("one by one", one_by_one(batch(engine)), most=ONE_BY_ONE)
    yield _Path(
        "terms reversed", lambda queries, k: batch(engine)([_reverse_terms(engine, query) for query in queries], k)
    )
    grown = _serve(Engine(backend=backend, **options), backend, device)
    piece = max(1, len(records) // PIECES)
    for start in range(0, len(records), piece):
        grown.add(records[start : start + piece])
    pieces = f"grown in {len(range(0, len(records), piece))} pieces"
    yield _Path(pieces, batch(grown))
    with tempfile.TemporaryDirectory() as folder:
        engine.save(Path(folder) / "index")
        loaded = _serve(Engine.load(Path(folder) / "index", backend=backend), backend, device)
        yield _Path("saved and loaded", batch(loaded))
        for execution in EXECUTIONS:
            name = f"{BORROWED}, batch, {execution}"
            yield _Path(name, borrowed(engine, execution=execution), BORROWED, STRATEGY_QUERIES)
        yield _Path(f"{BORROWED}, one by one", one_by_one(borrowed(engine)), BORROWED, STRATEGY_QUERIES)
        yield _Path(f"{BORROWED}, {pieces}", borrowed(grown), BORROWED, STRATEGY_QUERIES)
        yield _Path(f"{BORROWED}, saved and loaded", borrowed(loaded), BORROWED, STRATEGY_QUERIES)
        for name in STRATEGIES:
            yield _Path(f"{name}, batch", scored(engine, name), name, STRATEGY_QUERIES)
            yield _Path(f"{name}, one by one", one_by_one(scored(engine, name)), name, STRATEGY_QUERIES)
            yield _Path(f"{name}, {pieces}", scored(grown, name), name, STRATEGY_QUERIES)
            yield _Path(f"{name}, saved and loaded", scored(loaded, name), name, STRATEGY_QUERIES)


def _reverse_terms(engine: Engine, query: Query) -> Query:
    terms = engine.analyzer(query.text) if query.terms is None else list(query.terms)
    return replace(query, terms=tuple(terms[::-1]))
