"""Shards as actors of Ray: the same answers from processes of their own, also after one of them was killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hashing import Hashing
from support.sharding import assert_same_answers, split_over_all

import fanrank as fr
from fanrank.shards import opening
from fanrank.shards.engine import ShardedEngine

ray = pytest.importorskip("ray", reason="shards of their own processes need Ray")

pytestmark = pytest.mark.xdist_group("ray")

WORDS = ("ant", "bee", "cat", "dog", "elk")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One Ray for all tests of this file: starting one takes seconds."""
    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def records(first: int, count: int) -> list[fr.Record]:
    return [
        fr.Record(
            f"r{n}", " ".join(WORDS[(n * step) % 5] for step in range(1, 2 + n % 4)), ("big", "small")[n % 7 == 0]
        )
        for n in range(first, first + count)
    ]


def queries() -> list[fr.Query]:
    return [
        *(fr.Query(" ".join(WORDS[n : n + 2]), namespace=space) for n in range(5) for space in ("big", "small")),
        fr.Query("ant elk", namespaces=["small", "big"]),
    ]


def kill(engine: ShardedEngine, shard: int) -> None:
    """Kill the process of a shard; Ray starts it anew."""
    link: Any = engine.coordinator.links[shard]
    ray.kill(link.actor, no_restart=False)


def test_the_verbs_over_actors(cluster: None, tmp_path: Path) -> None:
    one = fr.Engine(encoder=Hashing())
    with ShardedEngine.open(tmp_path / "memory", shards=2, encoder=Hashing()) as several:
        split_over_all(several, "big")
        for engine in (one, several):
            assert engine.add(records(0, 60)) == 60
            assert engine.update(records(10, 5)) == 5
            assert engine.delete(["r1", "r2"], namespace="big") == 2
            assert engine.patch("r3", namespace="big", importance=0.5) == 1
        for strategy in ("bm25", "dense", "fused", "rm3", "first-sentence"):
            assert_same_answers(one, several, queries(), k=7, strategy=strategy, texts=True)
        assert several.fetch(["r3", "r1"], namespace="big") == one.fetch(["r3", "r1"], namespace="big")
        for engine in (one, several):
            with pytest.raises(fr.errors.DuplicateIdError, match="r3"):
                engine.add(records(3, 1))
            with pytest.raises(fr.errors.UnknownIdError, match="r1"):
                engine.delete(["r1"], namespace="big")
        hit = several.search(queries(), k=1)
        assert hit.explain(0, hit.ids[0, 0]).score == hit.scores[0, 0]
        assert several.verify() == {"records": 58, "missing": 0, "extra": 0}
    with ShardedEngine.open(tmp_path / "memory", encoder=Hashing()) as several:
        assert_same_answers(one, several, queries(), k=7, strategy="fused")


def test_agents_share_launches(cluster: None, tmp_path: Path) -> None:
    one = fr.Engine.from_records(records(0, 60))
    with ShardedEngine.open(tmp_path / "memory", shards=2) as several:
        split_over_all(several, "big")
        several.add(records(0, 60))

        async def ask() -> list[fr.Hits]:
            return await asyncio.gather(*(several.asearch([query], 5) for query in queries() * 10))

        for query, hits in zip(queries() * 10, asyncio.run(ask()), strict=True):
            assert list(hits[0]) == list(one.search([query], 5)[0])
        stats = several.coalescer.stats()
        assert stats["queries"] == 110
        assert stats["launches"] < 30


def test_a_shard_that_was_killed_comes_back_with_all_it_acknowledged(cluster: None, tmp_path: Path) -> None:
    one = fr.Engine()
    with ShardedEngine.open(tmp_path / "memory", shards=2, deadline=120.0) as several:
        split_over_all(several, "big")
        for engine in (one, several):
            engine.add(records(0, 40))
        for shard in (0, 1):
            kill(several, shard)
            assert_same_answers(one, several, queries(), k=7)
            kill(several, shard)
            for engine in (one, several):
                # What is refused by a shard that has ended is written once it is back.
                engine.upsert(records(40 + shard, 10))
            assert_same_answers(one, several, queries(), k=7)
        assert several.verify()["missing"] == 0


def test_missing_shards_are_named_and_never_silent(cluster: None, tmp_path: Path) -> None:
    with ShardedEngine.open(tmp_path / "memory", shards=2, deadline=60.0) as several:
        split_over_all(several, "big")
        several.add(records(0, 40))
        whole = several.search(queries(), k=40)
        assert whole.missing_shards == ()
        link: Any = several.coordinator.links[1]
        ray.kill(link.actor, no_restart=True)
        with pytest.raises(fr.errors.ShardError, match="shard 1"):
            several.search(queries(), k=40)
        part = several.search(queries(), k=40, partial="allow")
        assert part.missing_shards == (1,)
        for row, names in zip(part, whole.ids.tolist(), strict=True):
            assert {hit.id for hit in row} <= {*names}
        with pytest.raises(fr.errors.ShardError, match="shard 1"):
            several.add(records(100, 20))


def test_a_deadline_that_passes(cluster: None, tmp_path: Path) -> None:
    with ShardedEngine.open(tmp_path / "memory", shards=2) as several:
        several.coordinator.deadline = 1e-9
        with pytest.raises(fr.errors.DeadlineError, match="deadline"):
            several.search(["ant"])
        several.coordinator.deadline = 60.0
        assert len(several.search(["ant"])[0]) == 0


def test_other_versions_and_lost_directories_are_refused(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(opening, "own_version", lambda: "9.9")
        with pytest.raises(fr.errors.ShardVersionError, match=r"this process 9\.9"):
            ShardedEngine.open(tmp_path / "memory", shards=2)
    ShardedEngine.open(tmp_path / "memory", shards=2).close()
    (tmp_path / "memory" / "shard-0001").rename(tmp_path / "away")
    with pytest.raises(fr.errors.StorageError, match="shard 1 is lost"):
        ShardedEngine.open(tmp_path / "memory")
