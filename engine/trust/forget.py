"""Deletes records, and certifies that no file of the memory holds what they said; names the copies that may."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from ..callers import CHOSEN
from ..encoders.cache import CachedEncoder
from ..errors import FanrankError
from ..index.build import texts_of
from ..records.hits import Hits
from ..records.query import Query
from ..records.record import Record
from ..storage.index_files import MANIFEST
from ..storage.row_codec import RECORDS
from ..storage.sqlite import named, open_reader
from ..text.analyzers import Analyzer
from .copies import COPIES, copies_of
from .leftovers import Needles, add_rows, files_in, held_by_records, stores_in, strings_in, symbols_in

NAMED = 100
"""Files, words and records that an answer names; it counts the others."""


class Forgetting(Protocol):
    """What is asked of the memory."""

    def search(self, queries: Sequence[Query], k: int) -> Hits: ...

    def count(self, filter: Any, *, namespace: str | None) -> int: ...

    def delete(self, ids: Iterable[str], *, namespace: str, missing_ok: bool) -> int: ...

    def vacuum(self) -> int: ...

    @property
    def namespaces(self) -> tuple[str, ...]: ...


def forget(
    memory: Forgetting,
    records: Sequence[Record],
    folders: Sequence[Path],
    analyzer: Analyzer,
    fields: Sequence[str],
    encoder: object,
) -> dict[str, Any]:
    """Delete these records for good, and say what was searched for what they said, and what was found."""
    needles, ids = Needles(), dict[str, list[str]]()
    for record in records:
        needles.add_record(record)
        ids.setdefault(record.namespace, []).append(record.id)
    add_rows(needles, folders, ids)
    deleted = sum(memory.delete(own, namespace=name, missing_ok=True) for name, own in ids.items())
    CHOSEN.get()(record.id for record in records)
    caches = [encoder] if isinstance(encoder, CachedEncoder) else []
    for cache in caches:
        cache.forget([text for record in records for text in (record.text, *(record.passages or ()))])
    memory.vacuum()
    own = "\n".join(text for record in records for text in (record.text, str(record.extra), str(record.payload)))
    for path in stores_in(folders):
        for run in symbols_in(path):
            if run in own.encode("utf-8", "surrogatepass"):
                needles.add(run)
    excused = held_by_records(needles, folders) | needles.inside(b"\n".join(_own_words(folders)))
    searched = [path for path in files_in([*folders, *[cache.path for cache in caches]]) if path.name != COPIES]
    found = {path: needles.in_file(path) - excused for path in searched}
    left = [{"file": str(path), "pieces": len(pieces)} for path, pieces in found.items() if pieces]
    strings = [*_strings_left(memory, records, folders, analyzer, fields)]
    copies = [_look_at(copy, needles, excused) for copy in copies_of(folders)]
    return {
        "forgotten": deleted,
        "ids": [record.id for record in records[:NAMED]],
        "files": len(searched),
        "bytes": sum(path.stat().st_size for path in searched if path.exists()),
        "pieces": len(needles.pieces),
        "shared": len(needles.pieces & excused),
        "left": left[:NAMED],
        "strings": strings[:NAMED],
        "passed": not left and not strings,
        "copies": copies,
        "unreached": _unreached(copies, folders),
    }


def _own_words(folders: Sequence[Path]) -> Iterator[bytes]:
    """The words of fanrank's own in these files: the names of tables and columns, parameters and manifests."""
    for path in files_in(folders):
        if path.name == MANIFEST:
            yield path.read_bytes()
        if path.suffix == Path(RECORDS).suffix:
            with named(path), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
                yield from (str(sql).encode() for (sql,) in reader.execute("SELECT sql FROM sqlite_master"))
        if path.name == RECORDS:
            with named(path), closing(open_reader(path)) as reader:
                yield from (bytes(value) for (value,) in reader.execute("SELECT value FROM meta WHERE key = 'config'"))


def _strings_left(
    memory: Forgetting, records: Sequence[Record], folders: Sequence[Path], analyzer: Analyzer, fields: Sequence[str]
) -> Iterator[dict[str, str]]:
    """The terms and values of columns that an index still lists, and that no live record has."""
    terms = {term for name in fields for text in texts_of(records, name) for term in analyzer(text)}
    held = {(what, string) for path in stores_in(folders) for what, string in strings_in(path)}
    asked = sorted(string for what, string in held if what == "term" and string in terms)
    names = memory.namespaces
    queries = [Query(terms=[term], namespaces=names) for term in asked] if names else []
    alive = {query.terms for query, count in zip(queries, memory.search(queries, 1).counts, strict=True) if count}
    yield from ({"kind": "term", "string": term} for term in asked if (term,) not in alive)
    for column in sorted({what for what, _ in held} - {"term", "weight", "entity"}):
        values = {getattr(one, column, None) or one.extra.get(column) for one in records}
        for value in sorted(value for value in values if isinstance(value, str)):
            if (column, value) in held and not memory.count({column: value}, namespace=None):
                yield {"kind": column, "string": value}


def _look_at(copy: Mapping[str, Any], needles: Needles, excused: set[bytes]) -> dict[str, Any]:
    """What is known of a copy: whether it is still there, and holds what was forgotten."""
    path = Path(copy["path"])
    if not path.exists():
        return {**copy, "holds": False}
    try:
        pieces = held_by_records(needles, [path])
        for file in files_in([path]):
            pieces |= needles.in_file(file)
    except (FanrankError, OSError):
        return {**copy, "holds": None}
    # What is packed shows nothing.
    unread = path.suffix in (".gz", ".parquet")
    return {**copy, "holds": True if pieces - excused else None if unread else False}


def _unreached(copies: Sequence[Mapping[str, Any]], folders: Sequence[Path]) -> list[str]:
    """What no search of these files can tell."""
    unreached = [f"{copy['kind']} at {copy['path']}" for copy in copies if copy["holds"] is not False]
    if not all(folder.exists() for folder in folders):
        unreached.append("directories of shards on other machines")
    unreached.append("copies that others made of the files, and what other processes have in memory until they refresh")
    return unreached
