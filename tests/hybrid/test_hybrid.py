"""Strategies against a plain oracle: lists, candidates and fusion by dictionaries and loops, over random histories."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fuse_oracle
from support.fuse_cases import Document, Evidence, FusionQuery
from support.vector_cases import Letters

import fanrank as fr
from fanrank.engine.hybrid.strategy import NAMED, Dense, Strategy

DIMENSION = 4
WORDS = ("error", "tea", "deploy", "invoice", "river")
DAY = 86_400.0

Rows = npt.NDArray[np.float16]


def engine_of(**options: Any) -> fr.Engine:
    return fr.Engine(encoder=fr.OwnVectors(DIMENSION), analyzer="minimal", **options)


@st.composite
def vectors(draw: st.DrawFn, rows: int) -> list[list[int]]:
    # Few different values, so that equal similarities are common.
    whole = st.lists(st.integers(-2, 2), min_size=DIMENSION, max_size=DIMENSION).filter(any)
    return draw(st.lists(whole, min_size=rows, max_size=rows))


@st.composite
def records(draw: st.DrawFn, name: str) -> fr.Record:
    rows = draw(st.sampled_from([0, 1, 1, 2, 3]))
    return fr.Record(
        name,
        " ".join(draw(st.lists(st.sampled_from(WORDS), max_size=4))),
        session=draw(st.sampled_from(["a", "b"])),
        time=draw(st.one_of(st.none(), st.integers(0, 60).map(lambda day: day * DAY))),
        importance=draw(st.sampled_from([None, 0.5, 1.0])),
        embedding=draw(vectors(rows)) if rows else None,
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[fr.Record]], list[str]]:
    """Batches to add one after another, and ids to delete after the first."""
    count = draw(st.integers(0, 9))
    made = [draw(records(f"r{number}")) for number in range(count)]
    cut = draw(st.integers(0, count))
    first, second = made[:cut], made[cut:]
    deleted = [record.id for record in first if draw(st.booleans()) and draw(st.booleans())]
    return [first, second], deleted


@st.composite
def queries(draw: st.DrawFn) -> fr.Query:
    return fr.Query(
        " ".join(draw(st.lists(st.sampled_from((*WORDS, "unknown")), max_size=3))),
        k=draw(st.one_of(st.none(), st.integers(0, 12))),
        vector=draw(vectors(1))[0],
        now=draw(st.sampled_from([70 * DAY, 30 * DAY])),
        filter=draw(st.sampled_from([None, {"session": "a"}])),
        since=draw(st.sampled_from([None, 20 * DAY])),
        type=draw(st.sampled_from([None, "multi-session", "single-session-user"])),
    )


def live_of(history: tuple[list[list[fr.Record]], list[str]]) -> list[fr.Record]:
    (first, second), deleted = history
    return [record for record in first if record.id not in deleted] + second


def filled(engine: fr.Engine, history: tuple[list[list[fr.Record]], list[str]]) -> fr.Engine:
    (first, second), deleted = history
    engine.add(first)
    engine.delete(deleted)
    engine.add(second)
    return engine


def passes(record: fr.Record, query: fr.Query) -> bool:
    if query.filter is not None and record.session != "a":
        return False
    return query.since is None or (record.time is not None and record.time >= query.since)


def cosine(row: Rows, vector: Rows) -> float:
    return math.fsum(float(a) * float(b) for a, b in zip(row, vector, strict=True))


def similarity(record: fr.Record, vector: Rows, kind: str = "late") -> float | None:
    if record.embedding is None:
        return None
    if kind == "early":
        return cosine(centroid(record), vector)
    cosines = sorted((cosine(row, vector) for row in np.asarray(record.embedding)), reverse=True)
    nearest = cosines[:3] if kind == "top" else cosines[:1]
    return sequential(nearest) / len(nearest)


def centroid(record: fr.Record) -> Rows:
    """The mean of the rows at length 1; of rows that cancel out the first."""
    rows = np.asarray(record.embedding)
    sums = [math.fsum(column) for column in rows.astype(float).T.tolist()]
    length = math.sqrt(sequential([value * value for value in sums]))
    if len(rows) == 1 or length == 0.0:
        return rows[0]
    return np.array([value / length for value in sums]).astype(np.float16)


def softened(vector: Rows, nearest: Sequence[Rows], scores: Sequence[float]) -> Rows:
    """The query halfway to the mean of these vectors, weighed by ``softmax(score / .05)``, and rounded as queries are.

    In float64, from the first hit to the last.
    """
    shares = [math.exp((score - max(scores)) / 0.05) for score in scores]
    query, total = vector.astype(float).tolist(), sequential(shares)
    sums = [sequential([share * float(own[i]) for share, own in zip(shares, nearest, strict=True)]) for i in range(4)]
    moved = [0.5 * mine + 0.5 * (theirs / total) for mine, theirs in zip(query, sums, strict=True)]
    length = math.sqrt(sequential([value * value for value in moved]))
    if length <= 2.0**-24:
        return vector
    found = [value / length for value in moved]
    if found == query:
        return vector
    largest = max(map(abs, found))
    found = [value / largest for value in found]
    length = math.sqrt(sequential([value * value for value in found]))
    return np.array([value / length for value in found]).astype(np.float16)


def ranked(scores: dict[int, float], depth: int) -> list[int]:
    return sorted(scores, key=lambda number: (-scores[number], number))[:depth]


class Plain:
    """One query over the live records, document number by document number."""

    def __init__(self, engine: fr.Engine, live: Sequence[fr.Record], query: fr.Query) -> None:
        self.live, self.query = live, query
        self.number = {record.id: number for number, record in enumerate(live)}
        everything = fr.Query(query.text, k=len(live) + 1, filter=query.filter, since=query.since)
        self.bm25 = {self.number[name]: score for name, score in engine.search([everything])[0]}
        self.vector = np.asarray(query.vector)[0]
        self.allowed = [number for number, record in enumerate(live) if passes(record, query)]

    def similarities(self, vector: Rows, kind: str) -> dict[int, float]:
        found = {number: similarity(self.live[number], vector, kind) for number in self.allowed}
        return {number: score for number, score in found.items() if score is not None}

    def answer(self, strategy: Strategy, k: int) -> list[tuple[str, float]]:
        depth = len(self.live) + 1 if strategy.depth is None else max(strategy.depth, k)
        scores: dict[str, dict[int, float]] = {}
        kind = ""
        for channel in strategy.channels:
            if isinstance(channel, Dense):
                kind = channel.interaction.kind
                scores[channel.name] = self.similarities(self.vector, kind)
            else:
                scores[channel.name] = self.bm25
        lists = {name: ranked(own, depth) for name, own in scores.items()}
        candidates = sorted({number for own in lists.values() for number in own})
        # Within its depth alone: beyond it BM25 counts as 0.
        scores = {
            name: own if name == "dense" else {number: own[number] for number in lists[name]}
            for name, own in scores.items()
        }
        total = self.combine(strategy, candidates, lists, scores)
        if strategy.feedback is not None:
            first = [number for number in ranked(total, len(total)) if number in scores["dense"]][:3]
            if first:
                nearest = [centroid(self.live[number]) for number in first]
                vector = softened(self.vector, nearest, [cosine(own, self.vector) for own in nearest])
                scores["dense"] = self.similarities(vector, kind)
                pool = scores["dense"] if strategy.search_again else lists["dense"]
                lists["dense"] = ranked({number: scores["dense"][number] for number in pool}, depth)
                candidates = sorted({number for own in lists.values() for number in own})
                total = self.combine(strategy, candidates, lists, scores)
        return [(self.live[number].id, total[number]) for number in ranked(total, k)]

    def combine(
        self,
        strategy: Strategy,
        candidates: list[int],
        lists: dict[str, list[int]],
        scores: dict[str, dict[int, float]],
    ) -> dict[int, float]:
        if strategy.fusion is None:
            ((channel, own),) = lists.items()
            return {number: scores[channel][number] for number in own}
        documents = []
        for number in candidates:
            evidence = {"other": Evidence(scored=False, listed=False)}
            for name, own in scores.items():
                # Words score every candidate, vectors those that have one.
                scored = name == "bm25" or number in own
                evidence[name] = Evidence(own.get(number, 0.0), scored, number in lists[name])
            time = self.live[number].time
            documents.append(Document(number, evidence, math.nan if time is None else time))
        asked = FusionQuery(documents, self.query.now or 0.0, self.query.type)
        return {
            number: sequential([*shares.values()])
            for number, shares in zip(candidates, ORACLES[strategy.name](asked), strict=True)
        }


LEANING = ["temporal-reasoning", "knowledge-update", "multi-session"]
ORACLES: dict[str, Callable[[FusionQuery], fuse_oracle.Shares]] = {
    "rrf": fuse_oracle.rrf,
    "score_rrf": fuse_oracle.score_rrf,
    "agent_rrf-per-type": lambda asked: fuse_oracle.agent_rrf(asked, 0.005, 0.0, {"multi-session": 120.0}, LEANING),
    "fused": lambda asked: fuse_oracle.zscore(asked, 0.5),
    "minmax": lambda asked: fuse_oracle.minmax(asked, 0.1, False),
    "softcentroid-fused": lambda asked: fuse_oracle.minmax(asked, 0.1, False),
}


def sequential(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


COMPARED = (
    *("dense", "dense-early", "dense-top3"),
    *("rrf", "score_rrf", "agent_rrf-per-type", "fused", "minmax", "softcentroid", "softcentroid-fused"),
)
"""One for each interaction, fusion and place of feedback; the machine of memories has words and learned weights."""


@pytest.mark.parametrize("name", COMPARED)
@settings(max_examples=5)
@given(
    history=histories(),
    batch=st.lists(queries(), max_size=4),
    depth=st.sampled_from([None, 1, 3, 100]),
    again=st.booleans(),
)
def test_strategies_are_the_plain_ones(
    name: str, history: Any, batch: list[fr.Query], depth: int | None, again: bool
) -> None:
    live = live_of(history)
    named = NAMED[name]
    strategy = replace(named, depth=depth, search_again=again and named.feedback is not None)
    engine = filled(engine_of(backend="numpy"), history)
    hits = engine.search(batch, 5, strategy=strategy)
    for position, query in enumerate(batch):
        k = 5 if query.k is None else query.k
        wanted = Plain(engine, live, query).answer(strategy, k)
        assert hits[position] == wanted, (query, strategy)
        assert (hits.documents[position, len(wanted) :] == -1).all()
        assert (hits.scores[position, len(wanted) :] == -np.inf).all()


@pytest.mark.parametrize("name", ["softcentroid", "softcentroid-fused"])
def test_a_second_search_finds_what_the_first_pool_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC E012: words are searched once and vectors twice, each time all queries together."""
    draw = np.random.default_rng(7)
    engine, rows = engine_of(backend="numpy"), draw.normal(size=(60, DIMENSION))
    live = [fr.Record(f"r{n}", " ".join(draw.choice(WORDS, 2)), embedding=row) for n, row in enumerate(rows)]
    engine.add(live)
    asked = [fr.Query("tea river", vector=row) for row in draw.normal(size=(12, DIMENSION))]
    once = replace(NAMED[name], depth=4)
    again, verbs = replace(once, search_again=True), engine.backend.dense()
    expected = [Plain(engine, live, query).answer(again, 3) for query in asked]
    best, serve = Mock(wraps=verbs.best), Mock(wraps=engine.backend.serve)
    monkeypatch.setattr(verbs, "best", best)
    monkeypatch.setattr(type(engine.backend), "serve", lambda _, *given, **how: serve(*given, **how))
    assert list(engine.search(asked, 3, strategy=again)) == expected
    assert [len(call.args[0]) for call in best.call_args_list] == [12, 12]
    assert [call.args[1] for call in serve.call_args_list] == [12] * ("fused" in name)
    assert list(engine.search(asked, 3, strategy=once)) != expected


def test_a_query_without_text_or_vector_has_no_dense_evidence() -> None:
    engine = engine_of()
    engine.add([fr.Record("a", "tea", embedding=[1, 0, 0, 0])])
    hits = engine.search([fr.Query(terms=["tea"]), fr.Query("  ")], strategy="rrf")
    assert [len(own) for own in hits] == [1, 0]
    for strategy in ("softcentroid", "softcentroid-fused"):
        assert len(engine.search([fr.Query(terms=["tea"])], strategy=strategy)[0]) == ("fused" in strategy)


def test_equal_texts_are_encoded_once() -> None:
    encoder = Letters()
    engine = fr.Engine(encoder=encoder)
    engine.add([fr.Record("r", "river error"), fr.Record("t", "tea")])
    encoder.asked.clear()
    asked = [
        "tea",
        fr.Query("tea", k=1),
        fr.Query("tea", filter={"session": "x"}),
        "river",
        fr.Query("x", vector=[1, 0, 0, 0, 0]),
    ]
    hits = engine.search(asked, strategy="dense", timing=True)
    assert encoder.asked == [["tea", "river"]]
    assert [own[0][0] if own else None for own in hits] == ["t", "t", None, "r", "t"]
    assert {"encode", "dense", "fuse"} <= set(hits.timing)


def test_a_reranker_decides_the_order_of_the_first(tmp_path: Path) -> None:
    def shortest(pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [-float(len(text)) for _, text in pairs]

    checked = fr.strategies.CheckedReranker(shortest, unchecked=True)
    with fr.Engine.open(tmp_path / "m", encoder=Letters()) as engine:
        engine.add(
            [
                fr.Record("long", "tea tea tea tea"),
                fr.Record("short", "tea"),
                fr.Record("many", "tea, and much that is beside it", passages=["tea", "a whole long passage of rrrr"]),
            ]
        )
        before = engine.search(["tea"], strategy="rrf")
        after = engine.search(["tea"], strategy="rrf", reranker=checked)
        assert sorted(before[0]) == sorted(after[0])
        # The one of two passages that is nearest to the query has three letters.
        assert [name for name, _ in after[0]][2] == "long"
        assert after.reranked[0, :3].tolist() == [-3.0, -3.0, -15.0]
        assert np.isnan(after.reranked[0, 3:]).all()
        only_first = engine.search(["tea"], strategy="bm25", reranker=checked, rerank_depth=1)
        assert list(only_first[0]) == list(engine.search(["tea"])[0])
    in_memory = fr.Engine(keep_texts=False)
    in_memory.add([fr.Record("a", "tea")])
    with pytest.raises(fr.errors.QueryError, match="texts"):
        in_memory.search(["tea"], reranker=checked)


@pytest.mark.parametrize(
    ("query", "strategy", "error", "words"),
    [
        (fr.Query("tea", vector=[1, 0]), "dense", fr.errors.QueryError, "2 dimensions"),
        (fr.Query("tea", vector=[1, 0, 0, 0], model="other"), "rrf", fr.errors.ModelMismatchError, "other"),
        (fr.Query("tea"), "dense", fr.errors.EncoderError, "vector"),
        (fr.Query("tea", vector=[1, 0, 0, 0]), "agent_rrf", fr.errors.QueryError, "now"),
    ],
)
def test_bad_queries_are_named(query: fr.Query, strategy: str, error: type[Exception], words: str) -> None:
    engine = engine_of()
    engine.add([fr.Record("a", "tea", embedding=[1, 0, 0, 0], time=0.0)])
    with pytest.raises(error, match=words):
        engine.search([query], strategy=strategy)
    assert engine.search([fr.Query("tea", vector=[1, 0, 0, 0], model="own")], strategy="rrf")[0]


class Terms:
    """Letters as learned terms."""

    name, version = "letters", "1"

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> list[dict[str, float]]:
        return [{letter: 0.5 * text.count(letter) for letter in set(text) & set("aeirt")} for text in texts]

    def queries(self, texts: Sequence[str]) -> list[dict[str, float]]:
        return [dict.fromkeys(set(text) & set("aeirt"), 1.0) for text in texts]


def test_an_encoder_of_terms_serves_the_sparse_channel(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m", term_encoder=Terms()) as engine:
        engine.add([fr.Record("a", "tea"), fr.Record("b", "river river"), fr.Record("c", "x", weights={"own": 2.0})])
        asked = ["tree", fr.Query("x", weights={"own": 1.5}), fr.Query(terms=["tea"])]
        wanted = [[("b", 3.0), ("a", 1.0)], [("c", 3.0)], []]
        assert list(engine.search(asked, strategy="sparse")) == wanted
        engine.update([fr.Record("a", "tttt")])
        assert engine.search(["t"], strategy="sparse")[0] == [("a", 2.0)]
    other = Terms()
    other.version = "2"
    with pytest.raises(fr.errors.ModelMismatchError, match="version '2'"):
        fr.Engine.open(tmp_path / "m", term_encoder=other)
    with fr.Engine.open(tmp_path / "m") as engine:
        assert engine.searcher.models.term_pin == {"name": "letters", "version": "1"}
        assert engine.search([fr.Query("x", weights={"own": 1.0})], strategy="sparse")[0] == [("c", 2.0)]
        with pytest.raises(fr.errors.QueryError, match="term_encoder"):
            engine.search(["tea"], strategy="sparse")
        engine.save(tmp_path / "saved")
    loaded = fr.Engine.load(tmp_path / "saved", term_encoder=Terms())
    assert loaded.search(["river"], strategy="sparse")[0] == [("b", 4.0)]
    strategy = fr.Strategy("three", (fr.strategies.Lexical(), fr.strategies.Learned()), fr.strategies.RRF())
    assert [name for name, _ in loaded.search(["tttt"], strategy=strategy)[0]] == ["a"]
    filtered = fr.Query("x", weights={"own": 1.0}, filter={"session": "none"}, statistics="filtered")
    assert loaded.search([filtered], strategy="sparse")[0] == []
