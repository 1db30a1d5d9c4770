"""A batch is in all its shards or in none, whatever ends the process, and readers never see a part of it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.sharding import WORDS, Crash, FailingLink, assert_same_answers, crash, opened, split_over_all, turns
from support.threads import in_threads

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.shards.engine import ShardedEngine


def search(engine: fr.Engine | ShardedEngine) -> list[list[tuple[str, float]]]:
    hits = engine.search([fr.Query(word, namespace="big") for word in (*WORDS, "elk")], k=50)
    return [list(map(tuple, row)) for row in hits]


def test_dropping_a_split_namespace_survives_a_crash(tmp_path: Path) -> None:
    several = opened(tmp_path, shards=3)
    split_over_all(several, "big")
    several.add([*turns(0, 20), fr.Record("other", "ant")])
    failpoints.arm("batch.decided", action=crash)
    with pytest.raises(Crash):
        several.drop("big")
    assert len(search(several)[0]) == 20
    several.close()
    with opened(tmp_path) as again:
        assert again.namespaces == ("",)
        assert again.coordinator.placement.split == {}
        assert again.add(turns(0, 3)) == 3


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("shard", "kind"), [(0, fr.errors.DeadlineError), (1, fr.errors.StorageError)])
def test_what_is_decided_is_done_first(tmp_path: Path, shard: int, kind: type[fr.FanrankError], after: bool) -> None:
    one, several = fr.Engine(), opened(tmp_path, shards=3)
    split_over_all(several, "big")
    for engine in (one, several):
        engine.add(turns(0, 12))
    before = search(several)
    links: Any = several.coordinator.links
    links[shard] = FailingLink(links[shard], after=after, error=kind("too late"))
    with pytest.raises(kind, match="too late; the write is decided, and is done before the next one to its shards"):
        several.add(turns(12, 12))
    assert search(several) == before
    one.add(turns(12, 12))
    for engine in (one, several):
        engine.delete(["r1", "r13"], namespace="big")
    assert search(several) == search(one)
    for name in ("bm25", "rm3"):
        assert_same_answers(one, several, [fr.Query("ant", namespace="big")], k=5, strategy=name)
    several.close()


def test_readers_see_no_part_of_a_batch(tmp_path: Path) -> None:
    # Each batch replaces the text of all records, so that an answer with two texts is of two epochs.
    several = opened(tmp_path, shards=3)
    split_over_all(several, "big")
    several.add([fr.Record(str(n), "epoch0 ant", "big") for n in range(9)])
    seen: list[set[str]] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            (row,) = several.search([fr.Query("ant", namespace="big")], k=9, texts=True)
            seen.append({hit.text for hit in row})
            records = several.fetch([str(n) for n in range(9)], namespace="big")
            seen.append({record.text for record in records if record is not None})

    def write() -> None:
        try:
            for number in range(1, 12):
                several.update([fr.Record(str(n), f"epoch{number} ant", "big") for n in range(9)])
        finally:
            over.set()

    in_threads(read, read, write)
    assert seen
    assert all(len(texts) == 1 for texts in seen)
    several.close()


def test_bad_openings_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(fr.errors.ParameterError, match="say how many shards"):
        opened(tmp_path)
    with opened(tmp_path, shards=2, columns={"kind": "category"}) as several:
        several.add([fr.Record("1", "ant", extra={"kind": "x"})])
        with pytest.raises(fr.errors.StoreLockedError, match="has it open, and a sharded memory has one owner"):
            opened(tmp_path)
    with pytest.raises(fr.errors.ParameterError, match="has 2 shards, not 3; leave shards out, or add some with add_"):
        opened(tmp_path, shards=3)
    with pytest.raises(fr.errors.ParameterError, match="was made with"):
        opened(tmp_path, k1=9.0)
    with pytest.raises(fr.errors.ParameterError, match="fanrank_order"):
        ShardedEngine.open(tmp_path / "x", shards=2, transport="local", columns={"fanrank_order": "number"})
    with pytest.raises(fr.errors.ParameterError, match="fanrank_order"):
        fr.Engine.open(tmp_path / "y", columns={"fanrank_order": "number"})
    assert not (tmp_path / "y").exists()
    refused: list[dict[str, Any]] = [{"keep_texts": False}, {"transport": "pigeon"}, {"partial": "maybe"}]
    for how in refused:
        with pytest.raises(fr.errors.ParameterError, match=next(iter(how))):
            ShardedEngine.open(tmp_path / "x", **{"shards": 2, "transport": "local", **how})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(fr.errors.ForeignIndexError, match=r"letter\.txt"):
        ShardedEngine.open(tmp_path / "full", shards=2, transport="local")
    with pytest.raises(fr.errors.ForeignIndexError, match="is the directory of one engine"):
        ShardedEngine.open(tmp_path / "memory" / "shard-0000", shards=2, transport="local")

    folder = tmp_path / "memory"
    (folder / "shard-0001").rename(tmp_path / "away")
    with pytest.raises(fr.errors.StorageError, match="shard 1 is lost"):
        opened(tmp_path)
    columns = {"kind": "category", "fanrank_order": "number"}
    fr.Engine.open(folder / "shard-0001", columns=columns, accept_loss=True).close()
    with pytest.raises(fr.errors.ForeignIndexError, match="shard 1 holds the records of another engine"):
        opened(tmp_path)
    (folder / "shard-0001").rename(tmp_path / "other")
    (tmp_path / "away").rename(folder / "shard-0001")
    with opened(tmp_path) as several:
        assert several.get("1") == fr.Record("1", "ant", extra={"kind": "x"})


def test_what_an_engine_refuses_of_a_batch_leaves_no_trace_in_any_shard(tmp_path: Path) -> None:
    one, several = fr.Engine(columns={"n": "number"}), opened(tmp_path, shards=3, columns={"n": "number"})
    split_over_all(several, "big")
    for engine in (one, several):
        engine.add(turns(0, 9))
    before = search(several)
    bad: list[Callable[[Any], Any]] = [
        lambda engine: engine.add(turns(8, 5)),
        lambda engine: engine.add([*turns(20, 5), *turns(20, 1)]),
        lambda engine: engine.update(turns(5, 6)),
        lambda engine: engine.delete(["r1", "r77"], namespace="big"),
        lambda engine: engine.add([*turns(20, 5), fr.Record("x", "ant", "big", extra={"n": "seven"})]),
        lambda engine: engine.add([*turns(20, 5), fr.Record("x", "ant", "big", extra={"s": {1, 2}})]),
        lambda engine: engine.add([*turns(20, 5), fr.Record("x", "\ud800", "big")]),
        lambda engine: engine.add([*turns(20, 5), fr.Record("x", "ant", "big", weights={"a": 1e9})]),
        lambda engine: engine.add([*turns(20, 5), {"id": "x"}]),
        lambda engine: engine.patch(["r1", "r77"], namespace="big", text="x"),
        lambda engine: engine.delete_where({}, namespace="big"),
    ]
    for write in bad:
        with pytest.raises(fr.FanrankError) as refused:
            write(several)
        if write is not bad[6] and write is not bad[5]:
            with pytest.raises(fr.FanrankError) as expected:
                write(one)
            assert (refused.type, str(refused.value)) == (expected.type, str(expected.value))
        assert search(several) == before
    with pytest.raises(fr.errors.RecordError, match="fanrank_order"):
        several.add([fr.Record("x", "ant", extra={"fanrank_order": 1})])
    several.close()


def test_whole_copies_follow_all_writes(tmp_path: Path) -> None:
    one, several = fr.Engine(), opened(tmp_path, shards=3)
    split_over_all(several, "big")
    queries = [fr.Query("ant bee", namespace="big"), fr.Query("elk", namespace="big")]
    for number in range(6):
        for engine in (one, several):
            engine.add(turns(20 * number, 9))
            engine.upsert(turns(20 * number + 5, 6, "elk"))
            engine.delete([f"r{20 * number}"], namespace="big")
        assert_same_answers(one, several, queries, k=7, strategy="rm3", texts=True)
    several.drop("big")
    assert several.search(queries, strategy="rm3").counts.tolist() == [0, 0]
    several.close()


def test_a_namespace_that_begins_large_is_split_at_once(tmp_path: Path) -> None:
    one, several = fr.Engine(), opened(tmp_path, shards=4, split_at=10)
    for engine in (one, several):
        engine.add([*turns(0, 25), fr.Record("x", "ant", "small")])
    assert len(several.coordinator.placement.homes("big")) == 3
    assert len(several.coordinator.placement.homes("small")) == 1
    assert search(several) == search(one)
    several.close()
    with opened(tmp_path) as several:
        assert search(several) == search(one)
