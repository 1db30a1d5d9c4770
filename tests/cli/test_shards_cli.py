"""`fanrank shards`: what the shards hold, more of them, and even ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import fails, run, run_json

import fanrank as fr


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    with fr.ShardedEngine.open(path, shards=2, transport="local") as engine:
        engine.add([fr.Record(str(number), "tea time", f"tenant{number % 40}") for number in range(80)])
    return path


def answers(path: Path) -> list[list[tuple[str, float]]]:
    with fr.ShardedEngine.open(path, transport="local") as engine:
        hits = engine.search([fr.Query("tea", namespace=f"tenant{number}") for number in range(40)])
        return [list(map(tuple, row)) for row in hits]


def test_shards_are_shown_added_and_evened_out(memory: Path) -> None:
    before = answers(memory)
    found = run_json("shards", memory)
    assert (found["shards"], found["records"], found["moves"], found["split"]) == (2, 80, [], {})
    assert sum(each["namespaces"] for each in found["by_shard"]) == 40
    added = run_json("shards", memory, "--add", 2)
    assert [each["records"] for each in added["by_shard"]][2:] == [0, 0]
    assert answers(memory) == before
    moved = run_json("shards", memory, "--rebalance")
    assert moved["moves"]
    assert all(each["records"] >= 10 for each in moved["by_shard"])
    assert answers(memory) == before
    assert run_json("shards", memory, "--rebalance", "--status")["moves"] == []
    text = run("shards", memory, "--status").stdout.splitlines()
    assert text[0].startswith("4 shards, 80 records, table ")
    assert len(text) == 6
    both = run("shards", memory, "--add", 1, "--rebalance").stdout
    assert "5 shards" in both
    assert "namespace(s) moved" in both


def test_what_cannot_be_done_is_said_in_one_line(tmp_path: Path, memory: Path) -> None:
    assert "no sharded memory" in fails("shards", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    fr.Engine.open(tmp_path / "plain").close()
    assert "no sharded memory" in fails("shards", tmp_path / "plain", "--add", 1)
    with fr.ShardedEngine.open(memory, transport="local"):
        assert "process" in fails("shards", memory, "--rebalance")
    (memory / "shard-0001").rename(tmp_path / "away")
    assert "shard 1 is lost" in fails("shards", memory)
    run("shards", memory, "--add", "0", code=2)
