"""Rate and memory of builds beside other engines: ``python -m bench.building``. bench/README.md says how.

``docs_per_s`` is the median over `reps` builds, ``docs_per_s_max`` the fastest. ``index_bytes`` are those of the files.
``peak_ratio`` is ``peak_bytes`` over ``held_bytes``, or over ``index_bytes`` where `on_disk`. With ``--store`` ids and
texts are kept on disk as well, in batches of 10,000 that are each durable before the next, by one thread (``input`` is
"records"). ``cpu_us_per_record`` is the processor's time of all threads, the making of the records and the close
included, ``bytes_per_record`` that of the files after it.
"""

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
STORING, BATCH, MOST = ("fanrank", "tantivy"), 10_000, 100_000
"""The systems that keep texts, the records of a batch, and the most of a corpus."""
STORED = ("sgd", "short-100k")


def build_apart(case: Case, system: str, threads: int, do: str = "build", **how: Any) -> dict[str, Any]:
    """One build (or what `do` says) in a process of its own. Raises `PeerError`."""
    log, folder = CACHE / "logs" / f"{case.name}.{system}.log", CACHE / "work" / case.name / f"{system}-building"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    worker = Worker(python_of(PEERS[system]), system, threads, log)
    try:
        place = {"texts": str(case.file), "folder": str(folder), "stop": case.stop}
        built = worker.ask(do, TIMEOUT, **(how or {"threads": threads}), **place)
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


def measure_stored(case: Case, systems: Sequence[str], reps: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The rows of one corpus whose ids and texts are stored. The systems take turns."""
    rows: dict[str, dict[str, Any]] = {}
    spent: dict[str, list[float]] = {}
    for rep in range(reps):
        for name in systems:
            row = rows.setdefault(name, {"case": case.name, "system": name, "threads": 1, "input": "records"})
            if row.setdefault("error", None) is not None:
                continue
            say(f"{case.name}: {name} stores, {rep + 1} of {reps}")
            try:
                found = build_apart(case, name, 1, "store", batch=BATCH, most=MOST)
            except PeerError as error:
                row["error"] = str(error)
                continue
            records = found["records"]
            spent.setdefault(name, []).append(1e6 * found["cpu_seconds"] / records)
            row |= {"documents": records, "version": found["version"], "reps": reps}
            row["cpu_us_per_record"] = round(statistics.median(spent[name]), 2)
            row["bytes_per_record"] = round(found["index_bytes"] / records, 1)
    return list(rows.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if no build failed, else 1."""
    command = Command("building", "Rate and memory of builds.")
    command.add("--corpora", type=among(CORPORA), default=CASES)
    command.add("--systems", type=among(PEERS), default=tuple(PEERS))
    command.add("--threads", type=numbers, default=(1, 2))
    command.add("--reps", type=positive, default=3, help="builds of each (default 3)")
    command.add("--store", action="store_true", help="ids and texts are stored too: CPU and bytes a record")
    options = command.parse(arguments)
    for name in STORED if options.store and options.corpora == CASES else options.corpora:
        case = Case(name, command.say)
        if options.store:
            storing = [system for system in options.systems if system in STORING]
            command.keep(measure_stored(case, storing, options.reps, command.say))
            continue
        command.keep(measure(case, options.systems, options.threads, options.reps, command.say))
    return command.end()


if __name__ == "__main__":
    raise SystemExit(main())
