"""Where each list crosses the tile borders, and its largest contribution in each tile."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from ..work import DOCUMENT_BITS, Buffers, Work

_DOCUMENT = tl.constexpr((1 << DOCUMENT_BITS) - 1)


@dataclass(frozen=True)
class Settings:
    borders: int = 128  # tile borders a program searches at once
    border_warps: int = 1
    tiles: int = 8  # tiles a program takes the maxima of
    postings: int = 128  # of each of them, at a time
    maxima_warps: int = 4


def launch(work: Work, buffers: Buffers, settings: Settings) -> None:
    lists = len(work.list_segment)
    if not lists:
        return
    _borders[(lists, triton.cdiv(work.max_tiles + 1, settings.borders))](
        words=work.words,
        sizes=work.sizes,
        list_segment=work.list_segment,
        list_start=work.list_start,
        list_length=work.list_length,
        list_cuts=work.list_cuts,
        cuts=buffers.cuts,
        TILE_BITS=work.tile_bits,
        BORDERS=settings.borders,
        num_warps=settings.border_warps,
    )
    if not work.max_tiles:
        return
    _maxima[(lists, triton.cdiv(work.max_tiles, settings.tiles))](
        quanta=work.quanta,
        sizes=work.sizes,
        list_segment=work.list_segment,
        list_start=work.list_start,
        list_cuts=work.list_cuts,
        cuts=buffers.cuts,
        maxima=buffers.maxima,
        TILE_BITS=work.tile_bits,
        LONG=work.long_quanta,
        TILES=settings.tiles,
        POSTINGS=settings.postings,
        num_warps=settings.maxima_warps,
    )


@triton.jit(
    do_not_specialize_on_alignment=[
        "words",
        "sizes",
        "list_segment",
        "list_start",
        "list_length",
        "list_cuts",
        "cuts",
    ]
)
def _borders(
    words,  # [S] int64, address of int32 [postings] (bits of uint32)
    sizes,  # [S] int32, documents
    list_segment,  # [L] int32
    list_start,  # [L] int64, first posting
    list_length,  # [L] int32
    list_cuts,  # [L] int64, the list's row in `cuts`
    cuts,  # [cuts] int32, written
    TILE_BITS: tl.constexpr,
    BORDERS: tl.constexpr,
):
    list_number = tl.program_id(0)
    segment = tl.load(list_segment + list_number)
    tiles = (tl.load(sizes + segment) + ((1 << TILE_BITS) - 1)) >> TILE_BITS
    begin = tl.program_id(1) * BORDERS
    if begin <= tiles:
        border = begin + tl.arange(0, BORDERS)
        length = tl.load(list_length + list_number)
        list_words = tl.load(words + segment).to(tl.pointer_type(tl.int32)) + tl.load(list_start + list_number)
        low = tl.zeros((BORDERS,), tl.int32)
        high = tl.zeros((BORDERS,), tl.int32) + length
        span = length
        while span > 0:
            middle = (low + high) // 2
            document = tl.load(list_words + middle, mask=low < high, other=0) & _DOCUMENT
            before = (low < high) & ((document >> TILE_BITS) < border)
            low = tl.where(before, middle + 1, low)
            high = tl.where(before, high, middle)
            span = span // 2
        tl.store(cuts + tl.load(list_cuts + list_number) + border, low, mask=border <= tiles)


@triton.jit(
    do_not_specialize_on_alignment=[
        "quanta",
        "sizes",
        "list_segment",
        "list_start",
        "list_cuts",
        "cuts",
        "maxima",
    ]
)
def _maxima(
    quanta,  # [S] int64, address of int32 [postings], or int64 if LONG
    sizes,  # [S] int32, documents
    list_segment,  # [L] int32
    list_start,  # [L] int64, first posting
    list_cuts,  # [L] int64, the list's row in `cuts` and `maxima`
    cuts,  # [cuts] int32
    maxima,  # [cuts] int64, written
    TILE_BITS: tl.constexpr,
    LONG: tl.constexpr,
    TILES: tl.constexpr,
    POSTINGS: tl.constexpr,
):
    list_number = tl.program_id(0)
    segment = tl.load(list_segment + list_number)
    tiles = (tl.load(sizes + segment) + ((1 << TILE_BITS) - 1)) >> TILE_BITS
    first = tl.program_id(1) * TILES
    if first < tiles:
        tile = first + tl.arange(0, TILES)
        live = tile < tiles
        row = tl.load(list_cuts + list_number) + tile
        begin = tl.load(cuts + row, mask=live, other=0)
        length = tl.load(cuts + row + 1, mask=live, other=0) - begin
        list_quanta = tl.load(quanta + segment).to(tl.pointer_type(tl.int64 if LONG else tl.int32))
        list_quanta += tl.load(list_start + list_number)
        largest = tl.zeros((TILES,), tl.int64)
        for start in range(0, tl.max(length), POSTINGS):
            column = start + tl.arange(0, POSTINGS)[None, :]
            value = tl.load(list_quanta + begin[:, None] + column, mask=column < length[:, None], other=0)
            largest = tl.maximum(largest, tl.max(tl.abs(value.to(tl.int64)), axis=1))
        tl.store(maxima + row, largest, mask=live)
