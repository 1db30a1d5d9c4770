"""What a sharded memory tells of itself, beside one engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sharding import split_over_all

import fanrank as fr
from fanrank.engine.engine import Engine
from fanrank.shards.engine import ShardedEngine

SAME = "namespaces", "documents", "postings", "vectors", "weights", "entities", "backend", "opened"


@pytest.mark.parametrize("shards", [1, 3])
def test_the_statistics_of_one_engine_are_there_and_add_up(tmp_path: Path, shards: int) -> None:
    records = [
        fr.Record(f"r{number}", f"ant bee {number}", namespace=name, entities=("Ana",), weights={"ant": 1.5})
        for number in range(9)
        for name in ("", "big", f"tenant {number}")
    ]
    with fr.Engine.open(tmp_path / "one") as one:
        one.add(records)
        expected = one.stats()
    with ShardedEngine.open(tmp_path / "several", shards=shards, transport="local") as several:
        split_over_all(several, "big")
        several.add(records)
        for _ in range(3):
            several.search([fr.Query(word, namespace="big") for word in ("ant", "bee")])
        stats = several.stats()
    assert stats["moving"] == []
    for number, own in enumerate(stats["shards"]):
        assert (own["shard"], own["queries"], own["messages"], own["lag"]) == (number, 6, 3, 0)
        assert 0 < own["p50_ms"] <= own["p99_ms"]
        assert own["bytes"] > 0
    assert expected.keys() <= stats.keys()
    assert {name: stats[name] for name in SAME} == {name: expected[name] for name in SAME}
    assert stats["bytes_per_posting"] == stats["posting_bytes"] / stats["postings"]
    assert (stats["merging"], stats["background_error"]) == (False, None)


def test_what_ails_one_shard_is_told_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = Engine.stats

    def ail(engine: Engine) -> dict[str, object]:
        found = stats(engine)
        return {**found, "background_error": "disk full", "merging": True} if found["documents"] else found

    monkeypatch.setattr(Engine, "stats", ail)
    with ShardedEngine.open(tmp_path, shards=3, transport="local") as several:
        assert several.stats()["background_error"] is None
        several.add([fr.Record("1", "ant")])
        found = several.stats()
    assert (found["merging"], found["background_error"]) == (True, "disk full")
