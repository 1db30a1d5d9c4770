"""An agent's session of 800 turns, measured: ``python -m bench.session`` (SPEC A040, Table 3).

The memory grows linearly from 4,052 records to 4,998,640 while the session lasts. Each turn first writes its share of
the records, then asks Poisson(8) questions, clipped to 3 to 20, as one batch, ids included. The published table samples
latencies from a curve. Here every turn runs, and the answer after a write pays for the work that the write makes
necessary (statistics, contributions). Every method has its own engine and its own session, with the same turns.

``cumulative_s`` is the time of all answers together, ``step_*`` are those of a turn's answers, ``over_limit`` the share
of turns whose answers took more than 200 ms, ``query_*`` a turn's time over its retrievals. ``write_*`` are those of
`add`, with a turn's records in one call. ``hit_rate``: questions whose source record is among the 10 hits.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine.backends.choose import DEVICES
from fanrank.engine.errors import FanrankError

from .growth import SIZES, grow
from .harness.command import Command, among, positive
from .harness.methods import Backends, Method, answer, count_found, import_analyzer, list_methods, peak_rss_gib
from .harness.rows import round_digits
from .harness.synthetic import SyntheticMemory

RETRIEVALS, FEWEST, MOST = 8.0, 3, 20
STEP_LIMIT_MS = 200.0
"""The limit of a turn, which a user notices (SPEC A040)."""
DEFAULT_METHODS = ("vectorised", "temporal")
"""Each builds five million records."""
WARM_UP = 3
"""Batches before the first turn, which no figure counts."""


@dataclass(frozen=True)
class Session:
    """The turns: how many records each writes and how many questions it asks. The same seed gives the same session."""

    turns: int = 800
    first: int = SIZES[0]
    records: int = SIZES[-1]
    seed: int = 42

    def sizes(self) -> list[int]:
        """Records after each turn's write."""
        return np.linspace(self.first, self.records, self.turns + 1).astype(np.int64)[1:].tolist()

    def retrievals(self) -> list[int]:
        """Questions of each turn."""
        drawn = np.random.default_rng([self.seed, self.turns]).poisson(RETRIEVALS, self.turns)
        return np.clip(drawn, FEWEST, MOST).tolist()


@dataclass
class Times:
    """The seconds of each turn so far."""

    steps: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    hits: int = 0


def play(session: Session, method: Method, threads: int, say: Callable[[str], None]) -> tuple[Times, str]:
    """Play the whole session with one method. Returns its times and the backend that served. Raises `FanrankError`."""
    import_analyzer()
    engine, times = fr.Engine(keep_texts=False), Times()
    before = SyntheticMemory(session.first, session.seed)
    grow(engine, before, 0, lambda line: None)
    backend = Backends().serve(engine, method)
    for number in range(WARM_UP):
        answer(engine, method, method.queries(before.questions(MOST, seed=session.seed + number)), threads=threads)
    size_before = session.first
    for turn, (size, count) in enumerate(zip(session.sizes(), session.retrievals(), strict=True)):
        memory = SyntheticMemory(size, session.seed)
        chunk = list(memory.stream(size_before))
        size_before = size
        questions = memory.questions(count)
        queries = method.queries(questions)
        begin = time.perf_counter()
        engine.add(chunk)
        written = time.perf_counter()
        answers = answer(engine, method, queries, threads=threads)
        times.steps.append(time.perf_counter() - written)
        times.writes.append(written - begin)
        times.hits += count_found(answers, questions)
        say(f"{method.name}: turn {turn + 1} of {session.turns}, {size:,} records")
    return times, backend


def row(session: Session, method: Method, threads: int, times: Times, backend: str) -> dict[str, Any]:
    """The row of a played session."""
    counts = np.array(session.retrievals())
    steps, writes = 1e3 * np.array(times.steps), 1e3 * np.array(times.writes)
    each = 1e3 * steps / counts
    figures = {
        "cumulative_s": steps.sum() / 1e3,
        "step_p50_ms": np.percentile(steps, 50),
        "step_p99_ms": np.percentile(steps, 99),
        "step_max_ms": steps.max(),
        "query_p50_us": np.percentile(each, 50),
        "query_p99_us": np.percentile(each, 99),
        "write_s": writes.sum() / 1e3,
        "write_p99_ms": np.percentile(writes, 99),
        "write_max_ms": writes.max(),
    }
    return {
        "backend": backend,
        "threads": threads if method.batch > 1 else 1,
        "retrievals": int(counts.sum()),
        **{name: round_digits(value) for name, value in figures.items()},
        "over_limit": round(float((steps > STEP_LIMIT_MS).mean()), 4),
        "hit_rate": round(times.hits / int(counts.sum()), 4),
        "peak_rss_gib": peak_rss_gib(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Play. Returns 0 if nothing failed, else 1."""
    every = {method.name: method for method in list_methods()}
    chosen = tuple(name for name in every if name in DEFAULT_METHODS or every[name].backend in DEVICES)
    command = Command("session", "A session of many turns, measured.")
    command.add("--turns", type=positive, default=800)
    command.add("--records", type=positive, default=SIZES[-1])
    command.add("--methods", type=among(every), default=chosen)
    command.add("--threads", type=positive, default=1, help="of every method but the sequential one (default 1)")
    options = command.parse(arguments)
    session = Session(options.turns, min(SIZES[0], options.records), options.records)
    for name in options.methods:
        identity = {"method": name, "turns": session.turns, "first_records": session.first, "records": session.records}
        try:
            times, backend = play(session, every[name], options.threads, command.say)
            command.keep([{**identity, **row(session, every[name], options.threads, times, backend), "error": None}])
        except FanrankError as error:
            command.keep([{**identity, "error": f"{type(error).__name__}: {error}"}])
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
