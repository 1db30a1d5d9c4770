"""Every verb of `kernels/work.py` in plain Python over one launch's host arrays, to compare with and to stand in."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch

from fanrank.kernels.work import UNBOUNDED, Buffers, KernelAnswer, Tables, TermBatch, Work

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


def descriptors_of(case: Case, room: int) -> tuple[Array, Array]:
    """(int64 [room, 4] first, maximum, count, weight, -1 in the last where there is none; float64 [slots] idf)."""
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


def begin(work: Work, buffers: Buffers) -> None:
    """As `describe` and `plan` begin a launch."""
    buffers.progress.zero_()
    buffers.counts.zero_()
    buffers.thresholds.fill_(UNBOUNDED if work.signed else 1)


class PlainVerbs:
    """`Verbs` but for `derive`, over the launch of one case."""

    name = "plain"
    posting_bytes = (8, 6, 4)

    def __init__(self, case: Case) -> None:
        self._case = case

    def tabulate(self, tables: Tables) -> None:
        number = next(n for n, own in enumerate(self._case.tables) if own.cuts.data_ptr() == tables.cuts.data_ptr())
        segment = self._case.segments[number]
        cuts, maxima = tables_of(segment, tables.terms.cpu().numpy(), tables.tiles, tables.tile_bits)
        tables.cuts.copy_(torch.from_numpy(cuts))
        tables.maxima.copy_(torch.from_numpy(maxima))

    def describe(self, work: Work, buffers: Buffers) -> None:
        begin(work, buffers)
        rows, idf = descriptors_of(self._case, len(buffers.descriptors))
        written = torch.from_numpy(rows[:, 3] >= 0).to(buffers.descriptors.device)
        packed = np.stack([rows[:, 0], rows[:, 1], rows[:, 2] | rows[:, 3] << 32], axis=1)
        buffers.descriptors[written] = torch.from_numpy(packed[rows[:, 3] >= 0]).to(buffers.descriptors.device)
        if len(buffers.idf):
            buffers.idf.copy_(torch.from_numpy(idf))

    def plan(self, batch: TermBatch, work: Work, buffers: Buffers) -> None:
        """Of the case that `launches.planned` made beside the batch."""
        for name in PLANNED:
            getattr(work, name).copy_(getattr(self._case.work, name))
        self.describe(work, buffers)

    def order(self, work: Work, buffers: Buffers) -> None:
        rows, _ = descriptors_of(self._case, len(buffers.descriptors))
        found = entries_of(self._case, work, rows, buffers.thresholds.cpu().numpy())
        for query, own in enumerate(found):
            start = int(work.entry_offset[query])
            ranked = sorted((-bound, unit | tile << 32) for (unit, tile), bound in own.items())
            if ranked:
                listed = torch.tensor([[-bound, place] for bound, place in ranked], dtype=torch.int64)
                buffers.entries[start : start + len(listed)] = listed.to(buffers.entries.device)
            buffers.entry_counts[query] = len(ranked)
            buffers.progress[0] = max(int(buffers.progress[0]), len(ranked))

    def score(self, work: Work, buffers: Buffers) -> None:
        case, mask = self._case, (1 << 32) - 1
        for query, matches in enumerate(case.matches):
            k, start = int(work.query_k[query]), int(work.entry_offset[query])
            for bound, place in buffers.entries[start : start + int(buffers.entry_counts[query])].tolist():
                threshold = int(buffers.thresholds[query])
                if bound < threshold:
                    continue
                segment = case.segments[case.units[place & mask].segment]
                low = segment.first + ((place >> 32) << work.tile_bits)
                high = min(low + (1 << work.tile_bits), segment.first + segment.size)
                reached = {d: matches[d] for d in range(low, high) if matches.get(d, threshold - 1) >= threshold}
                best = sorted((-score, document) for document, score in reached.items())[:k]
                at = int(work.candidate_offset[query]) + int(buffers.counts[query])
                for offset, (score, document) in enumerate(best):
                    buffers.keys[at + offset] = -score if work.long_keys else (-score << 32) | (LOW - document)
                    if work.long_keys:
                        buffers.documents[at + offset] = int(np.uint32(LOW - document).view(np.int32))
                buffers.counts[query] += len(best)
                if len(best) == k:
                    buffers.thresholds[query] = max(threshold, -best[-1][0])

    def select(self, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
        width = answer.scores.shape[1]
        for query in range(len(work.query_k)):
            if self._case.is_wide(query) != work.wide:
                continue
            ranked = sorted((-score, document) for score, document in candidates_of(work, buffers, query))
            ranked = ranked[: int(work.query_k[query])]
            padding = width - len(ranked)
            scores = [-score for score, _ in ranked] + [0] * padding
            documents = [document for _, document in ranked] + [-1] * padding
            answer.scores[query] = torch.tensor(scores, dtype=torch.int64)
            answer.documents[query] = torch.tensor(documents, dtype=torch.int64)
            answer.counts[query] = len(ranked)
