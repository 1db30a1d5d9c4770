"""The tiles of each query that can hold a hit, those with higher bounds first.

A program owns a query. It takes a vector of tiles at a time, adds up their bounds over blocks of slots, and lists the
tiles that stay. Then it counts them in 64 to 128 equal classes of bounds and puts the classes one behind the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..frame import Window, carve
from ..work import Buffers, Extent, Work
from .decay import decayed
from .launching import compiled_once, launch_by_name
from .segments import FIELDS, LATEST, TILES, array_at

_INT64_MIN = tl.constexpr(-(1 << 63))
_INT64_MAX = tl.constexpr((1 << 63) - 1)
_LOW = tl.constexpr((1 << 32) - 1)


@dataclass(frozen=True)
class Settings:
    tiles: int = 128  # looked at at once
    slots: int = 8  # of these tiles, at a time
    words: int = 8  # of their filter, at a time
    classes: int = 128  # of bounds, at most
    warps: int = 4


def scratch(extent: Extent, settings: Settings) -> list[Window]:
    classes = Window("classes", torch.int32, (extent.queries, settings.classes))
    return [Window("listed", torch.int64, (extent.entries, 2)), classes]


def launch(work: Work, buffers: Buffers, settings: Settings) -> None:
    queries = len(work.query_k)
    if not queries:
        return
    # For sm_90 ptxas would aim at 96 registers, and spill. Decay subtracts and multiplies in float64: each operation
    # rounds by itself.
    options = {"num_warps": settings.warps, "maxnreg": 128, "enable_fp_fusion": False}
    own = carve(buffers.scratch, scratch(work.extent(buffers), settings))
    words = min(settings.words, 1 << (work.tile_bits - 5))
    sizes = {"TILES_AT_ONCE": settings.tiles, "WORDS_AT_ONCE": words}
    launch_by_name(_order, (queries,), options, work, buffers, settings, **own, **sizes)


@compiled_once
def _order(
    segments,  # [S, SEGMENT_FIELDS] int64
    # Queries.
    query_units,  # [Q + 1] int32
    query_k,  # [Q] int32
    query_wide,  # [Q] uint8
    query_now,  # [Q] float64 if DECAYS
    query_rate,  # [Q] float64 if DECAYS
    entry_offset,  # [Q + 1] int64
    # Units.
    unit_segment,  # [U] int32
    unit_filter,  # [U] int64
    unit_low,  # [U] int32
    unit_high,  # [U] int32
    unit_slots,  # [U + 1] int64
    unit_descriptors,  # [U] int64
    decay_table,  # [1 << PART_BITS] int32 if DECAYS
    # Buffers.
    descriptors,  # [descriptors, 3] int64
    thresholds,  # [Q] int64
    listed,  # [entries, 2] int64, scratch: entries in the order of their tiles
    classes,  # [Q, CLASSES] int32, scratch
    entries,  # [entries, 2] int64, written
    entry_counts,  # [Q] int32, written
    progress,  # [2] int64, raised
    # Constants of the launch.
    TILE_BITS: tl.constexpr,
    WIDE: tl.constexpr,
    DECAYS: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
    SLOTS: tl.constexpr,
    WORDS_AT_ONCE: tl.constexpr,
    CLASSES: tl.constexpr,
):
    query = tl.program_id(0)
    room = tl.load(entry_offset + query)
    listed += 2 * room
    count = tl.full((), 0, tl.int32)
    if ((tl.load(query_wide + query) != 0) == WIDE) & (tl.load(query_k + query) > 0):
        threshold = tl.load(thresholds + query)
        most = tl.full((), _INT64_MIN, tl.int64)
        least = tl.full((), _INT64_MAX, tl.int64)
        for unit in range(tl.load(query_units + query), tl.load(query_units + query + 1)):
            row = segments + tl.load(unit_segment + unit) * FIELDS
            tiles = tl.load(row + TILES).to(tl.int32)
            low = tl.load(unit_low + unit)
            high = tl.load(unit_high + unit)
            bitmap = tl.load(unit_filter + unit)
            slots = (tl.load(unit_slots + unit + 1) - tl.load(unit_slots + unit)).to(tl.int32)
            described = descriptors + 3 * tl.load(unit_descriptors + unit)
            end = tl.where(low < high, tl.minimum(tiles, ((high - 1) >> TILE_BITS) + 1), 0)
            for start in range(low >> TILE_BITS, end, TILES_AT_ONCE):
                tile = start + tl.arange(0, TILES_AT_ONCE)
                live = tile < end
                postings, bound = _bounds(described, slots, tiles, tile, live, TILES_AT_ONCE, SLOTS)
                if DECAYS:
                    rate = tl.load(query_rate + query)
                    if rate != 0.0:
                        time = tl.load(array_at(row, LATEST, tl.float64) + tile, mask=live, other=0.0)
                        bound = decayed(bound, time, tl.load(query_now + query), rate, decay_table)
                stays = live & (postings > 0) & (bound >= threshold)
                if bitmap != 0:
                    stays = stays & _any_passes(bitmap, low, high, tile, stays, TILE_BITS, TILES_AT_ONCE, WORDS_AT_ONCE)
                place = count + tl.cumsum(stays.to(tl.int32), axis=0) - 1
                tl.store(listed + 2 * place, bound, mask=stays)
                tl.store(listed + 2 * place + 1, (tile.to(tl.int64) << 32) | unit, mask=stays)
                count += tl.sum(stays.to(tl.int32))
                most = tl.maximum(most, tl.max(tl.where(stays, bound, _INT64_MIN)))
                least = tl.minimum(least, tl.min(tl.where(stays, bound, _INT64_MAX)))
        tl.debug_barrier()
        if count > 0:
            own_classes = classes + query * CLASSES
            _sort(listed, own_classes, entries + 2 * room, count, most, least, TILES_AT_ONCE, CLASSES, DECAYS)
    tl.store(entry_counts + query, count)
    tl.atomic_max(progress, count.to(tl.int64), sem="relaxed")


@triton.jit
def _bounds(
    described,  # [slots, tiles, 3] int64
    slots,  # int32
    tiles,  # int32
    tile,  # [TILES_AT_ONCE] int32
    live,  # [TILES_AT_ONCE] int1
    TILES_AT_ONCE: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """How many postings the unit has in each tile, and the most that they can add up to."""
    postings = tl.zeros((TILES_AT_ONCE,), tl.int32)
    bound = tl.zeros((TILES_AT_ONCE,), tl.int64)
    for start in range(0, slots, SLOTS):
        slot = start + tl.arange(0, SLOTS)
        present = (slot < slots)[:, None] & live[None, :]
        descriptor = described + 3 * (slot.to(tl.int64)[:, None] * tiles + tile[None, :])
        maximum = tl.load(descriptor + 1, mask=present, other=0)
        counted = tl.load(descriptor + 2, mask=present, other=0)
        postings += tl.sum((counted & _LOW).to(tl.int32), axis=0)
        bound += tl.sum((counted >> 32) * maximum, axis=0)
    return postings, bound


@triton.jit
def _any_passes(
    bitmap,  # int64, address of int32 [ceil(documents / 32)]
    low,  # int32
    high,  # int32
    tile,  # [TILES_AT_ONCE] int32
    live,  # [TILES_AT_ONCE] int1
    TILE_BITS: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
    WORDS_AT_ONCE: tl.constexpr,
):
    """Whether any document of [low, high), which is not empty, passes the filter in each tile."""
    first, last = low >> 5, (high - 1) >> 5
    from_low = (tl.full((), _LOW, tl.uint32) << (low & 31)).to(tl.int32)
    to_high = (tl.full((), _LOW, tl.uint32) >> (31 - ((high - 1) & 31))).to(tl.int32)
    passes = tl.zeros((TILES_AT_ONCE,), tl.int32)
    for start in range(0, 1 << (TILE_BITS - 5), WORDS_AT_ONCE):
        word = (tile << (TILE_BITS - 5))[:, None] + (start + tl.arange(0, WORDS_AT_ONCE))[None, :]
        present = live[:, None] & (word >= first) & (word <= last)
        bits = tl.load(bitmap.to(tl.pointer_type(tl.int32)) + word, mask=present, other=0)
        bits = tl.where(word == first, bits & from_low, bits)
        bits = tl.where(word == last, bits & to_high, bits)
        passes = tl.maximum(passes, tl.max((bits != 0).to(tl.int32), axis=1))
    return passes > 0


@triton.jit
def _sort(
    listed,  # [count, 2] int64
    classes,  # [CLASSES] int32, scratch
    entries,  # [count, 2] int64, written
    count,  # int32
    most,  # int64, the highest bound
    least,  # int64, the lowest bound
    TILES_AT_ONCE: tl.constexpr,
    CLASSES: tl.constexpr,
    LAST_FIRST: tl.constexpr,
):
    """Class by class; within a class about in the order of the tiles, or from the last, which is the youngest, on."""
    # A class is as wide as a power of two. A division would cost a spill and buy nothing.
    shift = tl.full((), 0, tl.int32)
    while ((most - least) >> shift) >= CLASSES:
        shift += 1
    number = classes + tl.arange(0, CLASSES)
    tl.store(number, tl.zeros((CLASSES,), tl.int32))
    # First each class is counted, then where it begins is counted up.
    tl.debug_barrier()
    for start in range(0, count, TILES_AT_ONCE):
        place = start + tl.arange(0, TILES_AT_ONCE)
        live = place < count
        bound = tl.load(listed + 2 * place, mask=live, other=0)
        tl.atomic_add(classes + ((most - bound) >> shift), 1, mask=live, sem="relaxed")
    tl.debug_barrier()
    # The atomics were done in the second-level cache.
    sizes = tl.load(number, cache_modifier=".cg")
    tl.debug_barrier()
    tl.store(number, tl.cumsum(sizes, axis=0) - sizes)
    tl.debug_barrier()
    for start in range(0, count, TILES_AT_ONCE):
        place = start + tl.arange(0, TILES_AT_ONCE)
        live = place < count
        if LAST_FIRST:
            place = count - 1 - place
        bound = tl.load(listed + 2 * place, mask=live, other=0)
        target = tl.atomic_add(classes + ((most - bound) >> shift), 1, mask=live, sem="relaxed")
        tl.store(entries + 2 * target, bound, mask=live)
        tl.store(entries + 2 * target + 1, tl.load(listed + 2 * place + 1, mask=live, other=0), mask=live)
