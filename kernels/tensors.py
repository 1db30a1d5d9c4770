"""Tensors in, tensors out: query terms as device tensors, hits as device tensors, planned on the device.

Nothing here waits for the device or reads from it, so calls compose with torch code on the caller's stream and can be
captured in a CUDA graph. What a batch needs must therefore be known from shapes alone: every (query, segment) pair is a
unit, and there is room for every list that the terms could name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..engine.bm25 import INT32_MAX, SCALE
from ..engine.errors import ParameterError, QueryError
from ..engine.index import Snapshot
from .batch import make_answer, make_buffers
from .device import Residency
from .launch import run
from .timing import DevicePhases
from .work import CANDIDATE_BYTES, CUT_BYTES, MAX_SELECTED, UNBOUNDED, Answer, Verbs, Work


@dataclass(frozen=True, eq=False)
class TensorHits:
    """The answer to B queries as device tensors; row b holds ``counts[b]`` hits in the order of `fanrank.Hits`."""

    scores: torch.Tensor  # float64 [B, k], padding -inf
    documents: torch.Tensor  # int64 [B, k] document numbers in the namespace, padding -1
    counts: torch.Tensor  # int32 [B]


def search_tensors(
    snapshot: Snapshot,
    terms: torch.Tensor,
    offsets: torch.Tensor,
    weights: torch.Tensor | None,
    k: int,
    residency: Residency,
    verbs: Verbs,
) -> TensorHits:
    """As `Engine.search_tensors`, over a snapshot whose segments are resident and derived."""
    _check(terms, offsets, weights, k, residency.device)
    answer = search_answer(snapshot, terms, offsets, weights, k, residency, verbs)
    scores = answer.scores.to(torch.float64) / SCALE
    return TensorHits(torch.where(answer.documents < 0, -torch.inf, scores), answer.documents, answer.counts)


def search_answer(
    snapshot: Snapshot,
    terms: torch.Tensor,
    offsets: torch.Tensor,
    weights: torch.Tensor | None,
    k: int,
    residency: Residency,
    verbs: Verbs,
) -> Answer:
    """The answer in quanta; arguments are not checked."""
    queries = len(offsets) - 1
    answer = make_answer(queries, k, residency.device)
    if not k or not queries or not len(terms) or not snapshot.segments:
        answer.scores.zero_()
        answer.documents.fill_(-1)
        answer.counts.zero_()
    else:
        work, cuts, candidates = plan_on_device(snapshot, terms, offsets, weights, k, residency, verbs)
        residency.reserve(CUT_BYTES * cuts + CANDIDATE_BYTES * candidates)
        device = residency.device
        floors = torch.full((queries,), UNBOUNDED if work.signed else 1, dtype=torch.int64, device=device)
        counts = torch.zeros(queries, dtype=torch.int32, device=device)
        buffers = make_buffers(cuts, candidates, work.any_wide, floors, counts)
        run(verbs, work, buffers, answer, DevicePhases(None, device))
    return answer


def _check(
    terms: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, k: int, device: torch.device
) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= MAX_SELECTED:
        raise ParameterError(f"k must lie in [0, {MAX_SELECTED}], not {k!r}")
    for name, tensor in (("terms", terms), ("offsets", offsets), ("weights", weights)):
        if tensor is None:
            continue
        if tensor.dim() != 1 or tensor.dtype not in (torch.int32, torch.int64) or tensor.device != device:
            raise QueryError(
                f"{name} must be an int32 or int64 vector on {device}, not {tensor.dtype} {tuple(tensor.shape)} on "
                f"{tensor.device}"
            )
    if not len(offsets):
        raise QueryError("offsets must hold one number more than there are queries, not none")
    if weights is not None and len(weights) != len(terms):
        raise QueryError(f"there are {len(terms)} terms but {len(weights)} weights")


def plan_on_device(
    snapshot: Snapshot,
    terms: torch.Tensor,  # [T] vocabulary ids
    offsets: torch.Tensor,  # [B + 1]
    weights: torch.Tensor | None,  # [T]
    k: int,
    residency: Residency,
    verbs: Verbs,
) -> tuple[Work, int, int]:
    """(work, cuts, candidates) made of device operations alone. A list of length 0 stands for what does not exist."""
    device, signed = residency.device, snapshot.bm25.signed
    count, queries = len(terms), len(offsets) - 1
    # A posting contributes at most this, so short batches are narrow for certain; for others the device decides.
    highest = snapshot.bm25.bounds(snapshot.term_idf).max(initial=0.0) if len(snapshot.term_idf) else 0.0
    long = bool(residency.held(snapshot.segments[0]).quanta.dtype == torch.int64)
    any_wide = long or weights is not None or highest * count >= INT32_MAX
    tile_bits = verbs.tile_bits(any_wide)
    tile = 1 << tile_bits

    def numbers(end: int) -> torch.Tensor:
        return torch.arange(end, dtype=torch.int64, device=device)

    weight = torch.ones(count, dtype=torch.int64, device=device) if weights is None else weights.to(torch.int64)
    offsets = offsets.to(torch.int64)
    # The distinct terms, in the first places of `distinct`; the rest hold -1.
    ordered, order = torch.sort(terms.to(torch.int64))
    place = torch.cat([numbers(1), (ordered[1:] != ordered[:-1]).to(torch.int64)]).cumsum(0)
    distinct = torch.full((count,), -1, dtype=torch.int64, device=device).scatter_(0, place, ordered)
    slots = torch.empty_like(place).scatter_(0, order, place)

    table = residency.table(snapshot, tile_bits)
    starts, lengths, rows = [], [], []
    cuts = 0
    for segment, own_tiles in zip(snapshot.segments, table.tiles, strict=True):
        resident = residency.held(segment)
        held = resident.terms
        if len(held):
            position = torch.searchsorted(held, distinct.to(held.dtype)).clamp_(max=len(held) - 1)
            present = held[position] == distinct
            ends = resident.postings.offsets
            starts.append(torch.where(present, ends[position], 0))
            lengths.append(torch.where(present, ends[position + 1] - ends[position], 0))
        else:
            starts.append(torch.zeros_like(distinct))
            lengths.append(torch.zeros_like(distinct))
        rows.append(cuts + numbers(count) * (own_tiles + 1))
        cuts += count * (own_tiles + 1)

    segments = len(snapshot.segments)
    parts = range(segments)
    units = queries * segments
    # Weights of a query's terms add up; the prefix sums turn that into a difference.
    total = torch.cat([numbers(1), weight.cumsum(0)])
    wide = (total[offsets[1:]] - total[offsets[:-1]]).to(torch.float64) * highest >= INT32_MAX
    room = sum(table.tiles) * min(k, tile)
    work = Work(
        tile_bits=tile_bits,
        max_tiles=max(table.tiles),
        blocks=queries * sum(table.tiles),
        width=k,
        signed=signed,
        long_quanta=long,
        any_narrow=not long,
        any_wide=any_wide,
        words=table.words,
        quanta=table.quanta,
        sizes=table.sizes,
        firsts=table.firsts,
        block_offset=table.tile_offset * queries,
        unit_offset=numbers(segments + 1).to(torch.int32) * queries,
        list_segment=torch.cat([torch.full((count,), part, dtype=torch.int32, device=device) for part in parts]),
        list_start=torch.cat(starts),
        list_length=torch.cat(lengths).to(torch.int32),
        list_cuts=torch.cat(rows),
        unit_query=numbers(queries).to(torch.int32).repeat(segments),
        unit_slots=torch.cat([*(offsets[:-1] + count * part for part in parts), numbers(1) + count * segments]),
        unit_filter=torch.zeros(units, dtype=torch.int64, device=device),
        unit_low=torch.zeros(units, dtype=torch.int32, device=device),
        unit_high=table.sizes.repeat_interleave(queries),
        slot_list=torch.cat([slots + count * part for part in parts]).to(torch.int32),
        slot_weight=weight.to(torch.int32).repeat(segments),
        query_k=torch.full((queries,), k, dtype=torch.int32, device=device),
        query_wide=torch.ones(queries, dtype=torch.uint8, device=device) if long else wide.to(torch.uint8),
        candidate_offset=numbers(queries + 1) * room,
    )
    return work, cuts, room * queries
