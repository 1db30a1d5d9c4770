"""Changing records: fields, filters, upserts, rewrites and awaited writes; whole or not at all, and durable."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support.threads import in_threads, until
from support.vector_cases import Letters, Terms

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.storage import Storage

FULL = fr.Record(
    "m1",
    "tea in the rain",
    role="user",
    session="s1",
    time=5.0,
    importance=0.5,
    extra={"project": "x", "other": [1, {"deep": None}]},
    entities={"Sarah": "sarah-chen"},
    relations=[fr.Relation("a", "knows", "b")],
    payload={"n": 1},
    expires=4e9,
)


COLUMNS = {"project": "category", "priority": "number"}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[fr.Engine]:
    with fr.Engine.open(tmp_path / "memory", columns=COLUMNS) as opened:
        yield opened


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, {"text": "milk"}),
        (None, {"role": None, "time": None}),
        (None, {"importance": 0.25, "session": "s2"}),
        ({"payload": {"n": 2}}, {"expires": None}),
        ({"payload": None}, {}),
        (None, {"extra": {"priority": 2}}),
        (None, {"entities": ["e"], "relations": None}),
        (None, {"weights": {"tea": 1.5}}),
    ],
)
def test_a_patch_changes_these_fields_alone(
    engine: fr.Engine, tmp_path: Path, changes: dict[str, Any] | None, fields: Any
) -> None:
    other = fr.Record("m2", "snow", time=1.0)
    engine.add([FULL, other])
    assert engine.patch("m1", changes, **fields) == 1
    expected = replace(FULL, **{**(changes or {}), **fields})
    assert list(engine.records()) == [other, expected]
    engine.close()
    with fr.Engine.open(tmp_path / "memory") as again:
        assert list(again.records()) == [other, expected]
        fresh = fr.Engine.from_records([other, expected], columns={"project": "category", "priority": "number"})
        for words in ("tea", "milk snow", "rain"):
            assert list(again.search([words])[0]) == list(fresh.search([words])[0])


def test_vectors_stay_to_the_bit_where_text_and_passages_do(tmp_path: Path) -> None:
    encoder = Letters()
    engine = fr.Engine.open(tmp_path / "memory", encoder=encoder, term_encoder=Terms())
    engine.add(
        [
            fr.Record("plain", "tea time"),
            fr.Record("own", "tea", embedding=[0.1, 0.7, 0.3, 0.2, 0.0], weights={"mine": 2.0}),
            fr.Record("passages", "tea", passages=["one", "two"]),
        ]
    )
    before = {record.id: record for record in engine.records()}
    encoder.asked.clear()
    engine.patch([*before], role="user")
    for record in engine.records():
        assert record == replace(before[record.id], role="user")
        assert np.array_equal(record.embedding, before[record.id].embedding)
    assert encoder.asked == []
    engine.patch([*before], text="new text")
    after = {record.id: record for record in engine.records()}
    assert encoder.asked == [["new text"]]
    fresh = fr.Engine.open(tmp_path / "fresh", encoder=Letters(), term_encoder=Terms())
    fresh.add([fr.Record("new", "new text")])
    encoded = fresh.get("new")
    for name in ("plain", "own"):
        assert np.array_equal(after[name].embedding, encoded.embedding)
        assert after[name].weights == encoded.weights == {"new": 1.0, "text": 1.0}
    assert np.array_equal(after["passages"].embedding, before["passages"].embedding)
    engine.patch("passages", passages=None, text="new text")
    engine.patch("own", embedding=[[1.0, 0, 0, 0, 0]])
    passages, own = engine.fetch(["passages", "own"])
    assert np.array_equal(passages.embedding, encoded.embedding)
    assert own.embedding.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]]
    with pytest.raises(fr.errors.RecordError, match="'embedding' has 2 dimensions"):
        engine.patch("own", embedding=[1.0, 0.0])
    with pytest.raises(fr.errors.ParameterError, match="takes passages away"):
        engine.patch("passages", passages=None)
    engine.close()
    fresh.close()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e: e.patch("m1"), "ParameterError", "nothing to change"),
        (lambda e: e.patch("m1", {"colour": "red"}), "ParameterError", "no field 'colour' to change; there are: text"),
        (lambda e: e.patch("m1", id="m2"), "ParameterError", "no field 'id'"),
        (lambda e: e.patch("m1", {"role": "x"}, role="y"), "ParameterError", "'role' is given twice"),
        (lambda e: e.patch("m1", {3: "x"}), "ParameterError", "must be a string, not 3"),
        (lambda e: e.patch("m1", ["role"]), "ParameterError", "changes must map names"),
        (lambda e: e.patch("m1", importance=7), "RecordError", "'importance' must lie in"),
        (lambda e: e.patch("m1", text=None), "RecordError", "'text' must be a string"),
        (lambda e: e.patch("m1", {"priority": "high"}), "RecordError", "id 'm1': column 'priority' must be a number"),
        (lambda e: e.patch("m1", payload={"a": (1,)}), "RecordError", "cannot be stored as JSON"),
        (lambda e: e.patch("m1", embedding=None), "ParameterError", "cannot take a vector away"),
        (lambda e: e.patch("m1", embedding=[1.0]), "RecordError", "engine has no encoder"),
        (lambda e: e.patch(["m1", "m9"], role="x"), "UnknownIdError", "no live record with id 'm9'; nothing was"),
        (lambda e: e.patch("m1", namespace="a", role="x"), "UnknownIdError", "'m1' in namespace 'a'"),
        (lambda e: e.patch([1], role="x"), "RecordError", "an id must be a string, not 1"),
        (lambda e: e.update_where({"role": "user"}, {"priority": "high"}), "RecordError", "column 'priority'"),
        (lambda e: e.upsert("m1"), "RecordError", "takes a batch"),
    ],
)
def test_a_bad_change_changes_nothing(engine: fr.Engine, call: Any, error: str, message: str) -> None:
    engine.add([FULL, fr.Record("m2", "snow", role="user")])
    before, sequence = list(engine.records()), engine.stats()["sequence"]
    with pytest.raises(getattr(fr.errors, error), match=message):
        call(engine)
    assert (list(engine.records()), engine.stats()["sequence"]) == (before, sequence)
    assert engine.patch(["m1", "m9", "m1"], role="x", missing_ok=True) == 1


def test_no_change_is_lost_between_reading_and_writing(engine: fr.Engine) -> None:
    """Each thread adds to a list that it reads and writes by a patch of its own; a lost update would be seen."""
    engine.add([fr.Record(str(number), "tea", role="user", importance=0.0) for number in range(4)])
    barrier = threading.Barrier(6)

    def patch(column: int) -> None:
        barrier.wait()
        names = ["session", "user", "agent", "tool", "type"]
        for number in range(20):
            if column == 5:
                engine.update_where({"role": "user"}, text=f"tea {number}")
            else:
                engine.patch([str(n) for n in range(4)], {names[column]: f"{column}.{number}"})

    in_threads(*(partial(patch, column) for column in range(6)))
    for record in engine.records():
        assert (record.session, record.user, record.agent, record.tool, record.type) == (
            "0.19",
            "1.19",
            "2.19",
            "3.19",
            "4.19",
        )
        assert record.text == "tea 19"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda record: replace(record, id="m9"), "RecordError", "leave 'id'"),
        (lambda record: replace(record, namespace="a"), "RecordError", "leave 'namespace'"),
        (lambda record: replace(record, text="rain"), "RecordError", "leave 'text'"),
        (lambda record: replace(record, passages=["rain"]), "RecordError", "leave 'passages'"),
        (lambda record: {"role": "x"}, "RecordError", "must return a Record, not dict"),
    ],
)
def test_a_function_that_changes_what_must_stay_changes_nothing(
    engine: fr.Engine, change: Any, error: str, message: str
) -> None:
    engine.add([fr.Record("m1", "tea", role="user"), fr.Record("m2", "snow", role="user")])
    before = list(engine.records())
    with pytest.raises(getattr(fr.errors, error), match=message):
        engine.update_where({"role": "user"}, change)
    with pytest.raises(fr.errors.ParameterError, match="give 'role' by the function"):
        engine.update_where({"role": "user"}, lambda record: record, role="x")
    assert list(engine.records()) == before


@pytest.mark.parametrize("durable", [True, False])
def test_batches_of_one_commit_see_each_other(engine: fr.Engine, durable: bool) -> None:
    """Writes that wait are committed together; a patch among them reads what those before it write."""
    engine = engine if durable else fr.Engine(columns=COLUMNS)
    engine.add([fr.Record("1", "tea"), fr.Record("2", "tea")])
    memory = engine.index.memory
    commits = engine.stats()["commits"]
    calls: list[Any] = [
        lambda: engine.update([fr.Record("1", "milk", role="user")]),
        lambda: engine.patch("1", session="s"),
        lambda: engine.add([fr.Record("3", "snow", role="user")]),
        lambda: engine.patch(["1", "9"], user="u"),
        lambda: engine.delete(["2"]),
        lambda: engine.patch("2", user="u"),
        lambda: engine.update_where({"role": "user"}, tool="t"),
        lambda: engine.delete_where({"session": "s"}),
        lambda: engine.patch("1", user="u"),
        lambda: engine.upsert([fr.Record("1", "rain", role="user")]),
        lambda: engine.update_where({"role": "user"}, agent="a"),
    ]
    results: dict[int, Any] = {}

    def run(number: int) -> None:
        try:
            results[number] = calls[number]()
        except fr.FanrankError as error:
            results[number] = type(error).__name__

    threads = []
    with memory._writing:
        for number in range(len(calls)):
            threads.append(threading.Thread(target=run, args=(number,)))
            threads[-1].start()
            while len(memory._queue) <= number:
                pass
    for thread in threads:
        thread.join()
    unknown = "UnknownIdError"
    assert [results[number] for number in range(len(calls))] == [1, 1, 1, unknown, 1, unknown, 2, 1, unknown, 1, 2]
    assert engine.stats()["commits"] == commits + 1
    assert list(engine.records()) == [
        fr.Record("3", "snow", role="user", tool="t", agent="a"),
        fr.Record("1", "rain", role="user", agent="a"),
    ]
    if durable:
        assert engine.verify() == {"records": 2, "missing": 0, "extra": 0}


def test_an_engine_without_texts_deletes_by_filter_and_patches_nothing() -> None:
    engine = fr.Engine(keep_texts=False)
    engine.add([fr.Record(str(n), "tea", role="user" if n % 2 else None) for n in range(5)])
    assert engine.delete_where({"role": "user"}) == 2
    assert list(engine.ids()) == ["0", "2", "4"]
    calls: list[Any] = [
        lambda: engine.patch("0", role="x"),
        lambda: engine.update_where({"role": None}, role="x"),
        lambda: engine.records(),
    ]
    for call in calls:
        with pytest.raises(fr.errors.StorageError, match="there are no texts"):
            call()
    assert engine.count({"role": None}) == 3


def test_a_cancelled_write_is_whole_or_never_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    write = Storage.write_all

    def slow(memory: Storage, batches: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return write(memory, batches)

    async def main() -> None:
        with fr.Engine.open(tmp_path / "memory") as engine:
            monkeypatch.setattr(Storage, "write_all", slow)
            first = asyncio.create_task(engine.aadd([fr.Record("1", "tea"), fr.Record("2", "tea")]))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(engine.aadd([fr.Record("3", "tea")]))
            await asyncio.sleep(0)
            first.cancel()
            waiting.cancel()
            for task in (first, waiting):
                with pytest.raises(asyncio.CancelledError):
                    await task
            go_on.set()
            # The same single thread writes this one after what it had begun.
            assert await engine.aadd([fr.Record("4", "tea")]) == 1
            assert list(engine.ids()) == ["1", "2", "4"]

    asyncio.run(main())


def test_awaited_writes_that_wait_are_one_commit_and_each_its_own(engine: fr.Engine) -> None:
    """In their order; one that is refused fails alone, and nobody is told before the commit, which fails for all."""
    memory = engine.index.memory

    async def write(*verbs: Callable[[], Awaitable[int]]) -> list[Any]:
        with memory._writing:
            tasks = [asyncio.ensure_future(engine.aupsert([fr.Record("first", "tea")]))]
            await asyncio.sleep(0)
            until(lambda: len(memory._queue) > 0)
            tasks += [asyncio.ensure_future(verb()) for verb in verbs]
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
        await tasks[0]
        return await asyncio.gather(*tasks[1:], return_exceptions=True)

    names = [str(number) for number in range(40)]
    adds = [partial(engine.aadd, [fr.Record(name, "tea")]) for name in names]
    refused = [partial(engine.aadd, [fr.Record("7", "")]), partial(engine.adelete, ["x"])]
    refused += [partial(engine.aadd, [it]) for it in ({}, Mock(spec=Mapping, items=Mock(side_effect=GeneratorExit)))]
    commits = engine.stats()["commits"]
    answers = asyncio.run(write(*adds, *refused, partial(engine.adelete, ["39"])))
    errors = ["DuplicateIdError", "UnknownIdError", "RecordError", "GeneratorExit"]
    assert [type(answer).__name__ for answer in answers] == [*["int"] * 40, *errors, "int"]
    assert list(engine.ids()) == ["first", *names[:-1]]
    assert engine.stats()["commits"] == commits + 2
    failpoints.arm("write.commit", 2, action=Mock(side_effect=OSError(errno.ENOSPC, "full")))
    answers = asyncio.run(write(*[partial(engine.aupsert, [fr.Record(name, "milk")]) for name in names]))
    assert {type(answer) for answer in answers} == {fr.errors.StorageError}
    failpoints.disarm()
    assert engine.count() == len(engine.search("tea", 99)[0]) == 40


def test_vectors_that_no_encoder_makes_go_with_what_they_are_of(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory", encoder=fr.OwnVectors(2)) as engine:
        for number, fields in enumerate(({"text": "milk"}, {"passages": ["one"]}, {"passages": None, "text": "tea"})):
            name = str(number)
            engine.add([fr.Record(name, "tea", passages=["a", "b"] if number else None, embedding=[[1, 0], [0, 1]])])
            engine.patch(name, role="user")
            record = engine.get(name)
            assert record.embedding is not None
            engine.patch(name, fields)
            record = engine.get(name)
            assert record.embedding is None
        engine.patch("1", passages=["x", "y"], embedding=[[0, 1], [1, 0]])
        record = engine.get("1")
        assert record.embedding.tolist() == [[0.0, 1.0], [1.0, 0.0]]
        with pytest.raises(fr.errors.RecordError, match="row for each of 2 passages"):
            engine.patch("1", embedding=[1, 0])
        assert list(engine.ids()) == ["0", "2", "1"]


def test_a_function_leaves_the_vectors_as_they_are() -> None:
    engine = fr.Engine(encoder="own:2")
    engine.add([fr.Record("m1", "tea", role="user", embedding=[3.0, 4.0], weights={"tea": 0.5})])
    before = engine.get("m1")
    engine.update_where({"role": "user"}, lambda record: replace(record, role="tool", embedding=None))
    after = engine.get("m1")
    assert (after.role, after.weights) == ("tool", before.weights)
    assert after.embedding.tobytes() == before.embedding.tobytes()


Place = tuple[str, str]


@pytest.fixture(params=["memory", "directory"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[fr.Engine]:
    vectors: Any = {"encoder": fr.OwnVectors(3)}
    memory = fr.Engine(**vectors) if request.param == "memory" else fr.Engine.open(tmp_path / "m", **vectors)
    with memory:
        memory.add(
            [
                fr.Record("a", "tea", "x", embedding=[1, 2, 2], payload={"n": 0}),
                fr.Record("b", "tea and coffee", "x", payload={"n": 0}),
                fr.Record("a", "milk", "y", payload={"n": 0}),
            ]
        )
        yield memory


def counted(record: fr.Record) -> fr.Record:
    return fr.Record(
        record.id, record.text, record.namespace, payload={"n": record.payload["n"] + 1}, embedding=record.embedding
    )


def test_records_are_changed_deleted_and_added_at_once(memory: fr.Engine) -> None:
    before, seen = memory.stats()["writes"], dict[Place, fr.Record]()

    def change(live: Mapping[Place, fr.Record]) -> Iterator[fr.Record]:
        seen.update(live)
        yield fr.Record("c", "cocoa", "z")
        yield counted(live["y", "a"])
        yield counted(live["x", "a"])

    assert memory.rewrite({"x": ["a", "b", "gone"], "y": ["a", "a"], "z": ["c"]}, change) == 3
    assert {place: record.text for place, record in seen.items()} == {
        ("x", "a"): "tea",
        ("x", "b"): "tea and coffee",
        ("y", "a"): "milk",
    }
    assert memory.stats()["writes"] == before + 1
    assert memory.get("b", namespace="x") is None
    first, second = memory.get("a", namespace="x"), memory.get("a", namespace="y")
    assert first.payload == second.payload == {"n": 1}
    assert np.array_equal(first.embedding, fr.Record("a", "", embedding=[1, 2, 2]).embedding)
    assert [hit.id for hit in memory.search([fr.Query("tea coffee", namespace="x")])[0]] == ["a"]
    assert memory.rewrite({"x": ["a"]}, lambda live: ()) == 1
    assert {*memory.namespaces} == {"y", "z"}


@pytest.mark.parametrize(
    ("ids", "change", "kind"),
    [
        (["a"], list, fr.errors.ParameterError),
        ({"x": ["a"]}, None, fr.errors.ParameterError),
        ({"x": ["a"]}, lambda live: None, fr.errors.RecordError),
        ({"x": "a"}, lambda live: (), fr.errors.RecordError),
        ({"x": [1]}, lambda live: (), fr.errors.RecordError),
        ({"x": ["a"]}, lambda live: [*live.values(), fr.Record("b", "", "x")], fr.errors.DuplicateIdError),
        ({"x": ["a"]}, lambda live: [1 / 0], ZeroDivisionError),
        ({"x": ["a"]}, lambda live: [{"id": "a"}], fr.errors.RecordError),
        ({"x": ["a"]}, lambda live: [fr.Record("a", "", "x", embedding=[1.0])], ValueError),
    ],
)
def test_an_error_changes_nothing(
    memory: fr.Engine, ids: Any, change: Callable[[Any], Any], kind: type[Exception]
) -> None:
    before = memory.stats()["writes"]
    with pytest.raises(kind):
        memory.rewrite(ids, change)
    assert memory.stats()["writes"] == before
    kept = memory.get("a", namespace="x")
    assert kept.text == "tea"


def test_what_a_failed_change_did_to_the_records_it_was_given_is_lost(memory: fr.Engine) -> None:
    def spoil(record: fr.Record) -> fr.Record:
        extra: Any = record.extra
        extra["spoiled"] = True
        raise RuntimeError("spoiled")

    with pytest.raises(RuntimeError):
        memory.rewrite({"x": ["a"]}, lambda live: map(spoil, live.values()))
    with pytest.raises(RuntimeError):
        memory.update_where({"role": None}, spoil, namespace="x")
    for kept in (memory.get("a", namespace="x"), *memory.records(namespace="x")):
        assert kept.extra == {}
        spoiled: Any = kept.extra
        spoiled["by the caller"] = True
    hits = memory.search([fr.Query("tea", namespace="x")], texts=True)
    assert hits.records[0, 0].extra == {}
