"""How many windows to search: k* from the rate, the rate from where hits lay; what was learned stays where it was."""

import logging
import math
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support import borders
from support.threads import in_threads

import fanrank as fr
from fanrank.engine.errors import ParameterError
from fanrank.engine.monitor import meanings
from fanrank.engine.monitor.recency import MAX_WINDOWS, MEMORY, PRIOR, Recency
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


def ranks_of(rate: float, count: int, windows: int | None, seed: int) -> list[int]:
    """Age ranks under the law, those beyond the windows never seen."""
    drawn = np.random.default_rng(seed).geometric(-math.expm1(-rate), 20 * count) - 1
    seen = drawn if windows is None else drawn[drawn < windows]
    assert len(seen) >= count
    return [int(rank) for rank in seen[:count]]


def test_the_defaults_give_three_windows() -> None:
    # SPEC A032: ln(20) / 1.4 = 2.14.
    recency = Recency(epsilon=0.05, rate=1.4)
    assert recency.windows() == 3
    assert recency.rate == 1.4
    assert recency.mass(3) == pytest.approx(1.0 - math.exp(-4.2))
    assert recency.mass(0) == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 0.05, 1e-3, 1e-9])
@pytest.mark.parametrize("rate", [0.05, 0.7, 1.4, 9.0])
def test_the_newest_windows_hold_what_they_should(epsilon: float, rate: float) -> None:
    recency = Recency(epsilon, None, rate)
    windows = recency.windows()
    assert recency.mass(windows) >= 1.0 - epsilon - 1e-12
    assert windows == 1 or recency.mass(windows - 1) < 1.0 - epsilon


def test_the_cap() -> None:
    assert Recency(rate=0.1).windows() == MAX_WINDOWS
    assert Recency(rate=0.1, max_windows=2).windows() == 2
    assert Recency(rate=0.1, max_windows=None).windows() == 30


@pytest.mark.parametrize("windows", [None, 3, 4, 60])
@pytest.mark.parametrize("rate", [0.3, 1.0, 1.4, 2.5])
def test_known_rates_are_recovered(rate: float, windows: int | None) -> None:
    # The prior begins at the true rate, so what is tested is what 4,000 hits say: 5 standard errors.
    reach = np.arange(10_000 if windows is None else windows)
    weights = np.exp(-rate * reach) / np.exp(-rate * reach).sum()
    variance = (weights * reach**2).sum() - (weights * reach).sum() ** 2
    recency = Recency(rate=rate)
    recency.observe(ranks_of(rate, 4000, windows, seed=7), windows)
    assert abs(recency.rate - rate) < 5.0 / math.sqrt(4000 * variance)


def test_the_estimate_does_not_feed_on_itself() -> None:
    # Each search reaches k* windows and shows only hits therein. The plain law would climb until one window is left.
    recency, random = Recency(rate=1.4, max_windows=None), np.random.default_rng(3)
    for _ in range(60):
        windows = recency.windows()
        drawn = random.geometric(-math.expm1(-0.8), 100) - 1
        recency.observe(drawn[drawn < windows].tolist(), windows)
    assert recency.rate == pytest.approx(0.8, abs=0.12)
    assert recency.windows() == 4  # ln(20) / .8 = 3.74


def test_one_window_teaches_nothing() -> None:
    recency = Recency(rate=1.4)
    recency.observe([0] * 3000, windows=1)
    assert recency.rate == pytest.approx(1.4)


def test_few_hits_do_not_swing_it() -> None:
    recency = Recency(rate=1.4)
    recency.observe([3] * 5)
    assert recency.windows() == 3
    recency.observe([3])
    assert recency.windows() == 4
    # All hits count alike with those of the prior: mean rank (18 + 50 m) / 56, m the prior's.
    mean = (18.0 + PRIOR / math.expm1(1.4)) / (6.0 + PRIOR)
    assert recency.rate == pytest.approx(math.log1p(1.0 / mean))


def test_old_hits_fade() -> None:
    recency = Recency()
    recency.observe(ranks_of(2.5, 20_000, None, 1))
    for start in range(5):
        recency.observe(ranks_of(0.7, int(MEMORY), None, start + 2))
    assert recency.rate == pytest.approx(0.7, abs=0.08)
    assert recency.to_dict()["observed"] == 20_000 + 5 * int(MEMORY)


def test_to_dict() -> None:
    recency = Recency()
    recency.observe([])
    assert recency.to_dict() == {
        "rate": 1.4,
        "observed": 0,
        "epsilon": 0.05,
        "max_windows": 4,
        "windows": 3,
        "mass": recency.mass(3),
    }


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("epsilon", [0.0, 1.0, math.nan, "0.05"]),
        ("rate", [0.0, -1.0, math.nan, math.inf, True]),
        ("max_windows", [0, 2.5]),
    ],
)
def test_parameters_out_of_range(name: str, values: list[Any]) -> None:
    for bad in values:
        with pytest.raises(ParameterError, match=name):
            Recency(**{name: bad})


@pytest.mark.parametrize(("ranks", "windows"), [([0, -1], None), ([0.5], None), ([1, 3], 3), ([0], 0), (["1"], None)])
def test_ranks_out_of_range_teach_nothing(ranks: list[Any], windows: int | None) -> None:
    recency = Recency()
    with pytest.raises(ParameterError):
        recency.observe(ranks, windows)
    assert (recency.rate, recency.to_dict()["observed"]) == (1.4, 0)
    with pytest.raises(ParameterError):
        recency.mass(-1)


def test_many_threads() -> None:
    recency, alone = Recency(), Recency()
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(200):
            recency.observe([0, 2], 3)
            assert 1 <= recency.windows() <= MAX_WINDOWS

    in_threads(*[work] * 4)
    alone.observe([0, 2] * 800, 3)
    assert recency.to_dict() == alone.to_dict()
