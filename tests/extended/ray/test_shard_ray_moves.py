"""Moves, splits and added shards over actors of Ray, while others search and write, and while shards die."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fanrank as fr

ray = pytest.importorskip("ray")

from support.shard_kills import DEADLINE, SHARDS, SPLIT, TEAMS, Life, Oracle, next_write, open_memory  # noqa: E402

from fanrank.engine.storage import failpoints  # noqa: E402
from fanrank.shards.processes.cluster import ActorLink, Cluster  # noqa: E402

SEED = "ray moves"
WRITES = 12
POINTS = ("move.page", "move.copied", "batch.prepared", "batch.decided")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    """One Ray for all tests here."""
    started = Cluster.connect(None)
    yield started
    started.close()


def filled(path: Path, oracle: Oracle) -> fr.ShardedEngine:
    memory = open_memory(path, None)
    for number in range(WRITES):
        write, _ = next_write(SEED, number, oracle.model)
        assert write(memory) == oracle.write(number)
    return memory


def test_shards_are_added_and_evened_out_while_others_write_and_search(tmp_path: Path) -> None:
    oracle = Oracle(SEED)
    with filled(tmp_path / "memory", oracle) as memory:
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


def test_a_shard_that_is_killed_in_the_middle_of_a_move(tmp_path: Path) -> None:
    oracle, made = Oracle(SEED), random.Random(SEED)
    with filled(tmp_path / "memory", oracle) as memory:
        coordinator = memory.coordinator
        coordinator.page = 1
        for place, point in enumerate(POINTS):
            name = (SPLIT, TEAMS[place])[place % 2]
            homes = coordinator.placement.homes(name)
            free = made.choice([shard for shard in range(SHARDS) if shard not in homes])
            link = coordinator.links[(homes[-1], free)[place // 2]]
            assert isinstance(link, ActorLink)
            process = link.process(time.monotonic() + DEADLINE)
            failpoints.arm(point, action=lambda process=process: os.kill(process, signal.SIGKILL))
            coordinator.place(name, (*homes[:-1], free))
            assert coordinator.placement.homes(name) == (*homes[:-1], free)
            assert oracle.differs(memory) is None
            assert link.process(time.monotonic() + DEADLINE) != process
        write, _ = next_write(SEED, WRITES, oracle.model)
        assert write(memory) == oracle.write(WRITES)
    with open_memory(tmp_path / "memory", None) as memory:
        assert oracle.differs(memory) is None
