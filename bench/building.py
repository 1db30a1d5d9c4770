"""Rate and memory of builds beside other engines: documents a second, and the memory of a build over its index's.

    python -m bench.building                                  # four corpora; rows only printed
    python -m bench.building --cases nq-shaped --systems fanrank --threads 2 --results bench/results/build.jsonl

Every build has its own process, and one process runs at a time. For the rate, each system is built `--reps` times from
input in memory (PISA: in a file), the systems in turn. For the memory, each is built once more from documents that are
made as they are read, where the system can (fanrank, tantivy; PISA reads its file).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .harness import cases
from .harness.client import Worker
from .harness.code import code_of
from .harness.corpora import load, prepare
from .harness.environments import PeerError, python_of
from .harness.machine import commit, machine, now
from .harness.options import names, numbers, progress
from .harness.paths import CACHE
from .harness.rows import append
from .harness.systems import PEERS

SYSTEMS = ("fanrank", "bm25s", "tantivy", "pisa")
SINGLE = ("bm25s",)
"""Systems that always build in one thread."""
ON_DISK = ("tantivy", "pisa")
"""Systems whose index is files. Their memory after the build does not show its size."""
TIMEOUT = 3600.0


@dataclass(frozen=True)
class Row:
    """The builds of one system on one corpus; with `error`, one that could not be measured.

    `docs_per_s` is the median over `reps` builds, `docs_per_s_max` the fastest. `index_bytes` are as in rows.py.
    `held_bytes` is the growth of the process's resident memory by the build, after collection and trimming, without its
    input: postings, vocabulary, ids, columns, caches. `peak_bytes` is the most during the build, above what was held
    when it began, input included. `peak_ratio` is the peak over `held_bytes`, or over `index_bytes` where `on_disk`.
    """

    bench: str
    run: str
    case: str
    system: str
    threads: int
    version: str | None = None
    documents: int = 0
    tokens: int = 0
    docs_per_s: float | None = None
    docs_per_s_max: float | None = None
    reps: int = 0
    index_bytes: int | None = None
    held_bytes: int | None = None
    peak_bytes: int | None = None
    peak_ratio: float | None = None
    on_disk: bool = False
    streamed: bool = False
    error: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


def _build_apart(corpus: cases.Corpus, folder: Path, system: str, threads: int, stream: bool) -> dict[str, Any]:
    """One build in a process of its own. Raises `PeerError`."""
    worker = Worker(python_of(PEERS[system], False), system, threads, CACHE / "logs" / f"{corpus.name}.{system}.log")
    try:
        scratch = CACHE / "work" / corpus.name / f"{system}-building"
        loaded = worker.ask("load", TIMEOUT, corpus=str(folder), scratch=str(scratch), stream=stream)
        return {**loaded, **worker.ask("build", TIMEOUT, threads=threads)}
    finally:
        worker.close()


def measure(
    corpus: cases.Corpus,
    systems: Sequence[str],
    threads: Sequence[int],
    reps: int,
    shared: dict[str, Any],
    say: Callable[[str], None],
) -> list[Row]:
    """The rows of one corpus. Raises `OSError` if it cannot be read."""
    folder = prepare(corpus)
    tokens = load(folder)
    cells = [(name, count) for name in systems for count in threads if count == 1 or name not in SINGLE]
    seconds: dict[tuple[str, int], list[float]] = {cell: [] for cell in cells}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    errors: dict[tuple[str, int], str] = {}
    for rep in range(reps + 1):
        stream = rep == reps
        for cell in cells:
            if cell in errors:
                continue
            say(f"{corpus.name}: {cell[0]} builds with {cell[1]} threads, {rep + 1} of {reps + 1}")
            try:
                found[cell] = _build_apart(corpus, folder, *cell, stream)
            except PeerError as error:
                errors[cell] = str(error)
            else:
                if not stream:
                    seconds[cell].append(found[cell]["seconds"])
    rows = []
    for name, count in cells:
        common: dict[str, Any] = {"case": corpus.name, "system": name, "threads": count, **shared}
        common |= {"documents": tokens.documents, "tokens": len(tokens.tokens), "on_disk": name in ON_DISK}
        if (name, count) in errors:
            rows.append(Row(**common, error=errors[name, count]))
            continue
        built = found[name, count]
        rates = [tokens.documents / own_seconds for own_seconds in seconds[name, count]]
        size = built["index_bytes"] if name in ON_DISK else built["held_bytes"]
        rows.append(
            Row(
                **common,
                version=built["version"],
                docs_per_s=round(statistics.median(rates)),
                docs_per_s_max=round(max(rates)),
                reps=reps,
                index_bytes=built["index_bytes"],
                held_bytes=built["held_bytes"],
                peak_bytes=built["peak_bytes"],
                peak_ratio=round(built["peak_bytes"] / size, 3) if built["peak_bytes"] is not None and size else None,
                streamed=built["streamed"],
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| corpus | system | threads | documents/s | index MB | held MB | peak MB | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.error is not None:
            lines.append(f"| {row.case} | {row.system} | {row.threads} | {row.error} | | | | |")
            continue
        sizes = [
            "" if size is None else f"{size / 1e6:,.0f}" for size in (row.index_bytes, row.held_bytes, row.peak_bytes)
        ]
        shown = [row.case, row.system, str(row.threads), f"{row.docs_per_s:,.0f}", *sizes]
        lines.append(f"| {' | '.join(shown)} | {'' if row.peak_ratio is None else row.peak_ratio} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and append the rows with --results. Returns 0 if no build failed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.building", description="Rate and memory of builds.")
    parser.add_argument("--cases", type=names, default=cases.FULL, help=f"of {','.join(cases.CORPORA)}")
    parser.add_argument("--systems", type=names, default=SYSTEMS, help=f"of {','.join(SYSTEMS)}")
    parser.add_argument("--threads", type=numbers, default=cases.THREADS, help="default 1,2")
    parser.add_argument("--reps", type=int, default=3, help="builds for the rate (default 3)")
    parser.add_argument("--results", type=Path, help="append the rows to this file")
    parser.add_argument("--json", action="store_true", help="print the rows instead of the table")
    options = parser.parse_args(arguments)
    for what, given, known in (("case", options.cases, cases.CORPORA), ("system", options.systems, SYSTEMS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            parser.error(f"no {what} {', '.join(unknown)}; there are: {', '.join(known)}")
    if options.reps < 1:
        parser.error("--reps must be 1 or more")
    say, date = progress(), now()
    shared = {"bench": "build", "run": date, "machine": machine(), "commit": commit(), "date": date}
    shared["code"] = code_of("build")
    rows: list[Row] = []
    for case in options.cases:
        found = measure(cases.CORPORA[case], options.systems, options.threads, options.reps, shared, say)
        if options.results is not None:
            # Written case by case, so that an interrupted run keeps its rows.
            append(options.results, found)
        rows += found
    say("")
    print("\n".join(json.dumps(asdict(row)) for row in rows) if options.json else table(rows))
    return int(any(row.error for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
