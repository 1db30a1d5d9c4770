"""`Dataset`, which every loader returns, and the functions by which loaders read and check their files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DatasetError, RecordError
from ..records.query import Query
from ..records.record import Record

T = TypeVar("T")


@dataclass(frozen=True)
class Dataset:
    """Records, queries and judgements: ``relevant[query id][record id] = grade``. A grade of 1 or more is relevant.

    Query ids are unique over the whole set. A record id is unique in its namespace, and a query's judgements name
    records of the query's namespace. Every query has judgements, in the order of `queries`. Where the source has them,
    `categories` maps a query id to its question type, and `clusters` maps it to the unit that a cluster bootstrap
    resamples. `own` maps a query id to the record that is the query itself and must not count as found.
    """

    name: str
    records: list[Record]
    queries: list[Query]
    relevant: dict[str, dict[str, int]]
    categories: dict[str, str] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)

    def members(self) -> dict[str, list[str]]:
        """``{namespace: record ids}``, ids in document order."""
        ids: dict[str, list[str]] = {}
        for record in self.records:
            ids.setdefault(record.namespace, []).append(record.id)
        return ids


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
