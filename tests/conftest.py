"""Shared by the tests: where the real data lies, how device code runs without a device, and no limits of time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# An example, or drawing it, may take as long as it likes: a busy machine is no fault of the code. A test that names
# health checks of its own names `too_slow` beside them, as its list takes this one's place.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")
# Of a planted fault it matters that an example fails, not which is the smallest: finding that takes minutes.
if os.environ.get("FANRANK_MUTANTS"):
    phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
    settings.register_profile("mutants", settings.get_profile("no clock"), phases=phases)
    settings.load_profile("mutants")

ROOT = Path(__file__).resolve().parent.parent

# Scores in tests are worked out by hand with the constants that most papers name. tests/index/test_profiles.py holds
# what an engine has outside of tests, and tests/docs what the pages show.
os.environ["FANRANK_PROFILE"] = "literature"

# Each mapped array of a saved index is an open file until its engine is collected. Many systems let a user have 1,024.
with contextlib.suppress(ImportError):  # Windows has no such limit
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

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


@pytest.fixture
def small_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile, group, chunk and segment is small, so that small corpora cross all their borders."""
    from support import borders  # it imports the product, which not every test does

    borders.shrink_all(monkeypatch)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No failpoint stays armed after its test."""
    yield
    failpoints = sys.modules.get("fanrank.engine.storage.failpoints")
    if failpoints is not None:
        failpoints.disarm()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One a core, or as many as there are processes that wait for one, but four a core at most: beside eight that keep
    two cores busy, two workers would get two fifths of a core, and take 19 minutes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(max(cores, round(busy)), 4 * cores)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m gpu`` only files that name a GPU are read: a machine with one may lack what the others import."""
    if config.option.markexpr != "gpu":
        return None
    names_gpu = re.compile(r"mark\.gpu|\bON_A_GPU\b|\bFAST\b|\bFAMILIES\b")
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return None if any(names_gpu.search(file.read_text()) for file in files) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `extended`, unless tests are chosen by a mark, a keyword or their names."""
    if config.option.keyword or config.option.markexpr or any("::" in name for name in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("extended")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def pytest_collection_finish() -> None:
    """The garbage collector passes over modules and items of tests from now on: going through them takes most of its
    time. Triton's interpreter replaces its language for each launch; for each function that the kernel calls it would
    look through it again, which takes a fourth of the launch."""
    gc.freeze()
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is not None:
        replace, language = interpreter._patch_lang, interpreter.tl
        replaced = SimpleNamespace(restore=lambda: None)

        def replace_once(fn: Any) -> Any:
            own = [each for each in fn.__globals__.values() if each is language or each is language.core]
            return replace(fn) if any(language.core.is_builtin(each.load) for each in own) else replaced

        interpreter._patch_lang = replace_once


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real datasets: FANRANK_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("FANRANK_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no datasets in {folder}; set FANRANK_DATA")
    return folder
