"""Calls a server of tools through the official client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jsonschema
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers, which must be as its schema says, and the same as text."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    values = answer.structured_content
    (content,) = answer.content
    assert values is not None
    assert json.loads(content.text) == values  # type: ignore[union-attr]
    tools = {one.name: one for one in (await client.list_tools()).tools}
    jsonschema.validate(values, tools[tool].output_schema or {})
    return dict(values)


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    text = str(answer.content[0].text)  # type: ignore[union-attr]
    assert "Traceback" not in text
    assert len(text) < 1_000
    return text


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[str]:
    """The address of the application's tools, on a port of the system's choice, for as long as the block runs."""
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="error", timeout_graceful_shutdown=5))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def connected(url: str, key: str = "none", mode: str = "auto", **headers: str) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {key}", **headers}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client
