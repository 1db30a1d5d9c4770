"""A cache of embeddings in an SQLite file, by model and text."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..errors import CacheError, ParameterError, StorageError
from .encoder import Encoder, Rows, check_rows
from .models import repair_texts

APPLICATION = 0x66616E76  # "fanv"
VERSION = 1

# Seconds that a statement waits for the write of another process.
PATIENCE = 60.0
# Texts of one look-up, and of one encoding before its vectors are written. An interruption loses no more than these.
# Old versions of SQLite take 999 parameters at most.
CHUNK = 512

_SCHEMA = (
    "CREATE TABLE vectors(number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, checksum INTEGER NOT NULL,"
    " vector BLOB NOT NULL)",
    f"PRAGMA application_id={APPLICATION}",
    f"PRAGMA user_version={VERSION}",
)


class CachedEncoder:
    """An `Encoder` with a cache: `encoder` encodes a text once as a document and once as a query.

    `path` is an SQLite file, which is created if it is missing. Many threads and processes may use it at once, and many
    models may share it; a model is known by its name, version and dimension. A vector is stored as the float32 that the
    encoder returned, and is read back with the same bits. Half precision is not enough: 1 in 85 unit vectors in 4
    dimensions changes when it is normalised to half precision once more (none of 20,000 in 64 dimensions or more).

    New texts are encoded longest first, in chunks of 512. Each chunk is written as soon as it is encoded, so an
    interrupted run continues where it stopped.

    `misses` counts the texts that were encoded, `hits` those that were not. Raises `CacheError`. A damaged file can be
    deleted: everything in it can be encoded again.
    """

    def __init__(self, encoder: Encoder, path: str | os.PathLike[str]) -> None:
        self.encoder = encoder
        self.path = Path(path)
        self.hits = 0
        self.misses = 0
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._closed = False
        with self._reading():
            pass

    @property
    def name(self) -> str:
        return self.encoder.name

    @property
    def version(self) -> str:
        return self.encoder.version

    @property
    def encodes(self) -> bool:
        """Whether the encoder encodes texts at all (`OwnVectors` does not)."""
        return bool(getattr(self.encoder, "encodes", True))

    @property
    def dimension(self) -> int:
        return self.encoder.dimension

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        """As `Encoder`. Raises `CacheError`, and what the encoder raises."""
        return self._encode("document", texts, progress)

    def queries(self, texts: Sequence[str]) -> Rows:
        """As `Encoder`. Raises `CacheError`, and what the encoder raises."""
        return self._encode("query", texts, False)

    def __len__(self) -> int:
        """The number of vectors in the file, of all models."""
        with self._reading() as connection:
            return int(connection.execute("SELECT count(*) FROM vectors").fetchone()[0])

    def forget(self, texts: Sequence[str]) -> None:
        """Take what was encoded of these texts out of the file, by this encoder, and write it anew without."""
        keys = [key for kind in ("document", "query") for key, _ in self._keys(kind, repair_texts(texts))]
        with self._reading() as connection:
            connection.execute("PRAGMA secure_delete=ON")
            with connection:
                connection.executemany("DELETE FROM vectors WHERE key = ?", [(key,) for key in keys])
            connection.execute("VACUUM")

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        with self._lock, self._name_failures():
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None
            self._closed = True

    def __enter__(self) -> CachedEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, kind: str, texts: Sequence[str], progress: bool) -> Rows:
        repaired = repair_texts(texts)
        rows = np.empty((len(repaired), self.dimension), dtype=np.float32)
        positions: dict[str, list[int]] = {}
        for position, text in enumerate(repaired):
            positions.setdefault(text, []).append(position)
        keys = self._keys(kind, list(positions))
        new = []
        for start in range(0, len(keys), CHUNK):
            lookup = keys[start : start + CHUNK]
            cached = self._read([key for key, _ in lookup])
            for key, text in lookup:
                if key in cached:
                    rows[positions[text]] = cached[key]
                else:
                    new.append((key, text))
        # The encoder sorts its batches by length as well, so that they hold little padding.
        new.sort(key=lambda pair: -len(pair[1]))
        with self._lock:
            self.hits += len(repaired) - len(new)
            self.misses += len(new)
        from tqdm import tqdm  # as in opening.py

        show = progress and len(new) > CHUNK and sys.stderr.isatty()
        with tqdm(desc="encoding", total=len(new), unit=" texts", disable=not show) as bar:
            for start in range(0, len(new), CHUNK):
                chunk = new[start : start + CHUNK]
                vectors = self._make(kind, [text for _, text in chunk], progress and not show)
                self._write([(key, row.tobytes()) for (key, _), row in zip(chunk, vectors, strict=True)])
                # Another process may have written a row first. That row stays, and both processes answer with it.
                stored = self._read([key for key, _ in chunk])
                for key, text in chunk:
                    rows[positions[text]] = stored[key]
                bar.update(len(chunk))
        return rows

    def _make(self, kind: str, texts: list[str], progress: bool) -> Rows:
        if kind == "query":
            return check_rows(self.encoder.queries(texts), texts, self.encoder)
        return check_rows(self.encoder.documents(texts, progress=progress), texts, self.encoder)

    def _keys(self, kind: str, texts: Sequence[str]) -> list[tuple[bytes, str]]:
        model = hashlib.blake2b(digest_size=16)
        for fact in (self.name, self.version, str(self.dimension), kind):
            data = fact.encode("utf-8", "surrogatepass")
            model.update(len(data).to_bytes(8, "little") + data)
        keys = []
        for text in texts:
            digest = model.copy()
            digest.update(text.encode())
            keys.append((digest.digest(), text))
        return keys

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, Rows]:
        marks = ",".join("?" * len(keys))
        with self._reading() as connection:
            rows = connection.execute(f"SELECT key, checksum, vector FROM vectors WHERE key IN ({marks})", keys)
            vectors = {}
            for key, checksum, vector in rows:
                whole = isinstance(vector, bytes) and len(vector) == 4 * self.dimension
                if not whole or zlib.crc32(vector, zlib.crc32(key)) != checksum:
                    raise self._damaged("a vector was altered since it was written (checksum differs)")
                vectors[key] = np.frombuffer(vector, dtype="<f4")
            return vectors

    def _write(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        rows = [(key, zlib.crc32(vector, zlib.crc32(key)), vector) for key, vector in pairs]
        with self._reading() as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO vectors(key, checksum, vector) VALUES (?, ?, ?)", rows)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """This process's connection, for one thread at a time."""
        with self._lock, self._name_failures():
            if self._closed:
                raise ParameterError(f"{self.path}: the cache is closed")
            # A connection must not be used after a fork. The parent's connection is left as it is.
            if self._connection is None or self._process != os.getpid():
                self._connection = _open(self.path)
                self._process = os.getpid()
            yield self._connection

    @contextmanager
    def _name_failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise CacheError(f"{self.path}: the cache of embeddings cannot be read or written: {error}") from error
        except sqlite3.DatabaseError as error:
            # Only from Python 3.11 on does the error have a code; the message is the same in all versions.
            if "not a database" in str(error):
                raise _foreign(self.path) from error
            raise self._damaged(str(error)) from error
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise CacheError(f"{self.path}: the cache of embeddings cannot be made: {error.strerror}") from error

    def _damaged(self, why: str) -> CacheError:
        return CacheError(
            f"{self.path}: the cache of embeddings is damaged: {why}; delete the file, and they are encoded again"
        )


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=PATIENCE, check_same_thread=False)
    try:
        # One process creates the tables. The others wait for it, and then find them.
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone() and application == 0:
                for statement in _SCHEMA:
                    connection.execute(statement)
            elif application != APPLICATION:
                raise _foreign(path)
            elif version != VERSION:
                raise CacheError(
                    f"{path}: written by a newer fanrank (format {version}); upgrade, or give another path"
                )
        # No write-ahead log: switching to one fails at once, without waiting, while another process opens the file.
        # Writes of 512 rows are rare, so readers can wait for them.
        return connection
    except BaseException:
        connection.close()
        raise


def _foreign(path: Path) -> CacheError:
    return CacheError(f"{path}: this file is no cache of embeddings, or its beginning is damaged; give another path")
