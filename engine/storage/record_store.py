"""The records of an engine directory, in SQLite. Every index can be built again from them.

``records.sqlite`` holds the live records and a log of the removals. One counter, `sequence`, numbers both. A write is
one transaction in a write-ahead log, which is synced before the write returns. So a crash at any moment leaves exactly
the writes that returned, or those and the whole write in flight.

Long because reads and writes share the connections and the locks of one file.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import ForeignIndexError, ParameterError, StaleIndexError, StorageError
from ..index.columns import needs_json
from ..records.record import Record
from ..settings import compiled_loops
from . import failpoints
from .commit_log import CommitLog
from .index_files import check_one
from .lock import LOCK, let_go, make_folder, take_lock
from .log import log_of
from .losses import Loss, check_loss
from .row_codec import (
    JSON,
    JSON_VERSION,
    LEARN_ROWS,
    RECORDS,
    SYMBOLS_VERSION,
    TABLE_KEYS,
    TABLES,
    UNPACKED,
    EncodedRecord,
    Symbols,
    decode_data,
    decode_row,
    learned,
    name_of,
    stored,
    table_of,
    with_checksum,
    without_checksum,
)
from .sqlite import (
    NUMBER,
    UNNUMBERED,
    StoreMoment,
    damaged,
    is_blank,
    last_sequence,
    named,
    open_reader,
    open_writer,
    pruned_sequence,
    rows_of,
    storable,
    value_of,
    vectors_in,
    version_of,
)

logger = logging.getLogger("fanrank")

# Rows of a replay that are in memory at a time.
REPLAY_CHUNK = 10_000
# Rows of one statement. Every statement releases Python's lock. Beside one busy Python thread it gets the lock back
# after up to 5 ms: 100 records by executemany then take up to 430 ms, and 33 ms at most as VALUES of many rows.
MAX_ROWS = 128

# Without OR ROLLBACK, an INSERT of many rows copies every page before changing it, so that it can undo itself alone.
_ADD = "INSERT OR ROLLBACK INTO records(sequence, namespace, id, checksum, data, vectors) VALUES "
_LOG = "INSERT OR ROLLBACK INTO deletions(sequence, namespace, id) VALUES "
# The rows of `meta` that hold what was learned of a namespace; its name follows.
LEARNED = "learned/"
LEARNED_KEYS = LEARNED, "learned0"
# The row of `meta` that says how often any of them changed, and of which namespaces the last `FOLLOWED` changes were.
LEARNING = "learning"
FOLLOWED = 64
# The rows of `meta` that its owner keeps beside the records; a name follows.
NOTES = "note/"
NOTE_KEYS = NOTES, "note0"


Texts = dict[str, tuple[int, Record]]
"""By id, the sequence of a record's write, and the record without its embedding."""


Notes = Mapping[str, str | None]
"""Texts that are kept beside the records, by name; None: no longer."""


@dataclass(frozen=True)
class Change:
    """What one write batch does to one namespace: first the drop, then the removals, then the additions.

    `removed` are ids that are live before the batch. `added` are records whose ids are not live after the removals.
    `dropped` removes all records of the namespace.
    """

    namespace: str
    removed: Sequence[str] = ()
    added: Sequence[EncodedRecord] = ()
    dropped: bool = False


@dataclass(frozen=True)
class ChangeRun:
    """A step of a replay for one namespace: first the drop, then the removals, then the additions, in order."""

    namespace: str
    last: int
    """The store's last change at the moment that the replay shows; equal in all runs of a replay."""
    removed: list[str] = field(default_factory=list)
    added: list[Record] = field(default_factory=list)
    dropped: bool = False


class RecordStore:
    """The records of one engine directory: one writer, any number of readers in any process.

    Safe to use from many threads. Reads see the last committed write and never wait for a write in flight. Every method
    raises `StorageError` if the files cannot be read or written, and `DamagedStoreError` if their content was altered.
    """

    def __init__(
        self, path: Path, reader: sqlite3.Connection, writer: sqlite3.Connection | None, lock: int | None
    ) -> None:
        self.path = path
        self._reader: sqlite3.Connection | None = reader
        self._writer = writer
        self._lock = lock
        self._read_only = writer is None
        self._reading = threading.Lock()
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._writing = threading.Lock()
        self._process = os.getpid()
        self._file = _identity(path)
        self._last = 0  # the last sequence that is committed
        self._next = 0  # the last sequence of the transaction under way
        self._numbers: dict[str, int] = {}
        self._version = 0
        self._tables = self._numbered = 0  # tables of symbols, and the number of the last
        self._symbols: Symbols | None = None  # the last of them
        self._log = CommitLog(path)
        self.loss: Loss | None = None
        """The acknowledged changes that the records lack, where the caller accepted that."""
        if writer is not None:
            self._remember(writer)

    @classmethod
    def open(cls, root: str | os.PathLike[str], *, read_only: bool = False, accept_loss: bool = False) -> RecordStore:
        """The store in the directory `root`. A writer creates the directory and the store if they are missing.

        Raises `StoreLockedError` while another writer has the store open, `ForeignIndexError`, `NewerFormatError`,
        `DamagedStoreError`, `StorageError`. With `accept_loss` it goes on where acknowledged changes are missing, and
        `loss` says which.
        """
        root = Path(root)
        path = root / RECORDS
        with named(path):
            if read_only:
                if not path.is_file():
                    check_one(root)
                    why = f"it has no {RECORDS}" if root.exists() else "there is no such directory"
                    raise ForeignIndexError(f"{root}: no fanrank records here ({why})")
                reader = open_reader(path)
                try:
                    loss = check_loss(path, read_only=True, accept=accept_loss)
                    if is_blank(reader, path):
                        raise ForeignIndexError(f"{path}: holds nothing yet; open it for writing once")
                    store = cls(path, reader, None, None)
                    store.loss = loss
                    return store
                except BaseException:
                    reader.close()
                    raise
            make_folder(root)
            lock = take_lock(root / LOCK)
            writer = None
            try:
                loss = check_loss(path, read_only=False, accept=accept_loss)
                writer = open_writer(path)
                store = cls(path, open_reader(path), writer, lock)
                store._log.repair(writer, store._last)
                if loss is not None:
                    store._give_up(loss)
                return store
            except BaseException:
                if writer is not None:
                    writer.close()
                let_go(lock)
                raise

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Fold the log into the file and release the lock. A second call, or one in a forked child, does nothing."""
        if os.getpid() != self._process:
            return
        with self._writing, self._reading, self._watching, named(self.path):
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            writer, self._writer = self._writer, None
            lock, self._lock = self._lock, None
            try:
                if writer is not None:
                    with closing(writer):
                        self._log.close(writer, self._last)
            finally:
                self._log.release()
                if lock is not None:
                    let_go(lock)

    def check_process(self) -> None:
        """Raise `StorageError` in a process that was forked from the one that opened the store.

        SQLite's connections are of one process, and a lock that another thread held at the fork stays held.
        """
        if os.getpid() != self._process:
            raise StorageError(
                f"{self.path}: the store belongs to the process that this one was forked from; open the directory "
                "again here, with read_only=True, to read texts and records"
            )

    def check_place(self) -> None:
        """Raise `StorageError` where the database that is open no longer lies at its path."""
        if _identity(self.path) != self._file:
            raise StorageError(
                f"{self.path.parent}: was renamed, removed or replaced since it was opened; nothing is written there "
                "beside the records, which are safe in their file. Close this engine, and open the directory where it "
                "lies"
            )

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def bytes(self) -> int:
        """Bytes on disk: the database and its log."""
        return sum(file.stat().st_size for file in (self.path, log_of(self.path)) if file.exists())

    @property
    def sequence(self) -> int:
        """The number of the last change; 0 if there was none."""
        if not self._read_only:
            return self._last
        with self._reads() as reader:
            return last_sequence(reader)

    def version(self) -> int:
        """A number that differs from the last one where another process has committed meanwhile. It takes 3 us."""
        with named(self.path), self._watching:
            if self._watcher is None:
                # The connection of other reads may be busy for long.
                self._watcher = self._open_snapshot()
            (number,) = self._watcher.execute("PRAGMA data_version").fetchone()
        return int(number)

    @property
    def pruned(self) -> int:
        """Deletions up to this sequence are no longer known."""
        with self._reads() as reader:
            return pruned_sequence(reader)

    @property
    def config(self) -> dict[str, Any] | None:
        """The engine's parameters as `set_config` stored them; None before."""
        with self._reads() as reader:
            rows = dict(reader.execute("SELECT key, value FROM meta WHERE key IN ('config', 'checksum')").fetchall())
        if not rows:
            return None
        value = rows.get(b"config")
        if not isinstance(value, bytes) or zlib.crc32(value) != rows.get(b"checksum"):
            raise damaged(self.path, "the engine's parameters were altered since they were written (checksum differs)")
        config: dict[str, Any] = json.loads(value)
        return config

    def set_config(self, config: dict[str, Any], *, replace: bool = False) -> None:
        """Store the engine's parameters, once. With `replace`, stored ones are replaced if there was no write yet.

        Raises `ParameterError` if parameters are stored already, or if JSON would alter them.
        """
        value = _config_json(config)
        with self._transaction() as writer:
            if replace and self._last == 0:
                writer.execute("DELETE FROM meta WHERE key IN ('config', 'checksum')")
            if writer.execute("SELECT 1 FROM meta WHERE key = 'config'").fetchone():
                raise ParameterError(f"{self.path}: its parameters are set when it is made; make another directory")
            rows = "config", value, "checksum", zlib.crc32(value.encode())
            writer.execute("INSERT INTO meta(key, value) VALUES (?, ?), (?, ?)", rows)
            self._raise_version(writer, JSON_VERSION if needs_json(config.get("columns") or {}) else 0)

    def change_columns(self, columns: Mapping[str, str]) -> None:
        """Store that the records have these declared columns from now on. An index of others is then of no use."""
        value = _config_json({**(self.config or {}), "columns": dict(columns)})
        with self._transaction() as writer:
            rows = "config", value, "checksum", zlib.crc32(value.encode())
            writer.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?), (?, ?)", rows)
            self._raise_version(writer, JSON_VERSION if needs_json(columns) else 0)
            self._count_unnumbered(writer)
        self._fold()

    def keep_learned(self, learned: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what was learned of these namespaces. It is no change of the records, and has no sequence."""
        with self._transaction() as writer:
            for namespace, values in learned.items():
                writer.execute(
                    "INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)",
                    (LEARNED + namespace, with_checksum(JSON.encode(values))),
                )
            _note_learning(writer, learned)

    def forget_learned(self, namespace: str) -> None:
        """Forget what `keep_learned` kept of a namespace. Writes nothing where there is nothing."""
        key = LEARNED + namespace
        with self._reads() as reader:
            there = storable(key) and value_of(reader, key) is not None
        if there:
            with self._transaction() as writer:
                writer.execute("DELETE FROM meta WHERE key = ?", (key,))
                _note_learning(writer, [namespace])

    def learned(self) -> dict[str, dict[str, Any]]:
        """What `keep_learned` kept, by namespace."""
        return self.learned_after(None)[1]

    def learned_after(self, after: int | None) -> tuple[int, dict[str, dict[str, Any]], Sequence[str] | None]:
        """(how often it changed, what `keep_learned` kept by namespace, which namespaces these are; None: all).

        `after` asks for what changed since it had changed so often. What was altered is left out with a warning, and
        learned again.
        """
        with self._reads() as reader:
            changes, names = _learning(reader)
            some = None if after is None or changes - after > len(names) else names[len(names) - (changes - after) :]
            if some is None:
                rows = reader.execute("SELECT key, value FROM meta WHERE key >= ? AND key < ?", LEARNED_KEYS).fetchall()
                held = {name_of(key).removeprefix(LEARNED): value for key, value in rows}
            else:
                held = {name: value for name in some if (value := value_of(reader, LEARNED + name)) is not None}
        found = {name: without_checksum(value) for name, value in held.items()}
        if None in found.values():
            logger.warning("%s: what was learned of some namespaces was altered, and is learned anew", self.path)
        kept = {namespace: json.loads(values) for namespace, values in found.items() if values is not None}
        return changes, kept, some

    def notes(self) -> dict[str, str]:
        """What `write` and `keep_notes` kept beside the records, by name. Raises `DamagedStoreError`."""
        with self._reads() as reader:
            rows = reader.execute("SELECT key, value FROM meta WHERE key >= ? AND key < ?", NOTE_KEYS).fetchall()
        found: dict[str, str] = {}
        for key, value in rows:
            name, text = name_of(key).removeprefix(NOTES), without_checksum(value)
            if text is None:
                raise damaged(self.path, f"the note {name!r} was altered since it was written (checksum differs)")
            found[name] = text
        return found

    def keep_notes(self, notes: Notes) -> None:
        """Keep these notes, which are no change of the records."""
        with self._transaction() as writer:
            self._keep_notes(writer, notes)

    def write(self, batches: Sequence[Sequence[Change]], notes: Notes | None = None) -> int:
        """Apply the batches in order, all or nothing, and keep the notes with them.

        Returns the sequence of the last change, once it is durable.

        Raises `StorageError` if the disk fails or is full, or if a change does not fit the live records. The store is
        then unchanged and still usable.
        """
        with self._transaction() as writer:
            failpoints.reach("write.begin")
            self._learn_symbols(writer, [record for batch in batches for change in batch for record in change.added])
            for batch in batches:
                for change in batch:
                    self._apply(writer, change)
                    failpoints.reach("write.records")
            self._keep_notes(writer, notes or {})
            last = self._next
            failpoints.reach("write.commit")
        failpoints.reach("write.committed")
        return last

    def drop(self, *namespaces: str) -> int:
        """Remove all records of namespaces. Returns the sequence of the last change."""
        return self.write([[Change(namespace, dropped=True) for namespace in namespaces]])

    def _apply(self, writer: sqlite3.Connection, change: Change) -> None:
        last = self._next
        number = self._numbers.get(change.namespace)
        if number is None:
            number = len(self._numbers) + 1
            writer.execute("INSERT INTO namespaces(number, name) VALUES (?, ?)", (number, change.namespace))
            self._numbers[change.namespace] = number
        if change.dropped:
            last += 1
            writer.execute("DELETE FROM records WHERE namespace = ?", (number,))
            if writer.execute("DELETE FROM meta WHERE key = ?", (LEARNED + change.namespace,)).rowcount:
                _note_learning(writer, [change.namespace])
            writer.execute("INSERT INTO deletions(sequence, namespace) VALUES (?, ?)", (last, number))
        start = 0
        for size in _pieces(len(change.removed)):
            ids = change.removed[start : start + size]
            marks = ",".join("?" * size)
            gone = writer.execute(f"DELETE FROM records WHERE namespace = ? AND id IN ({marks})", (number, *ids))
            if gone.rowcount != size:
                raise StorageError(
                    f"{self.path}: {size} records to remove, {gone.rowcount} of them there; open the engine again"
                )
            logged = [value for sequence, i in enumerate(ids, last + 1) for value in (sequence, number, i)]
            writer.execute(_LOG + ",".join(["(?,?,?)"] * size), logged)
            start, last = start + size, last + size
        start, version = 0, 0
        for size in _pieces(len(change.added)):
            rows: list[int | str | bytes | None] = []
            added = change.added[start : start + size]
            plain = [record.data for record in added]
            packed = plain if self._symbols is None else self._symbols.pack(plain)
            for sequence, (record, data) in enumerate(zip(added, packed, strict=True), last + 1):
                rows += (sequence, number, record.id, record.checksum, data, record.vectors)
                version = max(version, record.version)
            writer.execute(_ADD + ",".join(["(?,?,?,?,?,?)"] * size), rows)
            start, last = start + size, last + size
        self._raise_version(writer, version)
        self._next = last

    def _learn_symbols(self, writer: sqlite3.Connection, added: Sequence[EncodedRecord]) -> None:
        """Learn a table of symbols from these rows, and the newest of the store, where one is due."""
        due = self._last + len(added) >= LEARN_ROWS * 10**self._tables
        if not (added and due) or compiled_loops() is None:
            return
        rows = [record.data for record in added]
        older = f"SELECT {UNPACKED} FROM records ORDER BY sequence DESC LIMIT {max(0, LEARN_ROWS - len(rows))}"
        self._keep_symbols(writer, rows + [row for data in writer.execute(older) if (row := _text_of(data))])

    def _keep_symbols(self, writer: sqlite3.Connection, rows: Sequence[str]) -> None:
        """Learn a table from these rows, and pack rows by it from now on."""
        runs, number = learned(rows), self._numbered + 1
        if runs is None or number > 255:
            return
        writer.execute("INSERT INTO meta(key, value) VALUES (?, ?)", (f"{TABLES}{number}", stored(runs)))
        self._symbols = Symbols(number, runs)
        self._tables, self._numbered = self._tables + 1, number
        self._raise_version(writer, SYMBOLS_VERSION)

    def _pack_anew(self) -> None:
        """Pack all rows by a table that is learned from them. Those of before hold runs of records that are gone."""
        if not self._tables or self._numbered == 255:
            return
        with self._transaction() as writer:
            before = writer.execute("SELECT key FROM meta WHERE key >= ? AND key < ?", TABLE_KEYS).fetchall()
            (rows,) = writer.execute("SELECT count(*) FROM records").fetchone()
            numbers = writer.execute("SELECT sequence FROM records ORDER BY sequence")
            some = list(islice(numbers, 0, None, rows // LEARN_ROWS + 1))
            one = f"SELECT {UNPACKED} FROM records WHERE sequence = ?"
            self._symbols, self._tables = None, 0
            self._keep_symbols(
                writer, [row for number in some if (row := _text_of(writer.execute(one, number).fetchone()))]
            )
            last = 0
            while chunk := writer.execute(
                f"SELECT sequence, {UNPACKED} FROM records WHERE sequence > ? ORDER BY sequence LIMIT {REPLAY_CHUNK}",
                (last,),
            ).fetchall():
                last = chunk[-1][0]
                # A row that was altered stays as it is.
                plain = [(number, row) for number, data in chunk if (row := _text_of((data,)))]
                texts = [row for _, row in plain]
                packed = texts if self._symbols is None else self._symbols.pack(texts)
                changes = [(data, number) for data, (number, _) in zip(packed, plain, strict=True)]
                writer.executemany("UPDATE records SET data = ? WHERE sequence = ?", changes)
            writer.executemany("DELETE FROM meta WHERE key = ?", [(name_of(key),) for (key,) in before])

    def _give_up(self, loss: Loss) -> None:
        """Go on without the changes that are missing.

        Their numbers are not used again: an index, or a reader, that still holds them must see that it is stale.
        """
        self.loss = loss
        with self._transaction() as writer:
            self._next = max(loss.known, self._last) + 1
            writer.execute("DELETE FROM deletions")
            writer.execute("INSERT OR REPLACE INTO meta(key, value) VALUES ('pruned', ?)", (self._next,))

    def prune(self, sequence: int) -> None:
        """Delete the log of removals up to `sequence`. No index needs to replay those any more.

        The write-ahead log is then folded in, so that only what is younger depends on it.
        """
        with self._transaction() as writer:
            upto = max(pruned_sequence(writer), min(sequence, self._last))
            writer.execute("DELETE FROM deletions WHERE sequence <= ?", (upto,))
            writer.execute("INSERT OR REPLACE INTO meta(key, value) VALUES ('pruned', ?)", (upto,))
        self._fold()

    def vacuum(self) -> None:
        """Write the database anew without the room of what was deleted. Takes twice its size on disk meanwhile."""
        self._pack_anew()
        with self._writing, named(self.path):
            if self._writer is None:
                raise self._closed_error()
            self._log.begin(self._writer, self._last)
            # Else the copy that SQLite makes would be in memory.
            self._writer.execute("PRAGMA temp_store=FILE")
            try:
                self._writer.execute("VACUUM")
            finally:
                self._writer.execute("PRAGMA temp_store=MEMORY")
            self._log.start_anew(self._writer, self._last)

    def _closed_error(self) -> StorageError:
        why = "was opened with read_only=True" if self._read_only else "is closed"
        return StorageError(f"{self.path}: the store {why}")

    def _fold(self) -> None:
        with self._writing, named(self.path):
            if self._writer is not None:
                self._log.fold(self._writer, self._last)

    def changes_after(self, sequence: int) -> Iterator[ChangeRun]:
        """The changes that turn the state at `sequence` into the present state, up to 10,000 at a time.

        All steps show the store at one moment. All removals come before all additions, each in order within its
        namespace. That gives the same state as the true order: every added record here is live, so every removal of its
        id came before it. A removal may name an id that the state at `sequence` does not hold, as it was added later
        and removed again; skip it. From `sequence` 0 there are only additions.

        The first step raises `StaleIndexError` if the deletions since `sequence` were pruned, or if the store's last
        change is before `sequence` (an older copy was restored). Replay from 0 then.
        """
        with named(self.path), closing(self._open_snapshot()) as reader:
            reader.execute("BEGIN")
            last = last_sequence(reader)
            if sequence and not pruned_sequence(reader) <= sequence <= last:
                raise StaleIndexError(
                    f"{self.path}: knows the changes from {pruned_sequence(reader)} to {last}, and the index covers "
                    f"those up to {sequence}; build it from all records"
                )
            names = {number: name_of(name) for number, name in reader.execute("SELECT number, name FROM namespaces")}
            if sequence:
                # The drops come first. Removals of a dropped namespace then find nothing, which gives the same state.
                rows = reader.execute(
                    "SELECT DISTINCT namespace FROM deletions WHERE sequence > ? AND id IS NULL", (sequence,)
                )
                yield from [ChangeRun(names[number], last, dropped=True) for (number,) in rows]
                rows = reader.execute(
                    "SELECT namespace, id FROM deletions WHERE sequence > ? AND id IS NOT NULL ORDER BY sequence",
                    (sequence,),
                )
                while chunk := rows.fetchmany(REPLAY_CHUNK):
                    runs: dict[int, ChangeRun] = {}
                    for number, record_id in chunk:
                        runs.setdefault(number, ChangeRun(names[number], last)).removed.append(name_of(record_id))
                    yield from runs.values()
            rows = reader.execute(
                f"SELECT namespace, id, checksum, {UNPACKED}, {vectors_in(reader)} FROM records"
                " WHERE sequence > ? ORDER BY sequence",
                (sequence,),
            )
            while chunk := rows.fetchmany(REPLAY_CHUNK):
                runs = {}
                for number, *row in chunk:
                    run = runs.setdefault(number, ChangeRun(names.get(number, ""), last))
                    run.added.append(decode_row(run.namespace, *row))
                yield from runs.values()

    def namespaces(self) -> list[str]:
        """The namespaces that hold records, in the order in which they were first written."""
        with self._reads() as reader:
            rows = reader.execute(
                "SELECT name FROM namespaces WHERE EXISTS (SELECT 1 FROM records WHERE namespace = number)"
                " ORDER BY number"
            ).fetchall()
        return [name_of(name) for (name,) in rows]

    def ids(self) -> Iterator[tuple[str, list[str]]]:
        """All live ids as (namespace, up to 10,000 ids). All steps show the store at one moment."""
        with named(self.path), closing(self._open_snapshot()) as reader:
            rows = reader.execute(
                "SELECT name, id FROM records JOIN namespaces ON number = namespace ORDER BY sequence"
            )
            while chunk := rows.fetchmany(REPLAY_CHUNK):
                groups: dict[bytes, list[str]] = {}
                for name, record_id in chunk:
                    groups.setdefault(name, []).append(name_of(record_id))
                yield from ((name_of(name), ids) for name, ids in groups.items())

    def count(self, namespace: str) -> int:
        """The number of live records in a namespace."""
        with self._reads() as reader:
            count: int = reader.execute(
                f"SELECT count(*) FROM records WHERE namespace = {NUMBER}", (storable(namespace),)
            ).fetchone()[0]
        return count

    # Sources: C008.
    def fetch(self, namespace: str, ids: Iterable[str], moment: StoreMoment | None = None) -> list[Record | None]:
        """The live records with these ids, embeddings included, in the order of the ids.

        An id that the namespace does not hold gets None. `moment` reads them as they were then.
        """
        return [None if row is None else row[1] for row in self.rows(namespace, ids, moment)]

    def rows(
        self, namespace: str, ids: Iterable[str], moment: StoreMoment | None = None
    ) -> list[tuple[int, Record] | None]:
        """As `fetch`, each record with the sequence of its last write."""
        ids = list(ids)
        with nullcontext(moment) if moment is not None else self._reads() as reader, named(self.path):
            rows = rows_of(reader, f"sequence, id, checksum, {UNPACKED}, {vectors_in(reader)}", namespace, ids)
        records = {name_of(row[1]): (row[0], decode_row(namespace, *row[1:])) for row in rows}
        return [records.get(record_id) for record_id in ids]

    def sequences(self, namespace: str, ids: Sequence[str]) -> list[int | None]:
        """The sequence of each record's last write; None for an id that the namespace does not hold."""
        with self._reads() as reader:
            known = {name_of(name): sequence for sequence, name in rows_of(reader, "sequence, id", namespace, ids)}
        return [known.get(record_id) for record_id in ids]

    def texts(self, namespace: str, ids: Sequence[str], moment: StoreMoment | None = None) -> Texts:
        """The live records with these ids by id, without embeddings, each with the sequence of its write.

        `moment` reads them as they were then.
        """
        with nullcontext(moment) if moment is not None else self._reads() as reader, named(self.path):
            rows = rows_of(reader, f"sequence, id, checksum, {UNPACKED}", namespace, ids)
        records = [(sequence, decode_data(namespace, *row)[0]) for sequence, *row in rows]
        return {record.id: (sequence, record) for sequence, record in records}

    def writes_since(
        self, namespace: str, ids: Sequence[str], sequence: int
    ) -> tuple[dict[str, int], dict[str, int], tuple[int, str, str] | None]:
        """Of these ids those that were written and those that were removed after `sequence`, with the last number of
        each; and the first write to the namespace after it: its number, its id and its kind. Removals that were pruned
        are not known."""
        known = zip(ids, self.sequences(namespace, ids), strict=True)
        written = {one: last for one, last in known if last is not None and last > sequence}
        where, asked = f"namespace = {NUMBER} AND sequence > ? ORDER BY sequence", (storable(namespace), sequence)
        with self._reads() as reader:
            gone = reader.execute(f"SELECT id, sequence FROM deletions WHERE {where}", asked).fetchall()
            added = reader.execute(f"SELECT id, sequence FROM records WHERE {where} LIMIT 1", asked).fetchall()
        removals = [("" if one is None else name_of(one), last) for one, last in gone]
        removed = {one: last for one, last in removals if one in ids}
        firsts = [(last, name_of(one), "written") for one, last in added]
        firsts += [(last, one, "removed" if one else "dropped") for one, last in removals[:1]]
        return written, removed, min(firsts, default=None)

    @contextmanager
    def moment(self) -> Iterator[StoreMoment]:
        """The store as it is now, for `texts`. Other reads and writes do not wait for it."""
        with ExitStack() as held:
            with named(self.path):
                reader = held.enter_context(closing(self._open_snapshot()))
                reader.execute("BEGIN")
                last_sequence(reader)  # the transaction begins with its first read
            yield reader

    def check_found(self, namespace: str, ids: Sequence[str]) -> None:
        """Raise `DamagedStoreError` unless `fetch` finds all these ids. Only for ids that are certainly live."""
        for record_id, record in zip(ids, self.fetch(namespace, ids), strict=True):
            if record is None:
                raise damaged(self.path, f"the record with id {record_id!r} is not found, and the index holds it")

    # Sources: C009.
    def keyword_scan(
        self, namespace: str, words: Sequence[str], limit: int, accept: Callable[[Record], bool] | None = None
    ) -> list[tuple[str, int]]:
        """The newest `limit` records whose text holds a word, as (id, number of distinct words), newest first.

        A word counts wherever its characters occur, inside longer words too, in upper or lower case. If `accept` is
        given, only records for which it is true count; it gets them without their embeddings.
        """
        folded = list(dict.fromkeys(word.casefold() for word in words if word))
        hits: list[tuple[str, int]] = []
        if not folded or limit < 1:
            return hits
        # Case folding works character by character and does not change JSON's escapes. So a word of the text is, as
        # JSON, in the row as well.
        escaped = [JSON.encode(word)[1:-1] for word in folded]
        with named(self.path), closing(self._open_snapshot()) as reader:
            # The inner query reads the id index alone. Sorting whole rows instead would take the namespace's memory.
            rows = reader.execute(
                f"SELECT id, checksum, {UNPACKED} FROM records WHERE sequence IN"
                f" (SELECT sequence FROM records WHERE namespace = {NUMBER}) ORDER BY sequence DESC",
                (storable(namespace),),
            )
            for record_id, checksum, data in rows:
                row = str(data, errors="replace").casefold()
                if not any(word in row for word in escaped):
                    continue
                record, _ = decode_data(namespace, record_id, checksum, data)
                text = record.text.casefold()
                count = sum(word in text for word in folded)
                if count and (accept is None or accept(record)):
                    hits.append((record.id, count))
                    if len(hits) == limit:
                        break
        return hits

    @contextmanager
    def _reads(self) -> Iterator[sqlite3.Connection]:
        self.check_process()
        with self._reading, named(self.path):
            if self._reader is None:
                raise StorageError(f"{self.path}: the store is closed")
            yield self._reader

    def _open_snapshot(self) -> sqlite3.Connection:
        """A new connection. Its transaction may last as long as the caller needs; other reads do not wait for it."""
        self.check_process()
        if self._reader is None:
            raise StorageError(f"{self.path}: the store is closed")
        return open_reader(self.path)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self.check_process()
        with self._writing, named(self.path):
            writer = self._writer
            if writer is None:
                raise self._closed_error()
            try:
                self._log.begin(writer, self._last)
                writer.execute("BEGIN IMMEDIATE")
                self._next = self._last
                yield writer
                writer.execute("COMMIT")
                self._last = self._next
                self._log.commit(writer, self._last)
            except BaseException:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                # An interrupt may have come just after the commit. Only the database knows whether it did.
                self._remember(writer)
                raise

    def _keep_notes(self, writer: sqlite3.Connection, notes: Notes) -> None:
        for name, text in notes.items():
            if text is None:
                writer.execute("DELETE FROM meta WHERE key = ?", (NOTES + name,))
            else:
                row = NOTES + name, with_checksum(text)
                writer.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", row)
        if notes and self._next == self._last:
            self._count_unnumbered(writer)

    def _count_unnumbered(self, writer: sqlite3.Connection) -> None:
        self._log.unnumbered += 1
        row = UNNUMBERED, self._log.unnumbered
        writer.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", row)

    def _raise_version(self, writer: sqlite3.Connection, version: int) -> None:
        """Give the store at least this format, in the transaction that is under way."""
        if version > self._version:
            writer.execute(f"PRAGMA user_version={version}")
            self._version = version

    def _remember(self, writer: sqlite3.Connection) -> None:
        """Read the counter, the format and the numbers of the namespaces from the database."""
        self._last, self._version = last_sequence(writer), version_of(writer)
        self._log.unnumbered = value_of(writer, UNNUMBERED) or 0
        keys = writer.execute("SELECT key FROM meta WHERE key >= ? AND key < ?", TABLE_KEYS).fetchall()
        numbers = [name_of(key).removeprefix(TABLES) for (key,) in keys]
        self._tables = len(numbers)
        self._numbered = max((int(number) for number in numbers if number.isdigit()), default=0)
        self._symbols = table_of(writer, self._numbered)
        (known,) = writer.execute("SELECT count(*) FROM namespaces").fetchone()
        if known != len(self._numbers):
            rows = writer.execute("SELECT name, number FROM namespaces")
            self._numbers = {name_of(name): number for name, number in rows}


def _identity(path: Path) -> tuple[int, int] | None:
    """What names the file at a path, wherever it is renamed to; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _text_of(row: tuple[Any]) -> str | None:
    """The JSON of a record, as `UNPACKED` gives it; None for what is none."""
    (data,) = row
    if not isinstance(data, bytes) or not data.startswith(b"{"):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _pieces(count: int) -> Iterator[int]:
    """`count` as a sum of powers of two up to `MAX_ROWS`. So a few prepared statements serve every batch."""
    while count:
        size = min(MAX_ROWS, 1 << (count.bit_length() - 1))
        yield size
        count -= size


def _config_json(config: Mapping[str, Any]) -> str:
    """The parameters as JSON. Raises `ParameterError` if JSON would alter them."""
    try:
        value = JSON.encode(config)
        same = json.loads(value) == config
    except (TypeError, ValueError) as error:
        raise ParameterError(f"the engine's parameters cannot be stored as JSON: {error}") from None
    if not same:
        raise ParameterError("the engine's parameters cannot be stored as JSON: they would come back changed")
    return value


def _learning(reader: sqlite3.Connection) -> tuple[int, list[str]]:
    """How often what was learned changed, and the namespaces of the last changes, the last one last."""
    row = value_of(reader, LEARNING)
    changes, names = (0, []) if row is None else json.loads(row)
    return changes, names


def _note_learning(writer: sqlite3.Connection, namespaces: Collection[str]) -> None:
    """Note that what was learned of these changes, for those who follow the store."""
    changes, names = _learning(writer)
    row = JSON.encode([changes + len(namespaces), [*names, *namespaces][-FOLLOWED:]])
    writer.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", (LEARNING, row))
