"""The kinds of memory that the tests run over: what a server serves, and what the state machine writes to and asks."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
from support.kills import leave
from support.sharding import FOLDER, sharded

import fanrank as fr
from fanrank.client.asynchronous import AT_ONCE, Pool
from fanrank.engine.backends.choose import choose
from fanrank.server.app import make_app
from fanrank.shards.engine import ShardedEngine

KINDS = ("engine", "shards")

SPLIT = ("", "users/ana", "acme/ana")
"""Namespaces of a sharded memory that lie in all of its shards. The others lie whole in one."""


def make_memory(kind: str, **options: Any) -> Any:
    """An empty memory of this kind, with these options of an engine."""
    return fr.Engine(**options) if kind == "engine" else sharded(2, split=SPLIT, **options)


class InMemory:
    """An engine without files. The other kinds derive from it."""

    durable = False
    local = True
    """Whether it has all verbs of an engine; a client has fewer."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.root = Path(tempfile.mkdtemp(prefix="fanrank-", dir=FOLDER))
        self.folder = self.root / "memory"
        self.memory: Any = self.open()

    def open(self) -> Any:
        """The memory, as its files or nothing say."""
        return fr.Engine(**self.options)

    @property
    def engines(self) -> list[fr.Engine]:
        """The engines that hold the records."""
        return [self.memory]

    @property
    def asked(self) -> Any:
        """What is searched."""
        return self.memory

    def look_anew(self) -> None:
        """Open anew what reads the memory and does not hear of its columns."""

    def serve_from(self, name: str) -> None:
        """Let searches be answered by this backend."""
        for engine in self.engines:
            engine.backend = choose(name)

    def settle(self) -> None:
        """Wait for what the background does."""
        for engine in self.engines:
            engine.index.memory.join()

    def flush(self) -> None:
        """Do all merges that are due, and a checkpoint."""
        for engine in self.engines:
            engine.flush()

    def end(self) -> None:
        """Close it and delete its files."""
        self.memory.close()
        shutil.rmtree(self.root, ignore_errors=True)


class Directory(InMemory):
    """An engine over a directory."""

    durable = True

    def open(self) -> Any:
        made = self.open_at(self.folder)
        # From then on the directory says which columns are declared.
        self.options.pop("columns", None)
        return made

    def open_at(self, folder: Path) -> Any:
        """The memory of a directory."""
        return fr.Engine.open(folder, **self.options)

    def reopen(self, checkpoint: bool = True) -> None:
        """Close it and open it again; without a `checkpoint` the index files stay behind the records."""
        self.settle()
        for engine in self.engines if not checkpoint else ():
            engine.index.memory.directory = None
        self.memory.close()
        self.memory = self.open()

    def kill(self, point: str, act: Callable[[], object], count: int = 1) -> bool:
        """Act, and go on with the files as they were when the failpoint was reached; False where it was not."""
        self.settle()
        left = self.root / "left"
        if not leave(self.folder, point, act, left, count):
            return False
        self.memory.close()
        shutil.rmtree(self.folder)
        left.rename(self.folder)
        self.memory = self.open()
        return True


class Reader(Directory):
    """A directory that is searched by an engine opened with ``read_only``, which catches up with its writer."""

    reading: fr.Engine | None = None

    def open(self) -> Any:
        made = super().open()
        self.look_anew()
        return made

    def look_anew(self) -> None:
        if self.reading is not None:
            self.reading.close()
        self.reading = fr.Engine.open(self.folder, read_only=True)

    @property
    def engines(self) -> list[fr.Engine]:
        return [self.memory]

    @property
    def asked(self) -> Any:
        assert self.reading is not None
        self.reading.refresh()
        return self.reading

    def serve_from(self, name: str) -> None:
        assert self.reading is not None
        self.reading.backend = choose(name)

    def end(self) -> None:
        assert self.reading is not None
        self.reading.close()
        super().end()


class Sharded(Directory):
    """A sharded memory of this process over a directory."""

    def __init__(self, shards: int, **options: Any) -> None:
        self.shards = shards
        super().__init__(**options)

    def open_at(self, folder: Path) -> Any:
        shards = None if folder.exists() else self.shards
        return ShardedEngine.open(folder, shards=shards, transport="local", **self.options)

    @property
    def engines(self) -> list[fr.Engine]:
        return [link.shard.engine for link in self.memory.coordinator.links]


class Served(InMemory):
    """A client of a server over an engine, without a socket."""

    local = False

    def open(self) -> Any:
        self.engine = super().open()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        return self.connect(httpx.ASGITransport(make_app(self.engine)))

    def connect(self, transport: httpx.ASGITransport) -> Any:
        """A client over this transport."""
        client = fr.Client("http://memory")
        client._pool = httpx.Client(transport=_Threaded(transport, self.loop), base_url="http://memory")
        return client

    @property
    def engines(self) -> list[fr.Engine]:
        return [self.engine]

    def end(self) -> None:
        super().end()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        self.engine.close()


class ServedAwaited(Served):
    """As `Served`, by the client whose verbs are awaited."""

    def connect(self, transport: httpx.ASGITransport) -> Any:
        client = fr.AsyncClient("http://memory")
        connections = httpx.AsyncClient(transport=transport, base_url="http://memory")
        client._pools.loops[self.loop] = Pool(connections, asyncio.Semaphore(AT_ONCE))
        return Blocking(client, self.loop)


class Blocking:
    """The verbs of an `AsyncClient` as calls that block until its event loop, in another thread, has answered."""

    def __init__(self, client: fr.AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._client, name)

        async def answer(given: tuple[Any, ...], how: dict[str, Any]) -> Any:
            found = verb(*given, **how)
            return [each async for each in found] if isinstance(found, AsyncIterator) else await found

        return lambda *given, **how: asyncio.run_coroutine_threadsafe(answer(given, how), self._loop).result()


class _Threaded(httpx.BaseTransport):
    """The requests of a client that blocks, answered in the thread of an event loop."""

    def __init__(self, inner: httpx.ASGITransport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answer() -> httpx.Response:
            found = await self._inner.handle_async_request(
                httpx.Request(request.method, request.url, headers=request.headers, content=request.read())
            )
            return httpx.Response(found.status_code, headers=found.headers, content=await found.aread())

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()


MEMORIES: dict[str, Callable[..., Any]] = {
    "memory": InMemory,
    "directory": Directory,
    "reader": Reader,
    "one shard": lambda **options: Sharded(1, **options),
    "two shards": lambda **options: Sharded(2, **options),
    "three shards": lambda **options: Sharded(3, **options),
    "client": Served,
    "awaited client": ServedAwaited,
}
"""What makes a memory of each kind, of options of an engine."""
