"""Readers beside a writer, records that are gone behind the engine's back, and what processes share."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import tqdm

import fanrank as fr
from fanrank.engine.storage import index_files as files
from fanrank.engine.storage.index_arrays import SavedIndex
from fanrank.engine.storage.record_store import ChangeRun


def test_a_reader_that_a_write_overtakes_counts_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fr.Engine.open(tmp_path / "memory", backend="numpy") as writer:
        writer.add([fr.Record("a", "tea")])
        with fr.Engine.open(tmp_path / "memory", read_only=True, backend="numpy") as reader:
            store = reader.index.memory.store
            changes_after = store.changes_after

            def overtaken(sequence: int) -> Iterator[ChangeRun]:
                monkeypatch.undo()
                writer.add([fr.Record("b", "tea")])
                return changes_after(sequence)

            monkeypatch.setattr(store, "changes_after", overtaken)
            reader.refresh()
            assert (len(reader), reader.stats()["sequence"]) == (2, 2)
            reader.refresh()
            assert [name for name, _ in reader.search(["tea"])[0]] == ["a", "b"]


def test_a_live_record_that_is_not_found_is_damage(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory", backend="numpy") as engine:
        engine.add([fr.Record("a", "tea"), fr.Record("b", "tea")])
        assert engine.fetch(["\ud800", "x"]) == [None, None]
        store = engine.index.memory.store
        store.drop("")  # Behind the engine's back.
        with pytest.raises(fr.errors.DamagedStoreError, match="the record with id 'b' is not found"):
            engine.fetch(["x", "b"])


def test_a_reader_leaves_the_index_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its merges run in the background, beside a refresh that reads the files anew."""
    folder = tmp_path / "memory" / "index"
    with fr.Engine.open(tmp_path / "memory", backend="numpy") as writer:
        writer.add([fr.Record("a", "tea")])
        with fr.Engine.open(tmp_path / "memory", read_only=True, backend="numpy") as reader:
            writer.add([fr.Record("b", "tea")])
            writer.delete(["a"])
            writer.flush()  # What was deleted is forgotten, and so the reader starts from the files.
            before, load, looked = sorted(folder.iterdir()), files.IndexDirectory.load, []

            def beside(directory: files.IndexDirectory) -> SavedIndex:
                reader.index.memory.checkpoint()
                looked.append(sorted(folder.iterdir()))
                return load(directory)

            monkeypatch.setattr(files.IndexDirectory, "load", beside)
            reader.refresh()
            assert looked == [before]
            assert [name for name, _ in reader.search(["tea"])[0]] == ["b"]


def test_a_reader_whose_files_are_always_gone_reads_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast writer may replace the index while each of its versions is loaded."""
    with fr.Engine.open(tmp_path / "memory", backend="numpy") as writer:
        writer.add([fr.Record("a", "tea")])
    gone = FileNotFoundError(2, "No such file or directory", str(tmp_path / "part.npy"))
    monkeypatch.setattr(files.np, "load", Mock(side_effect=gone))
    with fr.Engine.open(tmp_path / "memory", read_only=True, backend="numpy") as reader:
        assert [name for name, _ in reader.search(["tea"])[0]] == ["a"]
        assert reader.opened is not None
        assert "part.npy: missing" in reader.opened


def test_a_killed_sibling_holds_no_lock_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a progress bar takes a lock that forked processes share: who shows none must not make one."""
    monkeypatch.setattr(tqdm, "tqdm", Mock(side_effect=AssertionError("a progress bar was made")))
    for _ in range(2):
        with fr.Engine.open(tmp_path / "memory", backend="numpy") as opened:
            opened.upsert([fr.Record("a", "tea")])
            opened.add([fr.Record(f"b{len(opened)}", "tea")])
