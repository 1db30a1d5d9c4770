"""Growth and session: what they declare, that they mark wrong answers, and small runs of the whole method."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.evaluate.synthetic import WEEK, SyntheticMemory, SyntheticQuestion

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench import growth, session
    from bench.harness import methods
    from bench.harness.methods import CPU_METHODS, FAN_OUT, Method
finally:
    sys.path.remove(str(ROOT))

COMMON = {"bench": "b", "run": "r"}
EFFORT = growth.Effort(fan_outs=2, budget=5.0)


def silent(line: str) -> None:
    pass


def hits(ids: list[list[str]], scores: list[list[float]]) -> Any:
    return SimpleNamespace(ids=np.array(ids, dtype=object), scores=np.array(scores), counts=np.array([2] * len(ids)))


# Declarations and pieces


def test_roads_are_declared_once_and_refer_to_each_other():
    names = [method.name for method in CPU_METHODS]
    assert len(set(names)) == len(names)
    assert {method.exact for method in CPU_METHODS} - {""} <= set(names)
    assert set(growth.TWO_YEAR_METHODS) | set(session.DEFAULT_METHODS) <= set(names)
    assert names == [method.name for method in methods.list_methods()][: len(names)]


def test_the_published_sizes():
    assert growth.SIZES == (4_052, 40_081, 239_799, 999_978, 1_998_918, 3_997_578, 4_998_640)
    assert growth.SIZES[:3] == growth.QUICK


def test_the_same_answers_however_cut():
    whole = [hits([["a", "b"], ["c", "d"]], [[2.0, 1.0], [4.0, 3.0]])]
    cut = [hits([["a", "b"]], [[2.0, 1.0]]), hits([["c", "d"]], [[4.0, 3.0]])]
    assert methods.are_equal(whole, cut)
    assert not methods.are_equal(whole, [hits([["a", "b"], ["d", "c"]], [[2.0, 1.0], [4.0, 3.0]])])
    assert not methods.are_equal(whole, [hits([["a", "b"], ["c", "d"]], [[2.0, 1.0], [4.0, np.nextafter(3.0, 4.0)]])])
    assert methods.count_found(cut, [SyntheticQuestion("", 0.0, "b"), SyntheticQuestion("", 0.0, "b")]) == 1


def test_newest_windows_skip_empty_ones():
    times = [0.0, 1.0, 2 * WEEK, 5 * WEEK + 1, 5 * WEEK + 2]
    assert [methods.newest_windows(times, count) for count in (1, 2, 3, 9)] == [5 * WEEK, 2 * WEEK, 0.0, 0.0]


def test_unknown_names_are_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]):
    for main in (growth.main, session.main):
        with pytest.raises(SystemExit):
            main(["--methods", "nothing"])
        assert "maxscore" in capsys.readouterr().err


def test_both_forms_of_the_command():
    environment = {**os.environ, "PYTHONPATH": str(Path(fr.__file__).parents[1])}
    for form in (["bench/growth.py"], ["-m", "bench.growth"], ["bench/session.py"], ["bench/writes.py"]):
        command = [sys.executable, *form, "--help"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert (done.returncode, "--quick" in done.stdout) == (0, True), done.stderr


# Growth


class Clock:
    """Stands in for the module `time`: from one reading to the next passes a microsecond more than before.

    So no two times are equal, and a later call takes longer.
    """

    def __init__(self) -> None:
        self._step = self._now = 0.0

    def perf_counter(self) -> float:
        self._step += 1e-6
        self._now += self._step
        return self._now


@pytest.fixture(scope="module")
def steady() -> list[growth.GrowthRow]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "time", Clock())
        return growth.run_corpus("steady", [4_000, 700], CPU_METHODS, EFFORT, COMMON, silent)


def test_every_road_answers_at_every_size_with_the_same_bits(steady: list[growth.GrowthRow]):
    assert [(row.records, row.method) for row in steady] == [
        (size, method.name) for size in (700, 4_000) for method in CPU_METHODS
    ]
    for row in steady:
        assert row.error is None
        assert row.verified is (None if row.method in ("vectorised", "decay-exhaustive") else True)
        assert row.fan_outs == 2
        assert 0 < row.q1_us <= row.p50_us <= row.q3_us <= row.p99_us  # type: ignore[operator]
        assert row.fanout_p50_us >= FAN_OUT * row.q1_us  # type: ignore[operator]
        assert 0 < row.hit_rate <= 1  # type: ignore[operator]
        assert (row.latency_ratio == 1) == (row.records == 700)
        assert row.build_records_per_s > 0  # type: ignore[operator]
        assert row.peak_rss_gib > 0  # type: ignore[operator]


def test_windows_search_a_part_and_say_how_many(steady: list[growth.GrowthRow]):
    by_method = {row.method: row for row in steady if row.records == 4_000}
    assert by_method["vectorised"].searched_share == by_method["decay-exhaustive"].searched_share == 1
    assert 0 < by_method["temporal"].searched_share < 0.6  # type: ignore[operator]
    assert by_method["temporal"].windows == 4
    assert by_method["temporal-auto"].windows in range(1, growth.MOST_WINDOWS + 1)
    assert by_method["temporal"].hit_rate <= by_method["vectorised"].hit_rate  # type: ignore[operator]


def test_two_years_whatever_the_size():
    chosen = [method for method in CPU_METHODS if method.name in growth.TWO_YEAR_METHODS]
    rows = growth.run_corpus("two-years", [300, 900], chosen, EFFORT, COMMON, silent)
    assert len(rows) == 8
    assert all(row.error is None and row.verified is not False for row in rows)
    assert all(row.searched_share < 0.2 for row in rows if row.method == "temporal")  # type: ignore[operator]


def test_a_wrong_answer_is_marked_and_told_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    right = growth.answer

    def wrong(engine: fr.Engine, method: Method, queries: Any, **options: Any) -> list[fr.Hits]:
        found = right(engine, method, queries, **options)
        return (
            [dataclasses.replace(one, scores=one.scores + 1.0) for one in found] if method.name == "maxscore" else found
        )

    monkeypatch.setattr(growth, "RESULTS", tmp_path)
    arguments = [
        "--sizes",
        "300",
        "--corpora",
        "steady",
        "--methods",
        "vectorised,maxscore",
        "--fan-outs",
        "1",
        "--json",
    ]
    assert growth.main(arguments) == 0
    good = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(growth, "answer", wrong)
    assert growth.main(arguments) == 1
    bad = json.loads(capsys.readouterr().out)
    assert [row["verified"] for row in good["rows"]] == [None, True]
    assert [row["verified"] for row in bad["rows"]] == [None, False]
    kept = [json.loads(line) for line in (tmp_path / "growth.jsonl").read_text().splitlines()]
    assert kept == [*good["rows"], *bad["rows"]]
    assert {"machine", "commit", "date", "run"} <= set(good)
    assert "NO" in growth.markdown([growth.GrowthRow(**row) for row in bad["rows"]])


def test_a_road_that_fails_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch):
    right = growth.answer

    def failing(engine: fr.Engine, method: Method, queries: Any, **options: Any) -> list[fr.Hits]:
        if method.name == "maxscore":
            raise fr.errors.ParameterError("no such execution today")
        return right(engine, method, queries, **options)

    monkeypatch.setattr(growth, "answer", failing)
    chosen = [method for method in CPU_METHODS if method.name in ("vectorised", "maxscore")]
    good, bad = growth.run_corpus("steady", [300], chosen, EFFORT, COMMON, silent)
    assert good.error is None
    assert bad.error == "ParameterError: no such execution today"
    assert bad.p50_us is None
    assert "no such execution" in growth.markdown([good, bad])


def test_a_slow_road_stops_when_its_budget_is_spent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(growth, "FEWEST", 2)
    chosen = [method for method in CPU_METHODS if method.name == "vectorised"]
    (row,) = growth.run_corpus("steady", [300], chosen, growth.Effort(6, 0.0), COMMON, silent)
    assert row.fan_outs == 2
    assert row.note == "slow: the first 2 of 6 fan-outs"


def test_growing_adds_the_difference():
    engine = fr.Engine(backend="numpy")
    growth.grow(engine, SyntheticMemory(300), 0, silent)
    growth.grow(engine, SyntheticMemory(700), 300, silent)
    assert len(engine) == 700
    whole = fr.Engine.from_records(SyntheticMemory(700).stream(), backend="numpy")
    queries = [question.text for question in SyntheticMemory(700).questions(20)]
    assert methods.are_equal([engine.search(queries)], [whole.search(queries)])


# Session


def test_a_session_grows_linearly_and_asks_as_published():
    whole = session.Session()
    assert (whole.sizes()[-1], len(whole.sizes())) == (4_998_640, 800)
    assert len({round(b - a, -1) for a, b in zip(whole.sizes(), whole.sizes()[1:], strict=False)}) <= 2
    asked = whole.retrievals()
    assert (min(asked), max(asked) <= 20, len(asked)) == (3, True, 800)
    assert 7.5 < sum(asked) / 800 < 8.6
    assert asked == session.Session().retrievals()


def test_a_small_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(session, "RESULTS", tmp_path)
    assert session.main(["--turns", "3", "--records", "900", "--methods", "sequential,temporal", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == ["sequential", "temporal"]
    for row in rows:
        assert row["error"] is None
        assert row["retrievals"] == sum(session.Session(3, 900, 900).retrievals())
        assert 0 < row["step_p50_ms"] <= row["step_p99_ms"] <= row["step_max_ms"]
        assert row["cumulative_s"] * 1e3 >= row["step_max_ms"]
        assert 0 <= row["over_limit"] <= 1
    assert len((tmp_path / "session.jsonl").read_text().splitlines()) == 2
    shown = session.markdown([session.SessionRow(**row) for row in rows])
    assert shown.count("\n") == 3


def test_steps_over_the_limit_are_counted():
    turns = session.Session(4, 10, 20)
    times = session.Times(steps=[0.1, 0.3, 0.1, 0.5], writes=[0.01] * 4, hits=sum(turns.retrievals()))
    row = session.row(turns, CPU_METHODS[1], 2, times, "numpy", COMMON)
    assert (row.cumulative_s, row.over_limit, row.step_max_ms, row.hit_rate) == (1.0, 0.5, 500.0, 1.0)
