"""How commands print: text for a person, or one JSON object."""

from __future__ import annotations

import json
from typing import Any

import click


def print_text(text: str) -> None:
    """Print `text`. A lone surrogate, which no stream can encode, is printed as JSON writes it."""
    click.echo(text.encode("utf-8", "backslashreplace").decode())


def print_json(value: Any) -> None:
    print_text(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_result(result: dict[str, Any], as_json: bool, text: str) -> None:
    """Print `result` as JSON, or `text`, which says the same."""
    if as_json:
        print_json(result)
    else:
        print_text(text)
