"""The figures of measured times, and what a measurement asks, without a clock."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate import latency
from fanrank.engine.evaluate.latency import ENCODED_SAMPLE, PLAIN_SAMPLE, default_sample, measure_latency, summarise
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.records.query import Query


class Engine:
    """Takes 1 ms for a call and 2 ms for each query of it, on a clock of its own; its first answer takes 1 s."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[list[str]] = []

    def perf_counter(self) -> float:
        return self.now

    def search(self, queries: Sequence[Query], k: int, **_: Any) -> None:
        self.now += 0.001 + 0.002 * len(queries) + (0.0 if self.asked else 1.0)
        self.asked.append([str(query.id) for query in queries])


def test_a_measurement_is_warm_alone_and_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(latency, "time", engine)
    queries = [Query("", id=str(n)) for n in range(10)]
    found = measure_latency(engine, queries, NAMED["bm25"], 5, sample=4)  # type: ignore[arg-type]
    wanted = ["0", "3", "6", "9"]
    assert engine.asked == [wanted, *([name] for name in wanted), *[wanted] * 3]
    assert found.n == 4
    assert found.to_dict() == pytest.approx(
        {
            "n": 4,
            "mean_ms": 3.0,
            "p50_ms": 3.0,
            "p95_ms": 3.0,
            "p99_ms": 3.0,
            "queries_per_second": 1000 / 3,
            "batch_ms_per_query": 9 / 4,
            "batch_queries_per_second": 4000 / 9,
        }
    )
    assert measure_latency(engine, queries, NAMED["bm25"], 5).n == 10  # type: ignore[arg-type]


def test_a_percentile_is_a_time_that_was_measured() -> None:
    found = summarise(np.arange(1.0, 101.0), [300.0, 100.0, 200.0])
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == (50.0, 95.0, 99.0)
    assert (found.mean_ms, found.batch_ms_per_query) == (50.5, 2.0)


def test_fewer_queries_are_timed_where_texts_are_encoded() -> None:
    assert default_sample(NAMED["bm25"]) == PLAIN_SAMPLE
    assert default_sample(NAMED["rrf"]) == ENCODED_SAMPLE


def test_nothing_to_time_is_named() -> None:
    for queries, sample in (([], None), ([Query("")], 0)):
        with pytest.raises(ParameterError, match="a measurement of latency needs a query"):
            measure_latency(Engine(), queries, NAMED["bm25"], 5, sample=sample)  # type: ignore[arg-type]
