"""Fixtures of all tests of shards. Each `conftest.py` of theirs names them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sharding import FOLDER

from fanrank.engine.storage import failpoints


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of its own for each test, in memory where the system has one for files."""
    with tempfile.TemporaryDirectory(prefix="fanrank-", dir=FOLDER, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No failpoint that a test arms is left to the next one."""
    yield
    failpoints.disarm()
