"""Copies the directory of an engine while it is written to, and checks such a copy.

A copy is made beside its place under another name, and renamed when all of it is on the disk. So an interrupted copy is
never taken for a whole one.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DamagedStoreError, ForeignIndexError, IndexFileError, StorageError
from .failpoints import reach
from .index_arrays import SavedIndex
from .index_files import INDEX, IndexDirectory
from .lock import hold_folder
from .log import NoteWriter
from .losses import check_loss, check_pages
from .record_store import RecordStore
from .row_codec import RECORDS
from .sqlite import IN_USE, last_sequence, named, open_reader, version_of
from .sync import sync

# Pages that are copied between two reports of progress: 4 MB.
PAGES = 1000
# The database's name until all of it is copied. A directory in which it has this name cannot be opened.
_PARTIAL = RECORDS + ".partial"
# What stands between a copy's name and a random number, until the copy is whole.
_LEFT = ".partial-"

logger = logging.getLogger("fanrank")

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of how many: pages copied, or records checked."""


@dataclass(frozen=True)
class BackupReport:
    """What a copy of an engine's directory holds."""

    path: str
    records: int
    namespaces: int
    sequence: int
    """The last change that it holds."""
    format: int
    """The format of its database."""
    bytes: int
    """Bytes of its database."""
    index: str
    """``whole``, ``missing``, or what is wrong with the index files. `Engine.open` builds them anew where they are not
    whole."""
    partial: tuple[str, ...] = field(default=(), kw_only=True)
    """Folders that interrupted copies to this place left. The next copy to it removes them."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def back_up(
    store: RecordStore,
    index: SavedIndex,
    owner: str,
    target: Path,
    progress: Progress | None,
    begun: Callable[[], None] | None = None,
) -> BackupReport:
    """Make the directory `target`: the records as of one moment, and the index as of that moment or shortly before.

    `begun` is called once that moment is fixed. What is written from then on is not in the copy.
    """

    def copy_index(folder: Path) -> None:
        IndexDirectory(folder / INDEX, owner=owner).save(index)

    return _copy(store.path, target, copy_index, progress, begun)


def restore(backup: Path, target: Path, progress: Progress | None) -> BackupReport:
    """Check the copy `backup` and make the directory `target` of it. Raises as `check_backup`, and `StorageError`."""
    refuse_existing(target)
    report = check_backup(backup, progress)

    def copy_index(folder: Path) -> None:
        if report.index == "whole":
            shutil.copytree(backup / INDEX, folder / INDEX)
            for file in (folder / INDEX).iterdir():
                sync(file)

    return _copy(backup / RECORDS, target, copy_index, progress)


def check_backup(path: Path, progress: Progress | None = None) -> BackupReport:
    """Check an engine's directory, and say what it holds.

    SQLite checks its file, each record is compared with its checksum, and each index file with its own. Raises
    `DamagedStoreError` for the first that is wrong, and where acknowledged changes are missing.
    """
    records = path / RECORDS
    if not records.is_file():
        raise ForeignIndexError(f"{path}: no engine's directory (it has no {RECORDS})")
    with named(records):
        check_loss(records, read_only=True, accept=False)
        with closing(open_reader(records)) as reader:
            reader.execute("BEGIN")
            check_pages(reader, records)
            version = version_of(reader)
            (total,) = reader.execute("SELECT count(*) FROM records").fetchone()
    with RecordStore.open(path, read_only=True) as store:
        config = store.config
        if config is None:
            raise DamagedStoreError(f"{records}: holds no parameters of an engine; restore another copy")
        count, namespaces = 0, set()
        for run in store.changes_after(0):
            count += len(run.added)
            namespaces.add(run.namespace)
            if progress is not None:
                progress("checking", count, max(count, total))
        index = _index_state(path, config.get("store"))
        left = tuple(map(str, _partial(path)))
        return BackupReport(
            str(path), count, len(namespaces), store.sequence, version, store.bytes, index, partial=left
        )


def _index_state(path: Path, owner: str | None) -> str:
    index = IndexDirectory(path / INDEX, owner=owner)
    if not index.exists():
        return "missing"
    try:
        index.load()
    except IndexFileError as error:
        return f"damaged: {error}"
    return "whole"


def check_apart(folder: Path, target: Path) -> None:
    """Raise `ForeignIndexError` for a target that lies in the engine's directory `folder`."""
    if folder.resolve() in target.resolve().parents:
        raise ForeignIndexError(
            f"{target}: lies in the directory that is copied ({folder}); choose a place outside of it"
        )


def _copy(
    source: Path,
    target: Path,
    copy_index: Callable[[Path], None],
    progress: Progress | None,
    begun: Callable[[], None] | None = None,
) -> BackupReport:
    check_apart(source.parent, target)
    with named(target), beside(target) as folder, ExitStack() as held:
        with named(source):
            reader = held.enter_context(closing(open_reader(source)))
            # With a transaction open, the copy is of one moment, whatever is written meanwhile.
            reader.execute("BEGIN")
            last_sequence(reader)
        if begun is not None:
            begun()
        copy_index(folder)
        reach("backup.begin")
        database = folder / _PARTIAL
        with named(source):

            def copied(status: int, remaining: int, total: int) -> None:
                reach("backup.pages")
                if progress is not None:
                    progress("copying", total - remaining, total)

            with closing(sqlite3.connect(database, isolation_level=None)) as writer:
                reader.backup(writer, pages=PAGES, progress=copied)
                (journal,) = writer.execute("PRAGMA journal_mode=DELETE").fetchone()
                if journal != "delete":
                    raise StorageError(f"{database}: its journal is {journal}, not delete")
                writer.execute("DELETE FROM meta WHERE key = ?", (IN_USE,))
                sequence, version = last_sequence(writer), version_of(writer)
                (records,) = writer.execute("SELECT count(*) FROM records").fetchone()
                (namespaces,) = writer.execute("SELECT count(DISTINCT namespace) FROM records").fetchone()
        note = NoteWriter(folder / RECORDS)
        try:
            note.write_closed(sequence)
        finally:
            note.close()
        sync(database)
        os.rename(database, folder / RECORDS)
        size = (folder / RECORDS).stat().st_size
        sync(folder)
        index = "whole" if IndexDirectory(folder / INDEX).exists() else "missing"
        reach("backup.copied")
    reach("backup.renamed")
    return BackupReport(str(target), records, namespaces, sequence, version, size, index)


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A new folder that becomes `target`, if what is done in it succeeds. Removes those of interrupted copies."""
    refuse_existing(target)
    folder = target.with_name(f"{target.name}{_LEFT}{secrets.token_hex(4)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in _partial(target):
        if (held := hold_folder(left)) is not None:  # The process that made it has ended.
            logger.warning("%s: was left by a copy that was interrupted, and is removed", left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)
    folder.mkdir()
    held = hold_folder(folder)
    try:
        yield folder
        refuse_existing(target)
        os.rename(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if held is not None:
            os.close(held)
    sync(target.parent)


def _partial(target: Path) -> list[Path]:
    """The folders of copies to `target` that are not whole."""
    named_so = re.compile(re.escape(target.name + _LEFT) + "[0-9a-f]{8}")
    return sorted(file for file in target.absolute().parent.iterdir() if named_so.fullmatch(file.name))


def refuse_existing(target: Path) -> None:
    """Raise `StorageError` where something is at the target already."""
    if target.exists() or target.is_symlink():
        raise StorageError(f"{target}: is there already; choose a directory that is not there yet")
