"""Anthropic's memory tool over records: it answers as the SDK's own tool over a file system, and ranks when asked."""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic")

from anthropic.lib.tools import ToolError
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool

import fanrank as fr
from fanrank.integrations.anthropic import FanrankAsyncMemoryTool, FanrankMemoryTool

PLACES = ("", "/a.md", "/p", "/p/b.md", "/p/q/c.md", "/p/q", "/.hidden", "/../x", "/a.md/below")
TEXTS = ("", "one\ntwo\n", "one\ntwo\nthree two\nfour", "tea and\r\ncoffee\n\n")


def ask(tool: Any, command: dict[str, Any]) -> str:
    """The answer without the sizes of directories, which are the file system's own; "error" for one."""
    try:
        answer = tool.call(command).replace("//", "/")
    except (ToolError, OSError):
        return "error"
    return re.sub(r"(?m)^\S+\t(.*/$)|(?<=items:\n)\S+\t(.*?)/?$", r"\1\2", answer)


def some_command(rng: random.Random) -> dict[str, Any]:
    path, other = (f"/memories{rng.choice(PLACES)}" for _ in range(2))
    line, text = rng.randrange(5), rng.choice(TEXTS)
    command: dict[str, Any] = rng.choice(
        [
            {"command": "view", "path": path},
            {"command": "view", "path": path, "view_range": [line, rng.choice([-1, line + 1])]},
            {"command": "create", "path": path.rstrip("/"), "file_text": text},
            {"command": "str_replace", "path": path, "old_str": rng.choice(["two", "one", "x"]), "new_str": "tea"},
            {"command": "insert", "path": path, "insert_line": line, "insert_text": text},
            {"command": "delete", "path": path},
            {"command": "rename", "old_path": path, "new_path": other.rstrip("/")},
        ]
    )
    return command


@pytest.mark.parametrize("seed", range(5))
def test_a_history_of_commands_is_answered_as_over_a_file_system(seed: int, tmp_path: Path) -> None:
    rng, theirs, ours = random.Random(seed), BetaLocalFilesystemMemoryTool(str(tmp_path)), FanrankMemoryTool()
    assert ours.to_dict() == theirs.to_dict() == {"type": "memory_20250818", "name": "memory"}
    for step in range(120):
        command = some_command(rng)
        assert ask(ours, command) == ask(theirs, command), (step, command)
        # A directory is there as long as a file lies in it, and records have no others.
        for folder in sorted(tmp_path.rglob("*"), reverse=True):
            if folder.is_dir() and folder.name != "memories" and not any(folder.iterdir()):
                folder.rmdir()


async def test_a_view_with_a_query_ranks_files_and_callers_share_a_launch() -> None:
    engine = fr.Engine()
    engine.add([fr.Record("m1", "Ana drinks tea", "users/ana"), fr.Record("m2", "tea of another", "users/bo")])
    tool, awaited = (kind(engine, namespace="users/ana") for kind in (FanrankMemoryTool, FanrankAsyncMemoryTool))
    for name, text in {
        "/p/plan.md": "Tea, tea and tea",
        "/p/q/old.md": "tea at five\nwith cake",
        "/c.md": "cake",
    }.items():
        tool.call({"command": "create", "path": f"/memories{name}", "file_text": text})
    expected = engine.search(["tea"], namespace="users/ana")[0]

    def found(answer: str) -> list[str]:
        return [line.split("\t")[1].removeprefix("/memories/") for line in answer.split("\n")[1:]]

    view = {"command": "view", "path": "/memories", "query": "tea"}
    assert found(tool.call(view)) == [hit.id for hit in expected] == ["p/plan.md", "m1", "p/q/old.md"]
    assert found(tool.call({"command": "view", "path": "/memories/p?tea //x"})) == ["p/plan.md", "p/q/old.md"]
    assert found(tool.call({"command": "view", "path": "/memories/p/q?tea"})) == ["p/q/old.md"]
    assert tool.call({"command": "view", "path": "/memories?zebra"}) == "No file matches."
    assert "Ana drinks tea" in tool.call({"command": "view", "path": "/memories/m1"})
    tool.call({"command": "rename", "old_path": "/memories/p/q", "new_path": "/memories/r"})
    assert found(tool.call({"command": "view", "path": "/memories/r?tea"})) == ["r/old.md"]

    before = engine.coalescer.stats()["launches"]
    answers = await asyncio.gather(*(awaited.call(view) for _ in range(20)))
    assert {*answers} == {tool.call(view)}
    assert engine.coalescer.stats()["launches"] - before < 10


async def test_one_of_many_edits_at_once_wins_and_none_is_lost() -> None:
    tool = FanrankAsyncMemoryTool()
    await tool.call({"command": "create", "path": "/memories/n.md", "file_text": "start\n"})
    edits = [
        {"command": "insert", "path": "/memories/n.md", "insert_line": 0, "insert_text": f"{n}"} for n in range(20)
    ]
    await asyncio.gather(*map(tool.call, edits))
    assert sorted(tool.memory.get("n.md").text.split()) == sorted(["start", *map(str, range(20))])
    made = [{"command": "create", "path": "/memories/once.md", "file_text": str(n)} for n in range(8)]
    answers = await asyncio.gather(*map(tool.call, made), return_exceptions=True)
    assert sorted(isinstance(answer, ToolError) for answer in answers) == [False, *[True] * 7]
