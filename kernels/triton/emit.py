"""The k best of a tile, as candidates.

The scores are read back from the slab into registers. The k-th is found by bisection and counting. The scores that
count are written to the slab again and leave it chunk by chunk, as a whole tile's places would not fit the registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decay import decayed

_LOW = tl.constexpr((1 << 32) - 1)
_INT32_MIN = tl.constexpr(-(1 << 31))
_INT32_MAX = tl.constexpr((1 << 31) - 1)
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
    scores,  # [TILE] int64 if LONG_KEYS, else int32; scratch, or `sums` where they are of one type
    TILE_BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    LONG_KEYS: tl.constexpr,
    DECAYS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Emit the k best of the tile and raise the threshold to the k-th; leaves the slab cleared."""
    TILE: tl.constexpr = 1 << TILE_BITS
    local = tl.arange(0, TILE)
    # The atomics were done in the second-level cache.
    score = tl.load(sums + local, cache_modifier=".cg")
    eligible = tl.load(matched + local) != 0 if SIGNED else score > 0
    # No score is as low as this, so it marks what is not eligible.
    ABSENT: tl.constexpr = _INT64_MIN if LONG_KEYS else _INT32_MIN
    HIGHEST: tl.constexpr = _INT64_MAX if LONG_KEYS else _INT32_MAX
    document = (tile << TILE_BITS) + local
    eligible = eligible & (document >= low) & (document < high)
    if bitmap != 0:
        word = tl.load(bitmap.to(tl.pointer_type(tl.int32)) + (document >> 5), mask=eligible, other=0)
        eligible = eligible & (((word >> (document & 31)) & 1) != 0)
    if LONG_KEYS:
        score = score.to(tl.int64)
    if DECAYS:
        score = _decay_tile(score, eligible, times + document, now, rate, decay_table)
    lowest = threshold if LONG_KEYS else tl.minimum(tl.maximum(threshold, _INT32_MIN), _INT32_MAX).to(tl.int32)
    score = tl.where(eligible & (score >= lowest), score, ABSENT)
    count = tl.sum((score != ABSENT).to(tl.int32))
    # Where the tile is smaller than the program, several threads hold one document: all must read before one writes.
    tl.debug_barrier()
    if count > 0:
        tl.store(scores + local, score)
        level = tl.min(tl.where(score == ABSENT, HIGHEST, score))
        surplus = tl.full((), 0, tl.int32)
        if count >= k:
            # Bisection: `reached` documents, at least k, score `lower` or more; none scores more than `upper`.
            lower = level.to(tl.int64)
            upper = tl.max(score).to(tl.int64)
            reached = count
            while (reached != k) & (lower < upper):
                middle = upper - (upper - lower) // 2
                above = tl.sum((score >= middle.to(score.dtype)).to(tl.int32))
                lower = tl.where(above >= k, middle, lower)
                upper = tl.where(above >= k, upper, middle - 1)
                reached = tl.where(above >= k, above, reached)
            level = lower.to(score.dtype)
            surplus = reached - k
            worst = tl.min(tl.where(score >= level, score, HIGHEST))
            tl.atomic_max(query_threshold, worst.to(tl.int64), sem="relaxed")
        room += tl.atomic_add(query_count, tl.minimum(count, k), sem="relaxed")
        tl.debug_barrier()
        _store(
            keys + room,
            documents + room,
            first + (tile << TILE_BITS),
            level,
            tl.sum((score == level).to(tl.int32)) - surplus,
            scores,
            TILE,
            CHUNK,
            LONG_KEYS,
        )
        tl.debug_barrier()
    tl.store(sums + local, tl.zeros((TILE,), sums.dtype.element_ty))
    if SIGNED:
        tl.store(matched + local, tl.zeros((TILE,), tl.uint8))


@triton.jit
def _decay_tile(score, eligible, times, now, rate, table):
    """The scores of a tile's eligible documents, decayed if the query's do."""
    if rate != 0.0:
        score = decayed(score, tl.load(times, mask=eligible, other=0.0), now, rate, table)
    return score


@triton.jit
def _store(
    keys,  # [room] int64, written
    documents,  # [room] int32 if LONG_KEYS, written
    first,  # int64, number of the tile's first document
    level,  # int64 if LONG_KEYS, else int32
    kept,  # int32
    scores,  # [TILE] int64 if LONG_KEYS, else int32
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    LONG_KEYS: tl.constexpr,
):
    """Store what scores more than `level`, and the first `kept` documents that score it."""
    for start in range(0, TILE, CHUNK):
        local = start + tl.arange(0, CHUNK)
        score = tl.load(scores + local)
        above = (score > level).to(tl.int32)
        tied = (score == level).to(tl.int32)
        # Both counts in one scan.
        ranks = tl.cumsum(above | (tied << 16), axis=0)
        tied_rank = ranks >> 16
        index = (ranks & 0xFFFF) + tl.minimum(tied_rank, kept) - 1
        taken = (score > level) | ((score == level) & (tied_rank <= kept))
        low_half = (first + local) ^ _LOW
        if LONG_KEYS:
            tl.store(keys + index, score, mask=taken)
            tl.store(documents + index, low_half.to(tl.int32), mask=taken)
        else:
            tl.store(keys + index, (score.to(tl.int64) << 32) | low_half, mask=taken)
        tied_here = tl.minimum(tl.sum(tied), kept)
        kept -= tied_here
        stored = tl.sum(above) + tied_here
        keys += stored
        documents += stored
