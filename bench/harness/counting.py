"""Counts the work of the searches that run inside a block, whichever method they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from fanrank.engine.timing import Phases


@contextmanager
def count_work() -> Iterator[Counter[str]]:
    """The sums, by name, of what `Phases.count` receives in the block. A search with ``timing`` counts everything."""
    sums: Counter[str] = Counter()
    count = Phases.count

    def counts_too(phases: Phases, name: str, number: int) -> None:
        sums[name] += number
        count(phases, name, number)

    with patch.object(Phases, "count", counts_too):
        yield sums
