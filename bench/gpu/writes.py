"""The first answer after each write: ``python -m bench.gpu.writes``.

Contributions, tables and times are written on a stream of their own, and a search that does not wait for them answers
wrongly just once. So every kind of search comes first after a write many times, and each answer is compared with
numpy's, bit for bit.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fanrank as fr
from fanrank.engine.backends import choose as backend

from ..harness.command import Command
from ..harness.paths import RESULTS

WORDS = [f"w{number}" for number in range(2000)]
SESSIONS = 500


def records(draw: random.Random, first: int, count: int) -> Iterator[fr.Record]:
    """Of common and rare words, several in a session."""
    for number in range(first, first + count):
        text = " ".join(WORDS[int(len(WORDS) * draw.random() ** 3)] for _ in range(draw.randrange(3, 40)))
        yield fr.Record(str(number), text, time=float(number), session=str(draw.randrange(SESSIONS)))


def texts(draw: random.Random, count: int) -> list[str]:
    return [" ".join(draw.choices(WORDS[:400], k=4)) for _ in range(count)]


def decayed(draw: random.Random) -> list[fr.Query]:
    return [fr.Query(text, half_life=1e4, now=2e6) for text in texts(draw, 20)]


def borrowed(draw: random.Random) -> list[fr.Query]:
    return [fr.Query(text, neighbours=fr.Neighbours(2, 0.25)) for text in texts(draw, 20)]


def ranged(draw: random.Random) -> list[fr.Query]:
    return [fr.Query(text, since=100.0) for text in texts(draw, 20)]


FIRST: dict[str, Callable[[random.Random], list[Any]]] = {
    "fan-out": lambda draw: texts(draw, 5),
    "texts": lambda draw: texts(draw, 200),
    "decay": decayed,
    "neighbours": borrowed,
    "range": ranged,
}
"""What is searched first after a write, by name."""


def same(found: fr.Hits, wanted: fr.Hits) -> bool:
    pairs = ((getattr(found, part), getattr(wanted, part)) for part in ("scores", "documents", "counts"))
    return all(np.array_equal(own, other) for own, other in pairs)


def count_wrong(name: str, size: int, minutes: float, seed: int = 0) -> dict[str, dict[str, int]]:
    """By kind of search, how many answers were compared and how many of them were wrong."""
    draw = random.Random(seed)
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    engine.add(records(draw, 0, size))
    device, numpy = backend.choose(name), engine.backend
    counts = {kind: {"compared": 0, "wrong": 0} for kind in FIRST}
    end, written = time.monotonic() + 60 * minutes, size
    while True:
        for kind, make in FIRST.items():
            engine.add(records(draw, written, 10))
            written += 10
            batch = make(draw)
            engine.backend = device
            found = engine.search(batch, 10)
            engine.backend = numpy
            counts[kind]["compared"] += 1
            counts[kind]["wrong"] += not same(found, engine.search(batch, 10))
        if time.monotonic() > end:
            return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, a row of counts for each family. Returns 1 if any answer was wrong."""
    command = Command("gpu.writes", "The first answer after each write.", "gpu", "first_writes")
    command.add("--out", type=Path, default=RESULTS, help="folder of the rows")
    command.add("--commit", help="where the checkout has no git: the commit that it is")
    command.add("--minutes", type=float, default=6.0)
    options = command.parse(arguments)
    options.results = options.out / "first_writes.jsonl"
    command.common |= {"bench": "first_writes", "commit": options.commit or command.common["commit"]}
    gpu = torch.cuda.is_available()
    names = backend.DEVICES if gpu else ("cuda-host",)
    for name in names:
        counts = count_wrong(name, 200_000 if gpu else 500, options.minutes / len(names) if gpu else 0.1)
        right = all(each["compared"] and not each["wrong"] for each in counts.values())
        command.keep([{"backend": name, "counts": counts, "verified": right}])
        print(name, counts)
    return int(not all(row["verified"] for row in command.rows))


if __name__ == "__main__":
    raise SystemExit(main())
