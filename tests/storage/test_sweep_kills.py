"""A sweep that is killed deletes all that has expired, or nothing; no answer depends on which."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kills import leave

import fanrank as fr

WRITTEN = ("write.committed", "write.published", "checkpoint.begin", "checkpoint.manifest", "checkpoint.pruned")
POINTS = ("write.begin", "write.records", "write.commit", *WRITTEN)
LATER = 4e9  # 2096: nothing is swept by the clock of the machine


def made(path: Path) -> list[fr.Record]:
    records = [
        fr.Record(f"r{n}", f"tea w{n % 5}", "ab"[n % 2], expires=[None, 10.0, LATER][n % 3], time=float(n))
        for n in range(60)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: 0.0)
        with fr.Engine.open(path, backend="numpy") as engine:
            engine.add(records)
    return records


def sweep(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep when a third of the records has expired."""
    monkeypatch.setattr("time.time", lambda: 0.0)
    with fr.Engine.open(path, backend="numpy") as engine:
        monkeypatch.setattr("time.time", lambda: 20.0)
        engine.sweep()


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_sweep_is_whole_or_did_nothing(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = made(tmp_path / "swept")
    assert leave(tmp_path / "swept", point, lambda: sweep(tmp_path / "swept", monkeypatch), tmp_path / "m")
    monkeypatch.setattr("time.time", lambda: 20.0)
    left = [record for record in records if not record.expired(20.0)]
    with fr.Engine.open(tmp_path / "m", backend="numpy", read_only=True) as engine:
        kept = engine.verify()["records"]
        assert kept == (len(left) if point in WRITTEN else len(records))
        assert engine.verify() == {"records": kept, "missing": 0, "extra": 0}
        plain = fr.Engine.from_records(left, backend="numpy")
        for name in "ab":
            queries = [fr.Query(text, namespace=name, k=60) for text in ("tea", "w1 w2", "w4")]
            queries += [fr.Query("tea w3", namespace=name, now=LATER, k=60)]
            found, wanted = engine.search(queries), plain.search(queries)
            assert found.ids.tolist() == wanted.ids.tolist()
            assert found.scores.tolist() == wanted.scores.tolist()
    # The next sweep ends the work.
    with fr.Engine.open(tmp_path / "m", backend="numpy") as engine:
        engine.sweep()
        assert engine.verify() == {"records": len(left), "missing": 0, "extra": 0}
