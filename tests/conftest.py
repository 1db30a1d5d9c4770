"""Shared by the tests: where the real data lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real datasets: FANRANK_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("FANRANK_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no datasets in {folder}; set FANRANK_DATA")
    return folder
