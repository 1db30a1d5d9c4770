"""`Dataset`, which every loader returns, and the functions by which loaders read and check their files."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..errors import DatasetError, RecordError
from ..index.neighbours import USER
from ..records.query import Query
from ..records.record import Record

T = TypeVar("T")

Unit = Literal["session", "turn", "exchange"]
"""What a hit is, of conversations."""


class RecordStream(Collection[Record]):
    """Records that are read from their file each time they are iterated, so that no pass holds more than one.

    `read` opens the source anew and yields its records. `size` is their number. All are in the namespace ``""``.
    """

    def __init__(self, read: Callable[[], Iterator[Record]], size: int) -> None:
        self._read = read
        self._size = size

    def __iter__(self) -> Iterator[Record]:
        return self._read()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, value: object) -> bool:
        return any(record == value for record in self)


@dataclass(frozen=True)
class Dataset:
    """Records, queries and judgements: ``relevant[query id][record id] = grade``. A grade of 1 or more is relevant.

    Query ids are unique over the whole set. A record id is unique in its namespace, and a query's judgements name
    records of the query's namespace. Every query has judgements, in the order of `queries`. `records` is a list, or
    reads a large corpus anew each time it is iterated.

    Where the source has them, `categories` maps a query id to its question type, `clusters` maps it to the unit that a
    cluster bootstrap resamples, and `answers` maps it to the gold answer. `own` maps a query id to the record that is
    the query itself and must not count as found. `unanswerable` holds the ids of abstention questions, whose right
    answer is that the records do not tell.
    """

    name: str
    records: Collection[Record]
    queries: list[Query]
    relevant: dict[str, dict[str, int]]
    categories: dict[str, str] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    unanswerable: frozenset[str] = frozenset()

    def members(self) -> dict[str, list[str]]:
        """``{namespace: record ids}``, ids in document order."""
        ids: dict[str, list[str]] = {}
        for record in self.records:
            ids.setdefault(record.namespace, []).append(record.id)
        return ids

    def sizes(self) -> dict[str, int]:
        """``{namespace: number of records}``. A stream is not read for it."""
        if isinstance(self.records, RecordStream):
            return {"": len(self.records)}
        return dict(Counter(record.namespace for record in self.records))


def by_exchange(dataset: Dataset) -> Dataset:
    """The dataset with exchanges as hits: a user's turn and what answers it (`Query.unit`).

    A hit counts by the id of the first record of its exchange, and one that holds a gold record is gold. Gold answers
    are left out: they are looked for in records.
    """
    first: dict[tuple[str, str], str] = {}
    open_in: dict[tuple[str, str | None], tuple[str | None, str | None]] = {}
    for record in dataset.records:
        asked, before = open_in.get((record.namespace, record.session), (None, None))
        if record.role == USER and before != USER:
            asked = record.id
        first[record.namespace, record.id] = record.id if asked is None or record.session is None else asked
        open_in[record.namespace, record.session] = asked, record.role
    relevant = {
        str(query.id): {first[query.namespace, name]: grade for name, grade in dataset.relevant[str(query.id)].items()}
        for query in dataset.queries
    }
    queries = [replace(query, unit="exchange") for query in dataset.queries]
    return replace(dataset, queries=queries, relevant=relevant, answers={}, unanswerable=frozenset())


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value of a whole JSON file. Raises `DatasetError`, naming the file and the line that is not JSON."""
    path = Path(path)
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise DatasetError(f"{path}: not usable JSON: nested too deeply") from None


_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}


def expect(value: Any, kind: type[T], where: str) -> T:
    """Return `value` if it has this type. Otherwise raise `DatasetError`, naming the place."""
    if not isinstance(value, kind):
        actual = _NAMES.get(type(value), type(value).__name__)
        raise DatasetError(f"{where}: must be {_NAMES.get(kind, kind.__name__)}, not {actual}")
    return value


def member(mapping: Mapping[str, Any], name: str, kind: type[T], where: str) -> T:
    """Return ``mapping[name]`` if it exists and has this type. Otherwise raise `DatasetError`, naming the place."""
    if name not in mapping:
        raise DatasetError(f"{where}: {name!r} is missing")
    return expect(mapping[name], kind, f"{where}: {name!r}")


def build_at(where: str, build: Callable[..., T], /, **values: Any) -> T:
    """Return ``build(**values)``. If it raises a `RecordError`, the place is added to the error."""
    try:
        return build(**values)
    except RecordError as error:
        raise RecordError(str(error), where=where) from None
