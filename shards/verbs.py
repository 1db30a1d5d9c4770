"""`ShardedVerbs`: how the verbs of `Memory` reach the shards of a `ShardedEngine`, and the verbs that change these."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ..engine.carry.export import Source
from ..engine.carry.files import path_of
from ..engine.carry.importing import Held, Reader, Target
from ..engine.carrying import shown_progress
from ..engine.engine import Engine
from ..engine.errors import FanrankError, ParameterError
from ..engine.listing.listing import Wanted
from ..engine.listing.matching import read_matching
from ..engine.memory import Memory
from ..engine.moments import Moment
from ..engine.monitor.health import DriftReport
from ..engine.monitor.monitor import checked_namespace, observed_ids
from ..engine.monitor.recency import Recency
from ..engine.records.filters import Filter, parse_filter
from ..engine.records.hits import join_names
from ..engine.records.jsonl import checked_ids
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.storage.pending import Decision
from ..engine.storage.sizes import snapshot_stats
from ..engine.storage.state import MemoryState
from ..engine.trust.runs import Writes
from .coordinator.columns import change_columns
from .coordinator.coordinator import Coordinator
from .coordinator.learning import find_windows, frequencies_of, learned_of, most_frequent, ranks_over, tell
from .listing.listing import ShardedPages, events_written, ids_having, ids_written, matching_in
from .moves.balancing import Step, plan_steps, together
from .moves.moves import MovingCoordinator
from .opening.backup import ShardedBackupReport, back_up, check_backup, restore
from .opening.opening import OPENING, Opened, check_versions
from .processes.links import Link, call_all, close_all, deadline_at
from .processes.streams import Records
from .protocol.messages import Description
from .replicas.replicas import replicas_of
from .search.launches import Launch
from .search.searcher import ShardedSearcher
from .shard.records import find_held, find_records, of_engine
from .shard.shard import Shard

T = TypeVar("T")

logger = logging.getLogger("fanrank")


class ShardedVerbs(Memory):
    """A part of `ShardedEngine`, which says what it is."""

    coordinator: MovingCoordinator
    searcher: ShardedSearcher
    template: Engine
    """An empty engine with the memory's parameters and models."""
    _opened: Opened
    _closed: bool

    def __init__(self) -> None:
        self._balancing = threading.Lock()
        self._splitter: threading.Thread | None = None

    def fetch(self, ids: Sequence[str], *, namespace: str = "") -> list[Record | None]:
        """As `Engine.fetch`, at one epoch in all shards."""
        batch, name = checked_ids(ids, "fetch"), checked_namespace(namespace)
        found = self.find({name: batch})
        return [found.get((name, record_id)) for record_id in batch]

    def find(self, ids: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Record]:
        """The live records with these ids, whole, by (namespace, id), in the order of the ids."""
        found = self.searcher.retry(lambda launch: launch.read_records(find_records, ids))
        keys = dict.fromkeys((name, record_id) for name, some in ids.items() for record_id in some)
        return {key: found[key] for key in keys if key in found}

    def _pages(self, wanted: Wanted) -> ShardedPages:
        """Each page is of one epoch of all shards, and a cursor stays good while namespaces move."""
        self.coordinator.check_open()
        return ShardedPages(self.searcher, wanted)

    def _secret(self) -> str:
        stores = self.coordinator.owner.settings.get("stores")
        # That of the first shard stays as long as the memory does.
        return str(stores[0]) if stores else self.template.index.memory.secret

    def ids(self, filter: Filter | Mapping[str, Any] | None = None, *, namespace: str = "") -> Iterator[str]:
        """As `Engine.ids`."""
        parsed, name = parse_filter(filter), checked_namespace(namespace)
        found = self.searcher.declaring(lambda: self.ids_where(parsed, name), [parsed])
        return iter(found.get(name, ()))

    def ids_where(self, filter: Filter | None, namespace: str | None) -> dict[str, list[str]]:
        """The ids of the live records that pass, by namespace, in the order of their writes."""
        pairs: dict[str, list[tuple[int, str]]] = {}
        for answer in self.each(ids_written, filter, namespace):
            for name, own in answer.items():
                pairs.setdefault(name, []).extend(own)
        return {name: [record_id for _, record_id in sorted(own)] for name, own in pairs.items()}

    def _events(
        self, filter: Filter | None, namespace: str, type: str | None, since: float, until: float
    ) -> list[tuple[str, float]]:
        found = sorted(chain.from_iterable(self._each(events_written, filter, namespace, type, since, until)))
        return [(record_id, -time) for time, _, record_id in found]

    def _each(
        self, read: Callable[..., T], filter: Filter | None, namespace: str | None, *arguments: Any
    ) -> Sequence[T]:
        return self.searcher.declaring(lambda: self.each(read, filter, namespace, *arguments), [filter])

    def each(self, read: Callable[..., T], filter: Filter | None, namespace: str | None, *arguments: Any) -> list[T]:
        """As `_each`, for who has declared the columns of the filter."""
        # Shards have a column more, which is not to be named.
        read_matching(read, self.template.index.memory.state, filter, namespace, *arguments)
        asked = matching_in, read, filter, namespace, *arguments
        answers = self.searcher.retry(
            lambda launch: launch.read(dict.fromkeys(launch.view.placement.holders(namespace), asked))
        )
        return [*answers.values()]

    def read_parts(self, namespace: str, function: Callable[..., Any], *arguments: Any) -> dict[int, Any]:
        """What `Shard.read` gives for a function in each shard that holds a namespace, at one epoch."""
        asked = function, *arguments
        return self.searcher.retry(
            lambda launch: launch.read(dict.fromkeys(launch.view.placement.homes(namespace), asked))
        )

    def sizes(self) -> dict[str, int]:
        """The live records of each namespace."""
        return self.searcher.retry(Launch.sizes)

    def observe(
        self, ids: Iterable[str], *, namespace: str = "", now: Moment | None = None, windows: int | None = None
    ) -> None:
        """As `Engine.observe`."""
        batch, moment, name = observed_ids(ids), Query(now=now).now, checked_namespace(namespace)
        window = self.template.window
        found = self.read_parts(name, find_windows, name, batch, window).values()
        ranks = ranks_over(found, window, None if moment is None else float(moment))
        tell(self.coordinator, name, "observe_ranks", ranks, name, windows)

    def resolved(self, name: str, entity: str, *, namespace: str = "", times: int = 1) -> None:
        """As `Engine.resolved`."""
        self.coordinator.check_open()
        checked = checked_namespace(namespace)
        tell(self.coordinator, checked, "resolved", name, entity, checked, times)

    def recency(self, namespace: str = "") -> Recency:
        """As `Engine.recency`, as of now: what is observed later does not change it."""
        self.coordinator.check_open()
        own, name = self.template.monitor, checked_namespace(namespace)
        rule = Recency(epsilon=own.epsilon, max_windows=own.max_windows, rate=own.rate)
        if (learned := learned_of(self.coordinator, [name]).get(name)) is not None:
            rule.restore(learned)
        return rule

    def drift(self, namespace: str = "") -> DriftReport:
        """As `Engine.drift`: since the last call in this process."""
        name = checked_namespace(namespace)
        parts = self.read_parts(name, frequencies_of, name).values()
        return self.monitor.drift_of(name, most_frequent(parts))

    def verify(self) -> dict[str, int]:
        """As `Engine.verify`, added up over the shards."""
        with self.coordinator.paused():
            answers = call_all(self.coordinator.links, None, "verify")
        return {name: sum(each[name] for each in answers.values()) for name in ("records", "missing", "extra")}

    def flush(self) -> None:
        """As `Engine.flush`."""
        self.coordinator.check_open()
        call_all(self.coordinator.links, None, "call", of_engine, "flush")

    def drop(self, namespace: str) -> None:
        """As `Engine.drop`."""
        self.coordinator.drop(checked_namespace(namespace))
        self.template.drop(namespace)

    def _write_decided(self, namespaces: Collection[str] | None, decide: Callable[[HeldReader], Decision]) -> int:
        held, reader = namespaces, HeldReader(self)
        removed: Mapping[str, Sequence[str]] = {}
        added: list[Record] | None = None
        while True:
            with self.coordinator.holding(held):
                if added is None or reader.is_outdated():
                    removed, records = decide(reader)
                    added = list(records)
                touched = {record.namespace for record in added}
                if self.coordinator.holds(touched):
                    # What expired since it was read is not there to be removed.
                    return self._write(removed=removed, added=added, missing_ok=True)
            # Further shards are held from the first one on, and others may write meanwhile.
            held = touched.union(held or ())

    def _source(self, namespace: str | None, vectors: bool) -> Source:
        """All are of one epoch. `ShardError` is raised where a shard is started anew meanwhile."""

        def read() -> AbstractContextManager[Iterable[Record]]:
            return closing(stream_all(self.coordinator, namespace, vectors=vectors))

        return read, lambda: sum(self.sizes().values())

    def _target(self) -> Target:
        """Each batch is in all its shards or in none."""
        return _Target(self.bm25.fields, self._write_decided)

    def backup(self, path: str | os.PathLike[str], *, progress: bool = False) -> ShardedBackupReport:
        """Copy the memory, as of one epoch, to the new directory `path`, which `ShardedEngine.open` opens.

        As `Engine.backup`: writes and searches go on meanwhile, and the copy appears in one step. The shards' copies
        lie beside the owner's file, so all machines must see `path`. Raises `ShardError` too, where a shard is
        started anew meanwhile.
        """
        with shown_progress(progress) as show:
            report = back_up(self.coordinator, path_of(path), show)
        self._note_copy("backup", path)
        return report

    def _epoch(self) -> Any:
        return [*call_all(self.coordinator.links, None, "call", of_engine, "_epoch").values()]

    def _writes(self, namespace: str, ids: Sequence[str], epoch: Any) -> Writes:
        """The numbers are those of each record's own shard."""
        if not isinstance(epoch, list) or len(epoch) != len(self.coordinator.links):
            return Writes()
        asked = call_all(self.coordinator.links, None, "call", writes_of, namespace, ids, epoch)
        parts = [part for part in asked.values() if part.written is not None]
        if len(parts) < len(epoch):
            return Writes()
        written, removed = ChainMap(*[{**one.written} for one in parts]), ChainMap(*[{**one.removed} for one in parts])
        return Writes(written, removed, min((one.first for one in parts if one.first), default=None))

    def _folders(self) -> list[Path]:
        if self.coordinator.owner.path is None:
            return []
        shards = call_all(self.coordinator.links, None, "call", of_engine, "_folders").values()
        return [self.coordinator.owner.path.parent, *chain.from_iterable(shards)]

    @staticmethod
    def check_backup(path: str | os.PathLike[str], *, progress: bool = False) -> ShardedBackupReport:
        """As `Engine.check_backup`, for the directory of a sharded memory whose shards lie beside its table."""
        with shown_progress(progress) as show:
            return check_backup(path_of(path), show)

    @staticmethod
    def restore(
        backup: str | os.PathLike[str], path: str | os.PathLike[str], *, progress: bool = False
    ) -> ShardedBackupReport:
        """As `Engine.restore`, for the directory of a sharded memory whose shards lie beside its table."""
        with shown_progress(progress) as show:
            return restore(path_of(backup), path_of(path), show)

    @property
    def opened(self) -> str | None:
        """As `Engine.opened`: ``loaded`` where all shards loaded their indexes, else why the first was built."""
        for number, how in enumerate(self._opened.opened):
            if how not in ("loaded", None):
                return f"{how} (shard {number})"
        return self._opened.opened[0]

    def change_columns(self, dropped: Sequence[str], added: Mapping[str, str]) -> None:
        """As `Engine.change_columns`, in all shards or in none. After a crash, `open` may bring a column back."""
        change_columns(self.coordinator, self.template, dropped, added)

    def _stats_of(self, namespace: str) -> dict[str, Any]:
        """Added up over the shards."""
        parts = self.read_parts(namespace, stats_of, namespace)
        total = Counter[str]()
        for part in parts.values():
            total.update(part)
        return {**total, "shards": list(parts)}

    def vacuum(self) -> int:
        """As `Engine.vacuum`, in all shards at a time. Writes to all of them wait."""
        with self.coordinator.paused():
            return sum(call_all(self.coordinator.links, None, "call", of_engine, "vacuum").values())

    def sweep(self) -> int:
        """As `Engine.sweep`, in all shards."""
        with self.coordinator.paused():
            return sum(call_all(self.coordinator.links, None, "call", of_engine, "sweep").values())

    def add_shards(self, count: int) -> int:
        """Add so many shards, which are empty, while searches and writes go on; returns how many there are then.

        Nothing moves yet: `rebalance` brings them their share. Raises `ShardError`, and as `Engine.open`.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ParameterError(f"add_shards takes a number of 1 or more, not {count!r}")
        coordinator = self.coordinator
        with self._balancing, coordinator.paused() as view:
            first = view.placement.shards
            links: list[Link] = []
            try:
                links.extend(self._opened.begin(number) for number in range(first, first + count))
                described: dict[int, Description] = call_all(links, deadline_at(OPENING), "describe")
                check_versions(described)
                coordinator.extend(links, [described[link.number].store for link in links])
            except BaseException:
                close_all(links)
                raise
        logger.info("%d shards were added; there are %d", count, first + count)
        return first + count

    def rebalance(self, *, progress: bool = False) -> dict[str, Any]:
        """Move and split namespaces until the shards hold about as many bytes, while searches and writes go on.

        No shard is to hold more than a tenth above the mean, as far as whole namespaces and parts allow it;
        `plan_steps` says by which policy. Returns ``moves``, one object for each namespace that went to other shards,
        and the bytes of the shards ``before`` and ``after``. Moves that are done stay done if a later one fails.
        `progress` shows a bar on a terminal. Raises `ShardError`.
        """
        with self._balancing:
            holdings = self.holdings()
            steps = plan_steps(holdings, self.coordinator.placement)
            self._carry_out(steps, progress)
            return {
                "moves": [asdict(step) for step in steps],
                "before": _bytes_of(holdings),
                "after": _bytes_of(self.holdings()),
            }

    def holdings(self) -> dict[int, dict[str, tuple[int, int]]]:
        """(records, bytes) of each namespace in each shard."""
        return self.coordinator.holdings()

    def _carry_out(self, steps: list[Step], progress: bool) -> None:
        done, total = 0, sum(step.records for step in steps)
        with shown_progress(progress and bool(steps)) as show:

            def watch(copied: int) -> None:
                nonlocal done
                done += copied
                if show is not None:
                    show("moving", done, total)

            for group in together(steps, self.coordinator.page):
                self.coordinator.place_all({step.namespace: step.after for step in group}, watch)
                for step in group:
                    logger.info("%d records went from shards %s to %s", step.records, step.before, step.after)

    def _write(
        self,
        *,
        removed: Mapping[str, Sequence[str]] | None = None,
        added: Iterable[Record] = (),
        missing_ok: bool = False,
        threads: int | None = None,
    ) -> int:
        """Write a batch to all its shards or to none. Each analyses its part with one thread."""
        schema = self.template.index.memory.schema
        written = self.coordinator.write(schema, removed=removed, added=list(added), missing_ok=missing_ok)
        if self.coordinator.outgrown and (self._splitter is None or not self._splitter.is_alive()):
            self._splitter = threading.Thread(target=self._split, name="fanrank-split", daemon=True)
            self._splitter.start()
        return written

    def _split(self) -> None:
        """Split the namespaces that outgrew their shards."""
        while self.coordinator.outgrown:
            try:
                with self._balancing:
                    self.coordinator.outgrown.clear()
                    steps = plan_steps(self.holdings(), self.coordinator.placement)
                    self._carry_out([step for step in steps if step.why == "split"], False)
            except FanrankError as error:  # noqa: PERF203
                if not self._closed:
                    logger.warning("a namespace was not split, and is tried again with its next write: %s", error)
                return

    def finish_splits(self) -> None:
        """Wait until the namespaces that outgrew their shards are split."""
        if self._splitter is not None:
            self._splitter.join()

    def stats(self, *, namespace: str | None = None) -> dict[str, Any]:
        """As `Engine.stats`, added up over the shards, and ``shards``: the statistics of each.

        Each has its ``shard`` number, ``queries`` and ``messages`` since it was started, ``p50_ms`` and ``p99_ms`` of
        its last 1,024 answers in milliseconds, ``bytes`` of its records in memory, and ``lag``: writes that were sent
        to it and that it has not acknowledged. ``replicas`` says of each replica, the leader first, its ``state``
        (``leading``, ``away``; ``following``, ``filling``, ``lost``), the ``messages`` that it was sent, its ``lag``
        behind the leader in writes, and by which ``failure`` it was lost; it is empty with ``replicas=1``.
        """
        if namespace is not None:
            return super().stats(namespace=namespace)
        self.coordinator.check_open()
        own = call_all(self.coordinator.links, self.coordinator.until(), "stats")
        view = self.coordinator.view
        total: dict[str, Any] = {}
        for each in own.values():
            for name, value in each.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "bytes_per_posting":
                    total[name] = total.get(name, 0) + value
        postings = total["postings"]
        total["bytes_per_posting"] = total["posting_bytes"] / postings if postings else 0.0
        total["backend"] = join_names(sorted(each["backend"] for each in own.values()))
        total["merging"] = any(each["merging"] for each in own.values())
        errors = (each["background_error"] for each in own.values())
        total["background_error"] = next((error for error in errors if error is not None), None)
        opened = dict.fromkeys(each["opened"] for each in own.values() if "opened" in each)
        total |= {"opened": "; ".join(opened)} if opened else {}
        total["namespaces"] = len(self.sizes())
        total["epoch"] = view.epoch
        total["split"] = {name: list(parts) for name, parts in view.placement.split.items()}
        total["generation"] = view.placement.generation
        total["moving"] = self.coordinator.moving()
        lags = self.coordinator.lags()
        for number, each in own.items():
            each |= {"shard": number, **each.pop("metrics"), "lag": lags[number]}
            each["replicas"] = replicas_of(self.coordinator.links[number])
        total["shards"] = [own[number] for number in sorted(own)]
        return total


class HeldReader:
    """Reads records of shards that its thread holds, as each `Reader` of the engine (`serve`, `carry`)."""

    def __init__(self, engine: ShardedVerbs) -> None:
        self._engine = engine
        self._asked: Mapping[str, Sequence[str]] = {}
        self._found: dict[tuple[str, str], Record] = {}

    def is_outdated(self) -> bool:
        """Whether the records that were read last are others by now."""
        return self._engine.find(self._asked) != self._found

    def live(self, ids: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        self._asked, self._found = ids, self._engine.find(ids)
        return {name: [one for one in some if (name, one) in self._found] for name, some in ids.items()}

    def passing(self, filter: Filter, namespace: str | None) -> dict[str, list[str]]:
        return self._engine.ids_where(filter, namespace)

    def having(self, texts: Mapping[str, Sequence[str]]) -> dict[str, list[list[str]]]:
        return self._engine.searcher.retry(lambda launch: ids_having(launch, texts))

    def records(self, ids: Mapping[str, Sequence[str]]) -> Iterator[Record]:
        keys = [(name, record_id) for name, some in ids.items() for record_id in some]
        found = self._found if self._found.keys() >= {*keys} else self._engine.find(ids)
        return (found[key] for key in keys if key in found)

    def find(self, ids: Mapping[str, Sequence[str]], clock: float, compare: bool) -> dict[str, Held]:
        def ask(launch: Launch) -> dict[str, Held]:
            held, wanted = {name: Held({}, set()) for name in ids}, launch.view.placement.by_shard(ids)
            asked = {shard: (find_held, own, clock, compare) for shard, own in wanted.items()}
            for name, own in chain.from_iterable(answer.items() for answer in launch.read(asked).values()):
                held[name] = Held({**held[name].records, **own.records}, {*held[name].expired, *own.expired})
            return held

        return self._engine.searcher.retry(ask)


@dataclass(frozen=True)
class _Target:
    """A sharded memory, to import into."""

    fields: Mapping[str, float]
    write: Callable[[Collection[str], Callable[[Reader], Decision]], object]
    keeps: bool = True


def stream_all(
    coordinator: Coordinator, namespace: str | None, *, vectors: bool = True
) -> Generator[Record, None, None]:
    """The records of one namespace or (None) of all, oldest first, expired ones too, as of the first step.

    With `vectors` false they have no embedding. Raises `ShardError` where a shard is started anew meanwhile.
    """
    names = None if namespace is None else [namespace]
    with coordinator.holding(names):
        links = [coordinator.links[shard] for shard in coordinator.placement.holders(namespace)]
        records = Records(coordinator.until, links, names, vectors=vectors, merged=True)
    with closing(records):
        yield from (record for _, record in records)


def writes_of(shard: Shard, namespace: str, ids: Sequence[str], epoch: Sequence[Any]) -> Writes:
    """What a shard says of the writes since its part of an epoch."""
    return shard.engine._writes(namespace, ids, epoch[shard.number])


def stats_of(shard: Shard, state: MemoryState, namespace: str) -> dict[str, int]:
    """The sizes of a shard's part of a namespace."""
    return snapshot_stats(state.snapshot(namespace).at(time.time()))


def _bytes_of(holdings: dict[int, dict[str, tuple[int, int]]]) -> list[int]:
    return [sum(size for _, size in holdings[shard].values()) for shard in sorted(holdings)]
