"""Counts, latencies, fallbacks and log lines of a namespace's searches, and the drift of its vocabulary.

Sources: SPEC C040 (search metrics and log lines), B014 (vocabulary drift).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError
from ..locks import make_short_lock
from ..records.hits import Hits

logger = logging.getLogger("fanrank")
# Without this handler, Python prints errors in programs that configure no logging.
logger.addHandler(logging.NullHandler())

BUCKETS_PER_OCTAVE = 8
BUCKET_ERROR = 2.0 ** (0.5 / BUCKETS_PER_OCTAVE) - 1.0
"""The largest relative error of a percentile: 4.4 %, the distance from a bucket's middle to its edge."""
# The buckets cover a microsecond to 17 minutes. Latencies outside count in the first or the last bucket.
LOWEST, OCTAVES = 2.0**-20, 30
BUCKETS = BUCKETS_PER_OCTAVE * OCTAVES
HIGHEST = LOWEST * 2.0**OCTAVES

MAX_NAMES = 16
"""How many reasons, backends and failures have counts of their own.

Further ones count as "other", so that memory stays constant.
"""
OTHER = "other"

TOP_TERMS = 5000
DRIFT_THRESHOLD = 0.7
"""How many of the most frequent terms are compared, and the overlap below which they count as drifted (B014)."""

TermArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Latency:
    """Latencies in seconds, as percentiles (None if nothing was counted) and as a histogram.

    A percentile is the geometric middle of the bucket that holds the nearest rank. Between 1 us and 17 min its relative
    error is at most `BUCKET_ERROR`. `buckets` maps a bucket's upper end to its count; empty buckets are left out.
    """

    p50: float | None
    p95: float | None
    p99: float | None
    buckets: Mapping[float, int]


@dataclass(frozen=True)
class HealthReport:
    """The counts of one namespace at one moment.

    - `batch`: the time that a caller waited for a batch, counted once for each batch
    - `query`: the time of the batch divided by its queries, counted once for each query
    - `results`: the number of queries by their number of hits, "0", "1", "2-3", "4-7", ...
    - `fallback_count`: the queries that another path than the chosen one answered, by the reason
    - `backends`: the queries that each backend answered, by its name
    - `failure_count`: the queries that failed, by the class of the error; they are not in `query_count`
    """

    query_count: int
    batch_count: int
    batch: Latency
    query: Latency
    results: Mapping[str, int]
    fallback_count: Mapping[str, int]
    failure_count: Mapping[str, int]
    backends: Mapping[str, int]

    @property
    def fallback_rate(self) -> float:
        """The share of answered queries that a fallback answered; 0 without any query."""
        return sum(self.fallback_count.values()) / self.query_count if self.query_count else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "fallback_rate": self.fallback_rate, "bucket_error": BUCKET_ERROR}

    def __str__(self) -> str:
        """Queries, P95 of a batch and share of fallbacks, in one line."""
        p95 = "none" if self.batch.p95 is None else f"{self.batch.p95 * 1e3:.3g} ms"
        return f"{self.query_count} queries, P95 {p95}, fallback rate {100.0 * self.fallback_rate:.1f} %"


class Health:
    """Counts the searches of one namespace, and logs them. Safe to use from many threads; memory is constant.

    Log lines go to the logger "fanrank": INFO for a batch, WARNING for a fallback, ERROR for a failure. Unless
    `log_texts` is true, they hold no text of a query, a record or an error, because others than the tenant read a log.
    """

    def __init__(self, namespace: str = "", *, log_texts: bool = False) -> None:
        self.namespace = namespace
        self.log_texts = log_texts
        self._queries = 0
        self._batches = 0
        self._batch_buckets = [0] * BUCKETS
        self._query_buckets = [0] * BUCKETS
        # Position n counts the queries with 2**(n - 1) to 2**n - 1 hits, position 0 those without hits.
        self._results = [0] * 65
        self._fallbacks: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._backends: dict[str, int] = {}
        self._lock = make_short_lock()

    def record(
        self,
        queries: int,
        seconds: float,
        results: Sequence[int] | npt.NDArray[np.integer[Any]],
        *,
        backend: str,
        fallback: str | None = None,
        answer: Hits | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Count an answered batch. `results` [queries] are the hits of each query, `seconds` is the whole batch's time.

        `fallback` is the reason why another path than the chosen one answered. The log line alone reads the `answer`,
        at these `rows` (None: all): the queries' scope, and with `log_texts` their texts and best scores.
        """
        hits: list[int]
        if type(results) is list:
            hits = results
        else:
            hits = results.tolist() if isinstance(results, np.ndarray) else list(results)
        batch_bucket = query_bucket = _bucket(seconds)
        if queries != 1:
            query_bucket = _bucket(seconds / queries) if queries else 0
        with self._lock:
            self._queries += queries
            self._batches += 1
            self._batch_buckets[batch_bucket] += 1
            self._query_buckets[query_bucket] += queries
            histogram = self._results
            for bits in map(int.bit_length, hits):
                histogram[bits] += 1
            if backend in self._backends:
                self._backends[backend] += queries
            else:
                _add(self._backends, backend, queries)
            if fallback is not None:
                _add(self._fallbacks, fallback, queries)
        if logger.isEnabledFor(logging.WARNING if fallback is not None else logging.INFO):
            self._log(queries, seconds, hits, backend, fallback, answer, rows)

    def _log(
        self,
        queries: int,
        seconds: float,
        hits: list[int],
        backend: str,
        fallback: str | None,
        answer: Hits | None,
        rows: Sequence[int] | None,
    ) -> None:
        places = rows if rows is not None else range(0 if answer is None else len(answer.queries))
        answered = [] if answer is None else [answer.queries[row] for row in places]
        scopes = {query.scope.column or "all" if query.scope is not None else "all" for query in answered} or {"all"}
        line = "search: queries=%d namespace=%r scope=%s backend=%s latency=%.3fms results=%d"
        values: list[object] = [queries, self.namespace, "+".join(sorted(scopes)), backend, seconds * 1e3, sum(hits)]
        if self.log_texts and answer is not None:
            line += " texts=%r scores=%s"
            texts = [query.text if query.terms is None else " ".join(query.terms) for query in answered]
            best = [answer.scores[row, 0].item() if count else None for row, count in zip(places, hits, strict=True)]
            values += [texts, [None if score is None else float(f"{score:.4g}") for score in best]]
        logger.info(line, *values)
        if fallback is not None:
            logger.warning(line + " fallback=%r", *values, fallback)

    def fail(self, queries: int, error: BaseException, *, backend: str) -> None:
        """Count a batch that failed. An error's message may quote a query, so it is logged only with `log_texts`."""
        name = type(error).__name__
        with self._lock:
            _add(self._failures, name, queries)
        if logger.isEnabledFor(logging.ERROR):
            shown = f"{name}: {error}" if self.log_texts else name
            logger.error(
                "search failed: queries=%d namespace=%r backend=%s error=%s", queries, self.namespace, backend, shown
            )

    def snapshot(self) -> HealthReport:
        """The counts so far, all of one moment."""
        with self._lock:
            queries, batches = self._queries, self._batches
            batch_buckets, query_buckets = self._batch_buckets.copy(), self._query_buckets.copy()
            results = self._results.copy()
            fallbacks, failures, backends = self._fallbacks.copy(), self._failures.copy(), self._backends.copy()
        return HealthReport(
            query_count=queries,
            batch_count=batches,
            batch=_latency(batch_buckets),
            query=_latency(query_buckets),
            results={_hits_label(bits): count for bits, count in enumerate(results) if count},
            fallback_count=fallbacks,
            failure_count=failures,
            backends=backends,
        )


def _add(counts: dict[str, int], name: str, count: int) -> None:
    if name not in counts and len(counts) >= MAX_NAMES:
        name = OTHER
    counts[name] = counts.get(name, 0) + count


def _bucket(seconds: float) -> int:
    if not seconds > LOWEST:  # also true for NaN: counting must never make a search fail
        return 0
    if seconds >= HIGHEST:
        return BUCKETS - 1
    return int(math.log2(seconds / LOWEST) * BUCKETS_PER_OCTAVE)


def _edge(position: float) -> float:
    return float(LOWEST * 2.0 ** (position / BUCKETS_PER_OCTAVE))


def _latency(buckets: list[int]) -> Latency:
    total = sum(buckets)

    def percentile(share: int) -> float | None:
        if not total:
            return None
        rank, seen, position = -(-share * total // 100), 0, -1
        while seen < rank:
            position += 1
            seen += buckets[position]
        return _edge(position + 0.5)

    counts = {_edge(position + 1): count for position, count in enumerate(buckets) if count}
    return Latency(percentile(50), percentile(95), percentile(99), counts)


def _hits_label(bits: int) -> str:
    if bits < 2:
        return str(bits)
    return f"{1 << (bits - 1)}-{(1 << bits) - 1}"


def top_terms(
    terms: npt.NDArray[np.integer[Any]], frequencies: npt.NDArray[np.integer[Any]], limit: int = TOP_TERMS
) -> TermArray:
    """The `limit` most frequent of `terms` [n], int64, ascending. Ties go to the smaller id.

    `frequencies` [n] are their document frequencies. Terms of frequency 0 are left out.
    """
    live = frequencies > 0
    terms, frequencies = terms[live], frequencies[live]
    if len(terms) > limit:
        cut = np.partition(frequencies, len(terms) - limit)[len(terms) - limit] if limit else frequencies.max() + 1
        above = terms[frequencies > cut]
        terms = np.concatenate((above, np.sort(terms[frequencies == cut])[: limit - len(above)]))
    return np.sort(terms).astype(np.int64)


def jaccard(a: npt.NDArray[np.integer[Any]], b: npt.NDArray[np.integer[Any]]) -> float:
    """The Jaccard similarity of two sets of ids: shared ids divided by all ids; 1 for two empty sets."""
    either = len(np.union1d(a, b))
    return len(np.intersect1d(a, b)) / either if either else 1.0


@dataclass(frozen=True)
class DriftReport:
    """How much a namespace's most frequent terms have changed since the previous check.

    `jaccard`, in [0, 1], is the share of terms that both checks have. `drifted` is true if it lies below the threshold;
    `advice` then says what to look at.
    """

    jaccard: float
    drifted: bool
    advice: str


# Sources: B014, A011.
class HealthDrift:
    """Compares a namespace's most frequent terms with those of the previous check, such as last week's.

    The Five Retrievers article rebuilds an index whose idf is stale. fanrank computes scores from live statistics, so
    nothing is stale and the report never asks for a rebuild. It says that choices made for the old words (stop words,
    analyzer, embedding model) may no longer fit. Raises `ParameterError` for a threshold outside [0, 1].
    """

    def __init__(self, threshold: float = DRIFT_THRESHOLD) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0.0 <= threshold <= 1.0:
            raise ParameterError(f"a drift threshold must lie in [0, 1], not {threshold!r}")
        self.threshold = float(threshold)
        self._reference: TermArray | None = None
        self._lock = make_short_lock()

    def check(self, current: TermArray) -> DriftReport:
        """Compare `current`, a result of `top_terms`, with the terms of the last check, and keep it for the next.

        The first check has nothing to compare with. Its `jaccard` is 1, and it is not drifted.
        """
        with self._lock:
            previous, self._reference = self._reference, current.copy()
        shared = 1.0 if previous is None else jaccard(previous, current)
        if shared >= self.threshold:
            return DriftReport(shared, False, "nothing to do")
        return DriftReport(
            shared,
            True,
            f"the most frequent terms share {shared:.2f} with those of the last check, less than {self.threshold:g}: "
            "statistics are live and need no rebuild; look whether stop words and analyzer still fit, and embed anew "
            "if the embedding model does not know the new words",
        )
