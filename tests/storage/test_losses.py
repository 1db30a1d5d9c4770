"""A log that was lost, cut or replaced, or a database older than its index: no change goes without a word."""

import gc
import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from support import borders
from support.kills import leave

import fanrank as fr
from fanrank.engine.storage import failpoints, losses
from fanrank.engine.storage.index_files import INDEX, IndexDirectory
from fanrank.engine.storage.log import NO_LOG, Note, NoteWriter, log_of, note_of, read_note, read_salts
from fanrank.engine.storage.row_codec import RECORDS

Damaged = fr.errors.DamagedStoreError


def records(start: int, stop: int, namespace: str = "") -> list[fr.Record]:
    return [fr.Record(f"m{n}", f"tea {n}", namespace) for n in range(start, stop)]


def opened(path: Path, **options: bool) -> fr.Engine:
    return fr.Engine.open(path, backend="numpy", **options)


def ids(engine: fr.Engine, namespace: str = "") -> set[str]:
    return set(engine.search([fr.Query("tea", namespace=namespace, k=100)]).ids[0].tolist()) - {None}


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A directory as a kill leaves it: 10 records of a closed session, 10 of a checkpoint, 5 in the log alone."""
    path, copy = tmp_path / "memory", tmp_path / "crashed"
    with opened(path) as engine:
        engine.add(records(0, 10))
    with opened(path) as engine:
        engine.add(records(10, 20))
        engine.flush()
        engine.add(records(20, 25))
        engine.delete(["m0"])
        shutil.copytree(path, copy)
    (copy / f"{RECORDS}-shm").unlink()
    return copy


def files(path: Path) -> dict[str, bytes]:
    """Of all but the lock, and the shared memory that SQLite makes for every look."""
    kept = [file for file in path.rglob("*") if file.is_file() and file.name not in ("lock", f"{RECORDS}-shm")]
    return {str(file.relative_to(path)): file.read_bytes() for file in kept if file.stat().st_size}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda log: b"",
    "cut": lambda log: log[:-1],
    "altered": lambda log: log[:-3] + bytes([log[-3] ^ 1]) + log[-2:],
}


@pytest.mark.parametrize("damage", ["removed", *DAMAGES])
@pytest.mark.parametrize("index", [True, False])
def test_a_lost_log_is_named_and_nothing_is_changed(
    crashed: Path, damage: str, index: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not index:
        shutil.rmtree(crashed / INDEX)
    log = log_of(crashed / RECORDS)
    data = log.read_bytes()
    log.unlink()
    if damage in DAMAGES:
        log.write_bytes(DAMAGES[damage](data))
    before = files(crashed)
    for read_only in (False, True, False):
        with pytest.raises(Damaged, match=r"acknowledged changes are missing.*accept_loss=True"):
            opened(crashed, read_only=read_only)
        assert files(crashed) == before
    with caplog.at_level(logging.WARNING, "fanrank"), opened(crashed, accept_loss=True) as engine:
        assert "acknowledged changes are missing" in caplog.text
        assert (engine.opened or "").startswith("built: ")
        left = ids(engine)
        assert {f"m{n}" for n in range(1, 20)} <= left <= {f"m{n}" for n in range(25)}
        assert engine.verify() == {"records": len(left), "missing": 0, "extra": 0}
        engine.add([fr.Record("new", "tea")])
    with opened(crashed) as engine:
        assert (ids(engine), engine.opened) == (left | {"new"}, "loaded")


@pytest.mark.parametrize("index", [True, False])
def test_a_copy_of_the_database_alone_is_named(crashed: Path, index: bool) -> None:
    log_of(crashed / RECORDS).unlink()
    note_of(crashed / RECORDS).unlink()
    if not index:
        shutil.rmtree(crashed / INDEX)
    for read_only in (False, True):
        with pytest.raises(Damaged, match="an unknown number of acknowledged changes are missing: its write-ahead log"):
            opened(crashed, read_only=read_only)
    with opened(crashed, accept_loss=True) as engine:
        assert ids(engine) == {f"m{n}" for n in range(20)}


def test_a_copy_of_a_database_that_was_just_made_is_named(tmp_path: Path) -> None:
    with opened(tmp_path / "memory") as engine:
        engine.add(records(0, 3))
        (tmp_path / "copy").mkdir()
        shutil.copy(tmp_path / "memory" / RECORDS, tmp_path / "copy" / RECORDS)
        with pytest.raises(Damaged, match="its write-ahead log is missing"):
            opened(tmp_path / "copy")


def test_an_older_database_beside_a_newer_index(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with opened(path) as engine:
        engine.add([*records(0, 10), *records(0, 2, "ana")])
    old = (path / RECORDS).read_bytes()
    with opened(path) as engine:
        engine.add([*records(10, 30), *records(5, 6, "ana")])
        engine.delete(["m3", "m4", "m5"])
    (path / RECORDS).write_bytes(old)
    note_of(path / RECORDS).unlink()
    with pytest.raises(Damaged) as raised:
        opened(path)
    text = str(raised.value)
    assert "24 acknowledged changes are missing: the index knows changes up to 36, and the records end at 12" in text
    assert "'m10', 'm11'" in text
    assert "and 11 more are gone" in text
    assert "3 records that were deleted are back" in text
    loss = losses.find_loss(path / RECORDS, read_only=False)
    assert set(loss.ids) == {("ana", "m5"), *(("", f"m{n}") for n in range(10, 30))}
    with opened(path, accept_loss=True) as engine:
        assert ids(engine) == {f"m{n}" for n in range(10)}
        assert engine.stats()["sequence"] > 36  # No number is used twice.


def test_an_older_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with opened(path) as engine:
        engine.add(records(0, 5))
        engine.add(records(5, 8))
        older = log_of(path / RECORDS).read_bytes()
    with opened(path) as engine:
        engine.add(records(8, 20))
        shutil.copytree(path, tmp_path / "killed")
    for copy in (tmp_path / "killed", path):
        log_of(copy / RECORDS).write_bytes(older)
        with pytest.raises(Damaged, match=r"acknowledged changes are missing.*of another time"):
            opened(copy)


@pytest.mark.parametrize("pruned", [False, True])
def test_an_older_log_whose_pages_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pruned: bool) -> None:
    """A deletion stands in a page that the older log has not, or has from when it pruned deletions."""
    borders.shrink(monkeypatch, FOLD_FRAMES=1)
    path = tmp_path / "memory"
    opened(path).close()
    with opened(path) as engine:
        engine.add(records(0, 8))
        if pruned:
            engine.delete(["m0"])
            engine.flush()
        older = log_of(path / RECORDS).read_bytes()
    with opened(path) as engine:
        engine.add(records(8, 20))
        engine.delete(["m19"])
        engine.add(records(20, 21)) if pruned else engine.flush()
        shutil.copytree(path, tmp_path / "killed")
    for copy in (tmp_path / "killed", path):
        log_of(copy / RECORDS).write_bytes(older)
        with pytest.raises(Damaged, match="of another time"):
            opened(copy)


def test_copies_that_sqlite_makes_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with opened(path) as engine:
        engine.add(records(0, 5))
        for name, statement in (("backup", None), ("vacuum", "VACUUM INTO ?")):
            (tmp_path / name).mkdir()
            source = sqlite3.connect(path / RECORDS)
            if statement is None:
                target = sqlite3.connect(tmp_path / name / RECORDS)
                source.backup(target)
                target.close()
            else:
                source.execute(statement, (str(tmp_path / name / RECORDS),))
            source.close()
    for name in ("backup", "vacuum"):
        with opened(tmp_path / name) as engine:
            assert ids(engine) == {f"m{n}" for n in range(5)}


def pages_of(log: Path, size: int) -> dict[int, bytes]:
    """The newest image of each page in a log, in the order in which SQLite copies them."""
    data = log.read_bytes()
    found = {}
    for start in range(32, len(data), 24 + size):
        frame = data[start : start + 24 + size]
        if len(frame) == 24 + size and frame[8:16] == data[16:24]:
            found[int.from_bytes(frame[:4], "big")] = frame[24:]
    return dict(sorted(found.items()))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_log_that_was_lost_while_it_was_folded_in_is_named(crashed: Path, backwards: bool) -> None:
    """Backwards the last change is in the database before all pages are."""
    note = NoteWriter(crashed / RECORDS)
    note.write_folding(26, True)
    note.close()
    shutil.copytree(crashed, crashed.with_name("whole"))
    with opened(crashed.with_name("whole")) as engine:
        assert (ids(engine), engine.opened) == ({f"m{n}" for n in range(1, 25)}, "loaded")
    pages = pages_of(log_of(crashed / RECORDS), 4096)
    assert len(pages) > 2
    log_of(crashed / RECORDS).unlink()
    for number, image in sorted(pages.items(), reverse=backwards):
        with pytest.raises(Damaged, match="was being folded in"):
            opened(crashed)
        with (crashed / RECORDS).open("r+b") as handle:
            handle.seek((number - 1) * 4096)
            handle.write(image)
    with opened(crashed) as engine:
        assert ids(engine) == {f"m{n}" for n in range(1, 25)}


@pytest.mark.parametrize("again", [False, True])
def test_a_log_that_is_damaged_after_it_was_folded_in_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """SQLite would put the pages that are left before the newer ones of the database."""
    path, left = tmp_path / "memory", tmp_path / "left"
    with opened(path) as engine:
        engine.add(records(0, 10))
    borders.shrink(monkeypatch, FOLD_FRAMES=30, READ_FRAMES=7)
    with opened(path) as engine:
        number = 10
        while not (note := read_note(path / RECORDS)) or not note.folded:
            engine.add(records(number, number + 1))
            number += 1
        shutil.copytree(path, left)
    (left / f"{RECORDS}-shm").unlink()
    cut = log_of(left / RECORDS).stat().st_size - 1
    if again:
        # A process goes on with the log, and is killed before it folds it in.
        with opened(left) as engine:
            assert leave(left, "fold.begin", lambda: engine.add(records(number, number + 1)), tmp_path / "again")
        left = tmp_path / "again"
    log = log_of(left / RECORDS)
    whole = log.read_bytes()
    # The ninth byte says how long a page is.
    altered = [whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :] for place in (8, 5000)]
    for damaged in (whole[:cut], whole[: cut // 2], *altered):
        log.write_bytes(damaged)
        for read_only in (False, True):
            with pytest.raises(Damaged, match="was cut or altered after it was folded in"):
                opened(left, read_only=read_only)
    for nothing in (whole, b"", bytes(len(whole))):
        shutil.copytree(left, tmp_path / "good", dirs_exist_ok=True)
        log_of(tmp_path / "good" / RECORDS).write_bytes(nothing)
        with opened(tmp_path / "good") as engine:
            assert ids(engine) == {f"m{n}" for n in range(number)}
        shutil.rmtree(tmp_path / "good")


def test_a_log_that_is_begun_while_the_one_before_is_counted_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, FOLD_FRAMES=30, LOOKS=1)
    with opened(tmp_path) as engine:
        numbers = iter(range(1000))

        def write(*_: object) -> int:
            engine.add([fr.Record(f"m{next(numbers)}", "tea")])
            return 0

        while not (note := read_note(tmp_path / RECORDS)) or not note.folded:
            write()
        monkeypatch.setattr(losses, "count_whole", counted := Mock(side_effect=write))
        assert losses.find_loss(tmp_path / RECORDS, read_only=True) is None
        assert counted.called


FOLDS = ("fold.begin", "fold.done", "close.begin", "close.folded")


@pytest.mark.parametrize("point", FOLDS)
def test_a_kill_in_a_fold_that_another_program_finishes_loses_nothing(tmp_path: Path, point: str) -> None:
    def fold() -> None:
        with opened(tmp_path / "memory") as engine:
            engine.add(records(30, 40))

    with opened(tmp_path / "memory") as engine:
        engine.add(records(0, 5))
    assert leave(tmp_path / "memory", point, fold, tmp_path / "left")
    with closing(sqlite3.connect(tmp_path / "left" / RECORDS)) as other:
        (count,) = other.execute("SELECT count(*) FROM records").fetchone()
    for _ in range(2):
        with opened(tmp_path / "left") as engine:
            assert len(engine) == count


EXTENDED = pytest.mark.extended


@pytest.mark.parametrize(
    ("verb", "point"),
    [
        *(("add", "fold.begin"), ("flush", "fold.done"), ("close", "close.begin"), ("close", "close.folded")),
        *(pytest.param(verb, point, marks=EXTENDED) for verb in ("add", "flush") for point in FOLDS[2:]),
        *(pytest.param("close", point, marks=EXTENDED) for point in FOLDS[:2]),
    ],
)
def test_an_interrupt_of_a_fold_loses_nothing(
    tmp_path: Path, point: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, FOLD_FRAMES=1)
    path = tmp_path / "memory"
    with opened(path) as engine:
        engine.add(records(0, 5))
    engine = opened(path)
    failpoints.arm(point, action=Mock(side_effect=KeyboardInterrupt))
    try:
        engine.add(records(5, 10))
        if verb == "flush":
            engine.flush()
        elif verb == "close":
            engine.close()
    except KeyboardInterrupt:
        pass
    finally:
        failpoints.disarm()
    note = read_note(path / RECORDS)
    assert not note.folding
    count = len(engine)
    with suppress(fr.errors.StorageError):
        engine.index.memory.store.close()
    del engine
    gc.collect()
    for _ in range(2):
        with opened(path) as engine:
            assert len(engine) == count


def test_a_fold_that_failed_stays_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as engine:
        engine.add(records(0, 5))
        failpoints.arm("fold.begin", action=Mock(side_effect=sqlite3.OperationalError("database or disk is full")))
        try:
            engine.flush()
            engine.add(records(5, 8))
        finally:
            failpoints.disarm()
        note = read_note(tmp_path / RECORDS)
        assert note.folding
    with opened(tmp_path) as engine:
        assert len(engine) == 8


OLDER = (
    "UPDATE meta SET value = value WHERE key = 'config'",
    "INSERT INTO records SELECT sequence + 100, namespace, 'older' || id, checksum, data, vectors FROM records",
    "INSERT INTO deletions(sequence, namespace, id) SELECT sequence + 400, namespace, id FROM records WHERE id = 'm1'",
    "DELETE FROM records WHERE id = 'm1'",
)


@pytest.mark.parametrize("closed", [True, False])
def test_what_an_older_version_wrote_is_no_loss(crashed: Path, tmp_path: Path, closed: bool) -> None:
    """It writes no note, and leaves the row that says that the log is in use."""
    if closed:
        opened(crashed).close()
    else:
        with closing(sqlite3.connect(crashed / RECORDS)) as older:
            older.execute("SELECT count(*) FROM records").fetchone()
    older = sqlite3.connect(crashed / RECORDS, isolation_level=None)
    for statement in OLDER:
        older.execute(statement)
        shutil.copytree(crashed, tmp_path / ("begun" if statement == OLDER[0] else "killed"), dirs_exist_ok=True)
    older.close()
    for path in (tmp_path / "begun", tmp_path / "killed", crashed):
        assert find(path) is None
    # A log whose records are older than the note is still one of another time.
    note = NoteWriter(tmp_path / "killed" / RECORDS)
    note.write_closed(1000)
    note.close()
    assert "of another time" in find(tmp_path / "killed").reason


@pytest.mark.parametrize("verb", ["add", "drop"])
def test_a_lost_change_of_the_columns_is_named(tmp_path: Path, verb: str) -> None:
    """No record changes, so its sequence says nothing."""
    path, killed = tmp_path / "memory", tmp_path / "killed"
    with opened(path) as engine:
        engine.add([fr.Record("a", "tea", extra={"p": "x"})])
        engine.add_column("q", "number")
    reader = sqlite3.connect(path / RECORDS)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM records").fetchone()  # The log cannot be folded in.
    with opened(path) as engine:
        engine.add_column("p", "category") if verb == "add" else engine.drop_column("q")
        declared = engine.columns
        shutil.copytree(path, killed)
        (killed / f"{RECORDS}-shm").unlink()
        shutil.copytree(killed, tmp_path / "whole")
    reader.close()
    with opened(tmp_path / "whole") as engine:
        assert engine.columns == declared
    log_of(killed / RECORDS).unlink()
    shutil.copytree(killed, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / INDEX)
    for copy in (killed, tmp_path / "bare"):
        with pytest.raises(Damaged, match="a later change of the declared columns"):
            opened(copy)
        for accept in (True, False):
            with opened(copy, accept_loss=accept) as engine:
                assert (engine.columns, len(engine)) == ({"q": "number"}, 1)


def test_a_lost_note_of_an_owner_is_named(tmp_path: Path) -> None:
    """Shards keep their part of a decision so. No record changes by it."""
    with opened(tmp_path / "memory") as engine:
        engine.add(records(0, 3))
        store = engine.index.memory.store
        log = log_of(tmp_path / "memory" / RECORDS).read_bytes()
        store.keep_notes({"part": "decided"})
        shutil.copytree(tmp_path / "memory", tmp_path / "killed")
    log_of(tmp_path / "killed" / RECORDS).write_bytes(log)
    with pytest.raises(Damaged, match="of what shards keep here"):
        opened(tmp_path / "killed")


def find(path: Path) -> losses.Loss | None:
    return losses.find_loss(path / RECORDS, read_only=False)


def test_a_reader_beside_a_writer_sees_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's note and index may be newer than what the reader read before."""
    borders.shrink(monkeypatch, FOLD_FRAMES=3)
    path = tmp_path / "memory"
    with opened(path) as engine:
        engine.add(records(0, 5))
        find, covers = losses.find_loss, IndexDirectory.covers
        number = 5

        def overtaken(directory: IndexDirectory) -> tuple[str | None, int] | None:
            nonlocal number
            before = covers(directory)
            engine.add(records(number, number + 1))
            engine.flush()
            number += 1
            return before

        monkeypatch.setattr(IndexDirectory, "covers", overtaken)
        for _ in range(10):
            assert find(path / RECORDS, read_only=True) is None
            with opened(path, read_only=True) as reader:
                assert len(reader) == number


def test_the_note_follows_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, FOLD_FRAMES=12)
    path = tmp_path / "memory"
    salts = set()
    with opened(path) as engine:
        for number in range(40):
            engine.add(records(number, number + 1))
            if number % 7 == 3:
                with pytest.raises(fr.errors.DuplicateIdError):
                    engine.add(records(number, number + 1))
            note = read_note(path / RECORDS)
            assert note is not None
            assert note._replace(folded=0) == Note(number + 1, read_salts(path / RECORDS))
            salts.add(read_salts(path / RECORDS))
    assert len(salts) > 2
    assert read_note(path / RECORDS) == Note(40, NO_LOG)
    assert not log_of(path / RECORDS).exists()


def test_a_note_that_is_not_whole_says_nothing(crashed: Path) -> None:
    note = note_of(crashed / RECORDS)
    data = note.read_bytes()
    for altered in (b"", data[:-1], data[:8] + bytes([data[8] ^ 1]) + data[9:]):
        note.write_bytes(altered)
        assert read_note(crashed / RECORDS) is None
    with opened(crashed) as engine:
        assert len(engine) == 24
