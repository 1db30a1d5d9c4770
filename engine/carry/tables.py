"""Records as a Parquet table: a column a field, one row group for some thousand records.

::

    id, text, namespace, role, ..., type    string
    time, importance, expires               double
    passages                                list<string>
    embedding                               list<float>: the rows one after another, as half precision fits in float
    embedding_rows                          int32: how many rows
    fields, extra, payload, weights,
    entities, relations                     string: JSON

A field that a record does not have is null. The key ``fanrank`` of the file's metadata is JSON: the version of this
layout, and the model of the embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import ModuleType
from typing import IO, Any

import numpy as np

from ..errors import MissingExtraError, NewerFormatError, RecordError
from ..records.record import CATEGORIES, NUMBERS, Record
from ..storage.row_codec import JSON
from .files import AnyFile, name_of, opened
from .rows import Carried, to_json

VERSION = 1
KEY = b"fanrank"
# Records, and numbers of their embeddings, after which a row group ends.
GROUP_RECORDS = 8_192
GROUP_NUMBERS = 1 << 23
# Records that are read at a time.
READ_RECORDS = 1_000

_STRINGS = ("id", "text", "namespace", *CATEGORIES)
_JSON = ("fields", "extra", "payload", "weights", "entities", "relations")
_EMBEDDING, _ROWS = "embedding", "embedding_rows"


def write_table(handle: IO[bytes], records: Iterable[Record], model: str | None) -> int:
    """Write the records; returns how many. Raises `MissingExtraError` where pyarrow is not installed."""
    pyarrow, parquet = _libraries()
    schema = _schema(pyarrow).with_metadata({KEY: JSON.encode({"version": VERSION, "model": model})})
    count = 0
    with parquet.ParquetWriter(handle, schema, compression="zstd") as writer:
        for group in _groups(records):
            writer.write_table(_table(pyarrow, schema, group), row_group_size=len(group))
            count += len(group)
    return count


def read_table(file: AnyFile) -> Iterator[Carried]:
    """The records of a table, some at a time. Columns that are no fields of a record go to `Record.extra`.

    Raises `RecordError` with file and row, `MissingExtraError`, `NewerFormatError`.
    """
    pyarrow, parquet = _libraries()
    name = name_of(file)
    with opened(file) as handle:
        number = 0
        try:
            table = parquet.ParquetFile(handle)
            described = _description(table.schema_arrow.metadata, name)
            for batch in table.iter_batches(READ_RECORDS):
                for row in batch.to_pylist():
                    number += 1
                    where = f"{name}:{number}"
                    try:
                        yield Carried(where, _record(row), described)
                    except RecordError as error:
                        raise error.at(where) from None
        except pyarrow.ArrowException as error:
            line = str(error).splitlines()[0][:200]
            raise RecordError(f"not a Parquet table that can be read: {line}", where=f"{name}:{number + 1}") from None


def _libraries() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "tables") from None
    return pyarrow, pyarrow.parquet


def _schema(pyarrow: Any) -> Any:
    return pyarrow.schema(
        [
            *((name, pyarrow.string()) for name in _STRINGS),
            *((name, pyarrow.float64()) for name in NUMBERS),
            ("passages", pyarrow.list_(pyarrow.string())),
            (_EMBEDDING, pyarrow.list_(pyarrow.float32())),
            (_ROWS, pyarrow.int32()),
            *((name, pyarrow.string()) for name in _JSON),
        ]
    )


def _groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    group: list[Record] = []
    numbers = 0
    for record in records:
        group.append(record)
        numbers += 0 if record.embedding is None else record.embedding.size
        if len(group) >= GROUP_RECORDS or numbers >= GROUP_NUMBERS:
            yield group
            group, numbers = [], 0
    if group:
        yield group


def _table(pyarrow: Any, schema: Any, records: list[Record]) -> Any:
    rows = [to_json(record, vectors=False) for record in records]
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in (*_STRINGS, *NUMBERS, "passages")}
    for name in _JSON:
        columns[name] = [JSON.encode(row[name]) if name in row else None for row in rows]
    embeddings = [record.embedding for record in records]
    held = [rows.reshape(-1) for rows in embeddings if rows is not None]
    values = np.concatenate(held).astype(np.float32) if held else np.zeros(0, dtype=np.float32)
    ends = np.cumsum([0 if rows is None else rows.size for rows in embeddings], dtype=np.int32)
    columns[_EMBEDDING] = pyarrow.ListArray.from_arrays(
        pyarrow.array(np.concatenate([np.zeros(1, dtype=np.int32), ends])),
        pyarrow.array(values),
        mask=pyarrow.array([rows is None for rows in embeddings]),
    )
    columns[_ROWS] = [None if rows is None else len(rows) for rows in embeddings]
    return pyarrow.table(columns, schema=schema)


def _description(metadata: Mapping[bytes, bytes] | None, name: str) -> str | None:
    """The model of the embeddings of an export; None for a table of another program."""
    if not metadata or KEY not in metadata:
        return None
    described = json.loads(metadata[KEY])
    if described["version"] > VERSION:
        raise NewerFormatError(
            f"{name}: exported in layout {described['version']}, and this fanrank reads up to {VERSION}; "
            "upgrade fanrank"
        )
    model: str | None = described["model"]
    return model


def _record(row: dict[str, Any]) -> Record:
    values = {name: value for name, value in row.items() if value is not None}
    known = values["id"] if isinstance(values.get("id"), str) else None
    for name in _JSON:
        if isinstance(values.get(name), str):
            try:
                values[name] = json.loads(values[name])
            except ValueError as error:
                raise RecordError(f"{name!r} is not JSON: {error}", record_id=known) from None
    for name in ("time", "expires"):
        if isinstance(values.get(name), datetime):
            values[name] = values[name].timestamp()
    rows = values.pop(_ROWS, None)
    if rows is not None and _EMBEDDING in values:
        try:
            values[_EMBEDDING] = np.array(values[_EMBEDDING], dtype=np.float32).reshape(rows, -1)
        except ValueError:
            raise RecordError(f"{_EMBEDDING!r} is not {rows} rows of one length", record_id=known) from None
    return Record.from_dict(values)
