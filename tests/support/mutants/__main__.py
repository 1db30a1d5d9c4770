"""``python -m tests.support.mutants [--part N/M] [--json] [--trust] [name ...]``: which planted faults the tests see.

Prints a line for each fault: caught, SURVIVED, does not apply (its code is not found exactly once), or broken (nothing
could be tested). Exits with 1 unless all are caught.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from ..commits import commit_number
from .fault import Fault
from .run import CAUGHT, LIMIT, Checkout, Result
from .table import FAULTS


def part_of(faults: Sequence[Fault], part: str) -> list[Fault]:
    """Part N of M: every M-th fault from the N-th on, N counted from 0 and taken modulo M. "HEAD" is the commit's."""
    number, _, parts = part.partition("/")
    try:
        size, own = int(parts), commit_number() if number == "HEAD" else int(number)
    except ValueError:
        size, own = 0, 0
    if size < 1:
        raise SystemExit(f"--part takes N/M or HEAD/M with M at least 1, not {part!r}")
    return list(faults[own % size :: size])


def chosen(faults: Sequence[Fault], names: Sequence[str]) -> list[Fault]:
    """The faults whose name or file holds one of these; all where none is given."""
    found = [fault for fault in faults if not names or any(name in fault.name or name in fault.file for name in names)]
    if not found:
        raise SystemExit(f"no fault is named {', '.join(names)}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names, or of the files, of the faults to plant")
    parser.add_argument("--part", help="N/M: part N of M; HEAD/M: the part that is the commit's turn")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each fault")
    parser.add_argument("--list", action="store_true", help="only print what would be planted")
    parser.add_argument("--trust", action="store_true", help="do not check first that the tests pass without a fault")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of one build or test")
    options = parser.parse_args(arguments)
    faults = chosen(FAULTS, options.names)
    if options.part:
        faults = part_of(faults, options.part)
    if options.list:
        print("\n".join(f"{fault.name} ({fault.file}): {fault.test}" for fault in faults))
        return 0
    failed = False

    def show(result: Result) -> None:
        nonlocal failed
        failed |= result.status != CAUGHT
        print(json.dumps(result._asdict()) if options.json else result, flush=True)

    checkout = Checkout(limit=options.limit)
    with checkout.held():
        checkout.refresh()
        if not options.trust:
            for result in checkout.baseline(faults):
                show(result)
        for fault in faults:
            show(checkout.plant(fault))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
