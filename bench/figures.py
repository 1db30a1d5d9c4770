"""Takes again every row that a page quotes and that is not there or older than the code: ``make figures``.

Each bench runs by its own command, which keeps its rows at once: first those that count or rank, two at a time, then
those that time, one after another. What is taken is not taken again, so a run that was broken off goes on where it was;
``--all`` takes everything. Then the report is written.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .harness.code import BENCHES
from .harness.command import among
from .harness.machine import commit
from .harness.paths import RESULTS, ROOT
from .report.rows import KINDS, NAMES, load
from .report.sections import stale

HERE = tuple(kind for kind in KINDS if kind != "gpu")
"""What needs no GPU."""


AT_ONCE = 2
"""Benches that run beside each other, of those that take no times."""


def run(module: str) -> bool:
    """Whether a command ended well."""
    return subprocess.run([sys.executable, "-m", *module.split()], cwd=ROOT).returncode == 0


def take(kinds: Sequence[str], at_once: int, begin: float) -> list[str]:
    """Run the benches, so many at once. Returns the commands that failed."""

    def run_all(kind: str) -> list[str]:
        failed = []
        for module in BENCHES[NAMES.get(kind, kind)].runs:
            started = time.monotonic()
            failed += [] if run(module) else [module]
            ended = time.monotonic()
            minutes, own = (ended - begin) / 60, (ended - started) / 60
            print(f"{minutes:5.1f} min  python -m {module}: {own:.1f} min", file=sys.stderr, flush=True)
        return failed

    with ThreadPoolExecutor(at_once) as pool:
        return [module for failed in pool.map(run_all, kinds) for module in failed]


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the rows and write the report. Returns 1 if a command failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description="Every quoted row, taken again.")
    parser.add_argument("--only", type=among(HERE), default=HERE, help=f"of {','.join(HERE)}")
    parser.add_argument("--all", action="store_true", help="also what is as new as the code")
    options = parser.parse_args(arguments)
    due = [kind for kind in options.only if options.all or kind in stale(load(RESULTS))]
    if "+dirty" in commit():
        print("not all changes are committed, and rows will say so", file=sys.stderr)
    begin = time.monotonic()
    print(f"takes again: {', '.join(due) or 'nothing'}", file=sys.stderr, flush=True)
    timed = [kind for kind in due if BENCHES[NAMES.get(kind, kind)].alone]
    failed = take([kind for kind in due if kind not in timed], AT_ONCE, begin) + take(timed, 1, begin)
    print(f"{(time.monotonic() - begin) / 60:.1f} min; {'; '.join(failed) or 'nothing'} failed", file=sys.stderr)
    return int(not run("bench.report") or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
