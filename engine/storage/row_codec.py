"""Encodes a record as its row of ``records.sqlite``, and decodes it again; checksums cover all of it.

Rows lie there in about half the bytes: runs of up to eight bytes that are frequent in its rows become one each. A store
learns a table of runs from its own rows, and keeps it. A packed row is the number of its table and a byte for each run;
`_ESCAPE` stands before a byte that no run begins with. So each row is still read, and deleted, by itself.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import numpy as np

from ..errors import DamagedStoreError, RecordError
from ..index.columns import ORDER
from ..records.entities import Relation
from ..records.record import CATEGORIES, NUMBERS, Record
from ..settings import compiled_loops
from ..vectors.vectors import Halves

RECORDS = "records.sqlite"
JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

# The name in a record's JSON of how many rows its embedding has.
_ROWS = "rows"
# The numbers that stand before the payload; an expiry stands behind it.
_NUMBERS = tuple(name for name in NUMBERS if name != "expires")

PLAIN_VERSION, ENTITIES_VERSION, PAYLOAD_VERSION, JSON_VERSION, SYMBOLS_VERSION = 2, 3, 4, 5, 6
"""Formats of a store: since the second, records have vectors; since the third, entities and relations; since the
fourth, payloads and times of expiry; since the fifth, columns of JSON values and of payload keys; since the sixth, rows
in symbols. A store takes the format of the newest row or column that it ever held, so that versions of fanrank that do
not know the others can open it."""
VERSION = SYMBOLS_VERSION
ROWS = 1 << 10
"""Records that are encoded at a time, in about a millisecond."""
_HALF = np.dtype("<f2")
_CRC = struct.Struct("<I")


class EncodedRecord(NamedTuple):
    """A record as its row holds it.

    `data` is compact JSON of everything but id, namespace and embedding; its ``rows`` is the number of rows of the
    embedding. `vectors` is the embedding: first a little-endian CRC-32 of what follows, continued from `checksum`; then
    the rows in float16, little-endian. So reading a record without its vectors checks all that is read, and rows that
    are missing, altered or of another record are detected.
    """

    id: str
    checksum: int
    """CRC-32 over namespace, id and `data`."""
    data: str
    vectors: bytes | None = None
    version: int = PLAIN_VERSION
    """The first format of a store that can hold the row."""


def encode(record: Record, order: int | None = None) -> EncodedRecord:
    """The record as it is stored. `decode` gives an equal record back, with `order` in its `extra`, if one is given.

    Its time and importance come back as float64, its embedding with the same bits. Raises `RecordError` for text that
    is not Unicode, and for an `extra` or a `payload` that JSON would refuse or alter.
    """
    parts = [f'{{"text":{encode_basestring(record.text)}']
    for name in CATEGORIES:
        value = getattr(record, name)
        if value is not None:
            parts.append(f',"{name}":{encode_basestring(value)}')
    for name in _NUMBERS:
        value = getattr(record, name)
        if value is not None:
            parts.append(f',"{name}":{float(value)!r}')
    if record.fields:
        parts.append(f',"fields":{JSON.encode(dict(record.fields))}')
    if extra := record.extra if order is None else {**record.extra, ORDER: order}:
        parts.append(f',"extra":{_encode_object(record, "extra", extra)}')
    if record.payload is not None:
        parts.append(f',"payload":{_encode_object(record, "payload", record.payload)}')
    if record.expires is not None:
        parts.append(f',"expires":{float(record.expires)!r}')
    if record.passages is not None:
        parts.append(f',"passages":{JSON.encode(record.passages)}')
    if record.weights is not None:
        parts.append(f',"weights":{JSON.encode(dict(record.weights.items()))}')
    if record.entities is not None:
        parts.append(f',"entities":{JSON.encode(record.entities)}')
    if record.relations is not None:
        parts.append(f',"relations":{JSON.encode([Relation.of(relation).to_dict() for relation in record.relations])}')
    if record.embedding is not None:
        parts.append(f',"{_ROWS}":{len(record.embedding)}')
    parts.append("}")
    data = "".join(parts)
    try:
        checksum = _checksum(record.namespace, record.id, data.encode())
        vectors = None if record.embedding is None else _encode_rows(record.embedding, checksum)
        return EncodedRecord(record.id, checksum, data, vectors, _version_of(record))
    except UnicodeEncodeError:
        raise _surrogate_error(record) from None


def encode_all(records: Sequence[Record], orders: Sequence[int] | None = None) -> list[EncodedRecord]:
    """`encode` of each record, by compiled loops where there are some."""
    if (loops := compiled_loops()) is None:
        return list(map(encode, records) if orders is None else map(encode, records, orders))
    rows: list[EncodedRecord] = []
    # Between two calls other threads may run.
    for start in range(0, len(records), ROWS):
        part = list(records[start : start + ROWS])
        own = None if orders is None else list(orders[start : start + ROWS])
        formats = PLAIN_VERSION, PAYLOAD_VERSION
        rows += loops.encode_rows(part, encode, EncodedRecord, *formats, own, CATEGORIES, _NUMBERS)
    return rows


def _version_of(record: Record) -> int:
    if record.payload is not None or record.expires is not None:
        return PAYLOAD_VERSION
    if record.entities is not None or record.relations is not None:
        return ENTITIES_VERSION
    return PLAIN_VERSION


def check_objects(record: Record, *names: str) -> None:
    """Raise `RecordError`, as `encode`, for these objects of a record that is not stored: `extra` or `payload`."""
    for name in names:
        value = getattr(record, name)
        if not value:
            continue
        try:
            _encode_object(record, name, value).encode()
        except UnicodeEncodeError:
            raise _surrogate_error(record) from None


def _surrogate_error(record: Record) -> RecordError:
    return RecordError(
        "'text', 'passages', 'fields', 'extra' or 'payload' holds a lone surrogate, which no file can store; "
        "repair it with value.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')",
        record_id=record.id,
    )


def _encode_object(record: Record, name: str, value: Mapping[str, Any]) -> str:
    held = dict(value)
    try:
        if (plain := _encode_plain(held)) is not None:
            return plain
        encoded = JSON.encode(held)
        same = json.loads(encoded) == held
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{name!r} cannot be stored as JSON: {error}", record_id=record.id) from None
    if not same:
        raise RecordError(
            f"{name!r} cannot be stored as JSON: it would come back changed; use strings as keys, and lists, not "
            "tuples",
            record_id=record.id,
        )
    return encoded


def _encode_plain(held: Mapping[str, Any]) -> str | None:
    """An object of strings and integers alone, which JSON gives back as it was; None for any other.

    The number that a shard adds to each record makes it so: 1 us in place of 18.
    """
    parts: list[str] = []
    for key, value in held.items():
        if type(key) is not str or type(value) not in (int, str):
            return None
        parts.append(f"{encode_basestring(key)}:{value if type(value) is int else encode_basestring(value)}")
    return f"{{{','.join(parts)}}}"


def _encode_rows(rows: Halves, checksum: int) -> bytes:
    values = rows.astype(_HALF, copy=False).tobytes()
    return _CRC.pack(zlib.crc32(values, checksum)) + values


def _decode_rows(vectors: object, checksum: int, rows: object) -> Halves | None:
    """The rows that `_encode_rows` was given; None if the bytes are not what it returned."""
    if not isinstance(vectors, bytes) or not isinstance(rows, int) or len(vectors) < _CRC.size:
        return None
    if zlib.crc32(memoryview(vectors)[_CRC.size :], checksum) != _CRC.unpack_from(vectors)[0]:
        return None
    return np.frombuffer(vectors, _HALF, offset=_CRC.size).astype(np.float16, copy=False).reshape(rows, -1)


def _checksum(namespace: str, record_id: str, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(f"{namespace}\0{record_id}".encode()))


def decode(namespace: str, encoded: EncodedRecord) -> Record:
    """The record that `encode` was given. Raises `DamagedStoreError` if the checksum differs."""
    return decode_row(namespace, encoded.id.encode(), encoded.checksum, encoded.data.encode(), encoded.vectors)


def decode_row(namespace: str, record_id: bytes, checksum: int, data: bytes, vectors: bytes | None) -> Record:
    """As `decode`, for a row as SQLite returns it, with strings as bytes."""
    record, rows = decode_data(namespace, record_id, checksum, data)
    if rows is None and vectors is None:
        return record
    embedding = _decode_rows(vectors, checksum, rows)
    if embedding is None:
        raise _altered_error(f"the vectors of the record with id {record.id!r} were altered since they were written")
    return record.with_rows(embedding)


def decode_data(namespace: str, record_id: bytes, checksum: int, data: bytes) -> tuple[Record, int | None]:
    """(the record without its embedding, the number of rows of the embedding)."""
    # In a damaged row, a column may even have another type.
    name = name_of(record_id) if isinstance(record_id, bytes) else repr(record_id)
    if not isinstance(data, bytes) or _checksum(namespace, name, data) != checksum:
        raise _altered_error(f"the record with id {name!r} was altered since it was written")
    values = json.loads(data)
    rows = values.pop(_ROWS, None)
    return Record(id=name, namespace=namespace, **values), rows


def _altered_error(what: str) -> DamagedStoreError:
    return DamagedStoreError(
        f"{RECORDS}: {what} (checksum differs); restore the file from a copy, as records cannot be rebuilt"
    )


def name_of(stored: object) -> str:
    """The string in a column; bytes that are no UTF-8, after damage, are replaced. Raises `DamagedStoreError`."""
    if not isinstance(stored, bytes):
        raise _altered_error(f"a name was altered since it was written: it is {stored!r}")
    return stored.decode(errors="replace")


def with_checksum(text: str) -> str:
    """The text after eight digits of its CRC-32."""
    return f"{zlib.crc32(text.encode()):08x}{text}"


def without_checksum(stored: object) -> str | None:
    """The text that `with_checksum` was given, of its bytes; None if they were altered."""
    if not isinstance(stored, bytes) or stored[:8] != b"%08x" % zlib.crc32(stored[8:]):
        return None
    return stored[8:].decode()


# A store has a table from so many changes on, and another one whenever it has grown tenfold: its records may be others.
LEARN_ROWS = 1000
# Characters of rows that a table is learned from, about, and the most of one row.
SAMPLE, SAMPLE_ROW = 1 << 15, 1 << 11
# The rows of `meta` that hold the tables; the number follows.
TABLES = "symbols/"
TABLE_KEYS = TABLES, "symbols0"

UNPACKED = "CASE typeof(data) WHEN 'blob' THEN unpacked(data) ELSE data END"
"""The SQL for a row's `data` as it was before it was packed."""

_ESCAPE = b"\xff"


class Symbols:
    """One table. Without compiled loops it unpacks rows and leaves new ones as they are."""

    def __init__(self, number: int, runs: bytes) -> None:
        """`runs` are a byte with the length of each, and then the run."""
        self._runs: list[bytes] = []
        start = 0
        while start < len(runs):
            end = start + 1 + runs[start]
            self._runs.append(runs[start + 1 : end])
            start = end
        loops = compiled_loops()
        self._compiled = None if loops is None else loops.symbols(number, runs)

    def pack(self, rows: list[str]) -> Sequence[str | bytes]:
        """Each row in bytes, or as it is where that is not shorter."""
        return rows if self._compiled is None else self._compiled.pack(rows)

    def unpack(self, data: bytes) -> bytes:
        """The row in UTF-8. Raises `ValueError` or `IndexError` for what `pack` did not make."""
        if self._compiled is not None:
            return bytes(self._compiled.unpack(data))
        first, *others = data[1:].split(_ESCAPE)
        parts = [self._runs[code] for code in first]
        for piece in others:
            parts.append(piece[:1])
            parts += [self._runs[code] for code in piece[1:]]
        return b"".join(parts)


def learned(rows: Sequence[str]) -> bytes | None:
    """The runs of a table for rows like these; None without compiled loops."""
    loops = compiled_loops()
    if loops is None:
        return None
    step = max(1, sum(min(len(row), SAMPLE_ROW) for row in rows) // SAMPLE)
    return bytes(loops.learn_symbols([row[:SAMPLE_ROW] for row in rows[::step]]))


def stored(runs: bytes) -> bytes:
    """The runs as a row of `meta` holds them."""
    return zlib.crc32(runs).to_bytes(4, "little") + runs


def table_of(connection: sqlite3.Connection, number: int) -> Symbols | None:
    """The table of this number; None where it is missing or was altered."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (f"{TABLES}{number}",)).fetchone()
    if row is None or not isinstance(row[0], bytes) or stored(row[0][4:]) != row[0]:
        return None
    return Symbols(number, row[0][4:])


def teach(connection: sqlite3.Connection) -> None:
    """Make a connection know `UNPACKED`. Rows that cannot be unpacked stay as they are, and fail their checksums."""
    tables: dict[int, Symbols | None] = {}

    def unpacked(data: Any) -> Any:
        if not data:
            return data
        number = data[0]
        if tables.get(number) is None:
            tables[number] = table_of(connection, number)
        table = tables[number]
        try:
            return data if table is None else table.unpack(data)
        except (ValueError, IndexError):
            return data

    connection.create_function("unpacked", 1, unpacked, deterministic=True)
