"""Shards as actors of Ray that are killed or stopped, and moves between them while others search and write."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fanrank as fr

ray = pytest.importorskip("ray")

from support.shard_kills import (  # noqa: E402
    DEADLINE,
    QUERIES,
    SPLIT,
    TEAMS,
    Life,
    Oracle,
    Told,
    answers_of,
    kill_owners,
    kill_shards,
    open_memory,
)

from fanrank.shards.processes.cluster import ActorLink, Cluster  # noqa: E402

SEED = "cluster"
WRITES = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of one Ray for all tests here."""
    started = Cluster.connect(None)
    yield ray.get_runtime_context().gcs_address
    started.close()


def fill(memory: fr.ShardedEngine, oracle: Oracle, writes: int) -> None:
    for number in range(writes):
        oracle.write_to(memory, number)


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
        fill(memory, oracle, 3)
        process = process_of(memory, 1)
        os.kill(process, signal.SIGSTOP)
        try:
            memory.coordinator.deadline = 0.5
            with pytest.raises(fr.errors.DeadlineError, match="shard 1 did not answer by the deadline"):
                memory.search(QUERIES)
            # Those that go on have the time that a busy machine may need.
            memory.coordinator.deadline = 30.0
            assert memory.search(QUERIES, partial="allow").missing_shards == (1,)
        finally:
            os.kill(process, signal.SIGCONT)
        memory.coordinator.deadline = DEADLINE
        assert answers_of(memory) == answers_of(oracle.engine)


def test_shards_are_added_and_evened_out_while_others_write_and_search(tmp_path: Path, cluster: str) -> None:
    oracle = Oracle(SEED)
    with open_memory(tmp_path / "memory", None) as memory:
        fill(memory, oracle, WRITES)
        model = {name: set(ids) for name, ids in oracle.model.items()}
        life = Life(memory, SEED, [*range(WRITES)], model, movable=False)
        life.start()
        try:
            assert memory.add_shards(1) == 4
            memory.coordinator.page = 3
            memory.rebalance()
            # A write makes the namespace larger than a shard is to hold of it.
            with memory.coordinator.paused():
                memory.coordinator.owner.placement = replace(memory.coordinator.placement, split_at=8)
            end = time.monotonic() + DEADLINE
            while not any(name in memory.coordinator.placement.split for name in TEAMS):
                assert time.monotonic() < end
                assert not life.failures, life.failures
                time.sleep(0.01)
        finally:
            life.stop()
        memory.finish_splits()
        assert len(memory.coordinator.placement.homes(SPLIT)) > 1
        life.check(WRITES, oracle)
