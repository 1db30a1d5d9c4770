"""Vectors and learned weights in the index's files and in the records' store: what is written, damage, migration."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders
from support.vector_cases import D, bits, own, segments_of, weights

import fanrank as fr
from fanrank.engine.records.record import Record
from fanrank.engine.storage import index_files as files
from fanrank.engine.storage.record_store import Change, RecordStore
from fanrank.engine.storage.row_codec import RECORDS, encode
from fanrank.engine.storage.sqlite import _MIGRATION
from fanrank.engine.vectors.vectors import unit_rows

# Files.


def some_engine(**options: Any) -> fr.Engine:
    engine = fr.Engine(**options)
    engine.add([Record("a", "a b", session="s", time=1.0), Record("b", "b")])
    engine.add([Record("c", "a", "n")])
    return engine


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / files.MANIFEST).read_text(encoding="utf-8"))
    return found


BEFORE = {
    "shapes", "terms", "offsets", "documents", "kinds", "kind_frequencies", "kind_lengths", "lengths", "id_hashes",
    "id_order", "category_session", "number_time", "ids_block", "ids_offsets",
}  # fmt: skip


def test_an_index_without_vectors_is_what_it_was(tmp_path: Path) -> None:
    some_engine().save(tmp_path / "plain")
    found = manifest(tmp_path / "plain")
    assert found["version"] == 2
    assert "encoder" not in found["settings"]
    assert set(found["lengths"]) == {
        "vocabulary",
        *(f"values_{name}" for name in some_engine().index.memory.schema.categories),
    }
    assert [set(part["arrays"]) for part in found["parts"]] == [BEFORE]
    assert found["parts"][0]["arrays"]["shapes"]["shape"] == [2, 4]
    assert fr.Engine.load(tmp_path / "plain").stats()["vectors"] == 0


@pytest.mark.parametrize("what", ["vectors", "weights", "encoder"])
def test_an_index_with_more_is_of_its_own_version(what: str, tmp_path: Path) -> None:
    """So that a fanrank that knows of none of it refuses it, rather than leave it out."""
    engine = some_engine(encoder=None if what == "weights" else own())
    if what == "vectors":
        engine.add([Record("v", "a", embedding=np.ones(D))])
    elif what == "weights":
        engine.add([Record("v", "a", weights={"x": 1})])
    engine.save(tmp_path / "saved")
    found = manifest(tmp_path / "saved")
    assert found["version"] == files.EVIDENCE_VERSION == 3
    more = {name for part in found["parts"] for name in part["arrays"]} - BEFORE
    assert (
        more
        == {
            "vectors": {"vectors", "vector_offsets"},
            "weights": {f"learned_{name}" for name in BEFORE if name in segment_arrays()},
            "encoder": set(),
        }[what]
    )
    assert found["lengths"].get("weight_terms") == (1 if what == "weights" else None)
    loaded = fr.Engine.load(tmp_path / "saved")
    assert bits(loaded) == bits(engine)
    assert weights(loaded) == weights(engine)
    assert loaded.pin == engine.pin


def segment_arrays() -> set[str]:
    return {"shapes", "terms", "offsets", "documents", "kinds", "kind_frequencies", "kind_lengths"}


def base_of(array: Any) -> Any:
    while isinstance(array, np.ndarray) and array.base is not None and not isinstance(array, np.memmap):
        array = array.base
    return array


def test_vectors_are_mapped_and_checked(tmp_path: Path) -> None:
    engine = fr.Engine(encoder=own())
    engine.add([Record(f"r{n}", "a", embedding=np.eye(D)[n], weights={"x": 1}) for n in range(4)])
    engine.save(tmp_path / "saved")
    loaded = fr.Engine.load(tmp_path / "saved")
    (part,) = segments_of(loaded)
    assert part.vectors is not None
    assert part.learned is not None
    for array in (part.vectors.matrix, part.vectors.offsets, part.learned.documents, part.learned.terms):
        assert isinstance(base_of(array), np.memmap)
    for pattern in ("part_vectors.*", "part_vector_offsets.*", "part_learned_kinds.*", "strings_weight_terms_block.*"):
        (file,) = (tmp_path / "saved").glob(pattern)
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(fr.errors.DamagedIndexError, match="altered since it was written"):
            fr.Engine.load(tmp_path / "saved")
        file.write_bytes(content)
    whole = manifest(tmp_path / "saved")
    for name in ("vectors", "vector_offsets", *(f"learned_{name}" for name in segment_arrays())):
        changed = json.loads(json.dumps(whole))
        del changed["parts"][0]["arrays"][name]
        changed["checksum"] = files._manifest_checksum(changed)
        (tmp_path / "saved" / files.MANIFEST).write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(fr.errors.DamagedIndexError):
            fr.Engine.load(tmp_path / "saved")


def test_a_checkpoint_writes_only_the_new_vectors(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, encoder=own()) as engine:
        engine.add([Record(f"r{n}", "a", embedding=np.eye(D)[n % D] + n, weights={"x": 1}) for n in range(40)])
        engine.flush()
        before = {file.name for file in (tmp_path / "index").glob("part_vectors.*")}
        engine.add([Record("new", "a", embedding=np.ones(D), weights={"y": 1})])
        engine.flush()
        after = {file.name for file in (tmp_path / "index").glob("part_vectors.*")}
        assert before < after
        wanted = bits(engine), weights(engine)
    with fr.Engine.open(tmp_path) as engine:
        assert engine.opened == "loaded"
        assert (bits(engine), weights(engine)) == wanted


# The store.


def written(path: Path) -> None:
    with RecordStore.open(path) as made:
        records = [
            Record("m0", "tea", embedding=[[3, 4], [1, 0]], passages=["a", "b"], weights={"x": 0.5}),
            Record("m1", "prefers tea", embedding=[1, 1]),
            Record("m2", "coffee"),
            Record("m3", "tea", embedding=[1, 1]),
        ]
        made.write([[Change("", added=[encode(record) for record in records])]])


def altered(path: Path, *statements: str) -> None:
    raw = sqlite3.connect(path / RECORDS)
    for statement in statements:
        raw.execute(statement)
    raw.commit()
    raw.close()


@pytest.mark.parametrize(
    "change",
    [
        "vectors = NULL WHERE id = 'm1'",
        "vectors = X'' WHERE id = 'm1'",
        "vectors = X'00000000' WHERE id = 'm1'",
        "vectors = 7 WHERE id = 'm1'",
        "vectors = CAST('words' AS TEXT) WHERE id = 'm1'",
        "vectors = substr(vectors, 1, 6) WHERE id = 'm1'",
        "vectors = CAST(vectors || X'3c00' AS BLOB) WHERE id = 'm1'",
        "vectors = (SELECT vectors FROM records WHERE id = 'm3') WHERE id = 'm1'",
        "vectors = (SELECT vectors FROM records WHERE id = 'm0') WHERE id = 'm1'",
        "data = replace(data, '\"rows\":1', '\"rows\":2') WHERE id = 'm1'",
        "data = replace(data, ',\"rows\":1', '') WHERE id = 'm1'",
        "data = replace(data, '0.5', '0.6') WHERE id = 'm0'",
        "vectors = X'' WHERE id = 'm2'",
        "vectors = (SELECT vectors FROM records WHERE id = 'm1') WHERE id = 'm2'",
    ],
)
def test_a_damaged_vector_is_named(change: str, tmp_path: Path) -> None:
    written(tmp_path)
    altered(tmp_path, f"UPDATE records SET {change}")
    name = change[-3:-1]
    with RecordStore.open(tmp_path) as made:
        for use in (lambda: made.fetch("", [name]), lambda: list(made.changes_after(0))):
            with pytest.raises(
                fr.errors.DamagedStoreError, match=f"id '{name}' w.* altered.*restore the file from a copy"
            ):
                use()
        others = [other for other in ("m0", "m1", "m2", "m3") if other != name]
        assert None not in made.fetch("", others)
        if "data" not in change:
            # What looks for words reads no vectors.
            assert [hit for hit, _ in made.keyword_scan("", ["tea"], 9)] == ["m3", "m1", "m0"]


def test_one_flipped_bit_of_a_vector(tmp_path: Path) -> None:
    written(tmp_path)
    raw = sqlite3.connect(tmp_path / RECORDS)
    (content,) = raw.execute("SELECT vectors FROM records WHERE id = 'm1'").fetchone()
    assert content[4:] == unit_rows([1, 1]).tobytes()
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        raw.execute("UPDATE records SET vectors = ? WHERE id = 'm1'", (bytes(flipped),))
        raw.commit()
        with (
            RecordStore.open(tmp_path, read_only=True) as made,
            pytest.raises(fr.errors.DamagedStoreError, match="the vectors of the record with id 'm1' were altered"),
        ):
            made.fetch("", ["m1"])
    raw.close()


def test_damage_is_found_when_the_index_is_rebuilt(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, encoder=own()) as engine:
        engine.add([Record("m1", "a", embedding=np.ones(D))])
    altered(tmp_path, "UPDATE records SET vectors = NULL")
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(fr.errors.DamagedStoreError, match="'m1'"):
        fr.Engine.open(tmp_path)


def test_words_are_looked_for_without_the_vectors(tmp_path: Path) -> None:
    written(tmp_path)
    seen: list[Record] = []
    with RecordStore.open(tmp_path) as made:
        made.keyword_scan("", ["tea"], 9, lambda record: bool(seen.append(record)))
    assert [record.id for record in seen] == ["m3", "m1", "m0"]
    assert [record.embedding for record in seen] == [None] * 3
    assert seen[2].passages == ("a", "b")


OLD_SCHEMA = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE namespaces(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE records(sequence INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, id TEXT NOT NULL,"
    " checksum INTEGER NOT NULL, data TEXT NOT NULL)",
    "CREATE UNIQUE INDEX record_ids ON records(namespace, id)",
    "CREATE TABLE deletions(sequence INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, id TEXT)",
    "PRAGMA application_id=1717661298",
    "PRAGMA user_version=1",
    "PRAGMA journal_mode=WAL",
)


def old_store(path: Path, config: Mapping[str, Any] | None) -> None:
    """A directory as version 1 made it."""
    path.mkdir()
    raw = sqlite3.connect(path / RECORDS)
    for statement in OLD_SCHEMA:
        raw.execute(statement)
    raw.execute("INSERT INTO namespaces VALUES (1, 'n')")
    for sequence, (name, data) in enumerate([("a", '{"text":"old tea"}'), ("b", '{"text":"tea","role":"user"}')], 1):
        checksum = zlib.crc32(data.encode(), zlib.crc32(f"n\0{name}".encode()))
        raw.execute("INSERT INTO records VALUES (?, 1, ?, ?, ?)", (sequence, name, checksum, data))
    raw.execute("INSERT INTO deletions VALUES (3, 1, 'c')")
    if config is not None:
        value = json.dumps(config, separators=(",", ":"))
        rows_of_meta = ("config", value, "checksum", zlib.crc32(value.encode()))
        raw.execute("INSERT INTO meta VALUES (?, ?), (?, ?)", rows_of_meta)
    raw.commit()
    raw.close()


def version(path: Path) -> tuple[int, list[str]]:
    raw = sqlite3.connect(path / RECORDS)
    found = (
        raw.execute("PRAGMA user_version").fetchone()[0],
        [row[1] for row in raw.execute("PRAGMA table_info(records)")],
    )
    raw.close()
    return found


OLD = [Record("a", "old tea", "n"), Record("b", "tea", "n", role="user")]


def test_a_store_of_version_1(tmp_path: Path) -> None:
    old_store(tmp_path / "old", None)
    with RecordStore.open(tmp_path / "old", read_only=True) as reader:
        assert reader.fetch("n", ["b", "a", "c"]) == [OLD[1], OLD[0], None]
        assert [run.added for run in reader.changes_after(0)] == [OLD]
        assert reader.keyword_scan("n", ["old"], 5) == [("a", 1)]
        assert version(tmp_path / "old")[0] == 1
        with RecordStore.open(tmp_path / "old") as writer:
            assert version(tmp_path / "old") == (2, ["sequence", "namespace", "id", "checksum", "data", "vectors"])
            assert writer.sequence == 3
            new = Record("c", "new", "n", embedding=[3, 4])
            writer.write([[Change("n", added=[encode(new)])]])
            for made in (reader, writer):  # the reader, opened before, sees the column come
                *before, found = made.fetch("n", ["a", "b", "c"])
                assert before == OLD
                assert found is not None
                assert found.embedding.tobytes() == new.embedding.tobytes()
                assert [record.id for run in made.changes_after(0) for record in run.added] == ["a", "b", "c"]
    with RecordStore.open(tmp_path / "old") as again:
        assert again.fetch("n", ["a"]) == OLD[:1]


def test_a_migration_that_fails_leaves_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_store(tmp_path / "old", None)
    with monkeypatch.context() as patch:
        borders.shrink(patch, _MIGRATION=(*_MIGRATION, "CREATE TABLE records(sequence)"))
        with pytest.raises(fr.errors.StorageError):
            RecordStore.open(tmp_path / "old")
    assert version(tmp_path / "old") == (1, ["sequence", "namespace", "id", "checksum", "data"])
    with RecordStore.open(tmp_path / "old") as made:
        assert made.fetch("n", ["a"]) == OLD[:1]
