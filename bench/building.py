"""Rate and memory of builds beside other engines: ``python -m bench.building``.

A build reads texts from a file, analyses them and writes the index, in a process of its own; one process runs at a
time, and the systems take turns. Rows in `building.jsonl`:

``docs_per_s`` is the median over `reps` builds, ``docs_per_s_max`` the fastest. ``index_bytes`` are those of the files.
``held_bytes`` is the growth of the process by the build, after collection and trimming: postings, vocabulary, ids,
columns, caches; of a system whose index is files it says little. ``peak_bytes`` is the most during the build above
what was held when it began. ``peak_ratio`` is the peak over `held_bytes`, or over `index_bytes` where `on_disk`. Rows
without ``input`` are of builds from tokens in memory.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from .fanout import Case
from .harness.cases import CORPORA
from .harness.client import Worker
from .harness.command import Command, among, numbers, positive
from .harness.environments import PeerError, python_of
from .harness.paths import CACHE
from .harness.systems import PEERS

CASES = ("scifact", "synthetic-50k", "synthetic-300k", "sgd")
SINGLE = ("bm25s",)
"""Systems that always build in one thread."""
ON_DISK = ("tantivy", "pisa")
"""Systems whose index is files. Their memory after the build does not show its size."""
TIMEOUT = 3600.0


def build_apart(case: Case, system: str, threads: int) -> dict[str, Any]:
    """One build in a process of its own. Raises `PeerError`."""
    log, folder = CACHE / "logs" / f"{case.name}.{system}.log", CACHE / "work" / case.name / f"{system}-building"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    worker = Worker(python_of(PEERS[system], case.install), system, threads, log)
    try:
        place = {"texts": str(case.file), "folder": str(folder), "stop": case.stop}
        built = worker.ask("build", TIMEOUT, threads=threads, **place)
    finally:
        worker.close()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return {**built, "index_bytes": size}


def measure(
    case: Case, systems: Sequence[str], threads: Sequence[int], reps: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The rows of one corpus."""
    cells = [(name, count) for name in systems for count in threads if count == 1 or name not in SINGLE]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {cell: [] for cell in cells}
    errors: dict[tuple[str, int], str] = {}
    for rep in range(reps):
        for cell in cells:
            if cell not in errors:
                say(f"{case.name}: {cell[0]} builds with {cell[1]} threads, {rep + 1} of {reps}")
                try:
                    found[cell].append(build_apart(case, *cell))
                except PeerError as error:
                    errors[cell] = str(error)
    rows = []
    for (name, count), builds in found.items():
        row: dict[str, Any] = {"case": case.name, "system": name, "threads": count, "input": "texts"}
        row |= {"documents": case.tokens.documents, "on_disk": name in ON_DISK, "error": errors.get((name, count))}
        if row["error"] is None:
            rates = [case.tokens.documents / built["seconds"] for built in builds]
            last = builds[-1]
            size = last["index_bytes" if name in ON_DISK else "held_bytes"]
            row |= {"version": last["version"], "reps": reps}
            row |= {"docs_per_s": round(statistics.median(rates)), "docs_per_s_max": round(max(rates))}
            row |= {name: last[name] for name in ("index_bytes", "held_bytes", "peak_bytes")}
            row["peak_ratio"] = round(last["peak_bytes"] / size, 3) if last["peak_bytes"] and size else None
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if no build failed, else 1."""
    command = Command("building", "Rate and memory of builds.", bench="build")
    command.add("--corpora", type=among(CORPORA), default=CASES)
    command.add("--systems", type=among(PEERS), default=tuple(PEERS))
    command.add("--threads", type=numbers, default=(1, 2))
    command.add("--reps", type=positive, default=3, help="builds of each (default 3)")
    options = command.parse(arguments)
    for name in options.corpora:
        case = Case(name, True, command.say)
        command.keep(measure(case, options.systems, options.threads, options.reps, command.say))
    return command.end()


if __name__ == "__main__":
    raise SystemExit(main())
