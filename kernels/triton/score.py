"""Score blocks and emit their candidates.

Triton cannot scatter into shared memory. Instead, each of a fixed number of programs owns one tile of sums in global
memory. These tiles are the slab; it is small enough for the L2 cache. A program takes block after block: it adds the
postings by integer atomics, reads the tile back, clears it for the next block, and selects in registers. No sum leaves
the cache, and a batch is one launch. Where a query decays, the sums become the bits of positive doubles as the tile is
read back.

Arguments of kernels are written one a line, and not bundled in NamedTuples. Triton specialises what lies in a tuple by
value and by alignment whatever `do_not_specialize` says (3.4 and 3.9 do), so bundled arguments would compile the kernel
anew for tensors that are aligned in another way, and change its registers.

Long because the block loop and its helpers are one kernel, and every argument has a line with its dtype and shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ...engine.index.decay import FACTOR_BITS, MAX_HALF_LIVES, PART_BITS
from ..work import DOCUMENT_BITS, Buffers, Work

_DOCUMENT = tl.constexpr((1 << DOCUMENT_BITS) - 1)
_LOW = tl.constexpr((1 << 32) - 1)
_INT32_MIN = tl.constexpr(-(1 << 31))
_INT32_MAX = tl.constexpr((1 << 31) - 1)
_INT64_MIN = tl.constexpr(-(1 << 63))
_INT64_MAX = tl.constexpr((1 << 63) - 1)
_PART_BITS = tl.constexpr(PART_BITS)
_PART = tl.constexpr((1 << PART_BITS) - 1)
_MAX_TICKS = tl.constexpr(float(MAX_HALF_LIVES << PART_BITS))
# Of 2**-FACTOR_BITS, as a float64 holds it.
_EXPONENT = tl.constexpr(1023 - FACTOR_BITS)
_MANTISSA_BITS = tl.constexpr(52)


@dataclass(frozen=True)
class Settings:
    bounded: int = 32  # slots whose bounds are summed at once
    slots: int = 4  # slots whose postings are added at once
    postings: int = 128  # of each of them, at a time
    emitted: int = 1024  # documents of a tile that are ranked at once; at most 2**14
    warps: int = 8
    programs: int = 4  # for each multiprocessor
    slab: int = 32 << 20  # bytes of sums at most
    # As `CudaVerbs` has them: left out for measurements alone.
    raises_thresholds: bool = True
    tile_major: bool = True


def launch(work: Work, buffers: Buffers, settings: Settings, processors: int, *, wide: bool) -> None:
    if not work.blocks:
        return
    device, tile = work.words.device, 1 << work.tile_bits
    dtype = torch.int64 if wide else torch.int32
    programs = min(work.blocks, processors * settings.programs, max(1, settings.slab // (tile * dtype.itemsize)))
    sums = torch.zeros(programs * tile, dtype=dtype, device=device)
    matched = torch.zeros(programs * tile if work.signed else 0, dtype=torch.uint8, device=device)
    _score[(programs,)](
        blocks=work.blocks,
        segments=len(work.sizes),
        words=work.words,
        quanta=work.quanta,
        firsts=work.firsts,
        block_offset=work.block_offset,
        unit_offset=work.unit_offset,
        list_start=work.list_start,
        list_cuts=work.list_cuts,
        unit_query=work.unit_query,
        unit_slots=work.unit_slots,
        unit_filter=work.unit_filter,
        unit_low=work.unit_low,
        unit_high=work.unit_high,
        slot_list=work.slot_list,
        slot_weight=work.slot_weight,
        query_k=work.query_k,
        query_wide=work.query_wide,
        candidate_offset=work.candidate_offset,
        times=work.times,
        latest=work.latest,
        query_now=work.query_now,
        query_rate=work.query_rate,
        decay_table=work.decay_table,
        cuts=buffers.cuts,
        maxima=buffers.maxima,
        thresholds=buffers.thresholds,
        counts=buffers.counts,
        keys=buffers.keys,
        documents=buffers.documents,
        sums=sums,
        matched=matched,
        TILE_BITS=work.tile_bits,
        WIDE=wide,
        SIGNED=work.signed,
        LONG=work.long_quanta,
        DECAYS=wide and work.any_decay and not work.signed,
        BOUNDED=settings.bounded,
        SLOTS=settings.slots,
        POSTINGS=settings.postings,
        CHUNK=min(settings.emitted, tile),
        RAISES=settings.raises_thresholds,
        TILE_MAJOR=settings.tile_major,
        num_warps=settings.warps,
        # Decay subtracts and multiplies in float64: each operation rounds by itself.
        enable_fp_fusion=False,
    )


@triton.jit(
    do_not_specialize=["blocks", "segments"],
    do_not_specialize_on_alignment=[
        "words",
        "quanta",
        "firsts",
        "block_offset",
        "unit_offset",
        "list_start",
        "list_cuts",
        "unit_query",
        "unit_slots",
        "unit_filter",
        "unit_low",
        "unit_high",
        "slot_list",
        "slot_weight",
        "query_k",
        "query_wide",
        "candidate_offset",
        "times",
        "latest",
        "query_now",
        "query_rate",
        "decay_table",
        "cuts",
        "maxima",
        "thresholds",
        "counts",
        "keys",
        "documents",
        # Four neighbours a thread would ask for another layout than the rest of the kernel: 151 registers for 174.
        "sums",
        "matched",
    ],
)
def _score(
    blocks,  # int32
    segments,  # int32, S
    # Segments.
    words,  # [S] int64, address of int32 [postings] (bits of uint32): document | frequency << DOCUMENT_BITS
    quanta,  # [S] int64, address of int32 [postings], or int64 if LONG
    firsts,  # [S] int64, number of the first document
    block_offset,  # [S + 1] int64
    unit_offset,  # [S + 1] int32
    # Lists.
    list_start,  # [L] int64, first posting
    list_cuts,  # [L] int64, the list's row in `cuts` and `maxima`
    # Units and their slots.
    unit_query,  # [U] int32
    unit_slots,  # [U + 1] int64
    unit_filter,  # [U] int64, address of int32 [ceil(documents / 32)], or 0
    unit_low,  # [U] int32, first document of the segment that counts
    unit_high,  # [U] int32, the document after the last that counts
    slot_list,  # [slots] int32
    slot_weight,  # [slots] int32
    # Queries.
    query_k,  # [Q] int32
    query_wide,  # [Q] uint8
    candidate_offset,  # [Q + 1] int64
    # Decay. Read where DECAYS alone.
    times,  # [S] int64, address of float64 [documents]
    latest,  # [S] int64, address of float64 [tiles]
    query_now,  # [Q] float64
    query_rate,  # [Q] float64, 0 for a query that does not decay
    decay_table,  # [1 << PART_BITS] int32
    # Buffers.
    cuts,  # [cuts] int32
    maxima,  # [cuts] int64
    thresholds,  # [Q] int64, raised
    counts,  # [Q] int32, raised
    keys,  # [candidates] int64, written
    documents,  # [candidates] int32 if WIDE, written
    # The slab.
    sums,  # [programs, TILE] int64 if WIDE, else int32; zero before and after
    matched,  # [programs, TILE] uint8 if SIGNED; zero before and after
    # Constants of the launch.
    TILE_BITS: tl.constexpr,
    WIDE: tl.constexpr,
    SIGNED: tl.constexpr,
    LONG: tl.constexpr,
    DECAYS: tl.constexpr,
    BOUNDED: tl.constexpr,
    SLOTS: tl.constexpr,
    POSTINGS: tl.constexpr,
    CHUNK: tl.constexpr,
    RAISES: tl.constexpr,
    TILE_MAJOR: tl.constexpr,
):
    TILE: tl.constexpr = 1 << TILE_BITS
    sums += tl.program_id(0).to(tl.int64) * TILE
    matched += tl.program_id(0).to(tl.int64) * TILE
    for turn in range(tl.program_id(0), blocks, tl.num_programs(0)):
        # Where scores decay the youngest documents come first: they raise the thresholds that old tiles must reach.
        block = blocks - 1 - turn if DECAYS else turn
        segment = _segment_of(block_offset, block, segments)
        unit_begin = tl.load(unit_offset + segment)
        units = tl.load(unit_offset + segment + 1) - unit_begin
        local = (block - tl.load(block_offset + segment)).to(tl.int32)
        if TILE_MAJOR:
            tile = local // units
            unit = unit_begin + local % units
        else:
            tiles = ((tl.load(block_offset + segment + 1) - tl.load(block_offset + segment)) // units).to(tl.int32)
            tile = local % tiles
            unit = unit_begin + local // tiles
        query = tl.load(unit_query + unit)
        k = tl.load(query_k + query)
        low = tl.maximum(tl.load(unit_low + unit), tile << TILE_BITS)
        high = tl.minimum(tl.load(unit_high + unit), (tile + 1) << TILE_BITS)
        if (k > 0) & (low < high) & ((tl.load(query_wide + query) != 0) == WIDE):
            slot_begin = tl.load(unit_slots + unit)
            slot_end = tl.load(unit_slots + unit + 1)
            postings, bound = _bound(
                slot_begin, slot_end, tile, list_cuts, slot_list, slot_weight, cuts, maxima, BOUNDED
            )
            # Other programs raise the threshold meanwhile. The first-level cache would keep an old one.
            threshold = tl.load(thresholds + query, cache_modifier=".cg")
            if DECAYS:
                now = tl.load(query_now + query)
                rate = tl.load(query_rate + query)
                segment_times = tl.load(times + segment).to(tl.pointer_type(tl.float64))
                if rate != 0.0:
                    segment_latest = tl.load(latest + segment).to(tl.pointer_type(tl.float64))
                    bound = _decayed(bound, tl.load(segment_latest + tile), now, rate, decay_table)
            bitmap = tl.load(unit_filter + unit)
            if (postings > 0) & (bound >= threshold):
                passes = _any_passes(bitmap, low, high, TILE_BITS)
                if passes:
                    _accumulate(
                        slot_begin,
                        slot_end,
                        tile,
                        tl.load(words + segment).to(tl.pointer_type(tl.int32)),
                        tl.load(quanta + segment).to(tl.pointer_type(tl.int64 if LONG else tl.int32)),
                        list_start,
                        list_cuts,
                        slot_list,
                        slot_weight,
                        cuts,
                        sums,
                        matched,
                        TILE_BITS,
                        WIDE,
                        SIGNED,
                        SLOTS,
                        POSTINGS,
                    )
                    tl.debug_barrier()
                    _emit(
                        tile,
                        low,
                        high,
                        bitmap,
                        threshold,
                        k,
                        tl.load(firsts + segment),
                        tl.load(candidate_offset + query),
                        thresholds + query,
                        counts + query,
                        keys,
                        documents,
                        segment_times if DECAYS else None,
                        now if DECAYS else None,
                        rate if DECAYS else None,
                        decay_table,
                        sums,
                        matched,
                        TILE_BITS,
                        WIDE,
                        SIGNED,
                        DECAYS,
                        CHUNK,
                        RAISES,
                    )
                    tl.debug_barrier()


@triton.jit
def _segment_of(block_offset, block, segments):
    """The last segment whose blocks begin at or before this one; segments without blocks before it begin there too."""
    low = segments * 0
    high = segments
    while high - low > 1:
        middle = (low + high) // 2
        at_or_after = tl.load(block_offset + middle) <= block
        low = tl.where(at_or_after, middle, low)
        high = tl.where(at_or_after, high, middle)
    return low


@triton.jit
def _bound(
    slot_begin,  # int64, the unit's first slot
    slot_end,  # int64, the slot after its last
    tile,  # int32
    list_cuts,  # [L] int64
    slot_list,  # [slots] int32
    slot_weight,  # [slots] int32
    cuts,  # [cuts] int32
    maxima,  # [cuts] int64
    BOUNDED: tl.constexpr,
):
    """How many postings the unit has in the tile, and the most that they can add up to."""
    postings = tl.full((), 0, tl.int32)
    bound = tl.full((), 0, tl.int64)
    for start in range(slot_begin, slot_end, BOUNDED):
        slot = start + tl.arange(0, BOUNDED)
        live = slot < slot_end
        row = tl.load(list_cuts + tl.load(slot_list + slot, mask=live, other=0), mask=live, other=0) + tile
        begin = tl.load(cuts + row, mask=live, other=0)
        end = tl.load(cuts + row + 1, mask=live, other=0)
        weight = tl.load(slot_weight + slot, mask=live, other=0).to(tl.int64)
        postings += tl.sum(end - begin)
        bound += tl.sum(weight * tl.load(maxima + row, mask=live, other=0))
    return postings, bound


@triton.jit
def _decayed(sums, time, now, rate, table):
    """`engine.decay.decayed_bits`, operation for operation."""
    age = (now - time) * rate
    # Not negative, so that the conversion rounds down.
    ticks = tl.where(age > 0.0, tl.minimum(age, _MAX_TICKS), 0.0).to(tl.int32)
    part = tl.load(table + (ticks & _PART)).to(tl.float64)
    exponent = -(ticks >> _PART_BITS) + _EXPONENT
    power = (exponent.to(tl.int64) << _MANTISSA_BITS).to(tl.float64, bitcast=True)
    return ((sums.to(tl.float64) * part) * power).to(tl.int64, bitcast=True)


@triton.jit
def _decay_tile(score, eligible, times, now, rate, table):
    """The scores of a tile's eligible documents, decayed if the query's do."""
    if rate != 0.0:
        score = _decayed(score, tl.load(times, mask=eligible, other=0.0), now, rate, table)
    return score


@triton.jit
def _any_passes(bitmap, low, high, TILE_BITS: tl.constexpr):
    """Whether the filter's words of the tile hold any bit; a bit outside [low, high) may say so too."""
    passes = bitmap == 0
    if bitmap != 0:
        WORDS: tl.constexpr = 1 << (TILE_BITS - 5)
        word = (low >> TILE_BITS) * WORDS + tl.arange(0, WORDS)
        live = (word >= (low >> 5)) & (word < ((high + 31) >> 5))
        bits = tl.load(bitmap.to(tl.pointer_type(tl.int32)) + word, mask=live, other=0)
        passes = tl.max((bits != 0).to(tl.int32)) > 0
    return passes


@triton.jit
def _accumulate(
    slot_begin,  # int64, the unit's first slot
    slot_end,  # int64, the slot after its last
    tile,  # int32
    words,  # [postings] int32
    quanta,  # [postings] int64 if LONG, else int32
    list_start,  # [L] int64
    list_cuts,  # [L] int64
    slot_list,  # [slots] int32
    slot_weight,  # [slots] int32
    cuts,  # [cuts] int32
    sums,  # [TILE] int64 if WIDE, else int32; raised
    matched,  # [TILE] uint8 if SIGNED; set to 1
    TILE_BITS: tl.constexpr,
    WIDE: tl.constexpr,
    SIGNED: tl.constexpr,
    SLOTS: tl.constexpr,
    POSTINGS: tl.constexpr,
):
    for start in range(slot_begin, slot_end, SLOTS):
        slot = start + tl.arange(0, SLOTS)
        live = slot < slot_end
        list_number = tl.load(slot_list + slot, mask=live, other=0)
        row = tl.load(list_cuts + list_number, mask=live, other=0) + tile
        begin = tl.load(cuts + row, mask=live, other=0)
        length = tl.load(cuts + row + 1, mask=live, other=0) - begin
        first = tl.load(list_start + list_number, mask=live, other=0) + begin
        weight = tl.load(slot_weight + slot, mask=live, other=0).to(tl.int64 if WIDE else tl.int32)
        for offset in range(0, tl.max(length), POSTINGS):
            column = offset + tl.arange(0, POSTINGS)[None, :]
            present = column < length[:, None]
            posting = first[:, None] + column
            document = tl.load(words + posting, mask=present, other=0) & _DOCUMENT
            value = tl.load(quanta + posting, mask=present, other=0).to(weight.dtype) * weight[:, None]
            local = document & ((1 << TILE_BITS) - 1)
            tl.atomic_add(sums + local, value, mask=present, sem="relaxed")
            if SIGNED:
                tl.store(matched + local, tl.full((SLOTS, POSTINGS), 1, tl.uint8), mask=present)


@triton.jit
def _emit(
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
    documents,  # [candidates] int32 if WIDE, written
    times,  # [documents of the segment] float64 if DECAYS
    now,  # float64 if DECAYS, seconds
    rate,  # float64 if DECAYS, ticks a second
    decay_table,  # [1 << PART_BITS] int32
    sums,  # [TILE] int64 if WIDE, else int32; cleared
    matched,  # [TILE] uint8 if SIGNED; cleared
    TILE_BITS: tl.constexpr,
    WIDE: tl.constexpr,
    SIGNED: tl.constexpr,
    DECAYS: tl.constexpr,
    CHUNK: tl.constexpr,
    RAISES: tl.constexpr,
):
    """Emit the k best of the tile and raise the threshold to the k-th; leaves the slab cleared."""
    TILE: tl.constexpr = 1 << TILE_BITS
    local = tl.arange(0, TILE)
    # The atomics were done in the second-level cache.
    score = tl.load(sums + local, cache_modifier=".cg")
    eligible = tl.load(matched + local) != 0 if SIGNED else score > 0
    # No score is as low as this, so it marks what is not eligible.
    ABSENT: tl.constexpr = _INT64_MIN if WIDE else _INT32_MIN
    HIGHEST: tl.constexpr = _INT64_MAX if WIDE else _INT32_MAX
    document = (tile << TILE_BITS) + local
    eligible = eligible & (document >= low) & (document < high)
    if bitmap != 0:
        word = tl.load(bitmap.to(tl.pointer_type(tl.int32)) + (document >> 5), mask=eligible, other=0)
        eligible = eligible & (((word >> (document & 31)) & 1) != 0)
    if DECAYS:
        score = _decay_tile(score, eligible, times + document, now, rate, decay_table)
    lowest = threshold if WIDE else tl.minimum(tl.maximum(threshold, _INT32_MIN), _INT32_MAX).to(tl.int32)
    score = tl.where(eligible & (score >= lowest), score, ABSENT)
    count = tl.sum((score != ABSENT).to(tl.int32))
    # Where the tile is smaller than the program, several threads hold one document: all must read before one writes.
    tl.debug_barrier()
    if count > 0:
        tl.store(sums + local, score)
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
            if RAISES:
                tl.atomic_max(query_threshold, worst.to(tl.int64), sem="relaxed")
        room += tl.atomic_add(query_count, tl.minimum(count, k), sem="relaxed")
        tl.debug_barrier()
        _store(
            keys + room,
            documents + room,
            first + (tile << TILE_BITS),
            level,
            tl.sum((score == level).to(tl.int32)) - surplus,
            sums,
            TILE,
            CHUNK,
            WIDE,
        )
        tl.debug_barrier()
    tl.store(sums + local, tl.zeros((TILE,), sums.dtype.element_ty))
    if SIGNED:
        tl.store(matched + local, tl.zeros((TILE,), tl.uint8))


@triton.jit
def _store(
    keys,  # [room] int64, written
    documents,  # [room] int32 if WIDE, written
    first,  # int64, number of the tile's first document
    level,  # int64 if WIDE, else int32
    kept,  # int32
    sums,  # [TILE] int64 if WIDE, else int32
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Store what scores more than `level`, and the first `kept` documents that score it.

    Chunk by chunk, from memory: the indices of a whole tile would not fit the registers.
    """
    for start in range(0, TILE, CHUNK):
        local = start + tl.arange(0, CHUNK)
        score = tl.load(sums + local)
        above = (score > level).to(tl.int32)
        tied = (score == level).to(tl.int32)
        # Both counts in one scan.
        ranks = tl.cumsum(above | (tied << 16), axis=0)
        tied_rank = ranks >> 16
        index = (ranks & 0xFFFF) + tl.minimum(tied_rank, kept) - 1
        taken = (score > level) | ((score == level) & (tied_rank <= kept))
        low_half = (first + local) ^ _LOW
        if WIDE:
            tl.store(keys + index, score, mask=taken)
            tl.store(documents + index, low_half.to(tl.int32), mask=taken)
        else:
            tl.store(keys + index, (score.to(tl.int64) << 32) | low_half, mask=taken)
        tied_here = tl.minimum(tl.sum(tied), kept)
        kept -= tied_here
        stored = tl.sum(above) + tied_here
        keys += stored
        documents += stored
