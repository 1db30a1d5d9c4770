"""The report: which rows count, and that it stands on any rows, and on none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.benches import load

code, figures = load("harness.code", "figures")
report, formats, readme, report_rows, fanout, sections = load(
    *(f"report.{name}" for name in ("__main__", "format", "readme", "rows", "fanout", "sections"))
)


def row(system: str, ms: float | None, case: str = "scifact", run: str = "2026-01-01T00:00", **more: Any) -> Any:
    fields: dict[str, Any] = {"process": "warm", "batch": 20, "whole": False, "documents": 100, "calls": 9}
    fields |= {"commit": "abc", "date": run, "machine": {"cpu": "X", "cores": 2}, "run": run, "case": case}
    return {**fields, "system": system, "ms": ms, "p99_ms": ms, "cpu_ms": ms, "round_ms": [ms], **more}


def test_of_a_corpus_the_newest_complete_run_counts() -> None:
    old, new = ([row(name, 1.0, run=run) for name in ("fanrank", "bm25s")] for run in ("2026-01-01", "2026-01-02"))
    part, broken = row("fanrank", 1.0, run="2026-01-03"), row("fanrank", None, run="2026-01-04", error="no wheel")
    assert fanout.newest(report_rows.Recorded({"fanout": [*new, *old, part, broken]})) == new
    stale = report_rows.stamp([row("fanrank", 1.0)])
    assert stale == f"run 2026-01-01T00:00, commit abc, {report_rows.STALE}"
    assert report_rows.STALE not in report_rows.stamp([row("fanrank", 1.0, code=code.code_of("fanout"))])


def test_numbers_and_ratios() -> None:
    values = {0.019362: "0.0194", 1.0: "1.00", 412.4: "412", 10530.0: "10,530", None: "", float("nan"): "", 0: "0"}
    assert [formats.number(value) for value in values] == [*values.values()]
    shown = fanout.times([row("bm25s", 2.0), row("fanrank", 1.0), row("tantivy", 0.5, verified=False)])
    assert "| scifact, 100 | 20 | 1.00 (**0.50**) | 2.00 | 0.500 ! |" in shown
    both = [row("bm25s", 2.0), row("fanrank", 1.0), row("bm25s", 8.0, "sgd"), row("fanrank", 1.0, "sgd")]
    assert fanout.means(both) == "fanrank takes 0.25 of bm25s (2 cells)"


def test_a_report_does_without_any_rows(tmp_path: Path) -> None:
    nothing = report_rows.load(tmp_path)
    for section in report.markdown(nothing).split("\n## ")[1:-1]:
        assert "o row yet" in section, section.splitlines()[0]
    assert all(block(nothing) for block in readme.BLOCKS.values())


def test_blocks_are_filled_and_differences_are_told(tmp_path: Path) -> None:
    filled = readme.fill_blocks("a\n<!-- rows: crash -->\nstale\n<!-- /rows -->\nb\n", report_rows.Recorded({}))
    assert filled == f"a\n<!-- rows: crash -->\n{report_rows.no_row('crash')}\n<!-- /rows -->\nb\n"
    page = tmp_path / "REPORT.md"
    page.write_text("old")
    assert report.differences({page: b"new"}, tmp_path) == [f"{page}: not what the rows give"]
    assert report.differences({page: b"old"}, tmp_path) == []


def test_what_is_quoted_and_old_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, old = row("fanrank", 1.0, code=code.code_of("fanout")), row("fanrank", 1.0)
    assert "fanout" not in sections.stale(report_rows.Recorded({"fanout": [fresh], "gpu": []}))
    assert sections.stale(report_rows.Recorded({"fanout": [old]})) == {"fanout": "python -m bench.fanout"}
    ran: list[str] = []
    monkeypatch.setattr(figures, "run", lambda module: not ran.append(module))
    monkeypatch.setattr(figures, "load", lambda folder: report_rows.Recorded({"fanout": [fresh], "quality": []}))
    assert figures.main(["--only", "fanout,quality"]) == 0
    assert ran == ["bench.quality", "bench.strategies", "bench.report"]
    assert figures.main(["--only", "fanout", "--all"]) == 0
    assert ran[3:] == ["bench.fanout", "bench.report"]
