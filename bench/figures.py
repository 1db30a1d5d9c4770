"""Takes again every row that a page quotes and that is not there or older than the code: ``make figures``.

Each bench runs by its own commands, which keep their rows at once: first what takes no times, two at a time (counts,
ranks, the indexes of the fan-outs' peers), then what takes times, one after another. A command that ended well under
today's code does not run again, so a run that was broken off goes on where it was; ``--all`` runs everything. Then the
report is written.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .harness.code import BENCHES, code_of
from .harness.command import among
from .harness.machine import commit
from .harness.paths import CACHE, RESULTS, ROOT
from .report.rows import KINDS, load
from .report.sections import stale

HERE = tuple(kind for kind in KINDS if kind != "gpu")
"""What needs no GPU."""
AT_ONCE = 2
"""Commands that run beside each other, of those that take no times."""
DONE = CACHE / "figures.json"
"""The code under which each command ended well last."""
BEFORE = {"fanout": ("bench.fanout --build",)}
"""What a bench makes before it takes times."""


def run(module: str) -> bool:
    """Whether a command ended well."""
    return subprocess.run([sys.executable, "-m", *module.split()], cwd=ROOT).returncode == 0


class Run:
    """The commands that are due; each is told when it ended, with its time and all that has passed."""

    def __init__(self, total: int) -> None:
        self.total, self.ended, self.begin = total, 0, time.monotonic()
        self.failed: list[str] = []
        self.done: dict[str, str] = json.loads(DONE.read_text()) if DONE.is_file() else {}

    def minutes(self, since: float) -> str:
        return f"{(time.monotonic() - since) / 60:.1f} min"

    def take(self, commands: Sequence[tuple[str, str]], at_once: int) -> None:
        """Run commands, each with the code that it stands for, so many at once."""

        def one(command: tuple[str, str]) -> None:
            module, code = command
            started = time.monotonic()
            if run(module):
                self.done[module] = code
                DONE.parent.mkdir(parents=True, exist_ok=True)
                DONE.write_text(json.dumps(self.done))
            else:
                self.failed.append(module)
            self.ended += 1
            told = f"{self.minutes(self.begin)}, {self.ended} of {self.total}: python -m {module}"
            print(f"{told}: {self.minutes(started)}", file=sys.stderr, flush=True)

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, commands))


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the rows and write the report. Returns 1 if a command failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description="Every quoted row, taken again.")
    parser.add_argument("--only", type=among(HERE), default=HERE, help=f"of {','.join(HERE)}")
    parser.add_argument("--all", action="store_true", help="also what is as new as the code")
    options = parser.parse_args(arguments)
    old = stale(load(RESULTS))
    due = [kind for kind in options.only if options.all or kind in old]
    quiet = [(module, code_of(kind)) for kind in due for module in BEFORE.get(kind, ())]
    alone: list[tuple[str, str]] = []
    for kind in due:
        (alone if BENCHES[kind].alone else quiet).extend((module, code_of(kind)) for module in BENCHES[kind].runs)
    taking = Run(len(quiet) + len(alone))
    if not options.all:
        quiet, alone = ([each for each in own if taking.done.get(each[0]) != each[1]] for own in (quiet, alone))
        taking.total = len(quiet) + len(alone)
    if "+dirty" in commit():
        print("not all changes are committed, and rows will say so", file=sys.stderr)
    print(f"takes again: {', '.join(due) or 'nothing'}, by {taking.total} commands", file=sys.stderr, flush=True)
    taking.take(quiet, AT_ONCE)
    taking.take(alone, 1)
    failed = "; ".join(taking.failed) or "nothing"
    print(f"{taking.minutes(taking.begin)}; {failed} failed", file=sys.stderr)
    return int(not run("bench.report") or bool(taking.failed))


if __name__ == "__main__":
    sys.exit(main())
