"""One batch: queries in, hits out. Reads snapshots, never a lock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .backend import EXECUTIONS, Backend
from .bm25 import SCALE
from .decay import rate_of
from .errors import ParameterError, QueryError, UnknownIdError
from .explain import Explanation, explain
from .filters import EVERYTHING, Comparison, CompiledFilter, Filter, all_of, compile_filter
from .index import Place, Snapshot, window_start
from .memory import Memory
from .plan import Plan, Request, document_range, make_plan
from .records import DEFAULT_K, Hits, Query, check_k
from .timing import Phases

# Places for hits in one batch: 2 GiB for each array of the answer.
MAX_HITS = 1 << 28

AnyQuery = str | Query | Sequence[str]
Corpus = tuple[str, CompiledFilter]
"""A namespace, and the filter whose records make up the statistics (`EVERYTHING`: all of it)."""


@dataclass(frozen=True)
class Asked:
    """A query with everything decided that does not depend on its terms."""

    query: Query
    k: int
    corpus: Corpus
    filter: CompiledFilter
    since: float
    until: float
    rate: float

    @property
    def key(self) -> object:
        """Equal for queries with equal answers."""
        query = self.query
        terms = None if query.terms is None else tuple(query.terms)
        now = query.now if self.rate else None
        return query.text, terms, self.k, self.corpus, self.filter, self.since, self.until, self.rate, now


def search(
    memory: Memory,
    backend: Backend,
    queries: Sequence[AnyQuery],
    k: int = DEFAULT_K,
    *,
    threads: int = 1,
    execution: str = "auto",
    timing: bool = False,
    windows: Callable[[str], int],
) -> Hits:
    """As `Engine.search`. `windows` gives each namespace's k*."""
    batch = as_queries(queries, "search")
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ParameterError(f"threads must be 1 or more, not {threads!r}")
    if execution not in EXECUTIONS:
        raise ParameterError(f"unknown execution {execution!r}; there are: {', '.join(EXECUTIONS)}")
    k = check_k(k)
    # The snapshots come before the analysis: a term numbered meanwhile is then in no posting list of theirs.
    snapshots = memory.snapshots
    asked = [_decide(memory, snapshots, query, k, windows) for query in batch]
    width = max((one.k for one in asked), default=k)
    if max(len(batch), 1) * width > MAX_HITS:
        raise QueryError(f"{len(batch)} queries with k = {width} are more than {MAX_HITS:,} places; ask for fewer")
    # Agents repeat themselves: equal queries are answered once.
    seen: dict[object, int] = {}
    source = [seen.setdefault(one.key, row) for row, one in enumerate(asked)]
    rows_of: dict[Corpus, list[int]] = {}
    for row in seen.values():
        if batch[row].namespace in snapshots:
            rows_of.setdefault(asked[row].corpus, []).append(row)
    phases = Phases()
    with phases("analyse"):
        terms = {row: analyse(memory, batch[row]) for rows in rows_of.values() for row in rows}
    with phases("plan"):
        corpora = {corpus: _corpus(snapshots, corpus) for corpus in rows_of}
        plans = {
            corpus: make_plan(corpora[corpus][0], [_request(asked[row], row, terms[row]) for row in rows])
            for corpus, rows in rows_of.items()
        }
    served, (quanta, documents, counts) = backend.serve(
        tuple(plans.values()),
        len(batch),
        width,
        threads=threads,
        execution=execution,
        phases=phases if timing else None,
    )
    scores = quanta / SCALE
    for corpus, plan in plans.items():
        faded = plan.rows[plan.rates > 0]
        scores[faded] = quanta[faded].view(np.float64) / SCALE
        numbers = corpora[corpus][1]
        if numbers is not None:
            own = documents[plan.rows]
            documents[plan.rows] = np.where(own >= 0, numbers[np.maximum(own, 0)] if len(numbers) else -1, -1)
    if len(seen) < len(batch):
        scores, documents, counts = scores[source], documents[source], counts[source]
    scores[documents < 0] = -np.inf
    spaces = np.array([query.namespace for query in batch], dtype=object)

    # Not the mapping itself: an answer should not keep other tenants' snapshots alive.
    held = {namespace: snapshots[namespace] for namespace, _ in plans}

    def resolve(documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        ids = np.full(documents.shape, None, dtype=object)
        for namespace, snapshot in held.items():
            present = (documents >= 0) & (spaces == namespace)[:, None]
            ids[present] = snapshot.ids_of(documents[present])
        return ids

    def explain_hit(position: int, record_id: str) -> Explanation:
        if not -len(batch) <= position < len(batch):
            raise QueryError(f"no query {position} in a batch of {len(batch)}")
        position %= len(batch)
        corpus = asked[position].corpus
        if corpus not in plans:
            raise _unknown(record_id, asked[position].query.namespace)
        row = rows_of[corpus].index(source[position])
        return _explain(memory, held, plans[corpus], row, position, record_id, asked[position])

    found = phases.milliseconds if timing else None
    postings = phases.counts.get("postings") if timing else None
    return Hits(scores, documents, counts, batch, served, resolve, explain_hit, found, postings)


def _decide(
    memory: Memory,
    snapshots: Mapping[str, Snapshot],
    query: Query,
    k: int,
    windows: Callable[[str], int],
) -> Asked:
    if query.half_life is not None and memory.bm25.signed:
        raise QueryError(
            f"half_life needs scores that are not negative (X03), and method {memory.bm25.method!r} has some; "
            "use lucene, robertson_floor0, bm25l or bm25+"
        )
    since = -math.inf if query.since is None else float(query.since)
    until = math.inf if query.until is None else float(query.until)
    if query.windows is not None and query.namespace in snapshots:
        newest = windows(query.namespace) if query.windows == "auto" else int(query.windows)
        start, end = newest_windows(snapshots[query.namespace], newest, memory.window, query.now)
        since, until = max(since, start), min(until, end)
    accepted = compile_filter(scoped(query), memory.schema, memory.values)
    apart = query.statistics == "filtered"
    return Asked(
        query,
        k_of(query, k),
        (query.namespace, accepted if apart else EVERYTHING),
        EVERYTHING if apart else accepted,
        since,
        until,
        0.0 if query.half_life is None else rate_of(float(query.half_life)),
    )


def k_of(query: Query, k: int) -> int:
    """The hits that a query asks for: its own k, else its scope's limit, else the batch's k."""
    limit = query.scope.limit if query.scope is not None else None
    return query.k if query.k is not None else k if limit is None else limit


def scoped(query: Query) -> Filter | None:
    """The query's filter and its scope, together."""
    own = query.filter
    assert own is None or isinstance(own, Filter)
    scope = query.scope
    if scope is None or scope.column is None:
        return own
    return all_of(Comparison(scope.column, "==", scope.id), own)


def newest_windows(snapshot: Snapshot, count: int, window: float, now: float | None) -> tuple[float, float]:
    """(start, end) of the `count` newest time windows that hold a record, up to that of `now`; seconds, closed.

    The end is infinite where no record lies beyond that window, so that queries of one day share a range. Without any
    record in time, nothing lies between the two.
    """
    last = math.inf if now is None else math.floor(now / window)
    start = snapshot.newest_windows(count, window, last)
    if start == math.inf:
        return math.inf, -math.inf
    if now is None:
        return start, math.inf
    _, latest = snapshot.spans
    following = window_start(last + 1, window)
    return start, math.nextafter(following, -math.inf) if (latest >= following).any() else math.inf


def events(
    memory: Memory, namespace: str, since: float, until: float, accepted: CompiledFilter
) -> list[tuple[str, float]]:
    """As `Engine.events`."""
    snapshot = memory.snapshot(namespace)
    numbers, times = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for number, segment in enumerate(snapshot.segments):
        low, high, inside = document_range(segment, since, until)
        if low >= high or segment.times is None:
            continue
        masks = [mask[low:high] for mask in (inside, snapshot.alive(number)) if mask is not None]
        kept = np.logical_and.reduce([segment.passing(accepted)[low:high], *masks])
        positions = low + np.flatnonzero(kept)
        numbers.append(snapshot.firsts[number] + positions)
        times.append(segment.times[positions])
    documents, moments = np.concatenate(numbers), np.concatenate(times)
    order = np.lexsort((-documents, -moments))
    return list(zip(snapshot.ids_of(documents[order]).tolist(), moments[order].tolist(), strict=True))


def window_ranks(snapshot: Snapshot, places: Sequence[Place], window: float, now: float | None) -> list[int]:
    """The age rank of each document's time window among those that hold a record, 0 the newest up to that of `now`.

    Documents without a time, or in a later window, are left out.
    """
    windows = [snapshot.windows(segment, window) for segment in range(len(snapshot.segments))]
    held = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *windows]))
    if now is not None:
        held = held[held <= math.floor(now / window)]
    ranks = []
    for place in places:
        times = snapshot.segments[place.segment].times
        time = math.nan if times is None else float(times[place.position])
        if not math.isnan(time) and len(held) and math.floor(time / window) <= held[-1]:
            ranks.append(len(held) - 1 - int(np.searchsorted(held, math.floor(time / window))))
    return ranks


def _corpus(snapshots: Mapping[str, Snapshot], corpus: Corpus) -> tuple[Snapshot, npt.NDArray[np.int64] | None]:
    """The snapshot that a corpus stands for, and the namespace's number of each of its documents (None: the same)."""
    namespace, accepted = corpus
    if accepted is EVERYTHING:
        return snapshots[namespace], None
    return snapshots[namespace].filtered(accepted)


def _request(asked: Asked, row: int, terms: Sequence[int]) -> Request:
    now = 0.0 if asked.query.now is None else float(asked.query.now)
    return Request(row, terms, asked.k, asked.filter, asked.since, asked.until, now, asked.rate)


def analyse(memory: Memory, query: Query) -> list[int]:
    """The vocabulary ids of a query's terms, repeats kept; unknown terms left out."""
    if query.terms is not None:
        return memory.encoder.encode_terms(query.terms)
    return memory.encoder.encode_query(query.text)


def as_queries(queries: Sequence[AnyQuery], verb: str) -> tuple[Query, ...]:
    """The queries of a batch. Raises `QueryError`."""
    if isinstance(queries, (str, Query, Mapping)) or not isinstance(queries, Iterable):
        raise QueryError(f"{verb} takes a batch: pass a list of queries")
    return tuple(as_query(query, position) for position, query in enumerate(queries))


def as_query(query: AnyQuery, position: int) -> Query:
    if isinstance(query, Query):
        return query
    if isinstance(query, str):
        return Query(query)
    if isinstance(query, Sequence) and not isinstance(query, (bytes, bytearray)):
        return Query(terms=tuple(query))
    raise QueryError(f"query {position} must be a string, a Query or a sequence of terms, not {type(query).__name__}")


def _explain(
    memory: Memory,
    snapshots: Mapping[str, Snapshot],
    plan: Plan,
    row: int,
    query: int,
    record_id: str,
    asked: Asked,
) -> Explanation:
    namespace = snapshots[asked.query.namespace]
    live = namespace.find(record_id)
    if live is None:
        raise _unknown(record_id, asked.query.namespace)
    place = plan.snapshot.find(record_id)
    passed = place is not None and _passes(plan.snapshot, place, asked)
    terms = [memory.encoder.vocabulary.strings[term] for term in plan.terms.tolist()]
    fields = list(memory.bm25.fields)
    explained = explain(plan, row, query, record_id, place, passed, terms, fields)
    # The namespace's number, as the hits have it, also where the plan is over the filtered records alone.
    return replace(explained, document=namespace.firsts[live.segment] + live.position)


def _passes(snapshot: Snapshot, place: Place, asked: Asked) -> bool:
    """Whether the document passes the query's filter and time range."""
    segment = snapshot.segments[place.segment]
    if asked.filter is not EVERYTHING and not segment.passing(asked.filter)[place.position]:
        return False
    if asked.since == -math.inf and asked.until == math.inf:
        return True
    return segment.times is not None and bool(asked.since <= segment.times[place.position] <= asked.until)


def _unknown(record_id: str, namespace: str) -> UnknownIdError:
    where = f" in namespace {namespace!r}" if namespace else ""
    return UnknownIdError(f"no live record with id {record_id!r}{where}")
