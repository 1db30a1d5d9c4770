"""The commands over a sharded memory: each answers as over one engine's directory, or says in one line what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import fails, run, run_json, write

import fanrank as fr

ROWS = [
    {
        "id": f"r{number}",
        "text": f"tea {number % 5} word{number % 7}",
        "namespace": ("", "a", "b")[number % 3],
        "time": 1_000 * number,
        "project": f"p{number % 2}",
        "payload": {"n": number},
    }
    for number in range(60)
]
OWN = ("path", "seconds", "backend", "file", "target")
"""What is each memory's own in the JSON of a command."""


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """One engine's directory and a sharded memory, to which the same command wrote."""
    records = write(tmp_path / "records.jsonl", ROWS)
    one, several = tmp_path / "one", tmp_path / "several"
    run("add", one, records, "--column", "project:category")
    run("add", several, records, "--column", "project:category", "--shards", 3)
    assert (several / "owner.sqlite").exists()
    return one, several


def same(one: Path, several: Path, name: str, *arguments: object) -> Any:
    """What a command prints as JSON about both, which is the same but for `OWN`."""
    found = [
        [
            {key: value for key, value in json.loads(line).items() if key not in OWN and key != "cursor"}
            for line in run(name, path, *arguments, "--json").stdout.splitlines()
        ]
        for path in (one, several)
    ]
    assert found[0] == found[1]
    return found[0]


def test_reading_commands_answer_alike(both: tuple[Path, Path], tmp_path: Path) -> None:
    one, several = both
    same(one, several, "search", "tea 3 word2", "word5", "-k", 20)
    same(one, several, "search", "tea", "--namespace", "a", "--filter", "project=p1", "--explain")
    same(one, several, "search", "tea", "--strategy", "rm3", "--namespace", "b", "-k", 20)
    asked = [{"text": "tea", "namespaces": ["", "b"]}, {"text": "4", "namespaces": ["a", "b"]}]
    queries = write(tmp_path / "queries.jsonl", asked)
    same(one, several, "search", "--queries", queries)
    assert run("search", one, "word3", "--trec", "-").stdout == run("search", several, "word3", "--trec", "-").stdout
    assert run("search", one, "word3").stdout == run("search", several, "word3").stdout
    for order in ("written", "time", "id"):
        same(one, several, "list", "--all", "--order", order, "--reverse")
    assert same(one, several, "list", "--namespace", "a", "--limit", 3)
    same(one, several, "count", "--all")
    same(one, several, "count", "--all", "--by", "project")
    same(one, several, "columns")
    pages = run("list", several, "--limit", 15, code=0)
    cursor = pages.stderr.split()[-1]
    assert pages.stdout + run("list", several, "--after", cursor).stdout == run("list", one).stdout


def test_writing_commands_change_alike(both: tuple[Path, Path], tmp_path: Path) -> None:
    one, several = both
    more = write(
        tmp_path / "more.jsonl", [{"id": "r1", "text": "tea anew", "namespace": "a"}, {"id": "n", "text": "new"}]
    )
    for path in both:
        assert "r1" in fails("add", path, more)
        assert run_json("add", path, more, "--upsert")["added"] == 2
        assert run_json("delete", path, "r3", "r6")["removed"] == 2
        assert run_json("delete", path, "--where", "project=p1", "--namespace", "b")["removed"] == 10
        assert "r3" in fails("delete", path, "r3")
        run("columns", path, "--add", "n:number")
    same(one, several, "list", "--all")
    same(one, several, "search", "tea 2", "-k", 50, "--namespace", "a", "--filter", "n>10")
    assert run_json("stats", several, "--verify")["missing"] == 0
    shown = run("stats", several).stdout
    assert "documents            49" in shown
    assert "'shard'" not in shown


def test_records_go_out_and_come_back(both: tuple[Path, Path], tmp_path: Path) -> None:
    one, several = both
    assert run("export", one, "-").stdout == run("export", several, "-").stdout
    same(one, several, "export", tmp_path / "out.jsonl", "--namespace", "a")
    assert run_json("add", tmp_path / "third", tmp_path / "out.jsonl", "--resume", "--shards", 2)["added"] == 20
    assert fr.ShardedEngine.open(tmp_path / "third", transport="local").close() is None
    copied = run_json("backup", several, tmp_path / "backup")
    assert copied["records"] == 60
    assert run_json("backup", tmp_path / "backup", "--check")["records"] == 60
    assert run_json("restore", tmp_path / "restored", tmp_path / "backup")["records"] == 60
    same(one, tmp_path / "restored", "list", "--all")


def test_what_one_engine_alone_does_is_said_in_one_line(both: tuple[Path, Path], tmp_path: Path) -> None:
    one, several = both
    assert "export" in fails("copy", several, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert "one shard that has it" in fails("stats", several, "--accept-loss")
    assert "is a shard, whose sharded memory" in fails("delete", several / "shard-0000", "r1")
    assert "--import" in fails("add", one, tmp_path / "records.jsonl", "--shards", 2)
    assert "has 3 shards, not 2" in fails("add", several, tmp_path / "records.jsonl", "--shards", 2)
    with fr.ShardedEngine.open(several, transport="local"):
        assert "process" in fails("search", several, "tea")


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
