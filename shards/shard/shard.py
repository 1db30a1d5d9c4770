"""`Shard`: one engine among several, with the states of the last epochs.

The same class runs in the owner's process and as a Ray actor. It opens no model: queries and records come with their
vectors. Any thread may ask while one writes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.carry.copying import Pinned
from ...engine.encoders.encoder import OwnVectors
from ...engine.engine import Engine
from ...engine.errors import FanrankError, StorageError, UnknownColumnError
from ...engine.index.masks import EVERYTHING
from ...engine.listing import matching
from ...engine.locks import make_short_lock
from ...engine.search.texts import bring_records_of
from ...engine.signatures import EngineOptions
from ...engine.storage.sizes import sizes_in
from ...engine.storage.state import MemoryState
from ..protocol.messages import (
    Acknowledged,
    Answered,
    Ask,
    Description,
    Failure,
    Forward,
    Gone,
    Item,
    Part,
    Spread,
    forwarded,
    own_version,
)
from ..protocol.order import next_order, strip
from ..protocol.placement import Placement, chosen_part
from ..protocol.statistics import Counts, changed_counts, whole_counts
from .answering import Answerer
from .parts import ShardNotes

KEPT = 1_024
"""Messages whose times are kept for the percentiles."""


class OutdatedError(Exception):
    """A record was written since the state that is read."""


class ShardEngine(Engine):
    """The engine of a shard. Its directory opens for no other one, which would write records without a number."""

    _serves_shard = True


@dataclass(frozen=True, eq=False)
class Setup:
    """What a shard is made of."""

    number: int
    path: str | None
    """Its engine's directory; None: an engine in memory."""
    options: EngineOptions
    """Those of its engine, with the column of orders."""
    pin: Mapping[str, Any] | None = None
    """The model of the vectors that it is given."""
    term_pin: Mapping[str, Any] | None = None
    """That of the learned weights."""
    known: bool = False
    """Whether the directory was made before, and must be there."""
    backend: str | None = None


def pinned_options(pin: Mapping[str, Any] | None, term_pin: Mapping[str, Any] | None) -> EngineOptions:
    """The encoders of an engine that gets all vectors and weights from others, by the pins of their models."""
    options: EngineOptions = {}
    if pin is not None:
        options["encoder"] = OwnVectors(int(pin["dimension"]), pin["name"], pin["version"])
    if term_pin is not None:
        options["term_encoder"] = Pinned(**term_pin)
    return options


class Shard:
    """One shard. Raises as `Engine.open`, and `StorageError` where its directory is lost."""

    def __init__(self, setup: Setup) -> None:
        self.number = number = setup.number
        path = None if setup.path is None else os.path.expanduser(setup.path)
        if setup.known and path is not None and not Path(path).is_dir():
            raise StorageError(
                f"{path}: the directory of shard {number} is lost; bring it back from a copy, or name the storage that "
                "the memory was made with"
            )
        given: EngineOptions = {**setup.options, **pinned_options(setup.pin, setup.term_pin)}
        make = ShardEngine if path is None else partial(ShardEngine.open, path)
        self.engine: Engine = make(backend=setup.backend, **given)
        self._answerer = Answerer(self.engine)
        self._states: list[tuple[int, MemoryState]] = []
        # Held while the list of states is read or changed, and while records are read as of a state.
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._applying = False
        self._last = -1  # the number of the last write or tag
        self.notes = ShardNotes(self.engine.index.ready().store)
        self._metrics = Metrics()
        self.tasks: dict[str, Any] = {}
        """What goes on over several calls (`processes/streams.py`), by keys of the caller's."""

    def describe(self) -> Description:
        """What the shard is."""
        memory = self.engine.index.ready()
        config = {} if memory.store is None else dict(memory.store.config or {})
        return Description(
            config,
            config.get("store"),
            next_order(memory.state.snapshots.values()),
            memory.state.expiring,
            own_version(),
            self.engine.opened,
            self.notes.generation,
            None if self.notes.pending is None else self.notes.pending[0],
        )

    def tag(self, epoch: int, *, anew: bool = False) -> None:
        """Call the present state that of this epoch, and keep those of older ones. One that comes late does nothing.

        With `anew` the numbers before were others than the coordinator's, and are forgotten.
        """
        with self._writing, self._lock:
            if epoch <= self._last and not anew:
                return
            self._renew()
            present = epoch, self.shown()
            self._states = [present] if anew else [*self._states, present]
            self._last = epoch

    def shown(self) -> MemoryState:
        """The present state, without the namespaces that are being copied here."""
        return self.notes.shown(self.engine.index.ready().state)

    @contextmanager
    def still(self) -> Iterator[MemoryState]:
        """Hold off all that changes the records: writes, and the deletion of what has expired."""
        with self._writing, self.engine.index.ready().paused() as state:
            yield state

    def newest(self) -> int | None:
        """The epoch of the newest state; None: it has yet to be told."""
        with self._lock:
            return self._states[-1][0] if self._states else None

    def _state_at(self, epoch: int) -> MemoryState | None:
        """The newest state of this epoch or an older one; None where it is not kept. The caller holds the lock."""
        self._renew()
        return next((state for number, state in reversed(self._states) if number <= epoch), None)

    def _renew(self) -> None:
        """Put the present state in the place of the newest one. Merges made it, so its answers are the same."""
        if self._states and not self._applying:
            self._states[-1] = (self._states[-1][0], self.notes.shown(self.engine.index.memory.state))

    def apply(
        self,
        epoch: int,
        part: Part,
        *,
        missing_ok: bool,
        tracked: Iterable[str] = (),
        oldest: int | None = None,
        name: str = "",
        generation: int | None = None,
    ) -> Acknowledged | Gone:
        """Carry out a write, and keep the state after it as that of `epoch`. Returns once it is durable.

        A shard that was started anew does nothing until it is tagged. A write that comes after a later one or a later
        tag does nothing either: its sender has given it up, and what took its place is done.

        `tracked` are the namespaces whose change of counts the coordinator adds up, `oldest` is the oldest epoch that a
        search may still ask for. The shard remembers the write by its `name`, and by the `generation` of the decision
        that it carries out. Raises as `Engine.update`, and changes nothing then.
        """
        with self._writing:
            memory = self.engine.index.ready()
            with self._lock:
                if not self._states or epoch <= self._last:
                    return Gone(self._states[-1][0] if self._states else None)
                self._last = epoch
                self._renew()
                self._applying = True
                before = memory.state
            try:
                count = self._carry_out(part, missing_ok, name, generation)
                after = memory.state
            except BaseException as error:
                with self._lock:
                    self._applying = False
                    if not isinstance(error, FanrankError) or memory.state.sequence != before.sequence:
                        # The write may be done, and no epoch before may show it. The coordinator finds out.
                        self._states.clear()
                        self.notes.copies |= {*part.hide}
                raise
            with self._lock:
                self._applying = False
                self._states.append((epoch, self.notes.shown(after)))
                self._forget(epoch if oldest is None else oldest)
        names = part.names
        changes = {name: _change(name, before, after) for name in tracked if name in names}
        return Acknowledged(count, changes, {name: after.snapshot(name).size for name in names}, after.expiring)

    def _carry_out(self, part: Part, missing_ok: bool, name: str, generation: int | None = None) -> int:
        """Drop namespaces, then do the rest and keep the notes in one transaction. All of it may be done again."""
        memory, notes = self.engine.index.ready(), self.notes.of_write(name, generation, part.copies)
        try:
            memory.drop(*part.drop)
            count = memory.write(
                removed=part.removed,
                added=part.added,
                missing_ok=missing_ok,
                notes=notes,
                orders=part.orders,
                rows=self.notes.rows(generation),
            )
        except StorageError:
            # On a full disk, what makes room and what is decided have the room that was kept for them.
            if not self.notes.make_room():
                raise
            return self._carry_out(part, missing_ok, name, generation)
        self.notes.wrote(name, generation, part.copies)
        return count

    def prepare(self, generation: int, part: Part) -> None:
        """Keep a part of a decision until it is known whether it was decided. Raises `StorageError`."""
        with self._writing:
            self.notes.prepare(generation, part)

    def forget(self, generation: int) -> None:
        """Drop the part that was prepared under this generation."""
        with self._writing:
            self.notes.forget(generation)

    def finish(self) -> None:
        """Carry out the part that is prepared, which was decided. The caller tags the shard then."""
        with self._writing:
            if self.notes.pending is not None:
                generation, part = self.notes.pending
                self._carry_out(part, True, f"decision {generation}", generation)

    def last_write(self) -> tuple[str | None, int]:
        """(the name of the last write, the generation of the last decision) that the shard has carried out."""
        with self._writing:
            return self.notes.last, self.notes.generation

    def strays(self, placement: Placement) -> dict[str, int]:
        """The records of each namespace that this placement has elsewhere. Copies do not count."""
        return {
            name: snapshot.size
            for name, snapshot in self.shown().snapshots.items()
            if snapshot.size and self.number not in placement.homes(name)
        }

    def drop_copies(self) -> None:
        """Drop the namespaces that were being copied here when their owner ended."""
        with self._writing:
            part = Part(drop=tuple(self.notes.copies))
            if part.drop:
                self._carry_out(part, True, "copies")

    def _forget(self, oldest: int) -> None:
        """Let go of the states that no search asks for: all before the newest one of `oldest` or an older epoch."""
        last = max((place for place, (epoch, _) in enumerate(self._states) if epoch <= oldest), default=0)
        del self._states[:last]

    def ask(self, ask: Ask) -> list[Answered] | Gone:
        """Answer all items from one state."""
        began = time.perf_counter()
        with self._lock:
            # A write leaves the state before it, which holds what was merged since.
            self._forget(ask.oldest)
            state = self._state_at(ask.epoch)
        if state is None:
            return Gone(self.newest())
        answers: list[Answered] = []
        for item in ask.items:
            try:
                if isinstance(item, Forward):
                    answer = self._forward(state, item)
                    if answer is None:
                        return Gone(self.newest())
                    answers.append(answer)
                else:
                    answers.append(self._answerer.answer(state, item, ask.clock))
            except FanrankError as error:  # noqa: PERF203
                answers.append(Failure(error))
        self._metrics.count(ask.items, time.perf_counter() - began)
        return answers

    def _forward(self, state: MemoryState, item: Forward) -> Any:
        """The engine's own answer; None where records were asked for that have changed since."""
        options = item.options
        bare = replace(options, texts=False, payload=False)
        hits = self.engine.searcher.answer(item.queries, item.k, item.answerer, bare, state)
        if item.explained is not None:
            return hits.explain(0, item.explained)
        if options.texts or options.payload:
            brought = bring_records_of(self.engine.index.memory, state, hits, options)
            if brought is None:
                return None
            hits = brought
            assert hits.records is not None
            for place, record in enumerate(records := hits.records.reshape(-1)):
                if record is not None:
                    records[place] = strip(record)
        return forwarded(hits)

    def live(self, ids: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Which of these ids live records have now, by namespace."""
        state = self.engine.index.ready().state
        return {name: list(matching.searched(state.snapshot(name)).find_all(some)) for name, some in ids.items()}

    def holdings(self, namespace: str | None = None) -> dict[str, tuple[int, int]]:
        """The live records of each namespace, expired ones included, and their bytes in memory. Copies do not count.

        `namespace` None: of all.
        """
        snapshots = self.shown().snapshots
        names = snapshots if namespace is None else {namespace}.intersection(snapshots)
        return {
            name: (snapshots[name].size, sum(sizes_in([snapshots[name]]).values()))
            for name in names
            if snapshots[name].size
        }

    def strangers(self, namespace: str, parts: Sequence[int]) -> list[str]:
        """The ids of live records, expired ones too, that belong in another of these parts of a namespace."""
        ids = matching.ids_in(self.engine.index.ready().state.snapshot(namespace), EVERYTHING)
        return [name for name in ids if parts[chosen_part(name, len(parts))] != self.number]

    def counts(self, namespace: str) -> Counts:
        """All counts of the shard's part of a namespace, now."""
        state = self.engine.index.ready().state
        return whole_counts(state.snapshot(namespace), state.indexer.vocabulary.strings)

    def read(self, epoch: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a module gives for this shard, its state at an epoch, and these arguments."""
        with self._lock:
            state = self._state_at(epoch)
        if state is None:
            return Gone(self.newest())
        try:
            return function(self, state, *arguments)
        except OutdatedError:
            return Gone(self.newest())
        except FanrankError as error:
            return Failure(error)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a module gives for this shard and these arguments, now."""
        return function(self, *arguments)

    def change(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `call`, for what changes what a search finds: followers do it, too."""
        return function(self, *arguments)

    def declare(self, names: Sequence[str]) -> None:
        """Declare columns that a filter names. Raises `QueryError`."""
        with self._writing:
            memory = self.engine.index.ready()
            missing = memory.schema.undeclared(names)
            if missing:
                memory.declare(UnknownColumnError(f"no column {missing[0]!r}", missing), (), missing)

    def keys(self, names: Sequence[str]) -> Collection[str]:
        """As `Storage.keys`."""
        return self.engine.index.ready().keys(names)

    def tell(self, namespace: str, verb: str, *arguments: Any) -> dict[str, dict[str, Any]]:
        """Call a verb of the monitor; returns all that is learned of the namespace then, as `learn` takes it."""
        getattr(self.engine.monitor, verb)(*arguments)
        return self.engine.monitor.learned(namespace)

    def learned(self, namespaces: Iterable[str] | None) -> dict[str, dict[str, Any]]:
        """What was learned of hits and names in these namespaces or (None) in all, by namespace."""
        monitor = self.engine.monitor
        if namespaces is None:
            return monitor.learned()
        return {name: values for namespace in namespaces for name, values in monitor.learned(namespace).items()}

    def learn(self, learned: Mapping[str, Mapping[str, Any]], *, alone: bool = False) -> None:
        """Go on from what another shard or engine has learned of these namespaces, and keep it.

        With `alone`, nothing else is remembered.
        """
        store = self.engine.index.ready().store
        self.engine.monitor.adopt(learned, alone=alone)
        if store is not None and learned:
            store.keep_learned(learned)

    def as_of(self, verb: str, asked: Ask | int, *arguments: Any, **keywords: Any) -> Any:
        """What a verb answers at the epoch of `asked` (an epoch, or a message that says it) from that very state.

        `Gone` where this follower does not hold it.
        """
        epoch = asked.epoch if isinstance(asked, Ask) else asked
        with self._lock:
            held = any(number == epoch for number, _ in self._states)
        if not held:
            return Gone(self.newest())
        return getattr(self, verb)(asked, *arguments, **keywords)

    def follow(self, after: int, verb: str, *arguments: Any, **keywords: Any) -> Any:
        """Do a write or a tag that the leader did after its state of this number.

        `Gone` where this follower's newest state is another one: then it has missed a write.
        """
        newest = self.newest()
        return getattr(self, verb)(*arguments, **keywords) if newest == after else Gone(newest)

    def stats(self) -> dict[str, Any]:
        """As `Engine.stats`. Copies do not count as documents."""
        found = self.engine.stats()
        held = sum(size for _, size in self.holdings().values())
        return {
            **found,
            "documents": found["documents"] - self.notes.copied(self.engine.index.memory.state),
            "metrics": {"bytes": held, **self._metrics.report()},
        }

    def verify(self) -> dict[str, int]:
        """As `Engine.verify`. Copies do not count."""
        found = self.engine.verify()
        return {**found, "records": found["records"] - self.notes.copied(self.engine.index.memory.state)}

    def close(self) -> None:
        """Close the engine."""
        self.notes.make_room()
        self.engine.close()


class Metrics:
    """Queries, messages, and the times of the last messages."""

    def __init__(self) -> None:
        self._queries = self._messages = 0
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self._lock = make_short_lock()

    def count(self, items: Iterable[Item], seconds: float) -> None:
        """Count a message that was answered in this time."""
        queries = sum(len(item.queries) for item in items if isinstance(item, (Forward, Spread)))
        with self._lock:
            self._queries += queries
            self._messages += 1
            self._seconds.append(seconds)

    def report(self) -> dict[str, Any]:
        """``queries`` and ``messages`` since the shard was started, and ``p50_ms`` and ``p99_ms`` of the last messages
        in milliseconds, None before the first one.
        """
        with self._lock:
            queries, messages, seconds = self._queries, self._messages, list(self._seconds)
        p50, p99 = (float(1e3 * np.quantile(seconds, share)) if seconds else None for share in (0.5, 0.99))
        return {"queries": queries, "messages": messages, "p50_ms": p50, "p99_ms": p99}


def _change(namespace: str, before: MemoryState, after: MemoryState) -> Counts | None:
    """What a write changed in the counts of a namespace; None where terms were numbered anew meanwhile."""
    if before.numbering != after.numbering:
        return None
    strings = after.indexer.vocabulary.strings
    return changed_counts(before.snapshot(namespace), after.snapshot(namespace), strings)
