"""The arrays of a launch that `Verbs.plan` fills: windows of one block, laid out by the launch's shape alone.

Nothing here depends on an epoch. A launch reads all that it needs of the segments from one table, which may be padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch

from ..engine.index.snapshot import Snapshot
from .work import SEGMENT_FIELDS, Buffers, Extent, KernelAnswer, Verbs, Work

# Arrays of one block start at multiples of this: kernels load 16 bytes at a time.
ALIGNMENT = 16
FIELDS = len(SEGMENT_FIELDS)


class Window(NamedTuple):
    """An array of a block."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Shape:
    """What the arrays of a launch over terms depend on, and a captured graph with them."""

    queries: int
    terms: int
    k: int
    segments: int
    """Rows of the segment table, those that only fill it included."""
    tiles: int
    """At least the tiles of all segments."""
    tile_bits: int
    wide: bool
    long_quanta: bool
    signed: bool
    posting_bytes: int
    scratch: int
    """Bytes that the verbs need beside."""

    @classmethod
    def of(
        cls,
        verbs: Verbs,
        snapshot: Snapshot,
        posting_bytes: int,
        *,
        queries: int,
        terms: int,
        k: int,
        segments: int,
        tiles: int,
        wide: bool = False,
    ) -> Shape:
        """The shape of a launch over the snapshot, by the family's sizes."""
        bits, signed = verbs.tile_bits(wide), snapshot.bm25.signed
        shape = cls(queries, terms, k, segments, tiles, bits, wide, snapshot.long, signed, posting_bytes, 0)
        return replace(shape, scratch=verbs.scratch_bytes(shape.extent))

    @property
    def extent(self) -> Extent:
        q, tiles = self.queries, self.tiles
        sizes = tiles, self.k, self.tile_bits
        return Extent(q, q * tiles, q * self.candidates, *sizes, self.wide, self.signed, decays=False)

    @property
    def candidates(self) -> int:
        """Places for the candidates of a query."""
        return self.tiles * min(self.k, 1 << self.tile_bits)

    @property
    def windows(self) -> list[Window]:
        """The arrays of `Work` and `Buffers` by their names there."""
        q, s, i64, i32 = self.queries, self.segments, torch.int64, torch.int32
        slots = self.terms * s if self.posting_bytes < 8 else 0
        return [
            *buffer_windows(self.extent, self.terms * self.tiles, slots, self.scratch),
            Window("candidate_offset", i64, (q + 1,)),
            Window("entry_offset", i64, (q + 1,)),
            Window("unit_filter", i64, (q * s,)),
            Window("unit_slots", i64, (q * s + 1,)),
            Window("unit_descriptors", i64, (q * s,)),
            Window("query_units", i32, (q + 1,)),
            Window("query_k", i32, (q,)),
            Window("unit_segment", i32, (q * s,)),
            Window("unit_low", i32, (q * s,)),
            Window("unit_high", i32, (q * s,)),
            Window("query_wide", torch.uint8, (q,)),
            # No query decays, and no slots are planned on the host.
            *(Window(name, torch.float64, (0,)) for name in ("query_now", "query_rate")),
            *(Window(name, i32, (0,)) for name in ("slot_unit", "slot_position", "slot_weight", "decay_table")),
        ]

    @property
    def bytes(self) -> int:
        """Of the block."""
        return block_bytes(self.windows)


_BUFFERS = tuple(each.name for each in fields(Buffers))


@dataclass(frozen=True, eq=False)
class Frame:
    """The arrays of one shape in one block."""

    shape: Shape
    block: torch.Tensor  # uint8 [shape.bytes]
    work: Work
    buffers: Buffers

    @classmethod
    def over(cls, block: torch.Tensor, shape: Shape, segments: torch.Tensor) -> Frame:
        """The frame in a block of at least ``shape.bytes``, over this table of segments."""
        arrays = carve(block, shape.windows)
        buffers = Buffers(**{name: arrays.pop(name) for name in _BUFFERS})
        work = Work(
            tile_bits=shape.tile_bits,
            most_tiles=shape.tiles,
            most_candidates=shape.candidates,
            width=shape.k,
            signed=shape.signed,
            long_quanta=shape.long_quanta,
            wide=shape.wide,
            decays=False,
            segments=segments,
            posting_bytes=shape.posting_bytes,
            **arrays,
        )
        return cls(shape, block, work, buffers)


def buffer_windows(extent: Extent, descriptors: int, slots: int, scratch: int) -> list[Window]:
    """The arrays of `Buffers` of a launch, for so many descriptors, slots whose idf is kept, and bytes of scratch."""
    queries, places, i64, i32 = extent.queries, extent.candidates, torch.int64, torch.int32
    return [
        Window("keys", i64, (places,)),
        Window("descriptors", i64, (descriptors, 3)),
        Window("entries", i64, (extent.entries, 2)),
        Window("thresholds", i64, (queries,)),
        Window("progress", i64, (2,)),
        Window("idf", torch.float64, (slots,)),
        Window("documents", i32, (places if extent.wide or extent.decays else 0,)),
        Window("entry_counts", i32, (queries,)),
        Window("counts", i32, (queries,)),
        Window("scratch", torch.uint8, (scratch,)),
    ]


def block_bytes(windows: Sequence[Window]) -> int:
    """The bytes of a block with these windows."""
    return sum(-(-window.bytes // ALIGNMENT) * ALIGNMENT for window in windows)


def carve(block: torch.Tensor, windows: Sequence[Window]) -> dict[str, torch.Tensor]:
    """The windows of a block uint8 [bytes], by name, in their order."""
    arrays, start = {}, 0
    for window in windows:
        arrays[window.name] = block[start : start + window.bytes].view(window.dtype).view(window.shape)
        start += -(-window.bytes // ALIGNMENT) * ALIGNMENT
    return arrays


def power_of_two(count: int) -> int:
    """The least power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()


def answer_size(queries: int, width: int) -> int:
    """int64 numbers in the block of an answer."""
    return queries * (2 * width + 1)


def answer_in(block: torch.Tensor, queries: int, width: int) -> KernelAnswer:
    """An answer whose arrays are views of a block int64 [answer_size], so that one copy moves it to the host."""
    scores, documents, counts = torch.split(block, [queries * width, queries * width, queries])
    return KernelAnswer(scores.view(queries, width), documents.view(queries, width), counts.view(torch.int32)[:queries])
