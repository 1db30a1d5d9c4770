"""What deleted records leave in a directory, and how it is taken out."""

import random
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

import fanrank as fr
from fanrank.engine.cli.main import main
from fanrank.engine.storage import sqlite
from fanrank.engine.storage.log import log_of
from fanrank.engine.storage.row_codec import RECORDS


def filled(path: Path, count: int = 400) -> fr.Engine:
    engine = fr.Engine.open(path, backend="numpy", columns={"city": "category"})
    rng = random.Random(5)
    records = [
        fr.Record(
            f"{'secret' if n % 2 else 'plain'}-{n}",
            f"{'hidden' if n % 2 else 'open'}{n} {rng.random()}",
            extra={"city": "atlantis" if n % 2 else "rome"},
            payload={"key": "covert" if n % 2 else "overt"},
        )
        for n in range(count)
    ]
    engine.add(records)
    return engine


def test_a_vacuum_leaves_nothing_of_deleted_records_and_changes_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with filled(path) as engine:
        engine.flush()
        engine.delete([f"secret-{n}" for n in range(1, 400, 2)])
        before = engine.search(["open4 open8 open10"], k=20)
        freed = engine.vacuum()
        assert freed > 0
        after = engine.search(["open4 open8 open10"], k=20)
        assert (after.ids.tolist(), after.scores.tolist()) == (before.ids.tolist(), before.scores.tolist())
        for word in ("secret", "hidden", "atlantis", "covert"):
            files = [file for file in path.rglob("*") if file.is_file()]
            assert [file.name for file in files if word.encode() in file.read_bytes()] == [], word
        assert log_of(path / RECORDS).stat().st_size == 0
        engine.add([fr.Record("late", "open4")])
        reader = fr.Engine.open(path, read_only=True, backend="numpy")
        assert len(reader) == 201
    with fr.Engine.open(path, backend="numpy") as engine:
        assert engine.verify() == {"records": 201, "missing": 0, "extra": 0}
        assert engine.opened == "loaded"


def test_what_is_deleted_is_overwritten_in_every_build_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's build does so by itself, so its setting is taken back first."""
    monkeypatch.setattr(sqlite, "_PRAGMAS", ("secure_delete=OFF", *sqlite._PRAGMAS))
    with filled(tmp_path / "memory") as engine:
        engine.delete([f"secret-{n}" for n in range(1, 400, 2)])
    assert b"covert" not in (tmp_path / "memory" / RECORDS).read_bytes()


def test_a_killed_vacuum_loses_nothing(tmp_path: Path) -> None:
    """The database says again that its log is in use, with the number that its schema has then."""
    path, copy = tmp_path / "memory", tmp_path / "copy"
    with filled(path) as engine:
        engine.delete(["plain-0"])
        engine.vacuum()
        engine.add([fr.Record("late", "tea")])
        copy.mkdir()
        (copy / RECORDS).write_bytes((path / RECORDS).read_bytes())
        with pytest.raises(fr.errors.DamagedStoreError, match="its write-ahead log is missing"):
            fr.Engine.open(copy)


def test_engines_without_a_database_and_readers(tmp_path: Path) -> None:
    engine = fr.Engine(backend="numpy")
    engine.add([fr.Record("a", "tea"), fr.Record("b", "cup")])
    engine.delete(["a"])
    assert engine.vacuum() == 0
    assert engine.stats()["deleted"] == 0
    with (
        filled(tmp_path / "memory"),
        fr.Engine.open(tmp_path / "memory", read_only=True) as reader,
        pytest.raises(fr.errors.StorageError, match="read_only"),
    ):
        reader.vacuum()


def test_the_command(tmp_path: Path) -> None:
    with filled(tmp_path / "memory") as engine:
        engine.delete([f"secret-{n}" for n in range(1, 400, 2)])
    done = CliRunner().invoke(main, ["vacuum", str(tmp_path / "memory"), "--json"])
    assert done.exit_code == 0, done.output
    assert '"documents": 200' in done.output
    assert CliRunner().invoke(main, ["vacuum", str(tmp_path / "nothing")]).exit_code == 2
    with fr.Engine.open(tmp_path / "memory") as engine:
        assert len(engine) == 200


def test_a_directory_that_was_renamed_gets_no_files_at_its_old_place(tmp_path: Path) -> None:
    engine = filled(tmp_path / "memory")
    (tmp_path / "memory").rename(tmp_path / "moved")
    engine.add([fr.Record("late", "tea")])
    with pytest.raises(fr.errors.StorageError, match="was renamed, removed or replaced"):
        engine.close()
    assert [file.name for file in tmp_path.iterdir()] == ["moved"]
    with fr.Engine.open(tmp_path / "moved", backend="numpy") as again:
        assert len(again) == 401


def test_a_format_that_its_tables_deny_is_damage(tmp_path: Path) -> None:
    filled(tmp_path / "memory").close()
    for version in (0, 1):
        other = sqlite3.connect(tmp_path / "memory" / RECORDS)
        other.execute(f"PRAGMA user_version={version}")
        other.close()
        with pytest.raises(fr.errors.DamagedStoreError, match="its tables are of another one"):
            fr.Engine.open(tmp_path / "memory")


def test_a_database_that_was_cut_is_damage(tmp_path: Path) -> None:
    filled(tmp_path / "memory").close()
    whole = (tmp_path / "memory" / RECORDS).read_bytes()
    refused = 0
    for size in range(4096, len(whole), 2100):
        (tmp_path / "memory" / RECORDS).write_bytes(whole[:size])
        try:
            with fr.Engine.open(tmp_path / "memory", read_only=True, backend="numpy") as engine:
                engine.fetch([f"plain-{n}" for n in range(0, 400, 2)])
        except fr.errors.DamagedStoreError:
            refused += 1
    assert refused > 10
