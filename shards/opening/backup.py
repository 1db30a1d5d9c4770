"""Copies of a sharded memory: all shards as of one epoch, and the owner's file.

The shards fix their moment while writes are held off, which takes milliseconds. Then each copies its own directory
while others write.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ...engine.errors import ForeignIndexError, StorageError
from ...engine.storage import backup as stores
from ...engine.storage.backup import BackupReport, Progress, beside, check_apart, refuse_existing
from ...engine.storage.index_files import OWNER, SHARDS
from ...engine.storage.record_store import RecordStore
from ...engine.storage.row_codec import RECORDS
from ...engine.storage.sqlite import named
from ...engine.storage.sync import sync
from ..coordinator.coordinator import Coordinator
from ..processes.links import Link
from ..processes.streams import Tasks
from ..protocol.owner import OwnerFile
from ..shard.parts import names_of_copies
from ..shard.shard import Shard
from .older import INTENTS, Older, read_older
from .opening import check_stores, folder_of

# Seconds that a shard keeps its owner waiting for the end of its copy before it says how far it is.
POLL = 0.5


@dataclass(frozen=True)
class ShardedBackupReport(BackupReport):
    """As `BackupReport`, over all shards: `sequence` and `bytes` are sums, and `index` is of the first that is not
    whole."""

    shards: tuple[BackupReport, ...]
    """Those of the shards, which count what moves to them too."""


def back_up(coordinator: Coordinator, target: Path, progress: Progress | None) -> ShardedBackupReport:
    """Make the directory `target`. Raises as `ShardedEngine.backup`."""
    owner = coordinator.owner
    if owner.path is None:
        raise StorageError("a memory without files keeps no records to back up; use ShardedEngine.open(path)")
    check_apart(owner.path.parent, target)
    with named(target), beside(target) as folder, closing(Tasks(coordinator.until)) as tasks:
        with coordinator.paused():
            tasks.begin(coordinator.links, begin_copy, str(folder.absolute()))
            copied = owner.copied()
        copied.write(folder / OWNER)
        reports = _wait_for(tasks, coordinator.links, progress)
        for number, report in reports.items():
            if not (folder / folder_of(number) / RECORDS).is_file():
                raise StorageError(
                    f"{target}: shard {number} wrote its copy on another machine, to {report.path}; delete it there, "
                    "and choose a path that all machines see"
                )
        found = _report(target, folder, reports)
        sync(folder)
    return found


def check_backup(path: Path, progress: Progress | None) -> ShardedBackupReport:
    """Check the directory `path`. Raises as `ShardedEngine.check_backup`."""
    known = _load(path)
    reports = {
        number: stores.check_backup(path / folder_of(number), _of_shard(number, progress))
        for number in range(known.placement.shards)
    }
    _check_stores(path, known)
    return _report(path, path, reports)


def restore(backup: Path, target: Path, progress: Progress | None) -> ShardedBackupReport:
    """Check `backup`, and make the directory `target` of it. Raises as `ShardedEngine.restore`."""
    refuse_existing(target)
    known = _load(backup)
    check_apart(backup, target)
    with named(target), beside(target) as folder:
        reports = {
            number: stores.restore(backup / folder_of(number), folder / folder_of(number), _of_shard(number, progress))
            for number in range(known.placement.shards)
        }
        _check_stores(folder, known)
        if isinstance(known, OwnerFile):
            known.copied().write(folder / OWNER)
        else:
            for name in (SHARDS, INTENTS):
                if (backup / name).exists():
                    shutil.copyfile(backup / name, folder / name)
                    sync(folder / name)
        found = _report(target, folder, reports)
    return found


def _load(path: Path) -> OwnerFile | Older:
    """What the owner of the memory keeps."""
    found = OwnerFile.open(path, read_only=True) or read_older(path)
    if found is None:
        raise ForeignIndexError(
            f"{path}: holds no sharded memory (it has no {OWNER}); for an engine's directory use Engine"
        )
    return found


def _check_stores(path: Path, known: OwnerFile | Older) -> None:
    """Raise `ForeignIndexError` where a shard's directory is that of another memory."""
    held = []
    for number in range(known.placement.shards):
        with RecordStore.open(path / folder_of(number), read_only=True) as store:
            held.append((store.config or {}).get("store"))
    check_stores(path, held, known.settings.get("stores"))


def _report(target: Path, folder: Path, reports: Mapping[int, BackupReport]) -> ShardedBackupReport:
    """What the copy at `folder`, which is to be `target`, holds. What is on its way to a shard does not count there."""
    names: set[str] = set()
    records = sum(report.records for report in reports.values())
    for number in reports:
        with RecordStore.open(folder / folder_of(number), read_only=True) as store:
            held = store.namespaces()
            names.update(held)
            for name in names_of_copies(store):
                records -= store.count(name)
    parts = tuple(reports[number] for number in sorted(reports))
    states = [f"shard {number}: {part.index}" for number, part in enumerate(parts) if part.index != "whole"]
    return ShardedBackupReport(
        str(target),
        records,
        len(names),
        sum(part.sequence for part in parts),
        max(part.format for part in parts),
        sum(part.bytes for part in parts),
        states[0] if states else "whole",
        parts,
    )


def _of_shard(number: int, progress: Progress | None) -> Progress | None:
    if progress is None:
        return None
    return lambda what, done, total: progress(f"shard {number}: {what}", done, total)


def _wait_for(tasks: Tasks, links: Iterable[Link], progress: Progress | None) -> dict[int, BackupReport]:
    """Wait for the copies of all shards."""
    reports: dict[int, BackupReport] = {}
    shards = [link.number for link in links]
    while len(reports) < len(shards):
        sent = {shard: tasks.send(shard) for shard in shards if shard not in reports}
        for shard, waiting in sent.items():
            answer = tasks.receive(shard, waiting)
            if isinstance(answer, BackupReport):
                reports[shard] = answer
            elif progress is not None:
                progress(f"shard {shard}: copying", *answer)
    return reports


class _Ended(Exception):
    """The owner wants no copy any more."""


class Copy:
    """A copy of a shard's directory that a thread makes."""

    def __init__(self, make: Callable[[Progress, Callable[[], None]], BackupReport]) -> None:
        self._make = make
        self._report = Future[BackupReport]()
        self._fixed = threading.Event()
        self._ended = False
        self._progress = 0, 0
        self._thread = threading.Thread(target=self._run, name="fanrank-backup", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Return once the moment of the copy is fixed. Raises what the copy failed by before."""
        self._fixed.wait()
        if self._report.done():
            self._report.result()

    def go_on(self) -> BackupReport | tuple[int, int]:
        """The report of the copy; or, after a moment, how much of how many pages is done."""
        return self._report.result() if wait([self._report], POLL).done else self._progress

    def end(self) -> None:
        """Let the thread end."""
        self._ended = True
        self._thread.join()

    def _run(self) -> None:
        try:
            self._report.set_result(self._make(self._watch, self._fixed.set))
        except BaseException as error:
            self._report.set_exception(error)
        self._fixed.set()

    def _watch(self, what: str, done: int, total: int) -> None:
        if self._ended:
            raise _Ended
        self._progress = done, total


def begin_copy(shard: Shard, folder: str) -> Copy:
    """Begin to copy a shard's directory below `folder`, as of this moment."""
    memory = shard.engine.index.ready()
    store = memory.store
    assert store is not None
    config = store.config
    assert config is not None
    index, owner, target = memory.saved(), config["store"], Path(folder) / folder_of(shard.number)
    return Copy(lambda progress, fixed: stores.back_up(store, index, owner, target, progress, fixed))
