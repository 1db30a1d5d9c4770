"""The counts behind ``/metrics``: of requests, searches, launches and writes, and the state of the memory.

Labels come from bounded sets alone: templates of addresses, names of strategies, phases and problems. No label holds
anything that a tenant chooses, such as a namespace, a key, an id or a text.

Each application has a registry of its own, so that two of them in one process do not add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.engine import Engine
from ..engine.hybrid.strategy import STRATEGIES
from ..engine.records.hits import Hits
from .seen import Seen, name_strategy

OTHER = "other"
"""The label of what lies outside of a bounded set."""
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
PHASES = frozenset((
    "prepare", "analyse", "plan", "derive", "score and select", "serve", "convert", "parse", "encode", "dense",
    "context", "fuse", "feedback", "rerank", "newest",
    *(channel.name for strategy in STRATEGIES.values() for channel in strategy.channels),
))  # fmt: skip
"""Phases of a launch. A channel that a caller names counts as ``other``."""
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHORT_SECONDS = tuple(4**power * 1e-6 for power in range(12))
"""Upper ends of the buckets of a phase within a launch: 1 us to 4 s. The shortest phases take microseconds."""
LAUNCH_QUERIES = tuple(float(2**power) for power in range(11))
RESTS = 20
"""The memory's sizes are read again after so many times as long as they took: a read costs 35 us a namespace, which is
170 ms for 5,000, and so no more than a twentieth of one core whoever asks how often."""

SIZES = {
    "fanrank_records": ("documents", "Records that are live."),
    "fanrank_deleted_records": ("deleted", "Deleted records that no merge has left out of the index yet."),
    "fanrank_namespaces": ("namespaces", "Namespaces that have a record."),
    "fanrank_segments": ("segments", "Segments of the index, over all namespaces."),
    "fanrank_merging": ("merging", "Whether the background thread merges segments now: 1 or 0."),
    "fanrank_store_bytes": ("store_bytes", "Bytes of the directory's files. A memory without a directory has none."),
}
"""Gauges: their name, their key of `Engine.stats`, and what they say."""
WORK = {
    "fanrank_written_batches": ("writes", "Batches that were written."),
    "fanrank_commits": ("commits", "States of the index that were published."),
    "fanrank_merges": ("merges", "Merges of segments."),
    "fanrank_checkpoints": ("checkpoints", "Checkpoints, after which the log begins anew."),
}
"""Counters, likewise."""
LAUNCHED = {
    "fanrank_launches": ("launches", "Launches: searches that answer one or more waiting requests together."),
    "fanrank_launched_calls": ("callers", "Calls that launches answered."),
    "fanrank_launched_queries": ("queries", "Queries that launches answered."),
    "fanrank_shared_queries": ("shared", "Queries that took the answer of an equal one of their launch."),
    "fanrank_cancelled_calls": ("cancelled", "Calls whose client went away before they were answered."),
    "fanrank_expired_calls": ("expired", "Calls whose deadline passed before they were answered."),
}
"""Counters: their name, their key of `Coalescer.stats`, and what they say."""
PARTS = ("posting", "evidence", "vector", "id", "column", "deleted", "vocabulary", "cache", "device")


class Metrics(Collector):
    """What one application counts. Its methods may be called from any thread."""

    def __init__(self, engine: Engine, titles: Iterable[str]) -> None:
        """`titles` are the problems that have a count of their own."""
        self.engine, self.titles = engine, frozenset(titles)
        self.dropped_lines: Callable[[], int] = lambda: 0
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        made: dict[str, Any] = {"registry": registry}
        self._requests = Counter("fanrank_requests", "Requests that ended.", ("method", "route", "status"), **made)
        self._request_seconds = Histogram(
            "fanrank_request_seconds", "Time from a request's head to the end of its answer.", ("route",),
            buckets=SECONDS, **made,
        )  # fmt: skip
        self._received = Counter("fanrank_received_bytes", "Bytes of requests' bodies.", ("route",), **made)
        self._sent = Counter("fanrank_sent_bytes", "Bytes of answers' bodies.", ("route",), **made)
        self._rejected = Counter(
            "fanrank_rejected", "Requests that ended with a problem, by its title.", ("reason",), **made
        )
        self.in_flight = Gauge("fanrank_requests_in_flight", "Requests under way.", **made)
        self.body_bytes = Gauge("fanrank_body_bytes", "Bytes of requests' bodies that are held.", **made)
        self.ready = Gauge("fanrank_ready", "Whether searches are answered from the index: 1 or 0.", **made)
        self._search_seconds = Histogram(
            "fanrank_search_seconds",
            "Time of a searching request, by phase: read (until it asks the engine), search (until it has its hits), "
            "answer (until the answer is sent).",
            ("phase", "strategy"), buckets=SECONDS, **made,
        )  # fmt: skip
        self._queries = Counter("fanrank_queries", "Queries that requests were answered.", ("strategy",), **made)
        self._hits = Counter("fanrank_hits", "Hits that requests were answered with.", ("strategy",), **made)
        self._phase_seconds = Histogram(
            "fanrank_launch_phase_seconds", "Time of a launch, by the engine's phase.", ("phase", "strategy"),
            buckets=SHORT_SECONDS, **made,
        )  # fmt: skip
        self._launch_queries = Histogram(
            "fanrank_launch_queries", "Queries of a launch.", buckets=LAUNCH_QUERIES, **made
        )
        self._write_seconds = Histogram(
            "fanrank_write_seconds", "Time of a write, until it is on disk.", ("operation",), buckets=SECONDS, **made
        )
        self._records = Counter(
            "fanrank_changed_records", "Records that requests wrote or deleted.", ("operation",), **made
        )
        registry.register(_State(engine))
        # A series is looked up by its labels once. `labels` takes a lock and 1 us, and a request needs ten.
        self._series: dict[tuple[Any, ...], Any] = {}

    def count_request(self, seen: Seen, method: str, status: str, received: int, sent: int, now: float) -> None:
        """Count a request that ended at `now`."""
        route, find = seen.route or OTHER, self._find
        find(self._requests, method if method in METHODS else OTHER, route, status).inc()
        find(self._request_seconds, route).observe(now - seen.began)
        if received:
            find(self._received, route).inc(received)
        find(self._sent, route).inc(sent)
        if seen.problem is not None:
            self.count_rejected(seen.problem)
        for operation, records, seconds in seen.writes:
            find(self._write_seconds, operation).observe(seconds)
            find(self._records, operation).inc(records)
        if seen.strategy is not None:
            strategy = seen.strategy
            for phase, seconds in (
                ("read", seen.search_began - seen.began),
                ("search", seen.search_seconds),
                ("answer", now - seen.search_ended),
            ):
                find(self._search_seconds, phase, strategy).observe(seconds)
            find(self._queries, strategy).inc(seen.queries)
            find(self._hits, strategy).inc(seen.hits)

    def count_rejected(self, title: str) -> None:
        """Count a request that ended with this problem."""
        self._find(self._rejected, title if title in self.titles else OTHER).inc()

    def count_launch(self, hits: Hits, strategy: Any) -> None:
        """Count a launch with the times of its phases."""
        self._launch_queries.observe(len(hits))
        name = name_strategy(strategy, hits.queries)
        for phase, milliseconds in (hits.timing or {}).items():
            series = self._find(self._phase_seconds, phase if phase in PHASES else OTHER, name)
            series.observe(milliseconds * 1e-3)

    def _find(self, metric: Any, *labels: str) -> Any:
        key = (metric, labels)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = metric.labels(*labels)
        return series

    def collect(self) -> Iterator[Metric]:
        """Every metric, without the series that say when each one was made: they would double the answer."""
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        yield CounterMetricFamily(
            "fanrank_dropped_log_lines", "Lines of the log that nobody took in time.", value=float(self.dropped_lines())
        )

    def write(self) -> bytes:
        """All metrics in Prometheus' text format. It reads the sizes of the memory, so call it in a thread."""
        return generate_latest(self)


class _State(Collector):
    """Collects the state of the engine at the moment of the request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = Lock()
        self._stats: Mapping[str, Any] = {}
        self._fresh_until = 0.0

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that no state is read when the collector is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        stats, launched = self._read(), self.engine.coalescer.stats()
        for name, (key, text) in SIZES.items():
            yield GaugeMetricFamily(name, text, value=float(stats.get(key, 0)))
        for name, (key, text) in WORK.items():
            yield CounterMetricFamily(name, text, value=float(stats.get(key, 0)))
        for name, (key, text) in LAUNCHED.items():
            yield CounterMetricFamily(name, text, value=float(launched[key]))  # type: ignore[literal-required]
        yield GaugeMetricFamily(
            "fanrank_waiting_queries", "Queries that wait for a launch.", value=float(launched["waiting"])
        )
        size = GaugeMetricFamily(
            "fanrank_memory_bytes", "Bytes in memory, by part. Files that are mapped count in full.", labels=("part",)
        )
        for part in PARTS:
            size.add_metric((part,), float(stats.get(f"{part}_bytes", 0)))
        yield size
        yield GaugeMetricFamily(
            "fanrank_log_lag", "Changes that are in the log and in no checkpoint yet. A start applies them again.",
            value=float(stats.get("sequence", 0) - stats.get("checkpointed", 0)),
        )  # fmt: skip
        yield GaugeMetricFamily(
            "fanrank_background_failed", "Whether the last merge or checkpoint in the background failed: 1 or 0.",
            value=float(stats.get("background_error") is not None),
        )  # fmt: skip
        info = GaugeMetricFamily("fanrank_backend_info", "1, with the name of what serves.", labels=("backend",))
        info.add_metric((str(stats["backend"]),), 1.0)
        yield info

    def _read(self) -> Mapping[str, Any]:
        with self._lock:
            began = time.monotonic()
            if began >= self._fresh_until:
                self._stats = self.engine.stats()
                ended = time.monotonic()
                self._fresh_until = ended + RESTS * (ended - began)
            return self._stats
