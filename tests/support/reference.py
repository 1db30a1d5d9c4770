"""Text blocks of the generated pages docs/cli.md and docs/api.md."""

from __future__ import annotations

import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 120


def fold(text: str, indent: str = "") -> str:
    """One paragraph, folded at `WIDTH`; lines after the first begin with `indent`."""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def code(text: str) -> str:
    return f"```text\n{text}\n```"


def write(page: str, text: str) -> None:
    """Write docs/`page`."""
    path = ROOT / "docs" / page
    path.write_text(text, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {text.count(chr(10)):,} lines")
