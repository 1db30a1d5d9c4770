"""Takes again every row that a page quotes and that is not there or older than the code: ``make figures``.

The benches run one after another, each by its own command, which keeps its rows at once. What is taken is not taken
again, so a run that was broken off goes on where it was; ``--all`` takes everything. Then the report is written.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from .harness.code import BENCHES
from .harness.command import among
from .harness.machine import commit
from .harness.paths import RESULTS, ROOT
from .report.rows import KINDS, NAMES, load
from .report.sections import stale

HERE = tuple(kind for kind in KINDS if kind != "gpu")
"""What needs no GPU."""


def run(module: str) -> bool:
    """Whether a command ended well."""
    return subprocess.run([sys.executable, "-m", *module.split()], cwd=ROOT).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the rows and write the report. Returns 1 if a command failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description="Every quoted row, taken again.")
    parser.add_argument("--only", type=among(HERE), default=HERE, help=f"of {','.join(HERE)}")
    parser.add_argument("--all", action="store_true", help="also what is as new as the code")
    options = parser.parse_args(arguments)
    due = [kind for kind in options.only if options.all or kind in stale(load(RESULTS))]
    if "+dirty" in commit():
        print("not all changes are committed, and rows will say so", file=sys.stderr)
    begin, failed = time.monotonic(), list[str]()
    for number, kind in enumerate(due, 1):
        for module in BENCHES[NAMES.get(kind, kind)].runs:
            minutes = (time.monotonic() - begin) / 60
            print(f"{minutes:5.1f} min  {number} of {len(due)}: python -m {module}", file=sys.stderr, flush=True)
            failed += [] if run(module) else [module]
    print(f"{(time.monotonic() - begin) / 60:.1f} min; {'; '.join(failed) or 'nothing'} failed", file=sys.stderr)
    return int(not run("bench.report") or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
