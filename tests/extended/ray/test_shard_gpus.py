"""Shards that each take a GPU of Ray's, and serve from the kernels. The kernels run in their build for this machine."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sharding import assert_same_hits

import fanrank as fr

ray = pytest.importorskip("ray")
pytest.importorskip("torch", reason="torch is not installed")

from fanrank.shards.processes.cluster import ActorLink  # noqa: E402

HOST = "cuda-host"
SPACES = ("big", "team/a", "team/b")
WORDS = ("ant", "bee", "cat", "dog")
QUERIES = [
    fr.Query(text, vector=[float(place), 1.0, 0.5], namespace=space, k=20)
    for place, text in enumerate(("ant bee", "dog"))
    for space in SPACES
]


@pytest.fixture(scope="module", autouse=True)
def two_gpus() -> Iterator[None]:
    """A Ray that is told of two GPUs, which are not there."""
    ray.init("local", num_gpus=2, num_cpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def records() -> list[fr.Record]:
    made = np.random.default_rng(7)
    texts = [" ".join(made.choice(WORDS, made.integers(0, 6))) for _ in range(90)]
    vectors = made.integers(-3, 4, (90, 3)).astype(float).tolist()
    rows = zip(texts, vectors, strict=True)
    return [fr.Record(f"r{n}", text, SPACES[n % 3], embedding=vector) for n, (text, vector) in enumerate(rows)]


def visible(link: Any) -> str | None:
    """The GPUs that an actor may use."""
    assert isinstance(link, ActorLink)
    reference = link.actor.__ray_call__.remote(lambda _: os.environ.get("CUDA_VISIBLE_DEVICES"))
    found: str | None = ray.get(reference, timeout=60)
    return found


def test_shards_with_gpus_answer_as_an_engine_in_numpy(tmp_path: Path) -> None:
    one = fr.Engine(backend="numpy", encoder=fr.OwnVectors(3))
    one.add(records())
    path, encoder = tmp_path / "memory", fr.OwnVectors(3)
    with fr.ShardedEngine.open(path, shards=2, backend=HOST, num_gpus=1, encoder=encoder, deadline=120.0) as several:
        several.coordinator.place("big", (0, 1))
        several.add(records())
        assert sorted(visible(link) or "" for link in several.coordinator.links) == ["0", "1"]
        for strategy in ("bm25", "dense", "fused"):
            expected, found = (engine.search(QUERIES, strategy=strategy) for engine in (one, several))
            assert HOST in found.backend or found.backend == "dense torch cpu"
            assert_same_hits(expected, found)
        # The owner scores nothing, so it needs no GPU.
        assert several.template.backend.name != HOST


def test_shards_may_share_a_gpu_and_not_take_more_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(fr.errors.ShardError, match="ask for 3 GPUs, and Ray sees 2"):
        fr.ShardedEngine.open(tmp_path / "three", shards=3, num_gpus=1)
    with fr.ShardedEngine.open(tmp_path / "four", shards=3, num_gpus=0.5, deadline=120.0) as several:
        assert {visible(link) for link in several.coordinator.links} == {"0", "1"}
        assert len({link.process(time.monotonic() + 60.0) for link in several.coordinator.links}) == 3
