"""Counted work: the baseline holds here, growth is found, and counts repeat."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fanrank.engine.search import batch
from fanrank.engine.search.batch import _evidence
from fanrank.engine.timing import Phases

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench import work
    from bench.harness import counting
finally:
    sys.path.remove(str(ROOT))

VERSIONS = {"python": "3.x.y", "numpy": "2"}
COUNTS = {"postings": 1_000, "lookups": 10, "bytes": 8_000, "calls": 500, "peak_kib": 300}
NUMPY_AUTO = next(task for task in work.TASKS if task.name == "numpy auto")


def baseline() -> dict[str, Any]:
    return work.update_baseline({}, {"numpy auto": COUNTS}, VERSIONS)


def told(**changed: int) -> list[str]:
    changes = work.changes(baseline(), {"numpy auto": {**COUNTS, **changed}}, VERSIONS)
    return [f"{change.count} {'grew' if change.grew else 'shrank'}" for change in changes]


def test_the_recorded_baseline_holds() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    # The baseline is that of the shipped profile.
    environment.pop("FANRANK_PROFILE", None)
    done = subprocess.run(
        [sys.executable, "-m", "bench.work"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_road_is_recorded() -> None:
    kept = json.loads(work.BASELINE.read_text())
    assert {task.name for task in work.TASKS} <= set(kept["counts"])
    assert all(own["versions"]["numpy"] for own in kept["python"].values())


def test_what_did_not_change_is_not_told() -> None:
    assert told() == []
    assert told(calls=510, peak_kib=329) == []


@pytest.mark.parametrize("name", work.COUNTED)
def test_one_more_of_what_is_counted_is_growth(name: str) -> None:
    assert told(**{name: COUNTS[name] + 1}) == [f"{name} grew"]
    assert told(**{name: COUNTS[name] - 1}) == [f"{name} shrank"]


@pytest.mark.parametrize("name", work.VERSIONED)
def test_calls_and_peaks_grow_beyond_their_limit_and_under_the_same_versions_alone(name: str) -> None:
    more = int(COUNTS[name] * (1 + work.LIMITS[name])) + 1
    assert told(**{name: more}) == [f"{name} grew"]
    assert told(**{name: 1}) == [f"{name} shrank"]
    other = {**VERSIONS, "numpy": "3"}
    assert work.changes(baseline(), {"numpy auto": {**COUNTS, name: more}}, other) == []


def test_a_count_that_begins_is_growth_and_a_new_road_is_not() -> None:
    kept = copy.deepcopy(baseline())
    kept["counts"]["numpy auto"]["lookups"] = 0
    (change,) = work.changes(kept, {"numpy auto": COUNTS}, VERSIONS)
    assert change.grew
    assert "from nothing GREW" in str(change)
    new = work.changes({}, {"numpy auto": COUNTS}, VERSIONS)
    assert [change.count for change in new] == list(work.COUNTED)
    assert not any(change.grew for change in new)


def test_recording_keeps_other_roads_and_drops_those_that_are_gone() -> None:
    kept = work.update_baseline({}, {"numpy auto": COUNTS, "gone": COUNTS}, VERSIONS)
    assert set(kept["counts"]) == {"numpy auto"}
    kept["python"]["2.7"] = {"versions": {}, "roads": {}}
    again = work.update_baseline(kept, {"build": COUNTS}, VERSIONS)
    assert set(again["counts"]) == {"numpy auto", "build"}
    assert set(again["python"]) == {"2.7", work.python()}
    assert set(again["python"][work.python()]["roads"]) == {"numpy auto", "build"}
    # Calls under other versions are no longer worth anything.
    newer = work.update_baseline(kept, {"build": COUNTS}, {**VERSIONS, "numpy": "3"})
    assert set(newer["python"][work.python()]["roads"]) == {"build"}


def test_the_command_records_compares_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "work.json"
    arguments = ["--baseline", str(path)]
    with patch.object(work, "TASKS", (NUMPY_AUTO,)), patch.object(work, "count_task", lambda task: dict(COUNTS)):
        assert work.main([*arguments, "--record"]) == 0
        assert work.main(arguments) == 0
        assert "as recorded" in capsys.readouterr().out
    with patch.object(work, "TASKS", (NUMPY_AUTO,)), patch.object(work, "count_task", lambda _: {**COUNTS, "bytes": 1}):
        assert work.main(arguments) == 0
        assert "shrank: record it" in capsys.readouterr().out
    with (
        patch.object(work, "TASKS", (NUMPY_AUTO,)),
        patch.object(work, "count_task", lambda _: {**COUNTS, "calls": 600}),
    ):
        assert work.main(arguments) == 1
        assert "+20.0% GREW" in capsys.readouterr().out


def test_a_call_has_a_limit_of_its_own_whatever_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work.MOST_CALLS.keys() <= {task.name for task in work.TASKS}
    task, most = "native one", work.MOST_CALLS["native one"]
    assert work.too_many({task: {**COUNTS, "calls": most}, "numpy auto": COUNTS}) == []
    arguments = ["--baseline", str(tmp_path / "work.json")]
    over = {**COUNTS, "calls": most + 1}
    with (
        patch.object(work, "TASKS", (work.Task(task, NUMPY_AUTO.make),)),
        patch.object(work, "count_task", lambda _: over),
    ):
        assert work.main([*arguments, "--record"]) == 0
        assert work.main(arguments) == 1
    assert capsys.readouterr().out.count(f"{most + 1} of at most {most}  TOO MANY") == 2


@pytest.mark.sweep
def test_counts_repeat_and_a_call_more_for_each_query_is_found() -> None:
    before = work.count_task(NUMPY_AUTO)
    assert before["postings"] > 100_000
    again = work.count_task(NUMPY_AUTO)
    assert {name: again[name] for name in (*work.COUNTED, "calls")} == {
        name: before[name] for name in (*work.COUNTED, "calls")
    }
    evidence = _evidence

    def slower(*arguments: Any) -> Any:
        return evidence(*arguments)

    with patch.object(batch, "_evidence", slower):
        planted = work.count_task(NUMPY_AUTO)
    assert planted["calls"] == before["calls"] + work.QUERIES
    kept = work.update_baseline({}, {"numpy auto": before}, VERSIONS)
    assert [change.count for change in work.changes(kept, {"numpy auto": planted}, VERSIONS) if change.grew] == [
        "calls"
    ]


def test_what_searches_count_is_summed_over_all_of_them() -> None:
    phases, other = Phases(), Phases()
    with counting.count_work() as sums:
        phases.count("postings", 3)
        phases.count("postings", 4)
        other.count("lookups", 5)
    phases.count("postings", 1)
    assert sums == {"postings": 7, "lookups": 5}
    assert phases.counts == {"postings": 8}
