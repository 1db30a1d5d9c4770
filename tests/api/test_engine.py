"""An engine over a directory: opened, closed and opened again, beside readers, after damage, and with a full disk."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import ROOT
from support import borders
from world import WORDS

import fanrank as fr
from fanrank.engine import opening
from fanrank.engine.opening import OpenIndex
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.index_files import IndexDirectory
from fanrank.engine.storage.row_codec import RECORDS
from fanrank.engine.storage.storage import Storage

DAY = 86_400.0
BATCH = [["a1"], ["b2", "c3"], [*WORDS], fr.Query("a1 b2", namespace="n"), fr.Query("a1", now=9 * DAY, half_life=DAY)]


def records(count: int, start: int = 0, namespace: str = "") -> list[fr.Record]:
    return [
        fr.Record(
            f"r{n}", f"a1 {WORDS[n % 5]} {WORDS[n % 3]}", namespace, session=f"s{n % 4}", time=DAY * n, extra={"n": n}
        )
        for n in range(start, start + count)
    ]


def filled(path: Path, **options: Any) -> fr.Engine:
    """With deleted records, replaced ones and two namespaces."""
    engine = fr.Engine.open(path, analyzer="minimal", **options)
    engine.add(records(30))
    engine.add(records(8, namespace="n"))
    engine.delete(["r3", "r4", "r29"])
    engine.update([fr.Record("r5", "b2 b2 f6", time=DAY)])
    return engine


def answers(engine: fr.Engine) -> list[Any]:
    return list(engine.search(BATCH, 40))


def left() -> dict[str, list[fr.Record]]:
    kept = {record.id: record for record in records(30) if record.id not in ("r3", "r4", "r5", "r29")}
    return {"": [*kept.values(), fr.Record("r5", "b2 b2 f6", time=DAY)], "n": records(8, namespace="n")}


def stated() -> list[Any]:
    """The answers of an engine that never held anything else."""
    return answers(fr.Engine.from_records([record for own in left().values() for record in own], analyzer="minimal"))


def test_options_are_kept_and_must_not_differ(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "analyzer": "minimal", "method": "bm25+", "k1": 1.5, "fields": {"text": 1.0, "predicate": 2.0},
        "columns": {"project": "category", "priority": "number"}, "window": 3600.0, "epsilon": 0.1, "max_windows": None,
    }  # fmt: skip
    with fr.Engine.open(tmp_path, **options) as engine:
        engine.add([fr.Record("1", "a1", fields={"predicate": "b2"}, extra={"project": "p", "priority": 2})])
        expected = answers(engine)
    for again in ({}, options, {"k1": 1.5}):
        with fr.Engine.open(tmp_path, **again) as engine:
            assert engine.opened == "loaded"
            assert answers(engine) == expected
            assert engine.recency().to_dict()["max_windows"] is None
            assert engine.search([fr.Query("a1", filter={"project": "p", "priority": {"<": 3}})]).counts.tolist() == [1]
    for name, other in (
        ("analyzer", "full"), ("method", "lucene"), ("k1", 1.2), ("fields", {"text": 1.0}), ("columns", {}),
        ("window", 60.0), ("epsilon", 0.05), ("max_windows", 4),
    ):  # fmt: skip
        with pytest.raises(fr.errors.ParameterError, match=rf"was made with {name} = .*make another directory"):
            fr.Engine.open(tmp_path, **{name: other})
    with pytest.raises(fr.errors.ParameterError, match="window"):
        fr.Engine.open(tmp_path, window=0.0)
    # A refused open lets go of the lock.
    fr.Engine.open(tmp_path).close()


def test_one_writer_and_what_it_refuses(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    writes: list[Callable[[fr.Engine], object]] = [
        lambda engine: engine.add(records(1, 99)),
        lambda engine: engine.update(records(1, 6)),
        lambda engine: engine.delete(["r6"]),
        lambda engine: engine.drop("n"),
    ]
    with pytest.raises(fr.errors.StoreLockedError, match=f"process {os.getpid()} writes"):
        fr.Engine.open(tmp_path)
    with fr.Engine.open(tmp_path, read_only=True) as reader:
        assert answers(reader) == stated()
        before = reader.stats()["vocabulary"]
        for write in writes:
            with pytest.raises(fr.errors.StorageError, match="read_only=True"):
                write(reader)
        assert answers(reader) == stated()
        assert reader.stats()["vocabulary"] == before
    engine.close()
    engine.close()
    for call in (*writes, lambda engine: engine.fetch(["r6"])):
        with pytest.raises(fr.errors.StorageError, match="closed"):
            call(engine)
    # What is in memory still answers.
    assert answers(engine) == stated()
    in_memory = fr.Engine.from_records(records(3), analyzer="minimal")
    in_memory.close()
    for write in writes:
        with pytest.raises(fr.errors.StorageError, match="closed"):
            write(in_memory)
    assert len(in_memory) == 3


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "saved"
    with filled(path) as engine:
        engine.flush()
        engine.add(records(3, 60, "late"))
        engine.delete(["r6"], namespace="n")
        engine.update([fr.Record("r7", "b2", "n")])
    return path


@pytest.mark.parametrize("damage", ["altered", "cut", "removed"])
def test_a_damaged_index_is_built_again(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Every eighth file of it: the answers are right, `opened` says why, and the next open loads."""
    # Nothing here depends on what a crash leaves, and a hundred indexes are written.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with fr.Engine.open(saved, read_only=True) as whole:
        assert whole.opened == "loaded"
        expected, size = answers(whole), len(whole)
    files = sorted((saved / "index").iterdir(), key=lambda file: ("manifest" not in file.name, file.name))
    for number, file in enumerate(files[::8]):
        path = tmp_path / str(number)
        shutil.copytree(saved, path)
        content = file.read_bytes()
        place = len(content) * 3 // 4
        if damage == "removed":
            (path / "index" / file.name).unlink()
        else:
            rest = bytes([content[place] ^ 4]) + content[place + 1 :] if damage == "altered" else b""
            (path / "index" / file.name).write_bytes(content[:place] + rest)
        with fr.Engine.open(path, read_only=True) as reader:
            assert reader.opened.startswith("built: ")
            assert answers(reader) == expected
        with fr.Engine.open(path) as engine:
            reason = "there were no index files" if damage == "removed" and "manifest" in file.name else str(path)
            assert engine.opened.startswith(f"built: {reason}")
            assert (answers(engine), len(engine)) == (expected, size)
            engine.add([fr.Record("more", "a1")])
        with fr.Engine.open(path) as engine:
            assert engine.opened == "loaded"
            assert len(engine) == size + 1


def test_the_index_of_other_records_is_not_taken(saved: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        with fr.Engine.open(tmp_path / name, analyzer="minimal") as engine:
            engine.add([fr.Record("1", name), fr.Record("2", "a1")])
    shutil.rmtree(tmp_path / "one" / "index")
    shutil.copytree(tmp_path / "two" / "index", tmp_path / "one" / "index")
    with fr.Engine.open(tmp_path / "one") as engine:
        assert "of other records" in engine.opened
        assert engine.search([["one"], ["two"]]).counts.tolist() == [1, 0]


def test_what_opening_behind_fails_with_comes_with_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path).close()
    with monkeypatch.context() as patched:
        patched.setattr(OpenIndex, "fill", Mock(side_effect=fr.errors.StorageError("the disk is gone")))
        engine = fr.Engine.open(tmp_path, wait=False)
        assert engine.index.filler is not None
        engine.index.filler.join(300)
        assert not engine.opening
        for call in (lambda: engine.search(["a1"]), lambda: engine.add(records(1, 99)), lambda: len(engine)):
            # Not the reason itself, which may name another tenant's record.
            with pytest.raises(fr.errors.StorageError, match=r"could not be built \(StorageError\)") as raised:
                call()
            assert str(raised.value.__cause__) == "the disk is gone"
        engine.close()
        patched.undo()
    with fr.Engine.open(tmp_path) as again:
        assert answers(again) == stated()


READER = """
import mmap, os, sys
import fanrank as fr
fr.Engine().search(["a1"])  # so that all is imported: another user may not read the interpreter's files
if os.geteuid() == 0:
    os.setuid(65534)
try:
    with fr.Engine.open(sys.argv[1], read_only=sys.argv[2] == "reader") as engine:
        print(len(engine), engine.opened, engine.search([["a1"]], 3)[0][0][0])
        engine.refresh()
        print(len(engine))
except OSError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no modes of directories")
def test_a_directory_without_write_permission() -> None:
    # Not below tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as parent:
        path, torn = Path(parent) / "closed", Path(parent) / "torn"
        os.chmod(parent, 0o755)
        with filled(path):
            torn.mkdir()
            for name in (RECORDS, f"{RECORDS}-wal"):
                shutil.copy(path / name, torn / name)
        folders = [path / "index", path, torn]
        for folder in folders:
            for file in folder.iterdir():
                if file.is_file():
                    file.chmod(0o444)
            folder.chmod(0o555)
        try:
            told = [
                subprocess.run(
                    [sys.executable, "-c", READER, str(place), role],
                    capture_output=True,
                    text=True,
                    env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "FANRANK_BACKEND": "numpy"},
                    timeout=60,
                    check=False,
                )
                for place, role in ((path, "reader"), (path, "writer"), (torn, "reader"))
            ]
        finally:
            for folder in folders:
                folder.chmod(0o755)
        first = stated()[0][0][0]
        assert told[0].stdout == f"35 loaded {first}\n35\n", told[0].stderr
        assert told[1].stdout.startswith("StorageError")
        assert "Permission denied" in told[1].stdout
        assert re.match("StorageError .*without write permission", told[2].stdout), told[2]


DISK_FULL = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize("point", ["checkpoint.part", "checkpoint.manifest", "checkpoint.replaced", "checkpoint.swept"])
def test_a_checkpoint_that_fails_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    borders.shrink(monkeypatch, CHECKPOINT_CHANGES=10)
    engine = fr.Engine.open(tmp_path, analyzer="minimal")
    engine.add(records(4))
    failpoints.arm(point, action=DISK_FULL)
    engine.add(records(8, 4))
    engine.index.memory.join()
    stats = engine.stats()
    assert "No space left" in stats["background_error"]
    assert (stats["checkpointed"], stats["checkpoints"], stats["sequence"]) == (0, 0, 12)
    # Writes go on, and no attempt comes right after the last.
    engine.add(records(18, 12))
    engine.add(records(8, namespace="n"))
    engine.index.memory.join()
    assert engine.stats()["checkpoints"] == 0
    failpoints.arm(point, action=DISK_FULL)
    with pytest.raises(fr.errors.StorageError, match="No space left"):
        engine.flush()
    assert len(engine) == 38
    engine.delete(["r3", "r4", "r29"])
    engine.update([fr.Record("r5", "b2 b2 f6", time=DAY)])
    assert answers(engine) == stated()
    # What the failed ones left is no hindrance.
    with fr.Engine.open(tmp_path, read_only=True) as reader:
        assert answers(reader) == stated()
    engine.flush()
    stats = engine.stats()
    assert stats["background_error"] is None
    assert stats["checkpointed"] == stats["sequence"]
    engine.add([fr.Record("more", "f6")])
    engine.flush()
    expected = answers(engine)
    engine.close()
    named = json.loads((tmp_path / "index" / "manifest.json").read_text())
    held = [named["head"], *named["strings"], *(part["arrays"] for part in named["parts"])]
    files = {entry["file"] for entries in held for entry in entries.values()} | {"manifest.json"}
    assert {file.name for file in (tmp_path / "index").iterdir()} == files
    with fr.Engine.open(tmp_path) as again:
        assert again.opened == "loaded"
        assert answers(again) == expected


def test_a_merge_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, INLINE_DOCUMENTS=4)
    monkeypatch.setattr(Storage, "wake", lambda self: None)
    with fr.Engine.open(tmp_path, analyzer="minimal") as engine:
        for start in range(0, 40, 4):
            engine.add(records(4, start))
        expected = answers(engine)
        failpoints.arm("merge.built", action=DISK_FULL)
        with pytest.raises(OSError, match="No space left"):
            engine.flush()
        assert answers(engine) == expected
        engine.flush()
        assert engine.stats()["segments"] < 4
        assert answers(engine) == expected


def test_the_index_is_compared_with_the_records(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add([fr.Record(f"r{n}", "tea", namespace=f"t{n % 3}") for n in range(30)])
        engine.delete(["r0", "r3"], namespace="t0")
        assert engine.verify() == {"records": 28, "missing": 0, "extra": 0}
        memory = engine.index.memory
        whole = memory.snapshots
        memory._become({**whole, "t1": whole["t1"].without(list(whole["t1"].find_all(["r1", "r4"]).values()))})
        assert engine.verify() == {"records": 28, "missing": 2, "extra": 0}
        memory._become({**whole, "t9": whole["t0"]})
        assert engine.verify() == {"records": 28, "missing": 0, "extra": 8}
        memory._become(whole)
    with pytest.raises(fr.errors.StorageError, match="keeps no records to compare with"):
        fr.Engine().verify()


def test_a_newer_index_is_built_again(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    manifest = tmp_path / "copy" / "index" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 99}))
    with fr.Engine.open(tmp_path / "copy") as engine, fr.Engine.open(saved, read_only=True) as whole:
        assert "format 99" in engine.opened
        assert answers(engine) == answers(whole)


def test_without_an_index_keywords_are_scanned_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fr.Engine.open(tmp_path) as engine:
        engine.add([fr.Record("1", "the billing job failed", session="s", time=1.0, user="u")])
        engine.add([fr.Record("2", "billing and billing, of the night job", time=2.0), fr.Record("3", "lunch")])
        engine.add([fr.Record("4", "Billing", "n"), *(fr.Record(f"u{n}", "teapot", user="u") for n in range(5))])
    # Without index files it is built.
    shutil.rmtree(tmp_path / "index")
    go = threading.Event()
    replay = opening.replay

    def slow(*arguments: Any) -> None:
        assert go.wait(300)
        replay(*arguments)

    monkeypatch.setattr(opening, "replay", slow)
    engine = fr.Engine.open(tmp_path, wait=False)
    try:
        batch = [
            fr.Query("what about the billing job?"),
            fr.Query("billing", filter={"session": "s"}),
            fr.Query("billing", since=1.5),
            fr.Query("billing", namespace="n"),
            fr.Query("what did I say?"),
            fr.Query("billing", k=1),
            fr.Query("teapot", scope=fr.SearchScope.user("u")),
        ]
        hits = engine.search(batch, 5, texts=True)
        assert hits.backend == "keyword-scan"
        assert hits[0][1].text == "the billing job failed"
        assert [[name for name, _ in row] for row in hits] == [
            ["2", "1"], ["1"], ["2"], ["4"], [], ["2"], ["u4", "u3"],
        ]  # fmt: skip
        assert hits.scores[0, 0] == 1.0
        with pytest.raises(fr.errors.UnknownIdError):
            hits.explain(0, "1")
        assert engine.fetch(["3"]) == [fr.Record("3", "lunch")]
        report = engine.health()
        assert (report.query_count, report.fallback_count) == (6, {"the index is being built": 6})
        assert engine.health("n").fallback_rate == 1.0
    finally:
        go.set()
    # A write waits for the index, and from then on there is one.
    assert engine.add([fr.Record("5", "billing")]) == 1
    hits = engine.search(batch, 5)
    assert hits.backend == engine.backend.name
    assert {name for name, _ in hits[0]} == {"1", "2", "5"}
    assert engine.opened == "built: there were no index files"
    assert engine.health().fallback_rate == 0.5
    engine.close()


def test_a_search_waits_while_index_files_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path).close()
    asked = threading.Event()
    load, scans = IndexDirectory.load, OpenIndex.scans

    def late(self: IndexDirectory) -> Any:
        assert asked.wait(300)
        return load(self)

    def asking(self: OpenIndex) -> bool:
        asked.set()
        return scans(self)

    monkeypatch.setattr(IndexDirectory, "load", late)
    monkeypatch.setattr(OpenIndex, "scans", asking)
    for search in (lambda engine: engine.search(BATCH, 40), lambda engine: next(engine.search_stream([BATCH[:2]], 40))):
        asked.clear()
        with fr.Engine.open(tmp_path, wait=False) as engine:
            assert engine.opening
            hits = search(engine)
            assert hits.backend == engine.backend.name
            assert list(hits) == answers(engine)[: len(hits)]
            assert engine.opened == "loaded"


def test_a_close_that_cannot_save_still_lets_go(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    failpoints.arm("checkpoint.part", action=DISK_FULL)
    with pytest.raises(fr.errors.StorageError, match="No space left"):
        engine.close()
    with fr.Engine.open(tmp_path) as again:
        assert answers(again) == stated()
