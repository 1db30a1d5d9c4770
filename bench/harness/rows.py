"""Rows: the results of a run, one JSON object a line. Tables and plots read nothing else."""

import json
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any


def append(path: Path, rows: Iterable[Any]) -> None:
    """Add rows (mappings or dataclasses) to the file, which is made with its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = (asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in rows)
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(json.dumps(each) + "\n" for each in fields)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none without it. Raises `ValueError` naming file and line for a line that is not a row."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else (), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number}: not a JSON object")
        rows.append(row)
    return rows


def round_digits(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")
