"""Opens the SQLite file of a record store, and turns its failures into named errors."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import DamagedStoreError, FanrankError, ForeignIndexError, NewerFormatError, StorageError
from .lock import LOCK
from .log import log_of
from .row_codec import PLAIN_VERSION, RECORDS, VERSION, teach

APPLICATION = 0x66616E72  # "fanr"

# Ids of one look-up.
FETCH_CHUNK = 500

NUMBER = "(SELECT number FROM namespaces WHERE name = ?)"
"""The SQL for the number of a namespace."""

StoreMoment = sqlite3.Connection
"""A transaction that reads a store as it was at one moment."""


# Seconds that a statement waits for short locks of another process (a recovery, a last close). It never waits for a
# writer.
PATIENCE = 10.0


# `CommitLog` folds the log in, not SQLite.
# What is deleted is overwritten in the file, in every build of SQLite.
_PRAGMAS = (
    "synchronous=FULL",
    "wal_autocheckpoint=0",
    "journal_size_limit=67108864",
    "foreign_keys=OFF",
    "secure_delete=ON",
)

IN_USE = "log_in_use"
"""The row of `meta` that is there from a session's first write to its close."""

UNNUMBERED = "column_changes"
"""The row of `meta` that counts the changes without a sequence, as they change no record: of the declared columns, and
of what an owner keeps beside the records."""


_SCHEMA = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE namespaces(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE records(sequence INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, id TEXT NOT NULL,"
    " checksum INTEGER NOT NULL, data TEXT NOT NULL, vectors BLOB)",
    "CREATE UNIQUE INDEX record_ids ON records(namespace, id)",
    # A row without an id stands for all records of the namespace.
    "CREATE TABLE deletions(sequence INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, id TEXT)",
    f"PRAGMA application_id={APPLICATION}",
    f"PRAGMA user_version={PLAIN_VERSION}",
)


# Upgrades a store of version 1, whose records had no vectors.
_MIGRATION = ("ALTER TABLE records ADD COLUMN vectors BLOB", f"PRAGMA user_version={PLAIN_VERSION}")


def last_sequence(connection: sqlite3.Connection) -> int:
    # A removed record's number is smaller than its deletion's. A pruned deletion's number is `pruned` or less.
    (last,) = connection.execute(
        "SELECT coalesce(max(last), 0) FROM"
        " (SELECT max(sequence) AS last FROM records UNION ALL SELECT max(sequence) FROM deletions)"
    ).fetchone()
    return max(int(last), pruned_sequence(connection))


def pruned_sequence(connection: sqlite3.Connection) -> int:
    return value_of(connection, "pruned") or 0


def value_of(connection: sqlite3.Connection, key: str) -> Any:
    """A row of `meta`, with text as bytes; None if it is not there."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def version_of(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def vectors_in(connection: sqlite3.Connection) -> str:
    """The SQL for the column of vectors. Version 1 has none; only a reader meets it, as a writer upgrades it."""
    return "vectors" if version_of(connection) > 1 else "NULL"


def _has_vectors(connection: sqlite3.Connection) -> bool:
    return (
        connection.execute("SELECT 1 FROM pragma_table_info('records') WHERE name = 'vectors'").fetchone() is not None
    )


def storable(text: str) -> str | None:
    """The string, or None if it holds a lone surrogate.

    No stored string holds one, and in SQL None (NULL) equals nothing.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def rows_of(reader: sqlite3.Connection, columns: str, namespace: str, ids: Sequence[str]) -> list[Any]:
    """These columns of the records with these ids, in any order, as of one moment."""
    rows: list[Any] = []
    if len(ids) > FETCH_CHUNK and not reader.in_transaction:
        reader.execute("BEGIN")
        try:
            return rows_of(reader, columns, namespace, ids)
        finally:
            reader.execute("COMMIT")
    for start in range(0, len(ids), FETCH_CHUNK):
        chunk = [storable(record_id) for record_id in ids[start : start + FETCH_CHUNK]]
        marks = ",".join("?" * len(chunk))
        rows += reader.execute(
            f"SELECT {columns} FROM records WHERE namespace = {NUMBER} AND id IN ({marks})",
            (storable(namespace), *chunk),
        ).fetchall()
    return rows


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=PATIENCE,
        isolation_level=None,
        check_same_thread=False,
    )
    # Altered text may be no UTF-8. As bytes it reaches the check of its checksum, which names the record.
    connection.text_factory = bytes
    teach(connection)
    try:
        for pragma in ("temp_store=MEMORY", "cache_size=-16000"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def open_writer(path: Path) -> sqlite3.Connection:
    writer = _connect(path, "mode=rwc")
    try:
        blank = is_blank(writer, path)
        if blank and any(not file.name.startswith(RECORDS) and file.name != LOCK for file in path.parent.iterdir()):
            raise damaged(path, "empty, beside an index of its records")
        (journal,) = writer.execute("PRAGMA journal_mode=WAL").fetchone()
        if journal != b"wal":
            raise StorageError(f"{path}: this file system cannot hold a write-ahead log; choose a local directory")
        for pragma in _PRAGMAS:
            writer.execute(f"PRAGMA {pragma}")
        version = version_of(writer)
        if not blank and version < PLAIN_VERSION and (version < 1 or _has_vectors(writer)):
            raise damaged(path, f"damaged (it says format {version}, and its tables are of another one)")
        statements = _SCHEMA if blank else _MIGRATION if version < PLAIN_VERSION else ()
        if statements:
            writer.execute("BEGIN IMMEDIATE")
            for statement in statements:
                writer.execute(statement)
            writer.execute("COMMIT")
    except BaseException:
        writer.close()
        raise
    return writer


def open_reader(path: Path) -> sqlite3.Connection:
    try:
        reader = _connect(path, "mode=ro")
        try:
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            reader.close()
            raise
        return reader
    except sqlite3.OperationalError as error:
        if not any(part in str(error) for part in ("unable to open", "readonly")):
            raise
    # To read beside a writer, SQLite keeps a small file in the directory, which it may not write here. A store that no
    # process has open is one plain file and needs no such file.
    log = log_of(path)
    if log.exists() and log.stat().st_size:
        raise StorageError(
            f"{path}: its log holds changes that cannot be read without write permission to the directory; "
            "grant it, or close the writer"
        )
    return open_alone(path)


def open_alone(path: Path) -> sqlite3.Connection:
    """A reader of the database without its log, which no process may write meanwhile."""
    return _connect(path, "mode=ro&immutable=1")


def is_blank(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether nothing was ever stored.

    Raises `ForeignIndexError` for the file of another program, `NewerFormatError` for that of a newer fanrank, and
    `DamagedStoreError`.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    version = version_of(connection)
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION:
        if application or tables:
            raise ForeignIndexError(f"{path}: a database of another program; choose an empty or new directory")
        # SQLite treats a file that is too short for its header as empty, and would overwrite it.
        if 0 < path.stat().st_size < 512:
            raise damaged(path, "damaged (file is not a database)")
        return True
    if version > VERSION:
        raise NewerFormatError(
            f"{path}: written in format {version}, and this fanrank reads up to {VERSION}; upgrade fanrank"
        )
    return False


def damaged(path: Path, what: str) -> DamagedStoreError:
    return DamagedStoreError(f"{path}: {what}; restore the file from a copy, as records cannot be rebuilt")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn every failure of SQLite or of the system into an error that names the file and says what to do."""
    try:
        yield
    except FanrankError:
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _full(path) from error
        raise StorageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        # SQLite's message quotes the damaged text, and Python cannot decode that.
        raise damaged(path, "damaged (file is malformed)") from error
    except sqlite3.Error as error:
        # Python 3.10 gives no error code. SQLite's messages are the same in all versions.
        text = str(error)
        if "malformed" in text or "not a database" in text:
            raise damaged(path, f"damaged ({text})") from error
        if "disk is full" in text:
            raise _full(path) from error
        if isinstance(error, sqlite3.IntegrityError):
            text = f"a change does not fit the live records ({text}); open the engine again"
        raise StorageError(f"{path}: {text}") from error


def _full(path: Path) -> StorageError:
    """The error of a full disk, by whose `errno` programs know it."""
    error = StorageError(f"{path}: no space left; nothing was written. Free some and try again")
    error.errno = errno.ENOSPC
    return error
