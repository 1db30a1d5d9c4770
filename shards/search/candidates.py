"""The candidates of a strategy over all shards, with what its channels say of each: `ShardedSearcher.collect`.

Rows whose records lie in one shard, or in a whole copy, are collected there as one engine collects them. Those of rows
over several shards are joined as a search joins them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...engine.arrays import Integers
from ...engine.hybrid.evidence import Evidence
from ...engine.hybrid.strategy import Strategy
from ...engine.route.parts import Part
from ..protocol.messages import Collect, Collected
from .jobs import Counted, Job, SpreadJob
from .merge import concatenated

Objects = npt.NDArray[np.object_]


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


def weave(found: Sequence[tuple[Part, Collected]]) -> Evidence:
    """The candidates of all rows, in the order of the batch."""
    rows = np.array([row for part, _ in found for row in part.rows], dtype=np.int64)
    candidates, places = concatenated([own for _, (own, _) in found]).take(np.argsort(rows))
    ids: Objects = np.concatenate([named for _, (_, named) in found])[places]

    def resolve(given: Integers) -> Objects:
        assert len(given) == len(ids)
        return ids

    return candidates, resolve
