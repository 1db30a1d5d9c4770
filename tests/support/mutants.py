"""Faults planted in the extension, each with the test that must fail: ``python -m tests.support.mutants [name ...]``.

Each fault is one replaced piece of a C++ file. The checkout is copied to build/mutants, the fault is planted there, the
extension is built, and the test runs. Prints a line for each fault, and exits with 1 if a test passed, or failed
without the fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants"
ROOMS = ("engine", "kernels", "cpu_fallback", "tests", "bench")

NATIVE = "tests/cpu_fallback/test_native.py"
ONE_ANSWER = "tests/test_one_answer.py::test_every_road_equals_the_oracle"
TIME = "tests/search/test_time.py"


class Mutant(NamedTuple):
    name: str
    file: str
    code: str
    fault: str
    test: str
    thread_sanitizer: bool = False
    """Whether the test only fails on an extension that is built with it."""


MUTANTS = (
    Mutant(
        "the next hit must beat the k-th by two quanta",
        "score_loops.hpp",
        "FADES ? last : last + 1",
        "FADES ? last : last + 2",
        f"{NATIVE}::test_scores_one_quantum_apart",
    ),
    Mutant(
        "a bound by the least factor",
        "search.cpp",
        "* part.largest) * SCALE",
        "* part.least) * SCALE",
        f"{NATIVE}::test_bounds_hold_after_writes",
    ),
    Mutant(
        "the last posting of a tile is skipped",
        "score_loops.hpp",
        "for (std::int64_t p = list.tile_begin; p < list.tile_end; ++p) {\n            scores",
        "for (std::int64_t p = list.tile_begin; p + 1 < list.tile_end; ++p) {\n            scores",
        f"{NATIVE}::test_unread_postings_change_nothing",
    ),
    Mutant(
        "ties of faded scores go to the younger document",
        "quickselect.hpp",
        "document < other.document)",
        "document > other.document)",
        ONE_ANSWER,
    ),
    Mutant(
        "ties go to the younger document",
        "quickselect.hpp",
        "std::int64_t document_of(std::int64_t packed) { return std::int64_t{0xFFFFFFFF} - (packed & 0xFFFFFFFF); }",
        "std::int64_t document_of(std::int64_t packed) { return packed & 0xFFFFFFFF; }",
        ONE_ANSWER,
    ),
    Mutant(
        "the age is rounded once",
        "decay.hpp",
        "const double age = (now - time) * rate;",
        "const double age = std::fma(now, rate, -time * rate);",
        f"{NATIVE}::test_ages_are_rounded_as_everywhere",
    ),
    Mutant(
        "threads publish a threshold that ties do not reach",
        "score_loops.hpp",
        "known < last && !best.shared->compare_exchange_weak(known, last,",
        "known < last + 1 && !best.shared->compare_exchange_weak(known, last + 1,",
        f"{NATIVE}::test_scores_one_quantum_apart",
    ),
    Mutant(
        "a group's bit is looked for in the wrong place",
        "segment.hpp",
        "presence[group >> 3] >> (group & 7) & 1",
        "presence[group >> 3] >> (group & 6) & 1",
        f"{NATIVE}::test_skips_find_every_posting_and_no_other",
    ),
    Mutant(
        "a range ends before its end",
        "search.cpp",
        "std::upper_bound(times.begin(), times.end(), setting.until)",
        "std::lower_bound(times.begin(), times.end(), setting.until)",
        TIME,
    ),
    Mutant(
        "deleted documents count in document frequencies",
        "snapshot.cpp",
        "total -= part->deleted_frequencies[found - gone.begin()];",
        "total -= 0;",
        ONE_ANSWER,
    ),
    Mutant(
        "a deleted document may be a hit",
        "search.cpp",
        "if (!part.alive.empty()) accepted.alive = part.alive.data();",
        "",
        ONE_ANSWER,
    ),
    Mutant(
        "two threads fill the dense rows of a segment",
        "snapshot.cpp",
        "const std::lock_guard<std::mutex> lock(mutex_);\n        auto row",
        "auto row",
        f"{NATIVE}::test_threads_may_meet_a_list_first_together",
        thread_sanitizer=True,
    ),
)


def copy_checkout() -> None:
    """The checkout once more, with an extension of its own."""
    COPY.mkdir(parents=True, exist_ok=True)
    for name in (*ROOMS, "src"):
        shutil.rmtree(COPY / name, ignore_errors=True)
        shutil.copytree(ROOT / name, COPY / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".cache"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, COPY / name)
    native = COPY / "native"
    native.mkdir(exist_ok=True)
    for path in [*(ROOT / "native").glob("*.py*"), *(ROOT / "native").glob("*.[ch]pp")]:
        # An unchanged file keeps its time, so that its object file stays fresh.
        if not (native / path.name).exists() or (native / path.name).read_bytes() != path.read_bytes():
            shutil.copy2(path, native / path.name)


def run(test: str) -> bool:
    """Builds the copy's extension and runs the test on it. Returns whether it passed."""
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=COPY, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", test]
    environment = {**os.environ, "PYTHONPATH": str(COPY / "src")}
    return subprocess.run(command, cwd=COPY, env=environment, capture_output=True, check=False).returncode == 0


def run_with_thread_sanitizer(test: str) -> bool:
    script = ROOT / "tests" / "support" / "sanitize.sh"
    (COPY / "tests" / "support").mkdir(parents=True, exist_ok=True)
    command = ["bash", str(COPY / "tests" / "support" / script.name), "thread", test]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, cwd=COPY, env=environment, capture_output=True, check=False).returncode == 0


def is_caught(mutant: Mutant) -> bool:
    path = COPY / "native" / mutant.file
    code = path.read_text()
    if code.count(mutant.code) != 1:
        raise SystemExit(f"{mutant.file} holds the code of {mutant.name!r} {code.count(mutant.code)} times")
    path.write_text(code.replace(mutant.code, mutant.fault))
    try:
        return not (run_with_thread_sanitizer if mutant.thread_sanitizer else run)(mutant.test)
    finally:
        path.write_text(code)


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    copy_checkout()
    failed = [test for test in sorted({mutant.test for mutant in chosen}) if not run(test)]
    for test in failed:
        print(f"fails without a fault: {test}")
    survivors = 0
    for mutant in chosen:
        caught = is_caught(mutant)
        survivors += not caught
        print(f"{'caught  ' if caught else 'SURVIVED'}  {mutant.name} ({mutant.file}): {mutant.test}", flush=True)
    return 1 if failed or survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
