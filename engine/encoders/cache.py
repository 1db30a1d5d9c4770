"""Embeddings that were made once, kept in a file by what they are of."""

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
from tqdm import tqdm

from ..errors import CacheError, ParameterError, StorageError
from .encoder import Encoder, Rows, check_rows
from .models import repair_texts

APPLICATION = 0x66616E76  # "fanv"
VERSION = 1

# Seconds that a statement waits for another process's write.
PATIENCE = 60.0
# Texts of one look-up, and of one encoding before it is written: what an interruption loses. SQLite once took no more
# than 999 parameters.
CHUNK = 512

_SCHEMA = (
    "CREATE TABLE vectors(number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, checksum INTEGER NOT NULL,"
    " vector BLOB NOT NULL)",
    f"PRAGMA application_id={APPLICATION}",
    f"PRAGMA user_version={VERSION}",
)


class CachedEncoder:
    """An `Encoder` that remembers: a text goes to `encoder` once for each of name, version, and document or query.

    `path` is an SQLite file, made where it is missing, that many threads and processes may use at once and many models
    may share. A vector is kept as the float32 that the encoder gave, and comes back with the same bits. Half precision
    would not do: of unit vectors in 4 dimensions 1 in 85 changes when it is normalised to half precision once more
    (none of 20,000 in 64 or more). What is new is encoded from the longest text on, in chunks of 512 that are written
    as they are made, so that an interrupted run goes on where it was.

    `misses` counts texts that were encoded, `hits` those that were not. Raises `CacheError`; a damaged file can be
    deleted, as it holds nothing that cannot be made again.
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
        """As the encoder's own (`OwnVectors`)."""
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
        """Vectors in the file, of all models."""
        with self._reading() as connection:
            return int(connection.execute("SELECT count(*) FROM vectors").fetchone()[0])

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        with self._lock, self._named():
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None
            self._closed = True

    def __enter__(self) -> CachedEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, kind: str, texts: Sequence[str], progress: bool) -> Rows:
        given = repair_texts(texts)
        rows = np.empty((len(given), self.dimension), dtype=np.float32)
        places: dict[str, list[int]] = {}
        for place, text in enumerate(given):
            places.setdefault(text, []).append(place)
        keys = self._keys(kind, list(places))
        new = []
        for start in range(0, len(keys), CHUNK):
            part = keys[start : start + CHUNK]
            found = self._read([key for key, _ in part])
            for key, text in part:
                if key in found:
                    rows[places[text]] = found[key]
                else:
                    new.append((key, text))
        # As the encoder itself would sort them, so that its batches hold little padding.
        new.sort(key=lambda pair: -len(pair[1]))
        with self._lock:
            self.hits += len(given) - len(new)
            self.misses += len(new)
        show = progress and len(new) > CHUNK and sys.stderr.isatty()
        with tqdm(desc="encoding", total=len(new), unit=" texts", disable=not show) as bar:
            for start in range(0, len(new), CHUNK):
                chunk = new[start : start + CHUNK]
                made = self._make(kind, [text for _, text in chunk], progress and not show)
                self._write([(key, row.tobytes()) for (key, _), row in zip(chunk, made, strict=True)])
                # Another process may have been faster; its row stays, and is the answer of both.
                stored = self._read([key for key, _ in chunk])
                for key, text in chunk:
                    rows[places[text]] = stored[key]
                bar.update(len(chunk))
        return rows

    def _make(self, kind: str, texts: list[str], progress: bool) -> Rows:
        if kind == "query":
            return check_rows(self.encoder.queries(texts), texts, self.encoder)
        return check_rows(self.encoder.documents(texts, progress=progress), texts, self.encoder)

    def _keys(self, kind: str, texts: Sequence[str]) -> list[tuple[bytes, str]]:
        model = hashlib.blake2b(digest_size=16)
        for part in (self.name, self.version, str(self.dimension), kind):
            data = part.encode("utf-8", "surrogatepass")
            model.update(len(data).to_bytes(8, "little") + data)
        keys = []
        for text in texts:
            own = model.copy()
            own.update(text.encode())
            keys.append((own.digest(), text))
        return keys

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, Rows]:
        marks = ",".join("?" * len(keys))
        with self._reading() as connection:
            rows = connection.execute(f"SELECT key, checksum, vector FROM vectors WHERE key IN ({marks})", keys)
            found = {}
            for key, checksum, vector in rows:
                whole = isinstance(vector, bytes) and len(vector) == 4 * self.dimension
                if not whole or zlib.crc32(vector, zlib.crc32(key)) != checksum:
                    raise self._damaged("a vector was altered since it was written (checksum differs)")
                found[key] = np.frombuffer(vector, dtype="<f4")
            return found

    def _write(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        rows = [(key, zlib.crc32(vector, zlib.crc32(key)), vector) for key, vector in pairs]
        with self._reading() as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO vectors(key, checksum, vector) VALUES (?, ?, ?)", rows)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process, for one at a time."""
        with self._lock, self._named():
            if self._closed:
                raise ParameterError(f"{self.path}: the cache is closed")
            # A connection must not cross a fork; the parent's is left alone.
            if self._connection is None or self._process != os.getpid():
                self._connection = _open(self.path)
                self._process = os.getpid()
            yield self._connection

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise CacheError(f"{self.path}: the cache of embeddings cannot be read or written: {error}") from error
        except sqlite3.DatabaseError as error:
            # Its error code has a name from Python 3.11 on only.
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
        # One process makes the file; the others wait for it and find it made.
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
        # No write-ahead log: while another process opens the file, switching to one fails without patience.
        # Writes of 512 rows are rare enough for readers to wait for.
        return connection
    except BaseException:
        connection.close()
        raise


def _foreign(path: Path) -> CacheError:
    return CacheError(f"{path}: this file is no cache of embeddings, or its beginning is damaged; give another path")
