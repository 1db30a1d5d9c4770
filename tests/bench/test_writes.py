"""The write benchmarks in small: every part runs, counts what it wrote, and a part that fails is a row that says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import fanrank as fr
from fanrank.engine.evaluate.synthetic import SyntheticMemory

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench import writes
    from bench.harness import load, write_parts
finally:
    sys.path.remove(str(ROOT))

TINY = write_parts.Settings(
    records=600,
    base=500,
    seconds=0.4,
    tail_pace=100.0,
    rounds=1,
    cold_records=500,
    cold_rounds=1,
    tenants=30,
    tenant_records=10,
    asked=12,
)


def test_settings_survive_the_way_to_a_child():
    given = write_parts.Settings(records=7, half_life=3.5, windows="auto", pace=2.0)
    assert writes.settings_of(write_parts.flags(given))[0] == given
    assert writes.settings_of(["--quick"])[0] == write_parts.QUICK


def test_appends_are_counted_and_there_afterwards(tmp_path: Path):
    figures = writes.run_part("append", TINY, tmp_path)
    assert figures["sync_p50_ms"] > 0
    for name in ("writers_1", "writers_4"):
        assert 0 < figures[name]["records"] <= 600
        assert figures[name]["records"] % 100 == 0
        assert 0 < figures[name]["add_p50_ms"] <= figures[name]["add_p99_ms"] <= figures[name]["add_max_ms"]
    assert list(tmp_path.iterdir()) == []  # the store is gone


def test_asking_while_writing(tmp_path: Path):
    figures = writes.run_part("searching", TINY, tmp_path)
    assert "fan_outs" not in figures["alone"]
    assert figures["flat_out"]["fan_outs"] > 0 < figures["paced"]["fan_outs"]
    figures = writes.run_part("tail", TINY, tmp_path)
    assert figures["p99_ratio"] == pytest.approx(
        figures["writing"]["fanout_p99_ms"] / figures["quiet"]["fanout_p99_ms"], rel=1e-3
    )


def test_memory_and_tenants(tmp_path: Path):
    figures = writes.run_part("memory", TINY, tmp_path)
    assert figures["records"] == 1_100
    assert figures["disk_bytes_per_record"] > 50
    figures = writes.run_part("tenants", TINY, tmp_path)
    assert (figures["records"], figures["batch_tenants"], figures["equal"]) == (300, 12, True)


def test_a_cold_opening_in_a_process_of_its_own(tmp_path: Path):
    figures = writes.run_part("cold", TINY, tmp_path)
    cached = figures["cached"]
    parts = cached["import_ms"] + cached["open_ms"] + cached["first_fanout_ms"]
    assert cached["to_first_answer_ms"] == pytest.approx(parts, rel=1e-2)
    assert cached["process_ms"] > cached["to_first_answer_ms"]


def test_tenants_hold_different_records_and_questions_find_their_own():
    one, other = (write_parts._tenant(SyntheticMemory(10, namespace=f"tenant-{n}"), n) for n in range(2))
    assert {record.text for record in one}.isdisjoint({record.text for record in other})
    assert write_parts._tenant_query(SyntheticMemory(10, namespace="tenant-1"), 1).namespace == "tenant-1"


def test_every_batch_is_written_once_by_several_writers():
    engine = fr.Engine(backend="numpy")
    batches = list(write_parts._batches(SyntheticMemory(900), 0, 100))
    figures = load.write(engine, iter(batches), 3, 60.0)
    assert figures["records"] == len(engine) == 900


def test_errors_of_threads_are_raised():
    engine = fr.Engine(backend="numpy")
    twice = [next(write_parts._batches(SyntheticMemory(100), 0, 100))] * 2
    with pytest.raises(fr.errors.DuplicateIdError):
        load.write(engine, iter(twice), 1, 60.0)
    wrong = [[fr.Query("a")], ["no fan-out", 5]]
    with pytest.raises(fr.errors.QueryError), load.Asking(engine, wrong, None) as asking:  # type: ignore[arg-type]
        asking._thread.join(60)


def test_a_part_that_fails_is_a_row_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def child(arguments: list[str]) -> str:
        if "tail" in arguments:
            raise RuntimeError("disk full")
        return json.dumps({"figures": {"records_per_s": 3}, "peak_rss_gib": 0.5})

    monkeypatch.setattr(writes, "child", child)
    monkeypatch.setattr(writes, "RESULTS", tmp_path)
    assert writes.main(["--only", "append"]) == 0
    assert "records_per_s: 3" in capsys.readouterr().out
    assert writes.main(["--only", "append,tail", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["error"] for row in rows] == [None, "disk full"]
    kept = [json.loads(line) for line in (tmp_path / "writes.jsonl").read_text().splitlines()]
    assert kept[1:] == rows
    with pytest.raises(SystemExit):
        writes.main(["--only", "nothing"])
    with pytest.raises(RuntimeError, match="invalid choice"):
        write_parts.child(["--part", "nothing"])
