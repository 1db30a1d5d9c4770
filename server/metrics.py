"""The counts behind ``/metrics``: of requests, searches, launches and writes, and the state of the memory.

Labels come from bounded sets alone: templates of addresses, names of strategies, phases and problems. No label holds
anything that a tenant chooses, such as a namespace, a key, an id or a text.

Each application has counts of its own, so that two of them in one process do not add up.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from ..engine.errors import DeadlineError, ShardError
from ..engine.hybrid.strategy import NAMED
from ..engine.memory import Memory
from ..engine.records.hits import Hits
from .exposition import Family, Histogram, Labels, write_text
from .seen import Seen, name_strategy

OTHER = "other"
"""The label of what lies outside of a bounded set."""
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
PHASES = frozenset((
    "prepare", "analyse", "plan", "derive", "score and select", "serve", "convert", "parse", "encode", "dense",
    "context", "fuse", "feedback", "rerank", "newest", "first bm25", "decide",
    *(channel.name for strategy in NAMED.values() for channel in strategy.channels),
))  # fmt: skip
"""Phases of a launch. A channel that a caller names counts as ``other``."""
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHORT_SECONDS = tuple(4**power / 1_000_000 for power in range(12))
"""Upper ends of the buckets of a phase within a launch: 1 us to 4 s. The shortest phases take microseconds."""
LAUNCH_QUERIES = tuple(2**power for power in range(11))
RESTS = 20
"""The memory's sizes are read again after so many times as long as they took: a read costs 35 us a namespace, which is
170 ms for 5,000, and so no more than a twentieth of one core whoever asks how often."""
LATE_PAUSE = 5.0
"""Seconds until shards that did not answer are asked for their sizes again."""

SIZES = {
    "fanrank_records": ("documents", "Records that are live."),
    "fanrank_deleted_records": ("deleted", "Deleted records that no merge has left out of the index yet."),
    "fanrank_namespaces": ("namespaces", "Namespaces that have a record."),
    "fanrank_segments": ("segments", "Segments of the index, over all namespaces."),
    "fanrank_merging": ("merging", "Whether the background thread merges segments now: 1 or 0."),
    "fanrank_store_bytes": ("store_bytes", "Bytes of the directory's files; 0 for a memory without a directory."),
}
"""Gauges: their name, their key of `Engine.stats`, and what they say."""
WORK = {
    "fanrank_written_batches_total": ("writes", "Batches that were written."),
    "fanrank_commits_total": ("commits", "States of the index that were published."),
    "fanrank_merges_total": ("merges", "Merges of segments."),
    "fanrank_checkpoints_total": ("checkpoints", "Checkpoints, after which the log begins anew."),
}
"""Counters, likewise."""
LAUNCHED = {
    "fanrank_launches_total": ("launches", "Launches: searches that answer the calls that wait together."),
    "fanrank_launched_calls_total": ("callers", "Calls that launches answered."),
    "fanrank_launched_queries_total": ("queries", "Queries that launches answered."),
    "fanrank_shared_queries_total": ("shared", "Queries that took the answer of an equal one of their launch."),
    "fanrank_cancelled_calls_total": ("cancelled", "Calls whose client went away before they were answered."),
    "fanrank_expired_calls_total": ("expired", "Calls whose deadline passed before they were answered."),
}
"""Counters: their name, their key of `Coalescer.stats`, and what they say."""
BY_SHARD = {
    "fanrank_shard_records": ("gauge", "documents", "Records of a shard that are live."),
    "fanrank_shard_bytes": ("gauge", "bytes", "Bytes of a shard's records in memory."),
    "fanrank_shard_store_bytes": ("gauge", "store_bytes", "Bytes of the files of a shard's directory."),
    "fanrank_shard_lag": ("gauge", "lag", "Writes that were sent to a shard and that it has not acknowledged."),
    "fanrank_shard_queries_total": ("counter", "queries", "Queries that a shard answered since it was started."),
    "fanrank_shard_messages_total": ("counter", "messages", "Messages with queries that a shard answered since then."),
}
"""Of a sharded memory, by shard: their name, kind, their key of `ShardedEngine.stats`, and what they say."""
QUANTILES = {"0.5": "p50_ms", "0.99": "p99_ms"}
PARTS = ("posting", "evidence", "vector", "id", "column", "deleted", "vocabulary", "cache", "device")


@dataclass(slots=True)
class _Route:
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    received: int = 0
    sent: int = 0


@dataclass(slots=True)
class _Strategy:
    read: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    search: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    answer: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queries: int = 0
    hits: int = 0


@dataclass(slots=True)
class _Operation:
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    records: int = 0


class Metrics:
    """What one application counts. Its methods may be called from any thread."""

    def __init__(self, engine: Memory, titles: Iterable[str]) -> None:
        """`titles` are the problems that have a count of their own."""
        self.engine, self.titles = engine, frozenset(titles)
        self.disk_full = False
        """Whether the last write was refused, as the disk was full."""
        self.refused_writes = 0
        """Writes that were refused for that."""
        self.dropped_lines: Callable[[], int] = lambda: 0
        self._lock = Lock()
        self._requests: dict[Labels, int] = {}
        self._routes: dict[str, _Route] = {}
        self._strategies: dict[str, _Strategy] = {}
        self._operations: dict[str, _Operation] = {}
        self._rejected: dict[str, int] = {}
        self._phases: dict[tuple[str, str], Histogram] = {}
        self._launch_queries = Histogram(LAUNCH_QUERIES)
        self._reading = Lock()
        self._stats: Mapping[str, Any] = {}
        self._late = False
        self._fresh_until = 0.0

    def count_request(self, seen: Seen, method: str, status: str, received: int, sent: int, now: float) -> None:
        """Count a request that ended at `now`, with the bytes of its body and of its answer's."""
        name = seen.route or OTHER
        key = (method if method in METHODS else OTHER, name, status)
        with self._lock:
            self._requests[key] = self._requests.get(key, 0) + 1
            route = self._routes.get(name) or self._routes.setdefault(name, _Route())
            route.seconds.add(now - seen.began)
            route.received += received
            route.sent += sent
            if seen.problem is not None:
                self._reject(seen.problem)
            if seen.strategy is not None:
                searched = self._strategies.get(seen.strategy)
                if searched is None:
                    searched = self._strategies[seen.strategy] = _Strategy()
                searched.read.add(seen.search_began - seen.began)
                searched.search.add(seen.search_seconds)
                searched.answer.add(now - seen.search_ended)
                searched.queries += seen.queries
                searched.hits += seen.hits
            for operation, records, seconds in seen.writes:
                written = self._operations.setdefault(operation, _Operation())
                written.seconds.add(seconds)
                written.records += records

    def count_rejected(self, title: str) -> None:
        """Count a request that ended with this problem, or a connection that was turned away."""
        with self._lock:
            self._reject(title)

    def _reject(self, title: str) -> None:
        title = title if title in self.titles else OTHER
        self._rejected[title] = self._rejected.get(title, 0) + 1

    def count_launch(self, hits: Hits, strategy: Any) -> None:
        """Count a launch with the times of its phases."""
        name = name_strategy(strategy, hits.queries)
        with self._lock:
            self._launch_queries.add(len(hits))
            for phase, milliseconds in (hits.timing or {}).items():
                key = (phase if phase in PHASES else OTHER, name)
                seconds = self._phases.get(key)
                if seconds is None:
                    seconds = self._phases[key] = Histogram(SHORT_SECONDS)
                seconds.add(milliseconds * 1e-3)

    def write(self, in_flight: int, body_bytes: int, ready: bool) -> str:
        """As `families`, as text."""
        return write_text(self.families(in_flight, body_bytes, ready))

    def families(self, in_flight: int, body_bytes: int, ready: bool) -> list[Family]:
        """All metrics. It reads the sizes of the memory, so call it in a thread.

        The state of the server is given: requests under way, bytes of bodies that are held, whether it is ready.
        """
        now = [
            _gauge("fanrank_requests_in_flight", "Requests under way.", in_flight),
            _gauge("fanrank_body_bytes", "Bytes of requests' bodies that are held.", body_bytes),
            _gauge("fanrank_ready", "Whether searches are answered from the index: 1 or 0.", ready),
            _gauge("fanrank_disk_full", "Whether the disk was full at the last write: 1 or 0.", self.disk_full),
            _gauge("fanrank_refused_writes", "Writes that were refused, as the disk was full.", self.refused_writes),
            _counter("fanrank_dropped_log_lines_total", "Lines of the log that nobody took in time.",
                     self.dropped_lines()),
        ]  # fmt: skip
        state = list(self._state())
        with self._lock:
            counted = [*self._requested(), *self._searched()]
        return [*counted, *now, *state, *_process()]

    def _requested(self) -> Iterator[Family]:
        routes, operations = self._routes.items(), self._operations.items()
        yield Family(
            "fanrank_requests_total", "counter", "Requests that ended.", ("method", "route", "status"),
            dict(self._requests),
        )  # fmt: skip
        yield Family(
            "fanrank_request_seconds", "histogram", "Time from a request's head to the end of its answer.", ("route",),
            {(name,): route.seconds.copy() for name, route in routes},
        )  # fmt: skip
        yield Family(
            "fanrank_received_bytes_total", "counter", "Bytes of requests' bodies.", ("route",),
            {(name,): route.received for name, route in routes},
        )  # fmt: skip
        yield Family(
            "fanrank_sent_bytes_total", "counter", "Bytes of answers' bodies.", ("route",),
            {(name,): route.sent for name, route in routes},
        )  # fmt: skip
        yield Family(
            "fanrank_rejected_total", "counter", "Requests that ended with a problem, by its title.", ("reason",),
            {(title,): count for title, count in self._rejected.items()},
        )  # fmt: skip
        yield Family(
            "fanrank_write_seconds", "histogram", "Time of a write, until it is on disk.", ("operation",),
            {(name,): written.seconds.copy() for name, written in operations},
        )  # fmt: skip
        yield Family(
            "fanrank_changed_records_total", "counter", "Records that requests wrote or deleted.", ("operation",),
            {(name,): written.records for name, written in operations},
        )  # fmt: skip

    def _searched(self) -> Iterator[Family]:
        strategies = self._strategies.items()
        yield Family(
            "fanrank_search_seconds",
            "histogram",
            "Time of a searching request: read (until it asks the engine), search (until it has its hits), "
            "answer (until the answer is sent).",
            ("phase", "strategy"),
            {
                (phase, name): seconds.copy()
                for name, one in strategies
                for phase, seconds in (("read", one.read), ("search", one.search), ("answer", one.answer))
            },
        )
        yield Family(
            "fanrank_queries_total", "counter", "Queries that were answered.", ("strategy",),
            {(name,): one.queries for name, one in strategies},
        )  # fmt: skip
        yield Family(
            "fanrank_hits_total", "counter", "Hits of these queries.", ("strategy",),
            {(name,): one.hits for name, one in strategies},
        )  # fmt: skip
        yield Family(
            "fanrank_launch_phase_seconds", "histogram", "Time of a launch in each phase of the engine.",
            ("phase", "strategy"), {key: seconds.copy() for key, seconds in self._phases.items()},
        )  # fmt: skip
        yield Family(
            "fanrank_launch_queries", "histogram", "Queries of a launch.", (), {(): self._launch_queries.copy()}
        )

    def _state(self) -> Iterator[Family]:
        stats, launched = self._read(), self.engine.coalescer.stats()
        for name, (key, text) in LAUNCHED.items():
            yield _counter(name, text, launched[key])  # type: ignore[literal-required]
        yield _gauge("fanrank_waiting_queries", "Queries that wait for a launch.", launched["waiting"])
        for name, (key, text) in SIZES.items():
            yield _gauge(name, text, stats.get(key, 0))
        for name, (key, text) in WORK.items():
            yield _counter(name, text, stats.get(key, 0))
        yield Family(
            "fanrank_memory_bytes", "gauge", "Bytes in memory, by part. Files that are mapped count in full.",
            ("part",), {(part,): stats.get(f"{part}_bytes", 0) for part in PARTS},
        )  # fmt: skip
        yield _gauge(
            "fanrank_log_lag", "Changes that are in the log and in no checkpoint yet. A start applies them again.",
            stats.get("sequence", 0) - stats.get("checkpointed", 0),
        )  # fmt: skip
        yield _gauge(
            "fanrank_background_failed", "Whether the last merge or checkpoint in the background failed: 1 or 0.",
            stats.get("background_error") is not None,
        )  # fmt: skip
        yield _gauge(
            "fanrank_sizes_late", "Whether the sizes are of an earlier moment, as a shard did not answer: 1 or 0.",
            self._late,
        )  # fmt: skip
        yield from _shards(stats.get("shards", ()))
        yield Family(
            "fanrank_backend_info", "gauge", "1, with what serves.", ("backend",), {(stats.get("backend", ""),): 1}
        )

    def _read(self) -> Mapping[str, Any]:
        with self._reading:
            began = time.monotonic()
            if began >= self._fresh_until:
                try:
                    self._stats, self._late = self.engine.stats(), False
                except (ShardError, DeadlineError):
                    # What this process counts is told all the same.
                    self._late = True
                ended = time.monotonic()
                self._fresh_until = ended + (LATE_PAUSE if self._late else RESTS * (ended - began))
            return self._stats


def _shards(shards: Sequence[Mapping[str, Any]]) -> Iterator[Family]:
    """Sizes, work and times of each shard of a sharded memory."""
    if not shards:
        return
    for name, (kind, key, text) in BY_SHARD.items():
        yield Family(name, kind, text, ("shard",), {(str(own["shard"]),): own.get(key, 0) for own in shards})
    yield Family(
        "fanrank_shard_seconds", "gauge", "Time of a shard's last 1,024 answers to messages, by quantile.",
        ("shard", "quantile"),
        {
            (str(own["shard"]), quantile): own[key] * 1e-3
            for own in shards
            for quantile, key in QUANTILES.items()
            if own[key] is not None
        },
    )  # fmt: skip


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, series={(): value})


def _counter(name: str, text: str, value: float) -> Family:
    return Family(name, "counter", text, series={(): value})


def _process() -> Iterator[Family]:
    """What the system says of the process, by the names that Prometheus' own clients use."""
    yield _counter("process_cpu_seconds_total", "Processor time of the process.", time.process_time())
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        yield _gauge("process_resident_memory_bytes", "Resident memory.", pages * os.sysconf("SC_PAGE_SIZE"))
        yield _gauge("process_open_fds", "Open files, connections among them.", len(os.listdir("/proc/self/fd")))
