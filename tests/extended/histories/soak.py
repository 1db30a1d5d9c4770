"""A month in an hour: one memory is written, searched by 20 agents, backed up, renumbered, moved, restarted and killed.

``python -m tests.extended.histories.soak --seconds 3600`` plays it over one engine, three shards and the service, a
third of the time each. Its batches are those of `lives`: after each life what is there is compared with what was
acknowledged, and its answers with those of an engine built at once. A row says memory, files and times by time.
"""

import argparse
import json
import logging
import random
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fanrank as fr

from .kills import row
from .lives import FOLDER, OPTIONS, QUERIES, Broken, Child, Life, Round, Stream, Tally, agree, join

from support.live import serving  # isort: skip (lives.py says where it stands)
from world import NAMESPACES  # isort: skip

KINDS = ("engine", "shards", "service")
AGENTS = 20
SHARDS = 3
THINKS = 0.2
"""Seconds that an agent takes at most between two searches."""
BATCHES = 400
"""Of a life that ends by itself, at most."""
SAMPLED = (
    *("at", "threads", "rss_mib", "files", "files_mib"),
    *("search_p50_ms", "search_p99_ms", "write_p50_ms", "write_p99_ms"),
)
"""What a life says each second. Writes wait for the lock of the memory, so their times are those of the lock, too."""


def opened(kind: str, path: Path) -> Any:
    """The memory of a directory; the compiled loops answer, and numpy those that they are compared with."""
    options = {**OPTIONS, "backend": None}
    if kind != "shards":
        return fr.Engine.open(path, **options)
    return fr.ShardedEngine.open(path, shards=SHARDS, transport="local", split_at=60, **options)


@contextmanager
def asked(kind: str, memory: Any) -> Iterator[Any]:
    """What writers and agents ask."""
    if kind != "service":
        yield memory
        return
    with serving(memory) as live, fr.Client(f"http://127.0.0.1:{live.port}") as client:
        yield client


def size_of(path: Path) -> int | None:
    """The bytes of a file; None for what is none, or went meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None


class Busy(Child):
    """A life beside agents that search, and chores; each second it says how it goes."""

    def __init__(self, kind: str, *given: Any) -> None:
        super().__init__(*given)
        self.kind, self.searches, self.writes = kind, deque[float](maxlen=10_000), deque[float](maxlen=10_000)

    def _live(self) -> None:
        self.say("opening")
        memory = opened(self.kind, self.path)
        stop = threading.Event()
        with asked(self.kind, memory) as target:
            self.say("open")
            beside: list[Callable[[], None]] = [partial(self._ask, target, stop, number) for number in range(AGENTS)]
            beside += [partial(self._do_chores, memory, stop), partial(self._tell, stop)]
            threads = [threading.Thread(target=self._guarded, args=(work,)) for work in beside]
            for thread in threads:
                thread.start()
            self._guarded(lambda: self._write(_Timed(target, self.writes), 0))
            stop.set()
            for thread in threads:
                thread.join()
        self.say("closing")
        memory.close()
        self.say("closed")

    def _ask(self, target: Any, stop: threading.Event, number: int) -> None:
        rng = random.Random(f"{number}")
        while not stop.wait(rng.uniform(0, THINKS)):
            queries = rng.sample(QUERIES, 5)
            began = time.perf_counter()
            hits = target.search(queries, 10)
            self.searches.append(time.perf_counter() - began)
            for query, own in zip(queries, hits, strict=True):
                if [hit.score for hit in own] != sorted((hit.score for hit in own), reverse=True):
                    raise Broken(f"hits of {query} are out of order")

    def _do_chores(self, memory: Any, stop: threading.Event) -> None:
        chores: list[Callable[[], object]] = [memory.vacuum, memory.sweep, memory.flush]
        if self.kind == "shards":
            chores.append(memory.rebalance)
        number = 0
        while not stop.wait(0.7):
            number += 1
            if number % 5 == 1:
                self.copy(memory, number)
            else:
                chores[number % len(chores)]()

    def _tell(self, stop: threading.Event) -> None:
        while not stop.wait(1.0):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            own = [size for path in self.path.rglob("*") if (size := size_of(path)) is not None]
            times = [np.percentile([*some] or [0.0], (50, 99)) * 1e3 for some in (self.searches, self.writes)]
            self.searches.clear()
            self.writes.clear()
            sample = [pages / 256, len(own), sum(own) / (1 << 20), *np.concatenate(times).round(3).tolist()]
            self.say("sample", json.dumps([time.time(), threading.active_count(), *sample]))


class _Timed:
    """The verbs of a memory; the times of its writes are kept."""

    def __init__(self, memory: Any, times: deque[float]) -> None:
        self._memory, self._times = memory, times

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._memory, name)
        if name not in ("add", "upsert", "delete", "drop"):
            return verb

        def timed(*given: Any, **keywords: Any) -> Any:
            began = time.perf_counter()
            try:
                return verb(*given, **keywords)
            finally:
                self._times.append(time.perf_counter() - began)

        return timed


class Soak(Round):
    """One directory that lives again and again."""

    def __init__(self, kind: str, seed: int, root: Path) -> None:
        super().__init__(seed, KINDS.index(kind), Tally(), root)
        # REST drops no namespace without a name.
        self.streams = [Stream(f"{seed} {kind}", [name for name in NAMESPACES if name])]
        self.opened, self.child = partial(opened, kind), partial(Busy, kind)
        self.samples: list[list[float]] = []

    def live_on(self, seconds: float) -> None:
        """Live, and be looked at, for so long."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            known = min(self.acked)
            if self.rng.random() < 0.3:
                self.live(Life(batches=self.rng.randint(1, BATCHES)))
            else:
                self.live(Life(batches=1 << 30), "open", min(self.rng.uniform(1, 25), left))
            self.samples += [json.loads(line.partition(" ")[2]) for line in self.said if line.startswith("sample ")]
            self.look_at_copies()
            self.look()
            for stream in self.streams:
                stream.forget(known)

    def look(self, path: Path | None = None, *, damaged: bool = False) -> str:
        with self.opened(path or self.copy()) as memory:
            prefixes = self.prefixes(memory, self.acked)
            agree(memory, join(self.streams, prefixes))
        self.tally.verified += 1
        self.tally.in_flight += sum(prefixes) - sum(self.acked)
        self.acked, self.begun = prefixes, list(prefixes)
        return ""

    def slower(self) -> float | None:
        """The median time of a search in the last fifth of the samples, by that in the second; None for too few."""
        fifth = len(self.samples) // 5
        if not fifth:
            return None
        column = [sample[SAMPLED.index("search_p50_ms")] for sample in self.samples]
        return round(statistics.median(column[-fifth:]) / statistics.median(column[fifth : 2 * fifth]), 3)


def play(kind: str, seed: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Soak a memory of this kind; the row."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder, prefix="fanrank-soak-") as root:
        soak = Soak(kind, seed, Path(root))
        try:
            soak.live_on(seconds)
        except Exception as error:
            soak.tally.broken.append(str(error) if isinstance(error, Broken) else traceback.format_exc())
        changes = sum(stream.changes(prefix) for stream, prefix in zip(soak.streams, soak.acked, strict=True))
    soak.tally.seconds = round(time.monotonic() - began, 1)
    about = {"kind": kind, "changes": changes, "slower": soak.slower(), "sampled": SAMPLED, "samples": soak.samples}
    return {**row(soak.tally, seed), **about, "bench": "soak"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="of all kinds together")
    parser.add_argument("--kind", choices=KINDS, action="append", help="this alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where directories are made (default {FOLDER})")
    parser.add_argument("--results", type=Path, help="append a row for each kind to this JSON lines file")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    kinds: Sequence[str] = options.kind or KINDS
    rows = [play(kind, options.seed, options.seconds / len(kinds), options.folder) for kind in kinds]
    for one in rows:
        print(json.dumps({name: value for name, value in one.items() if name != "samples"}))
        if options.results is not None:
            with options.results.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(one) + "\n")
    return 1 if any(one["broken"] or one["lost"] or one["phantom"] for one in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
