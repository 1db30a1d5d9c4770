"""Memories on a cluster of Ray that others started, by each of its addresses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fanrank as fr

# Each starts clusters of Ray, which takes half a minute of two cores.
pytestmark = pytest.mark.sweep

ray = pytest.importorskip("ray")

from support.existing_ray import RECORDS, Existing, existing  # noqa: E402

from fanrank.shards.cluster import Cluster  # noqa: E402


@pytest.fixture(scope="module")
def there() -> Iterator[Existing]:
    with existing() as made:
        yield made


def check_left(there: Existing) -> None:
    """Nothing of ours runs in the cluster. Ray takes a moment to notice that a process has ended."""
    end = time.monotonic() + 60.0
    while True:
        left = there.drive(there.address, Path("left"))
        if {*left["actors"]} <= {"DEAD"} and not left["held"]:
            return
        assert time.monotonic() < end, left
        time.sleep(0.5)


def test_a_memory_on_a_cluster_leaves_nothing_there(tmp_path: Path, there: Existing) -> None:
    assert there.drive(there.address, tmp_path) == {"before": 0, "moved": True, "killed": True}
    check_left(there)
    found = there.drive("auto", tmp_path, RAY_ADDRESS=there.address)
    assert found == {"before": len(RECORDS), "moved": True, "killed": True}
    check_left(there)


def test_an_owner_that_ends_without_closing_leaves_nothing_there(tmp_path: Path, there: Existing) -> None:
    assert there.drive(there.address, tmp_path, "leave")["killed"]
    check_left(there)
    assert there.drive(there.address, tmp_path)["before"] == len(RECORDS)


def test_a_memory_through_the_client_of_ray(tmp_path: Path, there: Existing) -> None:
    pytest.importorskip("grpc")
    assert there.drive(there.client, tmp_path) == {"before": 0, "moved": True, "killed": True}
    check_left(there)


def test_another_ray_than_that_of_the_cluster_is_named(tmp_path: Path, there: Existing) -> None:
    for address in (there.address, there.client):
        found = there.drive(address, tmp_path, "version")
        assert found["error"] == "ShardVersionError"
        assert f"Ray: {ray.__version__}" in found["message"]
        assert "2.99.0" in found["message"]
        assert "install the same Python and Ray on all machines" in found["message"]


def test_a_token_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Ray says it. It tries for 20 seconds before that.
    def init(*_: object, **__: object) -> None:
        try:
            raise RuntimeError("Failed to connect to GCS. ray.exceptions.AuthenticationError: RPC error: Invalid...")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379") from error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(fr.errors.ShardError, match=r"the cluster at 'auto' asks for its token.*RAY_AUTH_MODE=token"):
        Cluster.connect("auto")
