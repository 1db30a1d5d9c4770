"""`Launch`: one batch on its way to the shards, in one message to each, at one epoch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.records.copies import apart
from ...engine.records.record import Record
from ..coordinator.coordinator import Coordinator
from ..coordinator.deciding import View
from ..processes.links import Link, Waiting, collect
from ..protocol.messages import Ask, Failure, Gone, Item, Ranked
from ..shard.records import read_sizes, read_texts


class Again(Exception):
    """Some shards do not keep the epochs that were asked for; `restarted` where one was started anew."""

    def __init__(self, shards: Iterable[int] = (), restarted: bool = False) -> None:
        super().__init__()
        self.shards = {*shards}
        self.restarted = restarted


class Launch:
    """What is asked of each shard, and what came back.

    `until` is when all must be there. With `missing`, shards that cannot be reached are added there; without it they
    are an error.
    """

    def __init__(self, coordinator: Coordinator, view: View, until: float | None, missing: set[int] | None) -> None:
        self.coordinator = coordinator
        self.view = view
        self.until = until
        self.missing = missing
        self.clock = time.time()
        self._items: dict[int, list[Item]] = {}
        self._answers: dict[int, Any] = {}

    def add(self, shard: int, item: Item) -> int:
        """Put an item into the message of a shard; returns its place there."""
        own = self._items.setdefault(shard, [])
        own.append(item)
        return len(own) - 1

    def send(self) -> None:
        """Send the messages, and wait for all answers. Raises `Again`."""
        self._answers = self.ask(self._items)

    def answer(self, shard: int, place: int) -> Any:
        """What a shard answered to an item; None if the shard is missing. Raises what the item failed by."""
        if shard not in self._answers:
            return None
        answer = self._answers[shard][place]
        if isinstance(answer, Failure):
            raise answer.error
        return answer

    def link(self, shard: int) -> Link:
        """The way to a shard, or to whole copies. Raises `Again` where these are gone."""
        link = self.coordinator.wholes[shard].link if shard < 0 else self.coordinator.links[shard]
        if link is None:
            raise Again
        return link

    def ask(self, items: Mapping[int, list[Item]]) -> dict[int, Any]:
        """One message to each of these shards; their answers by shard. Raises `Again`."""
        sent: dict[int, Waiting] = {}
        for shard, own in items.items():
            if self.missing and shard in self.missing:
                continue
            link = self.link(shard)
            epoch, oldest = self.view.at(shard), self.coordinator.oldest(shard)
            sent[shard] = link.send("ask", Ask(epoch, self.clock, tuple(own), oldest))
        return self.receive(sent)

    def receive(self, sent: Mapping[int, Waiting]) -> dict[int, Any]:
        """What shards answered. Raises `Again` where one does not keep the epoch."""
        until = self.until
        if until is not None and self.missing is not None:
            # A shard that hangs takes half of the time that is left, so that the others can be asked for the rest.
            until = (until + time.monotonic()) / 2
        answers = collect(sent, until, missing=self.missing)
        gone = {shard: answer for shard, answer in answers.items() if isinstance(answer, Gone)}
        if gone:
            raise Again(gone, any(answer.newest is None for answer in gone.values()))
        for answer in answers.values():
            if isinstance(answer, Failure):
                raise answer.error
        return answers

    def read(self, asked: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """What functions give in shards, by shard; for each the function and its arguments, as `Shard.read` takes them.

        Raises `Again`.
        """
        return self.receive(
            {shard: self.link(shard).send("read", self.view.at(shard), *own) for shard, own in asked.items()}
        )

    def read_records(
        self, function: Callable[..., Any], ids: Mapping[str, Collection[str]]
    ) -> dict[tuple[str, str], Record]:
        """What a function of `shard/records.py` gives for the records with these ids, by namespace. Raises `Again`."""
        wanted = self.view.placement.by_shard(ids)
        found: dict[tuple[str, str], Record] = {}
        for answer in self.read({shard: (function, ids) for shard, ids in wanted.items()}).values():
            found |= answer
        return found

    def sizes(self, *, expired: bool = False) -> dict[str, int]:
        """The live records of each namespace, with `expired` also those that have expired. Raises `Again`."""
        sizes = Counter[str]()
        for answer in self.read(dict.fromkeys(range(self.view.placement.shards), (read_sizes, expired))).values():
            sizes.update(answer)
        return sizes

    def records(self, merged: Ranked) -> npt.NDArray[np.object_]:
        """The records of the hits as they were scored, in their places. Raises `Again` where they have changed."""
        present = merged.orders >= 0
        keys = list(zip(merged.namespaces[present].tolist(), merged.ids[present].tolist(), strict=True))
        found = self.read_records(read_texts, ids_by_namespace(keys))
        arranged = np.full(merged.orders.shape, None, dtype=object)
        arranged[present] = apart(map(found.get, keys))
        return arranged


def ids_by_namespace(keys: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The ids of these keys, each a namespace and an id; none twice."""
    found: dict[str, list[str]] = {}
    for name, record_id in dict.fromkeys(keys):
        found.setdefault(name, []).append(record_id)
    return found
