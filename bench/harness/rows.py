"""Rows: the results of a run, one JSON object a line. Tables and plots read nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One system on one case in one cell of the grid; with `error`, a system that could not be measured there.

    Times are milliseconds per query over `reps` repetitions (`ms_per_query` is the median, `ms_iqr` the distance
    of the quartiles); `cpu_per_wall` shows that the thread limit held. `verified` is None where the check does not
    apply (end to end). `cold_ms_per_query` is the peer's very first search after its build (50 queries, k = 10, one
    thread), which also pays for what is derived lazily. All rows of one run share `run`, and ratios are only ever taken
    inside one run.
    """

    bench: str
    run: str
    case: str
    system: str
    k: int
    threads: int
    phase: str
    version: str | None = None
    ms_per_query: float | None = None
    ms_min: float | None = None
    ms_max: float | None = None
    ms_iqr: float | None = None
    reps: int = 0
    queries: int = 0
    cpu_per_wall: float | None = None
    cold_ms_per_query: float | None = None
    documents: int = 0
    postings: int = 0
    postings_per_query: float = 0.0
    build_docs_per_s: float | None = None
    index_bytes: int | None = None
    bytes_per_posting: float | None = None
    verified: bool | None = None
    overlap: float | None = None
    lucene_overlap: float | None = None
    max_relative_error: float | None = None
    note: str = ""
    error: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    ceiling: dict[str, float] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


_NAMES = frozenset(item.name for item in fields(Row))
_REQUIRED = ("bench", "run", "case", "system", "k", "threads", "phase")


def append(path: Path, rows: Iterable[Any]) -> None:
    """Add rows (dataclasses: each bench has its own) to the file, which is made with its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


def read(path: Path) -> list[Row]:
    """The rows of a file. Raises `ValueError` naming file and line for a line that is not a row."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(data, dict):
            raise ValueError(f"{path}:{number}: not a JSON object")
        unknown, missing = data.keys() - _NAMES, [name for name in _REQUIRED if name not in data]
        if unknown or missing:
            raise ValueError(f"{path}:{number}: unknown fields {sorted(unknown)}, missing fields {missing}")
        rows.append(Row(**data))
    return rows


def latest(rows: list[Row], run: str | None = None) -> list[Row]:
    """The rows of one run: the given one, or the last in the file."""
    chosen = run or (rows[-1].run if rows else None)
    return [row for row in rows if row.run == chosen]
