"""The server beside the engine it serves, and beside another server: ``python -m bench.serve``.

bench/README.md says who asks whom. Cells are timed in turns, every other time in reverse. Milliseconds of a row are
those that a client waited, of all repetitions together. ``queries_per_s`` is the median of the repetitions, with the
least and the most. ``share`` is the median of the repetitions' ratios to the plain engine's throughput, and
``overhead_ms`` that of the differences of the median milliseconds. ``verified`` is None for a peer.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .harness.asking import FAN_OUT, K
from .harness.command import Command, among, numbers, positive
from .harness.environments import PeerError
from .harness.paths import ROOT
from .harness.rows import round_digits
from .harness.served import host
from .harness.ways import WAYS, Way
from .harness.workload import Work, load_work

PLAIN = "plain"
CHECKED = 5
"""Fan-outs of each way that are compared."""


Cell = tuple[str, int]
"""A way and a number of clients."""


class Served:
    """The process of `bench/harness/served.py`."""

    def __init__(self, records: int, questions: int) -> None:
        size = [f"--records={records}", f"--questions={questions}"]
        command = [sys.executable, "-m", "bench.serve", "--host", *size]
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
    if not way.ours:
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
    served: Served, ways: Sequence[Way], clients: Sequence[int], reps: int, seconds: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The rows of all cells, taken in turns."""
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
    rows = []
    for name, count in cells:
        way = known.get(name)
        plain = ms[PLAIN, count] if name != PLAIN else None
        rows.append(
            {
                **{"way": name, "over": way.over if way else "words", "ours": way.ours if way else True},
                **{"version": way.version if way else None, "clients": count, "k": K, "fan_out": FAN_OUT},
                **figures(ms[name, count], plain, seconds),
                **{"seconds": seconds, "note": way.note if way else "", "verified": right.get(name, True)},
            }
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
        **{"share": None, "overhead_ms": None},
    }
    pairs = [(mine, base) for mine, base in zip(reps, plain or (), strict=False) if mine and base]
    if pairs:
        found["share"] = round_digits(float(np.median([len(mine) / len(base) for mine, base in pairs])))
        apart = [float(np.median(mine) - np.median(base)) for mine, base in pairs]
        found["overhead_ms"] = round_digits(float(np.median(apart)))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if all answers were right, else 1."""
    known = tuple(kind.name for kind in WAYS)
    command = Command("serve", "The server beside its engine.")
    command.add("--ways", type=among(known), default=known)
    command.add("--clients", type=numbers, default=(1, 10, 100))
    command.add("--records", type=positive, default=50_000)
    command.add("--questions", type=positive, default=400)
    command.add("--seconds", type=float, default=1.0, help="of one measurement (default 1)")
    command.add("--reps", type=positive, default=3)
    command.add("--host", action="store_true", help=argparse.SUPPRESS)
    options = command.parse(arguments)
    work = load_work(options.records, options.questions)
    if options.host:
        host(work)
        return 0
    with started(work, options.ways) as (served, ways):
        rows = measure(served, ways, options.clients, options.reps, options.seconds, command.say)
        command.keep({**row, "records": len(work.ids)} for row in rows)
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
