"""The report: which rows count, and that it stands on any rows, and on none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.benches import load

cases, rows, code = load("harness.cases", "harness.rows", "harness.code")
report, cost, formats, readme, roofline, report_rows, sources, systems = load(
    *(f"report.{name}" for name in ("__main__", "cost", "format", "readme", "roofline", "rows", "sources", "systems"))
)
OWN, PEER = "fanrank-native", "bm25s-numba"


def row(system: str, ms: float | None, case: str = "scifact", run: str = "2026-01-01T00:00", **more: Any) -> Any:
    fields: dict[str, Any] = {"k": 10, "threads": 1, "phase": "kernel", "postings_per_query": 1e4, "documents": 100}
    fields |= {"ceiling": {"scatter_add_m_per_s": 200.0, "copy_gb_per_s": 20.0}, "bytes_per_posting": 4.0}
    fields |= {"commit": "abc", "date": run, "machine": {"cpu": "X", "cores": 2}, **more}
    return rows.Row("cpu", run, case, system, ms_per_query=ms, **fields)


def grid(run: str, names: tuple[str, ...] = report_rows.COMPARED, case: str = "scifact") -> list[Any]:
    """A complete run of these systems."""
    return [
        row(name, 0.1 * (1 + at) * k / threads, case, run, k=k, threads=threads, phase=phase)
        for at, name in enumerate(names)
        for k in cases.KS
        for threads in cases.THREADS
        for phase in ("kernel", "end_to_end")
    ]


def test_of_a_case_the_newest_complete_run_counts() -> None:
    old, new, part = grid("2026-01-01"), grid("2026-01-02"), grid("2026-01-03", (OWN, PEER))
    assert report_rows.newest_cases([*new, *old, *part]) == new
    assert "holds less and does not count" in report_rows.describe_passed_over([*new, *old, *part])[0]
    broken = [dataclasses.replace(each, ms_per_query=None, error="no wheel") for each in grid("2026-01-04")]
    assert report_rows.newest_cases([*new, *broken]) == new
    stale = report_rows.stamp([row(OWN, 1.0)])
    assert stale == f"run 2026-01-01T00:00, commit abc, {report_rows.STALE}"
    assert report_rows.STALE not in report_rows.stamp([row(OWN, 1.0, code=code.code_of("cpu"))])


def test_numbers_and_ratios() -> None:
    values = {0.019362: "0.0194", 1.0: "1.00", 412.4: "412", 10530.0: "10,530", None: "", float("nan"): "", 0: "0"}
    assert [formats.number(value) for value in values] == [*values.values()]
    shown = systems.markdown([row(PEER, 2.0), row(OWN, 1.0), row("tantivy", 0.5, verified=False)])
    assert "| scifact | 10 | 1 | **1.00** (0.50) | 2.00 (1.00) | 0.500 (0.25) ! |" in shown
    both = [row(PEER, 2.0), row(OWN, 1.0), row(PEER, 8.0, "sgd"), row(OWN, 1.0, "sgd")]
    assert systems.mean_ratio(both, OWN, PEER) == (pytest.approx(0.25), 2)
    times = sources.THREADS_MS["FiQA"]
    assert systems.amdahl(times[0], times[2], 8) == pytest.approx(sources.AMDAHL["FiQA"], abs=0.01)
    assert cost.dollars(0.40) == pytest.approx(sources.DOLLARS_PER_QUERY["AgentIR, .40 ms"], rel=0.01)
    point = roofline.cpu_point(row(OWN, 0.1))
    assert point.postings_per_s == pytest.approx(1e8)
    assert point.shares == {"additions": pytest.approx(0.5), "copy": pytest.approx(0.02)}


def test_a_report_does_without_any_rows_system_or_case(tmp_path: Path) -> None:
    nothing = report_rows.load(tmp_path)
    for section in report.markdown(nothing).split("\n## ")[1:-1]:
        assert "o row yet" in section, section.splitlines()[0]
    assert all(block(nothing) for block in readme.BLOCKS.values())
    for left_out in report_rows.COMPARED:
        names = tuple(name for name in report_rows.COMPARED if name != left_out)
        cpu = [*grid("2026-01-01", names), *grid("2026-01-02", names, "of another name"), row(OWN, None, error="none")]
        shown = report.markdown(report_rows.Recorded(cpu, {}))
        assert all((f"| {name} |" in shown) == (name != left_out) for name in names)
        assert "- scifact, fanrank-native: none" in shown


def test_blocks_are_filled_and_differences_are_told(tmp_path: Path) -> None:
    filled = readme.fill_blocks("a\n<!-- rows: crash -->\nstale\n<!-- /rows -->\nb\n", report_rows.Recorded([], {}))
    assert filled == "a\n<!-- rows: crash -->\nNo row yet: `make crash`.\n<!-- /rows -->\nb\n"
    page = tmp_path / "REPORT.md"
    page.write_text("old")
    assert report.differences({page: b"new"}, tmp_path) == [f"{page}: not what the rows give"]
    assert report.differences({page: b"old"}, tmp_path) == []
