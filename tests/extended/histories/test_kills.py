"""Real kills, by failpoints and by the clock, damage to files and full disks: nothing is lost, or the loss is named."""

import json
import os
import subprocess
import sys
from typing import Any

from conftest import ROOT

from fanrank.engine.storage import failpoints


# In a process of its own: it forks, and pytest may have threads.
def played(*options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.extended.histories.kills", "--seed", "7", "--json", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    tally: dict[str, Any] = json.loads(done.stdout)
    return tally


def test_nothing_acknowledged_is_lost_with_the_power() -> None:
    assert played("--kind", "power_round", "--rounds", "42")["faults"]["power lost"] == 72


def test_nothing_is_lost_and_nothing_comes_from_nowhere() -> None:
    rounds = "300" if os.environ.get("FANRANK_LONG") else "36"
    tally = played("--rounds", rounds)
    assert (tally["rounds"], tally["lost"], tally["phantom"], tally["broken"]) == (int(rounds), 0, 0, [])
    assert tally["kills"].keys() >= {
        *failpoints.POINTS,
        *(f"by the clock: {when}" for when in ("open", "shared")),
    }
    kinds = {name.split(",")[0] for name in tally["faults"]}
    assert kinds >= {f"index: {fault}" for fault in ("truncate", "flip", "delete", "zero")}
    assert kinds >= {"log: truncate", "log: flip", "records: flip"}
    assert kinds >= {"second writer refused", "reader refreshed"}
    assert kinds >= {"disk fails: sync", "disk fails: space", "power lost", "power and note lost"}
    assert tally["rebuilt"] > 0
