"""A filter that is the first to name a key declares its column; what is declared later is as if from the start."""

import asyncio
import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.carry_cases import COLUMNS, DIMENSION, answers, engine_at, filtered_questions, plain

import fanrank as fr
from fanrank.engine import opening
from fanrank.engine.storage import failpoints, storage
from fanrank.engine.storage.index_files import IndexDirectory
from fanrank.integrations.shared import metadata_filter

AUTO = {"*": "json"}


def records(count: int = 40) -> list[fr.Record]:
    return [
        fr.Record(
            f"r{n}", "tea pot", payload={"n": n % 5, "type": "ab"[n % 2], "m": {"k": n % 3}}, type="note", time=float(n)
        )
        for n in range(count)
    ]


@pytest.fixture
def engine() -> fr.Engine:
    made = fr.Engine(columns="auto")
    made.add(records())
    return made


def asked(engine: Any, filter: Any, **options: Any) -> list[str]:
    return sorted(name for name, _ in engine.search([fr.Query("tea", filter=filter, k=100)], **options)[0])


THIRDS = sorted(f"r{n}" for n in range(0, 40, 5))


def names(row: Any) -> list[str]:
    return sorted(name for name, _ in row)


ASKED = fr.Query("tea", filter={"n": 0}, k=100)
NEWEST = fr.Query(newest=True, filter={"n": 0}, k=100)
READS: dict[str, tuple[Callable[[fr.Engine], Any], Any]] = {
    "search": (lambda e: names(e.search([ASKED], texts=True)[0]), THIRDS),
    "search by a strategy": (lambda e: names(e.search([ASKED], strategy="recall")[0]), THIRDS),
    "asearch": (lambda e: names(asyncio.run(e.asearch([ASKED]))[0]), THIRDS),
    "stream": (lambda e: names(next(e.search_stream([[ASKED]]))[0]), THIRDS),
    "newest": (lambda e: names(e.search([NEWEST])[0]), THIRDS),
    "candidates": (lambda e: len(e.candidates([ASKED], "recall")[0].documents), 8),
    "tenant": (lambda e: names(e.namespace("").search([ASKED])[0]), THIRDS),
    "records": (lambda e: sorted(record.id for record in e.records(filter={"n": 0})), THIRDS),
    "count": (lambda e: e.count({"n": 0}), 8),
    "distinct": (lambda e: e.distinct("n"), dict.fromkeys(range(5), 8)),
    "events": (lambda e: names(e.events(0.0, 99.0, type="note", filter={"n": 0})), THIRDS),
    "delete_where": (lambda e: (e.delete_where({"n": 0}), len(e)), (8, 32)),
    "update_where": (lambda e: (e.update_where({"n": 0}, role="x"), e.count({"role": "x"})), (8, 8)),
}


@pytest.mark.parametrize("columns", [{}, AUTO], ids=["plain", "auto"])
@pytest.mark.parametrize("name", READS)
def test_every_verb_declares_what_its_filter_names(
    name: str, columns: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are read once, for their keys and for the column's values."""
    engine = fr.Engine.from_records(records(), columns=columns)
    streams = iter([storage.stream_records])
    monkeypatch.setattr(storage, "stream_records", lambda *given, **how: next(streams)(*given, **how))
    read, wanted = READS[name]
    assert read(engine) == wanted
    assert engine.columns == {**columns, "n": "json"}


@pytest.mark.parametrize("name", READS)
def test_every_verb_says_that_no_record_has_a_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one comes that has it. The records are read for their keys once."""
    engine = fr.Engine.from_records([replace(record, payload={"nn": 1}) for record in records()])
    for _ in range(2):
        with pytest.raises(
            fr.errors.UnknownColumnError, match=r"no column 'n' .* mean 'nn'\?.* No record has"
        ) as caught:
            READS[name][0](engine)
        assert caught.value.columns == ("n",)
        monkeypatch.setattr(storage, "stream_records", None)
    monkeypatch.undo()
    engine.update(records())
    assert READS[name][0](engine) == READS[name][1]


def test_nested_keys_and_those_of_payloads_alone() -> None:
    engine = fr.Engine.from_records([fr.Record("a", "tea", extra={"x.y": 1, "z": {"y": 2}}, payload={"w": {"v": 3}})])
    held = {"x.y": 1, "z.y": 2, "w.v": 3, "payload.w.v": 3}
    assert [engine.count({name: value}) for name, value in held.items()] == [1] * 4
    for name in ("x", "y", "payload.u.v", "v"):
        with pytest.raises(fr.errors.UnknownColumnError, match="No record has such a key in its extra or payload"):
            engine.count({name: 1})


def test_a_search_collapsed_by_an_undeclared_key(engine: fr.Engine) -> None:
    assert len(engine.search([fr.Query("tea", collapse="m.k", k=100)])[0]) == 3
    assert engine.columns == {**AUTO, "m.k": "json"}


def test_a_key_that_no_record_has_is_missing_everywhere(engine: fr.Engine) -> None:
    assert engine.count({"gone": None}) == 40
    assert engine.count(fr.col("gone").exists()) == 0
    engine.add([fr.Record("late", "tea", payload={"gone": 1})])
    assert list(engine.ids({"gone": 1})) == ["late"]


def test_built_in_columns_stay_what_they_are(engine: fr.Engine) -> None:
    assert engine.count({"type": "a"}) == 0
    assert engine.count({"type": "note"}) == 40
    assert engine.columns == AUTO
    assert engine.count(metadata_filter({"type": {"$eq": "a"}}, "langgraph")) == 20
    assert engine.columns == {**AUTO, "payload.type": "json"}


def test_what_is_no_column_is_an_error(engine: fr.Engine) -> None:
    for name in ("text", "payload", "id", "embedding"):
        with pytest.raises(fr.errors.QueryError, match=f"column '{name}' cannot be declared: .* is taken"):
            engine.count({name: 1})
    # The name of all other columns is none itself; as the key of a payload it is a key like others.
    for call in (lambda: engine.count({"*": 1}), lambda: asked(engine, {"*": 1}), lambda: engine.distinct("*")):
        with pytest.raises(fr.errors.QueryError, match=r"write 'payload\.\*'"):
            call()
    assert engine.count({"payload.*": 1}) == 0
    engine.drop_column("payload.*")
    assert engine.columns == AUTO


def test_no_filter_declares_while_a_directory_is_opened(tmp_path: Path) -> None:
    """The memory that is loaded takes the place of the one that was told."""
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add(records())
    with fr.Engine.open(tmp_path / "memory", wait=False) as engine:
        engine.searcher.keep_columns()
        with pytest.raises(fr.errors.UnknownColumnError):
            engine.count({"n": 0})


def test_where_filters_declare_nothing_the_error_says_what_to_do() -> None:
    engine = fr.Engine.from_records(records())
    engine.searcher.keep_columns()
    with pytest.raises(fr.errors.UnknownColumnError) as caught:
        engine.search([fr.Query("tea", filter={"n": 0})])
    assert caught.value.columns == ("n",)
    for part in ("no column 'n' to filter on", "columns={'n': 'json'}", "add_column('n', 'json')", "--column n:json"):
        assert part in str(caught.value)
    engine.add_column("n", "json")
    assert asked(engine, {"n": 0}) == THIRDS
    assert engine.health().failure_count == {"UnknownColumnError": 1}
    textless = fr.Engine(keep_texts=False)
    textless.add(records())
    with pytest.raises(fr.errors.UnknownColumnError, match="Declare it where the index is made"):
        textless.count({"n": 0})


def test_names_that_no_record_has_become_columns_with_auto_alone() -> None:
    engine = fr.Engine.from_records(records())
    engine.add_column("*", "json")
    assert engine.count({"m.k": 0, "gone": None}) == 14
    engine.drop_column("*")
    with pytest.raises(fr.errors.UnknownColumnError):
        engine.count({"away": 0})


def test_two_that_declare_at_the_same_time_both_count(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, both = engine.index.memory, threading.Barrier(2)
    change = memory.change_columns

    def change_together(made: Any, **options: Any) -> None:
        both.wait(300)
        change(made, **options)

    monkeypatch.setattr(memory, "change_columns", change_together)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda name: engine.count({name: 0}), ("n", "m.k"))) == [8, 14]
    assert {*engine.columns} == {"*", "n", "m.k"}


def test_a_directory_keeps_what_was_declared(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with fr.Engine.open(path, columns={"n": "number", "*": "json"}) as engine:
        engine.add(records())
        assert engine.count({"m.k": 0}) == 14
    declared = {"*": "json", "m.k": "json", "n": "number"}
    for options in ({}, {"columns": {"n": "number", "*": "json"}}, {"columns": declared}, {"columns": "auto"}):
        with fr.Engine.open(path, **options) as engine:  # type: ignore[arg-type]
            assert engine.opened == "loaded"
            assert engine.columns == declared
            assert engine.count({"m.k": 0, "n": {"<": 2}}) == 6
    with fr.Engine.open(tmp_path / "plain", columns={"n": "number"}) as engine:
        engine.add(records())
        assert engine.count({"m.k": 0}) == 14
    for options in ({}, {"columns": {"n": "number"}}, {"columns": {"n": "number", "m.k": "json"}}):
        with fr.Engine.open(tmp_path / "plain", **options) as engine:  # type: ignore[arg-type]
            assert (engine.opened, engine.columns) == ("loaded", {"m.k": "json", "n": "number"})
    with pytest.raises(fr.errors.ParameterError, match="was made with columns"):
        fr.Engine.open(tmp_path / "plain", columns={"m.k": "json"})
    for wrong in ({}, {"n": "json", "*": "json"}, {"other": "json", "*": "json"}, {"n": "number"}):
        with pytest.raises(fr.errors.ParameterError, match=r"was made with columns = .*add_column"):
            fr.Engine.open(path, columns=wrong)


def test_engines_that_cannot_declare_say_why(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m", columns="auto") as engine:
        engine.add(records())
        assert engine.count({"n": 0}) == 8
        engine.save(tmp_path / "saved")
    with fr.Engine.open(tmp_path / "m", read_only=True) as reader:
        assert asked(reader, {"n": 0}) == THIRDS
        # It is a column of the reader alone, as others may write the directory.
        assert len(asked(reader, {"m.k": 0})) == 14
        assert reader.count({"m.k": 0}) == 14
    with fr.Engine.open(tmp_path / "m", read_only=True) as reader, fr.Engine.open(tmp_path / "m") as writer:
        assert "m.k" not in reader.columns
        writer.delete(["r0"])
        with pytest.raises(fr.errors.StorageError, match="another wrote since it was opened; open it anew"):
            reader.count({"m.k": 0})
        assert asked(reader, {"n": 0}) == THIRDS
        writer.add(records(1))
    loaded = fr.Engine.load(tmp_path / "saved")
    assert asked(loaded, {"n": 0}) == THIRDS
    with pytest.raises(fr.errors.QueryError, match=r"'m\.k' is not declared, and this engine cannot declare it"):
        asked(loaded, {"m.k": 0})
    with pytest.raises(fr.errors.ParameterError, match="columns='auto' reads the records"):
        fr.Engine(columns="auto", keep_texts=False)
    mixed = fr.Engine()
    mixed.add([fr.Record("a", "tea", extra={"odd": {1, 2}})])
    mixed.add_column("*", "json")
    with pytest.raises(fr.errors.QueryError, match=r"column 'odd' cannot be declared: id 'a': .* must be a JSON value"):
        mixed.count({"odd": 1})


def test_a_reader_learns_of_keys_that_came_since(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m") as writer:
        writer.add(records())
        with fr.Engine.open(tmp_path / "m", read_only=True) as reader:
            with pytest.raises(fr.errors.UnknownColumnError, match="No record has"):
                reader.count({"late": 1})
            writer.add([fr.Record("late", "tea", payload={"late": 1})])
            reader.refresh()
            assert reader.count({"late": 1}) == 1


def test_exports_and_scans_read_undeclared_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    with fr.Engine.open(path, columns="auto") as engine:
        engine.add(records())
        assert engine.export(tmp_path / "some.jsonl", filter={"m.k": 0}) == 14
        assert engine.columns == AUTO
    go_on = threading.Event()
    replay = opening.replay

    def replay_later(*arguments: Any) -> None:
        assert go_on.wait(300)
        replay(*arguments)

    # Without index files it is built.
    shutil.rmtree(path / "index")
    monkeypatch.setattr(opening, "replay", replay_later)
    with fr.Engine.open(path, wait=False) as engine:
        assert engine.opening
        hits = engine.search([fr.Query(terms=("tea",), filter={"n": 0}, k=100)])
        assert (hits.backend, sorted(name for name, _ in hits[0])) == ("keyword-scan", THIRDS)
        go_on.set()
        engine.index.ready()
        assert asked(engine, {"n": 0}) == THIRDS


def versions(path: Path) -> tuple[int, int]:
    """The formats of a directory's records and of its index."""
    with sqlite3.connect(path / "records.sqlite") as connection:
        (records,) = connection.execute("PRAGMA user_version").fetchone()
    return records, json.loads((path / "index" / "manifest.json").read_text())["version"]


def test_only_columns_of_json_take_the_new_formats(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m", columns={"project": "category"}) as engine:
        engine.add([fr.Record("a", "tea", extra={"project": "x"})])
    assert versions(tmp_path / "m") == (2, 2)
    with fr.Engine.open(tmp_path / "json", columns="auto") as engine:
        engine.add([fr.Record("a", "tea", extra={"project": "x"})])
    assert versions(tmp_path / "json") == (5, 6)


def test_a_column_may_change_its_kind_in_one_step() -> None:
    engine = fr.Engine(columns={"v": "category"})
    engine.add([fr.Record("a", "tea", extra={"v": "5"}), fr.Record("b", "tea")])
    engine.change_columns(["v"], {"v": "json"})
    assert list(engine.ids(fr.col("v").like("_"))) == ["a"]
    engine.add([fr.Record("c", "tea", extra={"v": 5})])
    assert (engine.distinct("v"), engine.count({"v": 5})) == ({None: 1, 5: 1, "5": 1}, 1)


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
