"""Followers of shards, as tests let them lag, choose them and compare them with one engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from fanrank.shards.engine import ShardedEngine
from fanrank.shards.replicas.followers import FOLLOWING, Follower, Replica
from fanrank.shards.replicas.replicas import ReplicatedLink

from .shard_kills import Oracle

PATIENCE = 120.0
"""Seconds in which followers are filled, on a machine with more work than cores."""


def links_of(engine: ShardedEngine) -> list[ReplicatedLink]:
    """The ways to the shards of a memory with replicas."""
    links = [link for link in engine.coordinator.links if isinstance(link, ReplicatedLink)]
    assert len(links) == len(engine.coordinator.links)
    return links


def catch_up(engine: ShardedEngine) -> None:
    """Let all followers do all that they were told."""
    for link in links_of(engine):
        link.catch_up()


def states_of(engine: ShardedEngine) -> list[str]:
    """What the followers of all shards do."""
    return [follower.state for link in links_of(engine) for follower in link.followers]


def assert_all_follow(engine: ShardedEngine) -> None:
    """All followers hold the records of their leaders."""
    assert set(states_of(engine)) == {FOLLOWING}
    for link in links_of(engine):
        with link.changed:
            assert all(follower.holds(link.last) for follower in link.followers)


def wait_until_all_follow(engine: ShardedEngine) -> None:
    """Wait until all followers hold the records of their leaders."""
    for link in links_of(engine):
        for follower in link.followers:
            with link.changed:
                assert link.changed.wait_for(lambda: follower.holds(link.last), PATIENCE)  # noqa: B023


@contextmanager
def answered_by(engine: ShardedEngine, replica: int) -> Iterator[list[str]]:
    """Let the follower with this number answer what it can, and the leader nothing but that; 0: the leader alone.

    Gives a list of the ways in which reads were sent: "leader" or "follower".
    """
    ways: list[str] = []
    chosen_by = ReplicatedLink.choose

    def choose(link: ReplicatedLink, epoch: int, tried: list[Replica], exact: bool) -> Any:
        others = [each for each in link.followers if each.number != replica]
        with link.changed:
            away, link.lead.silent = link.lead.silent, replica > 0
        try:
            chosen = chosen_by(link, epoch, [*tried, *others], exact)
        finally:
            link.lead.silent = away
        if chosen is not None:
            ways.append("follower" if isinstance(chosen[0], Follower) else "leader")
        return chosen

    with patch.object(ReplicatedLink, "choose", choose):
        yield ways


def by_each_replica(engine: ShardedEngine) -> Iterator[list[str]]:
    """For each replica in turn, all reads are answered by it, where it can."""
    for replica in range(len(links_of(engine)[0].followers) + 1):
        with answered_by(engine, replica) as ways:
            yield ways


def assert_each_replica_is(oracle: Oracle, engine: ShardedEngine) -> None:
    """Whichever replica reads, the memory is as the oracle."""
    for _ in by_each_replica(engine):
        assert oracle.differs(engine, placed=False) is None


def forget_next(follower: Follower, verbs: Sequence[str] = ("apply",)) -> Any:
    """Take the next thing with one of these verbs out of what a follower was told, and give it back."""
    queue: Any = follower._queue
    told = next(each for each in queue if each.verb in verbs)
    queue.remove(told)
    return told
