"""Score the entries of a launch and emit their candidates.

Triton cannot scatter into shared memory. Instead, each of a fixed number of programs owns one tile of sums in global
memory. These tiles are the slab; it is small enough for the L2 cache. A program takes every n-th turn: it adds the
tile's postings by integer atomics, reads the sums back, clears them for the next turn, and selects in registers. No sum
leaves the cache.

Other programs raise the thresholds meanwhile. Each warp of a program that loaded one for itself could see another
value, go another way, and meet barriers of another turn. So each thread loads the threshold of another turn, and a
reduction through shared memory decides for all: `_next` gives the next turn that is worth scoring, and its threshold.
The reduction also tests all turns that the program still holds anew, for the time of one load.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..frame import Window, carve
from ..work import Buffers, Extent, Work
from .emit import emit
from .launching import compiled_once, launch_by_name
from .segments import DOCUMENT, FIELDS, FIRST, TILES, TIMES, WORDS, array_at, quanta_at

_INT64_MIN = tl.constexpr(-(1 << 63))
_LOW = tl.constexpr((1 << 32) - 1)


@dataclass(frozen=True)
class Settings:
    slots: int = 4  # slots whose postings are added at once
    postings: int = 128  # of each of them, at a time
    warps: int = 8
    # For each multiprocessor, as many as fit by registers. A program that waits for a place would keep good entries
    # from raising thresholds.
    programs: int = 2
    slab: int = 32 << 20  # bytes of sums at most


def _programs(extent: Extent, settings: Settings, processors: int) -> int:
    most = max(1, settings.slab // ((8 if extent.wide else 4) << extent.tile_bits))
    return min(extent.queries * extent.most_tiles, processors * settings.programs, most)


def scratch(extent: Extent, settings: Settings, processors: int) -> list[Window]:
    """The slab."""
    tiles = _programs(extent, settings, processors) << extent.tile_bits
    return [
        Window("sums", torch.int64 if extent.wide else torch.int32, (tiles,)),
        Window("matched", torch.uint8, (tiles if extent.signed else 0,)),
    ]


def launch(work: Work, buffers: Buffers, settings: Settings, processors: int) -> None:
    queries, extent = len(work.query_k), work.extent(buffers)
    turns, programs = 32 * settings.warps, _programs(extent, settings, processors)
    if not programs:
        return
    # 128 registers, as two programs of 8 warps leave. Of itself ptxas aims at 64 on some targets, and spills; within 80
    # it spills on others. Decay subtracts and multiplies in float64: each operation rounds by itself.
    options = {"num_warps": settings.warps, "maxnreg": 128, "enable_fp_fusion": False}
    # On 64 bits the divisions are calls, around which registers spill on sm_80.
    long_turns = queries * work.most_tiles + 2 * programs * turns >= 1 << 31
    own = carve(buffers.scratch, scratch(extent, settings, processors))
    sizes = {"LONG": work.long_quanta, "LONG_TURNS": long_turns, "TURNS": turns}
    launch_by_name(_score, (programs,), options, work, buffers, settings, queries=queries, **own, **sizes)


@compiled_once
def _score(
    queries,  # int32, Q
    segments,  # [S, SEGMENT_FIELDS] int64
    # Units.
    unit_segment,  # [U] int32
    unit_filter,  # [U] int64, address of int32 [ceil(documents / 32)], or 0
    unit_low,  # [U] int32, first document of the segment that counts
    unit_high,  # [U] int32, the document after the last that counts
    unit_slots,  # [U + 1] int64
    unit_descriptors,  # [U] int64
    # Queries.
    query_k,  # [Q] int32
    query_now,  # [Q] float64 if DECAYS
    query_rate,  # [Q] float64 if DECAYS, 0 for a query that does not decay
    candidate_offset,  # [Q + 1] int64
    entry_offset,  # [Q + 1] int64
    decay_table,  # [1 << PART_BITS] int32 if DECAYS
    # Buffers.
    descriptors,  # [descriptors, 3] int64
    entries,  # [entries, 2] int64
    entry_counts,  # [Q] int32
    progress,  # [2] int64
    thresholds,  # [Q] int64, raised
    counts,  # [Q] int32, raised
    keys,  # [candidates] int64, written
    documents,  # [candidates] int32 if WIDE or DECAYS, written
    # The slab.
    sums,  # [programs, TILE] int64 if WIDE, else int32
    matched,  # [programs, TILE] uint8 if SIGNED
    # Constants of the launch.
    TILE_BITS: tl.constexpr,
    WIDE: tl.constexpr,
    SIGNED: tl.constexpr,
    LONG: tl.constexpr,
    DECAYS: tl.constexpr,
    LONG_TURNS: tl.constexpr,
    TURNS: tl.constexpr,
    SLOTS: tl.constexpr,
    POSTINGS: tl.constexpr,
):
    TILE: tl.constexpr = 1 << TILE_BITS
    LONG_KEYS: tl.constexpr = WIDE or DECAYS
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    if LONG_TURNS:
        program = program.to(tl.int64)
        programs = programs.to(tl.int64)
    sums += tl.program_id(0).to(tl.int64) * TILE
    if SIGNED:
        matched += tl.program_id(0).to(tl.int64) * TILE
    tl.store(sums + tl.arange(0, TILE), tl.zeros((TILE,), sums.dtype.element_ty))
    if SIGNED:
        tl.store(matched + tl.arange(0, TILE), tl.zeros((TILE,), tl.uint8))
    tl.debug_barrier()
    # Turn t is the entry t // Q of the query t % Q: the best tile of every query comes before the second of any.
    turns = (tl.load(progress) * queries).to(programs.dtype)
    for start in range(program, turns, programs * TURNS):
        turn = start + tl.arange(0, TURNS) * programs
        place = (turn // queries).to(tl.int64)
        of_query = turn % queries
        live = turn < turns
        live = live & (place < tl.load(entry_counts + of_query, mask=live, other=0))
        place += tl.load(entry_offset + of_query, mask=live, other=0)
        bound = tl.load(entries + 2 * place, mask=live, other=0)
        number = tl.full((), -1, tl.int32)
        while number < TURNS:
            number, threshold = _next(thresholds + of_query, bound, live, number, TURNS)
            if number < TURNS:
                query = (start + number * programs) % queries
                entry = tl.load(entry_offset + query) + (start + number * programs) // queries
                which = tl.load(entries + 2 * entry + 1)
                unit = (which & _LOW).to(tl.int32)
                tile = (which >> 32).to(tl.int32)
                row = segments + tl.load(unit_segment + unit) * FIELDS
                low = tl.maximum(tl.load(unit_low + unit), tile << TILE_BITS)
                high = tl.minimum(tl.load(unit_high + unit), (tile + 1) << TILE_BITS)
                tiles = tl.load(row + TILES)
                _accumulate(
                    descriptors + 3 * (tl.load(unit_descriptors + unit) + tile),
                    (tl.load(unit_slots + unit + 1) - tl.load(unit_slots + unit)).to(tl.int32),
                    3 * tiles,
                    array_at(row, WORDS, tl.int32),
                    quanta_at(row, LONG),
                    sums,
                    matched,
                    TILE_BITS,
                    WIDE,
                    SIGNED,
                    SLOTS,
                    POSTINGS,
                )
                tl.debug_barrier()
                emit(
                    tile,
                    low,
                    high,
                    tl.load(unit_filter + unit),
                    threshold,
                    tl.load(query_k + query),
                    tl.load(row + FIRST),
                    tl.load(candidate_offset + query),
                    thresholds + query,
                    counts + query,
                    keys,
                    documents,
                    array_at(row, TIMES, tl.float64) if DECAYS else None,
                    tl.load(query_now + query) if DECAYS else None,
                    tl.load(query_rate + query) if DECAYS else None,
                    decay_table,
                    sums,
                    matched,
                    TILE_BITS,
                    SIGNED,
                    LONG_KEYS,
                    DECAYS,
                )
                tl.debug_barrier()


@triton.jit
def _next(
    thresholds,  # [TURNS], the threshold of each turn's query
    bound,  # [TURNS] int64
    live,  # [TURNS] int1
    last,  # int32
    TURNS: tl.constexpr,
):
    """The first turn after `last` whose bound reaches its threshold, and this threshold; TURNS if there is none.

    A turn a thread: whichever value each load sees, the block reduces them to one answer.
    """
    number = tl.arange(0, TURNS)
    # The first-level cache would keep an old threshold.
    threshold = tl.load(thresholds, mask=live, other=0, cache_modifier=".cg")
    found = tl.min(tl.where(live & (number > last) & (bound >= threshold), number, TURNS))
    return found, tl.max(tl.where(number == found, threshold, _INT64_MIN))


@triton.jit
def _accumulate(
    described,  # [slots, tiles, 3] int64, from the tile on
    slots,  # int32
    stride,  # int64, from a slot's descriptor to the next one's
    words,  # [postings] int32
    quanta,  # [postings] int64 if LONG, else int32
    sums,  # [TILE] int64 if WIDE, else int32; raised
    matched,  # [TILE] uint8 if SIGNED; set to 1
    TILE_BITS: tl.constexpr,
    WIDE: tl.constexpr,
    SIGNED: tl.constexpr,
    SLOTS: tl.constexpr,
    POSTINGS: tl.constexpr,
):
    for start in range(0, slots, SLOTS):
        slot = start + tl.arange(0, SLOTS)
        live = slot < slots
        descriptor = described + slot * stride
        first = tl.load(descriptor, mask=live, other=0)
        counted = tl.load(descriptor + 2, mask=live, other=0)
        length = (counted & _LOW).to(tl.int32)
        weight = (counted >> 32).to(tl.int64 if WIDE else tl.int32)
        for offset in range(0, tl.max(length), POSTINGS):
            column = offset + tl.arange(0, POSTINGS)[None, :]
            present = column < length[:, None]
            posting = first[:, None] + column
            document = tl.load(words + posting, mask=present, other=0) & DOCUMENT
            value = tl.load(quanta + posting, mask=present, other=0).to(weight.dtype) * weight[:, None]
            local = document & ((1 << TILE_BITS) - 1)
            tl.atomic_add(sums + local, value, mask=present, sem="relaxed")
            if SIGNED:
                tl.store(matched + local, tl.full((SLOTS, POSTINGS), 1, tl.uint8), mask=present)
