"""What a shard does for replicas: as a leader it is read from, page by page; as a follower it answers by number."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from ..engine.engine import Engine
from ..engine.records.record import Record
from .copies import ids_after
from .messages import Ask, Gone


@dataclass(frozen=True, eq=False)
class ShardPage:
    """Some records of a shard, namespace by namespace, each in the order of its writes."""

    records: list[Record]
    last: tuple[str, int] | None
    """The namespace and the number of the last one's write, where more may follow; None: these are the last ones."""


class Following:
    """A part of `Shard`."""

    engine: Engine

    def number_at(self, epoch: int) -> int | None:
        """The number of the newest state of an epoch or an older one; None where none is kept."""
        raise NotImplementedError

    def newest(self) -> int | None:
        """As `Shard.newest`."""
        raise NotImplementedError

    def as_of(self, number: int, verb: str, asked: Ask | int, *arguments: Any, **keywords: Any) -> Any:
        """What a verb answers at the epoch of `asked` (an epoch, or a message that says it) from the state `number`.

        `Gone` where the newest state of that epoch is another one.
        """
        epoch = asked.epoch if isinstance(asked, Ask) else asked
        if self.number_at(epoch) != number:
            return Gone(self.newest())
        return getattr(self, verb)(asked, *arguments, **keywords)

    def follow(self, after: int, verb: str, *arguments: Any, **keywords: Any) -> Any:
        """Do a write or a tag that the leader did after its state of this number.

        `Gone` where this follower's newest state is another one: then it has missed a write.
        """
        newest = self.newest()
        return getattr(self, verb)(*arguments, **keywords) if newest == after else Gone(newest)

    def page_from(self, namespace: str, order: int, most: int) -> ShardPage:
        """Up to `most` live records, stamped, from behind this write of this namespace on. Copies of moves count.

        Others may write meanwhile. A record that they write between two pages may be in both, in one or in none.
        """
        memory = self.engine.index.ready()
        state = memory.state
        records: list[Record] = []
        left = most
        for name in state.names[bisect_left(state.names, namespace) :]:
            ids, last = ids_after(state.snapshot(name), order if name == namespace else -1, left)
            found = memory.store.fetch(name, ids) if memory.store is not None else state.records_of(name, ids)
            records += [record for record in found if record is not None]
            left -= len(ids)
            if last is not None:
                return ShardPage(records, (name, last))
        return ShardPage(records, None)
