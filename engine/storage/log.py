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
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

NOTE = "-note"
"""What the note's name has after the database's."""

Salts = tuple[int, int]
"""They name a log: it gets others each time that SQLite writes it from its beginning."""

NO_LOG = (0, 0)
"""Stands for the salts of a log that is not there."""

_NOTE = struct.Struct("<4sQIIIIII")
_MAGIC = b"fan1"
_HEADER, _FRAME = 32, 24
_MODULUS = 1 << 32
# Pages of a log that are in memory at a time: 4 MB.
READ_FRAMES = 1 << 10


class Note(NamedTuple):
    """What was acknowledged."""

    sequence: int
    """The last change."""
    salts: Salts = NO_LOG
    """Those of the log; `NO_LOG` where it was folded in and removed."""
    folding: bool = False
    """Whether the log is being folded in: without its log the database is then no state of any moment."""
    unnumbered: int = 0
    """How many changes had no sequence (`UNNUMBERED` in engine/storage/sqlite.py)."""
    folded: int = 0
    """How many pages of the log stand in the database too."""


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
    magic, sequence, first, second, folded, folding, unnumbered, checksum = _NOTE.unpack(data)
    if magic != _MAGIC or checksum != zlib.crc32(data[:-4]):
        return None
    return Note(sequence, (first, second), bool(folding), unnumbered, folded)


def read_salts(path: Path) -> Salts:
    """The salts of the database's log; `NO_LOG` where it holds no page. SQLite checks what it holds."""
    try:
        with log_of(path).open("rb") as handle:
            head = handle.read(_HEADER + 16)
    except FileNotFoundError:
        return NO_LOG
    if len(head) < _HEADER + 16 or head[16:24] != head[_HEADER + 8 :]:
        return NO_LOG
    first, second = struct.unpack(">2I", head[16:24])
    return first, second


def count_whole(path: Path, pages: int) -> int:
    """How many of the first `pages` of a database's log SQLite takes: those before the first with a wrong checksum."""
    try:
        with log_of(path).open("rb") as handle:
            return _count_whole(handle, pages)
    except FileNotFoundError:
        return 0


def _count_whole(handle: BinaryIO, pages: int) -> int:
    head = handle.read(_HEADER)
    if len(head) < _HEADER:
        return 0
    words = ">u4" if head[3] & 1 else "<u4"
    state = _sums(np.frombuffer(head[:24], words)[None])[0]
    if head[24:] != struct.pack(">2I", *state):
        return 0
    (size,) = struct.unpack(">I", head[8:12])
    grown = np.linalg.matrix_power(np.array([[1, 1], [1, 2]], dtype=object), 1 + size // 8) % _MODULUS
    whole = 0
    while whole < pages:
        data = handle.read(min(READ_FRAMES, pages - whole) * (_FRAME + size))
        frames = np.frombuffer(data[: len(data) - len(data) % (_FRAME + size)], np.uint8).reshape(-1, _FRAME + size)
        # A checksum goes on from that of the page before. What each page adds to it is found for many at once.
        added = _sums(np.concatenate([frames[:, :8], frames[:, _FRAME:]], axis=1).view(words))
        for frame, own in zip(frames, added, strict=True):
            state = (grown @ state + own) % _MODULUS
            if frame[8:_FRAME].tobytes() != head[16:24] + struct.pack(">2I", *state):
                return whole
            whole += 1
        if not len(frames):
            break
    return whole


def _sums(rows: npt.NDArray[np.uint32]) -> npt.NDArray[np.object_]:
    """The checksums [rows, 2] of rows of 32-bit words, each as if it were the first."""
    sums = np.zeros((2, len(rows)), np.uint32)
    for one, two in np.ascontiguousarray(rows.T.astype(np.uint32)).reshape(rows.shape[1] // 2, 2, rows.shape[0]):
        sums[0] += one + sums[1]
        sums[1] += two + sums[0]
    return sums.T.astype(object)


class NoteWriter:
    """Writes the note of one database, and counts the pages of its log. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._note: int | None = None
        self._log: int | None = None
        self._salts: Salts = NO_LOG
        self.frames = 0
        """Pages of the log as of the last note."""
        self._folding = False
        """Whether the log is being folded in, or a fold failed half-way."""
        self._folded = 0
        self.unnumbered = 0
        """For the notes to come."""

    def write(self, sequence: int) -> None:
        """Note a transaction that was just committed."""
        before = self._salts
        self._follow()
        # Two logs further on, the log would look like one of another time. So each log's first note is synced.
        self._put(Note(sequence, self._salts, self._folding, folded=self._folded), sync=self._salts != before)

    def write_folding(self, sequence: int, folding: bool, folded: int = 0) -> None:
        """Note that the log is being folded in, or that so many pages were. Says nothing where there is no log."""
        self._follow()
        if not self.frames:
            return
        self._folding, self._folded = folding, max(folded, self._folded)
        self._put(Note(sequence, self._salts, folding, folded=self._folded), sync=folding)

    def write_closed(self, sequence: int) -> None:
        """Note that the log was folded in and is gone."""
        self._folding = False
        self._put(Note(sequence), sync=True)

    def _follow(self) -> None:
        """Count the pages that were written since the last call."""
        if self._log is None:
            try:
                self._log = os.open(log_of(self._path), os.O_RDONLY | getattr(os, "O_BINARY", 0))
            except FileNotFoundError:
                return
        header = self._read_at(0, _HEADER)
        if len(header) < _HEADER:
            return
        page, _, *salts = struct.unpack(">4I", header[8:24])
        if tuple(salts) != self._salts:
            # A process that was killed may have begun this log.
            note = read_note(self._path)
            self._salts, self.frames = (salts[0], salts[1]), 0
            self._folded = note.folded if note is not None and note.salts == self._salts else 0
        while self._read_at(_HEADER + self.frames * (_FRAME + page) + 8, 8) == header[16:24]:
            self.frames += 1

    def _read_at(self, offset: int, size: int) -> bytes:
        assert self._log is not None
        os.lseek(self._log, offset, os.SEEK_SET)
        return os.read(self._log, size)

    def _put(self, note: Note, sync: bool) -> None:
        if self._note is None:
            self._note = os.open(note_of(self._path), os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        data = _NOTE.pack(_MAGIC, note.sequence, *note.salts, note.folded, note.folding, self.unnumbered, 0)[:-4]
        os.lseek(self._note, 0, os.SEEK_SET)
        os.write(self._note, data + struct.pack("<I", zlib.crc32(data)))
        if sync:
            os.fsync(self._note)

    def close(self) -> None:
        for descriptor in (self._note, self._log):
            if descriptor is not None:
                os.close(descriptor)
        self._note = self._log = None
