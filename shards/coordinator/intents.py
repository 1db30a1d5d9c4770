"""The coordinator's log of writes to several shards.

A batch for several shards is written here, and synced, before the first shard sees it. It is dropped when all have
acknowledged it. What a crash leaves here is carried out again when the memory is opened: each shard deletes the batch's
ids and adds its records, with the same numbers, so it does not matter which shards had done so. So a batch is in all
shards or in none.

The file holds at most one intent, as batches are written one after another: a header of its length and CRC-32, then
JSON. A file that ends within its intent was torn: it was never synced, so no shard has seen it, and it is dropped. One
that is whole but for its checksum has rotted. What it asked of the shards is lost then, and the memory is not opened.

Dropping an intent truncates the file, and syncs it before the next batch is sent: an intent that came back after later
writes would undo them.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...engine.errors import DamagedIndexError, StorageError
from ...engine.records.record import Record
from ...engine.storage.failpoints import reach
from ...engine.storage.row_codec import EncodedRecord, decode, encode
from ...engine.storage.sync import sync
from ..protocol.batches import Batch

INTENTS = "intents"
_HEADER = struct.Struct("<QI")


class Moved(NamedTuple):
    """A namespace whose records go to other shards."""

    namespace: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    """The shards of its parts before and after; after (): it is dropped."""


@dataclass(frozen=True)
class Intent:
    """What was about to be done: a batch for several shards, or namespaces that change their shards."""

    batches: Mapping[int, Batch] = field(default_factory=dict)
    moves: tuple[Moved, ...] = ()


class IntentLog:
    """The file of a memory's intents. `path` None: a memory without files, which needs none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: int | None = None
        if path is not None:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                sync(path.parent)
            except OSError as error:
                raise StorageError(f"{path}: cannot be opened: {error.strerror}") from error

    def read(self) -> Intent | None:
        """The intent that was not dropped, or None. A torn one is dropped here.

        Raises `DamagedIndexError` for one that has rotted, and `StorageError`.
        """
        if self._file is None or self.path is None:
            return None
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error.strerror}") from error
        size, checksum = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (0, 0)
        body = data[_HEADER.size : _HEADER.size + size]
        if not size or len(body) < size:
            if data:
                # The next intent may be shorter. Were it torn as well, what is left here would look like its end.
                self.drop()
            return None
        if zlib.crc32(body) != checksum:
            raise self._rotten("its checksum differs")
        try:
            return _decode(json.loads(body))
        except (ValueError, KeyError, TypeError) as error:
            raise self._rotten(str(error)) from error

    def _rotten(self, why: str) -> DamagedIndexError:
        return DamagedIndexError(
            f"{self.path}: holds no intent that can be read ({why}), and shards may have carried it out in part; "
            "restore the memory from a copy"
        )

    def write(self, intent: Intent) -> None:
        """Make the intent durable. Raises `RecordError` for a record that cannot be stored, and `StorageError`."""
        if self._file is None:
            return
        body = json.dumps(_encode(intent), ensure_ascii=False, separators=(",", ":")).encode()
        data = _HEADER.pack(len(body), zlib.crc32(body)) + body
        try:
            view = memoryview(data)
            os.lseek(self._file, 0, os.SEEK_SET)
            while len(view):
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # what was written in part must not be carried out later
                os.ftruncate(self._file, 0)
            raise StorageError(f"{self.path}: cannot be written: {error.strerror}; nothing was changed") from error
        reach("intent.written")

    def drop(self) -> None:
        """Make durable that the intent is done. Raises `StorageError`."""
        if self._file is None:
            return
        try:
            os.ftruncate(self._file, 0)
            os.fsync(self._file)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written: {error.strerror}") from error
        reach("intent.dropped")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _encode(intent: Intent) -> dict[str, Any]:
    batches = {
        str(shard): {
            "removed": {name: list(ids) for name, ids in batch.removed.items()},
            "added": [_encode_record(record) for record in batch.added],
        }
        for shard, batch in intent.batches.items()
    }
    return {"batches": batches, "moves": intent.moves}


def _encode_record(record: Record) -> list[Any]:
    row = encode(record)
    vectors = None if row.vectors is None else base64.b64encode(row.vectors).decode()
    return [record.namespace, row.id, row.checksum, row.data, vectors]


def _decode(data: Mapping[str, Any]) -> Intent:
    batches = {
        int(shard): Batch(batch["removed"], [_decode_record(*row) for row in batch["added"]])
        for shard, batch in data["batches"].items()
    }
    moves = (Moved(namespace, tuple(before), tuple(after)) for namespace, before, after in data["moves"])
    return Intent(batches, tuple(moves))


def _decode_record(namespace: str, record_id: str, checksum: int, text: str, vectors: str | None) -> Record:
    rows = None if vectors is None else base64.b64decode(vectors)
    return decode(namespace, EncodedRecord(record_id, checksum, text, rows))
