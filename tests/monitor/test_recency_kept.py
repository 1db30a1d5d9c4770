"""What `observe` and `resolved` learned is kept with the records, and with few writes."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support import borders

import fanrank as fr
from fanrank.engine.monitor import meanings
from fanrank.engine.storage.record_store import RecordStore
from fanrank.engine.storage.row_codec import RECORDS

WEEK = 7 * 86_400.0


def opened(path: Path, **options: bool) -> fr.Engine:
    return fr.Engine.open(path, backend="numpy", **options)


def learn(engine: fr.Engine) -> None:
    engine.add([fr.Record(f"m{n}", "tea", name, time=n * WEEK) for n in range(6) for name in ("", "ana")])
    engine.observe([f"m{n}" for n in (5, 5, 4, 0)] * 9)
    engine.observe(["m5", "m4"] * 20, namespace="ana", windows=3)


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        learn(engine)
        expected = [engine.recency(name).to_dict() for name in ("", "ana", "ben")]
    fresh = fr.Engine(backend="numpy").recency().to_dict()
    assert fresh not in expected[:2]
    assert expected[2] == fresh
    for read_only in (True, False):
        with opened(tmp_path, read_only=read_only) as engine:
            assert [engine.recency(name).to_dict() for name in ("", "ana", "ben")] == expected
    with opened(tmp_path) as engine:
        engine.observe(["m0"])
        further = engine.recency().to_dict()
        engine.flush()  # Nothing was written, and yet there is something to keep.
        shutil.copytree(tmp_path, tmp_path.with_name("killed"))
    with opened(tmp_path.with_name("killed")) as engine:
        assert engine.recency().to_dict() == further != expected[0]


def test_it_goes_with_its_namespace(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        learn(engine)
        engine.flush()
        engine.drop("ana")
        kept = engine.recency().to_dict()
    with opened(tmp_path) as engine:
        assert engine.recency("ana").to_dict() == fr.Engine(backend="numpy").recency().to_dict()
        assert engine.recency().to_dict() == kept


def test_a_checkpoint_during_a_drop_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop = RecordStore.drop
    checkpoints: list[threading.Thread] = []

    def and_checkpoint(store: RecordStore, namespace: str) -> int:
        sequence = drop(store, namespace)
        checkpoints.append(threading.Thread(target=engine.flush))
        checkpoints[0].start()
        checkpoints[0].join(0.2)
        return sequence

    monkeypatch.setattr(RecordStore, "drop", and_checkpoint)
    with opened(tmp_path) as engine:
        learn(engine)
        engine.drop("ana")
        checkpoints[0].join()
        engine.flush()
        with closing(sqlite3.connect(tmp_path / RECORDS)) as raw:
            assert raw.execute("SELECT key FROM meta WHERE key LIKE 'learned/%'").fetchall() == [("learned/",)]


def test_what_could_not_be_kept_is_kept_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as engine:
        learn(engine)
        expected = engine.recency().to_dict()
        with monkeypatch.context() as patched:
            patched.setattr(RecordStore, "keep_learned", Mock(side_effect=fr.errors.StorageError("no space left")))
            with pytest.raises(fr.errors.StorageError, match="no space left"):
                engine.flush()
    with opened(tmp_path) as engine:
        assert engine.recency().to_dict() == expected


def test_it_is_written_when_something_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[str]] = []
    keep = RecordStore.keep_learned

    def counted(store: RecordStore, learned: dict[str, dict[str, object]]) -> None:
        kept.append(sorted(learned))
        keep(store, learned)

    monkeypatch.setattr(RecordStore, "keep_learned", counted)
    with opened(tmp_path) as engine:
        learn(engine)
        for _ in range(3):
            engine.flush()
        assert kept == [["", "ana"]]
        engine.observe(["m5"], namespace="ana")
        engine.add([fr.Record("new", "tea")])
        assert len(kept) == 1
    assert kept == [["", "ana"], ["ana"]]
    opened(tmp_path).close()
    assert len(kept) == 2


def test_what_was_altered_is_learned_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as engine:
        learn(engine)
        kept = engine.recency("ana").to_dict()
    raw = sqlite3.connect(tmp_path / RECORDS)
    raw.execute("UPDATE meta SET value = replace(value, 'observed', 'absorbed') WHERE key = 'learned/'")
    raw.commit()
    raw.close()
    with caplog.at_level(logging.WARNING, "fanrank"), opened(tmp_path) as engine:
        assert "altered, and is learned anew" in caplog.text
        assert engine.recency().to_dict() == fr.Engine(backend="numpy").recency().to_dict()
        assert engine.recency("ana").to_dict() == kept


def sarahs(engine: fr.Engine) -> None:
    engine.add(
        fr.Record(f"{name}{n}", "a note", namespace, entities={"Sarah": name})
        for name in ("chen", "lee")
        for n in range(2)
        for namespace in ("", "ana", "ana/deep")
    )


def believed(engine: fr.Engine, **where: Any) -> dict[str, float]:
    hits = engine.search([fr.Query("what did Sarah say", **where)], strategy="graph")
    return dict(hits.decisions[0].entities or {})


def test_what_names_meant_survives_a_restart_and_stays_in_its_namespace(tmp_path: Path) -> None:
    even = {"chen": 0.5, "lee": 0.5}
    with opened(tmp_path) as engine:
        sarahs(engine)
        assert believed(engine) == believed(engine, namespace="ana") == even
        engine.resolved("sarah", "lee", namespace="ana", times=2)
        engine.namespace("").resolved("SARAH", "chen")
        engine.observe(["chen0"])
        expected = [{"chen": pytest.approx(2 / 3), "lee": pytest.approx(1 / 3)}, {"lee": 1.0}]
        assert [believed(engine), believed(engine, namespace="ana")] == expected
        assert believed(engine, namespace="ana/deep") == even
        # Of several namespaces, what was told of all of them counts.
        assert believed(engine, under="ana") == {"lee": 1.0}
        both = believed(engine, namespaces=["", "ana"])
        assert both == {"chen": pytest.approx(0.4), "lee": pytest.approx(0.6)}
    for read_only in (True, False):
        with opened(tmp_path, read_only=read_only) as engine:
            assert [believed(engine), believed(engine, namespace="ana")] == expected
    with opened(tmp_path) as engine:
        engine.observe(["lee0"] * 3, namespace="ana")  # Keeping the one keeps the other.
    with opened(tmp_path) as engine:
        assert believed(engine, namespace="ana") == {"lee": 1.0}
        engine.resolved("Sarah", "chen", namespace="ana", times=2)
        engine.flush()
        shutil.copytree(tmp_path, tmp_path.with_name("killed-later"))
        engine.drop("ana")
        engine.add([fr.Record(name, "a note", "ana", entities={"Sarah": name}) for name in ("chen", "lee")])
        assert believed(engine, namespace="ana") == even
    with opened(tmp_path) as engine:
        assert believed(engine, namespace="ana") == even
    with opened(tmp_path.with_name("killed-later")) as engine:
        engine.drop("ana/deep")
        assert believed(engine, namespace="ana") == even


def test_what_names_meant_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, MOST_NAMES=3)
    counts = meanings.Meanings()
    for number in range(200):
        counts.resolved("Ana", "one" if number % 4 else "two")
    for _ in range(100):
        counts.resolved("ana!", "three")
    assert sum(counts.of("ana").values()) <= meanings.MEMORY
    assert counts.of("ana")["three"] > counts.of("ana")["two"]
    for name in ("b", "c", "ana", "d"):
        counts.resolved(name, "x")
    assert [bool(counts.of(name)) for name in ("ana", "b", "c", "d")] == [True, False, True, True]


@pytest.mark.parametrize(
    ("name", "entity", "times"),
    [("", "x", 1), ("?!", "x", 1), (3, "x", 1), ("a", "", 1), ("a", None, 1), ("a", "x\ud800", 1)]
    + [("a", "x", times) for times in (0, 257, True, 1.5)],
)  # fmt: skip
def test_bad_meanings_are_refused(name: Any, entity: Any, times: Any) -> None:
    with pytest.raises(fr.errors.ParameterError):
        fr.Engine(backend="numpy").resolved(name, entity, times=times)


def test_what_no_file_can_store_fails_when_it_is_told(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        with pytest.raises(fr.errors.ParameterError, match="surrogate"):
            engine.resolved("Sarah", "lee", namespace="n\ud800")
        engine.resolved("Sarah\ud800", "lee")  # of a name, words alone count
    with opened(tmp_path) as engine:
        sarahs(engine)
        assert believed(engine) == {"lee": pytest.approx(2 / 3), "chen": pytest.approx(1 / 3)}
