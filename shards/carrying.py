"""`ShardedCarrying`: the verbs of `ShardedEngine` that take its records elsewhere, or bring others."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

from ..engine.carry.export import Source
from ..engine.carry.files import path_of
from ..engine.carry.importing import Reader, Target
from ..engine.carrying import shown_progress
from ..engine.records.record import Record
from ..engine.storage.pending import Decision
from .listing.streams import stream_all
from .opening.backup import ShardedBackupReport, back_up, check_backup, restore
from .writing import ShardedWriting


class ShardedCarrying(ShardedWriting):
    """A part of `ShardedEngine`, which says what it is."""

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


@dataclass(frozen=True)
class _Target:
    """A sharded memory, to import into."""

    fields: Mapping[str, float]
    write: Callable[[Collection[str], Callable[[Reader], Decision]], object]
    keeps: bool = True
