"""Prepares a batch of queries: decides what does not depend on their words, and finds equal queries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..errors import QueryError
from ..index.columns import ABSENT
from ..index.decay import rate_of
from ..index.kept import records_at
from ..index.masks import EVERYTHING, CompiledFilter, both, compile_filter
from ..index.neighbours import USER, exchanges_of
from ..index.snapshot import Snapshot
from ..index.union import Union, namespaces_of
from ..index.windows import WINDOWED_RECORDS, window_start
from ..plan.requests import QuerySettings
from ..records.filters import ColumnComparison, Filter, all_of, parse_filter
from ..records.neighbours import Neighbours
from ..records.query import FIELDS, Query, check_k
from ..records.record import Record
from ..storage.state import MemoryState

if TYPE_CHECKING:
    from .twins import Twins

# The most places for hits in one batch: 2 GiB for each array of the answer.
MAX_HITS = 1 << 28

# Compiled filters that a snapshot keeps.
COMPILED = 64

Corpus = tuple[Snapshot, CompiledFilter]
"""The snapshot that a query searches, and the filter that chooses the records whose statistics count (`EVERYTHING`: all
of them)."""


class PreparedQuery(NamedTuple):
    """A query, and what was decided for it without its terms."""

    query: Query
    k: int
    corpus: Corpus
    settings: QuerySettings
    """Where the statistics are those of the filtered records, the corpus has the filter, and the settings have none."""

    @property
    def snapshot(self) -> Snapshot:
        """The records that the query searches, as they are at its clock."""
        return self.corpus[0]

    @property
    def accepted(self) -> CompiledFilter:
        """The query's filter and scope together, whichever records its statistics are counted over."""
        return self.settings.filter if self.corpus[1] is EVERYTHING else self.corpus[1]


@dataclass(frozen=True, eq=False)
class Batch:
    """Prepared queries, and the rows of the answer that must be searched."""

    memory: MemoryState
    queries: tuple[Query, ...]
    asked: tuple[PreparedQuery, ...]
    width: int  # the largest k
    source: tuple[int, ...]
    """For each query, the row that holds its answer. Agents repeat queries, and equal queries are searched once."""
    rows_of: Mapping[Corpus, list[int]]
    """The rows that are searched, by corpus. Rows whose snapshot holds nothing are left out."""

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def rows(self) -> list[int]:
        """All rows of `rows_of`."""
        return [row for rows in self.rows_of.values() for row in rows]

    def select(self, asked: Sequence[PreparedQuery]) -> Batch:
        """A batch of these queries over the same snapshots. They are rows of this batch, or made from its rows.

        They are not compared with each other: rows are distinct already.
        """
        width = max((prepared.k for prepared in asked), default=0)
        return make_batch(self.memory, asked, width, range(len(asked)))

    def limit_to(self, rows: Collection[int], asked: Mapping[int, PreparedQuery] | None = None) -> Batch:
        """The same batch, in which only these rows are searched; `asked` replaces the queries of some of them."""
        changed = tuple((asked or {}).get(row, prepared) for row, prepared in enumerate(self.asked))
        rows_of: dict[Corpus, list[int]] = {}
        for row in self.rows:
            if row in rows:
                rows_of.setdefault(changed[row].corpus, []).append(row)
        return replace(self, asked=changed, queries=tuple(prepared.query for prepared in changed), rows_of=rows_of)

    def narrow(self, row: int, narrower: Filter) -> PreparedQuery:
        """A row's query with one more filter."""
        prepared = self.asked[row]
        query = replace(prepared.query, filter=all_of(narrower, parse_filter(prepared.query.filter)))
        accepted = both(prepared.accepted, compile_filter(narrower, self.memory.schema, self.memory.values))
        if prepared.corpus[1] is EVERYTHING:
            return prepared._replace(query=query, settings=replace(prepared.settings, filter=accepted))
        return prepared._replace(query=query, corpus=(prepared.corpus[0], accepted))

    def resolver(self) -> IdResolver:
        searched = tuple([(asked.corpus[0], asked.query.namespace) for asked in self.asked])
        if all(query.collapse is None for query in self.queries):
            return IdResolver(searched, self.user)
        from .twins import twins_of  # which a plain search does not need

        return IdResolver(searched, self.user, twins_of(self.memory, self.asked))

    @property
    def user(self) -> int:
        """The code of the role of users; of no record where nobody has it."""
        return self.memory.values["role"].ids.get(USER, ABSENT - 1)


@dataclass(frozen=True, eq=False)
class IdResolver:
    """Turns document numbers [B, n] into record ids, row b in the snapshot that query b searches; -1 becomes None."""

    searched: tuple[tuple[Snapshot, str], ...]
    """The snapshot that each query searches, and the query's namespace."""
    user: int = ABSENT - 1
    """As `Batch.user`."""
    twins: tuple[Twins | None, ...] = ()
    """The records that each query's hits may stand for; empty where no query collapses."""

    def __call__(self, documents: Integers) -> npt.NDArray[np.object_]:
        ids = np.full(documents.shape, None, dtype=object)
        for (snapshot, _), rows in self._rows():
            if snapshot.segments:
                ids[rows] = snapshot.ids_of(documents[rows])
        return ids

    def namespaces(self, documents: Integers) -> npt.NDArray[np.object_]:
        """The namespace of each document, same shape; None for -1."""
        names = np.full(documents.shape, None, dtype=object)
        for (snapshot, namespace), rows in self._rows():
            names[rows] = namespaces_of(snapshot, namespace, documents[rows])
        return names

    def exchanges(self, documents: Integers) -> npt.NDArray[np.object_]:
        """The ids of each document's exchange, same shape; None for -1."""
        names = np.full(documents.shape, None, dtype=object)
        for (snapshot, _), rows in self._rows():
            if (documents[rows] >= 0).any():
                names[rows] = exchanges_of(snapshot, self.user).named(snapshot, documents[rows])
        return names

    def copies(self, documents: Integers) -> npt.NDArray[np.object_]:
        """The ids of the records that each document stands for; None for -1, and where nothing is collapsed."""
        names = np.full(documents.shape, None, dtype=object)
        rows_of: dict[tuple[Twins, Snapshot], list[int]] = {}
        for row, (twins, (snapshot, _)) in enumerate(zip(self.twins, self.searched, strict=True)):
            if twins is not None:
                rows_of.setdefault((twins, snapshot), []).append(row)
        for (twins, snapshot), rows in rows_of.items():
            if (documents[rows] >= 0).any():
                names[rows] = twins.others(snapshot, documents[rows])
        return names

    def records(self, documents: Integers) -> list[Record]:
        """The records that an engine in memory keeps of these documents, row after row, without those that are -1."""
        found: list[list[Record]] = [[]] * len(documents)
        for (snapshot, _), rows in self._rows():
            part = documents[rows]
            numbers = part[part >= 0]
            records = iter(records_at(snapshot, numbers) if len(numbers) else ())
            for row, count in zip(rows, (part >= 0).sum(axis=1).tolist(), strict=True):
                found[row] = [*islice(records, count)]
        return [*chain.from_iterable(found)]

    def slice(self, start: int, stop: int) -> IdResolver:
        return IdResolver(self.searched[start:stop], self.user, self.twins[start:stop])

    def _rows(self) -> list[tuple[tuple[Snapshot, str], list[int]]]:
        """The rows of each snapshot and namespace."""
        if len(distinct := {*self.searched}) == 1:
            return [(distinct.pop(), [*range(len(self.searched))])]
        rows: dict[tuple[Snapshot, str], list[int]] = {}
        for row, searched in enumerate(self.searched):
            rows.setdefault(searched, []).append(row)
        return list(rows.items())


def prepare(
    memory: MemoryState,
    queries: tuple[Query, ...],
    k: int,
    windows: Callable[[str], int],
    *,
    aged: bool = False,
    clock: float | None = None,
) -> Batch:
    """Decide all that does not depend on terms or vectors. Raises `QueryError`.

    `aged` is true where the strategy reads the query's time, so that queries of different times are not equal. Queries
    that do not say their own time share `clock` (None: the present moment) as the time by which records expire.
    """
    k = check_k(k)
    clock = time.time() if clock is None else clock
    # Most queries of a batch differ in their words alone, so each distinct set of settings is decided once.
    settled: dict[object, tuple[int, Decided]] = {}
    numbers: dict[Decided, int] = {}
    asked: list[PreparedQuery] = []
    source: list[int] = []
    seen: dict[object, int] = {}
    expiring = memory.expiring
    for row, query in enumerate(queries):
        key = _settings_key(query, expiring)
        known = settled.get(key)
        if known is None:
            decided = decide(memory, query, k, windows, clock)
            known = settled[key] = numbers.setdefault(decided, len(numbers)), decided
        number, decided = known
        asked.append(PreparedQuery(query, *decided))
        source.append(seen.setdefault((number, _evidence(query, aged)), row))
    return make_batch(memory, asked, max((prepared.k for prepared in asked), default=k), source)


SETTINGS = (
    *("namespace", "k", "filter", "scope", "statistics", "since", "until", "windows", "half_life"),
    *("latest", "namespaces", "under", "neighbours"),
)
"""The fields of a query that `decide` reads, and `now` where `_timed` is given or records expire."""
_settings, _timed = attrgetter(*SETTINGS), attrgetter("windows", "half_life", "latest")


def _settings_key(query: Query, expiring: bool) -> object:
    """All that `decide` reads of a query. `expiring` says whether records have times of expiry."""
    settings = _settings(query)
    return (settings, query.now) if expiring or _timed(query) != (None, None, None) else settings


_AGED = ("now", "entities", "hints", "last_session_end", "timezone", "scope")
_read = attrgetter(*_AGED)

_APART = {*SETTINGS, *_AGED, "id", "strategy", "terms", "vector", "weights"} - {"neighbours"}
_words = attrgetter(*(name for name in FIELDS if name not in _APART))
"""All fields that are not compared in another way, so that queries which differ in one are never taken for equal."""


def _evidence(query: Query, aged: bool) -> tuple[object, ...]:
    """All that an answer depends on, beyond what `decide` reads; `aged` is as in `prepare`."""
    terms, vector, weights = query.terms, query.vector, query.weights
    return (
        None if terms is None else tuple(terms),
        None if vector is None else vector.tobytes(),
        None if weights is None else tuple(weights.items()),
        _words(query),
        _read(query) if aged else None,
    )


def make_batch(memory: MemoryState, asked: Sequence[PreparedQuery], width: int, source: Sequence[int]) -> Batch:
    """A batch of prepared queries; the other arguments are as the fields of `Batch`. Raises `QueryError`."""
    check_places(len(asked), width)
    rows_of: dict[Corpus, list[int]] = {}
    # Looked up by identity first: most queries share one corpus object, and a filter computes its hash at each call.
    lists: dict[int, list[int]] = {}
    for row in dict.fromkeys(source):
        corpus = asked[row].corpus
        if id(corpus) not in lists:
            lists[id(corpus)] = rows_of.setdefault(corpus, []) if corpus[0].segments else []
        lists[id(corpus)].append(row)
    # An answer keeps the snapshots from which it may have to explain a hit, and none of other tenants.
    queries = tuple(prepared.query for prepared in asked)
    return Batch(memory.vocabularies, queries, tuple(asked), width, tuple(source), rows_of)


def check_places(queries: int, width: int) -> None:
    """Raise `QueryError` for an answer with more than `MAX_HITS` places."""
    if max(queries, 1) * width > MAX_HITS:
        raise QueryError(f"{queries} queries with k = {width} are more than {MAX_HITS:,} places; ask for fewer")


Decided = tuple[int, Corpus, QuerySettings]
"""What `PreparedQuery` adds to a query."""


def decide(memory: MemoryState, query: Query, k: int, windows: Callable[[str], int], clock: float) -> Decided:
    """Decide what a query's settings mean. Reads only what is part of `_settings_key`.

    `clock` is the present moment, for queries that do not say their own time.
    """
    if query.half_life is not None and memory.bm25.signed:
        raise QueryError(
            f"half_life needs scores that are not negative, and method {memory.bm25.method!r} has some; "
            "use lucene, robertson_floor0, bm25l or bm25+"
        )
    since = -math.inf if query.since is None else float(query.since)
    until = math.inf if query.until is None else float(query.until)
    snapshot = searched_snapshot(memory, query, clock)
    newest = _auto_windows(snapshot, query, windows) if query.windows == "auto" else query.windows
    if newest is not None and snapshot.segments:
        start, end = newest_windows(snapshot, newest, memory.window, query.now)
        since, until = max(since, start), min(until, end)
    now = rate = 0.0
    if query.half_life is not None:
        assert query.now is not None
        now, rate = float(query.now), rate_of(float(query.half_life))
    accepted = _compile(memory, snapshot, query)
    if query.latest is not None:
        from .latest import newest_of_each  # which a plain search does not need

        within = QuerySettings(accepted, since, until)
        accepted = newest_of_each(memory, snapshot, within, query.latest, clock if query.now is None else query.now)
    apart = query.statistics == "filtered"
    corpus = snapshot, accepted if apart else EVERYTHING
    neighbours = query.neighbours
    assert neighbours is None or isinstance(neighbours, Neighbours)
    lent = () if neighbours is None else neighbours.steps
    return k_of(query, k), corpus, QuerySettings(EVERYTHING if apart else accepted, since, until, now, rate, lent)


def searched_snapshot(memory: MemoryState, query: Query, clock: float) -> Snapshot:
    """The records that a query searches: those of its namespaces that have not expired by its own time, or `clock`."""
    if query.under is not None:
        snapshot = memory.union(memory.names_under(query.under))
    elif query.namespaces is not None:
        snapshot = memory.union(query.namespaces)
    else:
        snapshot = memory.snapshot(query.namespace)
    return snapshot.at(clock if query.now is None else float(query.now)) if memory.expiring else snapshot


def _auto_windows(snapshot: Snapshot, query: Query, windows: Callable[[str], int]) -> int | None:
    """The windows of the k* rule, of several namespaces the most that one of them needs; None: all records."""
    if snapshot.size < WINDOWED_RECORDS:
        return None
    return max(map(windows, snapshot.names if isinstance(snapshot, Union) else [query.namespace]))


def _compile(memory: MemoryState, snapshot: Snapshot, query: Query) -> CompiledFilter:
    """The query's filter and scope in codes. A snapshot keeps what was compiled for the filter objects of its callers.

    Not beyond the snapshot: a write may bring a category value that the filter names and no record had before.
    """
    if query.filter is None and query.scope is None:
        return EVERYTHING
    known, scope = snapshot.compiled, query.scope
    key = (id(query.filter), None, None) if scope is None else (id(query.filter), scope.column, scope.id)
    kept = known.get(key)
    # The entry holds the filter, so no other object can have its id meanwhile.
    if kept is None:
        kept = query.filter, compile_filter(combine_filters(query), memory.schema, memory.values)
        if len(known) >= COMPILED:
            known.clear()
        known[key] = kept
    return kept[1]


def k_of(query: Query, k: int) -> int:
    """The hits that a query asks for: its own k, else its scope's limit, else the batch's k."""
    limit = query.scope.limit if query.scope is not None else None
    return query.k if query.k is not None else k if limit is None else limit


def combine_filters(query: Query) -> Filter | None:
    """The query's filter and its scope, together."""
    query_filter = query.filter
    assert query_filter is None or isinstance(query_filter, Filter)
    scope = query.scope
    if scope is None or scope.column is None:
        return query_filter
    return all_of(ColumnComparison(scope.column, "==", scope.id), query_filter)


def newest_windows(snapshot: Snapshot, count: int, window: float, now: float | None) -> tuple[float, float]:
    """(start, end) of the `count` newest time windows that hold a record, up to that of `now`; seconds, closed.

    The end is infinite where no record lies beyond that window, so that queries of one day share a range. Where no
    record has a time, the range is empty.
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
