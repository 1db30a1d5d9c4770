"""Counts and percentiles of searches, their log lines, what is counted of an answer, and drift of the vocabulary."""

import json
import logging
import math
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.threads import in_threads

import fanrank as fr
from fanrank import Query, SearchScope
from fanrank.engine.errors import ParameterError
from fanrank.engine.monitor.health import BUCKET_ERROR, HIGHEST, MAX_NAMES, OTHER, Health, HealthDrift, top_terms
from fanrank.engine.monitor.monitor import Monitor
from fanrank.engine.records.hits import Hits

SECRET = "what is the password of r4711"


def answer(queries: list[Query], best: list[float]) -> Any:
    """What the log reads of an answer."""
    return SimpleNamespace(queries=queries, scores=np.array(best)[:, None])


def test_counts() -> None:
    health = Health()
    health.record(3, 0.006, [0, 1, 7], backend="native")
    health.record(2, 0.004, np.array([2, 100], dtype=np.int32), backend="numpy", fallback="device out of memory")
    health.record(0, 0.001, [], backend="native")
    health.fail(4, ValueError(SECRET), backend="native")
    report = health.snapshot()
    assert (report.query_count, report.batch_count) == (5, 3)
    assert report.results == {"0": 1, "1": 1, "2-3": 1, "4-7": 1, "64-127": 1}
    assert report.fallback_count == {"device out of memory": 2}
    assert report.fallback_rate == 0.4
    assert report.failure_count == {"ValueError": 4}
    assert report.backends == {"native": 3, "numpy": 2}
    assert sum(report.batch.buckets.values()) == 3
    # Both batches cost 2 ms a query; the empty one counts no query.
    assert list(report.query.buckets.values()) == [5]
    assert report.query.p99 == pytest.approx(0.002, rel=BUCKET_ERROR)
    assert json.loads(json.dumps(report.to_dict()))["fallback_rate"] == 0.4


def test_the_line() -> None:
    health = Health()
    assert str(health.snapshot()) == "0 queries, P95 none, fallback rate 0.0 %"
    for _ in range(9):
        health.record(20, 0.0085, [5] * 20, backend="native")
    health.record(20, 0.0085, [5] * 20, backend="numpy", fallback="device lost")
    # The middle of 8.5 ms's bucket: 2**-20 * 2**((104 + .5) / 8) s.
    assert str(health.snapshot()) == "200 queries, P95 8.16 ms, fallback rate 10.0 %"


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_percentiles_within_the_stated_error(times: list[float]) -> None:
    health = Health()
    for seconds in times:
        health.record(1, seconds, [0], backend="numpy")
    batch = health.snapshot().batch
    for share, estimate in ((50, batch.p50), (95, batch.p95), (99, batch.p99)):
        exact = sorted(times)[math.ceil(share * len(times) / 100) - 1]
        assert estimate == pytest.approx(exact, rel=BUCKET_ERROR * (1 + 1e-9))
    for edge, count in batch.buckets.items():
        assert count == sum(edge * 2.0 ** (-1 / 8) * (1 - 1e-12) <= seconds < edge for seconds in times)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1e-12, 1e9])
def test_no_time_fails_a_search(seconds: float) -> None:
    health = Health()
    health.record(2, seconds, [1, 1], backend="numpy")
    batch = health.snapshot().batch
    assert sum(batch.buckets.values()) == 1
    assert 0.0 < batch.p50 < HIGHEST


def test_memory_is_constant() -> None:
    health = Health()
    for number in range(100):
        health.record(1, 1e-3, [2**40], backend=f"b{number}", fallback=f"reason {number}")
    report = health.snapshot()
    for counts in (report.backends, report.fallback_count):
        assert len(counts) == MAX_NAMES + 1
        assert counts[OTHER] == 100 - MAX_NAMES
    assert report.fallback_rate == 1.0


def test_many_threads() -> None:
    health = Health()
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for number in range(500):
            health.record(2, 1e-3, [number % 5, 1], backend="numpy", fallback="x" if number % 2 else None)
            if number % 100 == 0:
                report = health.snapshot()
                assert report.query_count == 2 * report.batch_count == sum(report.results.values())

    in_threads(*[work] * 4)
    report = health.snapshot()
    assert (report.query_count, report.batch_count, report.fallback_count) == (4000, 2000, {"x": 2000})
    assert report.results == {"0": 400, "1": 2400, "2-3": 800, "4-7": 400}


def test_lines_and_levels(caplog: pytest.LogCaptureFixture) -> None:
    health = Health("tenant-7")
    with caplog.at_level(logging.INFO, logger="fanrank"):
        asked = [Query(SECRET, scope=SearchScope.session("s")), Query("x", scope=SearchScope.session("t"))]
        health.record(2, 0.0085, [5, 0], backend="native", answer=answer(asked, [1.5, -np.inf]))
        health.record(1, 0.145, [1], backend="numpy", fallback="device lost", answer=answer([Query(SECRET)], [1.0]))
        health.fail(1, KeyError(SECRET), backend="numpy")
    first = "queries=2 namespace='tenant-7' scope=session backend=native latency=8.500ms results=5"
    second = "queries=1 namespace='tenant-7' scope=all backend=numpy latency=145.000ms results=1"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", f"search: {first}"),
        ("INFO", f"search: {second}"),
        ("WARNING", f"search: {second} fallback='device lost'"),
        ("ERROR", "search failed: queries=1 namespace='tenant-7' backend=numpy error=KeyError"),
    ]


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 99), st.integers(0, 6)), st.integers(0, 40), st.randoms())
def test_top_terms(counts: dict[int, int], limit: int, random: Any) -> None:
    pairs = list(counts.items())
    random.shuffle(pairs)
    terms, frequencies = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    expected = sorted((term for term in counts if counts[term]), key=lambda term: (-counts[term], term))[:limit]
    found = top_terms(terms, frequencies.astype(np.uint32), limit)
    assert found.dtype == np.int64
    assert found.tolist() == sorted(expected)


def ids(*numbers: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def test_drift_compares_with_the_check_before() -> None:
    drift = HealthDrift()
    reports = [drift.check(ids(*range(low, low + 100))) for low in (0, 17, 35, 35)]
    # 83 of 117 and 82 of 118 shared: .709 and .695.
    assert [report.jaccard for report in reports] == [1.0, 83 / 117, 82 / 118, 1.0]
    assert [report.drifted for report in reports] == [False, False, True, False]
    assert "no rebuild" in reports[2].advice
    assert "0.69" in reports[2].advice


def test_drift_at_the_threshold_and_from_nothing() -> None:
    drift = HealthDrift(0.5)
    assert not drift.check(ids()).drifted
    assert not drift.check(ids()).drifted
    assert drift.check(ids(1, 2, 3)).drifted
    assert not drift.check(ids(2, 3, 4)).drifted  # exactly .5
    kept = ids(2, 3, 4)
    drift.check(kept)
    kept += 10
    assert drift.check(ids(2, 3, 4)).jaccard == 1.0


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan, "0.7", True])
def test_a_threshold_out_of_range(threshold: Any) -> None:
    with pytest.raises(ParameterError, match="threshold"):
        HealthDrift(threshold)


def answered(spaces: list[str], counts: list[int]) -> Hits:
    shape = (len(spaces), 100)
    return Hits(
        np.zeros(shape),
        np.zeros(shape, dtype=np.int64),
        np.array(counts, dtype=np.int32),
        tuple(fr.Query(namespace=space) for space in spaces),
        "numpy",
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
    )


def label(count: int) -> str:
    low = 1 << (count.bit_length() - 1) if count else 0
    high = (1 << count.bit_length()) - 1
    return str(count) if low == high or not count else f"{low}-{high}"


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 100)), max_size=6), max_size=5),
    st.sampled_from([None, "the index is being built"]),
)
def test_each_namespace_counts_its_own_queries(batches: list[list[tuple[str, int]]], fallback: str | None) -> None:
    monitor = Monitor()
    for batch in batches:
        monitor.count(answered([space for space, _ in batch], [count for _, count in batch]), 0.008, fallback)
    for space in ("", "a", "b"):
        mine = [[count for where, count in batch if where == space] for batch in batches]
        report, queries = monitor.health(space), sum(map(len, mine))
        assert report.query_count == sum(report.query.buckets.values()) == queries
        assert report.batch_count == sum(report.batch.buckets.values()) == sum(map(bool, mine))
        assert report.results == Counter(label(count) for counts in mine for count in counts)
        assert report.backends == ({"numpy": queries} if queries else {})
        assert report.fallback_count == ({fallback: queries} if queries and fallback else {})


def test_dropping_a_namespace_forgets_its_counts() -> None:
    monitor = Monitor()
    monitor.count(answered(["a", "a"], [1, 1]), 0.008)
    monitor.drop("a")
    assert monitor.health("a").query_count == 0
    monitor.count(answered(["a"], [1]), 0.008)
    assert monitor.health("a").query_count == 1


def test_an_engine_logs_texts_and_scores_where_it_is_asked_to(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    batches = (
        ["secret tea", "nothing"],
        [fr.Query(terms=("secret",), scope=fr.SearchScope.session("s")), fr.Query("secret", namespace="n")],
        [fr.Query("secret", strategy="bm25"), fr.Query("secret tea", filter={"role": "user"})],
    )
    for log_texts in (True, False):
        with fr.Engine.open(tmp_path / "kept", analyzer="minimal", log_texts=log_texts) as engine:
            engine.upsert([fr.Record("1", "secret tea", session="s"), fr.Record("1", "secret", namespace="n")])
            with caplog.at_level(logging.INFO, logger="fanrank"):
                caplog.clear()
                first = [engine.search(batch, 5) for batch in batches]
                with pytest.raises(fr.errors.QueryError):
                    engine.search([fr.Query("secret", filter={"nowhere": 1})])
        lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("search")]
        assert ("secret" in "".join(lines)) is log_texts
        if log_texts:
            score = float(f"{first[0].scores[0, 0]:.4g}")
            assert f" scope=all backend={first[0].backend} " in lines[0]
            assert f"texts=['secret tea', 'nothing'] scores=[{score}, None]" in lines[0]
            assert any("scope=session" in line and "texts=['secret']" in line for line in lines)
            assert any("namespace='n'" in line and "texts=['secret']" in line for line in lines)
    with pytest.raises(fr.errors.ParameterError, match="log_texts"):
        fr.Engine(log_texts=1)  # type: ignore[arg-type]
