"""The candidates of a strategy over all shards, with what its channels say of each: `ShardedEngine.candidates`.

Rows whose records lie in one shard, or in a whole copy, are collected there as one engine collects them. Those of rows
over several shards are joined as a search joins them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...engine.arrays import Floats, Integers, offsets_of, ranges
from ...engine.fuse.candidates import Candidates, Channel
from ...engine.hybrid.evidence import Evidence
from ...engine.hybrid.strategy import Strategy
from ...engine.route.parts import Part
from ...engine.search.batch import AnyBatch, as_queries
from ...engine.search.options import SearchOptions
from ...engine.searcher import check_candidates, check_vectors
from ..protocol.messages import Collect, Collected
from .jobs import Counted, Job, SpreadJob
from .launches import Launch
from .searcher import ShardedSearcher

Objects = npt.NDArray[np.object_]


def collect(searcher: ShardedSearcher, queries: AnyBatch, strategy: Strategy, options: SearchOptions) -> Evidence:
    """As `Engine.candidates`, at one epoch."""
    checked = as_queries(queries, "candidates")
    check_candidates(checked)
    check_vectors(checked, searcher.models.pin)

    def read(launch: Launch) -> Evidence:
        found = searcher.ask(launch, checked, 1, strategy, options, CollectJob, EvidenceJob)
        return _weave(len(checked), found, strategy)

    return searcher.declaring(lambda: searcher.retry(read), checked)


class CollectJob(Job):
    """Queries whose candidates one shard gives."""

    _place = 0

    def send(self, counted: Counted) -> None:
        answerer = self.routed.part.answerer
        assert isinstance(answerer, Strategy)
        self._place = self.launch.add(self.shard, Collect(self.queries, answerer, self.options))

    def receive(self) -> Collected:
        found: Collected = self.launch.answer(self.shard, self._place)
        return found


class EvidenceJob(SpreadJob):
    """Queries whose candidates several shards give. BM25 alone has candidates too."""

    listing = False

    def receive(self) -> Collected:
        merged = self.join({shard: self.launch.answer(shard, place) for shard, place in self.places.items()})
        return merged.candidates, merged.ids


def _weave(count: int, found: Sequence[tuple[Part, Collected]], strategy: Strategy) -> Evidence:
    """The candidates of all rows, in the order of the batch."""
    sizes, starts = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    now, first = np.full(count, np.nan), 0
    types: list[str | None] = [None] * count
    for part, (own, _) in found:
        rows = np.array(part.rows, dtype=np.int64)
        sizes[rows] = np.diff(own.offsets)
        starts[rows] = first + own.offsets[:-1]
        now[rows] = own.now
        for row, name in zip(part.rows, own.types, strict=True):
            types[row] = name
        first += len(own.documents)
    offsets, places = offsets_of(sizes), ranges(starts, sizes)
    parts = [own for _, (own, _) in found]

    def join(name: str) -> npt.NDArray[np.float64]:
        return np.concatenate([np.zeros(0), *(getattr(part, name) for part in parts)])[places]

    channels = {
        channel.name: _join([part.channels[channel.name] for part in parts]).at(places, offsets)
        for channel in strategy.channels
    }
    documents: Integers = np.concatenate([np.zeros(0, dtype=np.int64), *(part.documents for part in parts)])[places]
    ids: Objects = np.concatenate([np.zeros(0, dtype=object), *(named for _, (_, named) in found)])[places]
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
