"""What one launch works on, and the verbs that every kernel family offers over it.

A launch answers a whole batch. Every (query, segment) pair is a *unit*; its *slots* are the terms of the query. A
query's units lie side by side, in the order of their segments. Nothing here depends on the family; all arrays are torch
tensors, contiguous, on one device.

Two segments of 40 and 70 documents, two queries of 1 and 2 terms, tiles of 32 documents (`tile_bits` 5)::

    units         (query 0, segment 0)  (query 1, segment 0)  (query 1, segment 1)
    query_units   [0 1 3]               the units of query q are [query_units[q], query_units[q + 1])
    unit_slots    [0 1 3 5]
    tiles         2 of segment 0, 3 of segment 1
    descriptors   unit_descriptors [0 2 6]: one for each slot and tile, the tiles of a slot side by side
    entries       entry_offset [0 2 7]: room for one entry a tile of each unit of the query

A batch is planned on the host (`describe` reads its slots), or is given as terms, which `plan` looks up on the device.
Then `order` lists the tiles that can hold a hit as *entries*, `score` scores them, and `select` ranks what they emit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from ..engine.errors import ParameterError

DOCUMENT_BITS = 20
"""A posting is one 32-bit word, ``document | frequency << DOCUMENT_BITS``; a segment holds at most 2**20 documents."""
POSTING_BYTES = (8, 4)
"""A word and a contribution; a word that holds the posting's impact class in place of the frequency."""
MIN_TILE_BITS = 5
MAX_SELECTED = 1024
"""The largest k that `Verbs.select` takes."""
UNBOUNDED = -(1 << 62)
"""A threshold below every score."""
TABLED_POSTINGS = 32
"""A posting list of at least this many postings a tile of its segment has a row in the tables of the epoch."""

CANDIDATE_BYTES = 12
"""Of a key and a document."""
DESCRIPTOR_BYTES = 24
"""Of a slot in a tile: int64 first posting, int64 largest absolute contribution, int32 postings, int32 weight."""
ENTRY_BYTES = 16
"""Of a tile that is to be scored: int64 bound, int32 unit, int32 tile."""

SEGMENT_FIELDS = (
    "words",  # address of int32 [postings] (bits of uint32): document | frequency << DOCUMENT_BITS
    "quanta",  # address of the contributions, int32 (int64 if long_quanta) [postings]; 0 at 4 bytes a posting
    "saturated",  # address of float64 [impact classes], at 4 bytes a posting
    "idf",  # address of float64 [terms], at 4 bytes a posting
    "terms",  # address of int32 [term_count] vocabulary ids, ascending
    "offsets",  # address of int64 [term_count + 1], first posting of each term
    "rows",  # address of int32 [term_count], the term's row in the next two, or -1
    "row_cuts",  # address of int32 [rows, tiles + 1], postings of the list before each tile border
    "row_maxima",  # address of int64 [rows, tiles], largest absolute contribution of the list in each tile
    "alive",  # address of a bitmap of the live documents, uint32 [ceil(size / 32)], or 0: all are
    "times",  # address of float64 [size] seconds, +inf without a time; 0 where nothing decays
    "latest",  # address of float64 [tiles], the latest time of each tile; 0 where nothing decays
    "term_count",
    "size",  # documents; 0 for a segment that only fills the table
    "first",  # number of the first document; numbers lie in uint32
    "tiles",  # tiles of the segment
    "tile_offset",  # tiles of the segments before it in the table
)
"""A row of `Work.segments`, all int64. `SegmentRow` in cuda/arguments.cuh is the same."""


_PLACES: dict[tuple[object, ...], list[tuple[str, int, str]]] = {}


def by_name(kernel: str, names: tuple[str, ...], sources: Sequence[object], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a kernel takes by these names: a value of `own`, or the attribute of the first source that has it.

    A name in capitals is an attribute in small letters. Raises `ParameterError` for a name that nobody gives, and for
    one of `own` that the kernel does not take.
    """
    key = names, *map(type, sources), *own
    places = _PLACES.get(key)
    if places is None:
        owners = {
            name: [number for number, each in enumerate(sources) if hasattr(each, name.lower())] for name in names
        }
        mismatched = [name for name in names if name not in own and not owners[name]] + [*own.keys() - {*names}]
        if mismatched:
            raise ParameterError(f"{kernel}: these arguments are missing or unknown: {sorted(mismatched)}")
        places = [(name, owners[name][0], name.lower()) for name in names if name not in own]
        _PLACES[key] = places
    return {name: getattr(sources[number], attribute) for name, number, attribute in places} | dict(own)


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
    frequencies: torch.Tensor | None  # int32 [fields, postings] where the words cannot hold them (their bits are 0)
    offsets: torch.Tensor  # int64 [terms + 1]
    lengths: torch.Tensor  # int32 [fields, documents]


@dataclass(frozen=True, eq=False)
class Tables:
    """The long posting lists of one segment, cut at tile borders, in one epoch. R lists, T tiles."""

    segment: torch.Tensor  # int64 [1, len(SEGMENT_FIELDS)]
    tile_bits: int
    tiles: int  # T
    long_quanta: bool
    posting_bytes: int
    terms: torch.Tensor  # int32 [R] position of each list's term among the segment's terms
    cuts: torch.Tensor  # int32 [R, T + 1], written: postings of the list before each tile border
    maxima: torch.Tensor  # int64 [R, T], written: largest absolute contribution of the list in each tile


@dataclass(frozen=True, eq=False)
class Work:
    """One launch. S segments, U units, Q queries."""

    tile_bits: int
    most_tiles: int  # at least the tiles of any query: entry_offset[q + 1] - entry_offset[q]
    most_candidates: int  # at least the candidates of any query
    width: int  # columns of the answer, at least every k
    signed: bool  # contributions may be 0 or negative: "matched" is kept apart from the sum. Then nothing decays
    long_quanta: bool  # contributions are int64; then the launch is wide
    wide: bool  # sums are int64; else int32. Queries whose `query_wide` says otherwise are left alone
    decays: bool  # a query may decay. Then keys are bits of doubles for the queries that do
    segments: torch.Tensor  # int64 [S, len(SEGMENT_FIELDS)]

    query_units: torch.Tensor  # int32 [Q + 1]
    query_k: torch.Tensor  # int32 [Q] at least 0
    query_wide: torch.Tensor  # uint8 [Q] 1: sums may leave int32
    query_now: torch.Tensor  # float64 [Q] seconds; empty unless `decays`
    query_rate: torch.Tensor  # float64 [Q] ticks a second (`engine/index/decay.py`), 0.0: no decay; likewise
    candidate_offset: torch.Tensor  # int64 [Q + 1] room for min(k, 2**tile_bits) candidates for each tile of the query
    entry_offset: torch.Tensor  # int64 [Q + 1] room for an entry for each tile of the query's units

    unit_segment: torch.Tensor  # int32 [U]
    unit_filter: torch.Tensor  # int64 [U] address of a bitmap: uint32 words, bit d & 31 of word d >> 5; or 0
    unit_low: torch.Tensor  # int32 [U] only documents in [low, high) of the segment count (a time range)
    unit_high: torch.Tensor  # int32 [U]
    unit_slots: torch.Tensor  # int64 [U + 1] the slots of unit u are [unit_slots[u], unit_slots[u + 1])
    unit_descriptors: torch.Tensor  # int64 [U] slot i has tile t at unit_descriptors[u] + i * tiles + t

    # Read by `describe` alone; empty where `plan` looks terms up.
    slot_unit: torch.Tensor  # int32 [slots]
    slot_position: torch.Tensor  # int32 [slots] position of the term among the segment's terms, or -1
    slot_weight: torch.Tensor  # int32 [slots] at least 1

    decay_table: torch.Tensor  # int32 [65536] `engine.decay.TABLE`; empty unless `decays`
    posting_bytes: int = field(default=8, kw_only=True)  # one of `POSTING_BYTES`; 8 if signed or long_quanta

    @property
    def long_keys(self) -> bool:
        """Whether a candidate is a 64-bit score and a document apart, not both in one key."""
        return self.wide or self.decays

    def extent(self, buffers: Buffers) -> Extent:
        """How large the launch is."""
        room = len(buffers.entries), len(buffers.keys)
        sizes = self.most_tiles, self.width, self.tile_bits
        return Extent(len(self.query_k), *room, *sizes, self.wide, self.signed, self.decays)


@dataclass(frozen=True, eq=False)
class TermBatch:
    """A batch given by terms, for `Verbs.plan`. T terms, Q queries, all of them over all S segments of the table.

    A query of n terms, the first at o = offsets[q], has the slots from o * S on, n for each segment in turn; and the
    descriptors from o * tiles on, those of segment s from o * tiles + n * tile_offset of s. So there is room for
    T * tiles descriptors. Its entries begin at q * tiles, its candidates at q * candidates. Terms of no query
    are left alone. No query decays.
    """

    terms: torch.Tensor  # int64 [T] vocabulary ids; one that is in no segment (-1, for example) matches nothing
    offsets: torch.Tensor  # int64 [Q + 1] the terms of query q are [offsets[q], offsets[q + 1])
    weights: torch.Tensor | None  # int32 [T] at least 1; None: 1
    k: int  # of every query
    tiles: int  # at least the tiles of all segments: entries of a query
    candidates: int  # room of a query: tiles * min(k, 2**tile_bits)
    widest: float | None
    """Largest contribution of a posting, where a query may be wide: its `query_wide` is whether the sum of its weights
    times this is at least 2**31 - 1. None: `query_wide` is `long_quanta`."""


@dataclass(frozen=True, eq=False)
class Buffers:
    """What one verb hands to the next. All may hold anything at first."""

    descriptors: torch.Tensor  # int64 [descriptors, 3], of `DESCRIPTOR_BYTES`: first, maximum, count | weight << 32
    entries: torch.Tensor  # int64 [entries, 2], of `ENTRY_BYTES`: bound, unit | tile << 32
    entry_counts: torch.Tensor  # int32 [Q] entries of each query
    progress: torch.Tensor  # int64 [2] most entries of a query; turns that `score` has taken
    idf: torch.Tensor  # float64 [slots] idf of each slot, written by `describe` and `plan`; empty at 8 bytes a posting
    thresholds: torch.Tensor  # int64 [Q] no lower score is among the k best; raised by `score`
    counts: torch.Tensor  # int32 [Q] candidates emitted so far
    keys: torch.Tensor  # int64 [candidates] score << 32 | (2**32 - 1 - document); the score, or its bits, if long_keys
    documents: torch.Tensor  # int32 [candidates if long_keys else 0] bits of 2**32 - 1 - document, as uint32
    scratch: torch.Tensor  # uint8 [Verbs.scratch_bytes], of each verb in turn, which leaves anything there


@dataclass(frozen=True, eq=False)
class KernelAnswer:
    """The k best of each query, best first; places past a row's count hold 0 and -1. Every place is written."""

    scores: torch.Tensor  # int64 [Q, width] quanta; of a query that decays the bits of the float64 `decayed`
    documents: torch.Tensor  # int64 [Q, width]
    counts: torch.Tensor  # int32 [Q]


class Extent(NamedTuple):
    """How large a launch is: all that `Verbs.scratch_bytes` depends on."""

    queries: int
    entries: int  # room for those of all queries
    candidates: int  # room for those of all queries
    most_tiles: int  # as the next five are in `Work`
    width: int
    tile_bits: int
    wide: bool
    signed: bool
    decays: bool


class Verbs(Protocol):
    """What a kernel family offers. Nothing synchronises; work goes to the current stream of the current device.

    What a launch needs in device memory is in `Work` and `Buffers`: no verb allocates any but `derive`, 16 bytes a
    field.
    """

    name: str

    @property
    def posting_bytes(self) -> Sequence[int]:
        """Those of `POSTING_BYTES` that it reads."""

    def tile_bits(self, wide: bool) -> int:
        """The preferred tile size, 2**bits documents."""

    def scratch_bytes(self, extent: Extent) -> int:
        """Bytes of `Buffers.scratch` of a launch."""

    def derive(self, postings: DevicePostings, formula: Formula, idf: torch.Tensor, quanta: torch.Tensor) -> None:
        """Fill `quanta` (int32 or int64 [postings]), bit for bit as `BM25.quanta`; `idf` is float64 [terms]."""

    def tabulate(self, tables: Tables) -> None:
        """Fill the cuts and maxima of a segment's long lists. Once an epoch, after `derive`."""

    def describe(self, work: Work, buffers: Buffers) -> None:
        """Fill `buffers.descriptors` for every slot and tile of a launch that was planned on the host.

        Where the term's position is -1, a descriptor has no postings and no maximum. The first posting of a descriptor
        without postings may be any number. Begins the launch: `progress` and `counts` become 0, `thresholds` 1, or
        `UNBOUNDED` if signed.
        """

    def plan(self, batch: TermBatch, work: Work, buffers: Buffers) -> None:
        """Plan a batch of terms on the device.

        Fills all arrays of `work` that belong to queries and units (U = Q * S; unit q * S + s has segment s, its filter
        is the segment's `alive`, its range the whole segment), then does as `describe`, with the terms looked up. Of
        a launch that must not be wide `query_wide` may be read, so it is written in any case.
        """

    def order(self, work: Work, buffers: Buffers) -> None:
        """List the tiles of each query that can hold a hit: fill `entries`, `entry_counts` and ``progress[0]``.

        A tile is left out where no posting of the query lies in it, no document passes, or the sum of weight * maximum
        is below the threshold that the launch began with. A tile's bound is that sum; of a query that decays, its
        ``decayed_bits`` at the tile's latest time. The entries of a query begin at its `entry_offset`; those with
        higher bounds come first, as far as the family sorts. Queries of the other width, or of k 0, have none.
        """

    def score(self, work: Work, buffers: Buffers) -> None:
        """Score the entries and emit candidates into `buffers.keys`.

        A tile emits at most min(k, tile size) candidates: its own k best among the documents that match, pass the
        filter, lie in [low, high) and reach the query's threshold; among equal scores the smaller documents. It may
        raise the threshold (atomic max) to its k-th score. An entry whose bound is below the threshold is skipped.

        For a query that decays, "score" is ``engine.decay.decayed_bits`` of the sum: thresholds and keys are such bits.
        """

    def select(self, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
        """Write the rows of the queries of this width: the k best, score descending, then smaller document."""
