"""Score one query over the tiles of one segment that can hold a hit; the same candidates as exhaustive scoring.

The bound of a tile is the sum of its terms' largest contributions there (A017, per tile). The most promising tiles are
scored first; their k-th score is a threshold that most other tiles cannot reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Integers, ranges
from ..engine.index.contributions import TILE_BITS, TileBounds
from ..engine.plan.plan import Plan, SegmentPlan
from .segment_work import SegmentWork

TILE = 1 << TILE_BITS

# Tiles scored first, unless k asks for more.
MIN_TILES = 16


def score_tiles(plan: Plan, work: SegmentWork, row: int, k: int, threshold: int) -> tuple[Integers, Integers, Integers]:
    """(row 0, document, score), documents ascending, of all that can be among the k best of this row of `work` and
    score `threshold` or more.

    The threshold is at least 1. The contributions must not be signed, and all lists of the row must be derived.
    """
    searched = int(work.low[row]), int(work.high[row])
    documents, scores = _search_tiles(plan, work.part, int(work.queries[row]), k, threshold, searched)
    return np.zeros_like(documents), documents, scores


def _search_tiles(
    plan: Plan, part: SegmentPlan, query: int, k: int, threshold: int, searched: tuple[int, int]
) -> tuple[Integers, Integers]:
    """(documents, scores) as `score_tiles`, of the query's documents in the range `searched`."""
    slots = slice(plan.offsets[query], plan.offsets[query + 1])
    terms, multiplicities = plan.slots[slots].tolist(), plan.multiplicities[slots].tolist()
    passing = part.mask(query)
    lists = [
        (part.contributions.tile_bounds(int(part.positions[term])), multiplicity)
        for term, multiplicity in zip(terms, multiplicities, strict=True)
        if part.positions[term] >= 0
    ]
    tiles = -(-part.segment.size // TILE)
    bounds = np.zeros(tiles, dtype=np.int64)
    for tile_bounds, multiplicity in lists:
        bounds[tile_bounds.tiles] += np.multiply(tile_bounds.maxima, multiplicity, dtype=np.int64)
    bounds[: searched[0] >> TILE_BITS] = 0
    bounds[-(-searched[1] // TILE) :] = 0
    first = max(MIN_TILES, 2 * k)
    if first >= tiles:
        return _score_tiles(part, lists, np.flatnonzero(bounds >= threshold), tiles, threshold, passing, searched)
    promising = np.argpartition(bounds, tiles - first)[tiles - first :]
    promising.sort()
    documents, scores = _score_tiles(part, lists, promising, tiles, threshold, passing, searched)
    if len(scores) >= k:
        threshold = max(threshold, int(np.partition(scores, len(scores) - k)[len(scores) - k]))
        kept = scores >= threshold
        documents, scores = documents[kept], scores[kept]
    bounds[promising] = 0
    other_documents, other_scores = _score_tiles(
        part, lists, np.flatnonzero(bounds >= threshold), tiles, threshold, passing, searched
    )
    documents = np.concatenate([documents, other_documents])
    scores = np.concatenate([scores, other_scores])
    order = np.argsort(documents)
    return documents[order], scores[order]


def _score_tiles(
    part: SegmentPlan,
    lists: Sequence[tuple[TileBounds, int]],
    chosen: Integers,
    tiles: int,
    threshold: int,
    passing: npt.NDArray[np.bool_] | None,
    searched: tuple[int, int],
) -> tuple[Integers, Integers]:
    """(documents, scores) of the matching documents of the chosen tiles (ascending) that lie in the range `searched`
    and reach the threshold.
    """
    sums = np.zeros(len(chosen) * TILE, dtype=np.int64)
    slot_of = np.full(tiles, -1, dtype=np.int64)
    slot_of[chosen] = np.arange(len(chosen))
    for tile_bounds, multiplicity in lists:
        slots = slot_of[tile_bounds.tiles]
        entered = np.flatnonzero(slots >= 0)
        lengths = tile_bounds.starts[entered + 1] - tile_bounds.starts[entered]
        postings = ranges(tile_bounds.starts[entered], lengths)
        places = np.repeat(slots[entered] << TILE_BITS, lengths) + (part.segment.documents[postings] & (TILE - 1))
        sums[places] += np.multiply(part.contributions.quanta[postings], multiplicity, dtype=np.int64)
    places = np.flatnonzero(sums >= threshold)
    documents = (chosen[places >> TILE_BITS] << TILE_BITS) + (places & (TILE - 1))
    scores = sums[places]
    inside = slice(*np.searchsorted(documents, searched))
    documents, scores = documents[inside], scores[inside]
    if passing is not None:
        kept = passing[documents]
        documents, scores = documents[kept], scores[kept]
    return documents, scores
