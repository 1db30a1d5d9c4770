"""What one launch works on, and the four verbs that every kernel family offers over it.

A launch answers a whole batch: every (query, segment) pair is a *unit*, every unit is scored tile by tile. Nothing here
depends on the family; all arrays are torch tensors, contiguous, on one device.

Two segments of 40 and 70 documents, two queries, tiles of 32 documents (`tile_bits` 5)::

    units         (query 0, segment 0)  (query 1, segment 0)  (query 1, segment 1)      grouped by segment
    unit_offset   [0 2 3]               the units of segment s are [unit_offset[s], unit_offset[s + 1])
    tiles         2 of segment 0, 3 of segment 1
    block_offset  [0 4 7]               segment s has tiles * units blocks, tile-major:
    blocks        (tile 0, unit 0) (tile 0, unit 1) (tile 1, unit 0) (tile 1, unit 1) (tile 0, unit 2) ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

DOCUMENT_BITS = 20
"""A posting is one 32-bit word, ``document | frequency << DOCUMENT_BITS``; a segment holds at most 2**20 documents."""
POSTING_BYTES = (8, 6, 4)
"""A word and a contribution; a word and the posting's impact class; a word that holds the impact class in place of the
frequency."""
MIN_TILE_BITS = 5
MAX_SELECTED = 1024
"""The largest k that `Verbs.select` takes."""
UNBOUNDED = -(1 << 62)
"""A threshold below every score."""


CANDIDATE_BYTES = 12
"""Of a key and a document."""
CUT_BYTES = 12
"""Of a cut and a maximum."""


def tiles_of(documents: int, tile_bits: int) -> int:
    """Tiles of a segment."""
    return -(-documents >> tile_bits)


@dataclass(frozen=True, eq=False)
class Formula:
    """The contribution formula of one epoch (`engine/index/bm25.py`), in numbers. One entry of each sequence a
    field."""

    shape: int  # 0: tf (k1 + 1) / (tf + k1 norm); 1: bm25l; 2: bm25+; 3: tf / scale (dot), never fielded
    fielded: bool  # c = sum of weight * tf / norm replaces tf / norm
    signed: bool  # contributions below 1 quantum are kept
    k1: float
    b: float
    delta: float
    scale: float
    weights: Sequence[float]
    average_lengths: Sequence[float]


@dataclass(frozen=True, eq=False)
class DevicePostings:
    """One segment's arrays on the device, as `Verbs.derive` reads them."""

    words: torch.Tensor  # int32 [postings] (bits of uint32): document | frequency << DOCUMENT_BITS
    frequencies: (
        torch.Tensor | None
    )  # int32 [fields, postings] where the words cannot hold them (then their bits are 0)
    offsets: torch.Tensor  # int64 [terms + 1]
    lengths: torch.Tensor  # int32 [fields, documents]


@dataclass(frozen=True, eq=False)
class Work:
    """One launch. S segments, L lists, U units, Q queries."""

    tile_bits: int
    max_tiles: int  # of any segment
    blocks: int  # block_offset[S]
    width: int  # columns of the answer, at least every k
    signed: bool  # contributions may be 0 or negative: "matched" is kept apart from the sum
    long_quanta: bool  # quanta are int64, and all queries wide
    any_narrow: bool  # whether a query may be narrow, and so on
    any_wide: bool
    any_decay: bool  # whether a query may decay; never where signed. Without, the five tensors of decay may be empty

    words: torch.Tensor  # int64 [S] address of the segment's words, uint32 [postings]
    quanta: torch.Tensor  # int64 [S] address of its contributions, int32 (int64 if long_quanta) [postings]
    sizes: torch.Tensor  # int32 [S] documents
    firsts: torch.Tensor  # int64 [S] number of the first document; numbers lie in uint32
    block_offset: torch.Tensor  # int64 [S + 1]
    unit_offset: torch.Tensor  # int32 [S + 1]

    list_segment: torch.Tensor  # int32 [L]
    list_start: torch.Tensor  # int64 [L] first posting
    list_length: torch.Tensor  # int32 [L] 0 for a list that does not exist
    list_cuts: torch.Tensor  # int64 [L] every list's row in `cuts` and `maxima`: tiles + 1 entries from here

    unit_query: torch.Tensor  # int32 [U]
    unit_slots: torch.Tensor  # int64 [U + 1] the slots of unit u are [unit_slots[u], unit_slots[u + 1])
    unit_filter: (
        torch.Tensor
    )  # int64 [U] address of a bitmap, uint32 [ceil(documents / 32)], bit d & 31 of word d >> 5; or 0
    unit_low: torch.Tensor  # int32 [U] only documents in [low, high) of the segment count (a time range)
    unit_high: torch.Tensor  # int32 [U]
    slot_list: torch.Tensor  # int32 [slots]
    slot_weight: torch.Tensor  # int32 [slots] at least 1

    query_k: torch.Tensor  # int32 [Q] at least 0
    query_wide: torch.Tensor  # uint8 [Q] 1: scores may leave int32, or decay; only the wide kernels touch this query
    candidate_offset: torch.Tensor  # int64 [Q + 1] room for min(k, 2**tile_bits) candidates for each tile of the query

    times: torch.Tensor  # int64 [S] address of the segment's times, float64 [documents] seconds, +inf without a time
    latest: torch.Tensor  # int64 [S] address of the latest time of each tile, float64 [tiles]
    query_now: torch.Tensor  # float64 [Q] seconds
    query_rate: torch.Tensor  # float64 [Q] ticks a second (`engine/index/decay.py`), or 0.0: the query does not decay
    decay_table: torch.Tensor  # int32 [65536] `engine.decay.TABLE`

    # One of `POSTING_BYTES`. Below 8, contributions are computed from impact classes. At 6, `quanta` are the impact
    # classes' addresses.
    posting_bytes: int = field(default=8, kw_only=True)
    # Below 8: int64 [S] address of the segment's `Resident.saturated`, and float64 [L].
    saturated: torch.Tensor | None = field(default=None, kw_only=True)
    list_idf: torch.Tensor | None = field(default=None, kw_only=True)


def no_decay(device: torch.device) -> dict[str, torch.Tensor]:
    """The tensors of decay for a launch without any."""
    types = {
        "times": torch.int64,
        "latest": torch.int64,
        "query_now": torch.float64,
        "query_rate": torch.float64,
        "decay_table": torch.int32,
    }
    return {name: torch.empty(0, dtype=dtype, device=device) for name, dtype in types.items()}


@dataclass(frozen=True, eq=False)
class Buffers:
    """What one verb hands to the next. All but thresholds and counts may hold anything at first."""

    cuts: torch.Tensor  # int32 [cuts] postings of the list before each tile border
    maxima: (
        torch.Tensor
    )  # int64 [cuts] largest absolute contribution of the list in each tile (the last of a row unused)
    thresholds: (
        torch.Tensor
    )  # int64 [Q] thresholds: no lower key is among the k best; at first 1, or UNBOUNDED if signed
    counts: torch.Tensor  # int32 [Q] candidates emitted so far; starts at 0
    keys: torch.Tensor  # int64 [candidates] narrow: score << 32 | (2**32 - 1 - document); wide: score, or its bits
    documents: torch.Tensor  # int32 [candidates if any_wide else 0] wide: bits of 2**32 - 1 - document, as uint32


@dataclass(frozen=True, eq=False)
class KernelAnswer:
    """The k best of each query, best first; places past a row's count hold 0 and -1. Every place is written."""

    scores: torch.Tensor  # int64 [Q, width] quanta; of a query that decays the bits of the float64 `decayed`
    documents: torch.Tensor  # int64 [Q, width]
    counts: torch.Tensor  # int32 [Q]


class Verbs(Protocol):
    """What a kernel family offers. Nothing synchronises; work goes to the caller's current stream."""

    name: str

    @property
    def posting_bytes(self) -> Sequence[int]:
        """Those of `POSTING_BYTES` that it reads."""

    def tile_bits(self, wide: bool) -> int:
        """The preferred tile size, 2**bits documents."""

    def derive(self, postings: DevicePostings, formula: Formula, idf: torch.Tensor, quanta: torch.Tensor) -> None:
        """Fill `quanta` (int32 or int64 [postings]), bit for bit as `BM25.quanta`; `idf` is float64 [terms]."""

    def cut(self, work: Work, buffers: Buffers) -> None:
        """Fill `buffers.cuts` and `buffers.maxima` for every list."""

    def score(self, work: Work, buffers: Buffers, *, wide: bool) -> None:
        """Score every block of the narrow (or wide) queries and emit candidates into `buffers.keys`.

        A block emits at most min(k, tile size) candidates: its own k best among the documents that match, pass the
        filter, lie in [low, high) and reach the query's threshold; among equal scores the smaller documents. It may
        raise the threshold (atomic max) to its k-th score. It skips all work where no posting of the query lies in the
        tile, no document passes, or the sum of weight * maximum is below the threshold.

        For a query that decays, "score" is ``engine.decay.decayed_bits`` of the sum: thresholds and keys are such
        bits, and a tile's bound is that of its latest document. Blocks are then taken from the last to the first.
        """

    def select(self, work: Work, buffers: Buffers, answer: KernelAnswer, *, wide: bool) -> None:
        """Write the rows of the narrow (or wide) queries: the k best, score descending, then smaller document."""
