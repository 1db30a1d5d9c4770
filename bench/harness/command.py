"""The one shape of a command: what is measured is chosen, rows are taken and kept, and the report's section is printed.

    command = Command("dense", "Dense search, batched and looped.")
    command.add("--systems", type=among(SYSTEMS), default=SYSTEMS)
    options = command.parse(arguments)
    ...
    command.keep(rows)
    return command.end()

Every command takes ``--results``, ``--no-record`` and ``--json``. A row is a mapping; what all rows of a run have in
common (`stamp_rows`) is added to it. A row with ``error`` or with ``verified`` false makes the command end with 1.
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .code import code_of
from .machine import commit, machine, now
from .paths import RESULTS
from .rows import append

Row = dict[str, Any]


class Command:
    """A command by its name, which is that of its file of rows and of its section; `bench` is as rows name it."""

    def __init__(self, name: str, about: str, bench: str = "", file: str = "") -> None:
        self.kind, self.bench = file or name, bench or name
        self._parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=about)
        self.rows: list[Row] = []

    def add(self, *flags: str, **how: Any) -> None:
        """As `ArgumentParser.add_argument`; the help says the default."""
        default = how.get("default")
        if "help" not in how and default is not None:
            shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
            how["help"] = f"default {shown}"
        self._parser.add_argument(*flags, **how)

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """The options. The stamp of the rows is taken now."""
        self.add("--results", type=Path, default=RESULTS / f"{self.kind}.jsonl", help="where the rows go")
        self.add("--no-record", action="store_true", help="print, and keep no rows")
        self.add("--json", action="store_true", help="print the rows instead of the tables")
        self.options = self._parser.parse_args(arguments)
        self.common = stamp_rows(self.bench)
        return self.options

    def say(self, line: str) -> None:
        """Progress, only on a terminal."""
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    def keep(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep rows at once, so that an interrupted run keeps what it has."""
        found = [{**row, **self.common} for row in rows]
        if not self.options.no_record:
            append(self.options.results, found)
        self.rows += found

    def end(self) -> int:
        """Print what was taken. Returns 1 if a row is an error or was not verified, else 0."""
        from ..report.sections import show

        self.say("")
        print("\n".join(map(json.dumps, self.rows)) if self.options.json else show(self.kind, self.rows))
        return int(any(row.get("error") or row.get("verified") is False for row in self.rows))


def stamp_rows(bench: str) -> dict[str, Any]:
    """The fields that all rows of a run have in common."""
    date = now()
    found: dict[str, Any] = {"bench": bench, "run": date, "machine": {**machine(), "fanrank": version_of("fanrank")}}
    return {**found, "commit": commit(), "code": code_of(bench), "date": date}


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def names(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated list."""
    return tuple(part for part in text.split(",") if part)


def among(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads a comma-separated list of known names."""

    def read(text: str) -> tuple[str, ...]:
        given = names(text)
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are: {', '.join(known)}")
        return given

    return read


def numbers(text: str) -> tuple[int, ...]:
    """The positive integers of a comma-separated list."""
    values = tuple(map(positive, names(text)))
    if not values:
        raise argparse.ArgumentTypeError("not one number")
    return values


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.strip().isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)
