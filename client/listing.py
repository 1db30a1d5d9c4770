"""`ServedListing`: the records of a server one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.listing.listing import Listing, Wanted
from ..engine.records.record import Record
from .answers import Page

Ask = Callable[[str | None, int], Page]
"""The page behind a cursor, of at most so many records."""


class ServedPages:
    """The pages of a listing. A key is the cursor of its page, its number there, and where the page ends."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def read(self, after: Any, count: int) -> tuple[list[tuple[Any, Record]], bool]:
        start = self.cursor(after)
        page = self.ask(start, count)
        size = len(page.records)
        keys = [(start, number, size, page.after) for number in range(1, size + 1)]
        return list(zip(keys, page.records, strict=True)), page.after is not None

    def cursor(self, key: Any) -> str | None:
        """The cursor behind a record. The server is asked for one within a page."""
        if key is None:
            return None
        start, number, size, end = key
        cursor: str | None = end if number == size else self.ask(start, number).after
        return cursor


class ServedListing(Listing):
    """As `Listing`, page by page from a server."""

    def __init__(self, ask: Ask, wanted: Wanted, after: str | None, limit: int | None) -> None:
        self._served = ServedPages(ask)
        super().__init__(self._served, wanted, "", None, limit)
        self._key: Any = None if after is None else (None, 0, 0, after)

    @property
    def position(self) -> str | None:
        return self._served.cursor(self._key)
