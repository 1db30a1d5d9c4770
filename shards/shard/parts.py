"""What a shard keeps beside its records: which decision it carried out last, the part that it has prepared, and which
namespaces are being copied to it.

A part is stored before it is decided. It changes no record, so no search sees it. Carried out, it goes in the same
transaction as what it did. A shard that ended in between is asked which decision was its last. A namespace that moves
is hidden from searches at its new home until all of it is there.
"""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...engine.errors import StorageError
from ...engine.records.record import Record
from ...engine.storage.record_store import Notes, RecordStore
from ...engine.storage.row_codec import JSON, EncodedRecord, check_objects, decode, encode_all
from ...engine.storage.state import MemoryState
from ..protocol.messages import Part

STATE, PENDING, COPY = "state", "pending", "copy/"
"""The notes of a shard: its last write and decision; the part that it has prepared; a namespace that is being copied
to it, whose name follows."""

RESERVE = "reserve"
"""The file that keeps room on the disk for what a prepared part needs when it is carried out."""

ROOM = 1 << 18
"""Bytes of it that no part falls below. A page of SQLite is 4 KiB, and a small batch changes some twenty of them."""

TIMES = 6
"""Bytes of room for each byte of a part: its rows and their index, in the log and then in the file."""


class ShardNotes:
    """The notes of one shard. `store` None: a shard in memory, which forgets them with its process."""

    def __init__(self, store: RecordStore | None) -> None:
        self._store = store
        found = {} if store is None else store.notes()
        state = json.loads(found.get(STATE, "{}"))
        self.generation: int = state.get("generation", 0)
        """That of the last decision that the shard has carried out."""
        self._newest = self.generation
        self.last: str | None = state.get("write")
        """The name of its last write."""
        self.copies = frozenset(name.removeprefix(COPY) for name in found if name.startswith(COPY))
        """The namespaces that are being copied to it. The states that searches read are without them."""
        self._shown: tuple[MemoryState, frozenset[str], MemoryState] | None = None
        self.pending: tuple[int, Part] | None = decode_part(found[PENDING]) if PENDING in found else None
        """The part that it has prepared, with its generation."""
        self._rows: list[EncodedRecord] | None = None  # of that part, where this process has prepared it
        self._reserve = None if store is None else Reserve(store.path.parent / RESERVE)

    def prepare(self, generation: int, part: Part) -> None:
        """Keep a part until it is decided. Raises `StorageError` where there is no room to carry it out.

        One that comes late, after a later one or after its owner has given it up, is not kept.
        """
        if generation <= self._newest:
            return
        self._newest = generation
        if self._store is None:
            for record in part.added:
                check_objects(record, "payload")
        elif self._reserve is not None:
            self._rows = encode_all(part.added, part.orders)
            text = encode_part(generation, part, self._rows)
            self._reserve.keep(TIMES * len(text.encode()) + ROOM)
            self._store.keep_notes({PENDING: text})
        self.pending = generation, part

    def rows(self, generation: int | None) -> list[EncodedRecord] | None:
        """The records of the part that was prepared under this generation as rows, where they are at hand."""
        return self._rows if self.pending is not None and self.pending[0] == generation else None

    def forget(self, generation: int) -> None:
        """Drop the part that was prepared under this generation, if it is there."""
        self._newest = max(self._newest, generation)
        if self.pending is not None and self.pending[0] == generation:
            if self._store is not None and self._reserve is not None:
                self._reserve.release()
                self._store.keep_notes({PENDING: None})
            self.pending = self._rows = None

    def of_write(self, name: str, generation: int | None, copies: Mapping[str, bool]) -> Notes:
        """What is kept with a write. `copies` says which namespaces begin and end to be copies.

        `generation` is that of the decision that it carries out.
        """
        state = {"generation": self.generation if generation is None else generation, "write": name}
        kept: dict[str, str | None] = {STATE: JSON.encode(state)}
        for namespace, begins in copies.items():
            if begins != (namespace in self.copies):
                kept[COPY + namespace] = "" if begins else None
        if generation is not None and self.pending is not None:
            kept[PENDING] = None
        return kept

    def wrote(self, name: str, generation: int | None, copies: Mapping[str, bool]) -> None:
        """Take note that a write was carried out."""
        self.last = name
        if generation is not None:
            self.generation, self.pending, self._rows = generation, None, None
        begun = {namespace for namespace, begins in copies.items() if begins}
        self.copies = (self.copies | begun).difference(namespace for namespace in copies if namespace not in begun)

    def shown(self, state: MemoryState) -> MemoryState:
        """The state without the namespaces that are being copied to the shard."""
        copies, known = self.copies, self._shown
        if copies.isdisjoint(state.snapshots):
            return state
        if known is None or known[0] is not state or known[1] != copies:
            snapshots = {name: each for name, each in state.snapshots.items() if name not in copies}
            names = tuple(name for name in state.names if name not in copies)
            known = self._shown = state, copies, replace(state, snapshots=snapshots, names=names)
        return known[2]

    def copied(self, state: MemoryState) -> int:
        """The records of the namespaces that are being copied to the shard."""
        return sum(state.snapshot(name).size for name in self.copies)

    def make_room(self) -> bool:
        """Let go of the room that is kept on the disk; False where there was none."""
        return self._reserve is not None and self._reserve.release()


class Reserve:
    """A file that holds room on a disk, which is let go of where a write finds none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0

    def keep(self, size: int) -> None:
        """Hold so many bytes, or more. Raises `StorageError` where the disk has not so many."""
        if size <= self._size:
            return
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.release()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                return  # a file system that keeps no room; the write itself says what fails
            full = "no space left; nothing was written. Free some and try again"
            raise StorageError(f"{self._path.parent}: {full}") from error
        self._size = size

    def release(self) -> bool:
        """Let go of the room; False where none was held."""
        held, self._size = self._size, 0
        with suppress(OSError):
            self._path.unlink()
            return True
        return bool(held)


def encode_part(generation: int, part: Part, rows: Sequence[EncodedRecord]) -> str:
    """A part that is prepared, as lines: one with all but the JSON of its records, then that of each."""
    head = {
        "generation": generation,
        "removed": {name: list(ids) for name, ids in part.removed.items()},
        "drop": part.drop,
        "show": part.show,
        "rows": [
            [record.namespace for record in part.added],
            [row.id for row in rows],
            [row.checksum for row in rows],
            [None if row.vectors is None else base64.b64encode(row.vectors).decode() for row in rows],
        ],
    }
    return "\n".join([JSON.encode(head), *[row.data for row in rows]])


def decode_record(namespace: str, record_id: str, checksum: int, text: str, vectors: str | None) -> Record:
    """The record of a row that was kept as text, with the number of its write among its `extra`."""
    rows = None if vectors is None else base64.b64decode(vectors)
    return decode(namespace, EncodedRecord(record_id, checksum, text, rows))


def decode_part(text: str) -> tuple[int, Part]:
    """(the generation, the part) that `encode_part` was given."""
    first, *data = text.split("\n")
    head = json.loads(first)
    if "rows" in head:
        names, ids, checksums, vectors = head["rows"]
        rows = zip(names, ids, checksums, data, vectors, strict=True)
    else:
        rows = head["added"]  # as a version before kept them
    added = [decode_record(*row) for row in rows]
    show = head["show"] or ()  # one name, as a version before kept it, or several
    shown = (show,) if isinstance(show, str) else tuple(show)
    return head["generation"], Part(head["removed"], added, drop=tuple(head["drop"]), show=shown)


def names_of_copies(store: RecordStore) -> Sequence[str]:
    """The namespaces that are being copied to the shard of a store."""
    return [name.removeprefix(COPY) for name in store.notes() if name.startswith(COPY)]
