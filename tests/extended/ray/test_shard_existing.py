"""Memories on a cluster of Ray that others started, by each of its addresses."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from support.existing_ray import RECORDS, Existing, existing  # noqa: E402


@pytest.fixture(scope="module")
def there() -> Iterator[Existing]:
    if " " in sys.executable:
        pytest.skip("Ray starts no server for clients from a path with spaces")
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
