"""The ways to ask a memory that is not in the caller's process: those into fanrank's server, and a peer's own.

A way makes a client's `ask`, which sends a fan-out and waits for its answer.
"""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fanrank as fr

from .asking import Address, Ask, Connection, K, body_of, fire
from .environments import PeerError, python_of
from .paths import ROOT
from .systems import Peer
from .workload import Work

PATIENCE = 600
"""Times a tenth of a second in which a peer's server begins to answer."""
JSON_OR_EVENTS = {"Accept": "application/json, text/event-stream"}


class Way:
    """One way to ask. `over` is what is searched: words, or vectors. `most` is the number of clients it is asked by."""

    name: str
    over = "words"
    ours = True
    note = ""
    most = 1_000

    def __init__(self, work: Work, folder: Path) -> None:
        self.work, self.folder = work, folder

    def start(self, url: str) -> None:
        """Begin to answer; `url` is the address of fanrank's server, which others than ours do not use."""

    def stop(self) -> None:
        """End what was started."""

    @property
    def version(self) -> str:
        return version("fanrank")

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[Ask]]:
        """A connection for each client, and what sends fan-outs on it."""
        address = self.address()
        async with AsyncExitStack() as stack:
            asks = []
            for _ in range(count):
                connection = await address.connect()
                stack.callback(connection.close)
                asks.append(self.asker(connection, address))
            yield asks

    def address(self) -> Address:
        raise NotImplementedError

    def asker(self, connection: Connection, address: Address) -> Ask:
        return lambda asked: connection.ask(address.request(self.body(asked)))

    def body(self, asked: Sequence[int]) -> str:
        """The body of the request for a fan-out."""
        raise NotImplementedError

    async def found(self, asked: Sequence[int]) -> list[list[tuple[str, float]]]:
        """Ids and scores as the way answers them."""
        address = self.address()
        connection = await address.connect()
        try:
            return self.read(body_of(await connection.ask(address.request(self.body(asked)))))
        finally:
            connection.close()

    def read(self, answer: Any) -> list[list[tuple[str, float]]]:
        raise NotImplementedError

    async def measure(self, clients: int, seconds: float, seed: int) -> list[float]:
        """The milliseconds of `fire`."""
        async with self.clients(clients) as asks:
            return (await fire(asks, len(self.work.questions), seconds, seed))[0]


class Search(Way):
    """``POST /v1/search``, an object a hit."""

    name = "hits"
    form = "hits"

    def start(self, url: str) -> None:
        self.url = url
        self.quoted = [json.dumps(text) for text in self.work.questions]

    def address(self) -> Address:
        return Address(f"{self.url}/v1/search")

    def body(self, asked: Sequence[int]) -> str:
        queries = ",".join([self.quoted[number] for number in asked])
        return f'{{"k":{K},"form":"{self.form}","queries":[{queries}]}}'

    def read(self, answer: Any) -> list[list[tuple[str, float]]]:
        return [[(hit["id"], hit["score"]) for hit in row["hits"]] for row in answer["results"]]


class Columns(Search):
    """``POST /v1/search`` with ``form: columns``, as `fanrank.Client` asks."""

    name = "columns"
    form = "columns"

    def read(self, answer: Any) -> list[list[tuple[str, float]]]:
        return [list(zip(row["ids"], row["scores"], strict=True)) for row in answer["results"]]


class Vectors(Columns):
    """The same for queries of vectors, which are searched exactly."""

    name = "vectors"
    over = "vectors"
    note = "exact"
    most = 10

    def start(self, url: str) -> None:
        super().start(url)
        self.quoted = [
            json.dumps({"vector": self.work.vector_of(number)}, separators=(",", ":"))
            for number in range(len(self.work.questions))
        ]

    def body(self, asked: Sequence[int]) -> str:
        return super().body(asked)[:-1] + ',"strategy":"dense"}'


class AwaitedClient(Way):
    """`fanrank.AsyncClient`, one for all clients, hits and all."""

    name = "client"
    most = 100
    note = "reads its answers, in one process for all clients"

    def start(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[Ask]]:
        async with fr.AsyncClient(self.url) as client:

            async def ask(asked: Sequence[int]) -> None:
                hits = await client.search([self.work.questions[number] for number in asked], K)
                hits.ids  # noqa: B018 what every caller reads

            yield [ask] * count

    async def found(self, asked: Sequence[int]) -> list[list[tuple[str, float]]]:
        async with fr.AsyncClient(self.url) as client:
            hits = await client.search([self.work.questions[number] for number in asked], K)
            return [[(hit.id, hit.score) for hit in row] for row in hits]


class Tools(Search):
    """The tool ``search_memory`` (MCP over HTTP): hits with their texts, as values and as text."""

    name = "mcp"
    note = "with texts"
    most = 100

    def address(self) -> Address:
        return Address(f"{self.url}/mcp", JSON_OR_EVENTS)

    def body(self, asked: Sequence[int]) -> str:
        queries = ",".join([self.quoted[number] for number in asked])
        return _call("search_memory", f'{{"k":{K},"queries":[{queries}]}}')

    def read(self, answer: Any) -> list[list[tuple[str, float]]]:
        rows = answer["result"]["structuredContent"]["answers"]
        return [[(hit["id"], hit["score"]) for hit in row["hits"]] for row in rows]


def _call(tool: str, arguments: str) -> str:
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}'


class Chroma(Way):
    """``chroma run``, in an environment of its own: HNSW over the vectors."""

    name = "chroma"
    over = "vectors"
    ours = False
    note = "HNSW"
    VERSION = "1.5.9"

    def start(self, url: str) -> None:
        with socket.socket() as probing:
            probing.bind(("127.0.0.1", 0))
            self.port = int(probing.getsockname()[1])
        self.log = (self.folder / "chroma.log").open("wb")
        program = python_of(Peer("chroma", ((f"chromadb=={self.VERSION}",),))).parent / "chroma"
        place = ["--path", str(self.folder / "chroma"), "--host", "127.0.0.1", "--port", str(self.port)]
        command, quiet = [str(program), "run", *place], subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=quiet, cwd=ROOT)
        self.vectors = [json.dumps(self.work.vector_of(n)) for n in range(len(self.work.questions))]
        asyncio.run(self._fill())

    async def _wait(self) -> None:
        for _ in range(PATIENCE):
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(0.1)
        told = Path(self.log.name).read_text(errors="replace").strip().splitlines()
        raise PeerError(f"its server did not start: {told[-1] if told else 'it says nothing'}")

    async def _fill(self) -> None:
        await self._wait()
        base = f"http://127.0.0.1:{self.port}/api/v2/tenants/default_tenant/databases/default_database/collections"

        async def post(path: str, body: Any) -> bytes:
            address = Address(base + path)
            connection = await address.connect()
            try:
                return await connection.ask(address.request(json.dumps(body)))
            finally:
                connection.close()

        made = body_of(await post("", {"name": "turns", "configuration": {"hnsw": {"space": "cosine"}}}))
        self.collection = f"{base}/{made['id']}"
        ids, vectors = self.work.ids, self.work.vectors
        for start in range(0, len(ids), 2_000):
            part = slice(start, start + 2_000)
            await post(f"/{made['id']}/add", {"ids": ids[part], "embeddings": vectors[part].tolist()})

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    @property
    def version(self) -> str:
        return self.VERSION

    def address(self) -> Address:
        return Address(f"{self.collection}/query")

    def body(self, asked: Sequence[int]) -> str:
        vectors = ",".join([self.vectors[number] for number in asked])
        return f'{{"n_results":{K},"include":["distances"],"query_embeddings":[{vectors}]}}'


WAYS: tuple[type[Way], ...] = (Search, Columns, AwaitedClient, Tools, Vectors, Chroma)
