"""Killed at every step, as by ``kill -9``: what is there then, and that the next run ends as if nothing had been."""

from pathlib import Path

import pytest
from support import borders
from support.carry_cases import COLUMNS, answers, encoded, engine_at, filtered_questions, held, plain
from support.kills import leave

import fanrank as fr
from fanrank.engine.storage import failpoints

COUNT = 60


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks, so that each step is reached several times."""
    borders.shrink(monkeypatch, BATCH_RECORDS=8, BUILD_CHUNK=8, STREAM_ROWS=5, COLUMN_RECORDS=7)


def run(root: Path, verb: str) -> None:
    with engine_at(root / ("target" if verb == "import" else "source")) as engine:
        if verb == "export":
            engine.export(root / "all.jsonl")
        elif verb == "import":
            engine.import_records(root / "all.jsonl")
        elif verb == "copy":
            engine.copy_to(root / "target", analyzer="minimal")
        else:
            engine.add_column("project", "category")


# Each verb's own steps. The machine of memories is killed at those of the writes and checkpoints that it makes.
STEPS = [
    *((point.partition(".")[0], point, count) for point in failpoints.CARRYING for count in (1, 3)),
    *(("columns", f"checkpoint.{step}", 1) for step in ("begin", "part", "manifest", "replaced", "pruned")),
]
ONCE = ("renamed", "written", "begin", "made", "committed", "published")
CASES = [
    # A later time that a step is reached matters where there is one.
    pytest.param(verb, point, count, marks=[pytest.mark.extended] if count > 1 else [])
    for verb, point, count in STEPS
    if count == 1 or not point.endswith(ONCE)
]


@pytest.mark.parametrize(("verb", "point", "count"), CASES)
def test_a_kill_leaves_all_or_what_is_durable(tmp_path: Path, verb: str, point: str, count: int) -> None:
    history = plain(COUNT)
    root, tmp_path = tmp_path / "root", tmp_path / "left"
    with engine_at(root / "source") as source:
        source.add(history)
        if verb == "import":
            source.export(root / "all.jsonl")
        elif verb == "export":
            (root / "all.jsonl").write_text("old\n")
    assert leave(root, point, lambda: run(root, verb), tmp_path, count)

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
            assert sum(map(len, found.values())) < COUNT
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
        run(tmp_path, verb)
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
