"""The server beside the engine it serves, and beside the servers of others: ``python -m bench.serve --record``.

Each client sends fan-outs of 20 over 50,000 turns of SGD, waits for the answer, and sends the next. `plain` is a task a
client in the server's own process (`Engine.asearch`); the ways in from other processes, and the peers, are those of
`bench/harness/ways.py`.

Cells are timed in turns, `--reps` times each, every other time in reverse. Before that, answers of each way to
fanrank must equal the engine's, ids and scores, bit for bit. A peer's server runs beside ours, and is asked while ours
waits. Servers and load share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .harness.asking import FAN_OUT, K
from .harness.environments import PeerError
from .harness.methods import round_digits, stamp_rows
from .harness.options import names, numbers, progress
from .harness.paths import RESULTS, ROOT
from .harness.rows import append
from .harness.served import host
from .harness.ways import WAYS, PeerServer, Way
from .harness.workload import Work, load_work

RECORDS, QUESTIONS = 50_000, 400
CLIENTS = (1, 10, 100, 1_000)
PLAIN = "plain"
CHECKED = 5
"""Fan-outs of each way that are compared."""


@dataclass(frozen=True)
class ServeRow:
    """One way with `clients` clients. Milliseconds are those that a client waited, of all repetitions together.

    `queries_per_s` is the median of the repetitions, with the least and the most. `share` is the median of the
    repetitions' ratios to the plain engine's throughput, and `overhead_ms` that of the differences of the median
    milliseconds; None without the plain engine beside it. `verified` is None for a peer.
    """

    bench: str
    run: str
    way: str
    over: str
    ours: bool
    version: str | None
    clients: int
    records: int
    k: int = K
    fan_out: int = FAN_OUT
    seconds: float = 0.0
    reps: int = 0
    fan_outs: int = 0
    queries_per_s: float = 0.0
    queries_per_s_low: float = 0.0
    queries_per_s_high: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    share: float | None = None
    overhead_ms: float | None = None
    verified: bool | None = None
    note: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


Cell = tuple[str, int]
"""A way and a number of clients."""


class Served:
    """The process of `bench/harness/served.py`."""

    def __init__(self, records: int, questions: int) -> None:
        command = [sys.executable, "-m", "bench.serve", "--host", f"{records},{questions}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.url: str = self._read()

    def tell(self, **given: Any) -> Any:
        """What the serving process itself answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(given) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the process of the server has ended; its error stands above")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@contextmanager
def started(work: Work, wanted: Sequence[str]) -> Iterator[tuple[Served, list[Way]]]:
    """The serving process and the ways that can be asked here. Of those that cannot, it prints why."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served = Served(len(work.ids), len(work.questions))
        stack.callback(served.close)
        ways = []
        for kind in WAYS:
            if kind.name not in wanted:
                continue
            way = kind(work, folder)
            try:
                way.start(served.url)
            except PeerError as error:
                print(f"left out: {way.name}: {error}", flush=True)
                continue
            stack.callback(way.stop)
            ways.append(way)
        yield served, ways


def is_right(served: Served, way: Way) -> bool | None:
    """Whether a sample of fan-outs gets the engine's own answers; None for a peer, which finds in its own way."""
    if isinstance(way, PeerServer):
        return None
    drawn = random.Random(1)
    for _ in range(CHECKED):
        asked = drawn.sample(range(len(way.work.questions)), min(FAN_OUT, len(way.work.questions)))
        rows = served.tell(numbers=asked, dense=way.over == "vectors")
        expected = [[(hit["id"], hit["score"]) for hit in row] for row in rows]
        if asyncio.run(way.found(asked)) != expected:
            return False
    return True


def measure(
    served: Served, ways: Sequence[Way], clients: Sequence[int], reps: int, seconds: float, common: dict[str, Any]
) -> list[ServeRow]:
    """The rows of all cells, taken in turns."""
    say = progress()
    right: dict[str, bool | None] = {way.name: is_right(served, way) for way in ways}
    known = {way.name: way for way in ways}
    cells: list[Cell] = [(PLAIN, count) for count in clients]
    cells += [(way.name, count) for way in ways for count in clients if count <= way.most]
    cells.sort(key=lambda cell: cell[1])
    ms: dict[Cell, list[list[float]]] = {cell: [] for cell in cells}
    for rep in range(reps):
        for name, count in cells if rep % 2 == 0 else reversed(cells):
            say(f"{count:,} clients, {name}, {rep + 1} of {reps}")
            if name == PLAIN:
                found = served.tell(clients=count, seconds=seconds, seed=rep)
            else:
                found = asyncio.run(known[name].measure(count, seconds, rep))
            ms[name, count].append(found)
    say("")
    rows = []
    for name, count in cells:
        way = known.get(name)
        rows.append(
            ServeRow(
                way=name,
                over=way.over if way else "words",
                ours=way.ours if way else True,
                version=way.version if way else None,
                clients=count,
                seconds=seconds,
                note=way.note if way else "",
                verified=right.get(name, True),
                **figures(ms[name, count], ms[PLAIN, count] if name != PLAIN else None, seconds),
                **common,
            )
        )
    return rows


def figures(reps: Sequence[list[float]], plain: Sequence[list[float]] | None, seconds: float) -> dict[str, Any]:
    """The figures of a cell, from the milliseconds of each repetition, beside the plain engine's of the same one."""
    rates = [FAN_OUT * len(ms) / seconds for ms in reps]
    waited = [one for ms in reps for one in ms] or [0.0]
    found: dict[str, Any] = {
        "reps": len(reps),
        "fan_outs": sum(map(len, reps)),
        "queries_per_s": round_digits(float(np.median(rates))),
        "queries_per_s_low": round_digits(min(rates)),
        "queries_per_s_high": round_digits(max(rates)),
        "p50_ms": round_digits(float(np.percentile(waited, 50))),
        "p99_ms": round_digits(float(np.percentile(waited, 99))),
    }
    pairs = [(mine, base) for mine, base in zip(reps, plain or (), strict=False) if mine and base]
    if pairs:
        found["share"] = round_digits(float(np.median([len(mine) / len(base) for mine, base in pairs])))
        apart = [float(np.median(mine) - np.median(base)) for mine, base in pairs]
        found["overhead_ms"] = round_digits(float(np.median(apart)))
    return found


def render(row: ServeRow) -> str:
    """A row as a line."""
    line = f"{row.way:8} {row.clients:>6,} clients {row.queries_per_s:>10,.0f} queries/s"
    line += f" [{row.queries_per_s_low:,.0f}, {row.queries_per_s_high:,.0f}]  p50 {row.p50_ms} ms  p99 {row.p99_ms} ms"
    if row.share is not None and row.ours and row.over == "words":
        line += f"  {row.share:.2f} of the plain engine, {row.overhead_ms:+.3f} ms"
    return line + ("  WRONG" if row.verified is False else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; rows are written with --record alone. Returns 0 if all answers were right, else 1."""
    known = [kind.name for kind in WAYS]
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description="The server beside its engine.")
    parser.add_argument("--ways", type=names, default=tuple(known), help=f"of {', '.join(known)}; by default all")
    parser.add_argument("--clients", type=numbers, default=CLIENTS, help="default 1,10,100,1000")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one measurement (default 1.5)")
    parser.add_argument("--reps", type=int, default=3, help="default 3")
    parser.add_argument("--small", action="store_true", help="few records, clients and calls, to see that it works")
    parser.add_argument("--record", action="store_true", help="append the rows to bench/results/serve.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder that recorded rows go to")
    parser.add_argument("--host", type=numbers, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.host:
        host(load_work(*options.host))
        return 0
    if unknown := [name for name in options.ways if name not in known]:
        parser.error(f"no {', '.join(unknown)}; there are: {', '.join(known)}")
    records, questions = (300, 60) if options.small else (options.records, QUESTIONS)
    clients, reps, seconds = ((1, 3), 1, 0.2) if options.small else (options.clients, options.reps, options.seconds)
    work = load_work(records, questions)
    with started(work, options.ways) as (served, ways):
        rows = measure(served, ways, clients, reps, seconds, {**stamp_rows("serve"), "records": len(work.ids)})
    if options.record:
        append(options.out / "serve.jsonl", rows)
    for row in rows:
        print(render(row), flush=True)
    return int(not all(row.verified is not False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
