"""How commands print: text for a person, or one JSON object."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from datetime import datetime, timedelta, timezone
from typing import Any

import click


def print_text(text: str) -> None:
    """Print `text`. A lone surrogate, which no stream can encode, is printed as JSON writes it."""
    click.echo(text.encode("utf-8", "backslashreplace").decode())


def print_json(value: Any) -> None:
    print_text(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_address(as_json: bool, url: str) -> None:
    """Say where a server listens: as JSON on standard output, or as text on standard error."""
    if as_json:
        print_json({"url": url})
    else:
        click.echo(url, err=True)


def print_result(result: dict[str, Any], as_json: bool, text: str) -> None:
    """Print `result` as JSON, or `text`, which says the same."""
    if as_json:
        print_json(result)
    else:
        print_text(text)


def one_line(text: str) -> str:
    """The text on one line, with single spaces. Control characters, which could steer a terminal, are spaces, too."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def terminal_width() -> int | None:
    """The columns of the terminal that the output goes to; None where it goes to a file or to another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cut_to(line: str, width: int | None) -> str:
    """The line, cut to `width` columns, with an ellipsis at the end; None: whole. Wide characters take two columns."""
    if width is None:
        return line
    used = last = 0
    for number, character in enumerate(line):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > width:
            return line[:last] + "…"
        if used < width:
            last = number + 1
    return line


def shown_time(seconds: float) -> str:
    """A time in UTC, to the second; as a number of seconds where it lies beyond the years that have four digits."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)
    except OverflowError:
        return f"{seconds:g}"
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
