"""What fails or comes late between a write and its answer: nothing refused is carried out, all that is done counts."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.dying import AFTER, BEFORE, HANGS, HELD, DyingLink, dying, dying_beside_one, link_of
from support.sharding import assert_same_answers, assert_same_records, sharded

import fanrank as fr
from fanrank.engine.storage.row_codec import encode, encode_all
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.processes.links import Done
from fanrank.shards.protocol.messages import Gone, Part
from fanrank.shards.shard import shard as shards
from fanrank.shards.shard.parts import decode_part, encode_part
from fanrank.shards.shard.records import read_sizes
from fanrank.shards.shard.shard import Setup, Shard

SPACE = "big"
RECORDS = [fr.Record(f"r{number}", "ant bee"[: number % 8], SPACE) for number in range(24)]
QUERIES = [fr.Query("ant bee", namespace=SPACE, k=40)]


def record_of(engine: ShardedEngine, shard: int, text: str = "ant bee") -> fr.Record:
    """A record that this shard holds."""
    shard_of = engine.coordinator.placement.finder()
    names = (f"new{number}" for number in range(99))
    return fr.Record(next(name for name in names if shard_of(SPACE, name) == shard), text, SPACE)


def test_a_drop_that_cannot_be_decided_is_not_carried_out_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, several = dying_beside_one(tmp_path, RECORDS, SPACE)
    with monkeypatch.context() as patched:
        full = Mock(side_effect=fr.errors.StorageError("no space is left; nothing was changed"))
        patched.setattr(several.coordinator.owner, "decide", full)
        with pytest.raises(fr.errors.StorageError, match="nothing was changed"):
            several.drop(SPACE)
    for engine in (one, several):
        engine.add([fr.Record("x", "ant", "other")])
    assert len(several) == len(one)
    assert_same_answers(one, several, QUERIES)
    several.close()


def test_a_write_that_is_interrupted_while_it_waits_is_counted(tmp_path: Path) -> None:
    one, several = dying_beside_one(tmp_path, RECORDS, SPACE)
    link: Any = link_of(several, 0)
    send = link.send

    class Interrupted:
        def result(self, until: float | None) -> None:
            raise KeyboardInterrupt

    def interrupt(verb: str, *arguments: Any, **keywords: Any) -> Any:
        answer = send(verb, *arguments, **keywords)
        return Interrupted() if verb == "apply" else answer

    link.send = interrupt
    with pytest.raises(KeyboardInterrupt):
        several.add([record_of(several, 0)])
    link.send = send
    one.add([record_of(several, 0)])
    for engine in (one, several):
        engine.add([record_of(several, 1)])
    assert_same_answers(one, several, QUERIES)
    several.close()


def test_a_write_that_is_interrupted_after_its_commit_is_seen_by_no_older_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, several = fr.Engine(), sharded(3, split=[SPACE])
    for engine in (one, several):
        engine.add(RECORDS)
    memory = several.coordinator.links[0].shard.engine.index.memory  # type: ignore[attr-defined]
    write = memory.write

    def interrupt(**how: Any) -> int:
        write(**how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(memory, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            several.add([record_of(several, 0)])
    one.add([record_of(several, 0)])
    assert_same_answers(one, several, QUERIES)
    for engine in (one, several):
        engine.add([record_of(several, 1)])
    assert_same_answers(one, several, QUERIES)


def test_counts_that_cannot_be_read_after_a_write_are_read_before_the_next_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, several = dying_beside_one(tmp_path, RECORDS, SPACE)
    for engine in (one, several):
        with monkeypatch.context() as patched:
            # As after terms were numbered anew: the change is not known.
            patched.setattr(shards, "_change", lambda *arguments: None)
            if engine is several:
                link_of(several, 1).plan("counts", BEFORE)
            assert engine.add([record_of(several, 0)]) == 1
        engine.add([record_of(several, 2)])
    assert_same_answers(one, several, QUERIES)
    several.close()


def test_a_tag_that_comes_late_moves_no_shard_back() -> None:
    several = sharded(2)
    link = several.coordinator.links[0]
    link.send("tag", 10).result(None)
    link.send("tag", 7).result(None)
    assert link.send("newest").result(None) == 10
    # With an older number the shard would carry this out, and call its state that of an older epoch.
    assert isinstance(link.send("apply", 8, Part(), missing_ok=True).result(None), Gone)


def test_a_move_that_is_interrupted_can_be_made_again(tmp_path: Path) -> None:
    one, several = fr.Engine(), dying(tmp_path / "memory", 3)
    for engine in (one, several):
        engine.add(RECORDS)
    coordinator = several.coordinator
    coordinator.page = 5
    home = coordinator.placement.home(SPACE)
    with pytest.raises(KeyboardInterrupt):
        coordinator.place(SPACE, ((home + 1) % 3,), watch=Mock(side_effect=KeyboardInterrupt))
    coordinator.place(SPACE, ((home + 1) % 3,))
    assert_same_answers(one, several, QUERIES)
    assert several.verify() == {"records": len(RECORDS), "missing": 0, "extra": 0}
    several.close()


def test_a_shard_that_fails_to_close_keeps_no_other_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ShardedEngine.open(tmp_path / "memory", shards=3, transport="local") as several:
        several.add(RECORDS)
        link: Any = several.coordinator.links[0]
        close = link.close

        def fail() -> None:
            close()
            raise fr.errors.StorageError("no space is left")

        monkeypatch.setattr(link, "close", fail)
        with pytest.raises(fr.errors.StorageError, match="no space"):
            several.close()
    with ShardedEngine.open(tmp_path / "memory", transport="local") as several:
        assert len(several) == len(RECORDS)


def test_of_several_ids_that_are_taken_the_first_of_the_batch_is_named() -> None:
    for engine in (fr.Engine(), sharded(1), sharded(3, split=[SPACE])):
        # A segment of one record is not merged with one of a hundred, and is found behind it.
        engine.add([fr.Record(f"r{number}", "ant", SPACE) for number in range(100)])
        engine.add([fr.Record("last", "ant", SPACE)])
        with pytest.raises(fr.errors.DuplicateIdError, match="'last'"):
            engine.add([fr.Record(name, "ant", SPACE) for name in ("new", "last", "r3", "r2")])


@pytest.mark.parametrize("verb", ["upsert", "delete"])
def test_a_batch_that_takes_longer_than_the_deadline_is_not_begun_again(tmp_path: Path, verb: str) -> None:
    one, several = dying_beside_one(tmp_path, RECORDS, SPACE)
    link: Any = link_of(several, 0)
    send = link.send

    def answer_late(verb: str, *arguments: Any, **keywords: Any) -> Any:
        answer = send(verb, *arguments, **keywords)
        return Done(error=fr.errors.DeadlineError("shard 0 did not answer")) if verb == "apply" else answer

    link.send = answer_late
    batch: Any = RECORDS if verb == "upsert" else [record.id for record in RECORDS[::2]]
    how = {} if verb == "upsert" else {"namespace": SPACE}
    with pytest.raises(fr.errors.DeadlineError, match="before the next one to"):
        getattr(several, verb)(batch, **how)
    getattr(one, verb)(batch, **how)
    for engine in (one, several):
        engine.add([record_of(several, 1)])
    assert_same_answers(one, several, QUERIES)
    several.close()
    with dying(tmp_path / "memory", 3) as again:
        assert_same_answers(one, again, QUERIES)


def test_counts_that_cannot_be_read_after_a_doubt_are_read_before_the_next_write(tmp_path: Path) -> None:
    one, several = dying_beside_one(tmp_path, RECORDS, SPACE)
    link_of(several, 0).plan("apply", AFTER)
    link_of(several, 1).plan("counts", HANGS)
    batch = [record_of(several, shard) for shard in range(3)]
    with pytest.raises(fr.errors.DeadlineError, match="shard 1"):
        several.add(batch)
    link_of(several, 1).hanging = False
    one.add(batch)
    for engine in (one, several):
        engine.add([fr.Record("last", "ant", SPACE)])
    assert_same_answers(one, several, QUERIES)
    several.close()


SPACES = ("big", "small")
IN_BOTH = [fr.Record(f"r{number}", "ant bee", space) for space in SPACES for number in range(12)]
ASKED = [fr.Query("ant elk fox", namespace=space) for space in SPACES]


def check(one: fr.Engine, several: ShardedEngine) -> None:
    assert_same_answers(one, several, ASKED, k=30)
    assert_same_records(one, several, SPACES)


def written(word: str, space: str, count: int = 6) -> list[fr.Record]:
    return [fr.Record(f"r{number}", f"ant {word}", space) for number in range(count)]


WRITES: dict[str, Callable[[Any], object]] = {
    "update of one shard": lambda engine: engine.update(written("elk", "small")),
    "delete of one shard": lambda engine: engine.delete(["r1", "r2"], namespace="small"),
    "update of all shards": lambda engine: engine.update(written("elk", "big")),
    "delete of all shards": lambda engine: engine.delete([f"r{number}" for number in range(6)], namespace="big"),
    "drop": lambda engine: engine.drop("small"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_message_that_comes_after_later_writes_changes_nothing(tmp_path: Path, name: str) -> None:
    one, several = dying_beside_one(tmp_path, IN_BOTH, "big")
    links = [link_of(several, shard) for shard in range(3)]
    space = "big" if name.endswith("all shards") else "small"
    homes = several.coordinator.placement.homes(space)
    for home in homes:
        links[home].plan("apply", HELD)
    for engine in (one, several):
        WRITES[name](engine)
        # What took the place of the message that is held: it would undo this.
        engine.upsert(written("fox", space, 12))
    late = [answer for home in homes for answer in links[home].deliver()]
    assert late
    assert all(isinstance(answer, Gone) for answer in late)
    check(one, several)
    for engine in (one, several):
        engine.upsert(written("elk", space, 3))
    check(one, several)
    several.close()
    with dying(tmp_path / "memory", 3) as again:
        check(one, again)


def test_a_shard_that_was_started_anew_writes_nothing_before_it_is_told_an_epoch() -> None:
    shard = Shard(Setup(0, None, {"columns": {"fanrank_order": "number"}}))
    assert shard.newest() is None
    batch = Part(added=[fr.Record("r1", "ant", extra={"fanrank_order": 0})])
    answer = shard.apply(5, batch, missing_ok=True)
    assert isinstance(answer, Gone)
    assert answer.newest is None
    shard.tag(4)
    assert shard.read(4, read_sizes, False) == {}
    assert isinstance(shard.apply(4, batch, missing_ok=True), Gone)
    assert not isinstance(shard.apply(5, batch, missing_ok=True), Gone)
    assert shard.read(5, read_sizes, False) == {"": 1}
    shard.close()


def test_a_part_that_an_earlier_version_prepared_is_read() -> None:
    record = fr.Record("r1", "two\nlines", "team", embedding=[1.0, 0.0])
    row = encode(record, 3)
    assert row.vectors is not None
    added = [["team", row.id, row.checksum, row.data, base64.b64encode(row.vectors).decode()]]
    old = {"generation": 5, "removed": {"team": ["r0"]}, "added": added, "drop": [], "show": None}
    now = encode_part(5, Part({"team": ["r0"]}, [record], [3]), [row])
    for text in (json.dumps(old), now):
        generation, part = decode_part(text)
        assert (generation, part.removed, part.drop) == (5, {"team": ["r0"]}, ())
        assert encode_all(part.added) == [row]


@pytest.mark.parametrize("between", ["write", "search"])
def test_a_whole_copy_that_ended_is_made_again(tmp_path: Path, between: str) -> None:
    one, several = dying_beside_one(tmp_path, IN_BOTH, "big")
    how: dict[str, Any] = {"strategy": "recall", "k": 30}
    assert_same_answers(one, several, ASKED, **how)
    links = [whole.link for whole in several.coordinator.wholes.values() if whole.link is not None]
    assert links
    for link in links:
        assert isinstance(link, DyingLink)
        # It is there again, and empty, when the next write or search comes.
        link.end(away=0)
    if between == "search":
        assert_same_answers(one, several, ASKED, **how)
    for engine in (one, several):
        engine.upsert(written("elk", "big"))
    assert_same_answers(one, several, ASKED, **how)
    several.close()
