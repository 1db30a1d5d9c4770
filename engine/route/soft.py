"""The hits of a soft router: fuses the lists of several strategies by rank (SPEC A097)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..fuse.candidates import Candidates, Channel, best, rank_row
from ..hybrid.evidence import NUMBER_BITS
from ..hybrid.explain import explain_fused
from ..records.explanation import FusedExplanation
from ..records.hits import Hits
from ..records.record import RecordsOf
from ..search.batch import Batch
from ..search.explain import number_of, position_of
from ..search.shaping import Pages
from .router import Router


class SoftAnswer:
    """The lists of several strategies, fused by rank into one list for each query."""

    def __init__(
        self,
        batch: Batch,
        weights: Sequence[Mapping[str, float]],
        lists: Mapping[str, tuple[list[int], Hits]],
        router: Router,
    ) -> None:
        self.batch, self.router = batch, router
        self.served = ", ".join(dict.fromkeys(hits.backend for _, hits in lists.values()))
        keys, scores = {}, {}
        for name, (places, hits) in lists.items():
            row, column = np.nonzero(hits.documents >= 0)
            keys[name] = np.array(places, dtype=np.int64)[row] << NUMBER_BITS | hits.documents[row, column]
            scores[name] = hits.scores[row, column]
        every = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *keys.values()]))
        offsets = np.searchsorted(every, np.arange(len(batch) + 1) << NUMBER_BITS)
        channels = {}
        for name, listed_keys in keys.items():
            at = np.searchsorted(every, listed_keys)
            listed, values = np.zeros(len(every), dtype=np.bool_), np.zeros(len(every))
            listed[at], values[at] = True, scores[name]
            channels[name] = Channel(values, listed, listed, offsets)
        unknown = np.full(len(every), np.nan)
        types = tuple(query.type for query in batch.queries)
        now = np.full(len(batch), np.nan)
        self.candidates = Candidates(offsets, every & (1 << NUMBER_BITS) - 1, channels, now, unknown, unknown, types)
        self.fused = router.blend(weights, self.candidates)

    def hits(self, records: RecordsOf | None) -> Hits:
        """The hits of the batch. `records` is as for `Pages`."""
        batch = self.batch
        limits = np.array([prepared.k for prepared in batch.asked], dtype=np.int64)
        scores, documents, _ = best(self.fused, self.candidates, limits, batch.width)
        counts = (documents >= 0).sum(axis=1).astype(np.int32)
        pages = Pages.of(batch, records)
        if pages is not None:
            pages.take({row: rank_row(self.candidates, self.fused, row) for row in pages.wanted}, complete=True)
            scores, documents, counts = pages.fill(scores, documents, counts)
        return Hits(scores, documents, counts, batch.queries, self.served, batch.resolver(), self.explain)

    def explain(self, position: int, record_id: str) -> FusedExplanation:
        position = position_of(self.batch, position)
        document = number_of(self.batch, position, record_id)
        return explain_fused(
            self.candidates, self.fused, position, document, query=position, id=record_id, strategy=self.router.name
        )
