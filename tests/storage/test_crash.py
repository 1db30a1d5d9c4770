"""The crash harness in short: every failpoint, every kind of damage; and that it would notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tqdm
from conftest import ROOT

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.engine.storage import index_files as files
from fanrank.engine.storage.index_arrays import SavedIndex
from fanrank.engine.storage.record_store import ChangeRun

pytest.importorskip("resource")
from support import borders, crash


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    with borders.shrunken(crash.SMALL):
        yield


def made(tmp_path: Path, *batches: int) -> crash.Round:
    """A round in whose directory these batches were done."""
    found = crash.Round(1, 0, crash.Tally(), tmp_path)
    with fr.Engine.open(found.path, backend="numpy", **crash.OPTIONS) as engine:
        for number in batches:
            found.streams[0].batch(number).run(engine)
    return found


# In a process of its own: it forks, and pytest may have threads.
def test_nothing_is_lost_and_nothing_comes_from_nowhere() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.crash", "--rounds", "25", "--seed", "7", "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout)
    assert (tally["rounds"], tally["lost"], tally["phantom"], tally["broken"]) == (25, 0, 0, [])
    assert tally["kills"].keys() >= {*failpoints.POINTS, "by the clock: open", "by the clock: shared"}
    kinds = {name.split(",")[0] for name in tally["faults"]}
    assert kinds >= {f"index: {fault}" for fault in ("truncate", "flip", "delete", "zero")}
    assert kinds >= {"log: truncate", "log: flip", "records: flip", "disk full: file size"}
    assert kinds >= {"second writer refused", "reader refreshed"}
    assert tally["rebuilt"] > 0


def test_it_notices_a_lost_batch(tmp_path: Path) -> None:
    found = made(tmp_path, *range(6))
    found.acked, found.begun = [7], [8]
    with pytest.raises(crash.Broken, match="7 batches acknowledged, 8 begun"):
        found.look()
    assert (found.tally.lost, found.tally.phantom) == (1, 0)


def test_it_notices_a_batch_that_nobody_began(tmp_path: Path) -> None:
    found = made(tmp_path, *range(6))
    found.acked, found.begun = [3], [4]
    with pytest.raises(crash.Broken):
        found.look()
    assert found.tally.phantom


def test_it_takes_the_batch_in_flight_whole_or_not_at_all(tmp_path: Path) -> None:
    found = made(tmp_path, *range(6))
    for acked, begun in ((5, 6), (6, 7), (6, 6)):
        found.acked, found.begun = [acked], [begun]
        assert found.look() == "loaded"
        assert found.acked == [6]
    with fr.Engine.open(found.path, backend="numpy") as engine:
        batch = next(b for b in map(found.streams[0].batch, range(6, 100)) if b.verb == "add" and len(b.records) > 1)
        engine.add(batch.records[:1])
    found.begun = [7]
    with pytest.raises(crash.Broken):
        found.look()


def test_it_notices_an_index_that_differs_from_the_records(tmp_path: Path) -> None:
    found = made(tmp_path, *range(6))
    state = found.streams[0].state(6)
    with fr.Engine.open(found.path, backend="numpy") as engine:
        crash.agree(engine, state, 0, found.namespaces)
        name = next(iter(state))
        youngest = list(state[name].values())[-1]
        altered = {**state, name: {**state[name], youngest.id: fr.Record(youngest.id, "katon", name)}}
        with pytest.raises(crash.Broken, match="answers differ"):
            crash.agree(engine, altered, 0, found.namespaces)


def test_a_reader_that_a_write_overtakes_counts_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fr.Engine.open(tmp_path / "memory", backend="numpy") as writer:
        writer.add([fr.Record("a", "tea")])
        with fr.Engine.open(tmp_path / "memory", read_only=True, backend="numpy") as reader:
            store = reader.index.memory.store
            assert store is not None
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


def test_a_window_whose_records_are_all_dead_holds_none() -> None:
    records = [fr.Record(f"m{n}", "tea", time=100.0 * (n // 3)) for n in range(15)]
    engine = fr.Engine.from_records(records, backend="numpy", **crash.OPTIONS)
    engine.delete(["m12", "m13", "m14"])
    left = fr.Engine.from_records(records[:12], backend="numpy", **crash.OPTIONS)
    query = fr.Query("tea", windows=2)
    assert engine.stats()["deleted"] == 3
    assert engine.search([query]).ids.tolist() == left.search([query]).ids.tolist()
    for one in (engine, left):
        one.observe(["m11", "m0"])
    assert engine.recency().to_dict() == left.recency().to_dict()


def test_a_live_record_that_is_not_found_is_damage(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory", backend="numpy") as engine:
        engine.add([fr.Record("a", "tea"), fr.Record("b", "tea")])
        assert engine.fetch(["\ud800", "x"]) == [None, None]
        store = engine.index.memory.store
        assert store is not None
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


def test_a_killed_sibling_holds_no_lock_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a progress bar takes a lock that forked processes share: who shows none must not make one."""

    def made(*_: object, **__: object) -> None:
        raise AssertionError("a progress bar was made")

    monkeypatch.setattr(tqdm, "tqdm", made)
    for _ in range(2):
        with fr.Engine.open(tmp_path / "memory", backend="numpy") as opened:
            opened.update([fr.Record("a", "tea")], insert=True)
            opened.add([fr.Record(f"b{len(opened)}", "tea")])
