"""`CommitLog`: what a writer does around its transactions so that a lost log is noticed when the store is next opened.

The database says that its log is in use, from before a session's first write until the log is folded in at its close.
The note beside it (engine/storage/log.py) says how far the acknowledged changes reach.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from .failpoints import reach
from .log import NO_LOG, NoteWriter, read_note, read_salts
from .sqlite import IN_USE, PATIENCE

logger = logging.getLogger("fanrank")

# Pages that the log grows to before it is folded in: 16 MB. With ids in random order (each record touches another page
# of the id index) that writes 61,000 records/s, against 40,000 at SQLite's default of 4 MB.
FOLD_FRAMES = 4000


class CommitLog:
    """The log of one writer's connection. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._note = NoteWriter(path)
        self._marked = False
        self._folded = False

    @property
    def unnumbered(self) -> int:
        """How many changes had no sequence: what the next note says."""
        return self._note.unnumbered

    @unnumbered.setter
    def unnumbered(self, changes: int) -> None:
        self._note.unnumbered = changes

    def repair(self, writer: sqlite3.Connection, sequence: int) -> None:
        """Finish what a process began that was killed while it folded the log in."""
        note = read_note(self._path)
        if note is not None and note.folding:
            self.fold(writer, sequence)

    def begin(self, writer: sqlite3.Connection, sequence: int) -> None:
        """Before a transaction: make the database say that its log is in use.

        The row must stand in the database itself, as a copy without its log has nothing else. So the log that holds it
        is folded in; where a reader prevents that, the next transaction tries again.
        """
        if not self._marked:
            note = read_note(self._path)
            if note is not None and note.salts != NO_LOG and read_salts(self._path) == NO_LOG:
                # A process ended without closing, and SQLite removed the log that the note names. The next one has
                # nothing of that one.
                self._write(self._note.write_closed, sequence)
            (schema,) = writer.execute("PRAGMA schema_version").fetchone()
            writer.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", (IN_USE, schema))
            self._marked = True
            self._write(self._note.write, sequence)
        if not self._folded:
            self.fold(writer, sequence)

    def commit(self, writer: sqlite3.Connection, sequence: int) -> None:
        """After a transaction: note it, and fold the log in if it is long."""
        self._write(self._note.write, sequence)
        if self._note.frames >= FOLD_FRAMES:
            self.fold(writer, sequence)

    def fold(self, writer: sqlite3.Connection, sequence: int) -> bool:
        """Copy the log into the database, as far as no reader needs the older state. Waits for none.

        Returns whether all of it is there now.
        """
        try:
            self._write(self._note.write_folding, sequence, True)
            reach("fold.begin")
            busy, frames, folded = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            reach("fold.done")
        except sqlite3.Error as error:
            # All that is acknowledged stands in the log. The next fold does what this one could not. Until then the
            # note says what it says: the database alone may hold a part.
            logger.warning("%s: its log cannot be folded in: %s", self._path, error)
            return False
        except BaseException:
            # An interrupt comes before SQLite folds the log in, or after it.
            self._write(self._note.write_folding, sequence, False)
            raise
        self._write(self._note.write_folding, sequence, False, folded)
        whole = not busy and frames == folded
        self._folded = self._folded or whole
        return whole

    def start_anew(self, writer: sqlite3.Connection, sequence: int) -> None:
        """After the database was written anew: fold the log in, and empty it, as it holds what was deleted.

        Where a reader prevents it, a later fold does the first.
        """
        self._marked = self._folded = False  # The row names the schema's number, which is another one now.
        self._write(self._note.write, sequence)
        self.begin(writer, sequence)
        writer.execute("PRAGMA busy_timeout=0")
        try:
            writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            writer.execute(f"PRAGMA busy_timeout={int(PATIENCE * 1000)}")

    def close(self, writer: sqlite3.Connection, sequence: int) -> None:
        """Fold the log in and remove it, and say that it is not in use. Where a reader prevents it, all stays as it is.

        Raises what SQLite raises.
        """
        # A reader in another process may have the log open. Then a later close folds it in.
        writer.execute("PRAGMA busy_timeout=0")
        if self._marked or writer.execute("SELECT 1 FROM meta WHERE key = ?", (IN_USE,)).fetchone():
            writer.execute("DELETE FROM meta WHERE key = ?", (IN_USE,))
            self._write(self._note.write, sequence)
        reach("close.begin")
        if not self.fold(writer, sequence):
            return
        # Nothing is left to fold in. So a kill in here leaves either the log or a database that has all of it.
        busy, _, _ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        reach("close.folded")
        note = read_note(self._path)
        if not busy and note is not None and note.salts != NO_LOG:
            self._write(self._note.write_closed, sequence)

    def release(self) -> None:
        """Close the note. `close` need not have succeeded."""
        self._note.close()

    def _write(self, write: Callable[..., None], *values: object) -> None:
        # What was committed is durable, whatever becomes of its note. An older note holds too, it only knows less.
        try:
            write(*values)
        except OSError as error:
            logger.warning("%s: its note cannot be written: %s", self._path, error)
