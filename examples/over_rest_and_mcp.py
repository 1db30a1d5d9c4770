"""One memory behind REST and MCP: `fanrank serve` is started, and asked by both kinds of clients.

`fr.Client` has the engine's verbs, and the official MCP client calls the tools that an agent would.

REST: wrote 2 records
REST: [('m1', 'Ana prefers tea')]
MCP: audit, delete_where, distinct, explain, forget, recent, remember, search_memory, update_where
MCP: wrote ['m3']
MCP: m3 | Ana moved to Lisbon
REST: 3 records
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from mcp import Client

import fanrank as fr


@contextmanager
def served(folder: str) -> Iterator[str]:
    """The address of a server that ends with the block."""
    command = [sys.executable, "-m", "fanrank.engine.cli.main", "serve", folder, "--port", "0", "--mcp"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            yield server.stderr.readline().strip()  # its first line
        finally:
            server.terminate()


async def use_tools(url: str) -> None:
    async with Client(f"{url}/mcp") as agent:
        print("MCP:", ", ".join(sorted(tool.name for tool in (await agent.list_tools()).tools)))
        written = await agent.call_tool("remember", {"records": [{"id": "m3", "text": "Ana moved to Lisbon"}]})
        print("MCP: wrote", written.structured_content["ids"])
        found = await agent.call_tool("search_memory", {"queries": ["where did Ana move", "tea"], "k": 1})
        hit = found.structured_content["answers"][0]["hits"][0]
        print("MCP:", hit["id"], "|", hit["text"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, served(folder) as url, fr.Client(url) as memory:
        memory.add([fr.Record("m1", "Ana prefers tea"), fr.Record("m2", "Bo drinks coffee")])
        print(f"REST: wrote {memory.count()} records")
        print("REST:", [(hit.id, hit.text) for hit in memory.search("what about tea", texts=True)[0]])
        asyncio.run(use_tools(url))
        print(f"REST: {memory.count()} records")


if __name__ == "__main__":
    main()
