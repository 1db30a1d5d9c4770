"""Searches do the work that is recorded for them, and no more: postings, look-ups, bytes, calls of Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.benches import load
from support.source import ROOT

(work,) = load("work")


@pytest.mark.extended
def test_no_search_does_more_work_than_is_recorded() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    # The baseline is that of the shipped profile.
    environment.pop("FANRANK_PROFILE", None)
    command = [sys.executable, "-m", "bench.work"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_more_work_than_recorded_is_growth() -> None:
    counts = {"postings": 1_000, "lookups": 10, "bytes": 8_000, "calls": 500, "peak_kib": 300}
    under = {"python": "3.x.y"}
    kept = work.update({}, {"numpy auto": counts}, under)

    def grown(under: dict[str, str] = under, **changed: int) -> list[str]:
        found = work.changes(kept, {"numpy auto": {**counts, **changed}}, under)
        return [line.split(", ")[1].split(":")[0] for line, grew in found.items() if grew]

    assert grown() == grown(calls=510, peak_kib=329) == grown(postings=999) == []
    assert all(grown(**{name: counts[name] + 1}) == [name] for name in work.COUNTED)
    assert grown(calls=600) == ["calls"]
    # Calls and memory are those of one version of Python and numpy.
    assert grown({"python": "4"}, calls=600) == []
    too_many = {**counts, "calls": work.MOST_CALLS["native one"] + 1}
    assert True in work.changes({}, {"native one": too_many}, under).values()
