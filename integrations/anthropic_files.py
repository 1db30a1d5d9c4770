"""Paths and answers of Anthropic's memory tool: what they name, and how files and directories are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

from anthropic.lib.tools import ToolError

ROOT = "/memories"
WIDTH = 6
"""Characters of a line's number."""


def name_of(path: str) -> str:
    """The id of the file at a path, "" for the root. Raises `ToolError` for a path that leaves it."""
    name = path.rstrip("/").removeprefix(ROOT)
    if not path.startswith(ROOT) or (name and name[0] != "/"):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    if any(part in ("", ".", "..") for part in name.split("/")[1:]):
        raise ToolError(f"Path {path} would escape {ROOT} directory")
    return name[1:]


def ancestors(name: str) -> list[str]:
    """The directories that a file lies in, the outermost first."""
    return [*accumulate(name.split("/")[:-1], lambda outer, part: f"{outer}/{part}")]


def numbered(lines: list[str], first: int, last: int) -> str:
    return "\n".join(f"{number:>{WIDTH}}\t{line}" for number, line in enumerate(lines[first:last], first + 1))


def _size(size: float) -> str:
    """As ``ls -h`` writes it, such as 1.5K."""
    unit = 0
    while size >= 1024 and unit < 3:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f}".removesuffix(".0") + "BKMG"[unit]


def listing(path: str, name: str, texts: Mapping[str, str]) -> str:
    """A directory and what it holds by id, two levels deep, each with its bytes of UTF-8; no hidden names."""
    sizes: Counter[str] = Counter({"": 0})
    for id, text in texts.items():
        parts = id[len(name) :].strip("/").split("/")
        if not any(part.startswith(".") for part in parts):
            shown = {"", *("/".join(["", *parts[:depth], *[""][: len(parts) - depth]]) for depth in (1, 2))}
            sizes.update(dict.fromkeys(shown, len(text.encode())))
    directory = f"{ROOT}/{name}" if name else ROOT
    rows = [f"{_size(size)}\t{directory}{place}" for place, size in sorted(sizes.items())]
    header = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
    return "\n".join([header, *rows])
