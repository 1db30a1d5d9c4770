"""The k best of a tile, as candidates.

The scores are read back from the slab into registers. The k-th is found by bisection and counting; what ranks as high
takes the next places of the query's candidates by atomics, as a scan of a whole tile is much code.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decay import decayed

_LOW = tl.constexpr((1 << 32) - 1)
_INT64_MIN = tl.constexpr(-(1 << 63))
_INT64_MAX = tl.constexpr((1 << 63) - 1)


@triton.jit
def emit(
    tile,  # int32
    low,  # int32, first document of the segment that counts
    high,  # int32, the document after the last that counts
    bitmap,  # int64, address of int32 [ceil(documents / 32)], or 0
    threshold,  # int64
    k,  # int32
    first,  # int64, number of the segment's first document
    room,  # int64, where the query's candidates begin
    query_threshold,  # [1] int64, raised
    query_count,  # [1] int32, raised
    keys,  # [candidates] int64, written
    documents,  # [candidates] int32 if LONG_KEYS, written
    times,  # [documents of the segment] float64 if DECAYS
    now,  # float64 if DECAYS, seconds
    rate,  # float64 if DECAYS, ticks a second
    decay_table,  # [1 << PART_BITS] int32 if DECAYS
    sums,  # [TILE] int64 if WIDE, else int32; cleared
    matched,  # [TILE] uint8 if SIGNED; cleared
    TILE_BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    LONG_KEYS: tl.constexpr,
    DECAYS: tl.constexpr,
):
    """Emit the k best of the tile and raise the threshold to the k-th; leaves the slab cleared."""
    TILE: tl.constexpr = 1 << TILE_BITS
    local = tl.arange(0, TILE)
    # The atomics were done in the second-level cache.
    score = tl.load(sums + local, cache_modifier=".cg")
    eligible = tl.load(matched + local) != 0 if SIGNED else score > 0
    document = (tile << TILE_BITS) + local
    eligible = eligible & (document >= low) & (document < high)
    if bitmap != 0:
        word = tl.load(bitmap.to(tl.pointer_type(tl.int32)) + (document >> 5), mask=eligible, other=0)
        eligible = eligible & (((word >> (document & 31)) & 1) != 0)
    score = score.to(tl.int64)
    if DECAYS:
        score = _decay_tile(score, eligible, times + document, now, rate, decay_table)
    # What is ranked: a score, with the document where there is room for both. No score is as low as _INT64_MIN.
    BITS: tl.constexpr = 0 if LONG_KEYS else TILE_BITS
    rank = score if LONG_KEYS else (score << BITS) | (TILE - 1 - local)
    rank = tl.where(eligible & (score >= threshold), rank, _INT64_MIN)
    count = tl.sum((rank != _INT64_MIN).to(tl.int32))
    # Where the tile is smaller than the program, several threads hold one document: all must read before one writes.
    tl.debug_barrier()
    tl.store(sums + local, tl.zeros((TILE,), sums.dtype.element_ty))
    if SIGNED:
        tl.store(matched + local, tl.zeros((TILE,), tl.uint8))
    if count > 0:
        # Bisection: `reached` documents, at least k where there are so many, rank `level` or more; none above `upper`.
        reached = count
        upper = tl.max(rank)
        level = tl.min(tl.where(rank == _INT64_MIN, _INT64_MAX, rank))
        while (reached > k) & (level < upper):
            middle = upper - (upper - level) // 2
            above = tl.sum((rank >= middle).to(tl.int32))
            level = tl.where(above >= k, middle, level)
            upper = tl.where(above >= k, upper, middle - 1)
            reached = tl.where(above >= k, above, reached)
        taken = rank >= level
        if count >= k:
            worst = tl.min(tl.where(taken, rank, _INT64_MAX))
            tl.atomic_max(query_threshold, worst >> BITS, sem="relaxed")
        if LONG_KEYS:  # noqa: SIM102 as a constant it leaves the code out
            if reached > k:
                last = _last_of_ties(rank, level, local, k, TILE)
                taken = (rank > level) | ((rank == level) & (local <= last))
        # In any order.
        place = room + tl.atomic_add(query_count + tl.zeros((TILE,), tl.int32), 1, mask=taken, sem="relaxed")
        low_half = (first + document) ^ _LOW
        if LONG_KEYS:
            tl.store(keys + place, score, mask=taken)
            tl.store(documents + place, low_half.to(tl.int32), mask=taken)
        else:
            tl.store(keys + place, (score << 32) | low_half, mask=taken)


@triton.jit
def _last_of_ties(rank, level, local, k, TILE: tl.constexpr):
    """The document up to which those at `level` are among the k best."""
    first, last = tl.full((), 0, tl.int32), tl.full((), TILE - 1, tl.int32)
    while first < last:
        middle = (first + last) // 2
        above = tl.sum(((rank > level) | ((rank == level) & (local <= middle))).to(tl.int32))
        first = tl.where(above >= k, first, middle + 1)
        last = tl.where(above >= k, middle, last)
    return last


@triton.jit
def _decay_tile(score, eligible, times, now, rate, table):
    """The scores of a tile's eligible documents, decayed if the query's do."""
    if rate != 0.0:
        score = decayed(score, tl.load(times, mask=eligible, other=0.0), now, rate, table)
    return score
