"""The time of single queries and of a batch, on a warm engine.

Sources: A110.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError
from ..memory import Memory
from ..records.query import Query
from ..route.policy import Answerer

PLAIN_SAMPLE = 1_000
"""Queries that are timed by default. With an encoder `ENCODED_SAMPLE` are: one takes about 20 ms, BM25 about 0.1."""
ENCODED_SAMPLE = 100
_BATCHES = 3


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a query that is asked alone, and of one in a batch, encoding included, on a warm engine."""

    n: int
    """Queries that were timed."""
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    queries_per_second: float
    batch_ms_per_query: float
    """The median of three batches, each of all the timed queries, divided by their number."""
    batch_queries_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def default_sample(answerer: Answerer) -> int:
    """How many queries are timed unless the caller says so."""
    return ENCODED_SAMPLE if answerer.dense or answerer.learned else PLAIN_SAMPLE


def measure_latency(
    engine: Memory, queries: Sequence[Query], answerer: Answerer, k: int, *, threads: int = 1, sample: int | None = None
) -> Latency:
    """Ask queries one at a time, then as a batch, and measure. Nothing is kept between the calls but the engine's own.

    `sample` queries are taken at even distances (default: `default_sample`, or all if there are fewer). They are asked
    once before the clock starts. A percentile is the smallest time that this share of the queries did not exceed.
    Raises `ParameterError` for a sample that is no whole number of at least 1, or without queries.
    """
    wanted = default_sample(answerer) if sample is None else sample
    if not isinstance(wanted, int) or wanted < 1 or not queries:
        raise ParameterError(f"a measurement of latency needs a query; given {len(queries)}, to be timed {wanted!r}")
    rows = np.unique(np.linspace(0, len(queries) - 1, min(wanted, len(queries))).round().astype(np.int64))
    timed = [queries[row] for row in rows.tolist()]
    engine.search(timed, k, strategy=answerer, threads=threads)
    alone = np.array([_milliseconds(engine, [query], answerer, k, threads) for query in timed])
    batches = [_milliseconds(engine, timed, answerer, k, threads) for _ in range(_BATCHES)]
    return summarise(alone, batches)


def summarise(alone: Floats, batches: Sequence[float]) -> Latency:
    """The figures of single queries' milliseconds [queries], and of batches of all of them."""
    p50, p95, p99 = np.percentile(alone, (50, 95, 99), method="inverted_cdf").tolist()
    mean = float(np.mean(alone))
    batch = float(np.median(batches)) / len(alone)
    return Latency(len(alone), mean, p50, p95, p99, 1e3 / max(mean, 1e-9), batch, 1e3 / max(batch, 1e-9))


def _milliseconds(engine: Memory, queries: Sequence[Query], answerer: Answerer, k: int, threads: int) -> float:
    started = time.perf_counter()
    engine.search(queries, k, strategy=answerer, threads=threads)
    return 1e3 * (time.perf_counter() - started)
