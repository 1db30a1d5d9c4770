"""What every loader returns, and how the loaders read their files and name what is wrong with them."""

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
    """Records, queries and judgements: ``relevant[query id][record id] = grade``, grade 1 or more is relevant.

    Query ids are unique over the whole set. A record id is unique in its namespace; a query's judgements speak of its
    own namespace. Every query has judgements, in the order of `queries`. `categories` and `clusters` map a query id
    to its question type and to the unit that a cluster bootstrap resamples, where the source has them. `own` maps a
    query id to the record that is the query itself and must not count as found.
    """

    name: str
    records: list[Record]
    queries: list[Query]
    relevant: dict[str, dict[str, int]]
    categories: dict[str, str] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)

    def members(self) -> dict[str, list[str]]:
        """``{namespace: record ids}``, the ids in document order."""
        found: dict[str, list[str]] = {}
        for record in self.records:
            found.setdefault(record.namespace, []).append(record.id)
        return found


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value of a whole JSON file. Raises `DatasetError` naming the file, and the line where JSON breaks off."""
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
    """`value`, if it is of this type; otherwise `DatasetError` naming the place."""
    if not isinstance(value, kind):
        found = _NAMES.get(type(value), type(value).__name__)
        raise DatasetError(f"{where}: must be {_NAMES.get(kind, kind.__name__)}, not {found}")
    return value


def member(mapping: Mapping[str, Any], name: str, kind: type[T], where: str) -> T:
    """``mapping[name]``, if it is there and of this type; otherwise `DatasetError` naming the place."""
    if name not in mapping:
        raise DatasetError(f"{where}: {name!r} is missing")
    return expect(mapping[name], kind, f"{where}: {name!r}")


def build_at(where: str, build: Callable[..., T], /, **values: Any) -> T:
    """``build(**values)``; a `RecordError` that it raises gets the place."""
    try:
        return build(**values)
    except RecordError as error:
        raise RecordError(str(error), where=where) from None
