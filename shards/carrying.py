"""`ShardedCarrying`: the verbs of `ShardedEngine` that take its records elsewhere, or bring others."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..engine.carry.export import export_records
from ..engine.carry.files import AnyFile, path_of
from ..engine.carry.importing import Held, Import, Imported, Reader, read
from ..engine.carry.progress import counted
from ..engine.carrying import shown_progress
from ..engine.monitor.monitor import checked_scope
from ..engine.records.filters import Filter
from ..engine.records.record import Record
from ..engine.storage.pending import Decision
from ..engine.storage.state import MemoryState
from .coordinator.holding import View
from .listing.listing import read_records
from .listing.streams import stream_all
from .opening.backup import ShardedBackupReport, back_up, check_backup, restore
from .search.launches import Launch
from .shard.shard import Shard
from .writing import ShardedWriting


class ShardedCarrying(ShardedWriting):
    """A part of `ShardedEngine`, which says what it is."""

    def export(
        self,
        file: AnyFile,
        *,
        format: str | None = None,
        namespace: str | None = None,
        filter: Filter | Mapping[str, Any] | None = None,
        vectors: bool = True,
        progress: bool = False,
    ) -> int:
        """As `Engine.export`: all records of one epoch, in the order of their writes, while searches and writes go on.

        Raises `ShardError` too, where a shard is started anew meanwhile: begin the export anew.
        """
        self._check_open()
        name = checked_scope(namespace)
        return export_records(
            lambda: closing(stream_all(self.coordinator, name, vectors=vectors)),
            lambda: sum(self.sizes().values()),
            self.template.index.memory.schema,
            file,
            format=format,
            namespace=name,
            filter=filter,
            pin=self.searcher.models.pin,
            progress=progress,
        )

    def import_records(
        self,
        file: AnyFile,
        *,
        format: str | None = None,
        upsert: bool = False,
        progress: bool = False,
        resume: bool = True,
    ) -> Imported:
        """As `Engine.import_records`. Each of its batches is in all its shards or in none."""
        self._check_open()
        target = _Target(self.template.bm25.fields, self._write_decided)
        importing = Import(target, self.searcher.models, upsert=upsert, resume=resume)
        return importing.run(counted(read(file, format), "importing", None, progress))

    def backup(self, path: str | os.PathLike[str], *, progress: bool = False) -> ShardedBackupReport:
        """Copy the memory, as of one epoch, to the new directory `path`, which `ShardedEngine.open` opens.

        As `Engine.backup`: writes and searches go on meanwhile, and the copy appears in one step. The shards' copies
        lie beside the owner's file, so all machines must see `path`. Raises `ShardError` too, where a shard is
        started anew meanwhile.
        """
        self._check_open()
        with shown_progress(progress) as show:
            return back_up(self.coordinator, path_of(path), show)

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

    def _write_decided(self, namespaces: Collection[str], decide: Callable[[Reader], Decision]) -> None:
        """Write what `decide` makes of what the shards hold, while no other writer comes between."""
        with self.coordinator.holding(namespaces):
            removed, added = decide(_HeldReader(self))
            # What expired since it was read is not there to be removed.
            self._write(removed=removed, added=list(added), missing_ok=True)

    def held(self, ids: Mapping[str, Sequence[str]], clock: float, compare: bool) -> dict[str, Held]:
        """What the shards hold under these ids, by namespace, as `importing.Reader` says."""

        def ask(view: View, until: float | None) -> dict[str, Held]:
            wanted = view.placement.by_shard((name, record_id) for name, some in ids.items() for record_id in some)
            links = self.coordinator.links
            sent = {
                shard: links[shard].send("read", view.at(shard), find_held, own, clock, compare)
                for shard, own in wanted.items()
            }
            records: dict[str, dict[str, Record | None]] = {name: {} for name in ids}
            expired: dict[str, set[str]] = {name: set() for name in ids}
            for answer in Launch(self.coordinator, view, until, None).receive(sent).values():
                for name, (there, over) in answer.items():
                    records[name] |= there
                    expired[name] |= over
            return {name: Held(records[name], expired[name]) for name in ids}

        return self.searcher.retry(ask)


@dataclass(frozen=True)
class _Target:
    """A sharded memory, to import into."""

    fields: Mapping[str, float]
    write: Callable[[Collection[str], Callable[[Reader], Decision]], None]
    keeps: bool = True


@dataclass(frozen=True)
class _HeldReader:
    engine: ShardedCarrying

    def find(self, ids: Mapping[str, Sequence[str]], clock: float, compare: bool) -> Mapping[str, Held]:
        return self.engine.held(ids, clock, compare)


def find_held(
    shard: Shard, state: MemoryState, ids: Mapping[str, Sequence[str]], clock: float, compare: bool
) -> dict[str, tuple[dict[str, Record | None], set[str]]]:
    """(what the shard holds under these ids, those of them that have expired), by namespace."""
    found: dict[str, tuple[dict[str, Record | None], set[str]]] = {}
    for name, some in ids.items():
        snapshot = state.snapshot(name)
        there = list(snapshot.find_all(some))
        records: dict[str, Record | None] = dict.fromkeys(there)
        if compare:
            records |= {
                record_id: record for (_, record_id), record in read_records(shard, state, {name: there}).items()
            }
        found[name] = records, {*snapshot.expired(clock, some)}
    return found
