"""bench/agents.py on a corpus of a few documents: its methods, its verdicts, its rows."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Behind everything else, so that the folders there (engine, kernels) shadow no module.
sys.path.append(str(ROOT))
try:
    from bench import agents
    from bench.harness.corpora import Tokens, from_texts
finally:
    sys.path.remove(str(ROOT))

METHODS = ("coalesced-threads", "coalesced-asyncio", "locked", "direct", "pool")


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
        end, given_up = self._now + seconds, time.monotonic() + 60.0
        while self._now < end:
            assert time.monotonic() < given_up, "nobody reads the clock"
            time.sleep(0.001)


@pytest.fixture(autouse=True)
def corpus(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    texts = [f"w{n % 7} w{n % 11} w{n}" for n in range(60)]
    tokens = from_texts("tiny", texts, texts[:30], frozenset(), 30)
    monkeypatch.setattr(agents, "prepare", lambda corpus: Path())
    monkeypatch.setattr(agents, "load", lambda folder: tokens)
    monkeypatch.setattr(agents, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(agents, "time", Clock())
    return tokens


def test_rows_of_every_road(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "agents.jsonl"
    given = [
        "--cases",
        "synthetic-5k",
        "--agents",
        "1,3",
        "--methods",
        ",".join(METHODS),
        "--seconds",
        "0.3",
        "--reps",
        "1",
    ]
    assert agents.main([*given, "--results", str(results)]) == 0
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(row["agents"], row["method"]) for row in rows] == [
        (count, method) for count in (1, 3) for method in METHODS
    ]
    for row in rows:
        assert row["verified"] is True
        assert row["queries_per_s"] > 0
        assert row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
        assert row["machine"]
        assert row["commit"]
        assert (row["queries_per_launch"] is not None) == row["method"].startswith("coalesced")
    assert capsys.readouterr().out.count("| yes |") == len(rows)


def test_the_fastest_method_stands_beside_bm25s() -> None:
    def row(method: str, count: int, rate: float) -> agents.AgentsRow:
        return agents.AgentsRow("agents", "r", "tiny", method, count, queries_per_s=rate)

    rows = [row("direct", 10, 100.0), row("pool", 10, 300.0), row("bm25s", 10, 200.0), row("direct", 1, 5.0)]
    assert agents.compare(rows) == ["tiny, 10 agents: pool answers 1.50 times the queries of bm25s"]
    assert agents.render(rows).endswith("times the queries of bm25s")


def test_nothing_is_kept_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Path] = []
    monkeypatch.setattr(agents, "append", lambda path, rows: kept.append(path))
    given = ["--cases", "synthetic-5k", "--agents", "1", "--methods", "direct", "--seconds", "0.1", "--reps", "1"]
    assert agents.main(given) == 0
    assert kept == []


def test_a_road_that_answers_wrongly_is_told() -> None:
    case = agents.Case("synthetic-5k", bm25s=False)
    right = case._search

    def wrong(numbers: Sequence[int]) -> agents.HitArrays:
        documents, scores = right(numbers, None)
        documents[-1, 0] += 1
        return documents, scores

    assert case.verified(agents.ClientMethod("right", ask=lambda numbers: right(numbers, None)), 2)
    assert not case.verified(agents.ClientMethod("wrong", ask=wrong), 2)
