"""The verbs of `ShardedEngine` that read, carry and keep records: what they give is what one engine gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.sharding import split_over_all

import fanrank as fr
from fanrank.engine.listing.listing import Listing
from fanrank.shards.engine import ShardedEngine

SPACES = ("", "big", "team/a", "team/b")
COLUMNS = {"kind": "category", "rank": "number"}
SHARDS = (1, 3)


def make_records(count: int, seed: int = 0) -> list[fr.Record]:
    """Records of several namespaces; some have the same times or none, and some a vector."""
    draw = random.Random(seed)
    return [
        fr.Record(
            f"r{number:03d}",
            " ".join(draw.choices(("ant", "bee", "cat"), k=draw.randint(0, 4))),
            namespace=draw.choice(SPACES),
            time=draw.choice([None, float(draw.randint(0, 9))]),
            type=draw.choice([None, "Fact"]),
            expires=draw.choice([None, None, 4e9]),
            extra={"kind": draw.choice(["x", "y"]), "rank": draw.randint(0, 3)},
            payload={"n": number},
        )
        for number in range(count)
    ]


def fill(engine: fr.Engine | ShardedEngine, records: list[fr.Record]) -> None:
    """Batches over several namespaces, with updates, insertions and deletions."""
    for start in range(0, len(records), 30):
        engine.add(records[start : start + 30])
    # In one batch: what replaces records, and what is new.
    engine.upsert([fr.Record("new", "ant", namespace="team/b"), *records[5:40:4], fr.Record("new", "bee")])
    for record in records[3::17]:
        engine.delete([record.id], namespace=record.namespace)


def make_memories(folder: Path, shards: int) -> tuple[fr.Engine, ShardedEngine]:
    """One engine, and shards over which the namespace "big" is split, after the same writes."""
    one = fr.Engine.open(folder / "one", columns=COLUMNS)
    several = ShardedEngine.open(folder / "several", shards=shards, transport="local", columns=COLUMNS)
    records = make_records(120)
    fill(one, records[:60])
    fill(several, records[:60])
    split_over_all(several, "big")
    fill(one, records[60:])
    fill(several, records[60:])
    return one, several


@pytest.fixture(scope="module", params=SHARDS)
def memories(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Memories that are read alone."""
    one, several = make_memories(tmp_path_factory.mktemp("memories"), request.param)
    yield one, several
    one.close()
    several.close()


@pytest.fixture
def own_memories(tmp_path: Path) -> Any:
    """Memories that a test may change."""
    one, several = make_memories(tmp_path, 3)
    yield one, several
    one.close()
    several.close()


def in_pages(engine: fr.Engine | ShardedEngine, size: int, **how: Any) -> list[fr.Record]:
    """All records of a listing, read by its cursors."""
    found: list[fr.Record] = []
    after = None
    while True:
        listing: Listing = engine.records(after=after, limit=size, **how)
        found += listing
        after = listing.cursor
        if after is None:
            return found


@pytest.mark.parametrize("order", ["written", "time", "id"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("namespace", [None, "big", "team/a", "nothing"])
def test_listings(memories: Any, order: str, reverse: bool, namespace: str | None) -> None:
    one, several = memories
    for how in ({}, {"filter": {"kind": "x"}}, {"texts": False}, {"filter": {"rank": {">=": 1}}, "texts": False}):
        asked: dict[str, Any] = {"order": order, "reverse": reverse, "namespace": namespace, **how}
        expected = list(one.records(**asked))
        assert list(several.records(**asked)) == expected
        assert in_pages(several, 7, **asked) == expected


def test_a_cursor_outlives_moves_and_writes(own_memories: Any) -> None:
    one, several = own_memories
    expected = [record.id for record in one.records(namespace="team/a")]
    first = several.records(namespace="team/a", limit=4)
    found = [record.id for record in first]
    placement = several.coordinator.placement
    several.coordinator.place("team/a", ((placement.home("team/a") + 1) % placement.shards,))
    several.add([fr.Record("later", "ant", namespace="team/a")])
    found += [record.id for record in several.records(namespace="team/a", after=first.cursor)]
    assert found == [*expected, "later"]


@pytest.mark.parametrize(
    "how",
    [
        {"order": "age"},
        {"limit": -1},
        {"after": "no cursor"},
        {"filter": {"unknown": 1}},
        {"filter": {"fanrank_order": 1}},
        {"namespace": 3},
    ],
    ids=str,
)
def test_listings_refuse_what_an_engine_refuses(memories: Any, how: dict[str, Any]) -> None:
    refused = []
    for engine in memories:
        with pytest.raises(fr.FanrankError) as error:
            list(engine.records(**how))
        refused.append((type(error.value), str(error.value)))
    assert refused[0] == refused[1]
