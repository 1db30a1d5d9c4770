"""The report: which rows count, what is made of them, and that the committed files are what the rows give."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench import growth
    from bench.gpu.rows import GpuRow
    from bench.harness import cases, rows, systems
    from bench.harness.code import code_of
    from bench.report import __main__ as report
    from bench.report import cost as report_cost
    from bench.report import format as report_format
    from bench.report import growth as report_growth
    from bench.report import published as report_published
    from bench.report import quality as report_quality
    from bench.report import readme as report_readme
    from bench.report import roofline as report_roofline
    from bench.report import rows as report_rows
    from bench.report import sources
    from bench.report import store as report_store
    from bench.report import systems as report_systems
finally:
    sys.path.remove(str(ROOT))

RESULTS = ROOT / "bench" / "results"
OWN, PEER = "fanrank-native", systems.BASELINE


def row(system: str, ms: float | None, case: str = "scifact", run: str = "2026-01-01T00:00", **more: Any) -> rows.Row:
    fields: dict[str, Any] = {"k": 10, "threads": 1, "phase": "kernel", "postings_per_query": 1e4, "documents": 100}
    fields |= {"ceiling": {"scatter_add_m_per_s": 200.0, "copy_gb_per_s": 20.0}, "bytes_per_posting": 4.0}
    fields |= {"commit": "abc", "date": run, "machine": {"cpu": "X", "cores": 2}, **more}
    return rows.Row("cpu", run, case, system, ms_per_query=ms, **fields)


def grid(run: str, names: tuple[str, ...] = report_rows.COMPARED, case: str = "scifact", **more: Any) -> list[rows.Row]:
    """A complete run of these systems."""
    return [
        row(name, 0.1 * (1 + at) * k / threads, case, run, k=k, threads=threads, phase=phase, **more)
        for at, name in enumerate(names)
        for k in cases.KS
        for threads in cases.THREADS
        for phase in ("kernel", "end_to_end")
    ]


def recorded(cpu: list[rows.Row] | None = None, **others: list[dict[str, Any]]) -> report_rows.Recorded:
    return report_rows.Recorded(cpu or [], others)


def profile(phase: str, us: float, run: str = "r1", **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"bench": "profile", "case": "sgd", "batch": 20, "k": 10, "threads": 1, "system": OWN}
    fields |= {"phase": phase, "us_per_query": us, "share": 0.5, "postings_per_query": 1e4, "bytes_per_query": 4e4}
    fields |= {"ceiling": {"scatter_add_m_per_s": 200.0, "copy_gb_per_s": 20.0}}
    return {**fields, "run": run, "machine": {}, "commit": "abc", "date": run, **more}


def gpu(system: str, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"device": "H200", "queries": 256, "ms": 1.0, "postings_per_s": 5e10}
    fields |= {"share": {"device_bytes": 0.4, "shared": 0.7}, "binding": "shared", "commit": "abc", "date": "r1"}
    return dataclasses.asdict(GpuRow("gpu", "r1", "nq-shaped", system, "search", 256, 100, **{**fields, **more}))


# Which rows count


def test_of_a_case_the_newest_complete_run_counts_and_a_newer_part_of_one_does_not():
    old, new = grid("2026-01-01"), grid("2026-01-02")
    part = grid("2026-01-03", (OWN, PEER))
    assert report_rows.newest_cases([*new, *old, *part]) == new
    told = report_rows.describe_passed_over([*new, *old, *part])
    assert told == ["scifact: run 2026-01-03 is newer than run 2026-01-02, but holds less and does not count"]
    assert report_rows.newest_cases(part) == part
    broken = [dataclasses.replace(each, ms_per_query=None, error="no wheel") for each in grid("2026-01-04")]
    assert report_rows.newest_cases([*new, *broken]) == new


def test_each_case_has_a_run_of_its_own_and_cases_stand_in_their_declared_order():
    sgd, scifact = grid("2026-01-02", case="sgd"), grid("2026-01-01", case="scifact")
    strange = grid("2026-01-01", case="not declared")
    assert report_rows.newest_cases([*strange, *sgd, *scifact]) == [*scifact, *sgd, *strange]


def test_the_newest_row_of_each_combination():
    found = report_rows.choose_newest(
        [{"a": 1, "date": "2", "v": "old"}, {"a": 1, "date": "3", "v": "new"}, {"a": None, "date": "1", "v": "x"}], "a"
    )
    assert {key: each["v"] for key, each in found.items()} == {(1,): "new", (None,): "x"}


def test_stamps_name_every_commit_with_its_first_and_last_run():
    today = {"code": code_of("cpu")}
    one = row(OWN, 1.0, run="2026-01-01T10:00:59", **today)
    assert report_rows.stamp([one]) == "run 2026-01-01T10:00, commit abc"
    assert report_rows.stamp([row(OWN, 1.0)]) == f"run 2026-01-01T00:00, commit abc, {report_rows.STALE}"
    several = [
        {"date": "2026-01-02T10:00", "commit": "a", **today},
        {"date": "2026-01-01T10:00", "commit": "a", **today},
        {"commit": "b", **today},
    ]
    assert report_rows.stamp(several) == (
        "runs 2026-01-01T10:00 to 2026-01-02T10:00, commit a; run unknown, commit b"
    )  # fmt: skip


def test_lines_that_are_no_rows_are_named(tmp_path: Path):
    (tmp_path / "growth.jsonl").write_text('{"bench": "growth"}\n[]\n')
    with pytest.raises(ValueError, match=r"growth\.jsonl:2: not a JSON object"):
        report_rows.load(tmp_path)
    (tmp_path / "growth.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match=r"growth\.jsonl:1: not JSON"):
        report_rows.load(tmp_path)


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.019362, "0.0194"), (1.0, "1.00"), (412.4, "412"), (10530.0, "10,530"), (None, ""), (math.nan, ""), (0, "0")],
)
def test_numbers_have_three_digits(value: float | None, text: str):
    assert report_format.number(value) == text


@given(st.floats(1e-9, 1e12))
def test_numbers_keep_their_three_digits(value: float):
    shown = float(report_format.number(value).replace(",", ""))
    assert shown == pytest.approx(value, rel=5.1e-3)


def test_columns_of_numbers_are_aligned_to_the_right():
    shown = report_format.table(["a", "b", "c"], [["x", "1", "**2.0** (1.00)"], ["1", "", "error"]])
    assert shown.splitlines()[1] == "|---|---:|---:|"


# Beside the peers


def test_means_against_both_peers_and_the_fastest_that_verified():
    shown = report_systems.markdown([row(PEER, 2.0), row(OWN, 1.0), row("tantivy", 0.5, verified=False)])
    assert "| fanrank-native | **0.500** |  | 1 of 1 | 0.500 |" in shown
    assert "| scifact | 10 | 1 | **1.00** (0.50) | 2.00 (1.00) | 0.500 (0.25) ! |" in shown
    shown = report_systems.markdown([row(OWN, 1.0)])
    assert "no ratios" in shown
    found = report_systems.mean_ratio(
        [row(PEER, 2.0), row(OWN, 1.0), row(PEER, 8.0, "sgd"), row(OWN, 1.0, "sgd")], OWN, PEER
    )
    assert found == (pytest.approx(0.25), 2)  # fmt: skip


def test_end_to_end_stands_beside_the_kernel():
    shown = "\n".join(report_systems.peers([row(OWN, 1.0), row(OWN, 1.5, phase="end_to_end"), row(PEER, 2.0)]))
    assert "| fanrank-native | 1.00 → 1.50 |" in shown


@given(st.floats(0.0, 1.0), st.integers(2, 64))
def test_amdahls_share_is_what_the_law_put_in(serial: float, threads: int):
    assert report_systems.amdahl(1.0, serial + (1 - serial) / threads, threads) == pytest.approx(serial, abs=1e-9)


def test_amdahls_share_of_the_source():
    times = sources.THREADS_MS["FiQA"]
    assert report_systems.amdahl(times[0], times[2], 8) == pytest.approx(sources.AMDAHL["FiQA"], abs=0.01)
    assert report_systems.amdahl(1.9, 1.0, 8) == pytest.approx(sources.AMDAHL["SciDocs"], abs=0.005)


# Ceilings and phases


def test_a_row_is_held_against_the_ceilings_of_its_run():
    point = report_roofline.cpu_point(row(OWN, 0.1))
    assert point is not None
    assert point.postings_per_s == pytest.approx(1e8)
    assert point.shares == {"additions": pytest.approx(0.5), "copy": pytest.approx(0.02)}
    assert point.binding == "additions"
    two = report_roofline.cpu_point(row(OWN, 0.1, threads=2))
    assert two is not None
    assert two.shares["additions"] == pytest.approx(0.25)
    assert report_roofline.cpu_point(row(OWN, None)) is None
    bare = report_roofline.cpu_point(row(OWN, 0.1, ceiling={}))
    assert bare is not None
    assert (bare.shares, bare.binding) == ({}, "")


def test_rows_of_a_gpu_go_through_the_same_table_and_those_of_its_cpu_do_not():
    shown = "\n".join(
        report_roofline.roofline(recorded(gpu=[gpu("fanrank-cuda"), gpu("fanrank-native", device="cpu")]))
    )
    assert "GPU, H200: run r1" in shown
    assert "| nq-shaped | fanrank-cuda | batch 256, k 100 | 50,000 | 40 % | 70 % | shared |" in shown
    assert "fanrank-native" not in shown
    assert "GPU: no row yet" in "\n".join(report_roofline.roofline(recorded()))
    published = "\n".join(report_published.published(recorded(gpu=[gpu("fanrank-cuda")])))
    assert "| nq-shaped 0.00391 |" in published


def test_phases_of_the_newest_run_add_up():
    kept = [profile("plan", 30.0, "r2"), profile("analyse", 10.0, "r2"), profile("own name", 10.0, "r2")]
    other = profile("analyse", 5.0, "r1", batch=500)
    shown = "\n".join(report_roofline.breakdown(recorded(profile=[profile("analyse", 99.0, "r1"), *kept, other])))
    assert "| corpus | system | batch | k | threads | analyse | plan | own name | sum |" in shown
    assert f"| sgd | {OWN} | 20 | 10 | 1 | 10.0 (20 %) | 30.0 (60 %) | 10.0 (20 %) | **50.0** |" in shown
    assert f"| sgd | {OWN} | 500 | 10 | 1 | 5.00 (100 %) |  |  | **5.00** |" in shown
    assert "99" not in shown
    point = report_roofline.profile_point(kept)
    assert point is not None
    assert point.postings_per_s == pytest.approx(1e4 / 50e-6)
    assert point.shares == {"additions": pytest.approx(1.0), "copy": pytest.approx(4e4 / 50e-6 / 20e9)}


# Growth, the store, cost


def grown(records: int, method: str, us: float, run: str = "r1", **more: Any) -> dict[str, Any]:
    fields = {"p50_us": us, "p99_us": 2 * us, "searched_share": 0.5, "verified": True, "threads": 1, "k": 10}
    own = growth.GrowthRow("growth", run, "steady", records, method, **{**fields, **more})  # type: ignore[arg-type]
    return {**dataclasses.asdict(own), "date": run, "commit": "abc"}


def test_growth_is_of_one_run_and_its_factor_from_the_smallest_to_the_largest():
    found = recorded(
        growth=[
            *(grown(100, "temporal", 8.0), grown(10, "temporal", 4.0), grown(10, "temporal", 1.0, "r2")),
            *(grown(1_000, "vectorised", 9.0), grown(1_000, "temporal", 0.0, error="no")),
        ]
    )
    families = report_growth.corpora(found)
    assert report_growth.growth_of(families["steady"], "temporal") == 2.0
    assert report_growth.growth_of(families["steady"], "vectorised") is None
    shown = "\n".join(report_growth.growth(found))
    assert "| 100 |  | 8.00 (16.0, 50.00 %) |" in shown
    assert "| largest over smallest |  | 2.00 |" in shown
    assert "grows by 2.00" in report_readme.growth(found)


def test_writes_and_agents_and_builds_as_far_as_there_are_rows():
    tail = {
        "bench": "writes", "run": "r1", "part": "memory", "date": "r1", "commit": "a", "settings": {"batch": 100},
        "figures": {"records": 10, "peak_bytes_per_record": 376, "disk_bytes_per_record": 423},
    }  # fmt: skip
    stamp = {"run": "r1", "date": "r1", "commit": "a"}
    agents = {"bench": "agents", "method": "coalesced", "agents": 8, "case": "sgd", "queries_per_s": 1234.5, **stamp}
    agents |= {"p50_ms": 1.5, "p99_ms": 2.5, "figures": {"a": 1}}
    direct = {**agents, "method": "direct", "agents": 1, "queries_per_s": 99.0, "verified": False}
    built = {"bench": "building", "system": "fanrank", "documents": 5, "documents_per_s": 9.0, "error": None, **stamp}
    found = recorded(writes=[tail], agents=[agents, direct, {**direct, "run": "r2"}], building=[built])
    assert report_store.write_lines(found)[1] == ("disk", "423 bytes a record")
    shown = "\n".join(report_store.agents(found))
    assert "| agents | direct | coalesced | ratio |" in shown
    assert "| 1 | 99.0 (1.50, 2.50) ! |  |  |\n| 8 |  | 1,234 (1.50, 2.50) |  |" in shown
    assert "figures" not in shown
    assert "| fanrank | 5 | 9.00 |" in "\n".join(report_store.building(found))


def test_the_price_of_a_query_is_the_sources_for_its_own_time():
    assert report_cost.dollars(0.40) == pytest.approx(sources.DOLLARS_PER_QUERY["AgentIR, .40 ms"], rel=0.01)
    a_month = report_cost.dollars(0.40) * sources.QUERIES_PER_MONTH
    assert a_month == pytest.approx(sources.DOLLARS_PER_MONTH["AgentIR, .40 ms"], rel=0.01)


def test_costs_of_a_cascade_are_made_up_of_its_measured_ends():
    name = {"bench": "cascade", "preset": "default", "unit": "turns", "escalated": "fused", "commit": "a", "date": "r"}
    points = [
        {"tau": tau, "skip": skip, "ms": ms, "ms_fanout": ms, "hit@5": 0.9}
        for tau, skip, ms in ((0.0, 1.0, 0.1), (0.1, 0.5, 3.0), (1.0, 0.0, 5.1))
    ]
    parts = {"encoded": {"escalated": 1100.0}, "vectors given": {"escalated": 100.0}}
    rows_of = [
        {**name, "part": "sweep", "rows": points},
        {**name, "part": "parts", "queries": 400, "escalations": 200, "batch_ms": parts, "machine": {"cores": 2}},
    ]
    assert report_cost.encoding_ms(rows_of[1]) == 5.0
    shown = "\n".join(report_cost.cost(recorded(cascade=rows_of)))
    assert "| 0.1 | 50.0 % | 3.00 | 2.60 | 1.15 | 0.9000 |" in shown
    assert "| here, tau 0.1 | 50.0 % | 10.0 | 400 | 1,600 |" in shown
    assert "tau 0 |" not in shown, "where nothing is encoded nothing is bounded"
    assert "No row yet of cascades" in "\n".join(report_cost.cost(recorded()))
    assert "skipped" in "\n".join(report_quality.cascade(recorded(cascade=rows_of)))


# The whole report


def test_a_report_of_no_rows_says_so_in_every_section(tmp_path: Path):
    shown = report.markdown(report_rows.load(tmp_path))
    for section in shown.split("\n## ")[1:-1]:
        assert "o row yet" in section, section.splitlines()[0]
    for block in report_readme.BLOCKS.values():
        assert block(report_rows.load(tmp_path))


@pytest.mark.parametrize("left_out", report_rows.COMPARED)
def test_a_report_does_without_any_system_or_case(left_out: str):
    names = tuple(name for name in report_rows.COMPARED if name != left_out)
    cpu = [*grid("2026-01-01", names), *grid("2026-01-02", names, "of another name", ceiling={})]
    shown = report.markdown(recorded(report_rows.newest_cases(cpu)))
    assert all((f"| {name} |" in shown) == (name != left_out) for name in report_rows.COMPARED)
    assert "of another name" in shown
    failed = row(OWN, None, error="no wheel")
    assert "- scifact, fanrank-native: no wheel" in report.markdown(recorded([*cpu, failed]))
    assert report.markdown(recorded([failed]))


def test_the_same_rows_give_the_same_report_and_every_figure_is_a_number():
    first = report.markdown(report_rows.load(RESULTS))
    assert first == report.markdown(report_rows.load(RESULTS))
    assert all(word not in ("nan", "inf", "None") for line in first.splitlines() for word in line.split())


def test_blocks_are_filled_and_unknown_ones_refused():
    text = "a\n<!-- rows: crash -->\nstale\n<!-- /rows -->\nb\n"
    assert report_readme.fill_blocks(text, recorded()) == (
        "a\n<!-- rows: crash -->\nNo row yet: `make crash`.\n<!-- /rows -->\nb\n"
    )
    with pytest.raises(ValueError, match="no block 'nothing'"):
        report_readme.fill_blocks("<!-- rows: nothing -->\n<!-- /rows -->", recorded())


def test_the_committed_files_are_what_the_rows_give():
    found = report.render_files(report_rows.load(RESULTS), ROOT)
    differing = report.differences(found, ROOT / "bench" / "plots")
    stale = "\n".join(report_rows.describe_stale(report_rows.load(RESULTS)))
    assert not differing, f"`make report` writes them anew. Rows older than the code they speak of:\n{stale}"


def test_a_difference_is_found_and_pictures_of_another_matplotlib_are_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(report, "version", lambda: "Matplotlib v1.0")
    page, drawn, other = tmp_path / "REPORT.md", tmp_path / "a.svg", tmp_path / "b.svg"
    page.write_text("old")
    drawn.write_text("Matplotlib v1.0, old")
    other.write_text("Matplotlib v0.9, old")
    wanted = {page: b"new", drawn: b"Matplotlib v1.0, new", other: b"Matplotlib v1.0, new", tmp_path / "c.svg": b""}
    (tmp_path / "d.svg").write_text("of no row")
    found = report.differences(wanted, tmp_path)
    assert [line.split("/")[-1].split(":")[0] for line in found] == ["REPORT.md", "a.svg", "c.svg", "d.svg"]
    assert report.differences({page: b"old"}, tmp_path / "none") == []
