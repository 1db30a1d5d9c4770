"""A bar that counts the records that pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..opening import shows_progress

T = TypeVar("T")


def counted(records: Iterable[T], what: str, total: int | None, progress: bool) -> Iterator[T]:
    """The records, with a bar on standard error if `progress` asks for one and it is a terminal."""
    if not shows_progress(progress):
        yield from records
        return
    from tqdm import tqdm  # a tenth of the import of fanrank, for who looks at a terminal

    with tqdm(records, what, total, unit=" records") as bar:
        yield from bar
