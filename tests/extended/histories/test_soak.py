"""The soak for some seconds a kind: nothing is lost, no answer is wrong, whatever is killed beside 20 agents."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize("kind", ["engine", "shards", "service"])
def test_nothing_is_lost_and_no_answer_is_wrong_beside_agents(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.extended.histories.soak", "--seconds", "40", "--kind", kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(done.stdout)
    assert (row["lost"], row["phantom"], row["broken"]) == (0, 0, [])
    assert min(row["lives"], row["verified"], row["acknowledged"]) > 0
