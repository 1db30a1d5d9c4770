"""What the commands share: readers of their arguments, and their progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable


def names(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated list."""
    return tuple(part for part in text.split(",") if part)


def numbers(text: str) -> tuple[int, ...]:
    """The positive integers of a comma-separated list."""
    values = tuple(int(part) for part in names(text))
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positive numbers")
    return values


def progress() -> Callable[[str], None]:
    """Prints to stderr, and only on a terminal."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
