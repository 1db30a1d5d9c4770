"""Turns batches into launches: plans of any number of namespaces into one `Work`, or texts over one snapshot.

A chunk holds as many queries as fit the buffers. One pass of the verbs answers a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..engine.arrays import Integers, offsets_of, ranges
from ..engine.index.snapshot import Snapshot
from ..engine.plan.plan import Plan, SegmentPlan
from .device import Residency, SegmentTable, bitmap
from .frame import ALIGNMENT, FIELDS, Frame, Shape, Window, answer_in, answer_size, block_bytes, buffer_windows, carve
from .sort import sorted_bytes
from .work import SEGMENT_FIELDS, Buffers, Extent, KernelAnswer, TermBatch, Verbs, Work, tiles_of

_OFFSET = SEGMENT_FIELDS.index("tile_offset")
_TILES = SEGMENT_FIELDS.index("tiles")
_TYPES = {"<i8": torch.int64, "<i4": torch.int32, "<u4": torch.int32, "|u1": torch.uint8, "<f8": torch.float64}
# An entry takes as many bytes as one candidate and a third.
ENTRY_CANDIDATES = 2


@dataclass(frozen=True, eq=False)
class Share:
    """Some queries of a plan."""

    plan: Plan
    queries: Integers  # positions in the plan, ascending


@dataclass(frozen=True, eq=False)
class Chunk:
    """What one launch answers: queries whose sums are all wide, or all narrow."""

    shares: list[Share]
    wide: bool

    def __iter__(self) -> Iterator[Share]:
        return iter(self.shares)

    @property
    def halves(self) -> list[Chunk]:
        """The queries as two chunks, or as one if it is a single query."""
        total = sum(len(share.queries) for share in self.shares)
        first: list[Share] = []
        second: list[Share] = []
        left = total // 2
        for share in self.shares:
            taken, rest = share.queries[:left], share.queries[left:]
            left -= len(taken)
            first += [Share(share.plan, taken)] if len(taken) else []
            second += [Share(share.plan, rest)] if len(rest) else []
        return [Chunk(shares, self.wide) for shares in (first, second) if shares]

    def launch(self, residency: Residency, verbs: Verbs) -> Launch:
        """The launch, where the segments are ready; its arrays go up in one copy on the current stream.

        Raises `DeviceMemoryError` if it cannot fit.
        """
        shares, plan = self.shares, self.shares[0].plan
        tile_bits, posting_bytes = verbs.tile_bits(self.wide), residency.bytes_for(plan.snapshot)
        runtime = residency.runtime
        rates = _of_queries(shares, lambda plan: plan.rates)
        decays = bool((rates > 0).any()) and not plan.signed
        k = _of_queries(shares, lambda plan: plan.k)
        columns = Columns()
        for share in shares:
            columns.add_share(share, residency.table(share.plan.snapshot, tile_bits, verbs, decays=decays))
        arrays, described = columns.arrays(k, tile_bits)
        queries = len(k)
        arrays["query_wide"] = np.full(queries, self.wide, dtype=np.uint8)
        arrays["query_now"] = _of_queries(shares, lambda plan: plan.now) if decays else np.zeros(0)
        arrays["query_rate"] = rates if decays else np.zeros(0)
        tiles, room = np.diff(arrays["entry_offset"]), np.diff(arrays["candidate_offset"])
        slots, candidates = len(arrays["slot_unit"]), int(room.sum())
        up = [Window(name, _TYPES[array.dtype.str], array.shape) for name, array in arrays.items()]
        width, entries, most = int(k.max(initial=0)), int(tiles.sum()), int(tiles.max(initial=0))
        extent = Extent(queries, entries, candidates, most, width, tile_bits, self.wide, plan.signed, decays)
        scratch = [
            Window("found", torch.int64, (answer_size(queries, width),)),
            *buffer_windows(extent, described, slots if posting_bytes < 8 else 0, verbs.scratch_bytes(extent)),
        ]
        head = block_bytes(up)
        residency.reserve(head + block_bytes(scratch) + sorted_bytes(queries, int(room.max(initial=0)), width))
        decay_table = residency.decay_table() if decays else torch.empty(0, dtype=torch.int32, device=runtime.device)
        block = runtime.empty(head + block_bytes(scratch), torch.uint8)
        # The masks are the first array of the block.
        filters = arrays["unit_filter"]
        arrays["unit_filter"] = np.where(filters < 0, 0, block.data_ptr() + 4 * filters)
        _send(residency, block[:head], list(arrays.values()))
        moved, made = carve(block, up), carve(block[head:], scratch)
        del moved["masks"]
        work = Work(
            tile_bits=tile_bits,
            most_tiles=most,
            most_candidates=int(room.max(initial=0)),
            width=width,
            signed=plan.signed,
            long_quanta=plan.snapshot.long,
            wide=self.wide,
            decays=decays,
            decay_table=decay_table,
            posting_bytes=posting_bytes,
            **moved,
        )
        found = made.pop("found")
        rows = _of_queries(shares, lambda plan: plan.rows)
        return Launch(work, Buffers(**made), answer_in(found, queries, width), found, rows)


def chunks(
    plans: Sequence[Plan], tile_bits: Callable[[bool], int], candidates: int, descriptors: int
) -> Iterator[Chunk]:
    """The batch's queries that can have hits, in chunks that need at most this many candidates and descriptors each.

    A single query that needs more is a chunk of its own. Queries whose sums are wide form chunks of their own, and so
    do plans whose contributions need int64.
    """
    for long, wide in ((False, False), (False, True), (True, True)):
        chunk: list[Share] = []
        free_candidates, free_descriptors = candidates, descriptors
        for plan in plans:
            if plan.snapshot.long != long:
                continue
            queries = plan.answerable
            queries = queries[plan.large[queries] == wide] if not long else queries
            need_candidates, need_descriptors = _needs(plan, queries, tile_bits(wide))
            start = 0
            while start < len(queries):
                fits = min(
                    int(np.searchsorted(np.cumsum(need_candidates[start:]), free_candidates, side="right")),
                    int(np.searchsorted(np.cumsum(need_descriptors[start:]), free_descriptors, side="right")),
                )
                if not fits and not chunk:
                    fits = 1
                if fits:
                    end = start + fits
                    chunk.append(Share(plan, queries[start:end]))
                    free_candidates -= int(need_candidates[start:end].sum())
                    free_descriptors -= int(need_descriptors[start:end].sum())
                    start = end
                if start < len(queries):
                    yield Chunk(chunk, wide)
                    chunk, free_candidates, free_descriptors = [], candidates, descriptors
        if chunk:
            yield Chunk(chunk, wide)


def _needs(plan: Plan, queries: Integers, tile_bits: int) -> tuple[Integers, Integers]:
    """int64 [queries] twice: the most candidates and the most descriptors that each of these queries may need."""
    tiles = sum(tiles_of(part.segment.size, tile_bits) for part in plan.segments)
    terms = plan.offsets[queries + 1] - plan.offsets[queries]
    return tiles * (np.minimum(plan.k[queries], 1 << tile_bits) + ENTRY_CANDIDATES), terms * tiles


@dataclass(frozen=True, eq=False)
class Launch:
    """A launch on the device; all its arrays are windows of one block."""

    work: Work
    buffers: Buffers
    answer: KernelAnswer
    found: torch.Tensor  # int64, the block of `answer`
    rows: Integers  # [Q] row of each query in the batch's answer
    batch: TermBatch | None = None  # of a launch that is planned on the device


class QueryTerms(NamedTuple):
    """The N (query, term) pairs of a share."""

    query: Integers  # [N] int64, position in `Share.queries`
    term: Integers  # [N] int64, position in `Plan.terms`
    weight: Integers  # [N] int64
    occurs: npt.NDArray[np.bool_]  # [terms of the plan] bool, whether a pair has the term


@dataclass(eq=False)
class Columns:
    """The units of a launch while they grow on the host, segment by segment; `arrays` brings them into order."""

    queries: int = 0  # of the shares so far
    mask_words: int = 0
    rows: list[Integers] = field(default_factory=list)  # [S] of the segment table
    unit_segment: list[Integers] = field(default_factory=list)  # [U] int64
    unit_query: list[Integers] = field(default_factory=list)  # [U] int64
    unit_terms: list[Integers] = field(default_factory=list)  # [U] int64, slots of the unit
    unit_mask: list[Integers] = field(default_factory=list)  # [U] int64, first word of its filter in `masks`, or -1
    unit_low: list[Integers] = field(default_factory=list)  # [U] int64
    unit_high: list[Integers] = field(default_factory=list)  # [U] int64
    slot_position: list[Integers] = field(default_factory=list)  # [slots] int64
    slot_weight: list[Integers] = field(default_factory=list)  # [slots] int64
    masks: list[npt.NDArray[np.uint32]] = field(default_factory=list)  # [mask_words] uint32

    def add_share(self, share: Share, table: SegmentTable) -> None:
        """Add all segments for the queries of a share."""
        plan = share.plan
        terms = plan.offsets[share.queries + 1] - plan.offsets[share.queries]
        pairs = ranges(plan.offsets[share.queries], terms)
        occurs = np.zeros(len(plan.terms), dtype=np.bool_)
        occurs[plan.slots[pairs]] = True
        query = np.repeat(np.arange(len(share.queries)), terms)
        query_terms = QueryTerms(query, plan.slots[pairs], plan.multiplicities[pairs], occurs)
        for part in plan.segments:
            self._add_segment(share, part, query_terms, table)
        self.queries += len(share.queries)

    def _add_segment(self, share: Share, part: SegmentPlan, terms: QueryTerms, table: SegmentTable) -> None:
        """Add one segment, unless no query can have a hit there."""
        present = terms.occurs & (part.positions >= 0)
        low, high = part.low[share.queries], part.high[share.queries]
        matched = present[terms.term] & (low < high)[terms.query]
        counts = np.bincount(terms.query[matched], minlength=len(share.queries))
        scored = np.flatnonzero(counts)
        if not len(scored):
            return
        self.unit_segment.append(np.full(len(scored), len(self.rows)))
        self.rows.append(table.rows[part.number])
        self.unit_query.append(self.queries + scored)
        self.unit_terms.append(counts[scored])
        self.unit_mask.append(self._add_masks(part, part.filters[share.queries][scored]))
        self.unit_low.append(low[scored])
        self.unit_high.append(high[scored])
        self.slot_position.append(part.positions[terms.term[matched]])
        self.slot_weight.append(terms.weight[matched])

    def _add_masks(self, part: SegmentPlan, filters: Integers) -> Integers:
        """Add the masks that units with these filters need. Returns int64 [units]: the first word of each, or -1."""
        first_word = np.full(len(part.passing) + 1, -1, dtype=np.int64)
        for number in np.unique(filters).tolist():
            if number >= 0:
                bits = bitmap(part.passing[number])
                first_word[number] = self.mask_words
                self.mask_words += len(bits)
                self.masks.append(bits)
        # A filter of -1 reads the last entry, which stays -1.
        return first_word[filters]

    def arrays(self, k: Integers, tile_bits: int) -> tuple[dict[str, npt.NDArray[Any]], int]:
        """The arrays of segments, units and slots by their names in `Work`, and the masks; how many descriptors.

        `unit_filter` holds the first word of each unit's mask, or -1. A query's units come side by side.
        """
        table = np.array(self.rows, dtype=np.int64).reshape(-1, FIELDS)
        table[:, _OFFSET] = offsets_of(table[:, _TILES])[:-1]
        units = _join(self.unit_query)
        order = np.argsort(units, kind="stable")
        counts = _join(self.unit_terms)
        slots = ranges(offsets_of(counts)[:-1][order], counts[order])
        segment, counts = _join(self.unit_segment)[order], counts[order]
        tiles = table[:, _TILES][segment]
        query_tiles = np.bincount(units[order], weights=tiles, minlength=len(k)).astype(np.int64)
        descriptors = offsets_of(counts * tiles)
        arrays: dict[str, npt.NDArray[Any]] = {
            "masks": np.concatenate(self.masks) if self.masks else np.zeros(0, dtype=np.uint32),
            "segments": table,
            "query_units": offsets_of(np.bincount(units, minlength=len(k))).astype(np.int32),
            "query_k": k.astype(np.int32),
            "candidate_offset": offsets_of(query_tiles * np.minimum(k, 1 << tile_bits)),
            "entry_offset": offsets_of(query_tiles),
            "unit_segment": segment.astype(np.int32),
            "unit_filter": _join(self.unit_mask)[order],
            "unit_low": _join(self.unit_low)[order].astype(np.int32),
            "unit_high": _join(self.unit_high)[order].astype(np.int32),
            "unit_slots": offsets_of(counts),
            "unit_descriptors": descriptors[:-1],
            "slot_unit": np.repeat(np.arange(len(counts)), counts).astype(np.int32),
            "slot_position": _join(self.slot_position)[slots].astype(np.int32),
            "slot_weight": _join(self.slot_weight)[slots].astype(np.int32),
        }
        return arrays, int(descriptors[-1])


@dataclass(frozen=True, eq=False)
class Texts:
    """Queries given by the ids of their terms, over all records of one snapshot. All sums are narrow."""

    snapshot: Snapshot
    terms: Integers  # [T], of any vocabulary
    offsets: Integers  # [B + 1], from 0
    k: int
    first: int = 0  # row of the first in the batch's answer

    def part(self, start: int, stop: int) -> Texts:
        """The queries [start, stop)."""
        offsets = self.offsets[start : stop + 1]
        terms = self.terms[offsets[0] : offsets[-1]]
        return Texts(self.snapshot, terms, offsets - offsets[0], self.k, self.first + start)

    @property
    def halves(self) -> list[Texts]:
        """As two, or as one if it is a single query."""
        count = len(self.offsets) - 1
        return [self.part(0, count // 2), self.part(count // 2, count)] if count > 1 else [self]

    def chunks(self, tiles: int, tile_bits: int, candidates: int, descriptors: int) -> Iterator[Texts]:
        """Parts that need at most this many candidates and descriptors, or are a single query."""
        fits = max(1, candidates // max(1, tiles * (min(self.k, 1 << tile_bits) + ENTRY_CANDIDATES)))
        count, start = len(self.offsets) - 1, 0
        while start < count:
            most = int(self.offsets[start]) + descriptors // max(1, tiles)
            stop = int(np.searchsorted(self.offsets, most, side="right")) - 1
            stop = max(start + 1, min(stop, start + fits, count))
            yield self.part(start, stop)
            start = stop

    def launch(self, residency: Residency, verbs: Verbs) -> Launch:
        """The launch: its terms go up in one copy, and are planned on the device.

        Raises `DeviceMemoryError` if it cannot fit.
        """
        runtime, tile_bits = residency.runtime, verbs.tile_bits(False)
        table = residency.table(self.snapshot, tile_bits, verbs, on_device=True)
        assert table.on_device is not None
        queries = len(self.offsets) - 1
        shape = Shape.of(
            verbs,
            self.snapshot,
            residency.bytes_for(self.snapshot),
            queries=queries,
            terms=len(self.terms),
            k=self.k,
            segments=len(table.rows),
            tiles=table.tiles,
        )
        up = [Window(name, torch.int64, getattr(self, name).shape) for name in ("terms", "offsets")]
        scratch = [Window("found", torch.int64, (answer_size(queries, self.k),))]
        head = block_bytes(up)
        first = head + block_bytes(scratch)
        residency.reserve(first + shape.bytes + sorted_bytes(queries, shape.candidates, self.k))
        block = runtime.empty(first + shape.bytes, torch.uint8)
        _send(residency, block[:head], [self.terms, self.offsets])
        moved, found = carve(block, up), carve(block[head:], scratch)["found"]
        frame = Frame.over(block[first:], shape, table.on_device)
        batch = TermBatch(moved["terms"], moved["offsets"], None, self.k, shape.tiles, shape.candidates, None)
        answer = answer_in(found, queries, self.k)
        return Launch(frame.work, frame.buffers, answer, found, self.first + np.arange(queries), batch)


def _send(residency: Residency, block: torch.Tensor, arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Copy arrays to a block on the device, side by side as `carve` finds them, in one copy."""
    staged = residency.runtime.pinned(len(block), torch.uint8)
    host, start = staged.numpy(), 0
    for array in arrays:
        host[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        start += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    residency.runtime.copy(block, staged)


def _of_queries(shares: Sequence[Share], column: Callable[[Plan], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """[Q] what a column of the plans holds for the queries of the shares."""
    return np.concatenate([column(share.plan)[share.queries] for share in shares])


def _join(parts: Sequence[Integers]) -> Integers:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
