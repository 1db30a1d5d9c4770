"""The bench of the temporal retriever in small: right answers, and rows that become a table and a target's line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench import events
    from bench.report import events as report_events
    from bench.report import published, sources
    from bench.report.rows import Recorded
finally:
    sys.path.remove(str(ROOT))


@pytest.mark.parametrize("arrival", events.ARRIVALS)
def test_a_memory_in_small_is_measured_and_shown(
    arrival: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "CHUNK", 300)
    arguments = ["--records", "900", "--batches", "1,20", "--arrivals", arrival, "--reps", "1", "--out", str(tmp_path)]
    assert events.main(arguments) == 0
    assert "lookup" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [row["batch"] for row in rows] == [1, 20]
    assert all(row["verified"] and row["lookup_us"] <= row["search_us"] for row in rows)
    recorded = Recorded([], {"events": rows})
    assert "| 900 |" in "\n".join(report_events.events(recorded))
    target = next(target for target in sources.TARGETS if target.method == "events")
    line = "\n".join(published.published(recorded))
    assert target.what in line
    assert ("at 900 (p99, temporal retriever)" in line) == (arrival == "ordered")


def test_a_wrong_answer_is_seen() -> None:
    engine, times = events.make_memory(200, "late", 3)
    queries = events.make_queries(np.random.default_rng(4), 10)
    assert events.is_right(engine, times, queries)
    engine.delete([hits[0][0] for hits in engine.search(queries, 1, strategy="temporal") if hits][:1])
    assert not events.is_right(engine, times, queries)
