"""Selects the recorded rows that the report uses: the newest complete run of every bench."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..harness import rows as cpu
from ..harness.cases import CORPORA, KS, THREADS
from ..harness.code import COMMANDS, FILES, code_of
from ..harness.rows import Row
from ..harness.systems import BASELINE

Fields = Mapping[str, Any]

COMPARED = ("fanrank-native", "fanrank-numpy", BASELINE, "pisa-maxscore", "tantivy")
"""A run beside the peers is complete when it holds these systems in every cell of the grid."""
RESULT_FILES = {"building": "build"}
"""Files of rows whose bench has another name."""
RENAMED = {"road": "method"}
"""Fields that older runs wrote under another name."""
STALE = "before later changes of the code it measures"
"""What stands beside figures whose rows are older than the code that they speak of."""
KINDS = (
    *(
        "fanout",
        "instructions",
        "growth",
        "session",
        "writes",
        "churn",
        "crash",
        "dense",
        "hybrid",
        "cascade",
        "quality",
        "neighbours",
        "events",
        "typed",
        "recency",
        "ablation",
    ),
    *("gpu", "profile", "agents", "integrations", "serve", "shards", "shardkills", "building", "build"),
)


@dataclass(frozen=True)
class Recorded:
    """All rows: `cpu` holds the chosen rows beside the peers, `others` those of every other bench, by file name."""

    cpu: Sequence[Row]
    others: Mapping[str, Sequence[Fields]]

    def of(self, *kinds: str) -> list[Fields]:
        """The rows of these benches that are not errors."""
        return [row for kind in kinds for row in self.others.get(kind, ()) if not row.get("error")]


def load(folder: Path) -> Recorded:
    """The rows in a folder of results. Raises `ValueError` naming file and line for a line that is not a row."""
    path = folder / "cpu.jsonl"
    measured = cpu.read(path) if path.is_file() else []
    return Recorded(newest_cases(measured), {kind: _read(folder / f"{kind}.jsonl") for kind in KINDS})


def _read(path: Path) -> list[Fields]:
    rows: list[Fields] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else (), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number}: not a JSON object")
        rows.append({RENAMED.get(name, name): value for name, value in row.items()})
    return rows


def newest_cases(rows: Iterable[Row]) -> list[Row]:
    """The rows of the newest complete run of every case. Cases come in their declared order, then the others.

    All times of a case come from one run, because systems are measured in turn only within a run.
    """
    of_case: dict[str, list[Row]] = {name: [] for name in CORPORA}
    for row in rows:
        of_case.setdefault(row.case, []).append(row)
    return [row for case_rows in of_case.values() for row in _of_run(case_rows)]


def describe_passed_over(rows: Iterable[Row]) -> list[str]:
    """Runs that are newer than the one that counts for a case but hold less of the grid, in words."""
    rows = list(rows)
    notes = []
    for case, run in {row.case: row.run for row in newest_cases(rows)}.items():
        case_rows = [row for row in rows if row.case == case]
        newer = sorted({row.run for row in case_rows if row.run > run})
        notes += [f"{case}: run {each} is newer than run {run}, but holds less and does not count" for each in newer]
    return notes


def _of_run(rows: Sequence[Row]) -> list[Row]:
    run = newest_run([vars(row) for row in rows], _cell)
    return [row for row in rows if row.run == run]


def _cell(row: Fields) -> Hashable | None:
    counts = row["system"] in COMPARED and row["k"] in KS and row["threads"] in THREADS
    return (row["system"], row["k"], row["threads"], row["phase"]) if counts and row["ms_per_query"] else None


def newest_run(rows: Sequence[Fields], place: Callable[[Fields], Hashable | None]) -> str | None:
    """The run with the most different places, the newest of equal ones; None without rows.

    `place` gives the place of a row in a complete run, and None for a row that has none.
    """
    found: dict[str, set[Hashable]] = {}
    for row in rows:
        filled = found.setdefault(row["run"], set())
        where = place(row)
        if where is not None:
            filled.add(where)
    return max(found, key=lambda run: (len(found[run]), run), default=None)


def choose_rows(rows: Sequence[Fields], place: Callable[[Fields], Hashable | None]) -> list[Fields]:
    """The rows of `newest_run`."""
    run = newest_run(rows, place)
    return [row for row in rows if row["run"] == run]


def choose_newest(rows: Iterable[Fields], *keys: str) -> dict[tuple[Any, ...], Fields]:
    """The newest row of each combination of these fields, in the order in which they first appear."""
    found: dict[tuple[Any, ...], Fields] = {}
    for row in rows:
        which = tuple(row.get(key) for key in keys)
        if which not in found or row["date"] >= found[which]["date"]:
            found[which] = row
    return found


def is_stale(row: Row | Fields) -> bool:
    """Whether the code that a row speaks of has changed since. A row without a hash counts as older."""
    return (row.code if isinstance(row, Row) else row.get("code")) not in _codes()


@lru_cache(maxsize=1)
def _codes() -> frozenset[str]:
    """The hashes of today's code, by what benches depend on. No two benches share one unless they share their files."""
    return frozenset(map(code_of, FILES))


def stamp(rows: Iterable[Row | Fields]) -> str:
    """Runs and commits of some rows, in words: "run 2026-11-22T01:33, commit 8782be3bc8dd", first and last of each.

    Ends with `STALE` where a row is.
    """
    runs: dict[str, list[str]] = {}
    stale: set[str] = set()
    for row in rows:
        run, commit = _run_and_commit(row)
        runs.setdefault(commit, []).append(run)
        if is_stale(row):
            stale.add(commit)
    return "; ".join(
        (f"run {own[0]}" if len(set(own)) == 1 else f"runs {min(own)} to {max(own)}")
        + f", commit {commit}"
        + (f", {STALE}" if commit in stale else "")
        for commit, own in runs.items()
    )


def note_stale(rows: Iterable[Row | Fields]) -> str:
    """A sentence where some rows are stale, else nothing: for figures that stand without a stamp."""
    stale = [row for row in rows if is_stale(row)]
    return f"Taken {STALE}: {', '.join(dict.fromkeys(_run_and_commit(row)[1] for row in stale))}." if stale else ""


def describe_stale(recorded: Recorded) -> list[str]:
    """The benches whose newest rows are stale, each with the command that takes them again."""
    found = []
    for kind, rows in {"cpu": list(map(vars, recorded.cpu)), **recorded.others}.items():
        runs = [str(row.get("run") or row.get("date")) for row in rows]
        last = [row for row, run in zip(rows, runs, strict=True) if run == max(runs)]
        if any(is_stale(row) for row in last):
            command = COMMANDS[RESULT_FILES.get(kind, kind)]
            found.append(f"{kind}.jsonl: {stamp(last)}; `{command}` takes them again")
    return found


def _run_and_commit(row: Row | Fields) -> tuple[str, str]:
    fields = vars(row) if isinstance(row, Row) else row
    return str(fields.get("run") or fields.get("date") or "unknown")[:16], str(fields.get("commit") or "unknown")


def machine(rows: Iterable[Row | Fields]) -> str:
    """The machines of some rows, in words."""
    seen = []
    for row in rows:
        own = row.machine if isinstance(row, Row) else row.get("machine", {})
        if own and own not in seen:
            seen.append(own)
    told = [
        ", ".join(
            [f"{own.get('cpu', 'unknown processor')}, {own.get('cores', '?')} cores"]
            + [f"{name} {own[key]}" for name, key in _VERSIONS if key in own]
        )
        for own in seen
    ]
    return "; ".join(dict.fromkeys(told))


_VERSIONS = (("Python", "python"), ("numpy", "numpy"), ("numba", "numba"))
