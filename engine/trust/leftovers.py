"""Searches files for what records said: as text, as rows in symbols, as vectors, and in the strings of the index.

What is looked for are *needles*, pieces of 8 to 48 bytes. A piece that a live record holds too is nobody's leftover.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..records.record import Record
from ..storage.index_files import INDEX, IndexDirectory
from ..storage.row_codec import RECORDS, TABLE_KEYS, UNPACKED
from ..storage.sqlite import named, open_reader, rows_of

# Bytes of a piece of a text; each begins half a piece after the one before it.
PIECE = 16
# Bytes of a piece of a packed row or of a vector. Shorter ones may be alike by chance.
RAW_PIECE = 24
LEAST, MOST = 8, 48
# Bytes of a file that are in memory at a time.
READ_AT_ONCE = 1 << 24
# Rows that are decoded at a time.
ROWS_TOGETHER = 1_000
# Pieces with fewer different bytes, such as rows of zeros or blanks, tell nothing.
LEAST_KINDS = 4
_HASH = np.uint64(0x9E3779B97F4A7C15)
_HASH_BITS = 20


class Needles:
    """Pieces of bytes, and where they are found. All are looked for at once, by their first 8 bytes."""

    def __init__(self) -> None:
        self.pieces: set[bytes] = set()
        self._heads: dict[bytes, list[bytes]] = {}
        self._table = np.zeros(1 << _HASH_BITS, dtype=np.bool_)

    def add(self, piece: bytes) -> None:
        """Look for this piece, too; what is longer is cut, and what is too short or too plain is left out."""
        piece = piece[:MOST]
        if len(piece) < LEAST or len({*piece}) < LEAST_KINDS or piece in self.pieces:
            return
        self.pieces.add(piece)
        head = piece[:LEAST]
        self._heads.setdefault(head, []).append(piece)
        self._table[_hashes(np.frombuffer(head, dtype="<u8"))] = True

    def add_pieces(self, data: bytes, size: int) -> None:
        """Look for the pieces of these bytes."""
        for start in range(0, max(1, len(data) - size + 1), size // 2):
            self.add(data[start : start + size])

    def add_record(self, record: Record) -> None:
        """Look for what a record says in any field, and for its vectors."""
        for text in (record.id, *_texts(vars(record))):
            for form in {text, text.lower()}:
                self.add_pieces(form.encode("utf-8", "surrogatepass"), PIECE)
                for word in re.findall(r"\w+", form):
                    self.add(word.encode("utf-8", "surrogatepass"))
        if record.embedding is not None:
            for row in record.embedding:
                self.add_pieces(row.tobytes(), RAW_PIECE)

    def inside(self, data: bytes) -> set[bytes]:
        """The pieces that these bytes hold."""
        found = set[bytes]()
        for shift in range(min(LEAST, len(data) - LEAST + 1) if self.pieces else 0):
            words = np.frombuffer(data, dtype="<u8", count=(len(data) - shift) // LEAST, offset=shift)
            for place in np.flatnonzero(self._table[_hashes(words)]).tolist():
                start = shift + LEAST * place
                pieces = self._heads.get(data[start : start + LEAST], ())
                found.update(piece for piece in pieces if data.startswith(piece, start))
        return found

    def in_file(self, path: Path) -> set[bytes]:
        """The pieces that a file holds, as its bytes are; none of one that a checkpoint removed meanwhile."""
        found, rest = set[bytes](), b""
        with suppress(FileNotFoundError), path.open("rb") as file:
            while data := file.read(READ_AT_ONCE):
                found |= self.inside(rest + data)
                rest = data[-MOST:]
        return found


def _hashes(words: Any) -> Any:
    return (words * _HASH) >> np.uint64(64 - _HASH_BITS)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _texts(name)
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)
    elif hasattr(value, "to_dict"):
        yield from _texts(value.to_dict())


def stores_in(folders: Iterable[Path]) -> list[Path]:
    """The databases of records below these folders."""
    return sorted({path for folder in folders for path in folder.rglob(RECORDS)})


def files_in(folders: Iterable[Path]) -> list[Path]:
    """All files below these folders, each once; a file among them is itself."""
    return sorted({path for folder in folders for path in (folder, *folder.rglob("*")) if path.is_file()})


def add_rows(needles: Needles, folders: Iterable[Path], ids: Mapping[str, Iterable[str]]) -> None:
    """Look for the rows of these records as they lie in the databases now, packed and with their vectors."""
    for path in stores_in(folders):
        with named(path), closing(open_reader(path)) as reader:
            for name, some in ids.items():
                for data, vectors in rows_of(reader, "data, vectors", name, [*some]):
                    for blob in (data, vectors):
                        if isinstance(blob, bytes):
                            needles.add_pieces(blob, RAW_PIECE)


def held_by_records(needles: Needles, folders: Iterable[Path]) -> set[bytes]:
    """The pieces that live records hold: in their rows as JSON, packed, and in lower case, and in their vectors."""
    found = set[bytes]()
    for path in stores_in(folders):
        with named(path), closing(open_reader(path)) as reader:
            rows = reader.execute(f"SELECT id, {UNPACKED}, data, vectors FROM records")
            while chunk := rows.fetchmany(ROWS_TOGETHER):
                texts = b"\n".join(_plain(_bytes(one)) for row in chunk for one in row[:2])
                found |= needles.inside(texts) | needles.inside(texts.decode("utf-8", "replace").lower().encode())
                found |= needles.inside(b"\n".join(_bytes(one) for row in chunk for one in row[2:]))
    return found


def _plain(text: bytes) -> bytes:
    """A row's JSON, with what it says once more as it was before quotes and line feeds were escaped."""
    if b"\\" not in text:
        return text
    return b"\n".join([text, *(one.encode("utf-8", "surrogatepass") for one in _texts(json.loads(text)))])


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def symbols_in(path: Path) -> Iterator[bytes]:
    """The runs of bytes for which the rows of a database have symbols."""
    with named(path), closing(open_reader(path)) as reader:
        for (value,) in reader.execute("SELECT value FROM meta WHERE key >= ? AND key < ?", TABLE_KEYS):
            start = 4  # behind the checksum
            while start < len(value):
                yield value[start + 1 : start + 1 + value[start]]
                start += 1 + value[start]


def strings_in(path: Path) -> Iterator[tuple[str, str]]:
    """The terms and the values of columns in the index beside a database, each with what it is."""
    directory = IndexDirectory(path.parent / INDEX)
    covered = directory.covers()
    if covered is None:
        return
    saved = IndexDirectory(path.parent / INDEX, owner=covered[0]).load()
    for what, strings in (("term", saved.terms), ("weight", saved.weight_terms), ("entity", saved.entity_terms)):
        yield from ((what, string) for string in strings)
    for column, strings in saved.categories.items():
        yield from ((column, string) for string in strings)
