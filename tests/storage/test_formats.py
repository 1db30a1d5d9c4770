"""Directories that earlier formats wrote: they open with the answers of then, and an upgrade may end anywhere.

Each archive in formats/ holds a directory as a kill left it (a database, its log, an index that is older than both),
and the answers and records that the version of fanrank that wrote it gave.
"""

import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support import borders
from support.kills import leave

import fanrank as fr
from fanrank.engine.settings import compiled_loops
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.index_files import VERSION as INDEX_VERSION
from fanrank.engine.storage.row_codec import JSON_VERSION, RECORDS, VERSION
from fanrank.engine.storage.sqlite import _MIGRATION

NEW = "payload.a"
ARCHIVES = Path(__file__).parent / "formats"
# The format of the database, and that of the index files beside it.
FORMATS = {1: 2, 2: 3, 3: 4, 4: 4, 5: 6, 6: 7}
# Rows are packed by compiled loops alone.
NEWEST = VERSION if compiled_loops() else JSON_VERSION


def unpack(store: int | str, path: Path) -> tuple[Path, dict[str, Any]]:
    """The directory, and what is known of it."""
    with tarfile.open(ARCHIVES / f"store-{store}.tar.xz") as archive:
        for member in archive:
            target = path / member.name
            if member.isfile():
                target.parent.mkdir(parents=True, exist_ok=True)
                held = archive.extractfile(member)
                target.write_bytes(held.read())
    folder = path / f"store-{store}"
    known: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return folder / "memory", known


def formats(path: Path) -> tuple[int, int]:
    """The formats of the database and of the index."""
    raw = sqlite3.connect(f"{(path / RECORDS).as_uri()}?mode=ro", uri=True)
    (store,) = raw.execute("PRAGMA user_version").fetchone()
    raw.close()
    return store, json.loads((path / "index" / "manifest.json").read_text())["version"]


def check(engine: fr.Engine, known: dict[str, Any]) -> None:
    for namespace, text, ids, scores in known["answers"]:
        hits = engine.search([fr.Query(text, namespace=namespace, k=8)])
        count = int(hits.counts[0])
        assert (hits.ids[0, :count].tolist(), hits.scores[0, :count].tolist()) == (ids, scores), (namespace, text)
    for namespace, records in known["records"].items():
        expected = [fr.Record.from_dict({**record, "namespace": namespace}) for record in records]
        assert engine.fetch([record.id for record in expected], namespace=namespace) == expected
    stored = sum(map(len, known["records"].values()))
    assert (len(engine), engine.verify()) == (stored, {"records": stored, "missing": 0, "extra": 0})


def new(engine: fr.Engine) -> fr.Record:
    """A record whose column `NEW` only the newest format holds."""
    vector = [1.0, 0.0, 0.0, 0.0] if engine.pin else None
    return fr.Record("new", "quokka", payload={"a": 1}, embedding=vector)


def test_there_is_a_directory_of_each_earlier_format() -> None:
    assert {int(file.name.removeprefix("store-")[0]) for file in ARCHIVES.iterdir()} == set(FORMATS)
    assert max(FORMATS) == VERSION, "add a directory of the format that was the last one"
    assert max(FORMATS.values()) >= INDEX_VERSION - 1
    assert sum(file.stat().st_size for file in ARCHIVES.iterdir()) < 60_000


@pytest.mark.parametrize("store", FORMATS)
@pytest.mark.parametrize("index", [True, False])
def test_an_earlier_format_gives_the_answers_of_then(store: int, index: bool, tmp_path: Path) -> None:
    path, known = unpack(store, tmp_path)
    assert formats(path) == (store, FORMATS[store])
    if not index:
        (path / "index" / "manifest.json").unlink()
    opened = "loaded" if index else "built: there were no index files"
    with fr.Engine.open(path, read_only=True, backend="numpy") as reader:
        check(reader, known)
        assert reader.opened == opened
    for _ in range(2):
        with fr.Engine.open(path, backend="numpy") as engine:
            check(engine, known)
            assert engine.opened == opened
        opened = "loaded"
    assert formats(path)[0] == max(store, 2)
    with borders.shrunken(LEARN_ROWS=1), fr.Engine.open(path, backend="numpy") as engine:
        engine.add([new(engine)])
        if NEW not in engine.columns:
            engine.add_column(NEW, "json")
    assert formats(path)[0] == max(store, NEWEST)
    with fr.Engine.open(path, backend="numpy") as engine:
        assert engine.search(["quokka"]).ids[0, 0] == "new"
        assert engine.fetch(["new"]) == [new(engine)]
        assert list(engine.ids({NEW: 1})) == ["new"]
        engine.delete(["new"])
        check(engine, known)


def test_arrays_packed_in_bytes_are_read_and_go_on_in_bits(tmp_path: Path) -> None:
    """The version of the index before this one: steps of one byte, and hashes of ids without their order."""
    path, known = unpack("6-steps", tmp_path)
    (part,) = json.loads((path / "index" / "manifest.json").read_text())["parts"]
    assert (part["lookup"], part["arrays"]["documents"]["packing"]) == (False, [1, True])
    for backend in ("numpy", None):
        with fr.Engine.open(path, backend=backend, read_only=True) as engine:
            check(engine, known)
            assert engine.opened == "loaded"
    with borders.shrunken(PACKED_LEAST=1), fr.Engine.open(path, backend="numpy") as engine:
        engine.add([new(engine)])
        engine.flush()
    assert formats(path)[1] == INDEX_VERSION
    with fr.Engine.open(path, backend="numpy") as engine:
        assert engine.opened == "loaded"
        assert engine.search(["quokka"]).ids[0, 0] == "new"
        engine.delete(["new"])
        check(engine, known)


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, known = unpack(1, tmp_path)
    with fr.Engine.open(path, read_only=True, backend="numpy") as reader:
        with monkeypatch.context() as patch:
            borders.shrink(patch, _MIGRATION=(*_MIGRATION, "CREATE TABLE records(sequence)"))
            with pytest.raises(fr.errors.StorageError):
                fr.Engine.open(path, backend="numpy")
        assert formats(path)[0] == 1
        with fr.Engine.open(path, backend="numpy") as engine:
            engine.add([new(engine)])
            # A reader that was there before sees the column of vectors come.
            reader.refresh()
            assert reader.fetch(["new"]) == [new(engine)]
            engine.delete(["new"])
        reader.refresh()
        check(reader, known)


def upgrade(path: Path) -> None:
    with borders.shrunken(LEARN_ROWS=1, PACKED_LEAST=1), fr.Engine.open(path, backend="numpy") as engine:
        engine.add([new(engine)])
        if NEW not in engine.columns:
            engine.add_column(NEW, "json")
        engine.flush()
        engine.delete(["new"])


# The points that a small directory reaches while it is opened, written to in the newest format, and closed.
POINTS = [
    point
    for point in failpoints.POINTS
    if point.partition(".")[0] in ("write", "checkpoint", "fold", "close") and point != "checkpoint.swept"
]


@pytest.mark.parametrize("store", [1, 3])
def test_an_upgrade_may_be_killed_anywhere_and_goes_on(store: int, tmp_path: Path) -> None:
    """Each kill meets what the ones before it left."""
    path, known = unpack(store, tmp_path)
    for point in POINTS:
        assert leave(path, point, lambda path=path: upgrade(path), tmp_path / point), point  # type: ignore[misc]
        path = tmp_path / point
        with fr.Engine.open(path, read_only=True, backend="numpy") as reader:
            assert (reader.opened or "").startswith(("loaded", "built: there were no")), (point, reader.opened)
            if len(reader) == sum(map(len, known["records"].values())):
                check(reader, known)
            else:
                assert reader.fetch(["new"])[0] is not None, point
        with fr.Engine.open(path, backend="numpy") as engine:
            engine.delete(["new"], missing_ok=True)
            check(engine, known)
    assert formats(path)[0] == NEWEST
