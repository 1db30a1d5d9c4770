"""Expiry: a record counts in no answer and in no statistics from the moment on at which it expires."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from support import borders
from support.kills import leave

import fanrank as fr
from fanrank.engine.index.snapshot import Snapshot
from fanrank.engine.storage.storage import Storage

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


def alive(records: list[fr.Record], now: float) -> list[fr.Record]:
    return [record for record in records if record.expires is None or record.expires > now]


@pytest.mark.parametrize("now", [5.0, 10.0, 25.0, 30.0])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [("bm25", {"half_life": 3.0}), ("bm25", {"windows": 1}), ("sparse", {}), ("recall", {"entities": ["sarah"]})],
)
def test_an_answer_is_that_of_the_records_that_are_left(
    strategy: str, now: float, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, INLINE_DOCUMENTS=4, COUNTED_DOCUMENTS=30, MAX_SEGMENT_DOCUMENTS=16)
    records = made(1)
    # Expired records are not swept before they are asked for: only the clock of the query counts.
    monkeypatch.setattr(time, "time", lambda: 0.0)
    engine, plain = fr.Engine(), fr.Engine.from_records(alive(records, now))
    for start in range(0, len(records), 7):
        engine.add(records[start : start + 7])
    for namespace in ("", "a"):
        assert engine.namespace(namespace).stats()["segments"] > 1
        queries = [
            fr.Query(text, now=now, namespace=namespace, weights={text[:3]: 1.0}, **options)
            for text in [*WORDS, "tea key Sarah"]
        ]
        assert list(engine.search(queries, 20, strategy=strategy)) == list(plain.search(queries, 20, strategy=strategy))


def test_all_reading_goes_by_the_present_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    with fr.Engine.open(tmp_path / "m") as engine:
        engine.add([fr.Record("old", "tea", time=1.0, type="Event", expires=10.0), fr.Record("new", "tea key")])
        assert (len(engine), [r and r.id for r in engine.fetch(["old", "new"])]) == (2, ["old", "new"])
        clock = 10.0
        assert (len(engine), [r and r.id for r in engine.fetch(["old", "new"])]) == (1, [None, "new"])
        assert engine.events(0.0, 5.0) == []
        assert [name for name, _ in engine.search([fr.Query(newest=True)])[0]] == ["new"]
        assert engine.stats()["documents"] == engine.count() == 1
        assert [*engine.ids()] == [record.id for record in engine.records(order="time")] == ["new"]
        assert (engine.get("old"), engine.distinct("type")) == (None, {None: 1})
        assert engine.verify() == {"records": 2, "missing": 0, "extra": 0}
        assert engine.update_where({"type": "Event"}, role="x") == engine.delete_where({"type": "Event"}) == 0
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
    monkeypatch.setattr(Storage, "wake", lambda self: None)
    engine.add([fr.Record("m", "tea", expires=10.0)])
    with pytest.raises(fr.errors.DuplicateIdError):
        engine.add([fr.Record("m", "key")])
    clock = 10.0
    # Among the records of several chunks too.
    borders.shrink(monkeypatch, BUILD_CHUNK=4)
    assert engine.add([fr.Record(name, "key") for name in ("a", "b", "c", "d", "m", "n")]) == 6
    assert engine.search(["tea"])[0] == []
    assert len(engine.search(["key"])[0]) == 6
    if stored:
        engine.close()
        with fr.Engine.open(tmp_path / "m") as again:
            assert [r and r.text for r in again.fetch(["m"])] == ["key"]
            assert again.verify() == {"records": 6, "missing": 0, "extra": 0}


def test_a_sweep_deletes_what_has_expired_and_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    records = made(5)
    with fr.Engine.open(tmp_path / "m") as engine:
        monkeypatch.setattr(Storage, "wake", lambda self: None)
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
        assert list(engine.search(queries, k=30)) == list(before)
    with fr.Engine.open(tmp_path / "m") as engine:
        assert list(engine.search(queries, k=30)) == list(before)


BEFORE = ("write.begin", "write.records", "write.commit")
AFTER = ("write.committed", "write.published", "checkpoint.begin", "checkpoint.manifest", "checkpoint.pruned")


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_killed_sweep_is_whole_or_did_nothing(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    records = made(5)
    with fr.Engine.open(tmp_path / "m") as engine:
        engine.add(records)

    def sweep() -> None:
        nonlocal clock
        with fr.Engine.open(tmp_path / "m") as engine:
            clock = 20.0
            engine.sweep()

    assert leave(tmp_path / "m", point, sweep, tmp_path / "left")
    clock = 20.0
    left = alive(records, clock)
    with fr.Engine.open(tmp_path / "left", read_only=True) as engine:
        kept = len(records if point in BEFORE else left)
        assert engine.verify() == {"records": kept, "missing": 0, "extra": 0}
        assert {(record.namespace, record.id) for record in engine.records(namespace=None)} == {
            (record.namespace, record.id) for record in left
        }
    # The next sweep ends the work.
    with fr.Engine.open(tmp_path / "left") as engine:
        engine.sweep()
        assert engine.verify() == {"records": len(left), "missing": 0, "extra": 0}


def test_writes_wake_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "time", lambda: clock)
    engine = fr.Engine()
    engine.add([fr.Record("m", "tea", expires=10.0)])
    clock = 11.0
    engine.add([fr.Record("n", "tea")])
    engine.index.memory.join()
    assert engine.index.memory.snapshot("").size == 1


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
