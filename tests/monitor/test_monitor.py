"""What the monitor counts of an answer."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.monitor.monitor import Monitor
from fanrank.engine.records.hits import Hits


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
