"""How a shard answers queries whose records lie in several shards.

The queries search snapshots that score by the statistics of all shards. What comes back says, beside each score, the
number of the record's last write, by which equal scores of all shards are ordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from ...engine.arrays import Integers
from ...engine.engine import Engine
from ...engine.hybrid.search import collect_evidence, make_collector
from ...engine.index.masks import compile_filter
from ...engine.index.snapshot import Snapshot
from ...engine.records.hits import Hits
from ...engine.search.batch import Batch, prepare
from ...engine.search.lexical import answer_lexical
from ...engine.search.notes import is_undated, note_of_words
from ...engine.storage.state import MemoryState
from ..protocol.messages import (
    Answered,
    Collect,
    Collected,
    Count,
    Listed,
    ListedEvidence,
    Scope,
    ScopeCounts,
    ShardNote,
    Spread,
)
from ..protocol.order import orders_of
from ..protocol.statistics import Counts
from .imposed import ImposedSnapshot, ImposedUnion, impose

# Snapshots with the statistics of other shards that a shard keeps. Each holds 4 bytes a term of the vocabulary.
KEPT = 16

Objects = npt.NDArray[np.object_]
_Kept = tuple[Snapshot, int, ImposedSnapshot]


class Answerer:
    """Answers for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # The last snapshots with imposed statistics, each with the snapshot that it was made of and their epoch.
        self._kept: dict[str, _Kept] = {}

    def answer(self, state: MemoryState, item: Spread | Collect | Count, clock: float) -> Answered:
        """The answer to one item. Raises as `Engine.search`."""
        if isinstance(item, Count):
            return tuple(count_scope(state, scope, terms, clock) for scope, terms in item.scopes)
        if isinstance(item, Collect):
            return collect(self._engine, state, item)
        imposed = {each.key: self._impose(state, each, clock) for each in item.scopes}
        memory = replace(
            state, snapshots=imposed, names=tuple(sorted(imposed)), unions={}, expiries={}, next_expiry=inf
        )
        spaces = {each.key: each.scope.names[0] for each in item.scopes if each.scope.names and each.scope.single}
        windows = self._engine.monitor.windows
        strategy = item.strategy
        aged = strategy is not None and strategy.aged
        batch = prepare(memory, item.queries, item.k, windows, aged=aged, clock=clock)
        if strategy is None:
            return _list_hits(batch, answer_lexical(batch, self._engine.backend, item.options), spaces)
        searcher = self._engine.searcher
        sources = searcher.sources(memory, item.queries)
        collector = make_collector(batch, self._engine.backend, sources, strategy, item.options)
        candidates = collector.candidates()
        orders, ids, names = _name(batch, candidates.owners, candidates.documents, spaces)
        return ListedEvidence(
            replace(candidates, documents=orders),
            ids,
            names,
            batch.source,
            _notes(batch, range(len(batch))),
            collector.served,
            collector.phases.milliseconds if item.options.timing else None,
        )

    def _impose(self, state: MemoryState, each: ScopeCounts, clock: float) -> ImposedSnapshot:
        numbers = state.indexer.vocabulary.ids
        base = snapshot_of(state, each.scope, clock)
        if each.since is None:
            return impose(base, each.counts, numbers)
        # The table of a split namespace gives these, so the name says which one it is.
        name = each.scope.names[0] if each.scope.names else each.key
        kept = self._kept.get(name)
        known = kept[2] if kept is not None and kept[0] is base and kept[1] == each.since else None
        if known is not None and known.impose(each.counts, numbers):
            return known
        made = impose(base, each.counts, numbers, known)
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[name] = base, each.since, made
        return made


def collect(engine: Engine, state: MemoryState, item: Collect) -> Collected:
    """The candidates of queries whose records all lie here, and the ids of their records."""
    batch = prepare(state, item.queries, 1, engine.monitor.windows, aged=item.strategy.aged)
    sources = engine.searcher.sources(state, item.queries)
    candidates, name = collect_evidence(batch, engine.backend, sources, item.strategy, item.options)
    return candidates, name(candidates.documents)


def snapshot_of(state: MemoryState, scope: Scope, clock: float) -> Snapshot:
    """The part of a scope's records that lies in this state, without those that have expired."""
    if scope.under is not None:
        snapshot = state.union(state.names_under(scope.under))
    else:
        assert scope.names is not None
        snapshot = state.snapshot(scope.names[0]) if scope.single else state.union(scope.names)
    return snapshot.at(clock if scope.now is None else scope.now) if state.expiring else snapshot


def count_scope(state: MemoryState, scope: Scope, terms: Sequence[str], clock: float) -> Counts:
    """The counts of a scope's part in this state."""
    snapshot = snapshot_of(state, scope, clock)
    if scope.apart is not None:
        snapshot, _ = snapshot.filtered(compile_filter(scope.apart, state.schema, state.values))
    return Counts.of(snapshot, terms, state.indexer.vocabulary.ids)


def _list_hits(batch: Batch, hits: Hits, spaces: Mapping[str, str]) -> Listed:
    rows = np.repeat(np.arange(len(hits)), hits.documents.shape[1])
    orders, ids, names = _name(batch, rows, hits.documents.reshape(-1), spaces)
    shape = hits.documents.shape
    return Listed(
        hits.scores,
        orders.reshape(shape),
        ids.reshape(shape),
        names.reshape(shape),
        hits.counts,
        _notes(batch, np.flatnonzero(hits.counts == 0).tolist()),
        hits.backend,
        hits.timing,
    )


def _name(
    batch: Batch, rows: Integers, documents: Integers, spaces: Mapping[str, str]
) -> tuple[Integers, Objects, Objects]:
    """(orders, ids, namespaces) of documents [n], each found by the query of its row.

    `spaces` are the namespaces that keys of single ones stand for.
    """
    orders = np.full(len(documents), -1, dtype=np.int64)
    ids, names = np.full(len(documents), None, dtype=object), np.full(len(documents), None, dtype=object)
    snapshots: dict[int, tuple[Snapshot, list[int]]] = {}
    for row, asked in enumerate(batch.asked):
        snapshots.setdefault(id(asked.snapshot), (asked.snapshot, []))[1].append(row)
    for snapshot, own in snapshots.values():
        found = documents >= 0
        places = np.flatnonzero(found if len(snapshots) == 1 else found & np.isin(rows, own))
        if not len(places):
            continue
        numbers = documents[places]
        orders[places] = orders_of(snapshot, numbers)
        ids[places] = snapshot.ids_of(numbers)
        names[places] = (
            snapshot.namespaces_of(numbers)
            if isinstance(snapshot, ImposedUnion)
            else spaces[batch.asked[own[0]].query.namespace]
        )
    return orders, ids, names


def _notes(batch: Batch, rows: Sequence[int]) -> tuple[ShardNote, ...]:
    """Why these queries have no hits in this shard, by its own records."""
    notes: list[ShardNote] = [(None, False)] * len(batch)
    for row in rows:
        asked = batch.asked[row]
        held = asked.snapshot.base if isinstance(asked.snapshot, ImposedSnapshot) else asked.snapshot
        assert held is not None
        notes[row] = note_of_words(batch.memory.indexer, held, asked.query), is_undated(held, asked.query)
    return tuple(notes)
