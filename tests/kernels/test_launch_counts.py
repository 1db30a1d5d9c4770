"""What the drivers ask of a device: a fan-out is one launch of six nodes, and a write costs no capture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.benches import load

pytest.importorskip("torch", reason="torch is not installed")

corpora, counted = load("gpu.corpora", "gpu.counted")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "CACHE", tmp_path)


def test_a_fan_out_is_one_launch_whatever_its_segments() -> None:
    rows = list(counted.count_fan_outs(False, {"bench": "gpu_counted", "run": ""}))
    assert {row.segments for row in rows} == {1, 4, 16}
    steps = {(row.segments, row.step): row for row in rows}
    assert len(steps) == len(rows) == 12
    for row in rows:
        spent = row.counts
        if row.step in ("replay", "write"):
            assert len(row.nodes) == 6, row.nodes
            assert (row.nodes[0], row.nodes[-1]) == ("copy", "copy")
            assert spent["graph launches"] == spent["host waits"] == 1
            assert "captures" not in spent
        if row.step == "replay":
            assert spent["host launches"] == 1
            assert "allocations" not in spent
            assert "pinned allocations" not in spent
            # Terms and offsets, and at most 64 rows of 136 bytes.
            assert spent["bytes up"] <= 8 * (256 + 33 + 1) + 136 * 64
        if row.step == "write":
            assert "pinned allocations" not in spent
    assert [row.counts["captures"] for row in rows if row.step == "capture"] == [1, 1, 1]
    for segments in (1, 4, 16):
        assert steps[segments, "replay"].nodes == steps[segments, "write"].nodes


def test_batches_of_texts_and_of_plans(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert counted.main(["--parts", "batch", "--smoke", "--out", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "gpu_counted.jsonl").read_text().splitlines()]
    assert [(row["queries"], row["step"]) for row in rows] == [
        (3, "texts"),
        (3, "plans"),
        (12, "texts"),
        (12, "plans"),
    ]
    for row in rows:
        assert row["counts"]["host waits"] == 1
        if row["step"] == "plans":
            # What is planned on the host goes up in one copy, and the answer comes down in one.
            assert row["counts"]["copies"] == 2
            assert row["counts"]["kernels"] == 4
    assert "| batch | 2 | 12 | plans |" in capsys.readouterr().out
