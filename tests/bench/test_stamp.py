"""The stamp of a row depends on the code that it times alone; the report, and which rows count in it."""

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.benches import load
from support.source import ROOT

import fanrank as fr

code, dense = load("harness.code", "dense")
RECORDS = [fr.Record(str(n), f"w{n % 7} w{n % 11} w{n} is", session=f"s{n % 5}", time=float(n)) for n in range(60)]
PRODUCT = [ROOT / room for room in ("engine", "cpu_fallback", "native")]


def searched(backend: str | None, **asked: Any) -> Callable[[], object]:
    engine = fr.Engine.from_records(RECORDS, analyzer="nltk", backend=backend)
    texts = ["w1 w2", "w3"]
    return lambda: engine.search([fr.Query(text, **asked) for text in texts] if asked else texts, 10, threads=1).ids


def written() -> Callable[[], object]:
    engine, numbers = fr.Engine.from_records(RECORDS), count(100)
    return lambda: (engine.add([fr.Record(str(next(numbers)), "w1 more")]), engine.search(["w1"], 10).ids)


def ranked() -> Callable[[], object]:
    engine = fr.Engine(encoder=fr.OwnVectors(2))
    engine.add(fr.Record(str(n), f"w{n % 7} w{n}", embedding=[1.0, n]) for n in range(60))
    return lambda: engine.search([fr.Query("w1", vector=[1.0, 2.0])], 10, strategy="fused").ids


def compared() -> Callable[[], object]:
    rows, queries = dense.make_clusters(1, 60, 4, 8)
    (exact,) = dense.systems_of(rows, ["exact"])
    return lambda: exact.answer(queries, queries.astype("f4"), 3)


TIMED: dict[str, Callable[[], list[Callable[[], object]]]] = {
    "fanout": lambda: [searched("numpy"), searched(None)],
    "growth": lambda: [searched(None, half_life=9.0, now=90.0), searched("numpy", windows=2, now=90.0)],
    "session": lambda: [written()],
    "building": lambda: [lambda: fr.Engine.from_records(RECORDS, keep_texts=False).flush()],
    "hybrid": lambda: [ranked()],
    "dense": lambda: [compared()],
    "neighbours": lambda: [searched("numpy", neighbours=fr.Neighbours(2, 0.25))],
}
"""What rows of a bench time, in small."""
BESIDE = {
    "fanout": ("server/", "shards/", "kernels/", "engine/records/dialects/", "engine/storage/writes.py", "engine/cli/"),
    "growth": ("server/", "shards/", "kernels/", "engine/vectors/", "engine/records/dialects/"),
    "hybrid": ("server/", "shards/", "kernels/", "engine/records/dialects/", "engine/serve/"),
    "serve": ("shards/", "kernels/", "engine/vectors/"),
    "dense": ("native/", "engine/index/", "engine/text/"),
}


def ran(work: Callable[[], object]) -> set[Path]:
    """The product's files whose functions this calls, in this thread. Once before, for what is imported then."""
    work()
    names: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: names.add(frame.f_code.co_filename))
    try:
        work()
    finally:
        sys.setprofile(before)
    paths = {Path(name).resolve() for name in names if not name.startswith("<")}
    return {path for path in paths if any(room in path.parents for room in PRODUCT)}


@pytest.mark.parametrize("bench", TIMED)
def test_a_stamp_depends_on_what_is_timed(bench: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patterns, read, before = code.BENCHES[bench].files, code.read_code, code.code_of(bench)
    files = set().union(*map(ran, TIMED[bench]()))
    assert len(files) > 2
    missing = sorted(path.relative_to(ROOT).as_posix() for path in files - code.paths_of(patterns, ROOT))
    assert missing == [], "add these to bench/harness/code.py"
    changed = max(files)
    monkeypatch.setattr(code, "read_code", lambda path: read(path) + "x" * (path == changed))
    assert code.hash_of.__wrapped__(patterns, ROOT) != before


def test_a_stamp_depends_on_nothing_beside_it() -> None:
    for name, bench in code.BENCHES.items():
        hashed = [path.relative_to(ROOT).as_posix() for path in code.paths_of(bench.files, ROOT)]
        beside = ("bench/", "tests/", "docs/", *BESIDE.get(name, ()))
        assert [path for path in hashed if path.startswith(beside)] == [], name
        # Each pattern holds a file, so none outlives what it named.
        assert all(any(ROOT.glob(pattern.lstrip("!"))) for pattern in bench.files), name


figures, session = load("figures", "session")
methods, systems, ways = load("harness.methods", "harness.systems", "harness.ways")
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


def test_what_is_quoted_and_old_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, old = row("fanrank", 1.0, code=code.code_of("fanout")), row("fanrank", 1.0)
    assert "fanout" not in sections.stale(report_rows.Recorded({"fanout": [fresh], "gpu": []}))
    assert sections.stale(report_rows.Recorded({"fanout": [old]})) == ["fanout"]
    ran: list[str] = []
    monkeypatch.setattr(figures, "DONE", tmp_path / "figures.json")
    monkeypatch.setattr(figures, "run", lambda module: not ran.append(module) and module != "bench.strategies")
    monkeypatch.setattr(figures, "load", lambda folder: report_rows.Recorded({"fanout": [fresh], "quality": []}))
    assert figures.main(["--only", "fanout,quality"]) == 1
    assert sorted(ran) == ["bench.quality", "bench.report", "bench.strategies"]
    # What ended well is not run again; what failed is.
    assert figures.main(["--only", "quality"]) == 1
    assert ran[3:] == ["bench.strategies", "bench.report"]
    assert figures.main(["--only", "languages", "--all"]) == 0
    assert ran[5:] == ["bench.languages", "bench.report"]


def test_a_figure_without_a_row_and_rows_of_code_long_gone_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = report_rows.load(ROOT / "bench" / "results")
    assert sections.faults(recorded) == []
    none = sections.faults(report_rows.Recorded({**recorded.rows, "crash": []}))
    assert [fault.partition(":")[0] for fault in none] == ["crash", "block crash"]
    missing = [row for row in recorded.rows["quality"] if row.get("preset") != "opsem"]
    assert sections.faults(report_rows.Recorded({**recorded.rows, "quality": missing})) != []
    long_ago = report_rows.Recorded({"fanout": [row("fanrank", 1.0)]})
    monkeypatch.setattr(sections, "BLOCKS", {})
    asked: list[str] = []
    monkeypatch.setattr(sections, "commits_since", lambda date, files: asked.append(date) or sections.MOST_COMMITS)
    assert sections.faults(long_ago) == []
    monkeypatch.setattr(sections, "MOST_COMMITS", 5)
    monkeypatch.setattr(sections, "commits_since", lambda date, files: 6)
    (told,) = sections.faults(long_ago)
    assert asked == ["2026-01-01T00:00"]
    assert told.startswith("fanout: 6 commits of its code since 2026-01-01; ")


def test_a_run_by_default_is_as_complete_as_the_recorded_one() -> None:
    """Of runs the most complete counts: what no command measures any more would hide every newer run."""
    recorded = report_rows.load(ROOT / "bench" / "results")
    measured = {
        "session": ("method", {*session.DEFAULT_METHODS}),
        "growth": ("method", {method.name for method in methods.CPU_METHODS}),
        "serve": ("way", {"plain", *(way.name for way in ways.WAYS)}),
        "fanout": ("system", {name for name, system in systems.SYSTEMS.items() if system.default}),
    }
    for kind, (field, known) in measured.items():
        assert {row[field] for row in recorded.of(kind)} <= known, kind


def test_commits_are_those_of_the_files() -> None:
    every = sections.commits_since("2000-01-01", ("**/*",))
    if every < 100:
        pytest.skip("no git, or a short history")
    assert 0 < sections.commits_since("2000-01-01", ("engine/**/*", "!engine/engine.py")) < every
    assert sections.commits_since("2090-01-01", ("**/*",)) == 0
