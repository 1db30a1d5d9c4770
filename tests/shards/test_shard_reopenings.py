"""Histories over a directory, with every kind of strategy: the answers of one engine, whatever comes between.

A history writes, deletes, drops, splits, moves and rebalances, has the process end in the middle of writes and moves,
and opens the directory again. What it must meet is counted, so that no change of the histories lets it slip away.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.hashing import Hashing
from support.sharding import FOLDER, RERANKER, Crash, assert_in_order, assert_same_answers, crash

import fanrank as fr
from fanrank.engine.hybrid.strategy import STRATEGIES
from fanrank.engine.route.policy import POLICIES
from fanrank.engine.storage import failpoints
from fanrank.shards.engine import ShardedEngine
from fanrank.strategies import RRF, Dense, Learned, Lexical

WORDS = ("ant", "bee", "cat", "dog", "Ana met Bo.", "who is it?")
BIG, SPACES = "big", ("big", "team/a", "team/b", "")
# Histories neither split nor drop it, so that it can always be moved as a whole.
ALONE = "team/c"
DAY, NOW = 86_400.0, 9e8
# Far ahead of any clock, so that queries alone decide what has expired.
EXPIRY = 4e9
OPTIONS: dict[str, Any] = {"columns": {"kind": "category", "rank": "number"}}
SHARDS = (1, 2, 3, 7)
EXAMPLES = 60 if os.environ.get("FANRANK_LONG") else 2
"""Histories for each number of shards."""

ids = st.integers(0, 30).map(str)
texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
records = st.builds(
    fr.Record,
    ids,
    texts,
    namespace=st.sampled_from((BIG, BIG, *SPACES)),
    time=st.none() | st.integers(0, 90).map(lambda days: NOW - days * DAY),
    type=st.sampled_from([None, "Fact", "Event"]),
    role=st.sampled_from([None, "user", "assistant"]),
    session=st.sampled_from(["s1", "s2", "s3"]),
    importance=st.sampled_from([None, 0.2, 0.9]),
    weights=st.sampled_from([{"ant": 1.0}, {"ant": 0.5, "bee": 1.5}, {"cat": 1.0}]),
    entities=st.lists(st.sampled_from(["Ana", "Bo"]), max_size=2, unique=True),
    extra=st.builds(dict, kind=st.sampled_from("xy"), rank=st.integers(0, 2)),
    payload=st.builds(dict, n=st.integers(0, 3)),
    expires=st.sampled_from([None, None, None, EXPIRY]),
)
batches = st.lists(records, min_size=1, max_size=12, unique_by=lambda each: (each.namespace, each.id))
writes = st.one_of(
    st.tuples(st.just("upsert"), batches),
    st.tuples(st.just("upsert"), batches),
    st.tuples(st.just("delete"), st.tuples(st.lists(ids, max_size=6), st.sampled_from(SPACES))),
    st.tuples(st.just("drop"), st.sampled_from(SPACES)),
)
points = st.sampled_from(["batch.decided", "batch.sent", "batch.acknowledged"])
moving = st.sampled_from(["move.page", "move.copied", "batch.prepared", "batch.decided", "batch.sent"])
homes = st.tuples(st.sampled_from((BIG, *SPACES)), st.permutations(range(7)), st.integers(1, 4))
changes = st.one_of(
    st.tuples(st.just("place"), st.tuples(homes, st.none())),
    st.tuples(st.just("place"), st.tuples(homes, moving)),
    st.tuples(st.just("rebalance"), st.none()),
    st.tuples(st.just("cut"), st.tuples(points, batches)),
)
rounds = st.tuples(st.lists(writes, min_size=1, max_size=3), changes)
# Every history begins with equal scores, an empty text, and a word that all records of a namespace have.
START = [
    fr.Record(
        f"start{number}",
        f"ant {WORDS[number % 3]}" if number else "",
        namespace,
        time=NOW - number * DAY,
        session=f"s{number // 4}",
        weights={"ant": 1.0},
        extra={"kind": "x", "rank": 1.0},
    )
    for namespace in (BIG, "team/a", ALONE)
    for number in range(9)
]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small segments are merged into few, of which a shard is to have several.
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=4, INLINE_DOCUMENTS=4)


def queries(**how: Any) -> list[fr.Query]:
    common: dict[str, Any] = {"now": NOW, "weights": {"ant": 1.0, "bee": 0.5}, **how}
    return [
        *(fr.Query(text, namespace=BIG, **common) for text in ("ant bee", "who is Ana, cat dog unknown?", "")),
        fr.Query("ant ant dog", namespace="team/a", **common),
        fr.Query("ant bee", namespace="nothing", **common),
    ]


WIDE = [
    fr.Query("ant dog", namespaces=["team/b", BIG, ""], now=NOW, weights={"ant": 1.0}),
    fr.Query("ant bee", under="team", now=NOW, weights={"ant": 1.0}),
    fr.Query("ant", namespace=BIG, now=EXPIRY + 1.0, weights={"ant": 1.0}),
]


SETTINGS: tuple[dict[str, Any], ...] = (
    {"filter": {"kind": "x"}, "statistics": "filtered"},
    {"since": NOW - 30 * DAY, "until": NOW},
    {"windows": 3},
    {"half_life": 5 * DAY},
    {"offset": 2, "min_score": 0.1},
    {"distinct": "kind"},
    {"distinct": "text", "offset": 1},
    {"neighbours": fr.Neighbours(1, 0.5)},
    {"newest": True},
)
MADE = fr.Strategy("all", (Lexical(), Dense(), Learned()), RRF(), depth=4)


class History:
    """One engine, a directory of shards that does the same, and how often each thing was met."""

    def __init__(self, folder: Path, shards: int, met: Counter[str]) -> None:
        self.folder, self.met = folder, met
        self.one = fr.Engine(encoder=Hashing(dimension=8), **OPTIONS)
        self.several = self.opened(shards=shards, split_at=25)

    def opened(self, **how: Any) -> ShardedEngine:
        options = OPTIONS if "shards" in how else {}
        path = self.folder / "memory"
        several = ShardedEngine.open(path, transport="local", encoder=Hashing(dimension=8), **options, **how)
        several.coordinator.page = 5
        return several

    def reopen(self) -> None:
        self.several.close()
        failpoints.disarm()
        self.several = self.opened()
        self.met["reopenings"] += 1

    def do(self, verb: str, what: Any) -> None:
        if verb == "cut":
            self.cut(*what)
        elif verb == "place":
            self.place(*what)
        elif verb == "rebalance":
            self.several.rebalance()
        elif verb == "delete":
            counts = {each.delete(what[0], namespace=what[1], missing_ok=True) for each in (self.one, self.several)}
            assert len(counts) == 1
        else:
            for engine in (self.one, self.several):
                getattr(engine, verb)(what)
        self.met[verb] += 1
        self.several.finish_splits()

    def cut(self, point: str, batch: list[fr.Record]) -> None:
        """A write in whose middle the process ends. It is known to be durable at each of these points."""
        self.one.upsert(batch)
        failpoints.arm(point, action=crash)
        try:
            self.several.upsert(batch)
        except Crash:
            self.met["writes cut off"] += 1
        self.reopen()

    def place(self, home: Any, point: str | None) -> None:
        """A move, in whose middle the process ends where a point is said."""
        namespace, shards, parts = home
        count = self.several.coordinator.placement.shards
        after = tuple(dict.fromkeys(shard % count for shard in shards))[:parts]
        if point is not None:
            failpoints.arm(point, action=crash)
        generation = self.several.coordinator.placement.generation
        try:
            with suppress(fr.errors.ShardError):  # parts of a split namespace cannot go to all shards
                self.several.coordinator.place(namespace, after)
        except Crash:
            self.met["moves cut off"] += 1
            self.reopen()
        failpoints.disarm()
        if self.several.coordinator.placement.generation > generation:
            self.met["splits" if len(self.several.coordinator.placement.homes(namespace)) > 1 else "moves"] += 1

    def check(self) -> None:
        """Answers by BM25, the records and their order are those of one engine."""
        one, several = self.one, self.several
        assert_same_answers(one, several, [*queries(), *WIDE], k=40)
        assert_same_answers(one, several, queries(), k=2, texts=True)
        assert several.namespaces == tuple(sorted(one.namespaces))
        for space in SPACES:
            names = list(one.ids(namespace=space))
            assert list(several.ids(namespace=space)) == names
            assert several.fetch(names, namespace=space) == one.fetch(names, namespace=space)
        assert several.verify() == {"records": len(one), "missing": 0, "extra": 0}
        assert_in_order(several)
        placement = several.coordinator.placement
        states = [link.shard.engine.index.memory.state for link in several.coordinator.links]  # type: ignore[attr-defined]
        self.met["several segments"] += any(len(s.snapshot(BIG).segments) > 1 for s in states)
        self.met["split in all shards"] += len(placement.homes(BIG)) == placement.shards
        self.met["read in parts"] += placement.split != {}

    def check_all(self) -> None:
        """Every strategy and every setting of a query."""
        one, several = self.one, self.several
        for name in [*STRATEGIES, *POLICIES, MADE]:
            if name != "dense-hnsw":
                for k in (3, 200):
                    assert_same_answers(one, several, queries(), k=k, strategy=name)
        for name in ("fused", "recall", "sparse"):
            assert_same_answers(one, several, WIDE, k=9, strategy=name)
        for how in SETTINGS:
            for name in ("bm25", "fused"):
                assert_same_answers(one, several, queries(**how), k=4, strategy=name)
        for name in ("bm25", "fused"):
            how = {"reranker": RERANKER, "rerank_depth": 3, "strategy": name}
            assert_same_answers(one, several, queries(), k=5, **how)
        self.met["all strategies of a split namespace"] += len(several.coordinator.placement.homes(BIG)) > 1

    def run(self, order: Sequence[int], history: Any, last: list[fr.Record], point: str) -> None:
        everywhere = ((BIG, order, len(order)), None)
        self.do("upsert", START)
        self.check()
        self.do("place", everywhere)
        self.check()
        for writing, change in history:
            for verb, what in writing:
                self.do(verb, what)
            self.check()
            self.do(*change)
            self.check()
            self.reopen()
            self.check()
        # A write to several shards that is cut off. Where the history has dropped the namespace, it is split again.
        self.do("upsert", [*START, *last])
        self.do("place", everywhere)
        self.check()
        self.do("cut", ("batch.sent", START))
        self.check()
        # A move whose end is cut off, and the same move once more.
        placement = self.several.coordinator.placement
        following = (placement.homes(ALONE)[0] + 1) % placement.shards
        for each in (point, None):
            self.place((ALONE, (following,), 1), each)
            self.check()
        self.check_all()


@pytest.mark.parametrize("shards", [*SHARDS[:2], *(pytest.param(n, marks=pytest.mark.extended) for n in SHARDS[2:])])
def test_any_history_over_a_directory_gives_the_answers_of_one_engine(shards: int) -> None:
    met: Counter[str] = Counter()

    ends = st.sampled_from(["move.copied", "batch.prepared", "batch.decided", "batch.sent"])

    @given(order=st.permutations(range(7)), history=st.lists(rounds, min_size=1, max_size=3), last=batches, end=ends)
    @settings(max_examples=EXAMPLES)
    def run(order: list[int], history: Any, last: list[fr.Record], end: str) -> None:
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            both = History(Path(folder), shards, met)
            try:
                both.run(order, history, last, end)
            finally:
                both.several.close()
        met["histories"] += 1

    run()
    assert met["reopenings"] >= 2 * met["histories"]
    assert met["several segments"] >= met["histories"]
    if shards > 1:
        assert met["splits"] >= met["histories"]
        assert met["writes cut off"] >= met["histories"]
        assert met["split in all shards"] >= met["histories"]
        assert met["moves cut off"] >= met["histories"]
        assert met["moves"] >= met["histories"]
        assert met["all strategies of a split namespace"] >= 1
