"""A keyword of a search is one line: a field that is planted into `Query` arrives by every way to search."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner
from mcp import Client
from support.mcp_client import ask
from support.serving import served
from support.sharding import sharded

import fanrank as fr
from fanrank.engine.cli.main import main
from fanrank.engine.records.query import DEFAULTS
from fanrank.engine.search import batch
from fanrank.server.mcp import LIMITS, make_mcp
from fanrank.server.openapi import make_document

BEFORE, LINE = "    unit: Annotated[", '    planted: Annotated[str, About("A line.")] = ""\n'
SCHEMA = {"type": "string", "default": "", "description": "A line."}
TEA, make_batch, arrived = ["tea"], batch.make_batch, []


def with_one_file_copied(package: Path, copy: Path, way: tuple[str, ...]) -> Path:
    """Where a package is copied: by links, but for the folders on the way to the one file."""
    copy.mkdir()
    for entry in package.iterdir():
        if entry.name != way[0]:
            (copy / entry.name).symlink_to(entry.resolve())
    return with_one_file_copied(package / way[0], copy / way[0], way[1:]) if way[1:] else copy / way[0]


def test_a_field_that_is_planted_into_the_declaration_arrives_by_every_way(tmp_path: Path) -> None:
    package, way = Path(fr.__file__).parent, ("engine", "records", "query.py")
    whole = package.joinpath(*way).read_text()
    listed = whole[whole.index("class QueryDefaults") :].split("else:")[0]
    assert {*re.findall(r"^ {8}(\w+):", listed, re.MULTILINE)} == DEFAULTS  # what type checkers read
    with_one_file_copied(package, tmp_path / "fanrank", way).write_text(whole.replace(BEFORE, LINE + BEFORE))
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    child = [sys.executable, __file__, str(tmp_path / "memory")]
    done = subprocess.run(child, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def noted(memory: Any, asked: Any, *rest: Any) -> Any:
    arrived.extend(prepared.query.planted for prepared in asked)
    return make_batch(memory, asked, *rest)


def check(way: str, search: Callable[[str], Any]) -> None:
    arrived.clear()
    search(way)
    assert {*arrived} == {way}, f"{way}: {arrived}"


def check_memory(name: str, memory: Any) -> None:
    check(f"{name}.search", lambda said: memory.search(TEA, planted=said))
    check(f"{name}.asearch", lambda said: asyncio.run(memory.asearch(TEA, planted=said)))
    check(f"{name}.submit", lambda said: memory.submit(TEA, planted=said).result())
    check(f"{name}: Query", lambda said: memory.search([fr.Query("tea", planted=said)]))  # type: ignore[call-arg]
    check(f"{name}: mapping", lambda said: memory.search([{"text": "tea", "planted": said}]))


def within(client: Any, use: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with client as opened:
            return await use(opened)

    return asyncio.run(run())


def check_all(folder: str) -> None:
    batch.make_batch = noted
    assert make_document(LIMITS)["components"]["schemas"]["Query"]["properties"]["planted"] == SCHEMA
    assert "--planted TEXT" in CliRunner().invoke(main, ["search", "--help"]).output
    for memory in (fr.Engine.open(folder), sharded(2, split=("ana",))):
        name = type(memory).__name__
        memory.add([fr.Record(str(number), "tea", "ana") for number in range(4)])
        tools = make_mcp(memory, local=True)
        (tool,) = [one for one in within(Client(tools), Client.list_tools).tools if one.name == "search_memory"]
        assert SCHEMA.items() <= tool.input_schema["properties"]["planted"].items()
        check(
            "MCP", lambda said, t=tools: within(Client(t), lambda c: ask(c, "search_memory", queries=TEA, planted=said))
        )
        with served(memory) as url, fr.Client(url) as client:
            for kind, asked in ((name, memory), (f"Client of {name}", client)):
                check_memory(kind, asked)
                check_memory(f"{kind}.namespace", asked.namespace("ana"))
            check("AsyncClient", lambda said, u=url: within(fr.AsyncClient(u), lambda c: c.search(TEA, planted=said)))
            post = lambda body, u=url: httpx.post(f"{u}/v1/search", json=body).status_code  # noqa: E731
            check("REST, a query", lambda said, ask=post: ask({"query": {"text": "tea", "planted": said}}))
            check("REST, all queries", lambda said, ask=post: ask({"query": "tea", "planted": said}))
            assert post({"query": "tea", "planted": 7}) == 422
        memory.close()
    check("fanrank search", lambda said: CliRunner().invoke(main, ["search", folder, "tea", "--planted", said]))


if __name__ == "__main__":
    check_all(sys.argv[1])
