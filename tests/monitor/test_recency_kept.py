"""What `observe` learned is kept with the records, and with few writes."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

import fanrank as fr
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


def learned_of(path: Path) -> list[str]:
    raw = sqlite3.connect(path / RECORDS)
    keys = [key for (key,) in raw.execute("SELECT key FROM meta WHERE key LIKE 'learned/%'")]
    raw.close()
    return keys


def test_it_goes_with_a_namespace_without_records(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        learn(engine)
        engine.delete([f"m{n}" for n in range(6)], namespace="ana")
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as engine:
        assert sorted(learned_of(tmp_path)) == ["learned/", "learned/ana"]
        engine.drop("ana")
        assert learned_of(tmp_path) == ["learned/"]
        before = engine.stats()["sequence"]
        engine.drop("nobody")
        assert engine.stats()["sequence"] == before
    assert learned_of(tmp_path) == ["learned/"]


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
        assert learned_of(tmp_path) == ["learned/"]


def test_what_could_not_be_kept_is_kept_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise fr.errors.StorageError("no space left")

    with opened(tmp_path) as engine:
        learn(engine)
        expected = engine.recency().to_dict()
        with monkeypatch.context() as patched:
            patched.setattr(RecordStore, "keep_learned", full)
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
