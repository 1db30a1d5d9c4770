"""Score one query over one segment without its hopeless tiles; the same candidates as exhaustive scoring.

The bound of a tile is the sum of its terms' largest contributions there (A017, per tile). The most promising tiles are
scored first; their k-th score is a threshold that most other tiles cannot reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..engine.arrays import ranges
from ..engine.index.contributions import TILE_BITS, TileBounds
from ..engine.plan.plan import Plan, SegmentPlan

Integers = npt.NDArray[np.int64]

TILE = 1 << TILE_BITS

# Tiles scored first, unless k asks for more.
MIN_TILES = 16


def score_tiles(plan: Plan, part: SegmentPlan, query: int, k: int, floor: int) -> tuple[Integers, Integers]:
    """(documents ascending, scores) of all that can be among a query's k best and score at least `floor` (at least 1).

    The contributions must not be signed.
    """
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
    for own, multiplicity in lists:
        bounds[own.tiles] += np.multiply(own.maxima, multiplicity, dtype=np.int64)
    first = max(MIN_TILES, 2 * k)
    if first >= tiles:
        return _score_tiles(part, lists, np.flatnonzero(bounds >= floor), tiles, floor, passing)
    promising = np.argpartition(bounds, tiles - first)[tiles - first :]
    promising.sort()
    documents, scores = _score_tiles(part, lists, promising, tiles, floor, passing)
    if len(scores) >= k:
        floor = max(floor, int(np.partition(scores, len(scores) - k)[len(scores) - k]))
        kept = scores >= floor
        documents, scores = documents[kept], scores[kept]
    bounds[promising] = 0
    rest_documents, rest_scores = _score_tiles(part, lists, np.flatnonzero(bounds >= floor), tiles, floor, passing)
    documents = np.concatenate([documents, rest_documents])
    scores = np.concatenate([scores, rest_scores])
    order = np.argsort(documents)
    return documents[order], scores[order]


def _score_tiles(
    part: SegmentPlan,
    lists: Sequence[tuple[TileBounds, int]],
    chosen: Integers,
    tiles: int,
    floor: int,
    passing: npt.NDArray[np.bool_] | None,
) -> tuple[Integers, Integers]:
    """(documents, scores) of the matching documents of the chosen tiles (ascending) that reach the floor."""
    sums = np.zeros(len(chosen) * TILE, dtype=np.int64)
    slot_of = np.full(tiles, -1, dtype=np.int64)
    slot_of[chosen] = np.arange(len(chosen))
    for own, multiplicity in lists:
        slots = slot_of[own.tiles]
        entered = np.flatnonzero(slots >= 0)
        lengths = own.starts[entered + 1] - own.starts[entered]
        where = ranges(own.starts[entered], lengths)
        place = np.repeat(slots[entered] << TILE_BITS, lengths) + (part.segment.documents[where] & (TILE - 1))
        sums[place] += np.multiply(part.contributions.quanta[where], multiplicity, dtype=np.int64)
    place = np.flatnonzero(sums >= floor)
    documents = (chosen[place >> TILE_BITS] << TILE_BITS) + (place & (TILE - 1))
    scores = sums[place]
    if passing is not None:
        kept = passing[documents]
        documents, scores = documents[kept], scores[kept]
    return documents, scores
