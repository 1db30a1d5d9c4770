"""The temporal retriever: events in the time that a query names, by an index of times: ``python -m bench.events``.

A memory of two years, in which every second record is an event. Records arrive in the order of their times, or shuffled
(``late``), so that every segment holds events of all times. Queries name a day, a week, a month or "recently", as seen
from a moment of the last year. Answers are compared with a plain scan before they are timed (SPEC B002, B034).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr

from .harness.methods import quartiles_of, round_digits, stamp_rows
from .harness.options import names, numbers, progress
from .harness.paths import CACHE, RESULTS
from .harness.rows import append

SIZES, BATCHES, ARRIVALS = (10_000, 100_000, 1_000_000), (1, 20, 500), ("ordered", "late")
DAY = 86_400.0
NOW, SPAN = 1.7e9, 730 * DAY
K, REPS = 10, 15
CHUNK = 50_000
"""Records of one call of `add`."""
PHRASES = ("yesterday", "last week", "last month", "3 days ago", "a few weeks ago", "recently", "last Tuesday")
CHECKED = 20


@dataclass(frozen=True)
class EventsRow:
    """One batch size over one memory. All times are microseconds a query over `reps` calls.

    Medians, 99th percentiles and the least. `lookup` is the retriever alone: it lists up to 100 events for each query.
    `search` is a call from texts to ids, and `cpu` the processor's time of it. `scan` is a mask over the times of all
    events, for each query, without sorting. `first_ms` is the first lookup, which makes the orders of the segments.
    """

    bench: str
    run: str
    records: int
    arrival: str
    batch: int
    segments: int
    lookup_us: float
    lookup_min_us: float
    lookup_p99_us: float
    search_us: float
    search_p99_us: float
    cpu_us: float
    scan_us: float
    first_ms: float
    reps: int
    verified: bool
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


def make_memory(records: int, arrival: str, seed: int) -> tuple[fr.Engine, npt.NDArray[np.float64]]:
    """(an engine, the times of its records in the order of arrival). Records with an even number are events."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(NOW - SPAN, NOW, records))
    if arrival == "late":
        rng.shuffle(times)
    engine = fr.Engine(analyzer="minimal", keep_texts=False)
    for start in range(0, records, CHUNK):
        engine.add(
            fr.Record(f"r{n}", "tea", time=float(times[n]), type="Fact" if n % 2 else "Event")
            for n in range(start, min(start + CHUNK, records))
        )
    return engine, times


def make_queries(rng: np.random.Generator, count: int) -> list[fr.Query]:
    moments = rng.uniform(NOW - SPAN / 2, NOW, count)
    return [
        fr.Query(f"what happened {PHRASES[phrase]}?", now=float(now))
        for phrase, now in zip(rng.integers(0, len(PHRASES), count), moments, strict=True)
    ]


def is_right(engine: fr.Engine, times: npt.NDArray[np.float64], queries: Sequence[fr.Query]) -> bool:
    """Whether the retriever finds what a scan finds: the newest first, of equal times the first added."""
    events = np.arange(0, len(times), 2)
    hits = engine.search(queries, K, strategy="temporal")
    for row, query in enumerate(queries):
        when = fr.parse_when(query.text, float(query.now or 0.0))
        assert when is not None
        inside = events[(times[events] >= when.start) & (times[events] <= when.end)]
        newest = inside[np.lexsort((inside, -times[inside]))][:K]
        if [name for name, _ in hits[row]] != [f"r{number}" for number in newest.tolist()]:
            return False
    return True


def measure_cell(
    engine: fr.Engine, times: npt.NDArray[np.float64], batch: int, reps: int, rng: np.random.Generator
) -> dict[str, Any]:
    """The times of one batch size; each call asks other queries."""
    lookups, searches, cpu, scans = [], [], [], []
    events = times[::2]
    for rep in range(reps + 1):
        queries = make_queries(rng, batch)
        began, used = time.perf_counter(), time.process_time()
        hits = engine.search(queries, K, strategy="temporal", timing=True)
        took, spent = time.perf_counter() - began, time.process_time() - used
        if not rep:
            continue
        assert hits.timing is not None
        lookups.append(1e3 * hits.timing["temporal"] / batch)
        searches.append(1e6 * took / batch)
        cpu.append(1e6 * spent / batch)
        few = queries[: min(batch, 5)]
        windows = [fr.parse_when(query.text, float(query.now or 0.0)) for query in few]
        began = time.perf_counter()
        for when in windows:
            assert when is not None
            np.flatnonzero((events >= when.start) & (events <= when.end))
        scans.append(1e6 * (time.perf_counter() - began) / len(few))
    _, lookup, _, lookup_p99 = quartiles_of(lookups)
    _, search, _, search_p99 = quartiles_of(searches)
    return {
        "lookup_us": lookup,
        "lookup_min_us": round_digits(min(lookups)),
        "lookup_p99_us": lookup_p99,
        "search_us": search,
        "search_p99_us": search_p99,
        "cpu_us": quartiles_of(cpu)[1],
        "scan_us": quartiles_of(scans)[1],
    }


def measure(
    records: int, arrival: str, batches: Sequence[int], reps: int, seed: int, common: dict[str, Any]
) -> list[EventsRow]:
    """The rows of one memory."""
    engine, times = make_memory(records, arrival, seed)
    rng = np.random.default_rng(seed + 1)
    began = time.perf_counter()
    engine.search(make_queries(rng, 1), K, strategy="temporal")
    first = round_digits(1e3 * (time.perf_counter() - began))
    right = is_right(engine, times, make_queries(rng, CHECKED))
    return [
        EventsRow(
            records=records,
            arrival=arrival,
            batch=batch,
            segments=int(engine.stats()["segments"]),
            first_ms=first,
            reps=reps if batch > 1 else 10 * reps,
            verified=right,
            **measure_cell(engine, times, batch, reps if batch > 1 else 10 * reps, rng),
            **common,
        )
        for batch in batches
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.events", description="Events in the time a query names.")
    parser.add_argument("--records", type=numbers, default=SIZES, help="sizes of the memory, comma-separated")
    parser.add_argument("--batches", type=numbers, default=BATCHES, help="queries of a call, comma-separated")
    parser.add_argument("--arrivals", type=names, default=ARRIVALS, help=f"of {','.join(ARRIVALS)}")
    parser.add_argument("--reps", type=int, default=REPS, help="calls of a batch; ten times as many of single queries")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="10,000 records, 3 calls; rows to bench/.cache")
    parser.add_argument("--out", type=Path, help="the folder that the rows go to")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the rows")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, append the rows, print them. Returns 0 if every answer was right, else 1."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.arrivals if name not in ARRIVALS]:
        parser.error(f"no arrival {', '.join(unknown)}; there are: {', '.join(ARRIVALS)}")
    sizes, reps = ((10_000,), 3) if options.quick else (options.records, options.reps)
    common, say, rows = stamp_rows("events"), progress(), []
    for records in sizes:
        for arrival in options.arrivals:
            say(f"events: {records:,} records, {arrival}")
            new = measure(records, arrival, options.batches, reps, options.seed, common)
            append((options.out or (CACHE if options.quick else RESULTS)) / "events.jsonl", new)
            rows += new
    say("")
    print(json.dumps({**common, "rows": [asdict(row) for row in rows]}) if options.json else _render(rows))
    return int(not all(row.verified for row in rows))


def _render(rows: Sequence[EventsRow]) -> str:
    return "\n".join(
        f"{row.records:>9,} {row.arrival:8} {row.segments:>2} segments  batch {row.batch:>3}: "
        f"lookup {row.lookup_us} us (least {row.lookup_min_us}, p99 {row.lookup_p99_us}), search {row.search_us} us "
        f"(p99 {row.search_p99_us}, cpu {row.cpu_us}), "
        f"scan {row.scan_us} us{'' if row.verified else '  WRONG'}"
        for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
