"""What the verbs of `kernels/work.py` must give, in plain Python over one launch's host arrays."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import numpy as np

from fanrank.kernels.work import Buffers, Work

if TYPE_CHECKING:
    from support.launches import Array, Case, Ranked, SegmentCase

LOW = (1 << 32) - 1
PLANNED = ("query_units", "query_k", "query_wide", "candidate_offset", "entry_offset", "unit_segment", "unit_filter")
PLANNED += ("unit_low", "unit_high", "unit_slots", "unit_descriptors")
"""The arrays of `Work` that `plan` writes."""


def tables_of(segment: SegmentCase, terms: Array, tiles: int, bits: int) -> tuple[Array, Array]:
    """(cuts, maxima) of these terms' lists."""
    cuts = np.zeros((len(terms), tiles + 1), dtype=np.int32)
    maxima = np.zeros((len(terms), tiles), dtype=np.int64)
    for row, position in enumerate(terms.tolist()):
        cuts[row] = np.searchsorted(segment.documents[position], np.arange(tiles + 1) << bits)
        for tile, (begin, end) in enumerate(itertools.pairwise(cuts[row].tolist())):
            maxima[row, tile] = np.abs(segment.quanta[position][begin:end]).max(initial=0)
    return cuts, maxima


@functools.lru_cache(maxsize=4)
def descriptors_of(case: Case, room: int) -> tuple[Array, Array]:
    """(int64 [room, 4] first, maximum, count, weight, -1 in the last where there is none; float64 [slots] idf).

    They are kept for the next call, and must not be changed.
    """
    work = case.work
    rows = np.full((room, 4), -1, dtype=np.int64)
    idf = np.zeros(sum(len(unit.slots) for unit in case.units))
    slot = 0
    for unit, place in zip(case.units, work.unit_descriptors.tolist(), strict=True):
        tiles = case.tiles(unit.segment)
        for number, (position, weight) in enumerate(unit.slots):
            own = rows[place + number * tiles : place + (number + 1) * tiles]
            own[:] = [0, 0, 0, weight]
            if position >= 0:
                segment = case.segments[unit.segment]
                cuts, maxima = tables_of(segment, np.array([position]), tiles, work.tile_bits)
                own[:, 0] = int(segment.postings.offsets[position]) + cuts[0, :-1]
                own[:, 1], own[:, 2] = maxima[0], np.diff(cuts[0])
                idf[slot] = float(segment.idf[position])
            slot += 1
    return rows, idf


def entries_of(case: Case, work: Work, rows: Array, thresholds: Array) -> list[dict[tuple[int, int], int]]:
    """Of each query {(unit, tile): bound}. `rows` as `descriptors_of` gives them."""
    found: list[dict[tuple[int, int], int]] = [{} for _ in case.matches]
    for number, unit in enumerate(case.units):
        query, tiles = unit.query, case.tiles(unit.segment)
        if case.is_wide(query) != work.wide or not work.query_k[query]:
            continue
        place = int(work.unit_descriptors[number])
        own = rows[place : place + len(unit.slots) * tiles].reshape(len(unit.slots), tiles, 4)
        latest = case.decay.latest(unit.segment, work.tile_bits) if tiles else []
        for tile in range(tiles):
            begin, end = max(unit.low, tile << work.tile_bits), min(unit.high, (tile + 1) << work.tile_bits)
            bound = sum(int(weight) * int(maximum) for _, maximum, _, weight in own[:, tile].tolist())
            bound = case.decay.at(query, bound, float(latest[tile]))
            if own[:, tile, 2].any() and unit.passing[begin:end].any() and bound >= thresholds[query]:
                found[query][number, tile] = bound
    return found


def candidates_of(work: Work, buffers: Buffers, query: int) -> Ranked:
    """The (score, document) pairs that a query's tiles emitted."""
    start, count = int(work.candidate_offset[query]), int(buffers.counts[query])
    room = int(work.candidate_offset[query + 1]) - start
    assert 0 <= count <= room, f"query {query}: {count} candidates, room for {room}"
    keys = buffers.keys[start : start + count].cpu().tolist()
    if work.long_keys:
        low = [bits & LOW for bits in buffers.documents[start : start + count].cpu().tolist()]
        return [(key, LOW - bits) for key, bits in zip(keys, low, strict=True)]
    return [(key >> 32, LOW - (key & LOW)) for key in keys]
