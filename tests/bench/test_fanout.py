"""bench/fanout.py on a corpus of some documents: its calls, its rows, and the tables that are made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench import fanout
    from bench.harness import cases, corpora, systems
    from bench.report import fanout as report_fanout
    from bench.report.rows import Recorded
finally:
    sys.path.remove(str(ROOT))

TINY = cases.Corpus("tiny", "synthetic", queries=12, documents=400)


def test_calls_are_the_same_for_every_system_and_hold_no_query_twice() -> None:
    calls = fanout.draw_calls(30, "5", 4, seed=1)
    assert calls == fanout.draw_calls(30, "5", 4, seed=1)
    assert calls != fanout.draw_calls(30, "5", 4, seed=2)
    assert [len(set(call)) for call in calls] == [5] * 4
    assert fanout.draw_calls(3, "all", 2, seed=1) == [[0, 1, 2]] * 2
    assert [len(call) for call in fanout.draw_calls(3, "20", 2, seed=1)] == [3, 3]


def test_the_reference_reads_the_tokens_of_the_default_analyzer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "CACHE", tmp_path)
    monkeypatch.setattr(fanout, "CACHE", tmp_path)
    monkeypatch.setenv("FANRANK_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "small"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"title": "The cats", "text": "are running"}\n{"text": "a cat"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "1", "text": "the cat runs"}\n{"_id": "2", "text": "cats"}\n')
    (folder / "qrels" / "test.tsv").write_text("query\tcorpus\tscore\n1\t0\t1\n")
    corpus = cases.Corpus("small", "beir", queries=9)
    tokens = fanout.stemmed_tokens(corpus)
    assert tokens.document_terms() == [["cat", "run"], ["cat"]]
    assert tokens.query_terms() == [["cat", "run"]]
    assert tokens.query_texts == ["the cat runs"]
    assert fanout.stemmed_tokens(corpus).document_terms() == tokens.document_terms()


def test_a_run_verifies_times_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (corpora, fanout):
        monkeypatch.setattr(module, "CACHE", tmp_path)
    monkeypatch.setattr(fanout, "CORPORA", {"tiny": TINY})
    # The worker imports what this process imports.
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    absent = systems.TextSystem("absent", "absent")
    monkeypatch.setitem(systems.PEERS, "absent", systems.Peer("absent"))
    chosen = {"fanrank-numpy": systems.TEXT_SYSTEMS["fanrank-numpy"], "absent": absent}
    monkeypatch.setattr(fanout, "TEXT_SYSTEMS", chosen)
    results = tmp_path / "fanout.jsonl"
    given = ["--corpora", "tiny", "--systems", "fanrank-numpy,absent", "--batches", "1,5,all", "--rounds", "2"]
    assert fanout.main([*given, "--cold", "1", "--results", str(results)]) == 1
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(row["system"], row["process"], row["batch"], row["whole"]) for row in rows] == [
        ("absent", "warm", 0, False),
        *(("fanrank-numpy", "warm", batch, batch == 12) for batch in (1, 5, 12)),
        ("fanrank-numpy", "cold", 12, False),
    ]
    assert "No module named" in rows[0]["error"]
    for row in rows[1:4]:
        assert (row["verified"], row["overlap"], row["mode"]) == (True, 1.0, "numpy")
        assert 0 < min(row["round_ms"]) <= row["ms"] <= row["p99_ms"]
        assert row["calls"] == 2 * fanout.BATCHES[str(row["batch"]) if row["batch"] != 12 else "all"]
        assert row["code"] == fanout.code_of("fanout")
        assert row["commit"]
    assert all(rows[4][f"{step}_ms"][0] > 0 for step in ("import", "open", "first", "second"))
    shown = capsys.readouterr().out
    assert "| tiny, 400 | all 12 |" in shown
    assert "- tiny, absent:" in shown
    # The index is used again while nothing changed.
    kept = (tmp_path / "work" / "tiny" / "texts-fanrank.json").stat().st_mtime_ns
    assert fanout.main([*given[:2], "--systems", "fanrank-numpy", "--rounds", "1", "--cold", "0", "--no-record"]) == 0
    assert (tmp_path / "work" / "tiny" / "texts-fanrank.json").stat().st_mtime_ns == kept
    assert len(results.read_text().splitlines()) == len(rows)


def row(system: str, ms: float, batch: int = 5, case: str = "sgd", run: str = "r1", **more: Any) -> dict[str, Any]:
    own = fanout.FanOutRow("fanout", run, case, system, "warm", batch, ms=ms, p99_ms=ms, round_ms=(ms,), cpu_ms=ms)
    return {**vars(own), "documents": 9, "commit": "abc", "date": run, "verified": True, **more}


def test_ratios_are_taken_inside_a_run_and_means_over_fan_outs() -> None:
    rows = [row("fanrank", 1.0), row("bm25s", 4.0), row("fanrank", 1.0, 20), row("bm25s", 1.0, 20)]
    rows += [row("fanrank", 1.0, 200), row("bm25s", 100.0, 200), row("bm25s", 9.0, 1, run="r2"), row("fanrank", 9.0, 1)]
    rows += [row("fanrank", 1.0, 12, whole=True), row("bm25s", 100.0, 12, whole=True)]
    assert report_fanout.ratios(rows, "fanrank", "bm25s")["sgd", "5"] == 0.25
    assert ("sgd", "1") not in report_fanout.ratios(rows, "fanrank", "bm25s")
    assert report_fanout.means(rows) == "fanrank takes 0.50 of bm25s (2 cells)"
    assert "| sgd, 9 | 5 | 1.00 (**0.25**) | 4.00 |" in report_fanout.times(rows)
    assert "(**0.25**) !" in report_fanout.times([row("fanrank", 1.0, verified=False), row("bm25s", 4.0)])


def test_of_a_corpus_the_newest_complete_run_counts() -> None:
    old = [row("fanrank", 1.0), row("bm25s", 4.0)]
    new = [row("fanrank", 2.0, run="r2"), row("bm25s", 4.0, run="r2")]
    part = [row("fanrank", 3.0, run="r3")]
    recorded = Recorded([], {"fanout": [*new, *old, *part, row("fanrank", 7.0, case="scifact", run="r0")]})
    assert [(own["case"], own["ms"]) for own in report_fanout.newest(recorded)] == [
        ("scifact", 7.0),
        ("sgd", 2.0),
        ("sgd", 4.0),
    ]
    assert "| sgd, 9 | 5 | 2.00 (**0.50**) | 4.00 |" in report_fanout.block(recorded)
    assert report_fanout.block(Recorded([], {})) == "No row yet: `make fanout`.\n"
