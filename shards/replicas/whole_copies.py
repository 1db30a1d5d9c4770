"""Whole copies of split namespaces, for strategies that need more than sums of statistics.

Graphs, conversations, feedback, routers and neighbours read a namespace as one. A copy of it in one engine in memory
gives the answers of one engine, because it is one. It follows all writes, at their epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice

from ...engine.errors import FanrankError, ShardError, SplitNamespaceError
from ..processes.links import Link, collect
from ..processes.streams import Records
from ..protocol.messages import Gone, Part
from ..protocol.placement import Placement

WHOLE, MODELLED = -1, -2
"""The numbers of the shards that hold whole copies: one like the others, and one in the owner's process with its
models, for feedback that encodes sentences of records."""

# Records that a copy takes in one write.
COPIED = 16_384

Until = Callable[[], "float | None"]


class WholeCopies:
    """The shard in memory that holds whole copies, and the namespaces that it holds. It is started when it is needed.

    `start` makes it. `most` is the most records that the namespaces here may have.
    """

    def __init__(self, number: int, start: Callable[[], Link], most: int) -> None:
        self.number = number
        self._start = start
        self.most = most
        self.link: Link | None = None
        self.names: frozenset[str] = frozenset()

    def holds(self, names: Iterable[str]) -> bool:
        return self.names.issuperset(names)

    def check(self, sizes: Mapping[str, int], why: str, *, named: bool = True) -> None:
        """Raise `SplitNamespaceError` where namespaces of these sizes are too large for whole copies."""
        total = sum(sizes.values())
        if total > self.most:
            shown = ", ".join(map(repr, sorted(sizes)[:3])) if named else "what it searches"
            raise SplitNamespaceError(
                f"{why} reads its records as one, and {shown} lies in several shards and holds {total:,} records: a "
                f"whole copy may hold {self.most:,}; use bm25, dense or a fusion of these, or open with a greater "
                "whole_at"
            )

    def copy(self, number: int, names: Sequence[str], links: Sequence[Link], placement: Placement, until: Until) -> int:
        """Copy these namespaces, as of writes from `number` on; returns the number of the last one.

        The caller lets nobody write meanwhile. Raises `ShardError`.
        """
        link = self.link
        if link is None:
            link = self.link = self._start()
            link.send("tag", number).result(until())
        try:
            for namespace in names:
                if namespace in self.names:
                    continue
                homes = [links[home] for home in placement.homes(namespace)]
                with closing(Records(until, homes, [namespace])) as records:
                    for last in fill(link, number, records, COPIED, until):
                        number = last
                self.names |= {namespace}
        except BaseException:
            self.clear()
            raise
        return number

    def apply(self, number: int, part: Part, oldest: int, until: Until) -> bool:
        """Do what the shards have done, if it concerns the copies; whether it did.

        A copy that cannot is let go of, and made anew when it is needed.
        """
        link = self.link
        if link is None or self.names.isdisjoint(part.names):
            return False
        removed = {namespace: ids for namespace, ids in part.removed.items() if namespace in self.names}
        added = [each for each in part.numbered if each[1].namespace in self.names]
        try:
            apply_to(link, number, Part.of(added, removed), until, oldest=oldest)
        except FanrankError:
            self.clear()
        return True

    def clear_restarted(self, until: float | None) -> None:
        """Let go of copies that ended with their process."""
        if self.link is not None:
            told = collect({self.number: self.link.send("newest")}, until, missing=set())
            if told.get(self.number) is None:
                self.clear()

    def forget(self, namespace: str) -> None:
        """Let go of the copies where one of this namespace is among them."""
        if namespace in self.names:
            self.clear()

    def clear(self) -> None:
        """Let go of all copies."""
        link, self.link, self.names = self.link, None, frozenset()
        if link is not None:
            link.close()


def fill(link: Link, number: int, records: Records, most: int, until: Until) -> Iterator[int]:
    """Copy records to a shard in memory, so many a write; gives the numbers of the writes, which follow `number`."""
    left = iter(records)
    while page := list(islice(left, most)):
        number += 1
        apply_to(link, number, Part.of(page), until, oldest=number)
        yield number


def apply_to(link: Link, number: int, part: Part, until: Until, *, oldest: int) -> None:
    """Let a copy do a write. Raises `ShardError` where the copy has ended, and is empty again."""
    answer = link.send("apply", number, part, missing_ok=True, oldest=oldest).result(until())
    if isinstance(answer, Gone):
        raise ShardError(f"the copy in shard {link.number} was started anew and is empty; it is made again")
