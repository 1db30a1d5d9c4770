"""The file of a memory's owner: what was altered or put back alone is refused by name.

A decision is carried out whole or not at all, whatever fails.
"""

import errno
import shutil
import sqlite3
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.dying import HANGS, dying, link_of
from support.sharding import Crash, FailingLink, crash, opened, split_over_all, turns

import fanrank as fr
from fanrank.engine.errors import DamagedIndexError, DamagedStoreError, DeadlineError, NewerFormatError, StorageError
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.index_files import OWNER
from fanrank.engine.storage.record_store import RecordStore
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.shard.parts import Reserve

FORMATS = Path(__file__).parent / "formats"
TENANTS = [fr.Record("r", "ant bee", f"tenant{number}") for number in range(20)]


def filled(folder: Path, records: list[fr.Record] = TENANTS) -> ShardedEngine:
    """A memory in which some namespaces lie elsewhere than their names say, and one is split."""
    several = opened(folder, shards=2)
    several.add(records)
    several.add_shards(1)
    split_over_all(several, "big")
    several.add(turns(0, 12))
    return several


def alter(folder: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(folder / "memory" / OWNER)
    with connection:
        connection.execute(statement, values)
    connection.close()


def everything(engine: fr.Engine | ShardedEngine) -> set[tuple[str, str]]:
    return {(record.namespace, record.id) for record in engine.records(namespace=None, limit=1_000)}


ALTERED: list[tuple[str, str]] = [
    ("UPDATE placement SET value = '[1, 0]' WHERE name = (SELECT max(name) FROM placement)", "was altered"),
    ("UPDATE placement SET name = name || 'x' WHERE name = (SELECT max(name) FROM placement)", "was altered"),
    ("DELETE FROM placement WHERE name = (SELECT max(name) FROM placement)", "lacks rows"),
    ("DELETE FROM shards WHERE name = '1'", "lacks rows"),
    ("UPDATE shards SET value = value + 1", "was altered"),
    ("UPDATE head SET value = replace(value, '3', '2') WHERE name = 'placement'", "was altered"),
    ("DELETE FROM head WHERE name = 'settings'", "is incomplete"),
]


@pytest.mark.parametrize(("statement", "message"), ALTERED)
def test_a_file_that_was_altered_is_refused(tmp_path: Path, statement: str, message: str) -> None:
    filled(tmp_path).close()
    alter(tmp_path, statement)
    with pytest.raises(DamagedStoreError, match=rf"owner\.sqlite: .*{message}.*restore the memory from a copy"):
        opened(tmp_path)


def test_a_file_of_a_newer_format_or_of_another_program_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    alter(tmp_path, "PRAGMA user_version=9")
    with pytest.raises(NewerFormatError, match="format 9, and this fanrank reads up to 2"):
        opened(tmp_path)
    alter(tmp_path, "PRAGMA application_id=9")
    with pytest.raises(fr.errors.ForeignIndexError, match="not the file of a sharded memory"):
        opened(tmp_path)


@pytest.mark.parametrize("part", [OWNER, "shard-0001"])
def test_a_part_that_was_put_back_alone_is_refused(tmp_path: Path, part: str) -> None:
    filled(tmp_path).close()
    path, older = tmp_path / "memory" / part, tmp_path / "older"
    (shutil.copytree if path.is_dir() else shutil.copy)(path, older)
    with opened(tmp_path) as several:
        several.rebalance()
        held = everything(several)
    path.rename(tmp_path / "newer")
    (shutil.copytree if older.is_dir() else shutil.copy)(older, path)
    with pytest.raises(DamagedStoreError, match=r"owner\.sqlite: is (older|newer) than shard \d"):
        opened(tmp_path)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tmp_path / "newer").rename(path)
    with opened(tmp_path) as several:
        assert everything(several) == held


def test_a_file_of_the_middle_of_a_move_deletes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, shards=3) as several:
        several.add(turns(0, 30))
        home = several.coordinator.placement.home("big")
        several.coordinator.page = 5
        kept: list[Path] = []

        def keep() -> None:
            several.coordinator.owner.write(tmp_path / "middle")
            kept.append(tmp_path / "middle")

        failpoints.arm("move.page", 2, keep)
        several.coordinator.place("big", ((home + 1) % 3,))
    assert kept
    shutil.copy(tmp_path / "middle", tmp_path / "memory" / OWNER)
    with pytest.raises(DamagedStoreError, match="is older than shard"):
        opened(tmp_path)


def test_records_in_a_shard_that_is_not_their_home_are_named(tmp_path: Path) -> None:
    with opened(tmp_path, shards=2) as several:
        several.add(TENANTS)
        home = several.coordinator.placement.home("tenant0")
        shard = several.coordinator.links[1 - home].shard  # type: ignore[attr-defined]
        shard.engine.index.ready().write(added=[fr.Record("x", "ant", "tenant0", extra={"fanrank_order": 99})])
    with pytest.raises(DamagedStoreError, match=rf"'tenant0' lies in shards \[{home}\], and shard {1 - home} holds 1"):
        opened(tmp_path)


@pytest.mark.parametrize("how", ["lost", "cut", "flipped"])
def test_a_decision_that_was_lost_leaves_no_half_batch(tmp_path: Path, how: str) -> None:
    """One shard has carried the batch out, and the log of the owner's file loses the decision."""
    several = opened(tmp_path, shards=2)
    split_over_all(several, "big")
    several.add(turns(0, 8))
    links: Any = several.coordinator.links
    links[1] = FailingLink(links[1], after=False, error=DeadlineError("too late"))
    with pytest.raises(DeadlineError, match="the write is decided, and is done before the next one to its shards"):
        several.add(turns(8, 8))
    image = tmp_path / "image"
    shutil.copytree(tmp_path / "memory", image / "memory")
    several.close()
    log = image / "memory" / f"{OWNER}-wal"
    data = bytearray(log.read_bytes())
    data[-100] ^= 1
    if how == "lost":
        log.unlink()
    else:
        log.write_bytes(data[:-1] if how == "cut" else data)
    with pytest.raises(DamagedStoreError, match="is older than shard 0"):
        opened(image)
    with opened(tmp_path) as again:
        assert len(again) == 16


def test_an_unsynced_decision_whose_page_is_lost_was_none(tmp_path: Path) -> None:
    several = opened(tmp_path, shards=2)
    split_over_all(several, "big")
    several.add(turns(0, 8))
    failpoints.arm("batch.decided", action=crash)
    with pytest.raises(Crash):
        several.add(turns(8, 8))
    image = tmp_path / "image"
    shutil.copytree(tmp_path / "memory", image / "memory")
    log = image / "memory" / f"{OWNER}-wal"
    log.write_bytes(log.read_bytes()[:-4096] + bytes(4096))
    with opened(image) as again:
        assert len(again) == 8
        assert again.add(turns(8, 8)) == 8
    several.close()


def fail_once(verb: str, link: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk of a shard in this process be full, the next time that it does something."""
    store = link.shard.engine.index.memory.store
    right = getattr(store, verb)

    def fail(*arguments: Any) -> Any:
        monkeypatch.setattr(store, verb, right)
        raise StorageError("no space left; nothing was written. Free some and try again")

    monkeypatch.setattr(store, verb, fail)


@pytest.mark.parametrize("shard", [0, 1])
def test_a_batch_that_one_shard_refuses_is_in_none(tmp_path: Path, shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, shards=2) as several:
        split_over_all(several, "big")
        several.add(turns(0, 8))
        for refuse in ("keep_notes", "reserve"):
            with monkeypatch.context() as patched:
                if refuse == "reserve":
                    several.coordinator.links[shard].shard.notes.make_room()  # type: ignore[attr-defined]
                    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
                    patched.setattr("os.posix_fallocate", full)
                else:
                    fail_once("keep_notes", several.coordinator.links[shard], patched)
                with pytest.raises(StorageError, match="nothing was written"):
                    several.add(turns(8, 8))
            assert len(several) == 8
            assert several.coordinator.lags() == [0, 0]
        assert several.add(turns(8, 8)) == 8
    with opened(tmp_path) as again:
        assert again.verify() == {"records": 16, "missing": 0, "extra": 0}


def test_what_is_decided_has_the_room_that_was_kept_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, shards=2) as several:
        split_over_all(several, "big")
        several.add(turns(0, 8))
        fail_once("write", several.coordinator.links[1], monkeypatch)
        assert several.add(turns(8, 8)) == 8
        assert len(several) == 16


def test_a_part_that_fails_again_at_the_opening_is_done_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = opened(tmp_path, shards=2)
    split_over_all(several, "big")
    several.add(turns(0, 8))
    failpoints.arm("batch.decided", action=crash)
    with pytest.raises(Crash):
        several.add(turns(8, 8))
    shutil.copytree(tmp_path / "memory", tmp_path / "image" / "memory")
    several.close()
    left, write = 2, RecordStore.write  # The first time it has the room that was kept for it.

    def fail(store: RecordStore, *arguments: Any) -> int:
        nonlocal left
        if "shard-0001" in str(store.path) and left:
            left -= 1
            raise StorageError(f"{store.path}: no space left; nothing was written. Free some and try again")
        return write(store, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RecordStore, "write", fail)
        with pytest.raises(StorageError, match="shard-0001"):
            opened(tmp_path / "image")
    with opened(tmp_path / "image") as again:
        assert again.verify() == {"records": 16, "missing": 0, "extra": 0}
        assert again.add(turns(16, 8)) == 8


def test_a_reserve_holds_room_until_it_is_let_go_of(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve")
    reserve.keep(10_000)
    reserve.keep(5_000)
    assert (tmp_path / "reserve").stat().st_size == 10_000
    assert reserve.release()
    assert not (tmp_path / "reserve").exists()
    assert not reserve.release()


def test_a_decision_that_cannot_be_written_is_in_doubt_until_it_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, shards=2) as several:
        split_over_all(several, "big")
        several.add(turns(0, 8))
        owner = several.coordinator.owner

        def fail(*_: object) -> None:
            owner._uncertain = True
            raise StorageError("disk I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(owner, "decide", fail)
            patched.setattr(owner, "confirm", fail)
            with pytest.raises(StorageError, match="whether the write was decided is in doubt"):
                several.add(turns(8, 8))
            # Neither shard shows it meanwhile.
            assert len(several) == 8
        assert several.add(turns(8, 8)) == 8


def test_a_generation_whose_part_was_dropped_is_not_used_again(tmp_path: Path) -> None:
    """A shard that has dropped the part of a generation keeps no other one under it, so the decision would be lost."""
    for point in ("batch.prepared", "batch.decided"):
        several = opened(tmp_path, shards=2)
        split_over_all(several, "big")
        failpoints.arm(point, action=crash)
        with pytest.raises(Crash):
            several.add(turns(0, 8))
        several.close()
    with opened(tmp_path) as again:
        assert len(again) == 8


@pytest.mark.parametrize("verb", ["prepare", "apply"])
def test_a_silent_shard_holds_up_what_touches_it_and_nothing_else(tmp_path: Path, verb: str) -> None:
    one, several = fr.Engine(), dying(tmp_path / "memory", 3, deadline=0.5)
    placement = several.coordinator.placement
    spaces = {placement.home(f"n{number}"): f"n{number}" for number in range(30)}
    first = [fr.Record("a", "ant", space) for space in spaces.values()]
    for engine in (one, several):
        engine.add(first)
    link_of(several, 1).plan(verb, HANGS)
    both = [fr.Record("b", "ant", spaces[0]), fr.Record("b", "ant", spaces[1])]
    done = "is decided" if verb == "apply" else "nothing was written"
    with pytest.raises(DeadlineError, match=f"shard 1 did not answer.*{done}"):
        several.add(both)
    # The shards of one decision wait for each other; others do not, and no search waits for a write.
    free = [2] if verb == "apply" else [0, 2]
    for shard in free:
        for engine in (one, several):
            engine.add([fr.Record("c", "ant", spaces[shard])])
    for shard in {0, 1, 2} - {*free}:
        with pytest.raises(DeadlineError):
            several.add([fr.Record("d", "ant", spaces[shard])])
    queries = [fr.Query("ant", namespace=spaces[shard]) for shard in (0, 2)]
    assert several.search(queries).ids.tolist() == one.search(queries).ids.tolist()
    link_of(several, 1).hanging = False
    if verb == "apply":
        one.add(both)
    for engine in (one, several):
        engine.upsert([fr.Record("d", "ant", space) for space in spaces.values()])
    assert everything(several) == everything(one)
    several.close()


BIG = {f"r{number}" for number in range(12)} - {"r3"}
TEAM = {f"r{number}" for number in range(4)}
OLDER: list[tuple[str, set[str], set[str]]] = [
    ("closed", BIG, TEAM),
    ("batch", BIG | {f"r{number}" for number in range(8, 20)}, TEAM),
    ("move", BIG, TEAM),
    ("moved", BIG, TEAM),
    ("dropped", set(), TEAM),
]


@pytest.mark.parametrize(("kind", "big", "team"), OLDER, ids=[row[0] for row in OLDER])
def test_a_memory_of_the_first_format_is_carried_over(tmp_path: Path, kind: str, big: set[str], team: set[str]) -> None:
    """A memory that was closed, and four whose owner was killed: in a batch that one of three shards had done, between
    the pages of a move, after its table was replaced, and in the drop of a split namespace."""
    with tarfile.open(FORMATS / f"table-1-{kind}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = {("", "one"), *(("big", each) for each in big), *(("team/a", each) for each in team)}
    for _ in range(2):
        with opened(tmp_path) as several:
            assert everything(several) == expected
            assert several.verify() == {"records": len(expected), "missing": 0, "extra": 0}
        assert not {"shards.json", "intents"} & {file.name for file in (tmp_path / "memory").iterdir()}
    with opened(tmp_path) as several:
        several.upsert(turns(0, 20))
        several.rebalance()
        assert len(several) == 20 + len(team) + 1


def test_a_table_of_the_first_format_from_the_middle_of_a_move_deletes_nothing(tmp_path: Path) -> None:
    """The table says that a copy was being made, and the copy is all that there is."""
    with tarfile.open(FORMATS / "table-1-closed.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    table = tmp_path / "memory" / "shards.json"
    right = table.read_text()
    table.write_text(right.replace('"team/a": 1', "").replace('"moving": {}', '"moving": {"team/a": [1]}'))
    with pytest.raises(DamagedIndexError, match="older than its shards"):
        opened(tmp_path)
    table.write_text(right)
    with opened(tmp_path) as several:
        assert len(several) == 16


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("shards.json", '"version": 1', '"version": 9', "version 9"),
        ("shards.json", '"shards": 3', '"shards": 1', "is incomplete"),
        ("shards.json", "{", "", "is no JSON"),
        ("intents", '"batches"', '"batched"', "checksum differs"),
    ],
)
def test_a_table_of_the_first_format_that_is_damaged_is_refused(
    tmp_path: Path, name: str, before: str, after: str, message: str
) -> None:
    with tarfile.open(FORMATS / "table-1-batch.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "memory" / name
    path.write_bytes(path.read_bytes().replace(before.encode(), after.encode(), 1))
    with pytest.raises(StorageError, match=message):
        opened(tmp_path)
