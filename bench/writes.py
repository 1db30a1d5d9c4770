"""The cost of writes, and of searches during writes: ``python -m bench.writes`` (SPEC A042).

Six parts, each in a process of its own, so that its peak memory is its own:

``append``     records a second in batches of 100, each durable when `add` returns; one writer, then four at once
``searching``  the same while a thread sends fan-outs of 20, as fast as it can and at a fixed pace
``tail``       a fan-out's 99th percentile while one writer keeps to half its rate, against without; phases alternate
``memory``     peak memory of a store that a stream of batches is appended to
``cold``       a fresh process opens a store of a million records and answers, phase by phase
``tenants``    ten thousand namespaces of a hundred records; one batch over a thousand of them, and each asked alone

The ``figures`` of a row are named with their units.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .harness.command import Command, among
from .harness.methods import peak_rss_gib
from .harness.paths import CACHE
from .harness.write_parts import PARTS, Figures, Settings, child, flags


def command_of() -> Command:
    """The command, with a flag for each of the settings."""
    command = Command("writes", "Writing, and asking meanwhile.")
    command.add("--only", type=among(PARTS), default=tuple(PARTS))
    command.add("--folder", type=Path, default=CACHE / "stores", help="where stores are made, on a real disk")
    command.add("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    command.add("--open", type=Path, help=argparse.SUPPRESS)
    for name, value in asdict(Settings()).items():
        command.add(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return command


def settings_of(arguments: Sequence[str]) -> tuple[Settings, Path]:
    """Settings and store of a process that only opens one."""
    options = command_of().parse(arguments)
    return _settings(options), options.open


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(**{name: getattr(options, name) for name in asdict(Settings())})


def run_part(part: str, settings: Settings, folder: Path) -> Figures:
    """One part in this process, in a folder of its own that is removed after it."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{part}-", dir=folder))
    try:
        return PARTS[part](settings, scratch / "store")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if nothing failed and every check passed, else 1."""
    command = command_of()
    options = command.parse(arguments)
    settings = _settings(options)
    if options.part:
        figures = run_part(options.part, settings, options.folder)
        print(json.dumps({"figures": figures, "peak_rss_gib": peak_rss_gib()}))
        return 0
    for part in options.only:
        command.say(f"writes: {part}")
        row = {"part": part, "settings": asdict(settings), "error": None}
        try:
            found = json.loads(child(["--part", part, "--folder", str(options.folder), *flags(settings)]))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found = {"error": str(error)}
        command.keep([{**row, **found}])
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
