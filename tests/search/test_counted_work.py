"""Searches do the work that is recorded for them, and no more: postings, look-ups, bytes, calls of Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.benches import load
from support.source import ROOT

work, counting = load("work", "harness.counting")


@pytest.mark.extended
def test_no_search_does_more_work_than_is_recorded() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    # The baseline is that of the shipped profile.
    environment.pop("FANRANK_PROFILE", None)
    done = subprocess.run(
        [sys.executable, "-m", "bench.work"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_more_work_than_recorded_is_growth() -> None:
    counts = {"postings": 1_000, "lookups": 10, "bytes": 8_000, "calls": 500, "peak_kib": 300}
    versions = {"python": "3.x.y"}
    kept = work.update_baseline({}, {"numpy auto": counts}, versions)

    def grown(under: dict[str, str] = versions, **changed: int) -> list[str]:
        return [one.count for one in work.changes(kept, {"numpy auto": {**counts, **changed}}, under) if one.grew]

    assert grown() == grown(calls=510, peak_kib=329) == grown(postings=999) == []
    assert all(grown(**{name: counts[name] + 1}) == [name] for name in work.COUNTED)
    assert grown(calls=600) == ["calls"]
    # Calls and memory are those of one version of Python and numpy.
    assert grown({"python": "4"}, calls=600) == []
    assert work.too_many({"native one": {**counts, "calls": work.MOST_CALLS["native one"] + 1}})
