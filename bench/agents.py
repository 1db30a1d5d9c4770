"""Many agents at once: ``python -m bench.agents``. Each sends a fan-out of 5 to 20 queries and waits for its answer.

Methods, over one engine in one process, all with the same pre-analysed queries:

``coalesced-threads``  a thread an agent, `Coalescer.search`
``coalesced-asyncio``  a task an agent, `Engine.asearch`
``locked``             a thread an agent, `Engine.search` behind one lock
``direct``             a thread an agent, `Engine.search`
``pool``               a task an agent, `Engine.search` of one thread in a pool of as many threads as cores
``bm25s``              the same with bm25s (its numba backend)

Cells are timed in turns, `--reps` times each. Before that, all agents send a sample of fan-outs at once: the engine's
methods must repeat a direct call's arrays bit for bit, and bm25s its reference (bench/harness/verify.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr
from fanrank.engine.serve.coalesce import CORES

from .harness import cases
from .harness.corpora import Tokens, load, prepare
from .harness.environments import PeerError, python_of
from .harness.methods import round_digits, stamp_rows
from .harness.options import names, numbers, progress
from .harness.reference import postings_of
from .harness.rows import append
from .harness.systems import PEERS
from .harness.verify import check

K = 10
FAN_OUT = (5, 20)
WARM_SECONDS = 0.3
MOST_THREADS = 100
"""The most agents of ``coalesced-threads``. More agents belong in an event loop."""
SAMPLE = 4
"""Fan-outs of an agent that are compared, for up to `SAMPLED` agents."""
SAMPLED = 50

HitArrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Documents and scores [queries, K]."""
Ask = Callable[[Sequence[int]], HitArrays]
Await = Callable[[Sequence[int]], Coroutine[Any, Any, HitArrays]]


@dataclass(frozen=True)
class AgentsRow:
    """One method with `agents` agents, all repetitions together. The time of a fan-out is the time its agent waited."""

    bench: str
    run: str
    case: str
    method: str
    agents: int
    k: int = K
    seconds: float = 0.0
    reps: int = 0
    fan_outs: int = 0
    queries_per_s: float = 0.0
    fan_outs_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    cpu_per_wall: float = 0.0
    cpu_us_per_query: float | None = None
    queries_per_launch: float | None = None
    verified: bool | None = None
    note: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


@dataclass
class ClientMethod:
    """One way to search: `ask` blocks, or `wait` is awaited."""

    name: str
    ask: Ask | None = None
    wait: Await | None = None
    most: int | None = None
    note: str = ""
    coalesced: bool = False


class Timed:
    """Times of one cell: milliseconds of its fan-outs, queries, seconds of wall and processor."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.queries = 0
        self.wall = 0.0
        self.cpu = 0.0
        self.launches = 0
        self.launched = 0  # queries of `launches`, the warm-up included


class Agent:
    """An agent. It draws its fan-outs from its own seed."""

    def __init__(self, seed: int, queries: int) -> None:
        self._random = random.Random(seed)
        self._all = range(queries)
        self.ms: list[float] = []
        self.queries = 0

    def fan_out(self) -> list[int]:
        return self._random.sample(self._all, self._random.randint(*FAN_OUT))

    def took(self, started: float, fan_out: Sequence[int], since: float, until: float) -> None:
        """Count the fan-out if it was answered between `since` and `until`."""
        ended = time.perf_counter()
        if since <= ended < until:
            self.ms.append(1e3 * (ended - started))
            self.queries += len(fan_out)


def fire(method: ClientMethod, agents: int, queries: int, seconds: float, seed: int) -> Timed:
    """Run all agents at once for `seconds`, after a warm-up of `WARM_SECONDS` that is not counted."""
    every = [Agent(seed * 10_007 + number, queries) for number in range(agents)]
    since = time.perf_counter() + WARM_SECONDS
    until = since + seconds
    found = Timed()

    def clock() -> None:
        time.sleep(max(0.0, since - time.perf_counter()))
        began, cpu = time.perf_counter(), time.process_time()
        time.sleep(max(0.0, until - time.perf_counter()))
        found.wall, found.cpu = time.perf_counter() - began, time.process_time() - cpu

    def run(agent: Agent) -> None:
        assert method.ask is not None
        while (started := time.perf_counter()) < until:
            fan_out = agent.fan_out()
            method.ask(fan_out)
            agent.took(started, fan_out, since, until)

    async def arun(agent: Agent) -> None:
        assert method.wait is not None
        while (started := time.perf_counter()) < until:
            fan_out = agent.fan_out()
            await method.wait(fan_out)
            agent.took(started, fan_out, since, until)

    _run_all(
        clock,
        method,
        [(lambda agent=agent: run(agent)) for agent in every],
        [(lambda agent=agent: arun(agent)) for agent in every],
    )
    found.ms = [ms for agent in every for ms in agent.ms]
    found.queries = sum(agent.queries for agent in every)
    return found


def _run_all(
    clock: Callable[[], None],
    method: ClientMethod,
    blocking: Sequence[Callable[[], None]],
    awaited: Sequence[Callable[[], Coroutine[Any, Any, None]]],
) -> None:
    """Run every agent with the method, beside the clock. Raises the first error of an agent."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again after the threads ended
            errors.append(error)

    async def together() -> None:
        await asyncio.gather(*(work() for work in awaited))

    works: list[Callable[[], None]] = [clock]
    works += blocking if method.wait is None else [lambda: asyncio.run(together())]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _pooled(ask: Ask) -> Await:
    """`ask` in a pool of as many threads as cores."""
    pool = ThreadPoolExecutor(CORES)

    async def wait(numbers: Sequence[int]) -> HitArrays:
        return await asyncio.get_running_loop().run_in_executor(pool, ask, numbers)

    return wait


class Case:
    """One corpus: the engine, its queries, the methods."""

    def __init__(self, name: str, bm25s: bool) -> None:
        self.corpus: Tokens = load(prepare(cases.CORPORA[name]))
        self.terms = self.corpus.query_terms()
        self.queries = [fr.Query(terms=terms) for terms in self.terms]
        records = (fr.Record(id=str(n), text=" ".join(terms)) for n, terms in enumerate(self.corpus.document_terms()))
        self.engine = fr.Engine.from_records(
            records, analyzer="minimal", method="lucene", k1=cases.K1, b=cases.B, keep_texts=False
        )
        self.engine.search(self.queries, K)
        self.lock = threading.Lock()
        self.methods = [
            ClientMethod("coalesced-threads", ask=self._coalesced, most=MOST_THREADS, coalesced=True),
            ClientMethod("coalesced-asyncio", wait=self._awaited, coalesced=True),
            ClientMethod("locked", ask=lambda numbers: self._search(numbers, self.lock)),
            ClientMethod("direct", ask=lambda numbers: self._search(numbers, None)),
            ClientMethod("pool", wait=_pooled(self._search_alone), note=f"{CORES} threads"),
        ]
        if bm25s:
            self.methods.append(self._bm25s())

    def _of(self, numbers: Sequence[int]) -> list[fr.Query]:
        return [self.queries[number] for number in numbers]

    def _search(self, numbers: Sequence[int], lock: threading.Lock | None) -> HitArrays:
        with lock or nullcontext():
            hits = self.engine.search(self._of(numbers), K)
        return hits.documents, hits.scores

    def _search_alone(self, numbers: Sequence[int]) -> HitArrays:
        hits = self.engine.search(self._of(numbers), K, threads=1)
        return hits.documents, hits.scores

    def _coalesced(self, numbers: Sequence[int]) -> HitArrays:
        hits = self.engine.coalescer.search(self._of(numbers), K)
        return hits.documents, hits.scores

    async def _awaited(self, numbers: Sequence[int]) -> HitArrays:
        hits = await self.engine.asearch(self._of(numbers), K)
        return hits.documents, hits.scores

    def _bm25s(self) -> ClientMethod:
        """bm25s of its peer's environment, in this process, so that callers cost the same. Raises `PeerError`."""
        python = python_of(PEERS["bm25s"], install=False)
        packages = next((python.parent.parent / "lib").glob("python*/site-packages"), None)
        if packages is None:
            raise PeerError(f"{python} has no packages")
        sys.path.append(str(packages))
        try:
            import bm25s
        except ImportError as error:
            raise PeerError(f"bm25s is not to be imported here: {error}") from None
        index = bm25s.BM25(backend="numba", method="lucene", k1=cases.K1, b=cases.B)
        index.index(self.corpus.document_terms(), show_progress=False)

        def retrieve(numbers: Sequence[int]) -> HitArrays:
            terms = [self.terms[number] for number in numbers]
            found = index.retrieve(terms, k=K, n_threads=1, show_progress=False)
            return found.documents.astype(np.int64), found.scores.astype(np.float64)

        retrieve(range(10))
        return ClientMethod("bm25s", wait=_pooled(retrieve), note=f"bm25s {bm25s.__version__}, {CORES} threads")

    def verified(self, method: ClientMethod, agents: int) -> bool:
        """Whether fan-outs that many agents send at once get the right answers."""
        every = [Agent(number, len(self.queries)) for number in range(min(agents, SAMPLED))]
        asked: list[tuple[list[int], HitArrays]] = []

        def run(agent: Agent) -> None:
            assert method.ask is not None
            for _ in range(SAMPLE):
                sent = agent.fan_out()
                asked.append((sent, method.ask(sent)))

        async def arun(agent: Agent) -> None:
            assert method.wait is not None
            for _ in range(SAMPLE):
                sent = agent.fan_out()
                asked.append((sent, await method.wait(sent)))

        blocking = [(lambda agent=agent: run(agent)) for agent in every]
        _run_all(lambda: None, method, blocking, [(lambda agent=agent: arun(agent)) for agent in every])
        if method.name == "bm25s":
            postings = postings_of(self.corpus)
            sent, (documents, scores) = asked[0]
            verdict = check(PEERS["bm25s"], self.corpus, postings, sent, K, documents, scores)
            return verdict.passed(PEERS["bm25s"].tolerance)
        for sent, found in asked:
            alone = self._search(sent, None)
            if not all(np.array_equal(one, other) for one, other in zip(found, alone, strict=True)):
                return False
        return len(asked) == SAMPLE * len(every)


def run_case(
    case: Case,
    agents: Sequence[int],
    reps: int,
    seconds: float,
    methods: Sequence[str],
    common: dict[str, Any],
    say: Callable[[str], None],
) -> list[AgentsRow]:
    """The rows of one corpus."""
    name = case.corpus.name
    chosen = [method for method in case.methods if not methods or method.name in methods]
    cells = [(method, count) for count in agents for method in chosen if method.most is None or count <= method.most]
    times = {(method.name, count): Timed() for method, count in cells}
    right = {(method.name, count): case.verified(method, count) for method, count in cells}
    for rep in range(reps):
        for method, count in cells if rep % 2 == 0 else reversed(cells):
            say(f"{name}: {count} agents, {method.name}, {rep + 1} of {reps}")
            before = case.engine.coalescer.stats()
            new, total = fire(method, count, len(case.queries), seconds, rep), times[method.name, count]
            total.ms += new.ms
            total.wall += new.wall
            total.cpu += new.cpu
            total.queries += new.queries
            after = case.engine.coalescer.stats()
            total.launches += after["launches"] - before["launches"]
            total.launched += after["queries"] - before["queries"]
    rows = []
    for method, count in cells:
        timed = times[method.name, count]
        ms = np.percentile(timed.ms, [50, 99, 100]).tolist() if timed.ms else [0.0] * 3
        rows.append(
            AgentsRow(
                case=name,
                method=method.name,
                agents=count,
                seconds=round_digits(timed.wall),
                reps=reps,
                fan_outs=len(timed.ms),
                queries_per_s=round_digits(timed.queries / timed.wall),
                fan_outs_per_s=round_digits(len(timed.ms) / timed.wall),
                p50_ms=round_digits(ms[0]),
                p99_ms=round_digits(ms[1]),
                max_ms=round_digits(ms[2]),
                cpu_per_wall=round_digits(timed.cpu / timed.wall),
                cpu_us_per_query=round_digits(1e6 * timed.cpu / timed.queries) if timed.queries else None,
                queries_per_launch=round_digits(timed.launched / timed.launches)
                if method.coalesced and timed.launches
                else None,
                verified=right[method.name, count],
                note=method.note,
                **common,
            )
        )
    return rows


def compare(rows: Sequence[AgentsRow]) -> list[str]:
    """fanrank's fastest method beside bm25s, for every number of agents that has both, in words."""
    told = []
    for case, count in dict.fromkeys((row.case, row.agents) for row in rows):
        cell = {row.method: row.queries_per_s for row in rows if (row.case, row.agents) == (case, count)}
        theirs = cell.pop("bm25s", 0.0)
        if theirs and cell:
            best = max(cell, key=lambda method: cell[method])
            told.append(
                f"{case}, {count:,} agents: {best} answers {cell[best] / theirs:.2f} times the queries of bm25s"
            )
    return told


def render(rows: Sequence[AgentsRow]) -> str:
    """A table, a line a row; then the ratios to bm25s."""
    lines = [
        "| corpus | agents | method | queries/s | p50 ms | p99 ms | cpu/wall | cpu us/query | a launch | verified |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        a_launch = "" if row.queries_per_launch is None else f"{row.queries_per_launch:,.0f}"
        lines.append(
            f"| {row.case} | {row.agents:,} | {row.method} | {row.queries_per_s:,.0f} | {row.p50_ms} | {row.p99_ms} | "
            f"{row.cpu_per_wall} | {row.cpu_us_per_query} | {a_launch} | {'yes' if row.verified else 'NO'} |"
        )
    return "\n".join([*lines, "", *compare(rows)]).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; rows are written only with --results. Returns 0 if all answers were right, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.agents", description="Many agents at once.")
    parser.add_argument("--cases", type=names, default=("sgd", "synthetic-50k"), help=f"of {','.join(cases.CORPORA)}")
    parser.add_argument("--agents", type=numbers, default=(1, 10, 100, 1000), help="default 1,10,100,1000")
    parser.add_argument("--methods", type=names, default=(), help="default: all")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement (default 3)")
    parser.add_argument("--reps", type=int, default=3, help="default 3")
    parser.add_argument("--max-batch", type=int, help="the coalescer's")
    parser.add_argument("--results", type=Path, help="append the rows to this file, as bench/results/agents.jsonl")
    parser.add_argument("--json", action="store_true", help="print the rows instead of the table")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.cases if name not in cases.CORPORA]:
        parser.error(f"no case {', '.join(unknown)}; there are: {', '.join(cases.CORPORA)}")
    if options.reps < 1 or options.seconds <= 0:
        parser.error("--reps must be 1 or more, and --seconds above 0")
    common, say, rows = stamp_rows("agents"), progress(), []
    for name in options.cases:
        say(f"{name}: builds")
        case = Case(name, bm25s=not options.methods or "bm25s" in options.methods)
        case.engine.coalescer.configure(max_batch=options.max_batch)
        found = run_case(case, options.agents, options.reps, options.seconds, options.methods, common, say)
        if options.results:
            append(options.results, found)
        rows += found
    say("")
    print("\n".join(json.dumps(asdict(row)) for row in rows) if options.json else render(rows))
    return int(not all(row.verified for row in rows))


if __name__ == "__main__":
    sys.exit(main())
