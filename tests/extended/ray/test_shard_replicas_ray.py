"""Replicas of shards as actors of Ray, whose processes are killed."""

import os
import signal
import time
from pathlib import Path

from support.replicating import assert_each_replica_is, links_of, wait_until_all_follow
from support.shard_kills import DEADLINE, SPLIT, Oracle
from support.sharding import split_over_all

import fanrank as fr
from fanrank.shards.processes.cluster import ActorLink
from fanrank.shards.processes.links import Link

SEED = "replicas"


def kill(link: Link | None) -> None:
    assert isinstance(link, ActorLink)
    os.kill(link.process(time.monotonic() + DEADLINE), signal.SIGKILL)


def test_searches_go_on_while_processes_of_shards_are_killed(tmp_path: Path) -> None:
    oracle = Oracle(SEED)
    with fr.ShardedEngine.open(tmp_path / "memory", shards=2, replicas=2, deadline=DEADLINE) as memory:
        split_over_all(memory, SPLIT)
        for number in range(6):
            oracle.write_to(memory, number)
        wait_until_all_follow(memory)
        assert_each_replica_is(oracle, memory)
        # A leader: its follower answers, and it is brought back although no search needs it.
        for link in links_of(memory):
            kill(link.leader)
        assert oracle.differs(memory, placed=False) is None
        for link in links_of(memory):
            with link.changed:
                assert link.changed.wait_for(lambda link=link: not link.lead.silent, DEADLINE)  # type: ignore[misc]
        # In the middle of a write, as the owner sees it.
        for link in links_of(memory):
            kill(link.leader)
        for number in range(6, 10):
            oracle.write_to(memory, number)
            assert oracle.differs(memory, placed=False) is None
        wait_until_all_follow(memory)
        # A follower: the leader answers, and another one is filled.
        for link in links_of(memory):
            kill(link.followers[0].link)
        assert_each_replica_is(oracle, memory)
        wait_until_all_follow(memory)
        assert_each_replica_is(oracle, memory)
