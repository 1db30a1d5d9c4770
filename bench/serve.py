"""The server beside the engine it serves: ``python -m bench.serve``.

Each client sends fan-outs of 20 and waits for each.

Methods, over one engine in one process:

``plain``    a task a client in that process, `Engine.asearch`
``server``   a connection a client from another process, ``POST /v1/search``; the requests are written beforehand and
             the answers are counted, not read, so that the load takes little of the machine
``columns``  the same, answered by columns, as `fanrank.Client` asks
``client``   `fanrank.AsyncClient` from another process, hits and all; for up to 10 clients

Cells are timed in turns, `--reps` times each. Before that, answers of each method must equal the engine's bit for bit.
Server and load share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fanrank as fr

from .harness import cases
from .harness.corpora import load, prepare
from .harness.methods import round_digits, stamp_rows
from .harness.options import names, numbers, progress
from .harness.paths import ROOT
from .harness.rows import append

K, FAN_OUT = 10, 20
WARM_SECONDS = 0.3
METHODS = ("plain", "server", "columns", "client")
MOST_CLIENTS = {"client": 10}
"""A client in Python takes more of the machine than its request, so that many would measure themselves."""
SAMPLE = 5


@dataclass(frozen=True)
class ServeRow:
    """One method with `clients` clients, all repetitions together. Milliseconds are those that a client waited."""

    bench: str
    run: str
    case: str
    method: str
    clients: int
    k: int = K
    fan_out: int = FAN_OUT
    seconds: float = 0.0
    reps: int = 0
    fan_outs: int = 0
    queries_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    verified: bool | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


Ask = Callable[[Sequence[int]], Awaitable[Any]]


async def fire(asks: Sequence[Ask], queries: int, seconds: float, seed: int) -> tuple[list[float], float]:
    """Milliseconds of the fan-outs that all clients had answered within `seconds`, after a warm-up; and the seconds."""
    since = time.perf_counter() + WARM_SECONDS
    until, ms = since + seconds, list[float]()

    async def run(number: int, ask: Ask) -> None:
        drawn = random.Random(seed * 10_007 + number)
        while (began := time.perf_counter()) < until:
            await ask(drawn.sample(range(queries), FAN_OUT))
            ended = time.perf_counter()
            if since <= ended < until:
                ms.append(1e3 * (ended - began))

    await asyncio.gather(*(run(number, ask) for number, ask in enumerate(asks)))
    return ms, seconds


class Connection(asyncio.Protocol):
    """One connection, and one request at a time on it. It finds where an answer ends, and reads no more of it."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._needed = 0
        self._answered: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._needed:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._data[:end]).lower()
            length = head.split(b"content-length:")[1].split(b"\r\n")[0]
            self._needed = end + 4 + int(length)
        if len(self._data) >= self._needed and self._answered is not None:
            answer, answered = bytes(self._data), self._answered
            self._data.clear()
            self._needed, self._answered = 0, None
            answered.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionError("the server closed the connection"))

    async def ask(self, request: bytes) -> bytes:
        """The answer, with its head. Raises `RuntimeError` for any status but 200."""
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._answered
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer[:300].decode(errors="replace"))
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def texts_of(case: str) -> tuple[list[str], list[str]]:
    """The records' texts and the queries' texts of a corpus, already analysed."""
    tokens = load(prepare(cases.CORPORA[case]))
    return [" ".join(terms) for terms in tokens.document_terms()], [" ".join(terms) for terms in tokens.query_terms()]


def host(case: str) -> None:
    """Serve the corpus, and measure the plain engine for each line on standard input: clients, seconds, seed."""
    import uvicorn

    from fanrank.server.app import make_app
    from fanrank.server.limits import Limits

    documents, queries = texts_of(case)
    engine = fr.Engine.from_records(
        (fr.Record(str(number), text) for number, text in enumerate(documents)),
        analyzer="minimal",
        method="lucene",
        k1=cases.K1,
        b=cases.B,
        keep_texts=False,
    )
    engine.search(queries, K)
    # asyncio turns off the delay of small packets (40 ms) only on a socket that says that it is TCP.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    app = make_app(engine, limits=Limits(in_flight=4096, in_flight_per_key=4096))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    print(listening.getsockname()[1], flush=True)

    async def ask(numbers: Sequence[int]) -> None:
        hits = await engine.asearch([queries[number] for number in numbers], K)
        hits.ids  # noqa: B018 what every caller reads

    try:
        for line in sys.stdin:
            given = json.loads(line)
            if "numbers" in given:
                answer: Any = engine.search([queries[number] for number in given["numbers"]], K).to_dicts()
            else:
                answer = asyncio.run(fire([ask] * given["clients"], len(queries), given["seconds"], given["seed"]))
            print(json.dumps(answer), flush=True)
    finally:
        server.should_exit = True
        thread.join()


class Case:
    """One corpus: the process that serves it, and the ways to ask it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queries = texts_of(name)[1]
        command = [sys.executable, "-m", "bench.serve", "--host", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        port = self.process.stdout.readline()
        if not port.strip():
            raise RuntimeError(f"the server of {name} did not start")
        self.port = int(port)

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def tell(self, **given: Any) -> Any:
        """What the serving process itself answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(given) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def measure(self, method: str, clients: int, seconds: float, seed: int) -> tuple[list[float], float]:
        """As `fire`, by this method."""
        if method == "plain":
            ms, took = self.tell(clients=clients, seconds=seconds, seed=seed)
            return ms, took
        return asyncio.run(self._fire(method, clients, seconds, seed))

    async def _fire(self, method: str, clients: int, seconds: float, seed: int) -> tuple[list[float], float]:
        if method == "client":
            async with fr.AsyncClient(f"http://127.0.0.1:{self.port}") as client:

                async def search(numbers: Sequence[int]) -> None:
                    hits = await client.search([self.queries[number] for number in numbers], K)
                    hits.ids  # noqa: B018

                return await fire([search] * clients, len(self.queries), seconds, seed)
        connections = [await self._connect() for _ in range(clients)]
        try:
            asks = [self._ask(connection, method) for connection in connections]
            return await fire(asks, len(self.queries), seconds, seed)
        finally:
            for connection in connections:
                connection.close()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self.port)
        return connection

    def _ask(self, connection: Connection, method: str) -> Callable[[Sequence[int]], Awaitable[bytes]]:
        quoted = [json.dumps(text) for text in self.queries]
        form = "columns" if method == "columns" else "hits"

        def ask(asked: Sequence[int]) -> Awaitable[bytes]:
            body = f'{{"k": {K}, "form": "{form}", "queries": [{", ".join([quoted[n] for n in asked])}]}}'.encode()
            head = f"POST /v1/search HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
            return connection.ask(head.encode() + body)

        return ask

    def verified(self, method: str) -> bool:
        """Whether a sample of fan-outs gets the engine's own answers."""
        return asyncio.run(self._verify(method))

    async def _verify(self, method: str) -> bool:
        drawn = random.Random(1)
        for _ in range(SAMPLE if method != "plain" else 0):
            asked = drawn.sample(range(len(self.queries)), FAN_OUT)
            expected = self.tell(numbers=asked)
            if method == "client":
                async with fr.AsyncClient(f"http://127.0.0.1:{self.port}") as client:
                    found = (await client.search([self.queries[number] for number in asked], K)).to_dicts()
            else:
                connection = await self._connect()
                answer = json.loads((await self._ask(connection, method)(asked)).split(b"\r\n\r\n", 1)[1])
                connection.close()
                found = [row["hits"] if method == "server" else _hits_of(row) for row in answer["results"]]
            if found != expected:
                return False
        return True


def _hits_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = zip(row["ids"], row["scores"], strict=True)
    return [{"id": name, "score": score, "rank": n, "namespace": ""} for n, (name, score) in enumerate(pairs, 1)]


def run_case(
    case: Case, clients: Sequence[int], methods: Sequence[str], reps: int, seconds: float, common: dict[str, Any]
) -> list[ServeRow]:
    """The rows of one corpus."""
    say = progress()
    cells = [(method, count) for count in clients for method in methods if count <= MOST_CLIENTS.get(method, count)]
    right = {method: case.verified(method) for method in methods}
    ms: dict[tuple[str, int], list[float]] = {cell: [] for cell in cells}
    took = dict.fromkeys(cells, 0.0)
    for rep in range(reps):
        for method, count in cells if rep % 2 == 0 else reversed(cells):
            say(f"{case.name}: {count} clients, {method}, {rep + 1} of {reps}")
            new, wall = case.measure(method, count, seconds, rep)
            ms[method, count] += new
            took[method, count] += wall
    say("")
    rows = []
    for method, count in cells:
        times = ms[method, count]
        median, most = np.percentile(times, [50, 99]).tolist() if times else (0.0, 0.0)
        rows.append(
            ServeRow(
                case=case.name,
                method=method,
                clients=count,
                seconds=round_digits(took[method, count]),
                reps=reps,
                fan_outs=len(times),
                queries_per_s=round_digits(FAN_OUT * len(times) / took[method, count]),
                p50_ms=round_digits(median),
                p99_ms=round_digits(most),
                verified=right[method],
                **common,
            )
        )
    return rows


def compare(rows: Sequence[ServeRow]) -> list[str]:
    """The server beside the plain engine, in words."""
    told = []
    for case, count in dict.fromkeys((row.case, row.clients) for row in rows):
        cell = {row.method: row for row in rows if (row.case, row.clients) == (case, count)}
        plain = cell.pop("plain", None)
        for method, row in cell.items() if plain is not None and plain.queries_per_s else ():
            assert plain is not None
            told.append(
                f"{case}, {count:,} clients: {method} answers {row.queries_per_s / plain.queries_per_s:.2f} of the "
                f"plain engine's queries a second, a fan-out takes {row.p50_ms - plain.p50_ms:+.3f} ms (median)"
            )
    return told


def render(rows: Sequence[ServeRow]) -> str:
    """A table, a line a row; then the ratios to the plain engine."""
    lines = ["| case | method | clients | queries/s | p50 ms | p99 ms | right |", "|---|---|---:|---:|---:|---:|---|"]
    lines += [
        f"| {row.case} | {row.method} | {row.clients:,} | {row.queries_per_s:,.0f} | {row.p50_ms} | {row.p99_ms} | "
        f"{'yes' if row.verified else 'NO'} |"
        for row in rows
    ]
    return "\n".join([*lines, "", *compare(rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; rows are written only with --results. Returns 0 if all answers were right, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description="The server beside its engine.")
    parser.add_argument("--cases", type=names, default=("sgd",), help=f"of {','.join(cases.CORPORA)}")
    parser.add_argument("--clients", type=numbers, default=(1, 10, 100), help="default 1,10,100")
    parser.add_argument("--all", action="store_true", help="also 1,000 clients")
    parser.add_argument("--methods", type=names, default=METHODS, help=f"of {','.join(METHODS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement (default 3)")
    parser.add_argument("--reps", type=int, default=3, help="default 3")
    parser.add_argument("--results", type=Path, help="append the rows to this file, as bench/results/serve.jsonl")
    parser.add_argument("--json", action="store_true", help="print the rows instead of the table")
    parser.add_argument("--host", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.host:
        host(options.host)
        return 0
    if unknown := [name for name in options.cases if name not in cases.CORPORA]:
        parser.error(f"no case {', '.join(unknown)}; there are: {', '.join(cases.CORPORA)}")
    if unknown := [name for name in options.methods if name not in METHODS]:
        parser.error(f"no method {', '.join(unknown)}; there are: {', '.join(METHODS)}")
    clients = (*options.clients, 1000) if options.all else options.clients
    common, rows = stamp_rows("serve"), list[ServeRow]()
    for name in options.cases:
        with Case(name) as case:
            found = run_case(case, clients, options.methods, options.reps, options.seconds, common)
        if options.results:
            append(options.results, found)
        rows += found
    print("\n".join(json.dumps(asdict(row)) for row in rows) if options.json else render(rows))
    return int(not all(row.verified for row in rows))


if __name__ == "__main__":
    sys.exit(main())
