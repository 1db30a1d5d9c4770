"""A field of a query or a record is one line, a verb one entry: planted there, it is found by every way."""

import asyncio
import json
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
from fanrank.engine.encoders.patch import FIELDS as FIELDS_OF_PATCH
from fanrank.engine.encoders.patch import RecordFields
from fanrank.engine.offered import OFFERED
from fanrank.engine.records.query import DEFAULTS
from fanrank.engine.search import batch
from fanrank.server.mcp import LIMITS, make_mcp
from fanrank.server.openapi import make_document

QUERY, READING = ("engine", "records", "query.py"), ("engine", "reading.py")
RECORD, FIELD = ("engine", "records", "record.py"), "    time: Annotated["
FIELDS = """    planted: Annotated[str | None, About("A line.")] = None
    counted: Annotated[float | None, About("A number.", least=0)] = None
"""
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
SAID = "A line.", "A number."


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


def test_fields_of_a_record_that_are_planted_arrive_by_every_way(tmp_path: Path) -> None:
    assert (*RecordFields.__annotations__,) == FIELDS_OF_PATCH  # what type checkers read
    check_planted(tmp_path, RECORD, FIELD, FIELDS)


def test_a_verb_that_is_planted_is_found_by_every_way(tmp_path: Path) -> None:
    twins = {f"a{name}" for name in OFFERED}
    sent = {name for name, verb in vars(fr.Client).items() if hasattr(verb, "steps")}
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


def said_of(memory: Any, name: str) -> Any:
    """What a memory says of a record: got, found, filtered, listed."""
    (record,) = memory.fetch([name], namespace="ana")
    query = {"text": "tea", "filter": {"planted": record.planted, "counted": record.counted}, "namespace": "ana"}
    found = {hit.id: hit.to_dict()["metadata"] for hit in memory.search([query], texts=True)[0]}
    listed = {one.id: one.planted for one in memory.records(namespace="ana")}
    assert (found[name]["planted"], found[name]["counted"], listed[name]) == (record.planted, 7.0, record.planted)
    return record.planted


def check_writes(name: str, memory: Any, url: str, folder: str) -> None:
    def made(way: str) -> dict[str, Any]:
        return {"id": way, "text": "tea", "namespace": "ana", "planted": way, "counted": 7.0}

    def post(way: str) -> Any:
        return httpx.post(f"{url}/v1/records", json={"records": [made(way)]}).raise_for_status()

    async def remember(client: Client, way: str) -> Any:
        told = {name: value for name, value in made(way).items() if name != "namespace"}
        return await ask(client, "remember", records=[told], namespace="ana")

    def add(way: str, target: str) -> None:
        Path(folder, "lines.jsonl").write_text(json.dumps(made(way)))
        run = CliRunner().invoke(main, ["add", target, f"{folder}/lines.jsonl"])
        assert run.exit_code == 0, run.output

    view, plain = memory.namespace("ana"), {"text": "tea"}
    tools, client = make_mcp(memory, local=True), fr.Client(url)
    with client:
        sent = client.namespace("ana")
        ways: dict[str, Callable[[str], Any]] = {
            "Record": lambda way: memory.add([fr.Record(**made(way))]),
            "add": lambda way: memory.add([made(way)]),
            "aadd": lambda way: asyncio.run(memory.aadd([made(way)])),
            "namespace": lambda way: view.add([made(way)]),
            "namespace.aadd": lambda way: asyncio.run(view.aadd([made(way)])),
            "patch": lambda way: (view.add([plain | {"id": way}]), view.patch(way, planted=way, counted=7.0)),
            "client": lambda way: client.add([fr.Record(**made(way))]),
            "client.namespace": lambda way: sent.upsert([made(way)]),
            "client.patch": lambda way: (
                sent.add([{"id": way, "text": "tea"}]),
                sent.patch(way, planted=way, counted=7),
            ),
            "AsyncClient": lambda way: within(fr.AsyncClient(url), lambda c: c.add([made(way)])),
            "REST": post,
            "MCP": lambda way: within(Client(tools), lambda c: remember(c, way)),
            "fanrank add ADDRESS": lambda way: add(way, url),
        }
        for way, write in ways.items():
            write(way)
            assert said_of(memory, way) == said_of(client, way) == way, f"{name}: {way}"
        for source in (memory, client):
            for suffix in ("jsonl", "parquet"):
                file, copy = f"{folder}/{name}.{suffix}", fr.Engine()
                source.export(file)
                copy.import_records(file)
                assert [said_of(copy, way) for way in ways] == [*ways]
    (tool,) = [one for one in within(Client(tools), Client.list_tools).tools if one.name == "remember"]
    (given,) = [one for one in tool.input_schema["$defs"].values() if "planted" in one["properties"]]
    assert (given["properties"]["planted"]["description"], given["properties"]["counted"]["description"]) == SAID


def check_record(folder: str) -> None:
    fields = make_document(LIMITS)["components"]["schemas"]["StoredRecord"]["properties"]
    assert fields["planted"] == {"type": "string", "description": SAID[0]}
    assert fields["counted"] == {"type": "number", "minimum": 0, "description": SAID[1]}
    for number, memory in enumerate((fr.Engine.open(folder), sharded(2, split=("ana",)))):
        with served(memory) as url:
            check_writes(f"of-{number}", memory, url, folder)
        memory.close()
    line = Path(folder, "lines.jsonl")
    line.write_text(json.dumps({"id": "cli", "text": "tea", "namespace": "ana", "planted": "cli", "counted": 7}))
    assert CliRunner().invoke(main, ["add", folder, str(line)]).exit_code == 0
    with fr.Engine.open(folder) as again:  # from disk
        assert (said_of(again, "cli"), said_of(again, "add")) == ("cli", "add")
    listed = CliRunner().invoke(main, ["list", folder, "--namespace", "ana", "--filter", "planted=cli", "--json"])
    assert json.loads(listed.output.splitlines()[0])["counted"] == 7.0


if __name__ == "__main__":
    {QUERY[-1]: check_all, READING[-1]: check_verb, RECORD[-1]: check_record}[sys.argv[1]](sys.argv[2])
