"""The cost of writes, and of searches during writes: ``python -m bench.writes`` (SPEC A042).

Six parts (bench/README.md), each in a process of its own, so that its peak memory is its own. The ``figures`` of a row
are named with their units.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .harness.command import Command, among
from .harness.paths import CACHE
from .harness.write_parts import PARTS, Settings, child


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if nothing failed and every check passed, else 1."""
    command = Command("writes", "Writing, and asking meanwhile.")
    command.add("--only", type=among(PARTS), default=tuple(PARTS))
    command.add("--folder", type=Path, default=CACHE / "stores", help="where stores are made, on a real disk")
    for name, value in asdict(Settings()).items():
        command.add(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = command.parse(arguments)
    settings = Settings(**{name: getattr(options, name) for name in asdict(Settings())})
    for part in options.only:
        command.say(f"writes: {part}")
        try:
            found = {"error": None, **child(part, settings, options.folder)}
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found = {"error": str(error)}
        command.keep([{"part": part, "settings": asdict(settings), **found}])
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
