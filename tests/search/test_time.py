"""Decay, time ranges and windows at their edges, by every path; expired records count in no answer and no statistics.

The machine of memories holds ranges, windows and decay of any history to the plain model.
"""

import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
from support import borders, history
from support.history import WORDS
from support.kills import leave

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.index.snapshot import Snapshot
from fanrank.engine.monitor.recency import Recency
from fanrank.engine.storage.storage import Storage

NOW = 1_700_000_000.0
HOUR, DAY, YEAR = 3600.0, 86_400.0, 365.25 * 86_400.0
WINDOW = 7 * DAY


def every_backend(engine: fr.Engine) -> Any:
    for name in history.backends():
        engine.backend = backend.choose(name)
        yield name


def long_history(count: int) -> tuple[fr.Engine, list[fr.Query]]:
    rng = random.Random(11)
    records = [
        fr.Record(f"r{n}", " ".join(rng.choices(WORDS, k=rng.randrange(1, 6))), time=NOW - 60.0 * (count - n))
        for n in range(count)
    ]
    batch = [fr.Query(terms=rng.sample(WORDS, 2), now=NOW, half_life=half) for half in (60.0, HOUR, DAY)]
    return fr.Engine.from_records(records, analyzer="minimal"), batch


def test_the_search_of_a_long_history_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    history.small_blocks(monkeypatch, 64)
    engine, batch = long_history(6_000)
    for name in every_backend(engine):
        whole = engine.search(batch, 10, execution="exhaustive", timing=True)
        early = engine.search(batch, 10, execution="auto", timing=True)
        assert early.scores.tobytes() == whole.scores.tobytes()
        assert early.documents.tobytes() == whole.documents.tobytes()
        assert whole.postings > 7_000
        assert early.postings < whole.postings / 3 or name == "numpy", name  # which reads a segment whole
        undecayed = [fr.Query(terms=query.terms) for query in batch]
        plain = engine.search(undecayed, 10, execution="exhaustive", timing=True)
        assert plain.postings == whole.postings


def test_a_range_reads_nothing_outside_it() -> None:
    engine, batch = long_history(4_000)
    ranged = [fr.Query(terms=query.terms, since=NOW - 6000.0) for query in batch]
    for _ in every_backend(engine):
        hits = engine.search(ranged, 10, execution="exhaustive", timing=True)
        assert hits.counts.tolist() == [10] * 3
        assert 0 < hits.postings <= 100 * 6
        moment = NOW - 60.0
        (last,) = engine.search([fr.Query(" ".join(WORDS), since=moment, until=moment)])
        assert [hit.id for hit in last] == ["r3999"]


@pytest.mark.parametrize("half_life", [None, HOUR])
@pytest.mark.parametrize("k", [1, 4, 7])
def test_ties_at_the_stop_go_to_the_older(monkeypatch: pytest.MonkeyPatch, half_life: float | None, k: int) -> None:
    """Every document reaches the bound of every block, so that a search which stops at a tie misses the older ones."""
    history.shrink(monkeypatch)
    for together in (True, False):
        engine = fr.Engine(analyzer="minimal")
        records = [fr.Record(f"r{n}", "a1", time=NOW - DAY) for n in range(40)]
        for start in range(0, 40, 40 if together else 9):
            engine.add(records[start : start + (40 if together else 9)])
        asked = [fr.Query("a1", now=NOW, half_life=half_life, since=NOW - YEAR)]
        for path, hits in history.paths(engine, asked, k):
            assert [name for name, _ in hits[0]] == [f"r{n}" for n in range(k)], (path, together)


@pytest.mark.parametrize("method", ["robertson", "okapi"])
def test_signed_methods_refuse_to_decay(method: str) -> None:
    records = [fr.Record("1", "a1", time=NOW), fr.Record("2", "a1 b2", time=NOW - DAY), fr.Record("3", "c3")]
    engine = fr.Engine.from_records(records, analyzer="minimal", method=method)
    with pytest.raises(fr.errors.QueryError, match=f"method '{method}'"):
        engine.search([fr.Query("a1", now=NOW, half_life=DAY)])


def weekly(weeks: int = 8) -> fr.Engine:
    records = [fr.Record(f"w{week}", "a1", time=NOW - WINDOW * week) for week in range(weeks)]
    return fr.Engine.from_records(records[::-1], analyzer="minimal")


def found(engine: fr.Engine, **asked: Any) -> set[str]:
    return {name for name, _ in engine.search([fr.Query("a1", **asked)], 100)[0]}


@pytest.mark.parametrize("window", [0.1, 1.0 / 3.0, WINDOW])
def test_times_at_the_border_of_a_window(window: float) -> None:
    """Just before, at and just after: each record is in one window, and the newest windows are never empty."""
    times = []
    for number in (1, 3, 7, 2811):
        border = number * window
        times += [math.nextafter(border, -math.inf), border, math.nextafter(border, math.inf)]
    records = [fr.Record(f"r{n}", "a1", time=time) for n, time in enumerate(times)]
    for count in range(1, len(records) + 1):
        own = records[:count]
        engine = fr.Engine.from_records(own, analyzer="minimal", window=window)
        newest = max(math.floor(time / window) for time in times[:count])
        expected = {record.id for record, time in zip(own, times, strict=False) if math.floor(time / window) == newest}
        assert found(engine, windows=1) == expected
        assert found(engine, windows=1, now=times[count - 1]) == expected


def test_auto_follows_what_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC A032: epsilon .05 at a rate of 1.4 are 3 windows; A030 caps them at 4. Of few records all are searched."""
    engine = weekly()
    assert found(engine, windows="auto", now=NOW) == found(engine)
    borders.shrink(monkeypatch, WINDOWED_RECORDS=len(engine))
    assert engine.recency().windows() == 3
    assert found(engine, windows="auto", now=NOW) == {"w0", "w1", "w2"}
    for _ in range(20):
        engine.observe(["w6", "w7", "nobody"], now=NOW)
    assert engine.recency().windows() == 4
    assert found(engine, windows="auto", now=NOW) == {"w0", "w1", "w2", "w3"}
    newest = weekly()
    for _ in range(300):
        newest.observe(["w0"], now=NOW)
    assert found(newest, windows="auto", now=NOW) == {"w0"}
    # What is not live, has no time, or lay beyond the windows searched teaches nothing.
    other = weekly()
    other.add([fr.Record("timeless", "a1"), fr.Record("future", "a1", time=NOW + 2 * WINDOW)])
    other.observe(["timeless", "nobody", "future"], now=NOW)
    other.observe(["w5"], now=NOW, windows=3)
    assert other.recency().to_dict() == Recency().to_dict()
    other.observe(["w1"], now=NOW - WINDOW)
    assert other.recency().to_dict()["observed"] == 1
    with pytest.raises(fr.errors.ParameterError, match="epsilon"):
        fr.Engine(epsilon=0.0)
    loose = fr.Engine(epsilon=0.5, recency_rate=1.4, max_windows=None)
    assert loose.recency().windows() == 1


def test_a_scope_s_limit_stands_between_the_query_s_k_and_the_batch_s() -> None:
    scope = fr.SearchScope
    engine = fr.Engine.from_records([fr.Record(f"v{n}", "a1", user="v") for n in range(9)], analyzer="minimal")
    assert engine.search([fr.Query("a1", scope=scope.user("v"))], 9).counts.tolist() == [2]
    assert engine.search([fr.Query("a1", scope=scope.user("v", 6))], 1).counts.tolist() == [6]
    for bad in ({"column": "role", "id": "x"}, {"column": None, "id": "x"}, {"column": "user", "id": None}):
        with pytest.raises(fr.errors.QueryError, match="scope"):
            scope(limit=None, **bad)  # type: ignore[arg-type]
    with pytest.raises(fr.errors.QueryError, match="k must"):
        scope.user("u", -1)


FIVE = ["tea", "key", "car", "sun", "sea"]
MOMENTS = (10.0, 20.0, 30.0)
LATER = 4e9  # 2096


def made(seed: int, count: int = 60, *, moments: tuple[float | None, ...] = (*MOMENTS, None)) -> list[fr.Record]:
    draw = random.Random(seed)
    return [
        fr.Record(
            f"r{number}",
            " ".join(draw.choices(FIVE, k=draw.randrange(0, 5))),
            namespace=draw.choice(["", "a", "a/b"]),
            time=draw.choice([None, 1.0, 5.0]),
            expires=draw.choice(moments),
            entities={"Sarah": "sarah"} if draw.random() < 0.3 else None,
            weights={draw.choice(FIVE): 1.0},
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
            for text in [*FIVE, "tea key Sarah"]
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
        queries = [fr.Query(text, namespace=name) for text in FIVE for name in ("", "a", "a/b")]
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
