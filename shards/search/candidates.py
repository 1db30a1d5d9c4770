"""The candidates of a strategy over all shards, with what its channels say of each: `ShardedEngine.candidates`.

Rows whose records lie in one shard, or in a whole copy, are collected there as one engine collects them. Those of rows
over several shards are joined as a search joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...engine.arrays import Floats, Integers, offsets_of, ranges
from ...engine.fuse.candidates import Candidates, Channel
from ...engine.hybrid.evidence import Evidence
from ...engine.hybrid.search import collect_evidence
from ...engine.hybrid.strategy import Strategy
from ...engine.records.query import Query
from ...engine.search.batch import AnyQuery, as_queries, prepare
from ...engine.search.options import SearchOptions
from ...engine.searcher import check_candidates
from ...engine.storage.state import MemoryState
from ..coordinator.checks import check_columns
from ..coordinator.holding import View
from ..processes.links import Waiting
from ..shard.shard import Shard
from .encoding import encode_queries
from .jobs import SpreadJob
from .launches import Launch
from .routing import SPREAD, Routed
from .searcher import ShardedSearcher

Objects = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Found:
    """The candidates of some rows of a batch, and the ids of their records."""

    rows: Sequence[int]
    candidates: Candidates
    ids: Objects  # [candidates]


def collect(
    searcher: ShardedSearcher, queries: Sequence[AnyQuery], strategy: Strategy, options: SearchOptions
) -> Evidence:
    """As `Engine.candidates`, at one epoch."""
    checked = as_queries(queries, "candidates")
    check_candidates(checked)

    def read(view: View, until: float | None) -> Evidence:
        launch = Launch(searcher.coordinator, view, until, None)
        check_columns(checked, searcher.template.index.memory.state)
        return _weave(len(checked), _collect_at(searcher, launch, checked, strategy, options), strategy)

    return searcher.declaring(lambda: searcher.retry(read), checked)


def _collect_at(
    searcher: ShardedSearcher, launch: Launch, queries: tuple[Query, ...], strategy: Strategy, options: SearchOptions
) -> list[Found]:
    routed = searcher.route(launch, queries, strategy, options)
    spread: list[EvidenceJob] = []
    sent: dict[int, Waiting] = {}
    asked: dict[int, list[tuple[Routed, tuple[Query, ...]]]] = {}
    for each in routed:
        given = tuple(queries[row] for row in each.part.rows)
        encoded = encode_queries(given, strategy, searcher.models)
        if each.route.way == SPREAD:
            spread.append(EvidenceJob(launch, each, given, encoded, 1, options, searcher.explain_job))
        else:
            asked.setdefault(each.route.shard, []).append((each, encoded))
    counted = searcher.count_scopes(launch, spread)
    for job in spread:
        job.send(counted)
    for shard, parts in asked.items():
        link = launch.link(shard)
        sent[shard] = link.send(
            "read", launch.view.at(shard), collect_here, [encoded for _, encoded in parts], strategy, options
        )
    launch.send()
    found = [Found(job.routed.part.rows, *job.evidence()) for job in spread]
    for shard, answers in launch.receive(sent).items():
        for (each, _), (candidates, ids) in zip(asked[shard], answers, strict=True):
            found.append(Found(each.part.rows, candidates, ids))
    return found


class EvidenceJob(SpreadJob):
    """Queries whose candidates several shards give. BM25 alone has candidates too."""

    listing = False

    def evidence(self) -> tuple[Candidates, Objects]:
        """The candidates over all shards, and the ids of their records."""
        merged = self.join({shard: self.launch.answer(shard, place) for shard, place in self.places.items()})
        return merged.candidates, merged.ids


def collect_here(
    shard: Shard, state: MemoryState, parts: Sequence[tuple[Query, ...]], strategy: Strategy, options: SearchOptions
) -> list[tuple[Candidates, Objects]]:
    """The candidates of queries whose records all lie in this shard, and the ids of their records."""
    engine, found = shard.engine, []
    for queries in parts:
        batch = prepare(state, queries, 1, engine.monitor.windows, aged=strategy.aged)
        sources = engine.searcher.sources(state, queries)
        candidates, name = collect_evidence(batch, engine.backend, sources, strategy, options)
        found.append((candidates, name(candidates.documents)))
    return found


def _weave(count: int, found: Sequence[Found], strategy: Strategy) -> Evidence:
    """The candidates of all rows, in the order of the batch."""
    sizes, starts = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    now, first = np.full(count, np.nan), 0
    types: list[str | None] = [None] * count
    for each in found:
        own = each.candidates
        rows = np.array(each.rows, dtype=np.int64)
        sizes[rows] = np.diff(own.offsets)
        starts[rows] = first + own.offsets[:-1]
        now[rows] = own.now
        for row, name in zip(each.rows, own.types, strict=True):
            types[row] = name
        first += len(own.documents)
    offsets, places = offsets_of(sizes), ranges(starts, sizes)
    parts = [each.candidates for each in found]

    def join(name: str) -> npt.NDArray[np.float64]:
        return np.concatenate([np.zeros(0), *(getattr(part, name) for part in parts)])[places]

    channels = {
        channel.name: _join([part.channels[channel.name] for part in parts]).at(places, offsets)
        for channel in strategy.channels
    }
    documents: Integers = np.concatenate([np.zeros(0, dtype=np.int64), *(part.documents for part in parts)])[places]
    ids: Objects = np.concatenate([np.zeros(0, dtype=object), *(each.ids for each in found)])[places]
    candidates = Candidates(offsets, documents, channels, now, join("times"), join("importance"), tuple(types))

    def resolve(given: Integers) -> Objects:
        assert len(given) == len(ids)
        return ids

    return candidates, resolve


def _join(parts: Sequence[Channel]) -> Channel:
    """One channel of those of several parts, whose offsets are yet to be set."""
    none = np.zeros(0)
    empty = np.zeros(0, dtype=np.bool_)
    return Channel(
        np.concatenate([none, *(part.scores for part in parts)]),
        np.concatenate([empty, *(part.scored for part in parts)]),
        np.concatenate([empty, *(part.listed for part in parts)]),
        np.zeros(1, dtype=np.int64),
        _fill([part.weights for part in parts], parts, 1.0),
        _fill([part.latest for part in parts], parts, -np.inf),
        any(part.tied for part in parts),
    )


def _fill(values: Sequence[Floats | None], parts: Sequence[Channel], missing: float) -> Floats | None:
    """The values of all parts; None where no part has any."""
    if all(own is None for own in values):
        return None
    return np.concatenate(
        [np.full(len(part.scores), missing) if own is None else own for own, part in zip(values, parts, strict=True)]
    )
