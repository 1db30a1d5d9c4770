"""The arguments of the compiled search loops as named structures, with shape and dtype at each field.

A named tuple that Python passes to a compiled function costs about 1 us, because numba works out its type anew at each
call; a plain tuple costs 0.2 us. So Python passes ``tuple(structure)``, and the first lines of a loop name it again,
which costs nothing there.

*Terms* are the distinct terms of a plan, *queries* the queries of a plan, *rows* the queries of the plan that one call
answers, *documents* the documents of one segment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Floats, Integers


class QueryGroup(NamedTuple):
    """The queries that one call answers, and the terms of all queries of the plan."""

    queries: Integers  # [rows] int64: query of each row
    k: Integers  # [rows] int64: hits wanted
    offsets: Integers  # [queries + 1] int64: into slots
    slots: Integers  # [query-term pairs] int64: term of each pair
    multiplicities: Integers  # [query-term pairs] int64: how often the query holds the term, or its weight


class PostingLists(NamedTuple):
    """The posting lists of the plan's terms in one segment, and what turns a posting into quanta."""

    starts: Integers  # [terms] int64: first posting of the list
    ends: Integers  # [terms] int64: end of the list; equal to starts where the segment lacks the term
    documents: npt.NDArray[np.int32]  # [postings] int32: ascending within a list
    impact_classes: npt.NDArray[
        np.unsignedinteger[Any]
    ]  # [postings] uint16 or uint32: (tf, length) class of each posting
    saturated: Floats  # [classes] float64: saturated frequency of each class
    idf: Floats  # [terms] float64


class Bounds(NamedTuple):
    """What the survey of a segment promises, in quanta."""

    upper_bounds: Integers  # [terms] int64: a posting of the term adds at most this
    reached: Integers  # [queries] int64: the query's k best documents of the segment score at least this


class SkipTable(NamedTuple):
    """Where single documents are found in posting lists; engine/index/skip_tables.py explains blocks and groups."""

    bits: npt.NDArray[np.int8]  # [lists] int8: a block is 2**bits documents; -1: no entries for the list
    starts: Integers  # [lists] int64: first entry of the list
    entries: npt.NDArray[np.int32]  # [entries] int32: first posting of each block, from the start of its list
    group_bits: npt.NDArray[np.int8]  # [lists] int8: a group is 2**group_bits documents
    group_starts: Integers  # [lists] int64: first byte of the list in presence
    presence: npt.NDArray[np.uint8]  # [bytes] uint8: a bit for each group that holds a document of the list


class DenseRows(NamedTuple):
    """Lists that are kept as one contribution for each document."""

    row_of_term: Integers  # [terms] int64: row of the list, or -1
    values: npt.NDArray[np.int32]  # [dense rows, documents] int32: quanta, 0 where the document lacks the term


class Filters(NamedTuple):
    """Which documents may be hits."""

    mask_of_query: Integers  # [queries] int64: which mask applies, or -1: every document may be a hit
    masks: npt.NDArray[np.bool_]  # [masks, documents] bool


class ScanOptions(NamedTuple):
    """How a segment is read over all time."""

    first_document: int  # number of the segment's first document in the snapshot
    tile: int  # documents scored at a time
    scan_percent: int  # postings per 100 documents from which on a tile's scores are looked through one by one
    prunes: bool  # False: every posting is read


class BestHits(NamedTuple):
    """The best hits of each row so far, in no order; carried from segment to segment."""

    keys: Integers  # [rows, room] int64: score << 32 | (2**32 - 1 - document)
    counts: Integers  # [rows] int64: keys in use
    thresholds: Integers  # [rows] int64: a document with a lower score is no hit


class TimeRanges(NamedTuple):
    """The times of a segment's documents, and the range of documents that each query may find."""

    times: Floats  # [documents] float64; empty if timed is False
    timed: bool  # whether the segment has times
    latest_before: Floats  # [time blocks] float64: latest time of any document up to the end of the block
    time_block: int  # documents of a block
    lows: Integers  # [queries] int64: first document
    highs: Integers  # [queries] int64: end of the documents


class Decay(NamedTuple):
    """What a score loses with age; engine/index/decay.py explains the two tables."""

    nows: Floats  # [queries] float64: the time that age is counted from
    rates: Floats  # [queries] float64: ticks a second; 0: no decay
    factors: Floats  # [ticks of a half-life] float64: decay by so many ticks, times 2**FACTOR_BITS
    powers: Floats  # [MAX_HALF_LIVES + 1] float64: decay by whole half-lives, over 2**FACTOR_BITS


class NewestOptions(NamedTuple):
    """How a segment is read from its newest document to its oldest."""

    first_document: int  # number of the segment's first document in the snapshot
    tile: int  # documents scored at a time
    exhaustive: bool  # True: every posting in the range of the query is read


class NewestHits(NamedTuple):
    """The best hits of each row so far, in no order, where the key leaves no room for the document."""

    keys: Integers  # [rows, room] int64: sum of quanta, or the bits of a decayed float64 score
    documents: Integers  # [rows, room] int64: number in the snapshot
    counts: Integers  # [rows] int64: keys in use
    thresholds: Integers  # [rows] int64: a document with a lower key is no hit


class OrderedTerms(NamedTuple):
    """Scratch: the terms of one query that the segment holds, the largest upper bound first."""

    terms: Integers  # [longest query] int64
    weights: npt.NDArray[np.int32]  # [longest query] int32: multiplicity
    upper_bounds: Integers  # [longest query] int64: the list adds at most this
    suffix_bounds: Integers  # [longest query + 1] int64: this list and all that follow add at most this together
    cursors: Integers  # [longest query] int64: first posting behind the tiles that were read
    begins: Integers  # [longest query] int64: first posting of the tile


class Candidates(NamedTuple):
    """Scratch: documents of a tile that may be hits. One place more than the tile, as each is written before it counts.

    `places` is the document's number from the first document of the tile on.
    """

    places: npt.NDArray[np.int32]  # [tile + 1] int32
    sums: npt.NDArray[np.int32]  # [tile + 1] int32: score so far
