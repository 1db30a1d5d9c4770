"""Where the long lists of a segment cross the tile borders, and their largest contribution in each tile."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from ..work import Tables
from .launching import compiled_once, launch_by_name
from .segments import DOCUMENT, OFFSETS, WORDS, array_at, quanta_at


@dataclass(frozen=True)
class Settings:
    borders: int = 128  # tile borders a program searches at once
    border_warps: int = 1
    tiles: int = 8  # tiles a program takes the maxima of
    postings: int = 128  # of each of them, at a time
    maxima_warps: int = 4


def launch(tables: Tables, settings: Settings) -> None:
    lists = len(tables.terms)
    if not lists:
        return
    row, options = tables.segment, {"num_warps": settings.border_warps}
    launch_by_name(_cuts, (lists, triton.cdiv(tables.tiles + 1, settings.borders)), options, tables, settings, row=row)
    if tables.tiles:
        own = {"row": row, "LONG": tables.long_quanta, "TILES": settings.tiles}
        grid, options = (lists, triton.cdiv(tables.tiles, settings.tiles)), {"num_warps": settings.maxima_warps}
        launch_by_name(_maxima, grid, options, tables, settings, **own)


@compiled_once
def _cuts(
    row,  # [SEGMENT_FIELDS] int64
    terms,  # [R] int32
    cuts,  # [R, tiles + 1] int32, written
    tiles,  # int32
    TILE_BITS: tl.constexpr,
    BORDERS: tl.constexpr,
):
    list_number = tl.program_id(0)
    border = tl.program_id(1) * BORDERS + tl.arange(0, BORDERS)
    offset = array_at(row, OFFSETS, tl.int64) + tl.load(terms + list_number)
    begin = tl.load(offset)
    length = (tl.load(offset + 1) - begin).to(tl.int32)
    words = array_at(row, WORDS, tl.int32) + begin
    # A number of postings in [low, low + span).
    low = tl.zeros((BORDERS,), tl.int32)
    span = length + 1
    while span > 1:
        half = span // 2
        document = tl.load(words + low + half - 1) & DOCUMENT
        low = tl.where((document >> TILE_BITS) < border, low + half, low)
        span -= half
    tl.store(cuts + list_number.to(tl.int64) * (tiles + 1) + border, low, mask=border <= tiles)


@compiled_once
def _maxima(
    row,  # [SEGMENT_FIELDS] int64
    terms,  # [R] int32
    cuts,  # [R, tiles + 1] int32
    maxima,  # [R, tiles] int64, written
    tiles,  # int32
    LONG: tl.constexpr,
    TILES: tl.constexpr,
    POSTINGS: tl.constexpr,
):
    list_number = tl.program_id(0)
    tile = tl.program_id(1) * TILES + tl.arange(0, TILES)
    live = tile < tiles
    cut = cuts + list_number.to(tl.int64) * (tiles + 1) + tile
    begin = tl.load(cut, mask=live, other=0)
    length = tl.load(cut + 1, mask=live, other=0) - begin
    quanta = quanta_at(row, LONG) + tl.load(array_at(row, OFFSETS, tl.int64) + tl.load(terms + list_number))
    largest = tl.zeros((TILES,), tl.int64)
    for start in range(0, tl.max(length), POSTINGS):
        column = start + tl.arange(0, POSTINGS)[None, :]
        value = tl.load(quanta + begin[:, None] + column, mask=column < length[:, None], other=0)
        largest = tl.maximum(largest, tl.max(tl.abs(value.to(tl.int64)), axis=1))
    tl.store(maxima + list_number.to(tl.int64) * tiles + tile, largest, mask=live)
