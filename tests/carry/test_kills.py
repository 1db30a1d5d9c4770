"""Killed at every step, as by ``kill -9``: what is there then, and that the next run ends as if nothing had been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from support.carry_cases import COLUMNS, answers, encoded, engine_at, filtered_questions, held, plain

import fanrank as fr
from fanrank.engine.storage import failpoints

COUNT = 60
# Small chunks, so that each step is reached several times.
PROGRAM = """
import sys
from pathlib import Path
import pytest
from support import borders
from support.carry_cases import engine_at
borders.shrink(pytest.MonkeyPatch(), BATCH_RECORDS=8, BUILD_CHUNK=8, STREAM_ROWS=5, COLUMN_RECORDS=7)
root = Path(sys.argv[1])
verb = sys.argv[2]
with engine_at(root / ("target" if verb == "import" else "source")) as engine:
    if verb == "export":
        engine.export(root / "all.jsonl")
    elif verb == "import":
        engine.import_records(root / "all.jsonl")
    elif verb == "copy":
        engine.copy_to(root / "target", analyzer="minimal")
    else:
        engine.add_column("project", "category")
"""
# Each verb's own steps, and those of the writes and checkpoints that it makes.
WRITES = ("write.begin", "write.commit", "write.committed", "write.published", "checkpoint.manifest")
STEPS = [
    *((point.partition(".")[0], point, count) for point in failpoints.CARRYING for count in (1, 3)),
    *((verb, point, count) for verb in ("import", "copy") for point in WRITES for count in (1, 3)),
    *(("columns", point, 1) for point in ("checkpoint.begin", "checkpoint.part", "checkpoint.manifest")),
    *(("columns", point, 1) for point in ("checkpoint.replaced", "checkpoint.pruned")),
]
ONCE = ("renamed", "written", "begin", "made", "committed", "published", "manifest")
CASES = [
    # Each point is met at every commit, and a later time that it is reached in turn.
    pytest.param(verb, point, count, marks=[pytest.mark.sweep] * (count > 1))
    for verb, point, count in STEPS
    if count == 1 or not point.endswith(ONCE) or point in ("write.begin", "write.committed", "write.published")
]


def run(root: Path, verb: str, failpoint: str = "") -> int:
    environment = {**os.environ, failpoints.VARIABLE: failpoint}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), verb], env=environment, capture_output=True, text=True
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
@pytest.mark.parametrize(("verb", "point", "count"), CASES)
def test_a_kill_leaves_all_or_what_is_durable(tmp_path: Path, verb: str, point: str, count: int) -> None:
    history = plain(COUNT)
    with engine_at(tmp_path / "source") as source:
        source.add(history)
        if verb == "import":
            source.export(tmp_path / "all.jsonl")
        elif verb == "export":
            (tmp_path / "all.jsonl").write_text("old\n")
    assert run(tmp_path, verb, f"{point}:{count}") == -signal.SIGKILL

    if verb == "export":
        whole = point == "export.renamed"
        assert ((tmp_path / "all.jsonl").read_text() == "old\n") is not whole
    elif verb == "copy":
        assert (tmp_path / "target").exists() is (point == "copy.renamed")
    elif verb == "columns":
        with engine_at(tmp_path / "source") as source:
            assert source.columns == ({} if point == "columns.made" else {"project": "category"})
            assert held(source) == encoded(history)
    elif (tmp_path / "target" / "records.sqlite").exists():
        with engine_at(tmp_path / "target") as target:
            found = held(target)
            assert sum(map(len, found.values())) < COUNT or point.startswith("checkpoint")
            wanted = encoded(history)
            assert all(rows == wanted[name][: len(rows)] for name, rows in found.items())

    if verb == "columns":
        with engine_at(tmp_path / "source") as source:
            if not source.columns:
                source.add_column("project", "category")
            source.add_column("priority", "number")
        with engine_at(tmp_path / "source") as source:
            fresh = fr.Engine.from_records(history, columns=COLUMNS, encoder="own:3", backend="numpy")
            assert source.opened == "loaded"
            assert held(source) == encoded(history)
            assert answers(source, filtered_questions()) == answers(fresh, filtered_questions())
        return
    if not (verb == "copy" and point == "copy.renamed"):
        assert run(tmp_path, verb) == 0
    if verb == "export":
        with engine_at(tmp_path / "target") as target:
            target.import_records(tmp_path / "all.jsonl")
    with engine_at(tmp_path / "target") as target:
        fresh = fr.Engine.from_records(
            history, analyzer="minimal" if verb == "copy" else "nltk", encoder="own:3", backend="numpy"
        )
        assert held(target) == encoded(history)
        assert answers(target) == answers(fresh)
    if verb == "copy":
        assert sorted(file.name for file in tmp_path.iterdir()) == ["source", "target"]
