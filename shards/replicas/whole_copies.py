"""Whole copies of split namespaces, for strategies that need more than sums of statistics.

Graphs, conversations, feedback, routers and neighbours read a namespace as one. A copy of it in one engine in memory
gives the answers of one engine, because it is one. It is made while others write, and follows all writes, at their
epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from math import inf

from ...engine.errors import FanrankError, SplitNamespaceError
from ..processes.links import Link, UnavailableError, collect
from ..processes.streams import Backfill, Records
from ..protocol.messages import Gone, Part
from ..protocol.placement import Placement

WHOLE, MODELLED = -1, -2
"""The numbers of the shards that hold whole copies: one like the others, and one in the owner's process with its
models, for feedback that encodes sentences of records."""

# Records that a copy takes in one write. Writes to its namespaces wait meanwhile: 0.2 s, and 0.5 s with 16,384, which
# take as long in all.
PAGE = 4_096

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
        self.shown: Mapping[str, int] = {}
        """The namespaces that are here, each with the write that showed it."""
        self.copying: Backfill | None = None
        """The namespaces that are on their way here. No search sees them."""

    @property
    def names(self) -> Set[str]:
        """The namespaces that are here."""
        return self.shown.keys()

    def holds(self, names: Iterable[str], epoch: float = inf) -> bool:
        """Whether a search of this epoch finds all of these namespaces here."""
        shown = self.shown
        return all(name in shown and shown[name] <= epoch for name in names)

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

    def begin(
        self, number: int, names: Sequence[str], links: Sequence[Link], placement: Placement, until: Until
    ) -> None:
        """Begin to copy these namespaces, to which nobody writes meanwhile. Raises `ShardError`.

        A shard that is started for it begins with the state of `number`.
        """
        if self.link is None:
            self.link = self._start()
            self.link.send("tag", number).result(until())
        homes = sorted({home for name in names for home in placement.homes(name)})
        records = Records(until, [links[home] for home in homes], names, merged=True)
        self.copying = Backfill(records, {self.number: names}, lambda namespace, record_id: self.number)

    def go_on(self, number: int, oldest: int, until: Until) -> None:
        """Copy the next page, as the write of this number. The last one shows the copies to searches from then on.

        Lets go of all copies where it raises: what was to be copied is lost.
        """
        copying, link = self.copying, self.link
        assert copying is not None
        assert link is not None
        try:
            part = copying.next(PAGE)[0][self.number]
            if copying.is_level:
                part = replace(part, hide=(), show=part.hide)
            apply_to(link, number, part, until, oldest=oldest)
        except BaseException:
            self.clear()
            raise

    def finish(self, number: int) -> None:
        """Count what is level among what is here, as of the write of this number."""
        copying = self.copying
        if copying is not None and copying.is_level:
            self.shown, self.copying = {**self.shown, **dict.fromkeys(copying.names, number)}, None
            copying.close()

    def concerns(self, names: Iterable[str]) -> bool:
        """Whether any of these namespaces is here, or on its way here."""
        copying = self.copying
        here = self.names if copying is None else self.names | copying.names
        return not here.isdisjoint(names)

    def apply(self, number: int, part: Part, oldest: int, until: Until) -> bool:
        """Do what the shards have done, if it concerns the copies; whether it did.

        A copy that cannot is let go of, and made anew when it is needed.
        """
        link, copying = self.link, self.copying
        if copying is not None:
            copying.note(part)
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

    def clear(self) -> None:
        """Let go of all copies."""
        link, copying = self.link, self.copying
        self.link, self.shown, self.copying = None, {}, None
        if copying is not None:
            copying.close()
        if link is not None:
            link.close()


def apply_to(link: Link, number: int, part: Part, until: Until, *, oldest: int) -> None:
    """Let a copy do a write. Raises `UnavailableError` where the copy has ended, and is empty again."""
    answer = link.send("apply", number, part, missing_ok=True, oldest=oldest).result(until())
    if isinstance(answer, Gone):
        raise UnavailableError(f"the copy in shard {link.number} was started anew and is empty; it is made again")
