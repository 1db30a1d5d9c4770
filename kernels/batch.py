"""Turns plans into launches: one `Work` over every namespace and segment of a chunk of the batch.

A chunk holds as many queries as fit the buffers. One pass of the four verbs answers a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..engine.arrays import Integers, offsets_of, ranges
from ..engine.plan.plan import Plan, SegmentPlan
from .device import Residency, bitmap
from .work import CANDIDATE_BYTES, CUT_BYTES, UNBOUNDED, Buffers, KernelAnswer, Work, no_decay, tiles_of


@dataclass(frozen=True, eq=False)
class Share:
    """Some queries of a plan."""

    plan: Plan
    queries: Integers  # positions in the plan, ascending


def chunks(plans: Sequence[Plan], tile_bits: int, candidates: int, cuts: int) -> Iterator[list[Share]]:
    """The batch's queries that can have hits, in chunks that need at most this many candidates and cuts each.

    A single query that needs more is a chunk of its own. Plans whose contributions need int64 form chunks of their own.
    """
    for long in (False, True):
        chunk: list[Share] = []
        free_candidates, free_cuts = candidates, cuts
        for plan in plans:
            if plan.snapshot.long != long:
                continue
            queries = plan.answerable
            need_candidates, need_cuts = _needs(plan, queries, tile_bits)
            start = 0
            while start < len(queries):
                fits = min(
                    int(np.searchsorted(np.cumsum(need_candidates[start:]), free_candidates, side="right")),
                    int(np.searchsorted(np.cumsum(need_cuts[start:]), free_cuts, side="right")),
                )
                if not fits and not chunk:
                    fits = 1
                if fits:
                    end = start + fits
                    chunk.append(Share(plan, queries[start:end]))
                    free_candidates -= int(need_candidates[start:end].sum())
                    free_cuts -= int(need_cuts[start:end].sum())
                    start = end
                if start < len(queries):
                    yield chunk
                    chunk, free_candidates, free_cuts = [], candidates, cuts
        if chunk:
            yield chunk


def _needs(plan: Plan, queries: Integers, tile_bits: int) -> tuple[Integers, Integers]:
    """int64 [queries] twice: the most candidates and the most cuts that each of these queries may need."""
    tiles = sum(tiles_of(part.segment.size, tile_bits) for part in plan.segments)
    terms = plan.offsets[queries + 1] - plan.offsets[queries]
    return tiles * np.minimum(plan.k[queries], 1 << tile_bits), terms * (tiles + len(plan.segments))


def halves(shares: Sequence[Share]) -> list[list[Share]]:
    """The chunk's queries as two chunks, or as one if it is a single query."""
    total = sum(len(share.queries) for share in shares)
    first: list[Share] = []
    second: list[Share] = []
    left = total // 2
    for share in shares:
        taken, rest = share.queries[:left], share.queries[left:]
        left -= len(taken)
        first += [Share(share.plan, taken)] if len(taken) else []
        second += [Share(share.plan, rest)] if len(rest) else []
    return [first, second] if first else [second]


@dataclass(frozen=True, eq=False)
class Launch:
    """A chunk on the device. `kept` holds the tensors that `work` refers to by address, so that they stay allocated."""

    work: Work
    buffers: Buffers
    answer: KernelAnswer
    rows: Integers  # [Q] row of each query in the batch's answer
    kept: tuple[torch.Tensor, ...]


class QueryTerms(NamedTuple):
    """The N (query, term) pairs of a share."""

    query: Integers  # [N] int64, position in `Share.queries`
    term: Integers  # [N] int64, position in `Plan.terms`
    weight: Integers  # [N] int64
    occurs: npt.NDArray[np.bool_]  # [terms of the plan] bool, whether a pair has the term


@dataclass(eq=False)
class Columns:
    """The arrays of a launch while they grow on the host; `arrays` gives them the names of `Work`.

    There are S segments, L lists and U units so far. The arrays of the segments are joined at the end.
    """

    with_times: bool  # whether a query decays
    first_query: int = 0  # queries of the shares before this one
    lists: int = 0  # L
    cuts: int = 0  # entries of `Buffers.cuts`
    mask_words: int = 0  # words of `masks`

    words: list[int] = field(default_factory=list)  # [S] address
    quanta: list[int] = field(default_factory=list)  # [S] address
    saturated: list[int] = field(default_factory=list)  # [S] address
    times: list[int] = field(default_factory=list)  # [S] address, if with_times
    latest: list[int] = field(default_factory=list)  # [S] address, if with_times
    sizes: list[int] = field(default_factory=list)  # [S] documents
    firsts: list[int] = field(default_factory=list)  # [S] number of the first document
    tiles: list[int] = field(default_factory=list)  # [S]
    units: list[int] = field(default_factory=list)  # [S]

    list_segment: list[Integers] = field(default_factory=list)  # [L] int64
    list_start: list[Integers] = field(default_factory=list)  # [L] int64, first posting
    list_length: list[Integers] = field(default_factory=list)  # [L] int64
    list_cuts: list[Integers] = field(default_factory=list)  # [L] int64
    list_idf: list[npt.NDArray[np.float64]] = field(default_factory=list)  # [L] float64

    unit_query: list[Integers] = field(default_factory=list)  # [U] int64
    unit_terms: list[Integers] = field(default_factory=list)  # [U] int64, slots of the unit
    unit_mask: list[Integers] = field(default_factory=list)  # [U] int64, first word of its filter in `masks`, or -1
    unit_low: list[Integers] = field(default_factory=list)  # [U] int64
    unit_high: list[Integers] = field(default_factory=list)  # [U] int64
    slot_list: list[Integers] = field(default_factory=list)  # [slots] int64
    slot_weight: list[Integers] = field(default_factory=list)  # [slots] int64
    masks: list[npt.NDArray[np.uint32]] = field(default_factory=list)  # [mask_words] uint32

    def add_share(self, share: Share, residency: Residency, tile_bits: int) -> Integers:
        """Add all segments for the queries of a share. Returns int64 [queries]: tiles that score each of them."""
        plan = share.plan
        terms = plan.offsets[share.queries + 1] - plan.offsets[share.queries]
        pairs = ranges(plan.offsets[share.queries], terms)
        occurs = np.zeros(len(plan.terms), dtype=np.bool_)
        occurs[plan.slots[pairs]] = True
        query = np.repeat(np.arange(len(share.queries)), terms)
        query_terms = QueryTerms(query, plan.slots[pairs], plan.multiplicities[pairs], occurs)
        tiles = np.zeros(len(share.queries), dtype=np.int64)
        for part in plan.segments:
            scored = self._add_segment(share, part, query_terms, residency, tile_bits)
            tiles[scored] += tiles_of(part.segment.size, tile_bits)
        self.first_query += len(share.queries)
        return tiles

    def _add_segment(
        self, share: Share, part: SegmentPlan, terms: QueryTerms, residency: Residency, tile_bits: int
    ) -> Integers:
        """Add one segment, unless no query can have a hit there. Returns int64 [units]: the queries that can."""
        plan = share.plan
        present = terms.occurs & (part.positions >= 0)
        low, high = part.low[share.queries], part.high[share.queries]
        matched = present[terms.term] & (low < high)[terms.query]
        counts = np.bincount(terms.query[matched], minlength=len(share.queries))
        scored = np.flatnonzero(counts)
        if not len(scored):
            return scored
        tiles = tiles_of(part.segment.size, tile_bits)
        self._add_addresses(part, plan.snapshot.long, residency, tile_bits)
        self.tiles.append(tiles)
        self.units.append(len(scored))

        listed_terms = np.flatnonzero(present)
        list_of_term = np.cumsum(present) - 1 + self.lists
        self.list_segment.append(np.full(len(listed_terms), len(self.words) - 1))
        self.list_start.append(part.starts[listed_terms])
        self.list_length.append(part.ends[listed_terms] - part.starts[listed_terms])
        self.list_idf.append(plan.idf[listed_terms])
        # A list takes one entry for each tile and one for the last border.
        self.list_cuts.append(self.cuts + np.arange(len(listed_terms)) * (tiles + 1))
        self.lists += len(listed_terms)
        self.cuts += len(listed_terms) * (tiles + 1)

        filters = part.filters[share.queries][scored]
        self.unit_query.append(self.first_query + scored)
        self.unit_terms.append(counts[scored])
        self.unit_mask.append(self._add_masks(part, filters))
        self.unit_low.append(low[scored])
        self.unit_high.append(high[scored])
        self.slot_list.append(list_of_term[terms.term[matched]])
        self.slot_weight.append(terms.weight[matched])
        return scored

    def _add_addresses(self, part: SegmentPlan, long: bool, residency: Residency, tile_bits: int) -> None:
        resident = residency.resident_of(part.segment, long)
        self.words.append(resident.words.data_ptr())
        self.quanta.append(resident.values.data_ptr())
        self.saturated.append(resident.saturated.data_ptr())
        self.sizes.append(part.segment.size)
        self.firsts.append(part.first)
        if self.with_times:
            times, latest = residency.times_of(part.segment, long, tile_bits)
            self.times.append(times.data_ptr())
            self.latest.append(latest.data_ptr())

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

    def arrays(self, mask_address: int) -> dict[str, npt.NDArray[Any]]:
        """The arrays of segments, lists, units and slots, by their names in `Work`; masks lie at this address."""
        tiles, units = np.array(self.tiles, dtype=np.int64), np.array(self.units, dtype=np.int64)
        unit_mask = _join(self.unit_mask)
        return {
            "words": np.array(self.words, dtype=np.int64),
            "quanta": np.array(self.quanta, dtype=np.int64),
            "sizes": np.array(self.sizes, dtype=np.int32),
            "firsts": np.array(self.firsts, dtype=np.int64),
            "block_offset": offsets_of(units * tiles),
            "unit_offset": offsets_of(units).astype(np.int32),
            "list_segment": _join(self.list_segment).astype(np.int32),
            "list_start": _join(self.list_start),
            "list_length": _join(self.list_length).astype(np.int32),
            "list_cuts": _join(self.list_cuts),
            "unit_query": _join(self.unit_query).astype(np.int32),
            "unit_slots": offsets_of(_join(self.unit_terms)),
            "unit_filter": np.where(unit_mask < 0, 0, mask_address + 4 * unit_mask),
            "unit_low": _join(self.unit_low).astype(np.int32),
            "unit_high": _join(self.unit_high).astype(np.int32),
            "slot_list": _join(self.slot_list).astype(np.int32),
            "slot_weight": _join(self.slot_weight).astype(np.int32),
        }


def make_launch(shares: Sequence[Share], residency: Residency, tile_bits: int) -> Launch:
    """The launch for a chunk; its segments are resident and derived. Raises `DeviceMemoryError` if it cannot fit."""
    plan = shares[0].plan
    long, posting_bytes = plan.snapshot.long, residency.bytes_for(plan.snapshot)
    rates = _of_queries(shares, lambda plan: plan.rates)
    decays = bool((rates > 0).any())
    columns = Columns(with_times=decays)
    tiles = np.concatenate([columns.add_share(share, residency, tile_bits) for share in shares])
    k = _of_queries(shares, lambda plan: plan.k)
    wide = _of_queries(shares, lambda plan: plan.wide) | long
    candidate_offset = offsets_of(tiles * np.minimum(k, 1 << tile_bits))
    candidates = int(candidate_offset[-1])
    # Uploaded first, because the other arrays hold the address of the masks.
    kept = residency.upload([np.concatenate(columns.masks)]) if columns.masks else []
    arrays = columns.arrays(kept[0].data_ptr() if kept else 0)
    blocks = int(arrays["block_offset"][-1])
    arrays["query_k"] = k.astype(np.int32)
    arrays["query_wide"] = wide.astype(np.uint8)
    arrays["candidate_offset"] = candidate_offset
    if decays:
        arrays["times"] = np.array(columns.times, dtype=np.int64)
        arrays["latest"] = np.array(columns.latest, dtype=np.int64)
        arrays["query_now"] = _of_queries(shares, lambda plan: plan.now)
        arrays["query_rate"] = rates
    if posting_bytes < 8:
        arrays["saturated"] = np.array(columns.saturated, dtype=np.int64)
        arrays["list_idf"] = np.concatenate(columns.list_idf) if columns.list_idf else np.zeros(0)
    thresholds = np.full(len(k), UNBOUNDED if plan.signed else 1, dtype=np.int64)
    *moved, threshold_tensor, count_tensor = residency.upload(
        [*arrays.values(), thresholds, np.zeros(len(k), dtype=np.int32)]
    )
    device = threshold_tensor.device
    tensors = no_decay(device) | dict(zip(arrays, moved, strict=True))
    if decays:
        tensors["decay_table"] = residency.decay_table()
    work = Work(
        tile_bits=tile_bits,
        max_tiles=max(columns.tiles, default=0),
        blocks=blocks,
        width=int(k.max(initial=0)),
        signed=plan.signed,
        long_quanta=long,
        any_narrow=bool(not wide.all()),
        any_wide=bool(wide.any()),
        any_decay=decays,
        posting_bytes=posting_bytes,
        **tensors,
    )
    residency.reserve(CUT_BYTES * columns.cuts + CANDIDATE_BYTES * candidates)
    buffers = make_buffers(columns.cuts, candidates, work.any_wide, threshold_tensor, count_tensor)
    answer = make_answer(len(k), work.width, device)
    rows = _of_queries(shares, lambda plan: plan.rows)
    return Launch(work, buffers, answer, rows, tuple(kept))


def _of_queries(shares: Sequence[Share], column: Callable[[Plan], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """[Q] what a column of the plans holds for the queries of the shares."""
    return np.concatenate([column(share.plan)[share.queries] for share in shares])


def _join(parts: Sequence[Integers]) -> Integers:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def make_buffers(cuts: int, candidates: int, any_wide: bool, thresholds: torch.Tensor, counts: torch.Tensor) -> Buffers:
    """Uninitialised buffers for this many cuts and candidates, on the device of `thresholds`."""
    device = thresholds.device
    return Buffers(
        torch.empty(cuts, dtype=torch.int32, device=device),
        torch.empty(cuts, dtype=torch.int64, device=device),
        thresholds,
        counts,
        torch.empty(candidates, dtype=torch.int64, device=device),
        torch.empty(candidates if any_wide else 0, dtype=torch.int32, device=device),
    )


def answer_size(queries: int, width: int) -> int:
    """int64 numbers in the block of an answer."""
    return queries * (2 * width + 1)


def make_answer(queries: int, width: int, device: torch.device) -> KernelAnswer:
    """An uninitialised answer whose arrays are views of one block, so that one copy moves it to the host."""
    block = torch.empty(answer_size(queries, width), dtype=torch.int64, device=device)
    scores, documents, counts = torch.split(block, [queries * width, queries * width, queries])
    return KernelAnswer(scores.view(queries, width), documents.view(queries, width), counts.view(torch.int32)[:queries])


def block_of(answer: KernelAnswer) -> torch.Tensor:
    """The block behind an answer of `make_answer`."""
    queries, width = answer.scores.shape
    return torch.as_strided(answer.scores, (answer_size(queries, width),), (1,), answer.scores.storage_offset())


def from_block(block: Integers, queries: int, width: int) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
    """(scores, documents, counts) of a block on the host."""
    scores, documents, counts = np.split(block, [queries * width, 2 * queries * width])
    return scores.reshape(queries, width), documents.reshape(queries, width), counts.view(np.int32)[:queries]


def to_host(answer: KernelAnswer) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
    """(scores, documents, counts) as numpy arrays. Waits for the device."""
    return from_block(block_of(answer).cpu().numpy(), *answer.scores.shape)


@dataclass(frozen=True, eq=False)
class Download:
    """The copy of an answer to the host. It runs after the earlier work of its stream."""

    block: torch.Tensor  # on the host
    event: torch.cuda.Event | None  # None where the device is the host
    padded: tuple[int, int]  # queries and width of the block
    queries: int
    width: int
    release: Callable[[], None] | None = None  # called once `block` was read and may be written again

    @classmethod
    def of(cls, answer: KernelAnswer) -> Download:
        """Begin to copy an answer, without waiting."""
        block, shape = block_of(answer), (answer.scores.shape[0], answer.scores.shape[1])
        if block.device.type != "cuda":
            return cls(block, None, shape, *shape)
        host = torch.empty(block.shape, dtype=block.dtype, pin_memory=True)
        host.copy_(block, non_blocking=True)
        return cls(host, record_event(), shape, *shape)

    def wait(self) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
        """(scores, documents, counts) of the first `queries` rows, `width` columns of them."""
        if self.event is not None:
            self.event.synchronize()
        scores, documents, counts = from_block(self.block.numpy(), *self.padded)
        hits = slice(self.queries), slice(self.width)
        counts = np.minimum(counts[: self.queries], self.width).astype(np.int32)
        # The pinned memory is reused by the allocator or the next fan-out once nothing refers to it.
        answer = scores[hits].copy(), documents[hits].copy(), counts
        if self.release is not None:
            self.release()
        return answer


def record_event() -> torch.cuda.Event:
    """An event after all work that the current stream has been given."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
