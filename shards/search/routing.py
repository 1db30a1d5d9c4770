"""Which shards answer which queries, and in which of three ways.

A query whose records all lie in one shard is forwarded to it. Where they lie in several, a strategy that is a sum over
documents is spread over them. Any other is answered from a whole copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from ...engine.hybrid.strategy import Dense, Learned, Lexical, Strategy
from ...engine.index.bm25 import BM25
from ...engine.records.query import RECORD, Query
from ...engine.route.by_namespace import AnyAnswerer
from ...engine.route.parts import Part, divide
from ...engine.route.policy import Answerer
from ...engine.route.router import Router
from ...engine.search.batch import combine_filters
from ...engine.search.options import SearchOptions
from ..protocol.messages import Scope
from ..protocol.placement import Placement
from ..replicas.whole_copies import MODELLED, WHOLE

# What else than its namespace says which records a query searches, by which statistics, and whether its answer adds up.
_says = attrgetter("namespaces", "under", "now", "statistics", "windows", "neighbours", "collapse", "unit", "latest")
NOTHING = _says(Query())


Way = int | None
"""The shard that a query is forwarded to, or that of the whole copies, which is below 0; None: it is spread."""


@dataclass(frozen=True, eq=False)
class Routed:
    """The rows of a batch that one strategy answers in one way."""

    part: Part
    way: Way
    scopes: tuple[Scope, ...]
    """Of each row."""


def route_batch(
    queries: Sequence[Query],
    answerer: AnyAnswerer,
    options: SearchOptions,
    placement: Placement,
    bm25: BM25,
    modelled: bool,
    expiring: bool,
) -> list[Routed]:
    """The batch, divided by strategy and way, in the order of first rows.

    `modelled` says whether there is a model of vectors, `expiring` whether any record has a time of expiry. Raises
    `QueryError`.
    """
    routed: list[Routed] = []
    for part in divide(queries, answerer):
        groups: dict[Way, tuple[list[int], list[Scope]]] = {}
        if not part.rows:
            groups[0] = [], []
        reads = modelled and part.answerer is not None and reads_sentences(part.answerer)
        # Most queries of a large batch say no more than a namespace, and many say the same one.
        known: dict[str, tuple[Scope, Way]] = {}
        for row in part.rows:
            query = queries[row]
            name = query.namespace if _says(query) == NOTHING else None
            if name in known:
                scope, way = known[name]
            else:
                scope = scope_of(query, expiring=expiring)
                way = way_of(query, scope, part.answerer, options, placement, bm25)
                if name is not None:
                    known[name] = scope, way
            # A shard has no model to encode sentences with.
            way = MODELLED if reads else way
            rows, scopes = groups.setdefault(way, ([], []))
            rows.append(row)
            scopes.append(scope)
        routed += (Routed(Part(part.answerer, rows), way, tuple(scopes)) for way, (rows, scopes) in groups.items())
    return sorted(routed, key=lambda each: each.part.rows[:1])


def scope_of(query: Query, *, expiring: bool = False) -> Scope:
    """The records that a query searches; `expiring` says whether any have times of expiry."""
    now = None if query.now is None or not expiring else float(query.now)
    apart = combine_filters(query) if query.statistics == "filtered" else None
    if query.under is not None:
        return Scope(None, query.under, now, apart)
    names = (query.namespace,) if query.namespaces is None else tuple(dict.fromkeys(query.namespaces))
    return Scope(names, None, now, apart)


def shards_of(scope: Scope, placement: Placement) -> tuple[int, ...]:
    """The shards that may hold records of a scope, ascending."""
    if scope.names is None:
        return tuple(range(placement.shards))
    return tuple(sorted({home for name in scope.names for home in placement.homes(name)})) or (0,)


def way_of(
    query: Query,
    scope: Scope,
    answerer: Answerer | None,
    options: SearchOptions,
    placement: Placement,
    bm25: BM25,
) -> Way:
    shards = shards_of(scope, placement)
    if len(shards) == 1:
        return shards[0]
    return None if _adds_up(query, answerer, options, bm25) else WHOLE


def _adds_up(query: Query, answerer: Answerer | None, options: SearchOptions, bm25: BM25) -> bool:
    """Whether the answer over several shards follows from integer sums and the best of each."""
    if not isinstance(answerer, Strategy) or not adds_up(answerer) or options.reranker is not None:
        return False
    # okapi reads the mean idf of the whole vocabulary. Windows, sessions and equal values are found in all records.
    apart = query.windows is not None or query.neighbours is not None or query.unit != RECORD
    apart |= query.latest is not None
    return not apart and not query.newest and query.collapse is None and bm25.method != "okapi"


def reads_sentences(answerer: Answerer) -> bool:
    """Whether the strategy, or one that the policy may choose, encodes sentences of records."""
    if isinstance(answerer, Strategy):
        return answerer.feedback is not None and answerer.feedback.needs_sentences
    if isinstance(answerer, Router):
        return any(map(reads_sentences, answerer.strategies.values()))
    return any(map(reads_sentences, answerer.costly))


def adds_up(strategy: Strategy) -> bool:
    """Whether each channel scores a record by itself, given sums over all records."""
    if strategy.feedback is not None or strategy.optimizer is not None or strategy.fades:
        return False
    return all(_is_summed(channel) for channel in strategy.channels)


def _is_summed(channel: object) -> bool:
    if isinstance(channel, Lexical):
        return channel.neighbours is None and channel.rm3 is None
    if isinstance(channel, Dense):
        return channel.mode != "hnsw" and channel.neighbours is None
    return isinstance(channel, Learned)


def keys_of(scopes: Iterable[Scope]) -> dict[Scope, str]:
    """A name for each scope, which stands in its queries as their namespace."""
    return {scope: f"\0{number}" for number, scope in enumerate(dict.fromkeys(scopes))}
