"""What records say of entities lives and dies with them: equal to the plain list of live records by every path."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fanrank.engine.records.entities import Relation
from fanrank.engine.records.record import Record
from fanrank.engine.storage.record_store import Change, RecordStore
from fanrank.engine.storage.row_codec import ENTITIES_VERSION, PLAIN_VERSION, RECORDS, encode

EDGE = Relation("ana", "ben", "knows", valid_to=9.0)


def user_version(path: Path) -> int:
    raw = sqlite3.connect(path / RECORDS)
    (found,) = raw.execute("PRAGMA user_version").fetchone()
    raw.close()
    return int(found)


def put(to: RecordStore, *records: Record) -> None:
    to.write([[Change("", added=[encode(record) for record in records])]])


@pytest.mark.parametrize("parts", [{"entities": ["ana"]}, {"relations": [EDGE]}, {"entities": {}}, {"relations": ()}])
def test_only_a_store_with_entities_is_of_their_version(parts: dict[str, Any], tmp_path: Path) -> None:
    with RecordStore.open(tmp_path) as made:
        put(made, Record("a", "a", weights={"x": 1.0}, passages=["p"]))
        assert user_version(tmp_path) == PLAIN_VERSION == 2
    with RecordStore.open(tmp_path) as made:
        assert user_version(tmp_path) == 2
        put(made, Record("b", "b"), Record("c", "c", **parts))
        assert user_version(tmp_path) == ENTITIES_VERSION == 3
        put(made, Record("d", "d"))
        with RecordStore.open(tmp_path, read_only=True) as reader:
            assert reader.fetch("", ["c", "d"]) == [Record("c", "c", **parts), Record("d", "d")]
    with RecordStore.open(tmp_path) as made:
        assert user_version(tmp_path) == 3
        put(made, Record("e", "e", entities=["ana"]))
