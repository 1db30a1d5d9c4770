"""An agent's session of 800 turns, measured: ``python -m bench.session`` (SPEC A040, Table 3).

The memory grows linearly from 4,052 records to 4,998,640 while the session lasts. Each turn first writes its share of
the records, then asks Poisson(8) questions, clipped to 3 to 20, as one batch, ids included. The published table samples
latencies from a curve. Here every turn runs, and the answer after a write pays for the work that the write makes
necessary (statistics, contributions). Every method has its own engine and its own session, with the same turns.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # python bench/session.py
    from runpy import run_module

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    run_module("bench.session", run_name="__main__")
    sys.exit()

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine.backends.choose import DEVICES
from fanrank.engine.errors import FanrankError
from fanrank.engine.evaluate.synthetic import SyntheticMemory

from .growth import SIZES, grow
from .harness.methods import (
    Backends,
    K,
    Method,
    count_found,
    import_analyzer,
    list_methods,
    peak_rss_gib,
    round_digits,
    stamp_rows,
)
from .harness.options import names, progress
from .harness.paths import CACHE, RESULTS
from .harness.rows import append

TURNS, QUICK_TURNS, QUICK_RECORDS = 800, 40, 40_081
RETRIEVALS, FEWEST, MOST = 8.0, 3, 20
STEP_LIMIT_MS = 200.0
"""The limit of a turn, which a user notices (SPEC A040)."""
DEFAULT_METHODS = ("sequential", "vectorised", "maxscore", "temporal", "temporal-auto", "decay")
WARM_UP = 3
"""Batches before the first turn, which no figure counts."""


@dataclass(frozen=True)
class SessionRow:
    """One method over the whole session; with `error`, a method that failed.

    `cumulative_s` is the time of all answers together, ``step_*`` are those of a turn's answers, `over_limit` the share
    of turns whose answers took more than 200 ms, ``query_*`` a turn's time over its retrievals. ``write_*`` are those
    of `add`, with a turn's records in one call. `hit_rate`: questions whose source record is among the 10 hits.
    """

    bench: str
    run: str
    method: str
    turns: int
    first_records: int
    records: int
    backend: str = ""
    threads: int = 1
    retrievals: int = 0
    cumulative_s: float | None = None
    step_p50_ms: float | None = None
    step_p99_ms: float | None = None
    step_max_ms: float | None = None
    over_limit: float | None = None
    query_p50_us: float | None = None
    query_p99_us: float | None = None
    write_s: float | None = None
    write_p99_ms: float | None = None
    write_max_ms: float | None = None
    hit_rate: float | None = None
    peak_rss_gib: float | None = None
    error: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


@dataclass(frozen=True)
class Session:
    """The turns: how many records each writes and how many questions it asks. The same seed gives the same session."""

    turns: int = TURNS
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
        _ask(engine, method, method.queries(before.questions(MOST, seed=session.seed + number)), threads)
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
        answers = _ask(engine, method, queries, threads)
        times.steps.append(time.perf_counter() - written)
        times.writes.append(written - begin)
        times.hits += count_found(answers, questions)
        say(f"{method.name}: turn {turn + 1} of {session.turns}, {size:,} records")
    return times, backend


def _ask(engine: fr.Engine, method: Method, queries: Sequence[fr.Query], threads: int) -> list[fr.Hits]:
    """Search in one batch, or one query at a time for a method of batch 1, ids included."""
    size = min(method.batch, max(1, len(queries)))
    answers = []
    for start in range(0, len(queries), size):
        call = queries[start : start + size]
        hits = engine.search(call, K, threads=threads if size > 1 else 1, execution=method.execution)
        _ = hits.ids
        answers.append(hits)
    return answers


def row(
    session: Session, method: Method, threads: int, times: Times, backend: str, common: dict[str, Any]
) -> SessionRow:
    """The row of a played session."""
    counts = np.array(session.retrievals())
    steps, writes = 1e3 * np.array(times.steps), 1e3 * np.array(times.writes)
    each = 1e3 * steps / counts
    return SessionRow(
        method=method.name,
        turns=session.turns,
        first_records=session.first,
        records=session.records,
        backend=backend,
        threads=threads if method.batch > 1 else 1,
        retrievals=int(counts.sum()),
        cumulative_s=round_digits(steps.sum() / 1e3),
        step_p50_ms=round_digits(np.percentile(steps, 50)),
        step_p99_ms=round_digits(np.percentile(steps, 99)),
        step_max_ms=round_digits(steps.max()),
        over_limit=round(float((steps > STEP_LIMIT_MS).mean()), 4),
        query_p50_us=round_digits(np.percentile(each, 50)),
        query_p99_us=round_digits(np.percentile(each, 99)),
        write_s=round_digits(writes.sum() / 1e3),
        write_p99_ms=round_digits(np.percentile(writes, 99)),
        write_max_ms=round_digits(writes.max()),
        hit_rate=round(times.hits / int(counts.sum()), 4),
        peak_rss_gib=peak_rss_gib(),
        **common,
    )


def markdown(rows: Sequence[SessionRow]) -> str:
    """The session rows as a table: the columns of Table 3, then the writes."""
    lines = [
        "| method | cum. s | p99 ms a step | over 200 ms | p99 us a query | hit@10 | writes s | p99 ms a write |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for item in rows:
        if item.error is not None:
            lines.append(f"| {item.method} | | | | | | | error: {item.error} |")
            continue
        steps = f"{item.cumulative_s:,.4g} | {item.step_p99_ms:,.4g} | {item.over_limit:.1%} | {item.query_p99_us:,.6g}"
        lines.append(
            f"| {item.method} | {steps} | {item.hit_rate:.3f} | {item.write_s:,.4g} | {item.write_p99_ms:,.4g} |"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.session", description="A session of 800 turns, measured.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TURNS} turns to {QUICK_RECORDS:,} records")
    parser.add_argument("--turns", type=int, help=f"default {TURNS}")
    parser.add_argument("--records", type=int, help=f"records at the end (default {SIZES[-1]:,})")
    parser.add_argument("--methods", type=names, help=f"default {','.join(DEFAULT_METHODS)} and the GPU's")
    parser.add_argument("--threads", type=int, default=1, help="of every method but the sequential one (default 1)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--name", default="session", help="rows go to bench/results/NAME.jsonl (quick: bench/.cache)")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the rows, not the table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, append the rows, print them. Returns 0 if nothing failed, else 1."""
    parser = _parser()
    options = parser.parse_args(arguments)
    every = {method.name: method for method in list_methods()}
    chosen = options.methods or [name for name in every if name in DEFAULT_METHODS or every[name].backend in DEVICES]
    if unknown := [name for name in chosen if name not in every]:
        parser.error(f"no method {', '.join(unknown)}; there are: {', '.join(every)}")
    turns = options.turns or (QUICK_TURNS if options.quick else TURNS)
    records = options.records or (QUICK_RECORDS if options.quick else SIZES[-1])
    if turns < 1 or records < 1 or options.threads < 1:
        parser.error("--turns, --records and --threads must be 1 or more")
    session = Session(turns, min(SIZES[0], records), records, options.seed)
    common, say = stamp_rows("session"), progress()
    rows: list[SessionRow] = []
    for name in chosen:
        new = _play_row(session, every[name], options.threads, common, say)
        append((CACHE if options.quick else RESULTS) / f"{options.name}.jsonl", [new])
        rows.append(new)
    say("")
    print(json.dumps({**common, "rows": [asdict(item) for item in rows]}) if options.json else markdown(rows))
    return int(any(item.error for item in rows))


def _play_row(
    session: Session, method: Method, threads: int, common: dict[str, Any], say: Callable[[str], None]
) -> SessionRow:
    try:
        times, backend = play(session, method, threads, say)
    except FanrankError as error:
        identity = {"turns": session.turns, "first_records": session.first, "records": session.records}
        return SessionRow(method=method.name, error=f"{type(error).__name__}: {error}", **identity, **common)
    return row(session, method, threads, times, backend, common)


if __name__ == "__main__":
    sys.exit(main())
