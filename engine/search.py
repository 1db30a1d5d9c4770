"""One batch: queries in, hits out. Reads snapshots, never a lock."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .backend import EXECUTIONS, Backend
from .bm25 import SCALE
from .decay import rate_of
from .errors import ParameterError, QueryError, UnknownIdError
from .explain import Explanation, explain
from .filters import EVERYTHING, Comparison, CompiledFilter, Filter, all_of, compile_filter, parse_filter
from .index import Place, Snapshot, window_start
from .learned import SCORE_UNIT, query_terms
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
    def accepted(self) -> CompiledFilter:
        """What the query's filter and scope let pass, whatever its statistics are counted over."""
        return self.filter if self.corpus[1] is EVERYTHING else self.corpus[1]

    def key(self, aged: bool) -> object:
        """Equal for queries with equal answers; `aged`: whether the strategy looks at the query's time."""
        query = self.query
        terms = None if query.terms is None else tuple(query.terms)
        vector = None if query.vector is None else query.vector.tobytes()
        weights = None if query.weights is None else tuple(query.weights.items())
        evidence = query.text, terms, vector, query.model, weights, query.type
        # What else a query is read by, with its time.
        entities, hints = (None if own is None else tuple(own) for own in (query.entities, query.hints))
        read = entities, hints, query.last_session_end, query.timezone, query.scope
        now = (query.now, read) if aged else query.now if self.rate else None
        return evidence, self.k, self.corpus, self.filter, self.since, self.until, self.rate, now


@dataclass(frozen=True, eq=False)
class Batch:
    """Queries with everything decided: against which snapshots, and which rows of the answer are worked out."""

    memory: Memory
    snapshots: Mapping[str, Snapshot]
    """Those that are asked, by namespace."""
    queries: tuple[Query, ...]
    asked: tuple[Asked, ...]
    width: int
    """The largest k."""
    source: tuple[int, ...]
    """The row that holds each query's answer: agents repeat themselves, and equal queries are answered once."""
    rows_of: Mapping[Corpus, list[int]]
    """The rows that are worked out, those of namespaces that hold nothing left out."""

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def rows(self) -> list[int]:
        """All rows of `rows_of`."""
        return [row for rows in self.rows_of.values() for row in rows]

    @property
    def spaces(self) -> npt.NDArray[np.object_]:
        """[queries] the namespace of each."""
        return np.array([query.namespace for query in self.queries], dtype=object)

    def part(self, asked: Sequence[Asked]) -> Batch:
        """The batch of these queries, which are of this one's rows or made of them, over the same snapshots.

        No two of them are taken for equal, as no two rows are.
        """
        width = max((one.k for one in asked), default=0)
        return _batch(self.memory, self.snapshots, asked, width, range(len(asked)))

    def only(self, rows: Collection[int], asked: Mapping[int, Asked] | None = None) -> Batch:
        """The same batch with work for these rows alone, some of them asked otherwise."""
        changed = tuple((asked or {}).get(row, own) for row, own in enumerate(self.asked))
        rows_of: dict[Corpus, list[int]] = {}
        for row in self.rows:
            if row in rows:
                rows_of.setdefault(changed[row].corpus, []).append(row)
        return replace(self, asked=changed, queries=tuple(own.query for own in changed), rows_of=rows_of)

    def narrowed(self, row: int, narrower: Filter) -> Asked:
        """A row's query with one more filter."""
        own = self.asked[row]
        query = replace(own.query, filter=all_of(narrower, parse_filter(own.query.filter)))
        accepted = compile_filter(scoped(query), self.memory.schema, self.memory.values)
        if own.corpus[1] is EVERYTHING:
            return replace(own, query=query, filter=accepted)
        return replace(own, query=query, corpus=(own.corpus[0], accepted))

    def resolver(self) -> Callable[[npt.NDArray[np.int64]], npt.NDArray[np.object_]]:
        """Document numbers [B, n] to ids, of each row's namespace; None for -1."""
        held, spaces = self.snapshots, self.spaces

        def resolve(documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
            ids = np.full(documents.shape, None, dtype=object)
            for namespace, snapshot in held.items():
                present = (documents >= 0) & (spaces == namespace)[:, None]
                ids[present] = snapshot.ids_of(documents[present])
            return ids

        return resolve


@dataclass(frozen=True, eq=False)
class Listed:
    """What one pass over posting lists found, by row of the batch; rows that are not worked out hold padding."""

    served: str
    scores: npt.NDArray[np.float64]  # [B, width] padding -inf
    documents: npt.NDArray[np.int64]  # [B, width] numbers in the namespace, padding -1
    counts: npt.NDArray[np.int32]  # [B]
    plans: Mapping[Corpus, Plan]


def prepare(
    memory: Memory, queries: tuple[Query, ...], k: int, windows: Callable[[str], int], *, aged: bool = False
) -> Batch:
    """Decide all that does not depend on terms or vectors; `aged` as `Asked.key`. Raises `QueryError`."""
    k = check_k(k)
    # The snapshots come before the analysis: a term numbered meanwhile is then in no posting list of theirs.
    snapshots = memory.snapshots
    asked = [_decide(memory, snapshots, query, k, windows) for query in queries]
    seen: dict[object, int] = {}
    source = [seen.setdefault(one.key(aged), row) for row, one in enumerate(asked)]
    return _batch(memory, snapshots, asked, max((one.k for one in asked), default=k), source)


def _batch(
    memory: Memory, snapshots: Mapping[str, Snapshot], asked: Sequence[Asked], width: int, source: Sequence[int]
) -> Batch:
    check_places(len(asked), width)
    rows_of: dict[Corpus, list[int]] = {}
    for row in dict.fromkeys(source):
        if asked[row].query.namespace in snapshots:
            rows_of.setdefault(asked[row].corpus, []).append(row)
    # Of other tenants nothing: an answer keeps what it may have to explain.
    asked_of = {namespace: snapshots[namespace] for namespace, _ in rows_of}
    return Batch(memory, asked_of, tuple(one.query for one in asked), tuple(asked), width, tuple(source), rows_of)


def check_places(queries: int, width: int) -> None:
    """Raise `QueryError` for an answer that memory would not hold."""
    if max(queries, 1) * width > MAX_HITS:
        raise QueryError(f"{queries} queries with k = {width} are more than {MAX_HITS:,} places; ask for fewer")


def listed(
    batch: Batch,
    backend: Backend,
    depths: Mapping[int, int],
    *,
    learned: Mapping[int, Mapping[str, float]] | None = None,
    threads: int,
    execution: str,
    phases: Phases,
    timing: bool,
) -> Listed:
    """The best documents of each row by BM25, or by `learned` weights (by row): ``depths[row]`` of them."""
    memory = batch.memory
    width = max(depths.values(), default=0)
    with phases("analyse"):
        terms: dict[int, tuple[list[int], list[int] | None]] = {
            row: (analyse(memory, batch.queries[row]), None)
            if learned is None
            else query_terms(learned.get(row, {}), memory.weight_terms)
            for row in batch.rows
        }
    with phases("plan"):
        corpora: dict[Corpus, tuple[Snapshot, npt.NDArray[np.int64] | None]] = {
            # Learned weights know no statistics, so it does not matter over what a query counts them.
            corpus: _corpus(batch.snapshots, corpus) if learned is None else (batch.snapshots[corpus[0]].learned, None)
            for corpus in batch.rows_of
        }
        weighted = learned is not None
        plans = {
            corpus: make_plan(
                corpora[corpus][0],
                [_request(batch.asked[row], row, depths[row], *terms[row], learned=weighted) for row in rows],
            )
            for corpus, rows in batch.rows_of.items()
        }
    served, (quanta, documents, counts) = backend.serve(
        tuple(plans.values()),
        len(batch),
        width,
        threads=threads,
        execution=execution,
        phases=phases if timing else None,
    )
    unit = 1.0 / SCALE if learned is None else SCORE_UNIT
    scores = quanta.astype(np.float64) * unit
    for corpus, plan in plans.items():
        faded = plan.rows[plan.rates > 0]
        scores[faded] = quanta[faded].view(np.float64) * unit
        numbers = corpora[corpus][1]
        if numbers is not None:
            own = documents[plan.rows]
            documents[plan.rows] = np.where(own >= 0, numbers[np.maximum(own, 0)] if len(numbers) else -1, -1)
    scores[documents < 0] = -np.inf
    return Listed(served, scores, documents, counts, plans)


def check_how(threads: int, execution: str) -> None:
    """Raise `ParameterError` for a way of searching that there is not."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ParameterError(f"threads must be 1 or more, not {threads!r}")
    if execution not in EXECUTIONS:
        raise ParameterError(f"unknown execution {execution!r}; there are: {', '.join(EXECUTIONS)}")


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
    """As `Engine.search` with the strategy ``bm25``. `windows` gives each namespace's k*."""
    asked = as_queries(queries, "search")
    check_how(threads, execution)
    batch = prepare(memory, asked, k, windows)
    return answer(batch, backend, threads=threads, execution=execution, timing=timing)


def answer(batch: Batch, backend: Backend, *, threads: int, execution: str, timing: bool) -> Hits:
    """The hits of a batch by BM25."""
    phases = Phases()
    depths = {row: batch.asked[row].k for row in batch.rows}
    found = listed(batch, backend, depths, threads=threads, execution=execution, phases=phases, timing=timing)
    scores, documents, counts = spread(batch, found.scores, found.documents, found.counts)
    milliseconds = phases.milliseconds if timing else None
    postings = phases.counts.get("postings") if timing else None
    explainer = explainer_of(batch, found)
    return Hits(
        scores,
        documents,
        counts,
        batch.queries,
        found.served,
        batch.resolver(),
        explainer,
        milliseconds,
        postings,
        distinct=len(set(batch.source)),
    )


def spread(
    batch: Batch,
    scores: npt.NDArray[np.float64],
    documents: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The answer with the batch's width, equal queries' rows copied from the one that was worked out."""
    short = batch.width - scores.shape[1]
    if short > 0:
        scores = np.pad(scores, ((0, 0), (0, short)), constant_values=-np.inf)
        documents = np.pad(documents, ((0, 0), (0, short)), constant_values=-1)
    if list(batch.source) != list(range(len(batch))):
        source = list(batch.source)
        scores, documents, counts = scores[source], documents[source], counts[source]
    return scores, documents, counts


def explainer_of(batch: Batch, found: Listed) -> Callable[[int, str], Explanation]:
    """What explains a record's BM25 score for a query of the batch."""
    memory, held = batch.memory, batch.snapshots

    def explain_hit(position: int, record_id: str) -> Explanation:
        position = position_of(batch, position)
        worked_out = batch.source[position]
        asked = batch.asked[worked_out]
        if asked.corpus not in found.plans:
            raise unknown(record_id, asked.query.namespace)
        row = batch.rows_of[asked.corpus].index(worked_out)
        return _explain(memory, held, found.plans[asked.corpus], row, position, record_id, asked)

    return explain_hit


def position_of(batch: Batch, position: int) -> int:
    """The position in the batch, counted from its start. Raises `QueryError`."""
    if not -len(batch) <= position < len(batch):
        raise QueryError(f"no query {position} in a batch of {len(batch)}")
    return position % len(batch)


def number_of(batch: Batch, position: int, record_id: str) -> int:
    """The document number of a record in the namespace of a query. Raises `UnknownIdError`."""
    namespace = batch.queries[position].namespace
    snapshot = batch.snapshots.get(namespace)
    place = None if snapshot is None else snapshot.find(record_id)
    if snapshot is None or place is None:
        raise unknown(record_id, namespace)
    return snapshot.firsts[place.segment] + place.position


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
        if segment.times is None:
            continue
        positions = np.flatnonzero(passing(snapshot, number, accepted, since, until))
        numbers.append(snapshot.firsts[number] + positions)
        times.append(segment.times[positions])
    documents, moments = np.concatenate(numbers), np.concatenate(times)
    order = np.lexsort((-documents, -moments))
    return list(zip(snapshot.ids_of(documents[order]).tolist(), moments[order].tolist(), strict=True))


def passing(
    snapshot: Snapshot, number: int, accepted: CompiledFilter, since: float, until: float
) -> npt.NDArray[np.bool_]:
    """[documents] which documents of a segment are live, pass the filter and have ``since <= time <= until``."""
    segment = snapshot.segments[number]
    masks = [mask for mask in (snapshot.alive(number),) if mask is not None]
    if accepted is not EVERYTHING:
        masks.append(segment.passing(accepted))
    if since > -math.inf or until < math.inf:
        low, high, inside = document_range(segment, since, until)
        within = np.zeros(segment.size, dtype=np.bool_)
        within[low:high] = True if inside is None else inside[low:high]
        masks.append(within)
    return np.logical_and.reduce(masks) if masks else np.ones(segment.size, dtype=np.bool_)


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


def _request(
    asked: Asked, row: int, k: int, terms: Sequence[int], weights: Sequence[int] | None, *, learned: bool
) -> Request:
    now = 0.0 if asked.query.now is None else float(asked.query.now)
    # A half-life fades BM25 alone.
    accepted, rate = (asked.accepted, 0.0) if learned else (asked.filter, asked.rate)
    return Request(row, terms, k, accepted, asked.since, asked.until, now, rate, weights)


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
        raise unknown(record_id, asked.query.namespace)
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


def unknown(record_id: str, namespace: str) -> UnknownIdError:
    where = f" in namespace {namespace!r}" if namespace else ""
    return UnknownIdError(f"no live record with id {record_id!r}{where}")
