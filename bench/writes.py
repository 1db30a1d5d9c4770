"""The cost of writes, and of searches during writes: ``python -m bench.writes`` (SPEC A042).

Six parts, each in a process of its own, so that its peak memory is its own:

``append``     records a second in batches of 100, each durable when `add` returns; one writer, then four at once
``searching``  the same while a thread sends fan-outs of 20, as fast as it can and at a fixed pace
``tail``       a fan-out's 99th percentile while one writer keeps to half its rate, against without; phases alternate
``memory``     peak memory of a store that a stream of batches is appended to
``cold``       a fresh process opens a store of a million records and answers, phase by phase
``tenants``    ten thousand namespaces of a hundred records; one batch over a thousand of them, and each asked alone
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # python bench/writes.py
    from runpy import run_module

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    run_module("bench.writes", run_name="__main__")
    sys.exit()

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .harness.methods import peak_rss_gib, stamp_rows
from .harness.options import names, progress
from .harness.paths import CACHE, RESULTS
from .harness.rows import append
from .harness.write_parts import PARTS, QUICK, Figures, Settings, child, flags


@dataclass(frozen=True)
class WriteRow:
    """One part; `figures` are named with their units. With `error`, a part that could not be measured."""

    bench: str
    run: str
    part: str
    figures: Figures = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    peak_rss_gib: float | None = None
    error: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.writes", description="Writing, and asking meanwhile.")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter")
    parser.add_argument("--only", type=names, default=tuple(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--folder", type=Path, default=CACHE / "stores", help="where stores are made, on a real disk")
    parser.add_argument("--name", default="writes", help="rows go to bench/results/NAME.jsonl (quick: bench/.cache)")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the rows")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    defaults = Settings()
    for name, value in asdict(defaults).items():
        kind = {"half_life": float, "windows": str}.get(name, type(value))
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"default {value}")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    given = {name: value for name in asdict(Settings()) if (value := getattr(options, name)) is not None}
    return replace(QUICK if options.quick else Settings(), **given)


def settings_of(arguments: Sequence[str]) -> tuple[Settings, Path]:
    """Settings and store of a process that only opens one."""
    options = _parser().parse_args(arguments)
    return _settings(options), options.open


def run_part(part: str, settings: Settings, folder: Path) -> Figures:
    """One part in this process, in a folder of its own that is removed after it."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{part}-", dir=folder))
    try:
        return PARTS[part](settings, scratch / "store")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _row(part: str, settings: Settings, folder: Path, common: dict[str, Any]) -> WriteRow:
    try:
        found = json.loads(child(["--part", part, "--folder", str(folder), *flags(settings)]))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return WriteRow(part=part, settings=asdict(settings), error=str(error), **common)
    return WriteRow(part=part, settings=asdict(settings), **found, **common)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, append the rows, print them. Returns 0 if nothing failed and every check passed, else 1."""
    parser = _parser()
    options = parser.parse_args(arguments)
    settings = _settings(options)
    if unknown := [name for name in options.only if name not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    if options.part:
        figures = run_part(options.part, settings, options.folder)
        print(json.dumps({"figures": figures, "peak_rss_gib": peak_rss_gib()}))
        return 0
    common, say, rows = stamp_rows("writes"), progress(), []
    for part in options.only:
        say(f"writes: {part}")
        new = _row(part, settings, options.folder, common)
        append((CACHE if options.quick else RESULTS) / f"{options.name}.jsonl", [new])
        rows.append(new)
    say("")
    print(json.dumps({**common, "rows": [asdict(row) for row in rows]}) if options.json else _render(rows))
    return int(any(row.error for row in rows))


def _render(rows: Sequence[WriteRow]) -> str:
    lines = []
    for row in rows:
        lines.append(f"{row.part}: {row.error or f'peak {row.peak_rss_gib} GiB'}")
        for name, value in row.figures.items():
            text = value if not isinstance(value, dict) else "  ".join(f"{key} {each}" for key, each in value.items())
            lines.append(f"  {name}: {text}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
