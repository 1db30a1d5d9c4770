"""``columns="auto"``: a filter that is the first to name a key declares its column, wherever it is given."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fanrank as fr
from fanrank.engine.carrying import change_columns
from fanrank.engine.opening import OpenIndex
from fanrank.integrations.shared import metadata_filter, open_engine

AUTO = {"*": "json"}


def records(count: int = 40) -> list[fr.Record]:
    return [
        fr.Record(
            f"r{n}", "tea pot", payload={"n": n % 5, "type": "ab"[n % 2], "m": {"k": n % 3}}, type="note", time=float(n)
        )
        for n in range(count)
    ]


@pytest.fixture(params=["memory", "directory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[fr.Engine]:
    made = fr.Engine(columns="auto") if request.param == "memory" else fr.Engine.open(tmp_path / "m", columns="auto")
    with made:
        made.add(records())
        yield made


def asked(engine: Any, filter: Any, **options: Any) -> list[str]:
    return sorted(name for name, _ in engine.search([fr.Query("tea", filter=filter, k=100)], **options)[0])


THIRDS = sorted(f"r{n}" for n in range(0, 40, 5))

READS: dict[str, Callable[[fr.Engine], Any]] = {
    "search": lambda engine: asked(engine, {"n": 0}),
    "search with payload": lambda engine: asked(engine, {"n": 0}, payload=True, texts=True),
    "search by a strategy": lambda engine: asked(engine, {"n": 0}, strategy="recall"),
    "asearch": lambda engine: sorted(
        name for name, _ in asyncio.run(engine.asearch([fr.Query("tea", filter={"n": 0}, k=100)]))[0]
    ),
    "submit": lambda engine: sorted(
        name for name, _ in engine.submit([fr.Query("tea", filter={"n": 0}, k=100)]).result()[0]
    ),
    "stream": lambda engine: sorted(
        name for name, _ in next(engine.search_stream([[fr.Query("tea", filter={"n": 0}, k=100)]]))[0]
    ),
    "newest": lambda engine: sorted(
        name for name, _ in engine.search([fr.Query(newest=True, filter={"n": 0}, k=100)])[0]
    ),
    "candidates": lambda engine: (
        THIRDS if len(engine.candidates([fr.Query("tea", filter={"n": 0})], "recall")[0].documents) == 8 else []
    ),
    "tenant": lambda engine: asked(engine.namespace(""), {"n": 0}),
    "records": lambda engine: sorted(record.id for record in engine.records(filter={"n": 0})),
    "ids": lambda engine: sorted(engine.ids({"n": 0})),
    "count": lambda engine: THIRDS if engine.count({"n": 0}) == 8 else [],
    "distinct": lambda engine: THIRDS if engine.distinct("n") == dict.fromkeys(range(5), 8) else [],
    "events": lambda engine: sorted(name for name, _ in engine.events(0.0, 99.0, type="note", filter={"n": 0})),
    "delete_where": lambda engine: THIRDS if engine.delete_where({"n": 0}) == 8 and len(engine) == 32 else [],
    "update_where": lambda engine: (
        THIRDS if engine.update_where({"n": 0}, role="x") == 8 and engine.count({"role": "x"}) == 8 else []
    ),
}


@pytest.mark.parametrize("name", READS)
def test_every_verb_declares_what_its_filter_names(engine: fr.Engine, name: str) -> None:
    assert engine.columns == AUTO
    assert READS[name](engine) == THIRDS
    assert engine.columns == {**AUTO, "n": "json"}


def test_a_search_distinct_in_an_undeclared_key(engine: fr.Engine) -> None:
    assert len(engine.search([fr.Query("tea", distinct="m.k", k=100)])[0]) == 3
    assert len(engine.search([fr.Query("tea", k=100)], distinct="m.k")[0]) == 3
    assert engine.columns == {**AUTO, "m.k": "json"}


def test_a_batch_declares_once_for_all_its_queries(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, changes = engine.index.memory, []
    change = memory.change_columns
    monkeypatch.setattr(memory, "change_columns", lambda made: changes.append(made) or change(made))
    batch = [fr.Query("tea", filter={name: 0}) for name in ("n", "m.k", "gone", "m.k", "type2")]
    hits = engine.search(batch)
    assert [len(row) for row in hits] == [8, 10, 0, 10, 0]
    assert len(changes) == 1
    assert set(engine.columns) == {"*", "n", "m.k", "gone", "type2"}


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
    with pytest.raises(fr.errors.QueryError, match="lone surrogate"):
        engine.count({"\ud800": 1})
    # The name of all other columns is none itself; as the key of a payload it is a key like others.
    with pytest.raises(fr.errors.QueryError, match=r"write 'payload\.\*'"):
        engine.count({"*": 1})
    with pytest.raises(fr.errors.QueryError, match=r"write 'payload\.\*'"):
        asked(engine, {"*": 1})
    with pytest.raises(fr.errors.QueryError, match=r"write 'payload\.\*'"):
        engine.distinct("*")
    assert engine.columns == AUTO
    assert engine.count({"payload.*": 1}) == 0
    engine.drop_column("payload.*")
    assert engine.columns == AUTO


def test_without_auto_the_error_says_what_to_do() -> None:
    engine = fr.Engine.from_records(records())
    with pytest.raises(fr.errors.UnknownColumnError) as caught:
        engine.search([fr.Query("tea", filter={"n": 0})])
    assert caught.value.columns == ("n",)
    for part in ("no column 'n'", "extra or payload", "add_column('n', 'json')", "columns='auto'"):
        assert part in str(caught.value)
    engine.add_column("n", "json")
    assert asked(engine, {"n": 0}) == THIRDS
    assert engine.health().failure_count == {"UnknownColumnError": 1}
    engine.add_column("*", "json")
    assert engine.count({"m.k": 0}) == 14
    engine.drop_column("*")
    with pytest.raises(fr.errors.UnknownColumnError):
        engine.count({"m.j": 0})


def test_threads_declare_at_the_same_time(engine: fr.Engine) -> None:
    """Each asks for columns of its own and for common ones, while others write and one declares by hand."""
    start = threading.Barrier(8)

    def ask(number: int) -> list[Any]:
        draw = random.Random(number)
        start.wait(30)
        found = []
        for _ in range(6):
            own = f"own{number}"
            name = draw.choice(["n", "m.k", own])
            query = fr.Query("tea", filter={name: 0} if name != own else {own: None}, k=100)
            found.append((name, len(engine.search([query])[0])))
        return found

    def write() -> None:
        start.wait(30)
        for n in range(10):
            engine.add([fr.Record(f"w{n}", "coffee", payload={"n": 0, "m": {"k": 0}})])

    def declare() -> None:
        start.wait(30)
        engine.add_column("by hand", "json")

    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(write), pool.submit(declare)]
        rows = [row for found in pool.map(ask, range(6)) for row in found]
        for one in others:
            one.result()
    expected = {"n": 8, "m.k": 14}
    assert all(count == expected.get(name, 40) for name, count in rows)
    assert {*engine.columns} >= {"*", "by hand"} | {name for name, _ in rows}
    assert engine.count({"n": 0}) == 18


def test_two_that_declare_at_the_same_time_both_count(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, both = engine.index.memory, threading.Barrier(2)
    change = memory.change_columns

    def change_together(made: Any) -> None:
        both.wait(30)
        change(made)

    monkeypatch.setattr(memory, "change_columns", change_together)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda name: engine.count({name: 0}), ("n", "m.k"))) == [8, 14]
    assert {*engine.columns} == {"*", "n", "m.k"}


def test_many_callers_of_asearch_are_all_answered(engine: fr.Engine) -> None:
    async def run() -> list[int]:
        queries = [fr.Query("tea", filter={name: 0}, k=100) for name in ("n", "m.k", "gone")] * 20
        answers = await asyncio.gather(*(engine.asearch([query]) for query in queries))
        return [len(hits[0]) for hits in answers]

    assert asyncio.run(run()) == [8, 14, 0] * 20


def test_a_tenant_declares_for_all_and_sees_its_own() -> None:
    engine = fr.Engine(columns="auto")
    engine.add([fr.Record("a", "tea", namespace="ana", payload={"n": 1})])
    engine.add([fr.Record("b", "tea", namespace="bo", payload={"n": 1})])
    assert asked(engine.namespace("ana"), {"n": 1}) == ["a"]
    assert asked(engine.namespace("bo"), {"n": 1}) == ["b"]
    assert engine.namespace("ana").count({"n": 1}) == 1


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
    for wrong in ({}, {"n": "json", "*": "json"}, {"other": "json", "*": "json"}, {"n": "number"}):
        with pytest.raises(fr.errors.ParameterError, match=r"was made with columns = .*add_column"):
            fr.Engine.open(path, columns=wrong)
    with sqlite3.connect(path / "records.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (5,)
    assert json.loads((path / "index" / "manifest.json").read_text())["version"] == 6


def test_only_columns_of_json_take_the_new_formats(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m", columns={"project": "category"}) as engine:
        engine.add([fr.Record("a", "tea", extra={"project": "x"})])
    with sqlite3.connect(tmp_path / "m" / "records.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert json.loads((tmp_path / "m" / "index" / "manifest.json").read_text())["version"] == 2
    fr.Engine(columns="auto").save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "manifest.json").read_text())["version"] == 6


def test_engines_that_cannot_declare_say_why(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m", columns="auto") as engine:
        engine.add(records())
        assert engine.count({"n": 0}) == 8
        engine.save(tmp_path / "saved")
    with fr.Engine.open(tmp_path / "m", read_only=True) as reader:
        assert asked(reader, {"n": 0}) == THIRDS
        with pytest.raises(fr.errors.QueryError, match=r"'m\.k' is not declared, and this engine cannot .* read_only"):
            asked(reader, {"m.k": 0})
        with pytest.raises(fr.errors.QueryError, match="read_only"):
            reader.count({"m.k": 0})
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


def test_a_failing_disk_fails_the_search_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fr.Engine.open(tmp_path / "m", columns="auto") as engine:
        engine.add(records())
        store = engine.index.memory.store

        def fail(columns: object) -> None:
            raise fr.errors.StorageError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(store, "change_columns", fail)
            with pytest.raises(fr.errors.StorageError, match="the disk is full"):
                asked(engine, {"n": 0})
        assert engine.columns == AUTO
        assert asked(engine, {"n": 0}) == THIRDS


def test_exports_and_scans_read_undeclared_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    with fr.Engine.open(path, columns="auto") as engine:
        engine.add(records())
        assert engine.export(tmp_path / "some.jsonl", filter={"m.k": 0}) == 14
        assert engine.columns == AUTO
    go_on = threading.Event()
    fill = OpenIndex.fill

    def fill_later(self: OpenIndex, progress: bool = False) -> None:
        assert go_on.wait(30)
        fill(self, progress)

    monkeypatch.setattr(OpenIndex, "fill", fill_later)
    with fr.Engine.open(path, wait=False) as engine:
        assert engine.opening
        hits = engine.search([fr.Query(terms=("tea",), filter={"n": 0}, k=100)])
        assert (hits.backend, sorted(name for name, _ in hits[0])) == ("keyword-scan", THIRDS)
        go_on.set()
        engine.index.ready()
        assert asked(engine, {"n": 0}) == THIRDS


def test_a_copy_declares_too(tmp_path: Path) -> None:
    engine = fr.Engine(columns="auto")
    engine.add(records())
    assert engine.count({"n": 0}) == 8
    engine.copy_to(tmp_path / "copy")
    with fr.Engine.open(tmp_path / "copy") as copy:
        assert copy.columns == {**AUTO, "n": "json"}
        assert (copy.count({"n": 0}), copy.count({"m.k": 0})) == (8, 14)
    engine.copy_to(tmp_path / "plain", columns={})
    with fr.Engine.open(tmp_path / "plain") as copy, pytest.raises(fr.errors.UnknownColumnError):
        copy.count({"n": 0})


def test_a_column_may_change_its_kind_in_one_step() -> None:
    engine = fr.Engine(columns={"v": "category"})
    engine.add([fr.Record("a", "tea", extra={"v": "5"}), fr.Record("b", "tea")])
    change_columns(engine, ["v"], {"v": "json"})
    assert list(engine.ids(fr.col("v").like("_"))) == ["a"]
    engine.add([fr.Record("c", "tea", extra={"v": 5})])
    assert (engine.distinct("v"), engine.count({"v": 5})) == ({None: 1, 5: 1, "5": 1}, 1)


def test_open_engine(tmp_path: Path) -> None:
    engine = open_engine()
    assert isinstance(engine, fr.Engine)
    assert engine.columns == AUTO
    assert open_engine(engine) is engine
    tenant = engine.namespace("ana")
    assert open_engine(tenant) is tenant
    with pytest.raises(fr.errors.ParameterError, match="k1: these options are for an engine that is made here"):
        open_engine(engine, k1=1.0)
    with pytest.raises(fr.errors.ParameterError, match=r"must be an Engine, a Namespace, the path .* not int"):
        open_engine(5)  # type: ignore[arg-type]
    with open_engine(tmp_path / "m", k1=1.0) as stored:  # type: ignore[union-attr]
        assert (stored.columns, stored.bm25.k1) == (AUTO, 1.0)
    with open_engine(str(tmp_path / "m")) as stored:  # type: ignore[union-attr]
        assert stored.bm25.k1 == 1.0
    fr.Engine.open(tmp_path / "plain").close()
    with pytest.raises(fr.errors.ParameterError, match="was made with columns"):
        open_engine(tmp_path / "plain")
    with fr.Engine.open(tmp_path / "plain") as plain:
        plain.add_column("*", "json")
    open_engine(tmp_path / "plain").close()  # type: ignore[union-attr]
