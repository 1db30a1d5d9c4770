"""Columns that are declared later, in place: answers as if they had been declared from the start."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.carry_cases import COLUMNS, DIMENSION, answers, engine_at, filtered_questions, plain

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.index_files import IndexDirectory


def fill(engine: fr.Engine) -> None:
    """Several segments, deleted documents among them."""
    history = plain(120)
    for start in range(0, 120, 23):
        engine.add(history[start : start + 23])
    engine.delete([record.id for record in history[3:60:5] if record.namespace == ""])
    engine.update(history[60:120:7])


def test_wrong_values_change_nothing(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one:
        fill(one)
        one.add([fr.Record("odd", "tea", extra={"priority": "high", "project": 3})])
        before = answers(one)
        with pytest.raises(fr.errors.RecordError, match=r"id 'odd': column 'priority' must be"):
            one.add_column("priority", "number")
        with pytest.raises(fr.errors.RecordError, match=r"id 'odd': column 'project' must be a string"):
            one.add_column("project", "category")
        for name, kind, wrong in (
            ("role", "category", "is built in"),
            ("a b", "category", "letters, digits"),
            ("x", "text", "unknown kind"),
            ("c" * 201, "category", "has 201 bytes, and at most 200"),
            ("ß" * 101, "number", "has 202 bytes, and at most 200"),
        ):
            with pytest.raises(fr.errors.ParameterError, match=wrong):
                one.add_column(name, kind)
        assert one.columns == {}
        assert answers(one) == before
        one.delete(["odd"])
        one.add_column("priority", "number")
        with pytest.raises(fr.errors.ParameterError, match="column 'priority' is there already, as a number"):
            one.add_column("priority", "number")
        with pytest.raises(fr.errors.RecordError, match="column 'priority'"):
            one.add([fr.Record("odd", "tea", extra={"priority": "high"})])


def test_the_longest_names_name_files(tmp_path: Path) -> None:
    names = {"c" * 200: "category", "ß" * 100: "category", "n" * 200: "number", "j" * 300: "json", 'a/b: "ß"': "json"}
    with engine_at(tmp_path / "one") as one:
        one.add([fr.Record("a", "tea", extra=dict.fromkeys(names, "v") | {"n" * 200: 1})])
        for name, kind in names.items():
            one.add_column(name, kind)
            assert one.stats()["background_error"] is None
    with engine_at(tmp_path / "one") as one:
        assert one.opened == "loaded"
        assert one.columns == names
        assert one.count({"ß" * 100: "v"}) == 1
    with (
        pytest.raises(fr.errors.ParameterError, match="has 201 bytes"),
        engine_at(tmp_path / "new", columns={"c" * 201: "category"}),
    ):
        pass


def test_index_files_that_fail_leave_the_columns_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_at(tmp_path / "one") as one:
        one.add([fr.Record("a", "tea", extra={"project": "x"})])
        one.flush()
        with monkeypatch.context() as patched, caplog.at_level("WARNING", "fanrank"):
            patched.setattr(IndexDirectory, "save", Mock(side_effect=fr.errors.StorageError("no space left")))
            one.add_column("project", "category")
            assert "background work failed: StorageError" in caplog.text
        assert one.columns == {"project": "category"}
        # It stands in the database itself, though no checkpoint folded the log in.
        (tmp_path / "copy").mkdir()
        shutil.copy(tmp_path / "one" / "records.sqlite", tmp_path / "copy")
        with engine_at(tmp_path / "copy", accept_loss=True) as copy:
            assert copy.columns == {"project": "category"}
        one.flush()
        assert one.stats()["background_error"] is None
    with engine_at(tmp_path / "one") as one:
        assert one.opened == "loaded"
        assert one.count({"project": "x"}) == 1


def test_without_records_there_is_nothing_to_read_a_column_from(tmp_path: Path) -> None:
    with pytest.raises(fr.errors.StorageError, match="there are no texts"):
        fr.Engine(keep_texts=False).add_column("project", "category")
    with engine_at(tmp_path / "one") as one:
        one.add_column("project", "category")  # of no records
        one.add([fr.Record("a", "tea", extra={"project": "x"})])
        assert one.search([fr.Query("tea", filter={"project": "x"})])[0][0][0] == "a"
    with engine_at(tmp_path / "one", read_only=True) as reader:
        with pytest.raises(fr.errors.StorageError, match="read_only=True"):
            reader.add_column("priority", "number")
        assert reader.columns == {"project": "category"}


def test_a_reader_goes_on_with_its_columns(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one:
        fill(one)
        one.flush()
        with engine_at(tmp_path / "one", read_only=True) as reader:
            before = answers(reader)
            one.add_column("project", "category")
            reader.refresh()
            assert (reader.columns, answers(reader)) == ({}, before)


def test_an_interrupt_after_the_commit_is_published(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with engine_at(tmp_path / "one") as one, engine_at(tmp_path / "two", columns=COLUMNS) as two:
        fill(one)
        fill(two)
        one.add_column("priority", "number")
        failpoints.arm("columns.made", action=interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.add_column("project", "category")
        assert one.columns == {"priority": "number"}
        failpoints.arm("columns.committed", action=interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.add_column("project", "category")
        failpoints.disarm()
        assert one.columns == COLUMNS
        assert answers(one, filtered_questions()) == answers(two, filtered_questions())
    with fr.Engine.open(tmp_path / "one", encoder=fr.OwnVectors(DIMENSION)) as one:
        assert answers(one, filtered_questions()) == answers(two, filtered_questions())


@pytest.mark.parametrize(
    ("dropped", "added", "wrong"),
    [
        (["a"], {"a": "number"}, "must be"),  # the values are strings
        (["a", "a"], {}, "'a' is to be dropped twice"),
        (["a", "x"], {}, "no declared column 'x'"),
        (["a"], {"b": "category"}, "'b' is there already"),
        (["a"], {"c": "number", "role": "number"}, "role"),
    ],
)
def test_several_changes_are_made_together_or_not_at_all(
    tmp_path: Path, dropped: list[str], added: dict[str, str], wrong: str
) -> None:
    made = {"a": "category", "b": "number"}
    with fr.Engine.open(tmp_path / "one", backend="numpy", columns=made) as engine:
        engine.add([{"id": "r", "text": "tea", "a": "x", "b": 1, "c": 2}])
        with pytest.raises((fr.errors.ParameterError, fr.errors.RecordError), match=wrong):
            engine.change_columns(dropped, added)
        assert engine.columns == made
        engine.change_columns(["a", "b"], {"b": "number", "c": "number"})
        assert engine.columns == {"b": "number", "c": "number"}
        assert engine.count({"b": 1, "c": 2}) == 1
    with fr.Engine.open(tmp_path / "one", backend="numpy") as engine:
        assert engine.columns == {"b": "number", "c": "number"}
