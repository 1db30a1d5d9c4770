"""Which failure of a batch is raised, where several of its parts fail: the one that one engine would find first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...engine.errors import FanrankError
from ...engine.route.parts import Part, renumber
from .routing import Routed


class Failures:
    """The failures of the parts of a batch.

    One engine goes through the strategies in the order of their first rows, and through the rows of each.
    """

    def __init__(self, routed: Sequence[Routed]) -> None:
        self._begins: dict[int, int] = {}
        for each in routed:
            self._begins.setdefault(id(each.part.answerer), min(each.part.rows, default=0))
        self._found: list[tuple[int, int, FanrankError]] = []

    def add(self, error: FanrankError, part: Part) -> None:
        """Note by what a part failed, in its own numbers of rows."""
        renumber(error, part)
        row = row_of(error, min(part.rows, default=0))
        self._found.append((self._begins[id(part.answerer)], row, error))

    def check(self) -> None:
        """Raise the first failure, if there is one."""
        if self._found:
            raise min(self._found, key=lambda found: found[:2])[2]


def row_of(error: FanrankError, otherwise: int) -> int:
    """The row that an error names."""
    named = re.match(r"query (\d+)\b", str(error))
    return int(named[1]) if named else otherwise
