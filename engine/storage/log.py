"""SQLite's write-ahead log, and a note beside it of how far the acknowledged changes reach.

SQLite reads a log up to the first frame that does not fit, and takes what it finds there for all that was written. So a
log that was removed, cut, altered or replaced by an older one looks like one that never held more. The note says what
was acknowledged: it is written after each commit, beside the database. A kill leaves it exact. After a loss of power it
may be behind, never ahead, as the log is synced before it.
"""

from __future__ import annotations

import os
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

NOTE = "-note"
"""What the note's name has after the database's."""

NO_LOG = (0, 0)
"""Stands for the salts of a log that is not there."""

_NOTE = struct.Struct("<4sQIIIIII")
_MAGIC = b"fan1"
_HEADER, _FRAME = 32, 24
# Frames of the log that are in memory at a time: 4 MB.
_BLOCK = 1 << 10


class LogEnd(NamedTuple):
    """Where the whole transactions of a log end."""

    salts: tuple[int, int] = NO_LOG
    """They name the log: it gets others each time that SQLite writes it from its beginning."""
    frames: int = 0
    """The number of pages of whole transactions."""
    commits: int = 0
    """The number of whole transactions."""
    page: int = 0
    """Bytes of a page."""

    def may_follow(self, salts: tuple[int, int]) -> bool:
        """Whether SQLite goes on with this log after one with these salts was folded in."""
        return self.salts[0] == (salts[0] + 1) & 0xFFFFFFFF


class Note(NamedTuple):
    """What was acknowledged."""

    sequence: int
    """The last change."""
    salts: tuple[int, int] = NO_LOG
    """Those of the log; `NO_LOG` where it was folded in and removed."""
    frames: int = 0
    """The frames of the log that hold acknowledged transactions."""
    folding: bool = False
    """Whether the log is being folded in: without its log the database is then no state of any moment."""
    columns: int = 0
    """How often the declared columns changed."""


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def note_of(path: Path) -> Path:
    return path.with_name(path.name + NOTE)


def read_note(path: Path) -> Note | None:
    """The note beside a database; None if there is none, or none that is whole."""
    try:
        data = note_of(path).read_bytes()
    except FileNotFoundError:
        return None
    if len(data) != _NOTE.size:
        return None
    magic, sequence, first, second, frames, folding, columns, checksum = _NOTE.unpack(data)
    if magic != _MAGIC or checksum != zlib.crc32(data[:-4]):
        return None
    return Note(sequence, (first, second), frames, bool(folding), columns)


def read_log(path: Path) -> LogEnd:
    """Where the log of the database `path` ends, as SQLite finds it. Reads the log without opening the database."""
    try:
        with log_of(path).open("rb") as handle:
            return _read(handle)
    except FileNotFoundError:
        return LogEnd()


def _read(handle: BinaryIO) -> LogEnd:
    header = handle.read(_HEADER)
    if len(header) < _HEADER:
        return LogEnd()
    magic, _, page, _, *salts, first, second = struct.unpack(">8I", header)
    order = {0x377F0682: "<u4", 0x377F0683: ">u4"}.get(magic)
    if order is None or not 512 <= page <= 1 << 16 or page & (page - 1):
        return LogEnd()
    sums = _chain((0, 0), _sums(np.frombuffer(header, order, 6).astype(np.uint32).reshape(1, -1)), 3)
    if sums != [(first, second)]:
        return LogEnd()
    state, seen, whole, commits = sums[0], 0, 0, 0
    size = _FRAME + page
    while data := handle.read(_BLOCK * size):
        count = len(data) // size
        frames = np.frombuffer(data, np.uint8, count * size).reshape(count, size)
        heads = frames[:, :_FRAME].copy().view(">u4")
        covered = np.concatenate([frames[:, :8], frames[:, _FRAME:]], axis=1).view(order).astype(np.uint32)
        for head, sums_now in zip(heads.tolist(), _chain(state, _sums(covered), 1 + page // 8), strict=True):
            if head[2:4] != salts or tuple(head[4:]) != sums_now or head[0] == 0:
                return LogEnd((salts[0], salts[1]), whole, commits, page)
            state = sums_now
            seen += 1
            if head[1]:
                whole, commits = seen, commits + 1
        if count < _BLOCK:
            break
    return LogEnd((salts[0], salts[1]), whole, commits, page)


# A step of SQLite's checksum takes two words x0 and x1: s0 += x0 + s1, then s1 += x1 + s0. It is linear modulo 2**32.
# So what a frame adds does not depend on what came before it, and numpy finds it for many frames at once.
@cache
def _powers(steps: int) -> tuple[Words, Words]:
    """(the matrices [steps, 2, 2] by which the words of each step reach the sums; the one [2, 2] of all steps)."""
    step, power = np.array([[1, 1], [1, 2]], np.uint32), np.eye(2, dtype=np.uint32)
    words = np.array([[1, 0], [1, 1]], np.uint32)
    reach = np.empty((steps, 2, 2), np.uint32)
    for place in reversed(range(steps)):
        reach[place] = power @ words
        power = power @ step
    return reach, power


def _sums(words: Words) -> Words:
    """What each row of words [N, 2 * steps] adds to the checksum, [N, 2]."""
    steps = words.shape[1] // 2
    reach, _ = _powers(steps)
    pairs = words.reshape(len(words), steps, 2)
    added = [
        (pairs[:, :, 0] * reach[:, row, 0] + pairs[:, :, 1] * reach[:, row, 1]).sum(axis=1, dtype=np.uint32)
        for row in (0, 1)
    ]
    return np.stack(added, axis=1)


def _chain(state: tuple[int, int], added: Words, steps: int) -> list[tuple[int, int]]:
    """The checksum after each row, from `state` on."""
    (a, b), (c, d) = _powers(steps)[1].tolist()
    first, second = state
    found = []
    for one, other in added.tolist():
        first, second = (a * first + b * second + one) & 0xFFFFFFFF, (c * first + d * second + other) & 0xFFFFFFFF
        found.append((first, second))
    return found


class NoteWriter:
    """Writes the note of one database, and follows the end of its log. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._note: int | None = None
        self._log: int | None = None
        self._end: LogEnd | None = None
        """Where the log ends; None if that must be read from its beginning."""
        self._folding = False
        """Whether the log is being folded in, or a fold failed half-way."""
        self.columns = 0
        """How often the declared columns changed, for the notes to come."""
        self._synced = 0
        """The same, as of the last note that was synced."""

    @property
    def frames(self) -> int:
        """Frames of the log as of the last `write`."""
        return 0 if self._end is None else self._end.frames

    def lose_track(self) -> None:
        """The log may hold a transaction that no `write` followed."""
        self._end = None

    def write(self, sequence: int) -> None:
        """Note a transaction that was just committed."""
        before = self._end
        self._end = read_log(self._path) if before is None else self._follow(before)
        # Two logs further on, the log would look like one of another time. So each log's first note is synced.
        new = before is None or before.salts != self._end.salts
        self._put(Note(sequence, self._end.salts, self._end.frames, self._folding), sync=new)

    def write_folding(self, sequence: int, folding: bool) -> None:
        """Note that the log is being folded in, or no longer. Says nothing where there is no log."""
        if self._end is None:
            self._end = read_log(self._path)
        if not self._end.frames:
            return
        self._folding = folding
        self._put(Note(sequence, self._end.salts, self._end.frames, folding), sync=folding)

    def write_closed(self, sequence: int) -> None:
        """Note that the log was folded in and is gone."""
        self._folding = False
        self._put(Note(sequence), sync=True)

    def _follow(self, end: LogEnd) -> LogEnd:
        """The end after one more transaction. It has one frame that says so, its last."""
        if self._log is None:
            self._log = os.open(log_of(self._path), os.O_RDONLY | getattr(os, "O_BINARY", 0))
        header = self._read_at(0, _HEADER)
        if len(header) < _HEADER:
            return end
        page, _, *salts = struct.unpack(">4I", header[8:24])
        if tuple(salts) != end.salts:
            end = LogEnd((salts[0], salts[1]), page=page)
        frame = end.frames
        while True:
            head = self._read_at(_HEADER + frame * (_FRAME + page), 16)
            if len(head) < 16:
                return end
            _, committed, *salts = struct.unpack(">4I", head)
            if tuple(salts) != end.salts:
                return end
            frame += 1
            if committed:
                return end._replace(frames=frame, commits=end.commits + 1)

    def _read_at(self, offset: int, size: int) -> bytes:
        assert self._log is not None
        os.lseek(self._log, offset, os.SEEK_SET)
        return os.read(self._log, size)

    def _put(self, note: Note, sync: bool) -> None:
        note = note._replace(columns=self.columns)
        if self._note is None:
            self._note = os.open(note_of(self._path), os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        data = _NOTE.pack(_MAGIC, note.sequence, *note.salts, note.frames, note.folding, note.columns, 0)[:-4]
        os.lseek(self._note, 0, os.SEEK_SET)
        os.write(self._note, data + struct.pack("<I", zlib.crc32(data)))
        if sync or self._synced != note.columns:
            os.fsync(self._note)
            self._synced = note.columns

    def close(self) -> None:
        for descriptor in (self._note, self._log):
            if descriptor is not None:
                os.close(descriptor)
        self._note = self._log = None
