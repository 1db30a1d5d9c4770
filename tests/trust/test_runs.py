"""A run that is asked again has the same bits, or the write that changed it is named."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.serving import served

import fanrank as fr
from fanrank.engine.cli.main import main

TEXTS = [f"word{n % 7} word{n % 5} tea" for n in range(40)]


def opened(kind: str, folder: Path) -> Any:
    if kind == "engine":
        return fr.Engine.open(folder)
    return fr.ShardedEngine.open(folder, shards=2, transport="local") if kind == "shards" else fr.Engine()


def filled(kind: str, folder: Path) -> Any:
    memory = opened(kind, folder)
    memory.add([fr.Record(f"r{n}", text, "ana", role="ab"[n % 2]) for n, text in enumerate(TEXTS)])
    return memory


def ask(memory: Any) -> None:
    """By every way, in several forms."""
    memory.search(["word1 tea", fr.Query("word2", filter=fr.col("role") == "a")], 3, namespace="ana")
    memory.search("word3 word4", strategy="recall", namespace="ana", now=1e9, texts=True)
    asyncio.run(memory.asearch(["word5"], namespaces=["ana", ""]))
    memory.submit(["word6", "none"], 2, namespace="ana")


@pytest.mark.parametrize("kind", ["memory", "engine", "shards"])
def test_a_run_is_replayed_with_the_same_bits_also_over_a_copy_and_by_a_client(kind: str, tmp_path: Path) -> None:
    memory, run = filled(kind, tmp_path / "memory"), tmp_path / "run.jsonl"
    with memory.record(run) as recording:
        ask(memory)
        with pytest.raises(fr.errors.ParameterError, match="being recorded"), memory.record(run):
            pass
    assert recording.queries == len(run.read_text().splitlines()) == 6
    ask(memory)  # is not recorded any more
    lines = [json.loads(line) for line in run.read_text().splitlines()]
    # What was recorded is what single searches give, read by plain loops.
    for line in lines:
        hits = memory.search([line["query"]], line["k"], strategy=line["strategy"])
        assert line["hits"] == [[hit.id, hit.namespace, hit.score] for hit in hits[0]]
    report = memory.replay(run)
    assert (report["queries"], report["same"], report["different"], report["passed"]) == (6, 6, 0, True)
    with served(memory) as url, fr.Client(url) as client:
        assert client.replay(run)["passed"]
    if kind != "memory":
        memory.backup(tmp_path / "copy")
        command = ["replay", str(run), str(tmp_path / "copy"), "--json"]
        if kind == "engine":
            assert CliRunner().invoke(main, command).exit_code == 0
    memory.close()


@pytest.mark.parametrize("kind", ["engine", "shards"])
def test_the_write_that_changed_an_answer_is_named(kind: str, tmp_path: Path) -> None:
    def difference() -> dict[str, Any]:
        report = memory.replay(run)
        assert (report["different"], report["passed"]) == (1, False)
        (found,) = report["differences"]
        return found

    memory, run = filled(kind, tmp_path / "memory"), tmp_path / "run.jsonl"
    with memory.record(run):
        first = memory.search("word1 tea", 5, namespace="ana")[0]
    memory.add([fr.Record("elsewhere", "word1 tea word1")])  # of another namespace
    assert memory.replay(run)["passed"]
    memory.add([fr.Record("other", "word6 of many words that count in every length", "ana")])
    found = difference()
    assert (found["change"], found["id"], found["kind"], found["rank"]) == ("statistics", "other", "written", 1)
    assert found["write"] > 0
    memory.update([fr.Record(first[0].id, "word1 word1 tea", "ana")])
    found = difference()
    was = [first[0].id, "ana", first[0].score]
    assert (found["change"], found["id"], found["was"]) == ("written", first[0].id, was)
    memory.delete([first[0].id], namespace="ana")
    found = difference()
    assert (found["change"], found["id"]) == ("removed", first[0].id)
    assert found["write"] > 0
    memory.flush()  # the log of removals is pruned
    assert difference()["write"] is None
    memory.close()
    if kind == "engine":
        ended = CliRunner().invoke(main, ["replay", str(run), str(tmp_path / "memory")])
        assert ended.exit_code == 1
        assert '"removed": 1' in ended.output


def test_what_differs_though_nothing_was_written_is_unexplained(tmp_path: Path) -> None:
    memory, run = filled("engine", tmp_path / "memory"), tmp_path / "run.jsonl"
    with memory.record(run):
        memory.search("word1 tea", 5, namespace="ana")
    line = json.loads(run.read_text())
    line["hits"][1][2] += 2**-18  # one bit
    run.write_text(json.dumps(line))
    (found,) = memory.replay(run)["differences"]
    assert (found["rank"], found["change"], found["write"]) == (2, "unexplained", None)
    line["epoch"][0] = "of another store"
    run.write_text(json.dumps(line))
    assert memory.replay(run)["changes"] == {"unknown": 1}
    for wrong in ({"hits": 5}, {"hits": [[1]]}, {"epoch": 5}, {"epoch": []}):
        run.write_text(json.dumps(line | wrong))
        with pytest.raises(fr.errors.ParameterError, match=r"run\.jsonl:1: no line of a recorded run"):
            memory.replay(run)
    memory.close()
