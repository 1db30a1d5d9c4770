"""The file of a memory's owner, `owner.sqlite`: where records lie, its settings, and what was decided.

Each change of several shards is a decision: a batch that concerns more than one, or another placement. It has the next
generation. Its row here is the decision itself: a shard that prepared its part carries it out if this file names that
generation for it, and drops it otherwise. A shard keeps the generation that it carried out last, in the transaction
that did so. So a file that is older than its shards, or a shard that is older than the file, is told by comparing two
numbers.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ...engine.errors import DamagedStoreError, ForeignIndexError, NewerFormatError, ParameterError
from ...engine.storage.index_files import OWNER
from ...engine.storage.row_codec import JSON
from ...engine.storage.sqlite import named
from ...engine.storage.sync import sync
from .placement import Placement

APPLICATION = 0x66616E6F  # "fano"
VERSION = 2
"""The format. The first one was a table in JSON, `shards.json`."""

_SCHEMA = (
    "CREATE TABLE head(name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE placement(name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE shards(name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    f"PRAGMA application_id={APPLICATION}",
    f"PRAGMA user_version={VERSION}",
)
_NUMBERS = ("shards", "split_at", "whole_at", "generation")

Row = tuple[str, str, int]


class OwnerFile:
    """What the owner of a memory keeps. `path` None: a memory without files, which keeps nothing.

    Every method raises `StorageError` where the file cannot be read or written.
    """

    def __init__(self, path: Path | None, placement: Placement, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.placement = placement
        self.settings = dict(settings)
        self.generation = 0
        """That of the last decision."""
        self.decided: dict[int, int] = dict.fromkeys(range(placement.shards), 0)
        """The generation of the last decision that concerns each shard."""
        self._reserved = 0
        self._uncertain = False
        self._writing = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @classmethod
    def make(cls, folder: Path, placement: Placement, settings: Mapping[str, Any]) -> OwnerFile:
        """Make the file in one step."""
        path = folder / OWNER
        fresh = folder / f"{OWNER}.new"
        made = cls(path, placement, settings)
        with named(path):
            fresh.unlink(missing_ok=True)
            made.write(fresh)
            os.replace(fresh, path)
            sync(folder)
            made._connection = _connect(path, "rw")
        return made

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> OwnerFile | None:
        """The file of a memory; None where there is none.

        Raises `ForeignIndexError`, `NewerFormatError` and `DamagedStoreError`.
        """
        path = folder / OWNER
        if not path.exists():
            return None
        with named(path), ExitStack() as held:
            connection = held.enter_context(closing(_connect(path, "ro" if read_only else "rw")))
            found = cls._read(path, connection)
            if not read_only:
                held.pop_all()
                found._connection = connection
        return found

    @classmethod
    def _read(cls, path: Path, connection: sqlite3.Connection) -> OwnerFile:
        ((application,), (version,)) = (connection.execute(f"PRAGMA {name}").fetchone() for name in _PRAGMAS)
        if application != APPLICATION:
            raise ForeignIndexError(f"{path}: is not the file of a sharded memory's owner")
        if version > VERSION:
            raise NewerFormatError(
                f"{path}: written in format {version}, and this fanrank reads up to {VERSION}; upgrade fanrank"
            )
        head, rows, decided = (_rows_of(path, connection, table) for table in ("head", "placement", "shards"))
        try:
            numbers = json.loads(head["placement"])
            parts = {name: tuple(map(int, json.loads(value))) for name, value in rows.items()}
            placement = Placement(
                **{name: numbers[name] for name in _NUMBERS},
                moved={name: held[0] for name, held in parts.items() if len(held) == 1},
                split={name: held for name, held in parts.items() if len(held) > 1},
            )
            found = cls(path, placement, json.loads(head["settings"]))
            found.generation = found._reserved = int(head["generation"])
            found.decided = {int(number): int(value) for number, value in decided.items()}
            whole = numbers["rows"] == _digest(_row("placement", name, value) for name, value in rows.items())
        except (KeyError, TypeError, ValueError, IndexError, ParameterError) as error:
            raise _altered(path, f"is incomplete ({error})") from None
        if not whole or found.decided.keys() != {*range(placement.shards)}:
            raise _altered(path, "lacks rows, or has others than were written")
        return found

    def reserve(self) -> int:
        """The generation of the next decision."""
        with self._writing:
            self._reserved += 1
            return self._reserved

    def pass_over(self, generation: int) -> None:
        """Use this generation for no decision, as a shard has prepared a part under it."""
        self._reserved = max(self._reserved, generation)

    def decide(
        self,
        generation: int,
        shards: Iterable[int],
        change: Callable[[Placement], Placement] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Decide what these shards have prepared under a generation, and change the placement with it.

        Where this raises, nothing was decided; `confirm` must succeed before that is certain.
        """
        with self._writing:
            after = self.placement if change is None else change(self.placement)
            kept = self.settings if settings is None else settings
            self._keep(max(self.generation, generation), dict.fromkeys(shards, generation), after, kept)

    def keep(self, placement: Placement, settings: Mapping[str, Any]) -> None:
        """Keep settings, and a placement in which all records lie where they did."""
        if (placement, dict(settings)) != (self.placement, self.settings):
            with self._writing:
                self._keep(self.generation, {}, placement, settings)

    def confirm(self) -> None:
        """Make sure that a decision that failed is none after a crash either: what it left is overwritten."""
        with self._writing:
            if self._uncertain:
                self._keep(self.generation, {}, self.placement, self.settings)

    def copied(self) -> OwnerFile:
        """What the file holds now, for the file of a copy."""
        copy = OwnerFile(None, self.placement, self.settings)
        copy.generation, copy.decided = self.generation, self.decided
        return copy

    def write(self, path: Path) -> None:
        """Make a new file of what this one holds."""
        with named(path), closing(_connect(path, "rwc")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            nothing = OwnerFile(None, Placement(1), {})
            nothing._put(connection, self.generation, self.decided, self.placement, self.settings)
            connection.execute("COMMIT")

    def close(self) -> None:
        """Fold the log into the file. A second call does nothing."""
        if self._connection is not None and self.path is not None:
            connection, self._connection = self._connection, None
            with named(self.path):
                connection.close()

    def _keep(
        self, generation: int, decided: Mapping[int, int], placement: Placement, settings: Mapping[str, Any]
    ) -> None:
        """Keep all of these, or none of them. `decided` are the shards of which that changes."""
        connection = self._connection
        if connection is not None and self.path is not None:
            with named(self.path):
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    self._put(connection, generation, decided, placement, settings)
                    self._uncertain = True
                    connection.execute("COMMIT")
                    self._uncertain = False
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        self.generation, self.decided = generation, {**self.decided, **decided}
        self.placement, self.settings = placement, dict(settings)

    def _put(
        self,
        connection: sqlite3.Connection,
        generation: int,
        decided: Mapping[int, int],
        placement: Placement,
        settings: Mapping[str, Any],
    ) -> None:
        """Write what differs from what is kept."""
        head = {"generation": str(generation)}
        if settings is not self.settings:
            head["settings"] = JSON.encode(dict(settings))
        if placement is not self.placement:
            before, after = _values(self.placement), _values(placement)
            gone = [(name,) for name in before if name not in after]
            connection.executemany("DELETE FROM placement WHERE name = ?", gone)
            _put(connection, "placement", {name: value for name, value in after.items() if before.get(name) != value})
            head["placement"] = _numbers(placement)
        _put(connection, "head", head)
        _put(connection, "shards", {str(number): str(value) for number, value in decided.items()})


_PRAGMAS = ("application_id", "user_version")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        if mode == "rw":
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _values(placement: Placement) -> dict[str, str]:
    """What lies elsewhere or is split, as rows."""
    rows = {name: JSON.encode([home]) for name, home in placement.moved.items()}
    return {**rows, **{name: JSON.encode(list(parts)) for name, parts in placement.split.items()}}


def _numbers(placement: Placement) -> str:
    rows = _digest(_row("placement", name, value) for name, value in _values(placement).items())
    return JSON.encode({**{name: getattr(placement, name) for name in _NUMBERS}, "rows": rows})


def _row(table: str, name: str, value: str) -> Row:
    return name, value, zlib.crc32(f"{table}\0{name}\0{value}".encode())


def _digest(rows: Iterable[Row]) -> list[int]:
    """[how many rows, the sum of their checksums]: by it a row that is missing is noticed."""
    checksums = [checksum for _, _, checksum in rows]
    return [len(checksums), sum(checksums)]


def _put(connection: sqlite3.Connection, table: str, values: Mapping[str, str]) -> None:
    rows = [_row(table, name, value) for name, value in values.items()]
    connection.executemany(f"INSERT OR REPLACE INTO {table}(name, value, checksum) VALUES (?, ?, ?)", rows)


def _rows_of(path: Path, connection: sqlite3.Connection, table: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value, checksum in connection.execute(f"SELECT name, value, checksum FROM {table}"):
        if not isinstance(name, str) or not isinstance(value, str) or _row(table, name, value)[2] != checksum:
            raise _altered(path, f"the row {name!r} of {table} was altered since it was written (checksum differs)")
        found[name] = value
    return found


def _altered(path: Path, what: str) -> DamagedStoreError:
    return DamagedStoreError(f"{path}: {what}; restore the memory from a copy")
