"""Counted instructions of a search, by phase: ``python -m bench.instructions``.

A fresh process under valgrind's callgrind opens an index that was made from a seed, asks everything once, and then
counts single calls of 1, 5 and 20 texts: the ``whole`` call with the interpreter, and of it the extension by phase
(`PHASES`). Prints a table and exits with 1 where a count is above the recorded one by more than `LIMIT` and by more
than `ALLOCATOR`; ``--record`` records them.
"""

import argparse
import functools
import gc
import os
import platform
import random
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import fanrank as fr

from .harness.callgrind import Counting, by_phase, compiler, missing, run
from .harness.command import Row, stamp_rows
from .harness.paths import CACHE, RESULTS, ROOT
from .harness.rows import append, read
from .report.sections import show

ROWS = RESULTS / "instructions.jsonl"
LIMIT = 0.02
# The C library's allocator takes one way or another by the addresses that it was given: some 400 instructions.
ALLOCATOR = 1_000
BATCHES = (1, 5, 20)
K = 10
PHASES: Mapping[str, Sequence[str]] = {
    "analysis": ("fanrank::text::",),
    "plan": ("fanrank::search::Snapshot::", "fanrank::search::Segment::", "fanrank::search::Part::"),
    "select": ("fanrank::search::keep_best",),
    "score": ("fanrank::search::",),
    "binding": ("fanrank::",),
}
"""Phase -> what the names of its C++ functions begin with. The last holds the remaining functions of the extension."""
WHOLE = "whole"
DOCUMENTS, VOCABULARY, TOKENS, QUERIES = 5_000, 6_000, 40, 60
MULTIPLIER = 0x9E3779B97F4A7C15
"""In place of the random number that the tables of tokens multiply hashes with."""


Counts = dict[tuple[int, str], int]
"""(queries of the call, phase) -> instructions."""


def corpus() -> tuple[list[str], list[str]]:
    """Texts of documents and of queries, made from a seed. Words have the endings that a stemmer takes off."""
    numbers = random.Random(1)
    syllables = [first + second for first in "bcdfglmnprst" for second in "aeiou"]
    endings = ("", "", "", "s", "ed", "ing", "ation", "ness", "fully")

    def word() -> str:
        # The cube makes a few words frequent.
        number = int(VOCABULARY * numbers.random() ** 3)
        stem = "".join(syllables[(number // 60**place) % 60] for place in range(3))
        return stem + endings[numbers.randrange(len(endings))]

    def text(least: int, most: int) -> str:
        return " ".join(word() for _ in range(numbers.randint(least, most)))

    return [text(1, 2 * TOKENS) for _ in range(DOCUMENTS)], [text(3, 9) for _ in range(QUERIES)]


def build(folder: Path, backend: str) -> None:
    """Write the index that the counted process opens. It is the same to the byte in every run."""
    documents, _ = corpus()
    records = (fr.Record(id=f"r{number}", text=text) for number, text in enumerate(documents))
    engine = fr.Engine.from_records(records, keep_texts=False, backend=backend, threads=1)
    engine.flush()
    with patch.object(secrets, "token_hex", lambda size: "0" * 2 * size):  # part of the files' names
        engine.save(folder)


def drive(folder: Path, backend: str) -> None:
    """The counted process."""
    _fix_multiplier()
    _, queries = corpus()
    engine = fr.Engine.load(folder, backend=backend)
    calls = {batch: queries[:batch] for batch in BATCHES}
    counting = Counting()
    for texts in (queries, *calls.values(), *calls.values()):
        _ = engine.search(texts, K, threads=1).ids
    gc.collect()
    gc.disable()
    for batch, texts in calls.items():
        with counting.stretch(str(batch)):
            _ = engine.search(texts, K, threads=1).ids


def _fix_multiplier() -> None:
    """Give every `Analysis` of the extension the same multiplier. Modules hold the class by this name."""
    try:
        from fanrank.native import _compiled
    except ImportError:
        return
    original = getattr(_compiled, "Analysis", None)
    if original is not None:
        fixed = functools.partial(original, multiplier=MULTIPLIER)
        for module in list(sys.modules.values()):
            if getattr(module, "Analysis", None) is original:
                setattr(module, "Analysis", fixed)  # noqa: B010


def count(backend: str) -> Counts:
    """The instructions of every call and phase. Raises `RuntimeError` if the counted process fails."""
    # Names of paths and the environment are the same in every run: they move the stack, and dictionaries hash them.
    place = CACHE / "work" / "instructions"
    shutil.rmtree(place, ignore_errors=True)
    folder, index = place / "counts", place / "index"
    folder.mkdir(parents=True)
    build(index, backend)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "bench.instructions", "--drive", str(index), "--backend", backend]
    profiles = run(command, folder, environment)
    counts: Counts = {}
    for batch in BATCHES:
        profile = profiles[str(batch)]
        counts[batch, WHOLE] = profile.total
        counts |= {(batch, phase): number for phase, number in by_phase(profile, PHASES).items()}
    return counts


def versions() -> dict[str, str]:
    """What counts depend on beside the code."""
    made_by = subprocess.run([str(compiler()), "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    return {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "compiler": made_by,
        "libc": "-".join(platform.libc_ver()),
        "machine": platform.machine(),
        "vectors": next((name for name in ("avx512f", "avx2") if f" {name} " in flags), "none"),
    }


def recorded(path: Path, backend: str, under: Mapping[str, str]) -> Counts:
    """The counts of the newest run under these versions; empty without one."""
    rows = [row for row in read(path) if row["versions"] == dict(under) and row["backend"] == backend]
    newest = max((row["run"] for row in rows), default=None)
    return {(row["batch"], row["phase"]): row["instructions"] for row in rows if row["run"] == newest}


def rows_of(backend: str, under: Mapping[str, str], found: Counts) -> list[Row]:
    """The rows of this run."""
    common = {"backend": backend, "versions": dict(under), **stamp_rows("instructions")}
    rows = [{"batch": batch, "phase": phase, "instructions": number} for (batch, phase), number in found.items()]
    return [{**row, **common} for row in rows]


def changes(before: Counts, now: Counts) -> tuple[list[str], bool]:
    """Counts that differ from the recorded ones by more than the limit, in words, and whether one of them grew."""
    told, grew = [], False
    for (batch, phase), number in now.items():
        old = before.get((batch, phase), 0)
        if abs(number - old) <= max(LIMIT * old, ALLOCATOR):
            continue
        grew |= number > old
        share = f"{number / old - 1:+.1%}" if old else "from nothing"
        told.append(
            f"{batch} queries, {phase}: {old:,} -> {number:,} {share} {'GREW' if number > old else 'shrank: record it'}"
        )
    return told, grew


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description="Counted instructions.")
    parser.add_argument("--record", action="store_true", help="write the rows instead of comparing with them")
    parser.add_argument("--backend", default="native", help="default native")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.drive is not None:
        drive(options.drive, options.backend)
        return 0
    if lacking := missing():
        print(f"nothing is counted: {lacking}")
        return 1
    found, under = count(options.backend), versions()
    rows = rows_of(options.backend, under, found)
    print(show("instructions", rows))
    if options.record:
        append(options.rows, rows)
        print(f"recorded in {options.rows}")
        return 0
    before = recorded(options.rows, options.backend, under)
    if not before:
        print(f"nothing is recorded under {under}")
        return 0
    differences, grew = changes(before, found)
    print("\n".join(differences) or "as recorded")
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
