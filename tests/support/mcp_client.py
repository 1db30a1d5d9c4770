"""Calls a server of tools through the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jsonschema
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

WAIT = 30
"""Seconds that a test waits for what must happen."""


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, 2 * WAIT)

    asyncio.run(bounded())


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
async def connected(url: str, key: str = "none", mode: str = "auto") -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client
