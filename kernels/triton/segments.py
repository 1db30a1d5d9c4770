"""The fields of a segment's row, as `kernels.work.SEGMENT_FIELDS` names them."""

from __future__ import annotations

import triton
import triton.language as tl

from ..work import DOCUMENT_BITS, SEGMENT_FIELDS

DOCUMENT = tl.constexpr((1 << DOCUMENT_BITS) - 1)
FIELDS = tl.constexpr(len(SEGMENT_FIELDS))
WORDS = tl.constexpr(SEGMENT_FIELDS.index("words"))
QUANTA = tl.constexpr(SEGMENT_FIELDS.index("quanta"))
TERMS = tl.constexpr(SEGMENT_FIELDS.index("terms"))
OFFSETS = tl.constexpr(SEGMENT_FIELDS.index("offsets"))
ROWS = tl.constexpr(SEGMENT_FIELDS.index("rows"))
ROW_CUTS = tl.constexpr(SEGMENT_FIELDS.index("row_cuts"))
ROW_MAXIMA = tl.constexpr(SEGMENT_FIELDS.index("row_maxima"))
ALIVE = tl.constexpr(SEGMENT_FIELDS.index("alive"))
TIMES = tl.constexpr(SEGMENT_FIELDS.index("times"))
LATEST = tl.constexpr(SEGMENT_FIELDS.index("latest"))
TERM_COUNT = tl.constexpr(SEGMENT_FIELDS.index("term_count"))
SIZE = tl.constexpr(SEGMENT_FIELDS.index("size"))
FIRST = tl.constexpr(SEGMENT_FIELDS.index("first"))
TILES = tl.constexpr(SEGMENT_FIELDS.index("tiles"))
TILE_OFFSET = tl.constexpr(SEGMENT_FIELDS.index("tile_offset"))


@triton.jit
def array_at(row, FIELD: tl.constexpr, element: tl.constexpr):
    """The array whose address a field of the row holds."""
    return tl.load(row + FIELD).to(tl.pointer_type(element))


@triton.jit
def quanta_at(row, LONG: tl.constexpr):
    """The segment's contributions, int64 if LONG, else int32."""
    return array_at(row, QUANTA, tl.int64 if LONG else tl.int32)
