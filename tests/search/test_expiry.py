"""Expiry: a record counts in no answer and in no statistics from the moment on at which it expires."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.engine.index.snapshot import Snapshot
from fanrank.engine.storage.row_codec import PAYLOAD_VERSION

WORDS = ["tea", "key", "car", "sun", "sea"]
MOMENTS = (10.0, 20.0, 30.0)
LATER = 4e9  # 2096


def made(seed: int, count: int = 60, *, moments: tuple[float | None, ...] = (*MOMENTS, None)) -> list[fr.Record]:
    draw = random.Random(seed)
    return [
        fr.Record(
            f"r{number}",
            " ".join(draw.choices(WORDS, k=draw.randrange(0, 5))),
            namespace=draw.choice(["", "a", "a/b"]),
            time=draw.choice([None, 1.0, 5.0]),
            expires=draw.choice(moments),
            entities={"Sarah": "sarah"} if draw.random() < 0.3 else None,
            weights={draw.choice(WORDS): 1.0},
        )
        for number in range(count)
    ]


def assert_same(found: fr.Hits, wanted: fr.Hits) -> None:
    assert found.ids.tolist() == wanted.ids.tolist()
    assert found.scores.tolist() == wanted.scores.tolist()
    assert found.counts.tolist() == wanted.counts.tolist()


def alive(records: list[fr.Record], now: float) -> list[fr.Record]:
    return [record for record in records if record.expires is None or record.expires > now]


@pytest.mark.parametrize("backend", ["native", "numpy"])
@pytest.mark.parametrize("now", [5.0, 10.0, 15.0, 20.0, 30.0, 35.0])
@pytest.mark.parametrize(
    "options", [{}, {"half_life": 3.0}, {"statistics": "filtered", "filter": {"time": {">=": 1.0}}}, {"windows": 1}]
)
def test_an_answer_is_that_of_the_records_that_are_left(
    backend: str, now: float, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, INLINE_DOCUMENTS=4, COUNTED_DOCUMENTS=30, MAX_SEGMENT_DOCUMENTS=16)
    records = made(1)
    # Expired records are not swept before they are asked for: only the clock of the query counts.
    monkeypatch.setattr(time, "time", lambda: 0.0)
    engine, plain = fr.Engine(backend=backend), fr.Engine.from_records(alive(records, now), backend=backend)
    for start in range(0, len(records), 7):
        engine.add(records[start : start + 7])
    for namespace in ("", "a"):
        assert len(engine.index.memory.snapshot(namespace).segments) > 1
        queries = [fr.Query(text, now=now, namespace=namespace, **options) for text in [*WORDS, "tea key", ""]]
        assert_same(engine.search(queries, k=20), plain.search(queries, k=20))


@pytest.mark.parametrize("strategy", ["sparse", "recall"])
def test_strategies_see_what_is_left(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    records = made(2)
    engine = fr.Engine.from_records(records)
    for now in (0.0, *MOMENTS):
        plain = fr.Engine.from_records(alive(records, now))
        queries = [fr.Query(f"{text} Sarah", now=now, weights={text: 1.0}) for text in WORDS]
        assert_same(engine.search(queries, k=9, strategy=strategy), plain.search(queries, k=9, strategy=strategy))


def test_one_batch_may_hold_several_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock stands before all that expires, or the background would sweep what earlier clocks still see.
    monkeypatch.setattr(time, "time", lambda: 5.0)
    records = made(3, moments=(10.0, 20.0, 30.0, 40.0, None))
    engine = fr.Engine.from_records(records)
    clocks = [None, 0.0, 15.0, 25.0, 45.0, 15.0]
    found = engine.search([fr.Query("tea key", now=now) for now in clocks], k=30)
    for row, now in enumerate(clocks):
        plain = fr.Engine.from_records(alive(records, 5.0 if now is None else now))
        wanted = plain.search([fr.Query("tea key", now=now)], k=30)
        assert found[row] == wanted[0]
    monkeypatch.setattr(time, "time", lambda: 25.0)
    assert engine.search(["tea key"], k=30)[0] == found[3]


def test_all_reading_goes_by_the_present_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    with fr.Engine.open(tmp_path / "m") as engine:
        engine.add([fr.Record("old", "tea", time=1.0, type="Event", expires=10.0), fr.Record("new", "tea key")])
        assert (len(engine), [r and r.id for r in engine.fetch(["old", "new"])]) == (2, ["old", "new"])
        clock = 10.0
        assert (len(engine), [r and r.id for r in engine.fetch(["old", "new"])]) == (1, [None, "new"])
        assert engine.events(0.0, 5.0) == []
        assert engine.stats()["documents"] == 1
        assert engine.verify() == {"records": 2, "missing": 0, "extra": 0}
        with pytest.raises(fr.errors.UnknownIdError):
            engine.update([fr.Record("old", "again")])
        with pytest.raises(fr.errors.UnknownIdError):
            engine.delete(["old"])


@pytest.mark.parametrize("stored", [False, True])
def test_an_id_is_free_once_its_record_has_expired(
    stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    engine = fr.Engine.open(tmp_path / "m") if stored else fr.Engine()
    monkeypatch.setattr(type(engine.index.memory), "wake", lambda self: None)
    engine.add([fr.Record("m", "tea", expires=10.0)])
    with pytest.raises(fr.errors.DuplicateIdError):
        engine.add([fr.Record("m", "key")])
    clock = 10.0
    engine.add([fr.Record("m", "key")])
    assert engine.search(["tea", "key"]).ids.tolist() == [[None], ["m"]] or engine.search(["key"])[0][0][0] == "m"
    assert engine.search(["tea"])[0] == []
    if stored:
        engine.close()
        with fr.Engine.open(tmp_path / "m") as again:
            assert [r and r.text for r in again.fetch(["m"])] == ["key"]
            assert again.verify() == {"records": 1, "missing": 0, "extra": 0}


def test_a_sweep_deletes_what_has_expired_and_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    records = made(5)
    with fr.Engine.open(tmp_path / "m") as engine:
        monkeypatch.setattr(type(engine.index.memory), "wake", lambda self: None)
        engine.add(records)
        clock = 20.0
        queries = [fr.Query(text, namespace=name) for text in WORDS for name in ("", "a", "a/b")]
        before = engine.search(queries, k=30)
        gone = len(records) - len(alive(records, clock))
        assert gone
        assert engine.verify()["records"] == len(records)
        assert engine.sweep() == gone
        assert engine.sweep() == 0
        assert engine.verify() == {"records": len(records) - gone, "missing": 0, "extra": 0}
        assert_same(engine.search(queries, k=30), before)
    with fr.Engine.open(tmp_path / "m") as engine:
        assert_same(engine.search(queries, k=30), before)


def test_writes_wake_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    engine = fr.Engine()
    engine.add([fr.Record("m", "tea", expires=10.0)])
    clock = 11.0
    engine.add([fr.Record("n", "tea")])
    engine.index.memory.join()
    assert engine.index.memory.snapshot("").size == 1


def test_a_bulk_meets_expired_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, BUILD_CHUNK=4)
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    engine = fr.Engine()
    monkeypatch.setattr(type(engine.index.memory), "wake", lambda self: None)
    engine.add([fr.Record(f"r{n}", "tea", expires=10.0) for n in range(3)])
    clock = 10.0
    assert engine.add([fr.Record(f"r{n}", "key") for n in range(20)]) == 20
    assert engine.search(["tea"])[0] == []
    assert len(engine.search(["key"], k=50)[0]) == 20


def test_stores_and_indexes_say_their_formats(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m") as engine:
        engine.add([fr.Record("m", "tea", expires=LATER, payload={"a": [1, None]})])
    import sqlite3

    with sqlite3.connect(tmp_path / "m" / "records.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == PAYLOAD_VERSION == 4
    with fr.Engine.open(tmp_path / "m") as engine:
        assert engine.opened == "loaded"
        (record,) = engine.fetch(["m"])
        assert record is not None
        assert (record.expires, record.payload) == (LATER, {"a": [1, None]})
        engine.save(tmp_path / "saved")
        assert engine.search([fr.Query("tea", now=LATER)])[0] == []
    loaded = fr.Engine.load(tmp_path / "saved")
    assert loaded.search(["tea"])[0][0][0] == "m"
    assert loaded.search([fr.Query("tea", now=LATER)])[0] == []


operations = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "sweep", "clock"]), st.sampled_from("abc"), st.integers(1, 4)),
    max_size=12,
)


@settings(deadline=None, max_examples=30)
@given(operations=operations)
def test_any_history_is_that_of_what_is_left(operations: list[tuple[str, str, int]]) -> None:
    clock = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: clock)
        engine = fr.Engine()
        patch.setattr(type(engine.index.memory), "wake", lambda self: None)
        kept: dict[str, fr.Record] = {}
        for name, record_id, number in operations:
            if name == "clock":
                clock += number
            elif name == "put":
                record = fr.Record(record_id, f"tea w{number}", expires=None if number == 4 else clock + number)
                engine.update([record], insert=True)
                kept.pop(record_id, None)
                kept[record_id] = record
            elif name == "delete":
                engine.delete([record_id], missing_ok=True)
                kept.pop(record_id, None)
            else:
                engine.sweep()
            left = [record for record in kept.values() if not record.expired(clock)]
            queries = ["tea", *(f"w{n}" for n in range(1, 5))]
            assert_same(engine.search(queries), fr.Engine.from_records(left).search(queries))
            assert len(engine) == len(left)
            assert np.all(engine.search(["tea"]).counts == min(len(left), 10))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_state_knows_what_expires_first(
    seed: int, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, INLINE_DOCUMENTS=4, COUNTED_DOCUMENTS=30, MAX_SEGMENT_DOCUMENTS=16)
    draw = random.Random(seed)
    engine = fr.Engine.open(tmp_path / "a") if stored else fr.Engine()
    model: dict[tuple[str, str], float | None] = {}

    def check() -> None:
        state = engine.index.memory.state
        first: dict[str, float] = {}
        for (name, _), moment in model.items():
            if moment is not None:
                first[name] = min(first.get(name, np.inf), moment)
        assert dict(state.expiries) == first
        assert state.next_expiry == min(first.values(), default=np.inf)

    for number in range(80):
        name, record_id = draw.choice(["", "a", "b"]), f"r{draw.randrange(12)}"
        kind = draw.randrange(8)
        if kind < 4:
            expires = draw.choice([None, LATER + draw.randrange(9)])
            engine.upsert([fr.Record(record_id, "tea", namespace=name, expires=expires)])
            model[name, record_id] = expires
        elif kind < 6:
            engine.delete([record_id], namespace=name, missing_ok=True)
            model.pop((name, record_id), None)
        elif kind == 6 and number % 3 == 0:
            engine.drop(name)
            model = {key: moment for key, moment in model.items() if key[0] != name}
        elif number % 5 == 0:
            engine.flush()
        check()
    engine.index.memory.renumber(all_unused=True)
    check()
    if stored:
        engine.close()
        engine = fr.Engine.open(tmp_path / "a")
    else:
        engine.save(tmp_path / "saved")
        engine = fr.Engine.load(tmp_path / "saved")
    check()


def test_a_write_looks_at_no_namespace_that_it_does_not_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fr.Engine.from_records([fr.Record("m", "tea", namespace=f"t{n}", expires=LATER) for n in range(50)])
    engine.index.memory.join()
    looked = []
    at = Snapshot.at
    monkeypatch.setattr(Snapshot, "at", lambda self, clock: looked.append(self) or at(self, clock))
    before = engine.index.memory.state.expiries
    engine.add([fr.Record(f"n{n}", "tea") for n in range(3)])
    engine.flush()
    assert len(engine) == 53
    assert not looked
    assert engine.index.memory.state.expiries is before
