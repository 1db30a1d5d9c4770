"""What shards go on with over several calls (`Tasks`): the copies of a backup, and the streams (`Records`) by which
exports, moves, replicas and whole copies read shards as of one moment, page by page, while others write.

What is written after the moment comes later in the order of the writes. So a copy (`Backfill`) is level with its
original once that was brought in behind the records of the moment.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Protocol

from ...engine.errors import DamagedStoreError, FanrankError
from ...engine.index.masks import EVERYTHING
from ...engine.locks import once
from ...engine.records.record import Record
from ...engine.storage.row_codec import RECORDS, UNPACKED, decode_data, decode_row
from ...engine.storage.sqlite import named, rows_of, vectors_in
from ..protocol.messages import Part
from ..protocol.order import Numbered, entries_written, strip
from ..shard.shard import Shard
from .links import Link, UnavailableError, Waiting, call_all, collect

PAGE = 1_000
"""Records that a shard gives at a time."""


class Task(Protocol):
    """What one shard has begun."""

    def start(self) -> Any:
        """Fix the moment that it is of, and say which it is."""
        ...

    def go_on(self) -> Any:
        """What comes next; never None."""
        ...

    def end(self) -> None:
        """Let go of all that is held for it."""
        ...


class Tasks:
    """A task of several shards, until `close`. `until` says when an answer must be there."""

    def __init__(self, until: Callable[[], float | None]) -> None:
        self._until = until
        self._key = secrets.token_hex(8)
        self._links: dict[int, Link] = {}

    def close(self) -> None:
        """End it. A second call does nothing."""
        links, self._links = self._links, {}
        with suppress(FanrankError):
            sent = {number: link.send("call", end_task, self._key) for number, link in links.items()}
            collect(sent, self._until(), missing=set())

    def begin(self, links: Iterable[Link], begin: Callable[..., Task], *arguments: Any) -> dict[int, Any]:
        """Let shards begin what a function of a module makes of each and of these arguments; what each start gives."""
        self._links = {link.number: link for link in links}
        try:
            return call_all(self._links.values(), self._until(), "call", begin_task, self._key, begin, *arguments)
        except BaseException:
            self.close()
            raise

    def send(self, shard: int) -> Waiting:
        """Ask a shard what comes next; `receive` gives it."""
        return self._links[shard].send("call", go_on, self._key)

    def receive(self, shard: int, waiting: Waiting) -> Any:
        """What comes next. Raises `UnavailableError` where the shard was started anew meanwhile."""
        answer = waiting.result(self._until())
        if answer is None:
            raise UnavailableError(f"shard {shard} was started anew, and what it had begun is lost; begin anew")
        return answer


def begin_task(shard: Shard, key: str, begin: Callable[..., Task], *arguments: Any) -> Any:
    """Begin what goes by this key from now on. If it is ended while it starts, it is ended once more after that."""
    task = shard.tasks[key] = begin(shard, *arguments)
    try:
        return task.start()
    finally:
        if shard.tasks.get(key) is not task:
            # The first end could not let go of what the start took later.
            task.end()


def go_on(shard: Shard, key: str) -> Any:
    """What comes next; None where nothing goes by this key."""
    task: Task | None = shard.tasks.get(key)
    return None if task is None else task.go_on()


def end_task(shard: Shard, key: str) -> None:
    """End what goes by this key, if it is there."""
    task: Task | None = shard.tasks.pop(key, None)
    if task is not None:
        task.end()


@dataclass(frozen=True)
class Moment:
    """What a shard is at the moment of a stream."""

    number: int | None
    """The number of its newest state; None: it was started anew and has yet to be told."""
    copies: Sequence[str]
    """The namespaces that are being copied to it."""


class Records(Tasks):
    """The records of these namespaces (None: of all) in these shards, with the numbers of their writes.

    The moment is that of this call; the caller lets nobody write to several shards meanwhile. The records come in the
    order of their writes where they are of one namespace, or `merged`; else namespace by namespace. With `vectors`
    false they have no embedding. `copies` says whether those that are being copied to a shard count. Raises
    `UnavailableError` where a shard is started anew meanwhile.
    """

    def __init__(
        self,
        until: Callable[[], float | None],
        links: Iterable[Link],
        names: Sequence[str] | None,
        *,
        vectors: bool = True,
        merged: bool = False,
        copies: bool = False,
    ) -> None:
        super().__init__(until)
        self.moments: dict[int, Moment] = self.begin(links, Stream, names, vectors, merged, copies)

    def __iter__(self) -> Iterator[Numbered]:
        # No two records have one number.
        return heapq.merge(*map(self._of, self.moments), key=itemgetter(0))

    def _of(self, shard: int) -> Iterator[Numbered]:
        sent = self.send(shard)
        while page := self.receive(shard, sent):
            # The shard reads the next page while this one is used.
            sent = self.send(shard)
            yield from page


@dataclass(eq=False)
class Backfill:
    """Records on their way to other shards: first those of one moment, then what was written since, until it is level.

    Nobody writes to them while `next` is called and what it gives is done, but for a copy that is told of no write.
    """

    records: Records
    targets: Mapping[int, Sequence[str]]
    """The shards that records go to, and the namespaces that each hides from all searches until it is level."""
    target: Callable[[str, str], int | None]
    """The shard that the record of a namespace and id goes to; None: it stays where it is."""
    is_level: bool = False
    """Whether all is done once the last page is."""
    is_far: bool = True
    """Whether more than a page may be left."""
    _left: Iterator[Numbered] = field(init=False)
    _written: dict[tuple[str, str], Numbered | None] = field(default_factory=dict)
    """What was written since the moment: the last record of each key; None where it was removed."""

    def __post_init__(self) -> None:
        self._left = iter(self.records)

    @once
    def names(self) -> frozenset[str]:
        """The namespaces that it hides."""
        return frozenset(chain.from_iterable(self.targets.values()))

    def close(self) -> None:
        """Let go of the stream."""
        self.records.close()

    def note(self, part: Part) -> None:
        """Take note of a write, if it concerns the namespaces."""
        for name in self.names.intersection(part.removed):
            self._written |= dict.fromkeys((name, record_id) for record_id in part.removed[name])
        for each in part.numbered:
            if each[1].namespace in self.names:
                self._written[each[1].namespace, each[1].id] = each

    def next(self, count: int) -> tuple[dict[int, Part], int]:
        """(what each of the targets does next, of how many records)."""
        removed, added = dict[int, dict[str, list[str]]](), dict[int, list[Numbered]]()
        page = list(islice(self._left, count))
        if not page:
            written, self._written = self._written, {}
            for namespace, record_id in written:
                if (shard := self.target(namespace, record_id)) is not None:
                    removed.setdefault(shard, {}).setdefault(namespace, []).append(record_id)
            # All that others wrote is noted, so what comes later has greater numbers.
            self._left = iter(sorted((each for each in written.values() if each is not None), key=itemgetter(0)))
            page = list(islice(self._left, count))
        for each in page:
            key = each[1].namespace, each[1].id
            if key not in self._written and (shard := self.target(*key)) is not None:
                added.setdefault(shard, []).append(each)
        self.is_level = len(page) < count and not self._written
        self.is_far = len(page) == count or len(self._written) > count
        parts = {
            shard: Part.of(added.get(shard, ()), removed.get(shard), hide=tuple(names))
            for shard, names in self.targets.items()
        }
        return parts, len(page)


class Stream:
    """A shard's records of the moment at which it starts."""

    def __init__(self, shard: Shard, names: Sequence[str] | None, vectors: bool, merged: bool, copies: bool) -> None:
        self._shard, self._names = shard, names
        self._vectors, self._merged, self._copies = vectors, merged, copies
        self._held = ExitStack()

    def start(self) -> Moment:
        shard = self._shard
        self._store = shard.engine.index.ready().store
        with shard.still() as state:
            self._state = state if self._copies else shard.shown()
            if self._store is not None:
                self._reader = self._held.enter_context(self._store.moment())
            moment = Moment(shard.newest(), sorted(shard.notes.copies))
        snapshots = self._state.snapshots
        names = sorted(snapshots if self._names is None else snapshots.keys() & {*self._names})
        found = (entries_written(name, snapshots[name], EVERYTHING) for name in names)
        self._entries = heapq.merge(*found) if self._merged else chain.from_iterable(found)
        return moment

    def go_on(self) -> list[Numbered]:
        """The next records; [] at the end."""
        page = list(islice(self._entries, PAGE))
        ids: dict[str, list[str]] = {}
        for entry in page:
            ids.setdefault(entry.namespace, []).append(entry.id)
        found = {(name, record.id): strip(record) for name, own in ids.items() for record in self._fetch(name, own)}
        try:
            return [(int(entry.key[1]), found[entry.namespace, entry.id]) for entry in page]
        except KeyError as missing:
            raise DamagedStoreError(
                f"{RECORDS}: the record with id {missing.args[0][1]!r} is not found, and the index holds it; restore "
                "the file from a copy, as records cannot be rebuilt"
            ) from None

    def end(self) -> None:
        self._held.close()

    def _fetch(self, name: str, ids: Sequence[str]) -> Iterator[Record]:
        if self._store is None:
            kept = self._state.records_of(name, ids, vectors=self._vectors)
            yield from (record for record in kept if record is not None)
            return
        columns: Any = vectors_in(self._reader) if self._vectors else "NULL"
        with named(self._store.path):
            rows = rows_of(self._reader, f"id, checksum, {UNPACKED}, {columns}", name, ids)
        for row in rows:
            yield decode_row(name, *row) if self._vectors else decode_data(name, *row[:3])[0]
