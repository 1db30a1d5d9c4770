"""The line of a settings file on which a field stands, for messages about it."""

from __future__ import annotations

import json
import json.scanner
import re
from collections.abc import Sequence
from typing import Any


def line_in_json(text: str, path: Sequence[str | int]) -> int:
    """The line of the field or item at this path, or of the innermost part around it that is there."""
    reader = _Reader()
    value, start = reader.decode(text), 0
    for step in path:
        start = reader.starts.get(id(value), start)
        if isinstance(step, str):
            found = re.compile(rf'"{re.escape(step)}"\s*:').search(text, start)
            start = start if found is None else found.start()
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            break
        if isinstance(step, int):
            start = reader.starts.get(id(value), start)
    return text.count("\n", 0, start) + 1


def line_in_toml(text: str, name: str) -> int | None:
    """The line on which a key of the outermost table is set."""
    found = re.search(rf"""^[ \t]*["']?{re.escape(name)}["']?[ \t]*=""", text, re.MULTILINE)
    return None if found is None else text.count("\n", 0, found.start()) + 1


class _Reader(json.JSONDecoder):
    """Reads JSON, and keeps where each object begins. Slow, and for files in which something is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[int, int] = {}
        self.kept: list[Any] = []
        """What was read, so that no two objects have one address."""
        self.parse_object: Any = self._parse
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _parse(self, place: tuple[str, int], *rest: Any) -> tuple[Any, int]:
        value, end = json.decoder.JSONObject(place, *rest)  # type: ignore[attr-defined]
        self.starts[id(value)] = place[1]
        self.kept.append(value)
        return value, end
