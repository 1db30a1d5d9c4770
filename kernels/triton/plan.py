"""What a launch knows of each slot in each tile, from terms that the host or the device looked up.

A program of one warp owns a slot: it copies a long list's rows of the epoch's tables, or streams a short list once. The
first programs set up what belongs to queries and units instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from ..work import UNBOUNDED, Buffers, TermBatch, Work
from .derive import float64_of, halves
from .launching import compiled_once, launch_by_name
from .segments import (
    ALIVE,
    DOCUMENT,
    FIELDS,
    OFFSETS,
    ROW_CUTS,
    ROW_MAXIMA,
    ROWS,
    SIZE,
    TERM_COUNT,
    TERMS,
    TILE_OFFSET,
    TILES,
    WORDS,
    array_at,
    quanta_at,
)

_UNBOUNDED = tl.constexpr(UNBOUNDED)
# Compared as a float64, but an integer here: Triton 3.6 rounds a constant that is a float to float32.
_WIDE_FROM = tl.constexpr((1 << 31) - 1)


@dataclass(frozen=True)
class Settings:
    tiles: int = 128  # descriptors written at once
    postings: int = 256  # of a short list, at a time
    ways: int = 128  # keys that a step of a search looks at
    begun: int = 32  # queries and units that a program sets up
    terms: int = 8  # of each of these queries, whose weights are added at once


def launch_describe(work: Work, buffers: Buffers, settings: Settings) -> None:
    queries, slots = len(work.query_k), len(work.slot_unit)
    beginning = max(1, triton.cdiv(queries, settings.begun))
    own = {"queries": queries, "beginning": beginning, "LONG": work.long_quanta, "TILES_AT_ONCE": settings.tiles}
    launch_by_name(_describe, (beginning + slots,), {"num_warps": 1}, work, buffers, settings, **own)


def launch_plan(batch: TermBatch, work: Work, buffers: Buffers, settings: Settings) -> None:
    queries, segments, terms = len(work.query_k), len(work.segments), len(batch.terms)
    beginning = triton.cdiv(max(queries, queries * segments) + 1, settings.begun)
    launch_by_name(
        _plan,
        (beginning + terms * segments,),
        {"num_warps": 1, "enable_fp_fusion": False},
        batch,
        work,
        buffers,
        settings,
        queries=queries,
        beginning=beginning,
        segment_count=segments,
        numbers=halves(0.0 if batch.widest is None else batch.widest),
        weights=batch.offsets if batch.weights is None else batch.weights,
        LONG=work.long_quanta,
        WEIGHTED=batch.weights is not None,
        MEASURED=batch.widest is not None,
        TILES_AT_ONCE=settings.tiles,
        TERMS_AT_ONCE=settings.terms,
    )


@compiled_once
def _describe(
    queries,  # int32
    beginning,  # int32, programs that begin the launch
    segments,  # [S, SEGMENT_FIELDS] int64
    unit_segment,  # [U] int32
    unit_slots,  # [U + 1] int64
    unit_descriptors,  # [U] int64
    slot_unit,  # [slots] int32
    slot_position,  # [slots] int32
    slot_weight,  # [slots] int32
    descriptors,  # [descriptors, 3] int64, written
    progress,  # [2] int64, written
    thresholds,  # [Q] int64, written
    counts,  # [Q] int32, written
    TILE_BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    LONG: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
    POSTINGS: tl.constexpr,
    BEGUN: tl.constexpr,
):
    slot = tl.program_id(0) - beginning
    if slot < 0:
        _begin(tl.program_id(0) * BEGUN + tl.arange(0, BEGUN), queries, progress, thresholds, counts, SIGNED)
    else:
        unit = tl.load(slot_unit + slot)
        row = segments + tl.load(unit_segment + unit) * FIELDS
        tiles = tl.load(row + TILES)
        target = tl.load(unit_descriptors + unit) + (slot - tl.load(unit_slots + unit)) * tiles
        position, weight = tl.load(slot_position + slot), tl.load(slot_weight + slot)
        _describe_slot(row, position, weight, descriptors + 3 * target, TILE_BITS, LONG, TILES_AT_ONCE, POSTINGS)


@compiled_once
def _plan(
    queries,  # int32, Q
    beginning,  # int32, programs that set up queries and units
    segment_count,  # int32, S
    k,  # int32
    tiles,  # int32, entries of a query, and descriptors of a term
    candidates,  # int32, of a query
    numbers,  # `halves` of the largest contribution
    # The batch.
    terms,  # [T] int64
    offsets,  # [Q + 1] int64
    weights,  # [T] int32 if WEIGHTED
    segments,  # [S, SEGMENT_FIELDS] int64
    # The work, written.
    query_units,  # [Q + 1] int32
    query_k,  # [Q] int32
    query_wide,  # [Q] uint8
    candidate_offset,  # [Q + 1] int64
    entry_offset,  # [Q + 1] int64
    unit_segment,  # [U] int32
    unit_filter,  # [U] int64
    unit_low,  # [U] int32
    unit_high,  # [U] int32
    unit_slots,  # [U + 1] int64
    unit_descriptors,  # [U] int64
    # Buffers, written.
    descriptors,  # [descriptors, 3] int64
    progress,  # [2] int64
    thresholds,  # [Q] int64
    counts,  # [Q] int32
    TILE_BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    LONG: tl.constexpr,
    WEIGHTED: tl.constexpr,
    MEASURED: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
    POSTINGS: tl.constexpr,
    WAYS: tl.constexpr,
    BEGUN: tl.constexpr,
    TERMS_AT_ONCE: tl.constexpr,
):
    number = tl.program_id(0) - beginning
    if number < 0:
        # A number is a query's, and a unit's. Triton wants no name of the other branch here, whose type differs.
        query = tl.program_id(0) * BEGUN + tl.arange(0, BEGUN)
        tl.store(query_units + query, query * segment_count, mask=query <= queries)
        tl.store(candidate_offset + query, query.to(tl.int64) * candidates, mask=query <= queries)
        tl.store(entry_offset + query, query.to(tl.int64) * tiles, mask=query <= queries)
        asked = query < queries
        tl.store(query_k + query, tl.zeros((BEGUN,), tl.int32) + k, mask=asked)
        if MEASURED:
            total = _weight_of(query, queries, offsets, weights, BEGUN, TERMS_AT_ONCE, WEIGHTED).to(tl.float64)
            is_wide = total * float64_of(numbers, 0) >= tl.full((), _WIDE_FROM, tl.int64).to(tl.float64)
        else:
            is_wide = tl.full((BEGUN,), LONG, tl.int1)
        tl.store(query_wide + query, is_wide.to(tl.uint8), mask=asked)

        unit = query
        units = queries * segment_count
        live = unit < units
        own_query = unit // segment_count
        segment = unit % segment_count
        rows = segments + segment * FIELDS
        first = tl.load(offsets + own_query, mask=unit <= units, other=0)
        own_terms = tl.load(offsets + own_query + 1, mask=live, other=0) - first
        tl.store(unit_segment + unit, segment, mask=live)
        tl.store(unit_filter + unit, tl.load(rows + ALIVE, mask=live, other=0), mask=live)
        tl.store(unit_low + unit, tl.zeros((BEGUN,), tl.int32), mask=live)
        tl.store(unit_high + unit, tl.load(rows + SIZE, mask=live, other=0).to(tl.int32), mask=live)
        tl.store(unit_slots + unit, first * segment_count + segment * own_terms, mask=unit <= units)
        tiles_before = tl.load(rows + TILE_OFFSET, mask=live, other=0)
        tl.store(unit_descriptors + unit, first * tiles + tiles_before * own_terms, mask=live)
        _begin(query, queries, progress, thresholds, counts, SIGNED)
    else:
        term = number // segment_count
        row = segments + number % segment_count * FIELDS
        # A batch may be shorter than its room, and begin behind its start.
        if (term >= tl.load(offsets)) & (term < tl.load(offsets + queries)):
            owner = _last_at_most(offsets, queries, term, WAYS)
            begin = tl.load(offsets + owner)
            length = tl.load(offsets + owner + 1) - begin
            target = begin * tiles + length * tl.load(row + TILE_OFFSET) + (term - begin) * tl.load(row + TILES)
            position = tl.full((), -1, tl.int32)
            wanted = tl.load(terms + term)
            segment_terms = array_at(row, TERMS, tl.int32)
            place = _last_at_most(segment_terms, tl.load(row + TERM_COUNT).to(tl.int32), wanted, WAYS)
            if place >= 0:
                position = tl.where(tl.load(segment_terms + place) == wanted, place, -1)
            weight = tl.load(weights + term) if WEIGHTED else tl.full((), 1, tl.int32)
            _describe_slot(row, position, weight, descriptors + 3 * target, TILE_BITS, LONG, TILES_AT_ONCE, POSTINGS)


@triton.jit
def _begin(query, queries, progress, thresholds, counts, SIGNED: tl.constexpr):
    """Begin the launch for a vector of queries."""
    live = query < queries
    tl.store(thresholds + query, tl.zeros(query.shape, tl.int64) + (_UNBOUNDED if SIGNED else 1), mask=live)
    tl.store(counts + query, tl.zeros(query.shape, tl.int32), mask=live)
    tl.store(progress + query, tl.zeros(query.shape, tl.int64), mask=query < 2)


@triton.jit
def _weight_of(
    query,  # [BEGUN] int32
    queries,  # int32
    offsets,  # [Q + 1] int64
    weights,  # [T] int32 if WEIGHTED
    BEGUN: tl.constexpr,
    TERMS_AT_ONCE: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """The sum of each query's weights."""
    live = query < queries
    begin = tl.load(offsets + query, mask=live, other=0)
    total = tl.load(offsets + query + 1, mask=live, other=0) - begin
    if WEIGHTED:
        length = total
        total = tl.zeros((BEGUN,), tl.int64)
        for start in range(0, tl.max(length), TERMS_AT_ONCE):
            column = start + tl.arange(0, TERMS_AT_ONCE)[None, :]
            weight = tl.load(weights + begin[:, None] + column, mask=column < length[:, None], other=0)
            total += tl.sum(weight.to(tl.int64), axis=1)
    return total


@triton.jit
def _last_at_most(keys, count, value, WAYS: tl.constexpr):
    """The place of the last of `count` ascending keys that is at most `value`; -1 if none is.

    Each step divides what is left by WAYS: a vocabulary of 200,000 terms takes three dependent loads, not 18.
    """
    low = tl.full((), -1, tl.int32)
    high = count
    while high - low > 1:
        step = (high - low - 1 + WAYS - 1) // WAYS
        place = low + step * (1 + tl.arange(0, WAYS))
        inside = place < high
        at_most = inside & (tl.load(keys + place, mask=inside, other=0) <= value)
        low += step * tl.sum(at_most.to(tl.int32))
        high = tl.minimum(high, low + step)
    return low


@triton.jit
def _describe_slot(
    row,  # [SEGMENT_FIELDS] int64
    position,  # int32, of the term among the segment's, or -1
    weight,  # int32
    target,  # [tiles, 3] int64, written
    TILE_BITS: tl.constexpr,
    LONG: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
    POSTINGS: tl.constexpr,
):
    tiles = tl.load(row + TILES)
    list_row = tl.full((), -1, tl.int32)
    begin = tl.full((), 0, tl.int64)
    length = tl.full((), 0, tl.int64)
    if position >= 0:
        offset = array_at(row, OFFSETS, tl.int64) + position
        begin = tl.load(offset)
        length = tl.load(offset + 1) - begin
        list_row = tl.load(array_at(row, ROWS, tl.int32) + position)
    weight_half = weight.to(tl.int64) << 32
    for start in range(0, tiles, TILES_AT_ONCE):
        tile = start + tl.arange(0, TILES_AT_ONCE)
        live = tile < tiles
        first = tl.zeros((TILES_AT_ONCE,), tl.int64) + begin
        maximum = tl.zeros((TILES_AT_ONCE,), tl.int64)
        count = tl.zeros((TILES_AT_ONCE,), tl.int32)
        if list_row >= 0:
            cut = array_at(row, ROW_CUTS, tl.int32) + list_row * (tiles + 1) + tile
            border = tl.load(cut, mask=live, other=0)
            first += border
            count = tl.load(cut + 1, mask=live, other=0) - border
            maximum = tl.load(array_at(row, ROW_MAXIMA, tl.int64) + list_row * tiles + tile, mask=live, other=0)
        tl.store(target + 3 * tile, first, mask=live)
        tl.store(target + 3 * tile + 1, maximum, mask=live)
        tl.store(target + 3 * tile + 2, weight_half | count, mask=live)
    if list_row < 0:
        tl.debug_barrier()
        words = array_at(row, WORDS, tl.int32) + begin
        quanta = quanta_at(row, LONG) + begin
        for start in range(0, length, POSTINGS):
            index = start + tl.arange(0, POSTINGS)
            live = index < length
            tile = (tl.load(words + index, mask=live, other=0) & DOCUMENT) >> TILE_BITS
            before = (tl.load(words + index - 1, mask=live & (index > 0), other=0) & DOCUMENT) >> TILE_BITS
            tl.store(target + 3 * tile, begin + index, mask=live & ((index == 0) | (before != tile)))
            tl.atomic_add(target + 3 * tile + 2, 1, mask=live, sem="relaxed")
            value = tl.abs(tl.load(quanta + index, mask=live, other=0).to(tl.int64))
            tl.atomic_max(target + 3 * tile + 1, value, mask=live, sem="relaxed")
