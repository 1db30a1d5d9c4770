"""Failpoints: silent unless armed, and then exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from conftest import ROOT

from fanrank.engine.storage import failpoints


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    failpoints.disarm()
    yield
    failpoints.disarm()


def test_a_typo_cannot_hide() -> None:
    with pytest.raises(ValueError, match=r"no failpoint 'write.comit'; there are: write.begin, "):
        failpoints.arm("write.comit")
    failpoints.arm("write.commit", action=lambda: None)
    with pytest.raises(ValueError, match=r"no failpoint 'write\.comit'"):
        failpoints.reach("write.comit")
    with pytest.raises(ValueError, match="count must be 1 or more, not 0"):
        failpoints.arm("write.commit", 0)
    for value in ("write.commit:", "write.commit:two", "write.commit:-1", "write.commit:²"):
        with pytest.raises(ValueError, match="write name or name:count"):
            failpoints._arm_from(value)


def test_the_environment_arms_and_the_process_dies_as_by_kill_9() -> None:
    script = (
        "from fanrank.engine.storage import failpoints\n"
        "for time in range(3):\n"
        "    failpoints.reach('write.begin')\n"
        "    failpoints.reach('write.commit')\n"
        "    print(time, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), failpoints.VARIABLE: "write.commit:2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stderr
    assert done.returncode == (137 if sys.platform == "win32" else -signal.SIGKILL)
