"""A batch of queries with everything decided that does not depend on their words; equal queries are answered once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..errors import QueryError
from ..index.decay import rate_of
from ..index.masks import EVERYTHING, CompiledFilter, compile_filter
from ..index.snapshot import Snapshot, window_start
from ..plan.requests import QuerySettings
from ..records.filters import ColumnComparison, Filter, all_of, parse_filter
from ..records.query import Query, check_k
from ..storage.memory import Memory

# Places for hits in one batch: 2 GiB for each array of the answer.
MAX_HITS = 1 << 28


AnyQuery = str | Query | Sequence[str]


Corpus = tuple[str, CompiledFilter]
"""A namespace, and the filter whose records make up the statistics (`EVERYTHING`: all of it)."""


class PreparedQuery(NamedTuple):
    """A query with everything decided that does not depend on its terms."""

    query: Query
    k: int
    corpus: Corpus
    settings: QuerySettings
    """Without the filter where the statistics are the filtered records' own: the corpus has it then."""

    @property
    def accepted(self) -> CompiledFilter:
        """What the query's filter and scope let pass, whatever its statistics are counted over."""
        return self.settings.filter if self.corpus[1] is EVERYTHING else self.corpus[1]


@dataclass(frozen=True, eq=False)
class Batch:
    """Queries with everything decided: against which snapshots, and which rows of the answer are worked out."""

    memory: Memory
    snapshots: Mapping[str, Snapshot]
    """Those that are asked, by namespace."""
    queries: tuple[Query, ...]
    asked: tuple[PreparedQuery, ...]
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

    def select(self, asked: Sequence[PreparedQuery]) -> Batch:
        """The batch of these queries, which are of this one's rows or made of them, over the same snapshots.

        No two of them are taken for equal, as no two rows are.
        """
        width = max((one.k for one in asked), default=0)
        return _batch(self.memory, self.snapshots, asked, width, range(len(asked)))

    def limit_to(self, rows: Collection[int], asked: Mapping[int, PreparedQuery] | None = None) -> Batch:
        """The same batch with work for these rows alone, some of them asked otherwise."""
        changed = tuple((asked or {}).get(row, own) for row, own in enumerate(self.asked))
        rows_of: dict[Corpus, list[int]] = {}
        for row in self.rows:
            if row in rows:
                rows_of.setdefault(changed[row].corpus, []).append(row)
        return replace(self, asked=changed, queries=tuple(own.query for own in changed), rows_of=rows_of)

    def narrow(self, row: int, narrower: Filter) -> PreparedQuery:
        """A row's query with one more filter."""
        own = self.asked[row]
        query = replace(own.query, filter=all_of(narrower, parse_filter(own.query.filter)))
        accepted = compile_filter(combine_filters(query), self.memory.schema, self.memory.values)
        if own.corpus[1] is EVERYTHING:
            return own._replace(query=query, settings=replace(own.settings, filter=accepted))
        return own._replace(query=query, corpus=(own.corpus[0], accepted))

    def resolver(self) -> IdResolver:
        return IdResolver(self.snapshots, self.queries)


@dataclass(frozen=True, eq=False)
class IdResolver:
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

    def slice(self, start: int, stop: int) -> IdResolver:
        own = self.queries[start:stop]
        spaces = {query.namespace for query in own}
        return IdResolver({name: snapshot for name, snapshot in self.snapshots.items() if name in spaces}, own)


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
    asked: list[PreparedQuery] = []
    source: list[int] = []
    seen: dict[object, int] = {}
    for row, query in enumerate(queries):
        said = _settings_key(query)
        known = settled.get(said)
        if known is None:
            decided = _decide(memory, snapshots, query, k, windows)
            known = settled[said] = numbers.setdefault(decided, len(numbers)), decided
        number, decided = known
        asked.append(PreparedQuery(query, *decided))
        source.append(seen.setdefault((number, _evidence(query, aged)), row))
    return _batch(memory, snapshots, asked, max((one.k for one in asked), default=k), source)


_settings = attrgetter("namespace", "k", "filter", "scope", "statistics", "since", "until", "windows", "half_life")


def _settings_key(query: Query) -> object:
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
    memory: Memory, snapshots: Mapping[str, Snapshot], asked: Sequence[PreparedQuery], width: int, source: Sequence[int]
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


Decided = tuple[int, Corpus, QuerySettings]
"""What `PreparedQuery` adds to a query."""


def _decide(
    memory: Memory,
    snapshots: Mapping[str, Snapshot],
    query: Query,
    k: int,
    windows: Callable[[str], int],
) -> Decided:
    """Reads what `_settings_key` names."""
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
    accepted = compile_filter(combine_filters(query), memory.schema, memory.values)
    apart = query.statistics == "filtered"
    corpus = query.namespace, accepted if apart else EVERYTHING
    return k_of(query, k), corpus, QuerySettings(EVERYTHING if apart else accepted, since, until, now, rate)


def k_of(query: Query, k: int) -> int:
    """The hits that a query asks for: its own k, else its scope's limit, else the batch's k."""
    limit = query.scope.limit if query.scope is not None else None
    return query.k if query.k is not None else k if limit is None else limit


def combine_filters(query: Query) -> Filter | None:
    """The query's filter and its scope, together."""
    own = query.filter
    assert own is None or isinstance(own, Filter)
    scope = query.scope
    if scope is None or scope.column is None:
        return own
    return all_of(ColumnComparison(scope.column, "==", scope.id), own)


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
