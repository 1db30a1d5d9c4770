"""The verbs in numpy, over the addresses that a launch names: what the drivers give to a device is all that they read.

Unlike `plain_verbs.py`, which knows its case, these serve any launch; so a driver that names memory too early, too
late, or of another epoch gives another answer than the oracle.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fanrank.engine.index.bm25 import INT32_MAX
from fanrank.engine.index.decay import decayed_bits
from fanrank.kernels.work import (
    DOCUMENT_BITS,
    SEGMENT_FIELDS,
    UNBOUNDED,
    Buffers,
    DevicePostings,
    Formula,
    KernelAnswer,
    Tables,
    TermBatch,
    Work,
)

Array = npt.NDArray[Any]
LOW = (1 << 32) - 1
_TYPES = {"<i4": ctypes.c_int32, "<i8": ctypes.c_int64, "<u4": ctypes.c_uint32, "<f8": ctypes.c_double}


At = Callable[[int, str, int], Array]
"""(address, type, count) -> what lies there."""


@dataclass(frozen=True, eq=False)
class Row:
    """A row of `Work.segments`."""

    fields: dict[str, int]
    long: bool
    at: At

    def __getattr__(self, name: str) -> int:
        return self.fields[name]

    def position(self, term: int) -> int:
        terms = self.at(self.fields["terms"], "<i4", self.term_count)
        found = int(np.searchsorted(terms, term))
        return found if found < len(terms) and terms[found] == term else -1

    def postings(self, position: int) -> tuple[int, Array, Array]:
        """(first posting, documents, contributions) of a list."""
        first, end = self.at(self.offsets + 8 * position, "<i8", 2).tolist()
        words = self.at(self.words + 4 * first, "<u4", end - first)
        size = 8 if self.long else 4
        quanta = self.at(self.quanta + size * first, f"<i{size}", end - first).astype(np.int64)
        return first, (words & ((1 << DOCUMENT_BITS) - 1)).astype(np.int64), quanta


def cut(documents: Array, quanta: Array, tiles: int, bits: int) -> tuple[Array, Array]:
    """(cuts [tiles + 1], maxima [tiles])."""
    cuts = np.searchsorted(documents, np.arange(tiles + 1) << bits)
    maxima = [int(np.abs(quanta[cuts[tile] : cuts[tile + 1]]).max(initial=0)) for tile in range(tiles)]
    return cuts, np.array(maxima, dtype=np.int64)


class PlainDevice:
    """`Verbs` at 8 bytes a posting."""

    name = "plain"
    posting_bytes = (8,)

    def __init__(
        self, narrow_bits: int = 5, wide_bits: int = 5, holds: Callable[[int, int], bool] = lambda address, size: True
    ) -> None:
        """`holds` says whether so many bytes at an address are the device's; all else is refused."""
        self._bits = narrow_bits, wide_bits
        self._holds = holds

    def _at(self, address: int, dtype: str, count: int) -> Array:
        kind = _TYPES[dtype]
        if not count:
            return np.zeros(0, dtype=dtype)
        assert address, "a null pointer is read"
        assert 0 < count < 1 << 31, "more is read than any device holds"
        assert self._holds(address, count * ctypes.sizeof(kind)), "what is read is not the device's memory"
        return np.ctypeslib.as_array((kind * count).from_address(address))

    def _rows(self, segments: torch.Tensor, long: bool) -> list[Row]:
        return [Row(dict(zip(SEGMENT_FIELDS, row, strict=True)), long, self._at) for row in segments.tolist()]

    def tile_bits(self, wide: bool) -> int:
        return self._bits[wide]

    def derive(self, postings: DevicePostings, formula: Formula, idf: torch.Tensor, quanta: torch.Tensor) -> None:
        words = postings.words.numpy().view(np.uint32)
        documents = words & ((1 << DOCUMENT_BITS) - 1)
        if postings.frequencies is None:
            frequencies = (words >> DOCUMENT_BITS)[None].astype(np.float64)
        else:
            frequencies = postings.frequencies.numpy().astype(np.float64)
        lengths = postings.lengths.numpy()[:, documents]
        k1, b, shape = formula.k1, formula.b, formula.shape
        norms = [
            (1.0 - b) + b * (length / average) for length, average in zip(lengths, formula.average_lengths, strict=True)
        ]
        with np.errstate(all="ignore"):
            if shape == 3:
                saturated = frequencies[0] / formula.scale
            elif formula.fielded:
                c = np.zeros(len(words))
                for weight, tf, norm in zip(formula.weights, frequencies, norms, strict=True):
                    c += np.where(tf > 0, weight * tf / norm, 0.0)
                saturated = c if shape == 1 else c * (k1 + 1.0) / (k1 + c)
            else:
                tf = frequencies[0]
                saturated = tf / norms[0] if shape == 1 else tf * (k1 + 1.0) / (tf + k1 * norms[0])
            if shape == 1:
                shifted = saturated + formula.delta
                saturated = (k1 + 1.0) * shifted / (k1 + shifted)
            elif shape == 2:
                saturated = formula.delta + saturated
        spread = np.repeat(idf.numpy(), np.diff(postings.offsets.numpy()))
        made = np.rint(spread * saturated * formula.scale)
        quanta.numpy()[:] = made if formula.signed else np.maximum(made, 1)

    def tabulate(self, tables: Tables) -> None:
        (row,) = self._rows(tables.segment, tables.long_quanta)
        for number, position in enumerate(tables.terms.tolist()):
            _, documents, quanta = row.postings(position)
            cuts, maxima = cut(documents, quanta, tables.tiles, tables.tile_bits)
            tables.cuts.numpy()[number], tables.maxima.numpy()[number] = cuts, maxima

    def describe(self, work: Work, buffers: Buffers) -> None:
        self._begin(work, buffers)
        rows = self._rows(work.segments, work.long_quanta)
        starts = work.unit_slots.tolist()
        for unit, (segment, place) in enumerate(
            zip(work.unit_segment.tolist(), work.unit_descriptors.tolist(), strict=True)
        ):
            for number, slot in enumerate(range(starts[unit], starts[unit + 1])):
                assert int(work.slot_unit[slot]) == unit
                self._describe(
                    work, buffers, rows[segment], int(work.slot_position[slot]), int(work.slot_weight[slot]),
                    place + number * rows[segment].tiles,
                )  # fmt: skip

    def plan(self, batch: TermBatch, work: Work, buffers: Buffers) -> None:
        rows = self._rows(work.segments, work.long_quanta)
        offsets, terms = batch.offsets.tolist(), batch.terms.tolist()
        weights = [1] * len(terms) if batch.weights is None else batch.weights.tolist()
        queries, count, total = len(offsets) - 1, len(rows), sum(row.tiles for row in rows)
        assert total <= batch.tiles, "more tiles than the buffers have room for"
        assert batch.candidates == batch.tiles * min(batch.k, 1 << work.tile_bits)
        assert len(buffers.entries) >= queries * batch.tiles
        assert len(buffers.keys) >= queries * batch.candidates
        assert len(buffers.descriptors) >= len(terms) * total
        self._begin(work, buffers)
        work.query_k.fill_(batch.k)
        _write(work.query_units, np.arange(queries + 1) * count)
        _write(work.candidate_offset, np.arange(queries + 1) * batch.candidates)
        _write(work.entry_offset, np.arange(queries + 1) * batch.tiles)
        slots = descriptors = 0
        for query in range(queries):
            own = range(offsets[query], offsets[query + 1])
            wide = work.long_quanta
            if batch.widest is not None:
                wide = float(sum(weights[term] for term in own)) * batch.widest >= INT32_MAX
            work.query_wide[query] = int(wide)
            for number, row in enumerate(rows):
                unit = query * count + number
                work.unit_segment[unit], work.unit_filter[unit] = number, row.alive
                work.unit_low[unit], work.unit_high[unit] = 0, row.size
                work.unit_slots[unit], work.unit_descriptors[unit] = slots, descriptors
                for term in own:
                    position = row.position(terms[term])
                    self._describe(work, buffers, row, position, weights[term], descriptors)
                    descriptors += row.tiles
                slots += len(own)
        work.unit_slots[queries * count] = slots

    def order(self, work: Work, buffers: Buffers) -> None:
        rows = self._rows(work.segments, work.long_quanta)
        entries = buffers.entries.numpy()
        for query, units in enumerate(_units(work)):
            found = []
            for unit in units:
                row = rows[int(work.unit_segment[unit])]
                slots = int(work.unit_slots[unit + 1] - work.unit_slots[unit])
                place = int(work.unit_descriptors[unit])
                own = buffers.descriptors.numpy()[place : place + slots * row.tiles].reshape(slots, row.tiles, 3)
                counts, weights = own[:, :, 2] & LOW, own[:, :, 2] >> 32
                bounds = (own[:, :, 1] * weights).sum(axis=0)
                for tile in np.flatnonzero(counts.any(axis=0)).tolist() if slots else ():
                    bound = int(bounds[tile])
                    if self._rate(work, query):
                        latest = row.at(row.latest, "<f8", row.tiles)[tile]
                        bound = int(decayed_bits(np.array([bound]), np.array([latest]), *self._clock(work, query))[0])
                    if bound >= int(buffers.thresholds[query]) and self._passing(work, row, unit, tile).any():
                        found.append((bound, unit, tile))
            found.sort(key=lambda each: -each[0])
            start = int(work.entry_offset[query])
            assert len(found) <= int(work.entry_offset[query + 1]) - start
            for number, (bound, unit, tile) in enumerate(found):
                entries[start + number] = bound, unit | tile << 32
            buffers.entry_counts[query] = len(found)
            buffers.progress[0] = max(int(buffers.progress[0]), len(found))

    def score(self, work: Work, buffers: Buffers) -> None:
        rows = self._rows(work.segments, work.long_quanta)
        for query in range(len(work.query_k)):
            start, k = int(work.entry_offset[query]), int(work.query_k[query])
            for bound, place in buffers.entries[start : start + int(buffers.entry_counts[query])].tolist():
                if bound >= int(buffers.thresholds[query]):
                    unit, tile = place & LOW, place >> 32
                    self._emit(work, buffers, query, k, unit, tile, rows[int(work.unit_segment[unit])])

    def _emit(self, work: Work, buffers: Buffers, query: int, k: int, unit: int, tile: int, row: Row) -> None:
        size = 1 << work.tile_bits
        sums, matched = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_)
        place = int(work.unit_descriptors[unit]) + tile
        for slot in range(int(work.unit_slots[unit + 1] - work.unit_slots[unit])):
            first, _, packed = buffers.descriptors[place + slot * row.tiles].tolist()
            count, weight = packed & LOW, packed >> 32
            words = row.at(row.words + 4 * first, "<u4", count)
            width = 8 if row.long else 4
            quanta = row.at(row.quanta + width * first, f"<i{width}", count).astype(np.int64)
            documents = (words & ((1 << DOCUMENT_BITS) - 1)).astype(np.int64) - tile * size
            assert ((documents >= 0) & (documents < size)).all(), "a descriptor names postings of another tile"
            sums[documents] += quanta * weight
            matched[documents] = True
        matched &= self._passing(work, row, unit, tile)
        if not work.wide:
            assert np.abs(sums).max(initial=0) <= INT32_MAX, "a sum leaves int32 in a narrow launch"
        if self._rate(work, query):
            times = row.at(row.times, "<f8", row.size)[tile * size : (tile + 1) * size]
            times = np.pad(times, (0, size - len(times)), constant_values=np.inf)
            sums = decayed_bits(sums, times, *self._clock(work, query))
        reached = np.flatnonzero(matched & (sums >= int(buffers.thresholds[query])))
        best = reached[np.lexsort((reached, -sums[reached]))][:k]
        where = int(work.candidate_offset[query]) + int(buffers.counts[query])
        assert where + len(best) <= int(work.candidate_offset[query + 1]), "candidates beyond their room"
        for number, local in enumerate(best.tolist()):
            document = LOW - (row.first + tile * size + local)
            score = int(sums[local])
            buffers.keys[where + number] = score if work.long_keys else score << 32 | document
            if work.long_keys:
                buffers.documents[where + number] = int(np.uint32(document).view(np.int32))
        buffers.counts[query] += len(best)
        if len(best) == k:
            buffers.thresholds[query] = max(int(buffers.thresholds[query]), int(sums[best[-1]]))

    def select(self, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
        for query in range(len(work.query_k)):
            if bool(work.query_wide[query]) != work.wide:
                continue
            start, count = int(work.candidate_offset[query]), int(buffers.counts[query])
            keys = buffers.keys[start : start + count].tolist()
            if work.long_keys:
                low = [bits & LOW for bits in buffers.documents[start : start + count].tolist()]
                ranked = sorted((-key, LOW - bits) for key, bits in zip(keys, low, strict=True))
            else:
                ranked = sorted((-(key >> 32), LOW - (key & LOW)) for key in keys)
            ranked = ranked[: int(work.query_k[query])]
            answer.scores[query], answer.documents[query] = 0, -1
            for number, (score, document) in enumerate(ranked):
                answer.scores[query, number], answer.documents[query, number] = -score, document
            answer.counts[query] = len(ranked)

    def _begin(self, work: Work, buffers: Buffers) -> None:
        buffers.progress.zero_()
        buffers.counts.zero_()
        buffers.thresholds.fill_(UNBOUNDED if work.signed else 1)

    def _describe(self, work: Work, buffers: Buffers, row: Row, position: int, weight: int, place: int) -> None:
        own = buffers.descriptors.numpy()[place : place + row.tiles]
        assert len(own) == row.tiles, "descriptors beyond their room"
        own[:, 0], own[:, 1], own[:, 2] = 0, 0, weight << 32
        if position < 0:
            return
        first, documents, quanta = row.postings(position)
        number = int(row.at(row.rows + 4 * position, "<i4", 1)[0])
        if number < 0:
            cuts, maxima = cut(documents, quanta, row.tiles, work.tile_bits)
        else:
            cuts = row.at(row.row_cuts + 4 * number * (row.tiles + 1), "<i4", row.tiles + 1).astype(np.int64)
            maxima = row.at(row.row_maxima + 8 * number * row.tiles, "<i8", row.tiles)
        own[:, 0], own[:, 1] = first + cuts[:-1], maxima
        own[:, 2] = np.diff(cuts) | weight << 32

    def _passing(self, work: Work, row: Row, unit: int, tile: int) -> Array:
        """bool [tile] the documents of a tile that pass."""
        size = 1 << work.tile_bits
        documents = np.arange(tile * size, (tile + 1) * size)
        passing = (documents >= int(work.unit_low[unit])) & (documents < int(work.unit_high[unit]))
        bits = int(work.unit_filter[unit])
        if bits:
            known = documents < row.size
            words = row.at(bits, "<u4", -(-row.size // 32))
            passing[known] &= (words[documents[known] >> 5] >> (documents[known] & 31) & 1).astype(np.bool_)
        return passing

    def _rate(self, work: Work, query: int) -> float:
        return float(work.query_rate[query]) if work.decays else 0.0

    def _clock(self, work: Work, query: int) -> tuple[float, float]:
        return float(work.query_now[query]), float(work.query_rate[query])


def _units(work: Work) -> Iterator[range]:
    """The units of each query of this width."""
    borders = work.query_units.tolist()
    for query, (first, end) in enumerate(itertools.pairwise(borders)):
        yield range(first, end) if bool(work.query_wide[query]) == work.wide and work.query_k[query] else range(0)


def _write(target: torch.Tensor, values: Array) -> None:
    target.numpy()[:] = values
