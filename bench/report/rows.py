"""Selects the recorded rows that the report uses: the newest complete run of every bench."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..harness.code import BENCHES, code_of
from ..harness.rows import read
from .format import Fields

STALE = "before later changes of the code it measures"
"""What stands beside figures whose rows are older than the code that they speak of."""
KINDS = (
    *("fanout", "instructions", "growth", "session", "writes", "crash", "dense", "hybrid", "quality", "neighbours"),
    *("languages", "gpu", "gpu_counted", "serve", "shards", "shardkills", "building"),
)


@dataclass(frozen=True)
class Recorded:
    """All rows of the benches, by the name of their file."""

    rows: Mapping[str, Sequence[Fields]]

    def of(self, kind: str) -> list[Fields]:
        """The rows of a bench that are not errors."""
        return [row for row in self.rows.get(kind, ()) if not row.get("error")]


def load(folder: Path) -> Recorded:
    """The rows in a folder of results. Raises `ValueError` naming file and line for a line that is not a row."""
    return Recorded({kind: read(folder / f"{kind}.jsonl") for kind in KINDS})


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


def no_row(kind: str) -> str:
    """The text for a bench without rows; it names the command that makes them."""
    return f"No row yet: `{again(kind)}`."


def again(kind: str) -> str:
    """The command that takes the rows of a bench again."""
    return "python -m bench.gpu.run" if kind == "gpu" else f"make figures ARGS='--only {kind}'"


def choose_rows(rows: Sequence[Fields], place: Callable[[Fields], Hashable | None]) -> list[Fields]:
    """The rows of `newest_run`."""
    run = newest_run(rows, place)
    return [row for row in rows if row["run"] == run]


def choose_in_each(rows: Sequence[Fields], field: str, place: Callable[[Fields], Hashable | None]) -> list[Fields]:
    """The rows of `newest_run` of each value of a field: systems are measured in turn only within it."""
    values = dict.fromkeys(row.get(field) for row in rows)
    return [row for value in values for row in choose_rows([row for row in rows if row.get(field) == value], place)]


def choose_newest(rows: Iterable[Fields], *keys: str) -> dict[tuple[Any, ...], Fields]:
    """The newest row of each combination of these fields, in the order in which they first appear."""
    found: dict[tuple[Any, ...], Fields] = {}
    for row in rows:
        which = tuple(row.get(key) for key in keys)
        if which not in found or row["date"] >= found[which]["date"]:
            found[which] = row
    return found


def is_stale(row: Fields) -> bool:
    """Whether the code that a row speaks of has changed since. A row without a hash counts as older."""
    return row.get("code") not in _codes()


@lru_cache(maxsize=1)
def _codes() -> frozenset[str]:
    """The hashes of today's code, by what benches depend on. No two benches share one unless they share their files."""
    return frozenset(map(code_of, BENCHES))


def stamp(rows: Iterable[Fields]) -> str:
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


def note_stale(rows: Iterable[Fields]) -> str:
    """A sentence where some rows are stale, else nothing: for figures that stand without a stamp."""
    stale = [row for row in rows if is_stale(row)]
    return f"Taken {STALE}: {', '.join(dict.fromkeys(_run_and_commit(row)[1] for row in stale))}." if stale else ""


def _run_and_commit(row: Fields) -> tuple[str, str]:
    return str(row.get("run") or row.get("date") or "unknown")[:16], str(row.get("commit") or "unknown")


def machine(rows: Iterable[Fields]) -> str:
    """The machines of some rows, in words."""
    seen = []
    for row in rows:
        own = row.get("machine", {})
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
