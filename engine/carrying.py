"""`Carrying`: the verbs of `Engine` that take a memory elsewhere, or give it another form."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import StorageError
from .opening import OpenIndex, shows_progress
from .searcher import Searcher
from .storage.backup import BackupReport, Progress, back_up, check_backup, restore


class Carrying:
    """A part of `Engine`, which says what an engine is."""

    index: OpenIndex
    searcher: Searcher

    def backup(self, path: str | os.PathLike[str], *, progress: bool = False) -> BackupReport:
        """Copy the memory, as of one moment, to the new directory `path`, which `Engine.open` opens.

        Writes and searches go on meanwhile. The copy holds each batch whole or not at all, and every batch that was
        acknowledged before the call. It appears at `path` in one step, once all of it is on the disk; what an
        interrupted call leaves is a folder with ``.partial-`` in its name, which can be deleted.

        `progress` shows a bar if standard error is a terminal. Raises `StorageError` if something is at `path`
        already, if it cannot be written, and for an engine in memory (`save` keeps its index).
        """
        memory = self.index.ready()
        store = memory.store
        config = None if store is None else store.config
        if store is None or config is None:
            raise StorageError("an engine in memory keeps no records to back up; use Engine.open(path), or save(path)")
        with _shown(progress) as show:
            return back_up(store, memory.saved(), config["store"], Path(path), show)

    @staticmethod
    def check_backup(path: str | os.PathLike[str], *, progress: bool = False) -> BackupReport:
        """Check a backup, or any engine's directory, and say what it holds. Nothing in it is changed.

        The database is checked by SQLite, each record by its checksum, and the index files by theirs. Raises
        `DamagedStoreError` where a record is altered or acknowledged changes are missing, `ForeignIndexError`,
        `NewerFormatError`, `StorageError`.
        """
        with _shown(progress) as show:
            return check_backup(Path(path), show)

    @staticmethod
    def restore(
        backup: str | os.PathLike[str], path: str | os.PathLike[str], *, progress: bool = False
    ) -> BackupReport:
        """Check the directory `backup` and copy it to the new directory `path`, which appears there in one step.

        Raises as `check_backup`, and `StorageError` if something is at `path` already or it cannot be written.
        """
        with _shown(progress) as show:
            return restore(Path(backup), Path(path), show)


@contextmanager
def _shown(progress: bool) -> Iterator[Progress | None]:
    """A function that shows progress in a bar, a bar for each thing that is done; None where nobody would see it."""
    if not shows_progress(progress):
        yield None
        return
    from tqdm import tqdm  # as in opening.py

    bars: dict[str, Any] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in bars:
            bars[what] = tqdm(desc=what, total=total)
        bar = bars[what]
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()
