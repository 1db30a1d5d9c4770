"""Plans made ready for a launch: one `Work` over every namespace and segment of a chunk of the batch.

A chunk is as many queries as the buffers may hold; each is answered by one pass of the four verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..engine.arrays import offsets_of, ranges
from ..engine.plan.plan import Plan
from .device import Residency, bitmap
from .work import CANDIDATE_BYTES, CUT_BYTES, UNBOUNDED, Answer, Buffers, Work, no_decay, tiles_of

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Share:
    """Some queries of a plan."""

    plan: Plan
    queries: Integers  # positions in the plan, ascending


def chunks(plans: Sequence[Plan], tile_bits: int, candidates: int, cuts: int) -> Iterator[list[Share]]:
    """The batch's queries that can have hits, in shares that need at most so many candidates and cuts together.

    A single query that needs more is a chunk of its own. Plans whose contributions need int64 stand apart.
    """
    for long in (False, True):
        chosen: list[Share] = []
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
                if not fits and not chosen:
                    fits = 1
                if fits:
                    end = start + fits
                    chosen.append(Share(plan, queries[start:end]))
                    free_candidates -= int(need_candidates[start:end].sum())
                    free_cuts -= int(need_cuts[start:end].sum())
                    start = end
                if start < len(queries):
                    yield chosen
                    chosen, free_candidates, free_cuts = [], candidates, cuts
        if chosen:
            yield chosen


def _needs(plan: Plan, queries: Integers, tile_bits: int) -> tuple[Integers, Integers]:
    """(candidates, cuts) that each of these queries may need, at most."""
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
    """A chunk on the device. `kept` are tensors that `work` refers to by address."""

    work: Work
    buffers: Buffers
    answer: Answer
    rows: Integers  # [Q] row of each query in the batch's answer
    kept: tuple[torch.Tensor, ...]


def make_launch(shares: Sequence[Share], residency: Residency, tile_bits: int) -> Launch:
    """The launch for a chunk; its segments are resident and derived. Raises `DeviceMemoryError` if it cannot fit."""
    tile = 1 << tile_bits
    long = shares[0].plan.snapshot.long
    decays = any(bool((share.plan.rates[share.queries] > 0).any()) for share in shares)
    segments: list[tuple[int, ...]] = []  # words, quanta, saturated, size, first, times, latest
    lists: list[tuple[Integers, Integers, Integers, npt.NDArray[np.float64]]] = []  # segment, start, length, idf
    cut_rows: list[Integers] = []
    units: list[tuple[Integers, Integers, Integers, Integers, Integers]] = []  # query, slots of it, filter, low, high
    slots: list[tuple[Integers, Integers]] = []  # list, weight
    masks: list[npt.NDArray[np.uint32]] = []
    unit_counts: list[int] = []
    tile_counts: list[int] = []
    room: list[Integers] = []
    first_query = cut_count = list_count = mask_words = 0
    for share in shares:
        plan = share.plan
        starts = plan.offsets[share.queries]
        terms = plan.offsets[share.queries + 1] - starts
        own = ranges(starts, terms)
        owners, own_slots = np.repeat(np.arange(len(share.queries)), terms), plan.slots[own]
        weights = plan.multiplicities[own]
        needed = np.zeros(len(share.queries), dtype=np.int64)
        used = np.zeros(len(plan.terms), dtype=np.bool_)
        used[own_slots] = True
        for part in plan.segments:
            present = used & (part.positions >= 0)
            low, high = part.low[share.queries], part.high[share.queries]
            filters = part.filters[share.queries]
            kept = present[own_slots] & (low < high)[owners]
            counts = np.bincount(owners[kept], minlength=len(share.queries))
            held = np.flatnonzero(counts)
            if not len(held):
                continue
            resident = residency.held(part.segment, long)
            number, tiles = len(segments), tiles_of(part.segment.size, tile_bits)
            times = residency.timed(part.segment, long, tile_bits) if decays else ()
            held_at = (resident.words, resident.values, resident.saturated, *times)
            addresses = [tensor.data_ptr() for tensor in held_at]
            segments.append((*addresses[:3], part.segment.size, part.first, *addresses[3:]))
            found = np.flatnonzero(present)
            renumbered = np.cumsum(present) - 1 + list_count
            own_lengths = part.ends[found] - part.starts[found]
            lists.append((np.full(len(found), number), part.starts[found], own_lengths, plan.idf[found]))
            cut_rows.append(cut_count + np.arange(len(found)) * (tiles + 1))
            list_count += len(found)
            cut_count += len(found) * (tiles + 1)
            slots.append((renumbered[own_slots[kept]], weights[kept]))
            # Filters become offsets into one block of words, and addresses once it lies on the device.
            offsets = np.full(len(part.passing) + 1, -1, dtype=np.int64)
            for accepted in np.unique(filters[held]).tolist():
                if accepted >= 0:
                    bits = bitmap(part.passing[accepted])
                    offsets[accepted] = mask_words
                    mask_words += len(bits)
                    masks.append(bits)
            units.append((first_query + held, counts[held], offsets[filters[held]], low[held], high[held]))
            unit_counts.append(len(held))
            tile_counts.append(tiles)
            needed[held] += tiles
        room.append(needed * np.minimum(plan.k[share.queries], tile))
        first_query += len(share.queries)

    def joined(parts: Sequence[Integers]) -> Integers:
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    table = np.array(segments, dtype=np.int64).reshape(-1, 7 if decays else 5)
    unit_filter = joined([u[2] for u in units])
    wide = np.concatenate([s.plan.wide[s.queries] for s in shares]) | long
    k = np.concatenate([s.plan.k[s.queries] for s in shares])
    candidate_offset = offsets_of(joined(room))
    signed = shares[0].plan.signed
    (mask_block,) = residency.upload([np.concatenate(masks)]) if masks else (None,)
    if mask_block is not None:
        unit_filter = np.where(unit_filter < 0, 0, mask_block.data_ptr() + 4 * unit_filter)
    else:
        unit_filter = np.zeros_like(unit_filter)
    int32, int64 = np.int32, np.int64
    arrays: list[npt.NDArray[Any]] = [
        table[:, 0], table[:, 1], table[:, 3].astype(int32), table[:, 4],
        offsets_of(np.array(unit_counts, dtype=int64) * np.array(tile_counts, dtype=int64)),
        offsets_of(unit_counts).astype(int32),
        joined([x[0] for x in lists]).astype(int32), joined([x[1] for x in lists]),
        joined([x[2] for x in lists]).astype(int32), joined(cut_rows),
        joined([u[0] for u in units]).astype(int32), offsets_of(joined([u[1] for u in units])), unit_filter,
        joined([u[3] for u in units]).astype(int32), joined([u[4] for u in units]).astype(int32),
        joined([s[0] for s in slots]).astype(int32), joined([s[1] for s in slots]).astype(int32),
        k.astype(int32), wide.astype(np.uint8), candidate_offset,
    ]  # fmt: skip
    floors = np.full(len(k), UNBOUNDED if signed else 1, dtype=int64)
    *tensors, floor_tensor, count_tensor = residency.upload([*arrays, floors, np.zeros(len(k), dtype=int32)])
    device = floor_tensor.device
    fading = no_decay(device)
    if decays:
        now = np.concatenate([share.plan.now[share.queries] for share in shares])
        rates = np.concatenate([share.plan.rates[share.queries] for share in shares])
        moved = residency.upload([table[:, 5], table[:, 6], now, rates])
        fading = dict(zip(fading, [*moved, residency.decay_table()], strict=True))
    posting_bytes = residency.bytes_for(shares[0].plan.snapshot)
    work = Work(
        tile_bits,
        max(tile_counts, default=0),
        int(arrays[4][-1]),
        int(k.max(initial=0)),
        signed,
        long,
        bool(not wide.all()),
        bool(wide.any()),
        decays,
        *tensors,
        **fading,
        posting_bytes=posting_bytes,
    )
    if posting_bytes < 8:
        idf = np.concatenate([x[3] for x in lists]) if lists else np.zeros(0)
        saturated, list_idf = residency.upload([table[:, 2], idf])
        work = replace(work, saturated=saturated, list_idf=list_idf)
    residency.reserve(CUT_BYTES * cut_count + CANDIDATE_BYTES * int(candidate_offset[-1]))
    buffers = make_buffers(cut_count, int(candidate_offset[-1]), work.any_wide, floor_tensor, count_tensor)
    rows = np.concatenate([s.plan.rows[s.queries] for s in shares])
    return Launch(
        work,
        buffers,
        make_answer(len(k), work.width, device),
        rows,
        () if mask_block is None else (mask_block,),
    )


def make_buffers(cuts: int, candidates: int, any_wide: bool, floors: torch.Tensor, counts: torch.Tensor) -> Buffers:
    """Uninitialised buffers for so many cuts and candidates, on the device of `floors`."""
    device = floors.device
    return Buffers(
        torch.empty(cuts, dtype=torch.int32, device=device),
        torch.empty(cuts, dtype=torch.int64, device=device),
        floors,
        counts,
        torch.empty(candidates, dtype=torch.int64, device=device),
        torch.empty(candidates if any_wide else 0, dtype=torch.int32, device=device),
    )


def answer_size(queries: int, width: int) -> int:
    """int64 numbers in the block of an answer."""
    return queries * (2 * width + 1)


def make_answer(queries: int, width: int, device: torch.device) -> Answer:
    """An uninitialised answer whose arrays are windows of one block, so that one copy brings it to the host."""
    block = torch.empty(answer_size(queries, width), dtype=torch.int64, device=device)
    scores, documents, counts = torch.split(block, [queries * width, queries * width, queries])
    return Answer(scores.view(queries, width), documents.view(queries, width), counts.view(torch.int32)[:queries])


def block_of(answer: Answer) -> torch.Tensor:
    """The block that `make_answer` made the answer of."""
    queries, width = answer.scores.shape
    return torch.as_strided(answer.scores, (answer_size(queries, width),), (1,), answer.scores.storage_offset())


def from_block(block: Integers, queries: int, width: int) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
    """(scores, documents, counts) of a block on the host."""
    scores, documents, counts = np.split(block, [queries * width, 2 * queries * width])
    return scores.reshape(queries, width), documents.reshape(queries, width), counts.view(np.int32)[:queries]


def to_host(answer: Answer) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
    """(scores, documents, counts) as numpy arrays. Waits for the device."""
    return from_block(block_of(answer).cpu().numpy(), *answer.scores.shape)


@dataclass(frozen=True, eq=False)
class Download:
    """The block of an answer on its way to the host, behind what its stream had to do before."""

    block: torch.Tensor  # on the host
    event: torch.cuda.Event | None  # None where the device is the host
    padded: tuple[int, int]  # queries and width of the block
    queries: int
    width: int
    release: Callable[[], None] | None = None  # who writes into `block` again, told that it was read

    @classmethod
    def of(cls, answer: Answer) -> Download:
        """Begin to copy an answer; waits for nothing."""
        block, shape = block_of(answer), (answer.scores.shape[0], answer.scores.shape[1])
        if block.device.type != "cuda":
            return cls(block, None, shape, *shape)
        host = torch.empty(block.shape, dtype=block.dtype, pin_memory=True)
        host.copy_(block, non_blocking=True)
        return cls(host, recorded(), shape, *shape)

    def wait(self) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
        """(scores, documents, counts) of the first `queries` rows, `width` columns of them."""
        if self.event is not None:
            self.event.synchronize()
        scores, documents, counts = from_block(self.block.numpy(), *self.padded)
        own = slice(self.queries), slice(self.width)
        counts = np.minimum(counts[own[0]], self.width).astype(np.int32)
        # The pinned memory goes back to the allocator, or to the next fan-out, as soon as nothing refers to it.
        answer = scores[own].copy(), documents[own].copy(), counts
        if self.release is not None:
            self.release()
        return answer


def recorded() -> torch.cuda.Event:
    """An event behind all that the current stream has been given."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
