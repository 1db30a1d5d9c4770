"""Vectors and learned weights in the index's files and in the records' store: what is written, damage, migration."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.entity_cases import stated
from support.vector_cases import D, bits, own, weights

import fanrank as fr
from fanrank.engine.records.record import Record
from fanrank.engine.storage import index_files as files
from fanrank.engine.storage.record_store import Change, RecordStore
from fanrank.engine.storage.row_codec import RECORDS, encode

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


@pytest.mark.parametrize("what", ["vectors", "weights", "encoder", "entities"])
def test_an_index_with_more_is_of_its_own_version(what: str, tmp_path: Path) -> None:
    """So that a fanrank that knows of none of it refuses it, rather than leave it out."""
    engine = some_engine(encoder=None if what in ("weights", "entities") else own())
    if what == "vectors":
        engine.add([Record("v", "a", embedding=np.ones(D))])
    elif what == "weights":
        engine.add([Record("v", "a", weights={"x": 1})])
    elif what == "entities":
        engine.add([Record("v", "a", entities=["ana"])])
    engine.save(tmp_path / "saved")
    found = manifest(tmp_path / "saved")
    assert (files.EVIDENCE_VERSION, files.ENTITIES_VERSION) == (3, 4)
    assert found["version"] == (4 if what == "entities" else 3)
    more = {name for part in found["parts"] for name in part["arrays"]} - BEFORE
    assert (
        more
        == {
            "vectors": {"vectors", "vector_offsets"},
            "weights": {f"learned_{name}" for name in BEFORE if name in segment_arrays()},
            "encoder": set(),
            "entities": {f"entities_{name}" for name in segment_arrays()},
        }[what]
    )
    assert found["lengths"].get("weight_terms") == (1 if what == "weights" else None)
    assert ("entity_terms" in found["lengths"]) == (what == "entities")
    loaded = fr.Engine.load(tmp_path / "saved")
    assert bits(loaded) == bits(engine)
    assert weights(loaded) == weights(engine)
    assert stated(loaded) == stated(engine)
    assert loaded.pin == engine.pin


def segment_arrays() -> set[str]:
    return {"shapes", "terms", "offsets", "documents", "kinds", "kind_frequencies", "kind_lengths"}


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


def test_damage_is_found_when_the_index_is_rebuilt(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, encoder=own()) as engine:
        engine.add([Record("m1", "a", embedding=np.ones(D))])
    altered(tmp_path, "UPDATE records SET vectors = NULL")
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(fr.errors.DamagedStoreError, match="'m1'"):
        fr.Engine.open(tmp_path)
