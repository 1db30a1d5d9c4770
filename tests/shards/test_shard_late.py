"""Messages that come after their sender gave them up, and shards that were started anew and have yet to be told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.dying import HELD, DyingLink, dying, dying_beside_one, link_of
from support.sharding import assert_same_answers, assert_same_records

import fanrank as fr
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.protocol.messages import Gone, Part
from fanrank.shards.shard.records import read_sizes
from fanrank.shards.shard.shard import Setup, Shard

SPACES = ("big", "small")
RECORDS = [fr.Record(f"r{number}", "ant bee", space) for space in SPACES for number in range(12)]
QUERIES = [fr.Query("ant elk fox", namespace=space) for space in SPACES]


def check(one: fr.Engine, several: ShardedEngine) -> None:
    assert_same_answers(one, several, QUERIES, k=30)
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
    one, several = dying_beside_one(tmp_path, RECORDS, "big")
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


@pytest.mark.parametrize("between", ["write", "search"])
def test_a_whole_copy_that_ended_is_made_again(tmp_path: Path, between: str) -> None:
    one, several = dying_beside_one(tmp_path, RECORDS, "big")
    how: dict[str, Any] = {"strategy": "recall", "k": 30}
    assert_same_answers(one, several, QUERIES, **how)
    links = [whole.link for whole in several.coordinator.wholes.values() if whole.link is not None]
    assert links
    for link in links:
        assert isinstance(link, DyingLink)
        # It is there again, and empty, when the next write or search comes.
        link.end(away=0)
    if between == "search":
        assert_same_answers(one, several, QUERIES, **how)
    for engine in (one, several):
        engine.upsert(written("elk", "big"))
    assert_same_answers(one, several, QUERIES, **how)
    several.close()
