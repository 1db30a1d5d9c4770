"""What searches count while a block runs, whichever method they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from fanrank.engine.timing import Phases


@contextmanager
def count_work() -> Iterator[Counter[str]]:
    """The sums of all that `Phases.count` is told meanwhile, by name; a search with ``timing`` tells everything."""
    sums: Counter[str] = Counter()
    count = Phases.count

    def counts_too(phases: Phases, name: str, number: int) -> None:
        sums[name] += number
        count(phases, name, number)

    with patch.object(Phases, "count", counts_too):
        yield sums
