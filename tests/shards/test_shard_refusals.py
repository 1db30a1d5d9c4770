"""What a sharded memory refuses, by which error, and what it says to do; and what it tells of itself."""

from pathlib import Path
from typing import Any

import pytest
from support.sharding import outcome, sharded, split_over_all, write

import fanrank as fr
from fanrank.engine.engine import Engine
from fanrank.engine.storage.index_files import OWNER
from fanrank.errors import DamagedIndexError, ForeignIndexError
from fanrank.shards.engine import ShardedEngine


def opened(folder: Path, **how: Any) -> ShardedEngine:
    return ShardedEngine.open(folder, transport="local", **how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"storage": 7}, "storage must be the path of a folder, not 7"),
        ({"storage": ""}, "storage must be the path of a folder, not ''"),
        ({"num_gpus": -1}, "num_gpus must be a number of 0 or more, not -1"),
        ({"num_gpus": "1"}, "num_gpus must be a number of 0 or more, not '1'"),
        ({"num_cpus": None}, "num_cpus must be a number of 0 or more, not None"),
        ({"num_cpus": float("nan")}, "num_cpus must be a number of 0 or more, not nan"),
        ({"deadline": float("inf")}, "deadline must be seconds above 0, not inf"),
        ({"address": "auto"}, "address is for actors of Ray; with transport='local' there are none, so leave it out"),
        ({"num_gpus": 1}, "num_gpus is for actors of Ray"),
        ({"num_cpus": 0.5}, "num_cpus is for actors of Ray"),
    ],
)
def test_arguments_of_no_use_are_refused_before_anything_is_made(
    tmp_path: Path, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(fr.errors.ParameterError, match=message):
        opened(tmp_path / "memory", shards=2, **how)
    assert not (tmp_path / "memory").exists()


def test_a_directory_that_the_system_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("dear")
    with pytest.raises(fr.errors.StorageError, match=r"file/memory: Not a directory"):
        opened(tmp_path / "file" / "memory", shards=2)
    opened(tmp_path / "memory", shards=2).close()
    (tmp_path / "memory" / OWNER).unlink()
    (tmp_path / "memory" / OWNER).mkdir()
    with pytest.raises(fr.errors.StorageError, match=r"owner\.sqlite: unable to open"):
        opened(tmp_path / "memory")


def test_shards_elsewhere_say_that_a_storage_was_named(tmp_path: Path) -> None:
    opened(tmp_path / "memory", shards=2, storage=tmp_path / "disk").close()
    with pytest.raises(fr.errors.StorageError, match=r"shard 0 is lost.* or name the storage that the memory was made"):
        opened(tmp_path / "memory")
    opened(tmp_path / "memory", storage=tmp_path / "disk").close()


def test_a_closed_memory_refuses_each_verb() -> None:
    memory = sharded(2)
    memory.add([fr.Record("1", "ant", entities=("Ana",))])
    memory.close()
    memory.close()
    for verb in (
        lambda: memory.search(["ant"]),
        lambda: memory.submit(["ant"]).result(),
        lambda: memory.search_stream([["ant"]]),
        lambda: memory.explain("ant", "1"),
        lambda: memory.add([fr.Record("2", "bee")]),
        lambda: memory.delete(["1"]),
        lambda: memory.drop(""),
        lambda: memory.get("1"),
        lambda: memory.count(),
        lambda: memory.observe(["1"]),
        lambda: memory.resolved("Ana", "Ana"),
        lambda: memory.stats(),
        lambda: memory.rebalance(),
        lambda: memory.add_shards(1),
        lambda: len(memory),
    ):
        with pytest.raises(fr.errors.StorageError, match="the engine is closed"):
            verb()


def test_records_that_an_engine_wrote_to_a_shard_are_named(tmp_path: Path) -> None:
    with opened(tmp_path / "memory", shards=1) as memory:
        memory.add([fr.Record("a", "tea")])
    shard = tmp_path / "memory" / "shard-0000"
    with pytest.raises(ForeignIndexError, match="is a shard, whose sharded memory alone writes to it"):
        fr.Engine.open(shard)
    with fr.Engine.open(shard, read_only=True) as reader:
        assert list(reader.ids()) == ["a"]
    with fr.Engine.open(shard, accept_loss=True) as alone:
        alone.add([fr.Record("b", "tea")])
    with pytest.raises(DamagedIndexError, match="record 'b' has no number of its write"):
        opened(tmp_path / "memory")
    with fr.Engine.open(shard, accept_loss=True) as alone:
        alone.delete(["b"])
    with opened(tmp_path / "memory") as memory:
        assert [hit.id for hit in memory.search(["tea"])[0]] == ["a"]


def test_a_batch_with_twins_in_two_namespaces_of_one_shard_names_the_first() -> None:
    one, several = fr.Engine(), sharded(1)
    for memory in (one, several):
        memory.add([fr.Record("b", "tea", "second")])
    # The shard gets the records of the second namespace first, as its batch removes a record there.
    batch = [fr.Record("a", "tea", "first"), fr.Record("b", "tea", "second")] * 2
    assert outcome(write, one, "upsert", batch) == outcome(write, several, "upsert", batch)
    several.close()


SAME = "namespaces", "documents", "postings", "vectors", "weights", "entities", "backend", "opened"


@pytest.mark.parametrize("shards", [1, 3])
def test_the_statistics_of_one_engine_are_there_and_add_up(tmp_path: Path, shards: int) -> None:
    records = [
        fr.Record(f"r{number}", f"ant bee {number}", namespace=name, entities=("Ana",), weights={"ant": 1.5})
        for number in range(9)
        for name in ("", "big", f"tenant {number}")
    ]
    with fr.Engine.open(tmp_path / "one") as one:
        one.add(records)
        expected = one.stats()
    with ShardedEngine.open(tmp_path / "several", shards=shards, transport="local") as several:
        split_over_all(several, "big")
        several.add(records)
        for _ in range(3):
            several.search([fr.Query(word, namespace="big") for word in ("ant", "bee")])
        stats = several.stats()
    assert stats["moving"] == []
    for number, own in enumerate(stats["shards"]):
        assert (own["shard"], own["queries"], own["messages"], own["lag"]) == (number, 6, 3, 0)
        assert 0 < own["p50_ms"] <= own["p99_ms"]
        assert own["bytes"] > 0
    assert expected.keys() <= stats.keys()
    assert {name: stats[name] for name in SAME} == {name: expected[name] for name in SAME}
    assert stats["bytes_per_posting"] == stats["posting_bytes"] / stats["postings"]
    assert (stats["merging"], stats["background_error"]) == (False, None)


def test_what_ails_one_shard_is_told_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = Engine.stats

    def ail(engine: Engine) -> dict[str, object]:
        found = stats(engine)
        return {**found, "background_error": "disk full", "merging": True} if found["documents"] else found

    monkeypatch.setattr(Engine, "stats", ail)
    with ShardedEngine.open(tmp_path, shards=3, transport="local") as several:
        assert several.stats()["background_error"] is None
        several.add([fr.Record("1", "ant")])
        found = several.stats()
    assert (found["merging"], found["background_error"]) == (True, "disk full")
