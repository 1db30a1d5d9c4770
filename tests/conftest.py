"""Shared by the tests: where the real data lies, and how device code runs without a device."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

try:
    ctypes.CDLL("libcuda.so.1")
    DRIVER = True
except OSError:
    DRIVER = False
    # Read once, when triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def gpu_only(request: pytest.FixtureRequest) -> None:
    """Skips what is marked `gpu` where there is no CUDA driver."""
    if request.node.get_closest_marker("gpu") and not DRIVER:
        pytest.skip("no CUDA driver on this machine")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real datasets: FANRANK_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("FANRANK_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no datasets in {folder}; set FANRANK_DATA")
    return folder
