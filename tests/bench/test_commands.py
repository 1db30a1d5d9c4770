"""Each command of the bench in small: it runs, verifies its answers, and keeps rows; a wrong answer is seen."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.benches import load
from support.source import ROOT

import fanrank as fr

COMMANDS = [
    f"{folder}{path.stem}"
    for folder, pattern in (("", "*.py"), ("gpu.", "gpu/*.py"))
    for path in sorted((ROOT / "bench").glob(pattern))
    if "def main(" in path.read_text(encoding="utf-8")
]
building, fanout, growth, session, shards = load("building", "fanout", "growth", "session", "shards")
writes, cases, corpora = load("writes", "harness.cases", "harness.corpora")
systems, write_parts = load("harness.systems", "harness.write_parts")
TINY = cases.Corpus("tiny", "synthetic", queries=12, documents=400)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (building, corpora, fanout):
        monkeypatch.setattr(module, "CACHE", tmp_path / "cache")


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(row["commit"] and row["machine"] for row in rows)
    return rows


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        (command,) = load(name)
    except ImportError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        (building, ["--corpora", "nothing"], "scifact"),
        (growth, ["--methods", "nothing"], "maxscore"),
        (session, ["--methods", "nothing"], "maxscore"),
        (shards, ["--agents", "0"], "1 or more"),
        (writes, ["--only", "nothing"], "nothing"),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_ones(
    command: Any, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(given)
    assert message in capsys.readouterr().err


@pytest.mark.extended
def test_fan_outs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "CORPORA", {"tiny": TINY})
    # The worker imports what this process imports.
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    results = tmp_path / "fanout.jsonl"
    given = ["--corpora", "tiny", "--systems", "fanrank-numpy", "--batches", "5,all", "--rounds", "1", "--cold", "1"]
    assert fanout.main([*given, "--results", str(results)]) == 0
    rows = rows_of(results)
    assert [(row["process"], row["batch"]) for row in rows] == [("warm", 5), ("warm", 12), ("cold", 12)]
    assert all(row["verified"] and row["overlap"] == 1.0 for row in rows[:2])
    assert all(rows[2][f"{step}_ms"][0] > 0 for step in ("import", "open", "first", "second"))
    monkeypatch.setattr(building, "CORPORA", {"tiny": TINY})
    monkeypatch.setitem(systems.PEERS, "absent", systems.Peer("absent"))
    results = tmp_path / "building.jsonl"
    given = ["--corpora", "tiny", "--systems", "fanrank,absent", "--threads", "1", "--reps", "1"]
    assert building.main([*given, "--results", str(results)]) == 1
    built, failed = rows_of(results)
    assert (built["error"], built["documents"], built["docs_per_s"] > 0) == (None, 400, True)
    assert "No module named" in failed["error"]
    given = ["--store", "--corpora", "tiny", "--systems", "fanrank", "--reps", "1", "--results", str(results)]
    assert building.main(given) == 0
    stored = rows_of(results)[-1]
    assert (stored["input"], stored["documents"]) == ("records", 400)
    assert min(stored["cpu_us_per_record"], stored["bytes_per_record"]) > 0


@pytest.mark.extended
def test_growth_and_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "rows.jsonl"
    given = ["--sizes", "300", "--corpora", "steady", "--methods", "vectorised,maxscore", "--fan-outs", "1"]
    assert growth.main([*given, "--results", str(results)]) == 0
    monkeypatch.setattr(growth, "are_equal", lambda *_: False)
    assert growth.main([*given, "--results", str(results)]) == 1
    assert [row["verified"] for row in rows_of(results)] == [None, True, None, False]
    results.unlink()
    given = ["--turns", "2", "--records", "300", "--methods", "sequential,temporal", "--results", str(results)]
    assert session.main(given) == 0
    rows = rows_of(results)
    assert [(row["method"], row["error"]) for row in rows] == [("sequential", None), ("temporal", None)]
    assert all(0 < row["step_p50_ms"] <= row["step_max_ms"] for row in rows)


def test_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = write_parts.Settings(records=300, base=200, seconds=0.2, rounds=1, tenants=9, tenant_records=10, asked=6)
    stores = tmp_path / "stores"
    ran = write_parts.run_part("append", tiny, stores)
    assert all(0 < ran["figures"][name]["records"] <= 300 for name in ("writers_1", "writers_4"))
    assert list(stores.iterdir()) == []
    assert write_parts.child("tenants", tiny, stores)["figures"]["equal"] is True

    def child(part: str, *given: Any) -> Any:
        if part == "tail":
            raise RuntimeError("disk full")
        return {"figures": {"records_per_s": 3}, "peak_rss_gib": 0.5}

    monkeypatch.setattr(writes, "child", child)
    results = tmp_path / "writes.jsonl"
    assert writes.main(["--only", "append,tail", "--json", "--results", str(results)]) == 1
    assert [row["error"] for row in rows_of(results)] == [None, "disk full"]


@pytest.mark.extended
def test_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus of some words, and shards in this process in place of Ray's."""
    monkeypatch.setattr(cases, "CORPORA", {"sgd": cases.Corpus("tiny", "synthetic", queries=40, documents=200)})
    fake = SimpleNamespace(init=lambda *_, **__: None, shutdown=lambda: None, __version__="none")
    monkeypatch.setitem(sys.modules, "ray", fake)
    opened = fr.ShardedEngine.open
    local = staticmethod(lambda *given, **how: opened(*given, **{**how, "transport": "local"}))
    monkeypatch.setattr(fr.ShardedEngine, "open", local)
    given = ["--documents", "200", "--shards", "2", "--service", "50", "--moved", "20", "--fan-outs", "2"]
    assert shards.main([*given, "--agents", "2", "--seconds", "0.01", "--results", str(tmp_path / "shards.jsonl")]) == 0
    rows = rows_of(tmp_path / "shards.jsonl")
    assert {row["phase"] for row in rows} == {"fan-out", "agents", "service", "move"}
    assert not [row for row in rows if row["verified"] is False]
