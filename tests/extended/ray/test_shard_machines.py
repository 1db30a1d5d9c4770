"""A shard runs on the machine that holds its directory."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fanrank as fr

ray = pytest.importorskip("ray")

from support.ray_clusters import Machines, machines  # noqa: E402

from fanrank.shards.processes.cluster import ActorLink  # noqa: E402

SECOND, THIRD = "127.0.0.2", "127.0.0.3"
STORAGE = "~/shards"
SPACES = ("", *(f"team/{number}" for number in range(8)))
RECORDS = [fr.Record(f"{n}", "ant bee cat"[: 3 + n % 9], namespace=SPACES[n % len(SPACES)]) for n in range(60)]
QUERIES = [fr.Query(text, namespace=space) for text in ("ant", "bee cat") for space in SPACES]


@pytest.fixture(scope="module")
def two() -> Iterator[Machines]:
    with machines(SECOND) as made:
        yield made


def opened(path: Path, **settings: Any) -> fr.ShardedEngine:
    return fr.ShardedEngine.open(path / "memory", **{"storage": STORAGE, "deadline": 60.0, **settings})


@pytest.fixture
def memory(tmp_path: Path, two: Machines) -> Iterator[fr.ShardedEngine]:
    for address in two.nodes:
        shutil.rmtree(two.home(address) / "shards", ignore_errors=True)
    with opened(tmp_path, shards=2) as memory:
        memory.add(RECORDS)
        yield memory


def directories(two: Machines, address: str) -> list[str]:
    folder = two.home(address) / "shards"
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


def answers_of(engine: fr.Engine | fr.ShardedEngine) -> Any:
    hits = engine.search(QUERIES)
    return hits.ids.tolist(), hits.scores.tolist()


def expected() -> Any:
    one = fr.Engine()
    one.add(RECORDS)
    return answers_of(one)


def addresses(memory: fr.ShardedEngine) -> list[str]:
    """The machine that each shard runs on."""
    nodes = {each["NodeID"]: each["NodeManagerAddress"] for each in ray.nodes()}
    actors = {each["ActorID"]: each["Address"]["NodeID"] for each in ray._private.state.actors().values()}
    links = [link for link in memory.coordinator.links if isinstance(link, ActorLink)]
    return [nodes[actors[link.actor._actor_id.hex()]] for link in links]


def test_a_shard_runs_where_its_directory_lies(tmp_path: Path, two: Machines, memory: fr.ShardedEngine) -> None:
    where = addresses(memory)
    assert sorted(where) == sorted([two.first, SECOND])
    for address in (two.first, SECOND):
        assert directories(two, address) == [f"shard-000{shard}" for shard in range(2) if where[shard] == address]
    assert answers_of(memory) == expected()
    memory.close()
    with opened(tmp_path) as again:
        assert addresses(again) == where
        for link in again.coordinator.links:
            assert isinstance(link, ActorLink)
            os.kill(link.process(time.monotonic() + 60.0), signal.SIGKILL)
        assert answers_of(again) == expected()
        assert addresses(again) == where


def test_shards_of_a_machine_that_leaves_come_back_with_it(two: Machines, memory: fr.ShardedEngine) -> None:
    away = tuple(shard for shard, address in enumerate(addresses(memory)) if address == SECOND)
    two.remove(SECOND)
    try:
        memory.coordinator.deadline = 2.0
        with pytest.raises((fr.errors.DeadlineError, fr.errors.ShardError)):
            memory.search(QUERIES)
        memory.coordinator.deadline = 10.0
        assert memory.search(QUERIES, partial="allow").missing_shards == away
    finally:
        two.add(SECOND)
    memory.coordinator.deadline = 60.0
    assert answers_of(memory) == expected()


def test_directories_that_are_nowhere_or_twice_are_named(
    tmp_path: Path, two: Machines, memory: fr.ShardedEngine
) -> None:
    shard = addresses(memory).index(SECOND)
    name = f"shard-000{shard}"
    memory.close()
    both = ", ".join(sorted((two.first, SECOND)))
    own, other = (two.home(address) / "shards" / name for address in (SECOND, two.first))
    shutil.copytree(own, other)
    with pytest.raises(fr.errors.ShardError, match=rf"{both} all see ~/shards/{name}.*shared=True"):
        opened(tmp_path)
    shutil.rmtree(own)
    # A directory may go to another machine.
    with opened(tmp_path) as again:
        assert addresses(again)[shard] == two.first
        assert answers_of(again) == expected()
    shutil.rmtree(other)
    with pytest.raises(fr.errors.StorageError, match=rf"shard {shard} is lost: none of the machines {both}"):
        opened(tmp_path)


def test_storage_that_all_machines_see_is_said(tmp_path: Path, two: Machines) -> None:
    storage = tmp_path / "storage"
    with pytest.raises(fr.errors.ShardError, match=r"all see .*shard-0000.*shared=True"):
        opened(tmp_path, shards=2, storage=storage)
    assert list(storage.iterdir()) == []
    with opened(tmp_path, shards=2, storage=storage, shared=True) as memory:
        memory.add(RECORDS)
        assert answers_of(memory) == expected()


def test_a_machine_that_joins_gets_the_next_shards(two: Machines, memory: fr.ShardedEngine) -> None:
    two.add(THIRD)
    try:
        memory.add_shards(1)
        assert addresses(memory)[2:] == [THIRD]
        memory.rebalance()
        assert answers_of(memory) == expected()
        memory.close()
    finally:
        two.remove(THIRD)


def test_more_than_any_machine_has_is_refused(tmp_path: Path, two: Machines) -> None:
    with pytest.raises(fr.errors.ShardError, match=r"shard 0 finds no machine .* takes 2 GPU.*lower num_gpus"):
        opened(tmp_path, shards=1, num_gpus=2, storage="~/others", address=two.cluster.address)
