"""`fanrank mcp` as a process, over its pipe and over HTTP: how it begins, is watched, fails and ends."""

import asyncio
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.commands import START, fails
from support.commands import run as run_command
from support.mcp_client import ask, connected, refused, running

import fanrank as fr
from fanrank.engine.cli.mcp import mcp_command
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.keys import add_key
from fanrank.server.logs import Log
from fanrank.server.mcp_run import make_part

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": ABOUT}


def stdio(path: Path, *options: str) -> StdioServerParameters:
    command = ["-m", "fanrank.engine.cli.start", "mcp", str(path), *options]
    return StdioServerParameters(
        command=sys.executable, args=command, env={"PYTHONPATH": ":".join(filter(None, sys.path))}
    )


@pytest.mark.parametrize("reading", ["--read-only", "--or-read-only"])
async def test_a_client_begins_the_command_and_talks_over_its_pipe(tmp_path: Path, reading: str) -> None:
    path = tmp_path / "memory"
    async with Client(stdio(path, "--namespace", "users/ana", "--or-read-only")) as client:
        await ask(client, "remember", records=[{"id": "a", "text": "Ana drinks tea"}])
        # A reader of the same directory sees what was written since it began.
        async with Client(stdio(path, reading)) as reader:
            assert "remember" not in {tool.name for tool in (await reader.list_tools()).tools}
            await ask(client, "remember", records=[{"id": "b", "text": "Ana drinks water"}])
            found = await ask(reader, "search_memory", queries=["water"], namespace="users/ana")
            assert [hit["id"] for hit in found["answers"][0]["hits"]] == ["b"]
    with fr.Engine.open(path) as engine:
        assert [record.id for record in engine.records(namespace="users/ana")] == ["a", "b"]


async def test_the_tools_work_over_a_sharded_memory(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    local = "--transport", "local"
    async with Client(stdio(path, "--shards", "2", *local)) as client:
        records = [{"id": name, "text": f"{name} drinks tea"} for name in ("Ana", "Bo")]
        await ask(client, "remember", records=records)
    # Without the tools that write. The memory has one owner, so the first had to end.
    async with Client(stdio(path, "--read-only", *local)) as reader:
        found = await ask(reader, "search_memory", queries=["Bo"])
        assert [hit["id"] for hit in found["answers"][0]["hits"]] == ["Bo"]
        assert "forget" not in {tool.name for tool in (await reader.list_tools()).tools}
    with fr.ShardedEngine.open(path, transport="local") as several:
        assert [record.id for record in several.records()] == ["Ana", "Bo"]


async def test_the_command_listens_where_it_says(tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", ["users/ana"])
    parameters = stdio(tmp_path / "memory", "--http", "--port", "0", "--keys", str(tmp_path / "keys"))
    process = await asyncio.create_subprocess_exec(
        parameters.command, *parameters.args, env=parameters.env, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        url = (await process.stderr.readline()).decode().strip()
        assert url.startswith("http://127.0.0.1:")
        async with connected(url, key) as client:
            await ask(client, "remember", records=[{"id": "a", "text": "tea"}], namespace="users/ana")
            assert "users/ana alone" in await refused(client, "recent", namespace="users/bo")
        async with httpx2.AsyncClient(trust_env=False) as http:
            base = url.removesuffix("/mcp")
            assert (await http.get(f"{base}/v1/health")).status_code == 200
            assert (await http.post(url, json={})).status_code == 401
            headers = {"authorization": f"Bearer {key}"}
            assert (await http.get(f"{base}/v1/records", headers=headers)).status_code == 404
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_the_pipe_carries_messages_alone_and_an_interrupt_ends_the_tools_while_they_wait(tmp_path: Path) -> None:
    def call(number: int, tool: str, **arguments: Any) -> tuple[int, str]:
        parameters = {"name": tool, "arguments": arguments}
        return number, json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": parameters})

    lines: list[tuple[int | None, str]] = [
        (1, json.dumps(INITIALIZE)),
        (None, "no message"),
        (None, '{"jsonrpc": "2.0", "method": "notifications/initialized"}'),
        call(2, "recent", n="x"),
        call(3, "remember", records=[{"id": "a", "text": "tea"}]),
        call(4, "recent"),
    ]
    command = [sys.executable, "-c", START, "mcp", str(tmp_path / "memory")]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            results: dict[Any, Any] = {}
            for number, line in lines:
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
                while number is not None and number not in results:
                    answer = json.loads(process.stdout.readline())
                    assert answer["jsonrpc"] == "2.0"
                    results[answer.get("id")] = answer.get("result")
            assert results[2]["isError"]
            assert [record["id"] for record in results[4]["structuredContent"]["records"]] == ["a"]
            # The pipe stays open: a host that is interrupted in a terminal does not close it first.
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 130
            assert process.stderr.read().endswith("fanrank: interrupted\n")
        finally:
            process.kill()
    with fr.Engine.open(tmp_path / "memory") as engine:
        assert engine.count() == 1


@pytest.mark.parametrize("options", [(), ("--http", "--port", "0")])
def test_what_cannot_serve_is_one_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    memory = tmp_path / "memory"
    with fr.Engine.open(memory):
        assert fails("mcp", memory, *options) == (
            f"{memory}: process {os.getpid()} writes to it; there is one writer at a time"
        )
    (tmp_path / "file").write_text("x")
    assert fails("mcp", tmp_path / "file", *options).endswith("is a file: fanrank mcp MEMORY")
    if options:
        keys = tmp_path / "keys.json"
        assert fails("mcp", memory, *options, "--keys", keys) == f"{keys}: is not there; `fanrank keys add` makes it"
        assert "--keys is for a directory" in fails("mcp", "http://127.0.0.1:9", *options, "--keys", keys)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert "cannot be listened on" in fails("mcp", memory, "--http", "--port", port)
    else:
        for option, message in (
            (["--json"], "--json prints the address of --http"),
            (["--keys", memory / "records.sqlite"], "--keys is for --http"),
        ):
            assert message in run_command("mcp", memory, *option, code=2).stderr


def test_the_page_shows_commands_that_are_there() -> None:
    page = (Path(__file__).parents[3] / "docs" / "mcp.md").read_text(encoding="utf-8")
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    servers = [server for block in blocks for named in block.values() for server in named.values()]
    commands = [server["args"] for server in servers if "args" in server]
    assert len(commands) == 2
    for name, *arguments in commands:
        assert name == mcp_command.name
        assert mcp_command.make_context(name, arguments).params["path"] == "/home/ana/memory"


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "Zanzibarov"


async def test_tools_are_seen_as_requests_are(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    engine, stream = fr.Engine(), io.StringIO()
    log = Log("json", stream=stream)
    ana = Principal("0123", ("users/ana",), label="ana")
    app = make_app(engine, admit=lambda request: ana, parts=[make_part(engine)], log=log)
    traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    async with running(app) as url, connected(url, **traced) as client:
        await ask(client, "remember", records=[{"text": f"tea of {SECRET}"}] * 2, namespace="users/ana")
        await ask(client, "search_memory", queries=["tea", "nothing", SECRET], namespace="users/ana")
        await refused(client, "search_memory", queries=["tea"], namespace="elsewhere")
    log.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["route"] for line in lines} == {"/mcp"}
    assert {line["key"] for line in lines} == {"ana"}
    assert len({line["request"] for line in lines}) == len(lines)
    assert [line["records"] for line in lines if "records" in line] == [1]
    assert [(line["queries"], line["hits"]) for line in lines if "queries" in line] == [(3, 2)]
    assert [line["problem"] for line in lines if "problem" in line] == ["NamespaceForbidden"]
    assert SECRET not in stream.getvalue()
    text = app.state.fanrank.metrics.write(0, 0, True)
    for sample in (
        'fanrank_queries_total{strategy="bm25"} 3\n',
        'fanrank_changed_records_total{operation="create_memory"} 1\n',
        'fanrank_rejected_total{reason="NamespaceForbidden"} 1\n',
    ):
        assert sample in text
    spans = {span.name: span for span in exporter.get_finished_spans()}
    for operation in ("create_memory", "search_memory"):
        context = spans[operation].context
        assert context is not None
        assert f"{context.trace_id:032x}" == TRACE
        assert dict(spans[operation].attributes or {})["gen_ai.memory.store.id"] == "users/ana"
