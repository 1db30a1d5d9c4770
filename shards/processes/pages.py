"""`PageStream`: records of shards, page by page. Moves, followers and whole copies are filled from one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from ...engine.records.record import Record
from ..protocol.messages import Page, Place
from ..protocol.order import number_of
from .links import Link, call_all


@dataclass(eq=False)
class PageStream:
    """The records of these namespaces (None: of all), in the order of the writes of each, up to `most` of a shard."""

    names: Sequence[str] | None
    most: int
    place: Place = ("", -1)
    """The last record that was read."""
    more: bool = True
    """Whether further records may follow."""

    def read(self, links: Iterable[Link], until: float | None) -> list[tuple[int, Record]]:
        """The next records of these shards, each with the number of its shard.

        Where several hold parts of a namespace, its records come in one order, as far as all of them are known.
        """
        pages: dict[int, Page] = call_all(links, until, "page", self.names, self.place, self.most)
        bound = min((last for _, last in pages.values() if last is not None), default=None)
        found = [
            ((record.namespace, number_of(record)), shard, record)
            for shard, (records, _) in pages.items()
            for record in records
        ]
        found = sorted((each for each in found if bound is None or each[0] <= bound), key=itemgetter(0))
        self.place = bound or (found[-1][0] if found else self.place)
        self.more = bound is not None
        return [(shard, record) for _, shard, record in found]
