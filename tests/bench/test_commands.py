"""Each command of the bench in small: it runs, verifies its answers, and keeps rows; a wrong answer is seen."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.benches import load
from support.source import ROOT

import fanrank as fr

COMMANDS = [
    f"{folder}{path.stem}"
    for folder, pattern in (("", "*.py"), ("gpu.", "gpu/*.py"), ("research.", "research/*.py"))
    for path in sorted((ROOT / "bench").glob(pattern))
    if "def main(" in path.read_text(encoding="utf-8")
]
agents, building, fanout, growth = load("agents", "building", "fanout", "growth")
integrations, profile, run, session, shards = load("integrations", "profile", "run", "session", "shards")
writes, cases, client, corpora = load("writes", "harness.cases", "harness.client", "harness.corpora")
measure, systems, write_parts = load("harness.measure", "harness.systems", "harness.write_parts")
TINY = cases.Corpus("tiny", "synthetic", queries=12, documents=400)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (building, corpora, fanout, measure):
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
        (run, ["--cases", "nothing"], "scifact"),
        (growth, ["--methods", "nothing"], "maxscore"),
        (session, ["--methods", "nothing"], "maxscore"),
        (profile, ["--cases", "nothing"], "unknown: nothing"),
        (integrations, ["--systems", "elastic"], "no elastic; there are: engine, langchain"),
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


def test_a_run_beside_the_peers_measures_what_works_and_records_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(":memory:") as connection:
        if ("ENABLE_FTS5",) not in connection.execute("PRAGMA compile_options").fetchall():
            pytest.skip("this Python's SQLite has no FTS5")
    monkeypatch.setattr(measure, "SHORTEST", 0.001)
    monkeypatch.setattr(building, "SINGLE", ("sqlite",))
    monkeypatch.setitem(systems.PEERS, "absent", systems.Peer("absent"))
    chosen = [systems.SYSTEMS["sqlite-fts5"], systems.System("absent", "absent", phases=("kernel",))]
    cells = cases.grid((5,), (1,), ("kernel", "end_to_end"))
    shared = {"bench": "b", "run": "r"}
    # A budget of hours: on a busy machine, too, every query fits into it.
    good, bad = measure.run_case(TINY, chosen, cells, 2, 1e4, False, shared, lambda line: None)
    assert (good.error, good.reps, good.queries, good.verified) == (None, 2, 12, True)
    assert 0 < good.ms_min <= good.ms_per_query <= good.ms_max
    assert "No module named" in bad.error
    assert bad.ms_per_query is None
    built, failed = building.measure(TINY, ("sqlite", "absent"), (1,), 1, shared, lambda line: None)
    assert (built.error, built.documents, built.docs_per_s > 0) == (None, 400, True)
    assert "No module named" in failed.error


class Clock:
    """Stands in for the module `time`: a millisecond passes whenever it is read, and none otherwise.

    So agents have time for as many fan-outs on a busy machine as on an idle one.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = threading.Lock()

    def perf_counter(self) -> float:
        with self._lock:
            self._now += 1e-3
            return self._now

    process_time = perf_counter

    def sleep(self, seconds: float) -> None:
        """Until others have read the clock often enough."""
        end = self._now + seconds
        while self._now < end:
            time.sleep(0.001)


def test_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"w{n % 7} w{n % 11} w{n}" for n in range(60)]
    tokens = corpora.from_texts("tiny", texts, texts[:30], frozenset(), 30)
    monkeypatch.setattr(agents, "prepare", lambda corpus: Path())
    monkeypatch.setattr(agents, "load", lambda folder: tokens)
    monkeypatch.setattr(agents, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(agents, "time", Clock())
    methods = ["coalesced-threads", "coalesced-asyncio", "locked", "direct"]
    given = ["--cases", "synthetic-5k", "--agents", "1,3", "--methods", ",".join(methods), "--seconds", "0.2"]
    assert agents.main([*given, "--reps", "1", "--results", str(tmp_path / "agents.jsonl")]) == 0
    rows = rows_of(tmp_path / "agents.jsonl")
    assert [(row["agents"], row["method"]) for row in rows] == [(n, method) for n in (1, 3) for method in methods]
    assert all(row["verified"] and row["p50_ms"] <= row["p99_ms"] for row in rows)

    case = agents.Case("synthetic-5k", bm25s=False)
    right = case._search

    def wrong(numbers: Any) -> Any:
        documents, scores = right(numbers, None)
        documents[-1, 0] += 1
        return documents, scores

    assert case.verified(agents.ClientMethod("right", ask=lambda numbers: right(numbers, None)), 2)
    assert not case.verified(agents.ClientMethod("wrong", ask=wrong), 2)


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


@pytest.mark.extended
def test_growth_and_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (growth, session):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    given = ["--sizes", "300", "--corpora", "steady", "--methods", "vectorised,maxscore", "--fan-outs", "1", "--json"]
    assert growth.main(given) == 0
    monkeypatch.setattr(growth, "are_equal", lambda *_: False)
    assert growth.main(given) == 1
    assert [row["verified"] for row in rows_of(tmp_path / "growth.jsonl")] == [None, True, None, False]
    assert session.main(["--turns", "2", "--records", "300", "--methods", "sequential,temporal", "--json"]) == 0
    rows = rows_of(tmp_path / "session.jsonl")
    assert [(row["method"], row["error"]) for row in rows] == [("sequential", None), ("temporal", None)]
    assert all(0 < row["step_p50_ms"] <= row["step_max_ms"] for row in rows)


def test_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = write_parts.Settings(records=300, base=200, seconds=0.2, rounds=1, tenants=9, tenant_records=10, asked=6)
    assert writes.settings_of(write_parts.flags(tiny))[0] == tiny
    stores = tmp_path / "stores"
    stores.mkdir()
    figures = writes.run_part("append", tiny, stores)
    assert all(0 < figures[name]["records"] <= 300 for name in ("writers_1", "writers_4"))
    assert list(stores.iterdir()) == []
    assert writes.run_part("tenants", tiny, stores)["equal"] is True

    def child(arguments: list[str]) -> str:
        if "tail" in arguments:
            raise RuntimeError("disk full")
        return json.dumps({"figures": {"records_per_s": 3}, "peak_rss_gib": 0.5})

    monkeypatch.setattr(writes, "child", child)
    monkeypatch.setattr(writes, "RESULTS", tmp_path)
    assert writes.main(["--only", "append,tail"]) == 1
    assert [row["error"] for row in rows_of(tmp_path / "writes.jsonl")] == [None, "disk full"]


@pytest.mark.extended
def test_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus of some words, and shards in this process in place of Ray's."""
    monkeypatch.setattr(cases, "CORPORA", {"sgd": cases.Corpus("tiny", "synthetic", queries=40, documents=200)})
    fake = SimpleNamespace(init=lambda *_, **__: None, shutdown=lambda: None, __version__="none")
    monkeypatch.setitem(sys.modules, "ray", fake)
    opened = shards.open_shards
    monkeypatch.setattr(shards, "open_shards", lambda corpus, count, folder, _: opened(corpus, count, folder, "local"))
    given = ["--documents", "200", "--shards", "2", "--service", "50", "--fan-outs", "2", "--agents", "2"]
    assert shards.main([*given, "--seconds", "0.01", "--results", str(tmp_path / "shards.jsonl")]) == 0
    rows = rows_of(tmp_path / "shards.jsonl")
    assert {row["phase"] for row in rows} == {"fan-out", "agents", "service"}
    assert not [row for row in rows if row["verified"] is False]


def test_a_profile_adds_up() -> None:
    records = [fr.Record(id=str(n), text=f"w{n % 7} w{n % 5}") for n in range(100)]
    case = profile.Case(fr.Engine.from_records(records, analyzer="minimal"), [f"w{n} w{n + 1}" for n in range(6)])
    common = {"bench": "profile", "ceiling": {"copy_gb_per_s": 10.0, "scatter_add_m_per_s": 100.0}}
    rows = profile.measure(case, "tiny", 6, 3, 1, "fanrank-numpy", common)
    assert sum(row.share for row in rows) == pytest.approx(1.0, abs=1e-3)
    lists = [sum(f"w{n}" in record.text.split() for record in records) for n in range(7)]
    assert rows[0].postings_per_query == round(sum(lists[n] + lists[n + 1] for n in range(6)) / 6, 1)
    assert profile.limits(rows[0])["scattered additions"] == pytest.approx(rows[0].postings_per_query / 100.0)
