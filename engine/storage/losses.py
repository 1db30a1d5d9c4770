"""Finds acknowledged changes that a store's records lack, before anything is written to its directory."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import DamagedStoreError, IndexFileError
from ..index.snapshot import Snapshot
from .index_files import INDEX, IndexDirectory
from .log import NO_LOG, Note, Salts, count_whole, log_of, read_note, read_salts
from .row_codec import name_of
from .sqlite import (
    IN_USE,
    UNNUMBERED,
    damaged,
    is_blank,
    last_sequence,
    open_alone,
    open_reader,
    pruned_sequence,
    value_of,
)

# The most ids that a message shows.
SHOWN_IDS = 10
# How often a reader looks again before it takes what it sees for a loss, and the seconds between two looks. A writer
# may replace the index, fold its log in or close between two things that the reader reads.
LOOKS, BETWEEN = 5, 0.05


@dataclass(frozen=True)
class Loss:
    """What is missing, as far as it is known."""

    path: Path
    """The database."""
    reason: str
    sequence: int
    """The last change that the records hold."""
    known: int
    """The last change that was acknowledged; `sequence` where that is not known."""
    ids: tuple[tuple[str, str], ...] = ()
    """(namespace, id) of records that the index has and the store has not."""
    returned: int = 0
    """Records that the store has and the index has not: they were deleted, or added after the loss."""
    mixed: bool = False
    """Whether the pages may be of different moments."""
    whole: bool = False
    """Whether the records are those of one moment, that of change `sequence`. `check_loss` finds it out."""

    def error(self) -> DamagedStoreError:
        missing = f"{self.known - self.sequence:,}" if self.known > self.sequence else "an unknown number of"
        text = f"{self.path}: {missing} acknowledged changes are missing: {self.reason}"
        if self.ids:
            shown = ", ".join(
                repr(record_id) + (f" of namespace {name!r}" if name else "")
                for name, record_id in islice(self.ids, SHOWN_IDS)
            )
            more = len(self.ids) - SHOWN_IDS
            text += f". Of the records, {shown}{f' and {more:,} more' if more > 0 else ''} are gone"
        if self.returned:
            text += f". {self.returned:,} records that were deleted are back"
        state = f"The database is whole up to change {self.sequence}. " if self.whole else ""
        return DamagedStoreError(
            f"{text}. Nothing was changed. {state}Put back the database with its log ({log_of(self.path).name}), or "
            f"restore a backup; accept_loss=True (fanrank stats {self.path.parent} --accept-loss) gives up what is "
            f"missing for good, and goes on with {'that state' if self.whole else 'what is left'}"
        )


class Fault(NamedTuple):
    """What is wrong with a log."""

    text: str
    mixed: bool = False
    """Whether the database may hold a part of what the log held."""


def check_loss(path: Path, *, read_only: bool, accept: bool) -> Loss | None:
    """As `find_loss`, but raises `DamagedStoreError` for a loss unless `accept`.

    A loss cannot be accepted where the pages that are left do not fit together, as after another log was put in place.
    """
    loss = find_loss(path, read_only=read_only)
    if loss is None:
        return None
    with closing(open_reader(path)) as reader:
        if not accept:
            raise replace(loss, whole=bool(loss.sequence) and not loss.mixed and is_whole(reader)).error()
        check_pages(reader, path)
    return loss


def check_pages(reader: sqlite3.Connection, path: Path) -> None:
    """Raise `DamagedStoreError` unless SQLite finds its file whole."""
    (fault,) = reader.execute("PRAGMA integrity_check(1)").fetchone()
    if fault != b"ok":
        raise damaged(path, f"damaged ({name_of(fault)})")


def is_whole(reader: sqlite3.Connection) -> bool:
    """Whether the pages of a database fit together, and no record lives that was deleted later."""
    try:
        faults = reader.execute("PRAGMA integrity_check(1)").fetchall()
        back = reader.execute(
            "SELECT 1 FROM deletions AS gone JOIN records AS live ON live.namespace = gone.namespace"
            " AND live.id = gone.id AND live.sequence < gone.sequence LIMIT 1"
        ).fetchall()
    except sqlite3.DatabaseError:
        return False
    return faults == [(b"ok",)] and not back


def _same_without_log(path: Path, reader: sqlite3.Connection) -> bool:
    """Whether the database alone holds the records and deletions that it holds with its log.

    Each has the number of its own change. A log may prune deletions, and change nothing else.
    """
    pruned = pruned_sequence(reader)
    numbers = (
        "SELECT sequence FROM records"
        f" UNION ALL SELECT sequence FROM deletions WHERE sequence > {pruned} ORDER BY sequence"
    )
    try:
        with closing(open_alone(path)) as alone:
            rows = (each.execute(numbers) for each in (reader, alone))
            return pruned_sequence(alone) <= pruned and all(one == other for one, other in zip_longest(*rows))
    except sqlite3.DatabaseError:
        return False


def find_loss(path: Path, *, read_only: bool) -> Loss | None:
    """What the records in the database `path` lack, or None. Reads alone, and leaves the files as they are.

    A writer calls it before it opens the database, under its lock. A reader may meet a writer at work, so it looks
    again before it believes what it sees.
    """
    for look in range(LOOKS if read_only else 1):
        if look:
            time.sleep(BETWEEN)
        loss = _find(path, read_only)
        if loss is None:
            return None
    return loss


def _find(path: Path, read_only: bool) -> Loss | None:
    if not path.is_file():
        return None
    # In this order: what a writer does meanwhile makes the records newer than the note and the index, never older.
    note = read_note(path)
    index = IndexDirectory(path.parent / INDEX)
    covered = index.covers()
    salts = read_salts(path)
    with closing(open_reader(path)) as reader:
        if is_blank(reader, path):
            if note is None or not note.sequence:
                return None
            return Loss(path, "the database is empty", 0, note.sequence)
        last = last_sequence(reader)
        owner = _owner(reader)
        known = {} if note is None else {"the note beside it": note.sequence}
        if covered is not None and owner is not None and covered[0] == owner:
            known["the index"] = covered[1]
        where, most = max(known.items(), key=lambda item: item[1], default=("", 0))
        fault = _fault(path, reader, note, salts, read_only, last)
        reason = "" if fault is None else fault.text
        if most > last:
            ends = f"{where} knows changes up to {most}, and the records end at {last}"
            reason = f"{ends} ({reason})" if reason else ends
        elif fault is None:
            if note is None or note.unnumbered <= (value_of(reader, UNNUMBERED) or 0):
                return None
            reason = "the note beside it knows a later change of the declared columns, or of what shards keep here"
        ids, returned = _compare(reader, index) if "the index" in known and known["the index"] > last else ((), 0)
        return Loss(path, reason, last, max(last, most), ids, returned, fault is not None and fault.mixed)


def _fault(
    path: Path, reader: sqlite3.Connection, note: Note | None, salts: Salts, read_only: bool, last: int
) -> Fault | None:
    """What is wrong with the log, whose salts are given, beside the changes that it lost; None if nothing is."""
    name = "its write-ahead log"
    if note is None:
        in_use = value_of(reader, IN_USE)
        (schema,) = reader.execute("PRAGMA schema_version").fetchone()
        # SQLite's own backup gives its copy another number, and copies what the log holds.
        if in_use == schema and salts == NO_LOG:
            return Fault(f"{name} is missing, and the database was in use when it was copied or its log removed")
        return None
    # SQLite takes what is left of a log for newer than the database, which has all of these pages. A writer at work may
    # begin another log while they are counted.
    if salts == note.salts and count_whole(path, note.folded) < note.folded and salts == read_salts(path):
        return Fault(f"{name} was cut or altered after it was folded in", mixed=True)
    # A writer at work may fold its log in, or begin another one.
    if read_only:
        return None
    # SQLite goes on with such a log after one with the note's salts was folded in.
    follows = salts[0] == (note.salts[0] + 1) & 0xFFFFFFFF and note.salts != NO_LOG
    known = salts in (NO_LOG, note.salts) or follows
    if known and not note.folding:
        return None
    # The database may hold pages of several moments, unless all that it should hold is there and fits together. Those
    # of an older log may fit too, so a log that brings no later change must change no record and no deletion.
    newer = known or last > note.sequence
    if last >= note.sequence and is_whole(reader) and (newer or _same_without_log(path, reader)):
        return None
    if note.folding:
        return Fault(f"{name} is missing or damaged, and was being folded in", mixed=True)
    closed = ", as the database was closed without one" if note.salts == NO_LOG else ""
    return Fault(f"{name} is of another time{closed}", mixed=True)


def _owner(reader: sqlite3.Connection) -> str | None:
    config = value_of(reader, "config")
    try:
        owner = json.loads(config).get("store") if isinstance(config, bytes) else None
    except ValueError:
        return None
    return owner if isinstance(owner, str) else None


def _compare(reader: sqlite3.Connection, index: IndexDirectory) -> tuple[tuple[tuple[str, str], ...], int]:
    """(the ids that the index has live and the store has not, how many the store has and the index has not)."""
    try:
        saved = index.load(verify=False)
    except (IndexFileError, OSError):
        return (), 0
    lost: list[tuple[str, str]] = []
    returned = 0
    numbers = {name_of(name): number for number, name in reader.execute("SELECT number, name FROM namespaces")}
    for name in {*numbers, *saved.namespaces}:
        rows = reader.execute("SELECT id FROM records WHERE namespace = ? ORDER BY sequence", (numbers.get(name),))
        stored = {name_of(record_id) for (record_id,) in rows}
        snapshot = saved.namespaces.get(name)
        indexed = [] if snapshot is None else _live_ids(snapshot)
        lost += [(name, record_id) for record_id in indexed if record_id not in stored]
        returned += len(stored.difference(indexed))
    return tuple(lost), returned


def _live_ids(snapshot: Snapshot) -> list[str]:
    live = [
        first + (np.arange(segment.size) if alive is None else np.flatnonzero(alive))
        for number, (first, segment) in enumerate(zip(snapshot.firsts, snapshot.segments, strict=True))
        for alive in (snapshot.alive(number),)
    ]
    return snapshot.ids_of(np.concatenate(live)).tolist() if live else []
