"""Shards as actors of Ray that are killed, stopped or cannot be started."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fanrank as fr

ray = pytest.importorskip("ray")

from support.shard_kills import (  # noqa: E402
    DEADLINE,
    QUERIES,
    Oracle,
    Told,
    answers_of,
    kill_owners,
    kill_shards,
    next_write,
    open_memory,
)

from fanrank.shards.processes.cluster import ActorLink, Cluster  # noqa: E402

SEED = "cluster"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of one Ray for all tests here."""
    started = Cluster.connect(None)
    yield ray.get_runtime_context().gcs_address
    started.close()


def process_of(memory: fr.ShardedEngine, shard: int) -> int:
    link = memory.coordinator.links[shard]
    assert isinstance(link, ActorLink)
    return link.process(time.monotonic() + DEADLINE)


def test_shards_that_are_killed_lose_nothing_and_answer_nothing_wrong(tmp_path: Path, cluster: str) -> None:
    told = Told()
    with open_memory(tmp_path / "memory", None) as memory:
        kill_shards(memory, SEED, 3, told)
    assert told.kills >= 3
    assert told.writes > 0
    assert len(told.recovery) == 3


def test_an_owner_that_is_killed_loses_nothing(cluster: str) -> None:
    told = Told()
    kill_owners(cluster, SEED, 1, told)
    assert told.kills == 1


def test_a_stopped_shard_is_an_error_or_missing_until_it_goes_on(tmp_path: Path, cluster: str) -> None:
    oracle = Oracle(SEED)
    with open_memory(tmp_path / "memory", None) as memory:
        for number in range(3):
            write, _ = next_write(SEED, number, oracle.model)
            assert write(memory) == oracle.write(number)
        process = process_of(memory, 1)
        os.kill(process, signal.SIGSTOP)
        try:
            memory.coordinator.deadline = 0.5
            with pytest.raises(fr.errors.DeadlineError, match="shard 1 did not answer by the deadline"):
                memory.search(QUERIES)
            memory.coordinator.deadline = 4.0
            assert memory.search(QUERIES, partial="allow").missing_shards == (1,)
        finally:
            os.kill(process, signal.SIGCONT)
        memory.coordinator.deadline = DEADLINE
        assert answers_of(memory) == answers_of(oracle.engine)


def test_more_gpus_than_there_are_are_refused(tmp_path: Path, cluster: str) -> None:
    with pytest.raises(fr.errors.ShardError, match="the shards ask for 99 GPUs, and Ray sees"):
        fr.ShardedEngine.open(tmp_path / "memory", shards=1, num_gpus=99)


def test_directories_of_others_and_lost_ones_are_named(tmp_path: Path, cluster: str) -> None:
    for name in ("one", "two"):
        with fr.ShardedEngine.open(tmp_path / name, shards=2) as memory:
            memory.add([fr.Record(name, "ant")])
    home, strange = tmp_path / "one" / "shard-0001", tmp_path / "two" / "shard-0001"
    shutil.move(home, tmp_path / "kept")
    with pytest.raises(fr.errors.StorageError, match="the directory of shard 1 is lost; bring it back from a copy"):
        fr.ShardedEngine.open(tmp_path / "one")
    shutil.copytree(strange, home)
    with pytest.raises(fr.errors.ForeignIndexError, match="shard 1 holds the records of another engine"):
        fr.ShardedEngine.open(tmp_path / "one")
    shutil.rmtree(home)
    shutil.move(tmp_path / "kept", home)
    with fr.ShardedEngine.open(tmp_path / "one") as memory:
        assert memory.count() == 1
        with pytest.raises(fr.errors.StoreLockedError, match="a sharded memory has one owner"):
            fr.ShardedEngine.open(tmp_path / "one")
        assert memory.search(["ant"]).ids[0, 0] == "one"
    with pytest.raises(fr.errors.ForeignIndexError, match="is the directory of one engine"):
        fr.ShardedEngine.open(home, shards=2)
