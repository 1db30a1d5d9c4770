"""One batch: queries in, hits out. Reads snapshots, never a lock."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .backend import EXECUTIONS, Backend
from .bm25 import SCALE
from .columns import offsets_of, ranges
from .decay import rate_of
from .errors import ParameterError, QueryError, UnknownIdError
from .explain import Explanation, explain
from .filters import EVERYTHING, Comparison, CompiledFilter, Filter, all_of, compile_filter, parse_filter
from .index import Place, Snapshot, window_start
from .learned import SCORE_UNIT, query_terms
from .memory import Memory
from .plan import Plan, document_range, plan_of
from .records import DEFAULT_K, Hits, Query, check_k
from .request import Limits, Requests
from .timing import Phases
from .vocabulary import Vocabulary

UNKNOWN = -1
# Places for hits in one batch: 2 GiB for each array of the answer.
MAX_HITS = 1 << 28

AnyQuery = str | Query | Sequence[str]
Corpus = tuple[str, CompiledFilter]
"""A namespace, and the filter whose records make up the statistics (`EVERYTHING`: all of it)."""


Integers = npt.NDArray[np.int64]


class Asked(NamedTuple):
    """A query with everything decided that does not depend on its terms."""

    query: Query
    k: int
    corpus: Corpus
    limits: Limits
    """Without the filter where the statistics are the filtered records' own: the corpus has it then."""

    @property
    def accepted(self) -> CompiledFilter:
        """What the query's filter and scope let pass, whatever its statistics are counted over."""
        return self.limits.filter if self.corpus[1] is EVERYTHING else self.corpus[1]


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
            return own._replace(query=query, limits=replace(own.limits, filter=accepted))
        return own._replace(query=query, corpus=(own.corpus[0], accepted))

    def resolver(self) -> Names:
        return Names(self.snapshots, self.queries)


@dataclass(frozen=True, eq=False)
class Names:
    """Document numbers [B, n] to ids, of each query's namespace; None for -1."""

    snapshots: Mapping[str, Snapshot]
    queries: tuple[Query, ...]

    def __call__(self, documents: Integers) -> npt.NDArray[np.object_]:
        ids = np.full(documents.shape, None, dtype=object)
        several = len(self.snapshots) > 1
        spaces = np.array([query.namespace for query in self.queries if several], dtype=object)
        for namespace, snapshot in self.snapshots.items():
            present = documents >= 0
            if several:
                present &= (spaces == namespace)[:, None]
            ids[present] = snapshot.ids_of(documents[present])
        return ids

    def part(self, start: int, stop: int) -> Names:
        own = self.queries[start:stop]
        spaces = {query.namespace for query in own}
        return Names({name: snapshot for name, snapshot in self.snapshots.items() if name in spaces}, own)


@dataclass(frozen=True, eq=False)
class Listed:
    """What one pass over posting lists found, by row of the batch; rows that are not worked out hold padding."""

    served: str
    scores: npt.NDArray[np.float64]  # [B, width] padding -inf
    documents: Integers  # [B, width] numbers in the namespace, padding -1
    counts: npt.NDArray[np.int32]  # [B]
    plans: Mapping[Corpus, Plan]


def prepare(
    memory: Memory, queries: tuple[Query, ...], k: int, windows: Callable[[str], int], *, aged: bool = False
) -> Batch:
    """Decide all that does not depend on terms or vectors. Raises `QueryError`.

    `aged`: whether the strategy looks at the query's time, so that queries of different times differ.
    """
    k = check_k(k)
    # The snapshots come before the analysis: a term numbered meanwhile is then in no posting list of theirs.
    snapshots = memory.snapshots
    # Queries of a batch differ in their words, and mostly in nothing else: what else they say is decided once.
    settled: dict[object, tuple[int, Decided]] = {}
    numbers: dict[Decided, int] = {}
    asked: list[Asked] = []
    source: list[int] = []
    seen: dict[object, int] = {}
    for row, query in enumerate(queries):
        said = _said(query)
        known = settled.get(said)
        if known is None:
            decided = _decide(memory, snapshots, query, k, windows)
            known = settled[said] = numbers.setdefault(decided, len(numbers)), decided
        number, decided = known
        asked.append(Asked(query, *decided))
        source.append(seen.setdefault((number, _evidence(query, aged)), row))
    return _batch(memory, snapshots, asked, max((one.k for one in asked), default=k), source)


_settings = attrgetter("namespace", "k", "filter", "scope", "statistics", "since", "until", "windows", "half_life")


def _said(query: Query) -> object:
    """All that `_decide` reads of a query."""
    settings = _settings(query)
    timed = query.windows is not None or query.half_life is not None
    return (settings, query.now) if timed else settings


_words = attrgetter("text", "model", "type")
_read = attrgetter("now", "entities", "hints", "last_session_end", "timezone", "scope")


def _evidence(query: Query, aged: bool) -> tuple[object, ...]:
    """What an answer depends on beside what `_decide` decides; `aged` as in `prepare`."""
    terms, vector, weights = query.terms, query.vector, query.weights
    return (
        None if terms is None else tuple(terms),
        None if vector is None else vector.tobytes(),
        None if weights is None else tuple(weights.items()),
        _words(query),
        _read(query) if aged else None,
    )


def _batch(
    memory: Memory, snapshots: Mapping[str, Snapshot], asked: Sequence[Asked], width: int, source: Sequence[int]
) -> Batch:
    check_places(len(asked), width)
    rows_of: dict[Corpus, list[int]] = {}
    # By identity first, as most queries share one object, and a filter's hash is not kept.
    lists: dict[int, list[int]] = {}
    for row in dict.fromkeys(source):
        corpus = asked[row].corpus
        if id(corpus) not in lists:
            lists[id(corpus)] = rows_of.setdefault(corpus, []) if corpus[0] in snapshots else []
        lists[id(corpus)].append(row)
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
    memory, rows = batch.memory, batch.rows
    width = max(depths.values(), default=0)
    with phases("analyse"):
        words = (
            analysed(memory, [batch.queries[row] for row in rows])
            if learned is None
            else _weighted(memory, [learned.get(row, {}) for row in rows])
        )
    with phases("plan"):
        corpora: dict[Corpus, tuple[Snapshot, Integers | None]] = {
            # Learned weights know no statistics, so it does not matter over what a query counts them.
            corpus: _corpus(batch.snapshots, corpus) if learned is None else (batch.snapshots[corpus[0]].learned, None)
            for corpus in batch.rows_of
        }
        plans: dict[Corpus, Plan] = {}
        first = 0
        for corpus, own in batch.rows_of.items():
            requests = _requests(batch, own, depths, words.part(first, first + len(own)))
            plans[corpus] = plan_of(corpora[corpus][0], requests)
            first += len(own)
    with phases("serve"):
        served, (quanta, documents, counts) = backend.serve(
            tuple(plans.values()),
            len(batch),
            width,
            threads=threads,
            execution=execution,
            phases=phases if timing else None,
        )
    with phases("convert"):
        unit = 1.0 / SCALE if learned is None else SCORE_UNIT
        scores = quanta.astype(np.float64) * unit
        for corpus, plan in plans.items():
            faded = plan.rows[plan.rates > 0]
            scores[faded] = quanta[faded].view(np.float64) * unit
            numbers = corpora[corpus][1]
            if numbers is not None:
                found = documents[plan.rows]
                documents[plan.rows] = np.where(found >= 0, numbers[np.maximum(found, 0)] if len(numbers) else -1, -1)
        scores[documents < 0] = -np.inf
    return Listed(served, scores, documents, counts, plans)


class Words(NamedTuple):
    """The terms of queries, one query after another."""

    terms: npt.NDArray[np.int32]  # [terms] vocabulary ids
    offsets: Integers  # [queries + 1]
    weights: Integers | None  # [terms] learned ones; None: the words of BM25

    def part(self, first: int, last: int) -> Words:
        """Those of the queries from `first` to `last`."""
        if not first and last == len(self.offsets) - 1:
            return self
        start, stop = self.offsets[[first, last]].tolist()
        weights = None if self.weights is None else self.weights[start:stop]
        return Words(self.terms[start:stop], self.offsets[first : last + 1] - start, weights)


def analysed(memory: Memory, queries: Sequence[Query]) -> Words:
    """The words of these queries, as `analyse` of each."""
    texts = [query.text for query in queries if query.terms is None]
    if len(texts) == len(queries):
        return Words(*memory.encoder.encode_queries(texts), None)
    given = [query.terms for query in queries if query.terms is not None]
    given_terms, given_offsets = _numbered(given, memory.encoder.vocabulary)
    if not texts:
        return Words(given_terms, given_offsets, None)
    # Both kinds, brought into the queries' order.
    terms, offsets = memory.encoder.encode_queries(texts)
    is_text = np.array([query.terms is None for query in queries])
    lengths, starts = np.empty(len(queries), dtype=np.int64), np.empty(len(queries), dtype=np.int64)
    lengths[is_text], starts[is_text] = np.diff(offsets), offsets[:-1]
    lengths[~is_text], starts[~is_text] = np.diff(given_offsets), given_offsets[:-1] + len(terms)
    return Words(np.concatenate([terms, given_terms])[ranges(starts, lengths)], offsets_of(lengths), None)


def _weighted(memory: Memory, weights: Sequence[Mapping[str, float]]) -> Words:
    """The learned terms of queries with these weights. Raises as `query_terms`."""
    found = [query_terms(own, memory.weight_terms) for own in weights]
    return Words(
        np.array([term for own, _ in found for term in own], dtype=np.int32),
        offsets_of([len(own) for own, _ in found]),
        np.array([weight for _, own in found for weight in own], dtype=np.int64),
    )


def _numbered(lists: Sequence[Sequence[str]], vocabulary: Vocabulary) -> tuple[npt.NDArray[np.int32], Integers]:
    """The ids of all lists' terms, one list after another, and where each begins; unknown terms left out."""
    offsets = offsets_of([len(own) for own in lists])
    numbers = map(vocabulary.ids.get, chain.from_iterable(lists), repeat(UNKNOWN))
    terms = np.fromiter(numbers, dtype=np.int32, count=int(offsets[-1]))
    known = terms != UNKNOWN
    return (terms, offsets) if known.all() else (terms[known], offsets_of(known)[offsets])


def _requests(batch: Batch, rows: Sequence[int], depths: Mapping[int, int], words: Words) -> Requests:
    """What a plan takes of these rows, all of one corpus."""
    shared = {id(own): own for own in (batch.asked[row].limits for row in rows)}
    places = {own: place for place, own in enumerate(shared)}
    limits = tuple(shared.values())
    weighted = None
    if words.weights is not None:
        accepted = batch.asked[rows[0]].corpus[1]
        # A half-life fades BM25 alone; statistics are no matter, so that what a corpus accepts is a filter here.
        limits = tuple(
            Limits(own.filter if accepted is EVERYTHING else accepted, own.since, own.until) for own in limits
        )
        weighted = np.ones(len(rows), dtype=np.bool_)
    return Requests(
        rows=np.array(rows, dtype=np.int64),
        k=np.array([depths[row] for row in rows], dtype=np.int64),
        terms=words.terms,
        offsets=words.offsets,
        limits=limits,
        limit=np.array([places[id(batch.asked[row].limits)] for row in rows], dtype=np.int64),
        weights=words.weights,
        weighted=weighted,
    )


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
    phases = Phases()
    with phases("prepare"):
        asked = as_queries(queries, "search")
        check_how(threads, execution)
        batch = prepare(memory, asked, k, windows)
    return answer(batch, backend, threads=threads, execution=execution, timing=timing, phases=phases)


def answer(
    batch: Batch, backend: Backend, *, threads: int, execution: str, timing: bool, phases: Phases | None = None
) -> Hits:
    """The hits of a batch by BM25; `phases` has what ran before, if anything did."""
    phases = phases or Phases()
    with phases("prepare"):
        depths = {row: batch.asked[row].k for row in batch.rows}
    found = listed(batch, backend, depths, threads=threads, execution=execution, phases=phases, timing=timing)
    with phases("convert"):
        return Hits(
            *spread(batch, found.scores, found.documents, found.counts),
            batch.queries,
            found.served,
            batch.resolver(),
            explainer_of(batch, found),
            phases.milliseconds if timing else None,
            phases.counts.get("postings") if timing else None,
            source=batch.source,
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
    source = np.array(batch.source, dtype=np.int64)
    if (source != np.arange(len(batch))).any():
        scores, documents, counts = scores[source], documents[source], counts[source]
    return scores, documents, counts


@dataclass(frozen=True, eq=False)
class Explainer:
    """What explains a record's BM25 score for a query of a batch; of the batch it holds what that takes."""

    memory: Memory
    snapshots: Mapping[str, Snapshot]
    asked: Sequence[Asked] | Mapping[int, Asked]
    """By row that is worked out."""
    source: Sequence[int]
    rows_of: Mapping[Corpus, list[int]]
    plans: Mapping[Corpus, Plan]

    def __call__(self, position: int, record_id: str) -> Explanation:
        position = position_of(self.source, position)
        worked_out = self.source[position]
        asked = self.asked[worked_out]
        if asked.corpus not in self.plans:
            raise unknown(record_id, asked.query.namespace)
        row = self.rows_of[asked.corpus].index(worked_out)
        return _explain(self.memory, self.snapshots, self.plans[asked.corpus], row, position, record_id, asked)

    def part(self, start: int, stop: int) -> Explainer:
        """That of the queries at [start, stop) alone: of other tenants it holds nothing."""
        source = self.source[start:stop]
        asked = {row: self.asked[row] for row in source}
        # By identity first, as in `_batch`.
        every = {id(one.corpus): one.corpus for one in asked.values()}.values()
        held = [corpus for corpus in every if corpus in self.plans]
        return Explainer(
            self.memory,
            {namespace: self.snapshots[namespace] for namespace, _ in held},
            asked,
            source,
            {corpus: self.rows_of[corpus] for corpus in held},
            {corpus: self.plans[corpus] for corpus in held},
        )


def explainer_of(batch: Batch, found: Listed) -> Explainer:
    return Explainer(batch.memory, batch.snapshots, batch.asked, batch.source, batch.rows_of, found.plans)


def position_of(batch: Batch | Sequence[int], position: int) -> int:
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


Decided = tuple[int, Corpus, Limits]
"""What `Asked` adds to a query."""


def _decide(
    memory: Memory,
    snapshots: Mapping[str, Snapshot],
    query: Query,
    k: int,
    windows: Callable[[str], int],
) -> Decided:
    """Reads what `_said` names."""
    if query.half_life is not None and memory.bm25.signed:
        raise QueryError(
            f"half_life needs scores that are not negative, and method {memory.bm25.method!r} has some; "
            "use lucene, robertson_floor0, bm25l or bm25+"
        )
    since = -math.inf if query.since is None else float(query.since)
    until = math.inf if query.until is None else float(query.until)
    if query.windows is not None and query.namespace in snapshots:
        newest = windows(query.namespace) if query.windows == "auto" else int(query.windows)
        start, end = newest_windows(snapshots[query.namespace], newest, memory.window, query.now)
        since, until = max(since, start), min(until, end)
    now = rate = 0.0
    if query.half_life is not None:
        assert query.now is not None
        now, rate = float(query.now), rate_of(float(query.half_life))
    accepted = compile_filter(scoped(query), memory.schema, memory.values)
    apart = query.statistics == "filtered"
    corpus = query.namespace, accepted if apart else EVERYTHING
    return k_of(query, k), corpus, Limits(EVERYTHING if apart else accepted, since, until, now, rate)


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


def analyse(memory: Memory, query: Query) -> list[int]:
    """The vocabulary ids of a query's terms, repeats kept; unknown terms left out."""
    if query.terms is not None:
        return memory.encoder.encode_terms(query.terms)
    return memory.encoder.encode_query(query.text)


def as_queries(queries: Sequence[AnyQuery], verb: str) -> tuple[Query, ...]:
    """The queries of a batch. Raises `QueryError`."""
    if isinstance(queries, (str, Query, Mapping)) or not isinstance(queries, Iterable):
        raise QueryError(f"{verb} takes a batch: pass a list of queries")
    return tuple([as_query(query, position) for position, query in enumerate(queries)])


def as_query(query: AnyQuery, position: int) -> Query:
    if isinstance(query, Query):
        return query
    if isinstance(query, str):
        return _of_words("text", query)
    if isinstance(query, Sequence) and not isinstance(query, (bytes, bytearray)):
        terms = tuple(query)
        return _of_words("terms", terms) if {*map(type, terms)} <= {str} else Query(terms=terms)
    raise QueryError(f"query {position} must be a string, a Query or a sequence of terms, not {type(query).__name__}")


def _of_words(field: str, words: str | tuple[str, ...]) -> Query:
    """A query that says nothing else: a tenth of the time of its constructor, which checks what keeps its default."""
    query = object.__new__(Query)
    object.__setattr__(query, "__dict__", {**_SILENT, field: words})
    return query


_SILENT = vars(Query())


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
    limits = asked.limits
    if limits.filter is not EVERYTHING and not segment.passing(limits.filter)[place.position]:
        return False
    if not limits.ranged:
        return True
    return segment.times is not None and bool(limits.since <= segment.times[place.position] <= limits.until)


def unknown(record_id: str, namespace: str) -> UnknownIdError:
    where = f" in namespace {namespace!r}" if namespace else ""
    return UnknownIdError(f"no live record with id {record_id!r}{where}")
