"""A keyword of a search is one line, a verb one entry: what is planted into the declaration is found by every way."""

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
from fanrank.engine.offered import OFFERED, REST, offered_at
from fanrank.engine.records.query import DEFAULTS
from fanrank.engine.search import batch
from fanrank.server.mcp import LIMITS, make_mcp
from fanrank.server.openapi import make_document

QUERY, READING = ("engine", "records", "query.py"), ("engine", "reading.py")
BEFORE, LINE = "    unit: Annotated[", '    planted: Annotated[str, About("A line.")] = ""\n'
LAST = "    # Sources: C041.\n"
VERB = '''
    @offered(REST, TOOL, COMMAND)
    def planted(
        self, word: Annotated[str, About("A line.", examples=("tea",))], *, namespace: str = ""
    ) -> list[tuple[str, int]]:
        """Says a word."""
        return [(word, self.count({"role": word}, namespace=namespace))]

'''
SCHEMA = {"type": "string", "default": "", "description": "A line."}
TEA, make_batch, arrived = ["tea"], batch.make_batch, []


def with_one_file_copied(package: Path, copy: Path, way: tuple[str, ...]) -> Path:
    """Where a package is copied: by links, but for the folders on the way to the one file."""
    copy.mkdir()
    for entry in package.iterdir():
        if entry.name != way[0]:
            (copy / entry.name).symlink_to(entry.resolve())
    return with_one_file_copied(package / way[0], copy / way[0], way[1:]) if way[1:] else copy / way[0]


def check_planted(folder: Path, way: tuple[str, ...], before: str, planted: str) -> None:
    """Check it in a copy of the package with something planted, in a process of its own."""
    package = Path(fr.__file__).parent
    whole = package.joinpath(*way).read_text()
    assert whole.count(before) == 1
    with_one_file_copied(package, folder / "fanrank", way).write_text(whole.replace(before, planted + before))
    paths = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    child = [sys.executable, __file__, way[-1], str(folder / "memory")]
    done = subprocess.run(child, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_field_that_is_planted_into_the_declaration_arrives_by_every_way(tmp_path: Path) -> None:
    whole = Path(fr.__file__).parent.joinpath(*QUERY).read_text()
    listed = whole[whole.index("class QueryDefaults") :].split("else:")[0]
    assert {*re.findall(r"^ {8}(\w+):", listed, re.MULTILINE)} == DEFAULTS  # what type checkers read
    check_planted(tmp_path, QUERY, BEFORE, LINE)


def test_a_verb_that_is_planted_is_found_by_every_way(tmp_path: Path) -> None:
    twins, sent = {f"a{name}" for name in OFFERED}, {verb.name for verb in offered_at(REST)}
    for file, names in (("engine/memory.py", twins), ("client/asynchronous.py", sent)):
        listed = re.findall(r"^ {8}([\w, ]+) = awaited", (Path(fr.__file__).parent / file).read_text(), re.MULTILINE)
        assert {*", ".join(listed).split(", ")} == names  # what type checkers read
    check_planted(tmp_path, READING, LAST, VERB)


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


def check_verb(folder: str) -> None:
    wanted, asked = [("tea", 4)], {"word": "tea", "namespace": "ana"}
    for memory in (fr.Engine.open(folder), sharded(2, split=("ana",))):
        memory.add([fr.Record(str(number), "tea", "ana", role="tea") for number in range(4)])
        with served(memory) as url, fr.Client(url) as client:
            for one in (memory, client):
                handle = one.namespace("ana")
                assert one.planted("tea", namespace="ana") == handle.planted("tea") == wanted
                assert asyncio.run(one.aplanted(**asked)) == asyncio.run(handle.aplanted("tea")) == wanted
            assert within(fr.AsyncClient(url), lambda c: c.namespace("ana").planted("tea")) == wanted
            assert httpx.post(f"{url}/v1/planted", json=asked).json() == {"planted": [["tea", 4]]}
            assert httpx.post(f"{url}/v1/planted", json={"word": 7}).json()["field"] == "word"
        found = within(Client(make_mcp(memory, local=True)), lambda c: ask(c, "planted", **asked))
        assert found["answer"] == [["tea", 4]]
        memory.close()
    (described,) = make_document(LIMITS)["paths"]["/v1/planted"].values()
    fields = described["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert (described["summary"], fields["word"]["description"]) == ("Says a word.", "A line.")
    run = CliRunner().invoke(main, ["planted", folder, "--word", "tea", "--namespace", "ana"])
    assert run.output == '["tea", 4]\n'


if __name__ == "__main__":
    {QUERY[-1]: check_all, READING[-1]: check_verb}[sys.argv[1]](sys.argv[2])
