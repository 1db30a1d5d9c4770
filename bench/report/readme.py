"""The blocks of measurements in README.md and in docs, which stand between comments and are written from rows."""

import re
import textwrap
from collections.abc import Callable
from typing import Any

from . import fanout, growth, quality, store, strategies
from .rows import Recorded

BLOCK = re.compile(r"<!-- rows: (?P<name>[a-z-]+) -->\n(?P<text>.*?)<!-- /rows -->", re.DOTALL)
PAGES = ("README.md", "docs/figures.md", "docs/analyzers.md")
"""The pages that hold blocks. The README has no links: they would lead nowhere on a package index."""

Section = Callable[[Recorded], list[str]]
SAME: dict[str, Section] = {"writes": store.writes, "crash": store.crash, "languages": quality.languages}
"""Blocks that are sections of the report."""


def _joined(section: Section) -> Callable[[Recorded], str]:
    return lambda recorded: "\n\n".join(section(recorded))


BLOCKS: dict[str, Callable[[Recorded], str]] = {
    "fanout": fanout.block,
    "growth": growth.block,
    **{name: _joined(section) for name, section in SAME.items()},
    "quality": quality.block,
    "strategies": strategies.block,
}


def fill_blocks(text: str, recorded: Recorded) -> str:
    """A page with every block as the rows give it. Raises `ValueError` for a block of an unknown name."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            raise ValueError(f"no block {name!r}; there are: {', '.join(BLOCKS)}")
        return f"<!-- rows: {name} -->\n{_wrap_lines(BLOCKS[name](recorded).rstrip())}\n<!-- /rows -->"

    return BLOCK.sub(block, text)


def _wrap_lines(text: str) -> str:
    """Prose wrapped to the page's line length; lines of tables unchanged."""
    lines = [line if line.startswith("|") else textwrap.fill(line, 120, **_UNBROKEN) for line in text.split("\n")]
    return "\n".join(lines)


_UNBROKEN: Any = {"break_long_words": False, "break_on_hyphens": False}
