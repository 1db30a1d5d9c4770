"""A batch of plain BM25 answered by one compiled call, from its texts to its hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..backends.choose import Backend
from ..records.hits import Hits
from ..storage.memory import Memory
from .batch import AnyQuery
from .options import SearchOptions


def answer(
    memory: Memory,
    queries: Sequence[AnyQuery],
    k: int,
    windows: Callable[[str], int],
    backend: Backend,
    options: SearchOptions,
) -> Hits | None:
    """The hits of a batch by plain BM25; None where it is not served here, and the caller goes the general way.

    `windows` is as in `prepare`. Whatever the general way refuses is left to it: None, and no error of its own.
    """
    return None
