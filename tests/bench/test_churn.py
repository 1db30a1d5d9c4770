"""The churn bench in small: every part runs, counts its work, and its rows become a table and a picture."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench import churn
    from bench.report import store as report_store
    from bench.report.rows import Recorded
finally:
    sys.path.remove(str(ROOT))

TINY = churn.Settings(rounds=2, records=50, operations=300, live=40, sample=60)


def test_rounds_end_with_the_record_that_stays(tmp_path: Path):
    for part in ("new-words", "old-words"):
        samples = churn.run_part(part, TINY, tmp_path)["samples"]
        assert [sample[:2] for sample in samples] == [[1, 1], [2, 1]]
        assert all(sample[-1] > 1 for sample in samples)


def test_operations_keep_the_number_of_live_records(tmp_path: Path):
    samples = churn.run_part("operations", TINY, tmp_path)["samples"]
    work = [sample[0] for sample in samples]
    assert work == sorted(set(work))
    assert work[-1] >= 300
    assert samples[-1][1] == 40
    assert list(tmp_path.iterdir()) == []


def test_flatness_compares_the_end_with_the_second_fifth():
    samples = [[float(n), 0.0, 0.0, 0.0, mib] for n, mib in enumerate([10, 20, 20, 21, 22, 23, 24, 25, 40, 40])]
    assert churn.flatness(samples) == round(40 / 21, 3)


def test_new_words_are_compared_with_old_words():
    rows = [
        churn.ChurnRow("churn", "now", part, [[1.0, 1.0, 1.0, 1.0, mib]], mib, settings=asdict(TINY), renumberings=1)
        for part, mib in (("new-words", 30.0), ("old-words", 20.0))
    ]
    rows = churn.with_ratios(rows)
    assert [row.rss_ratio for row in rows] == [1.5, None]
    text = "\n".join(report_store.churn(Recorded([], {"churn": [asdict(row) for row in rows]})))
    assert "new words" in text
    assert "1.5" in text
