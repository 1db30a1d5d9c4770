"""Tensors in, tensors out: query terms as device tensors, hits as device tensors, planned on the device.

Nothing here waits for the device or reads from it, so calls compose with torch code on the caller's stream and can be
captured in a CUDA graph. What a batch needs must therefore be known from shapes alone: every (query, segment) pair is a
unit, and there is room for every list that the terms could name.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..engine.errors import ParameterError, QueryError
from ..engine.index.bm25 import INT32_MAX, SCALE
from ..engine.index.snapshot import Snapshot
from .batch import make_answer, make_buffers
from .device import Residency, SegmentTable
from .launch import run
from .timing import DevicePhases
from .work import CANDIDATE_BYTES, CUT_BYTES, MAX_SELECTED, UNBOUNDED, KernelAnswer, Verbs, Work, no_decay

# Frames kept for a snapshot, the least recently used let go; about 60 bytes a segment for each query and term.
MAX_FRAMES = 16
# Sums of 2**18 terms of this weight stay below 2**62.
MAX_WEIGHT = 1 << 20
# Batches of more terms are deduplicated, so that a list is cut once; for fewer, cutting twice costs less than sorting.
DEDUPLICATED = 1024


@dataclass(frozen=True, eq=False)
class TensorHits:
    """The answer to B queries as device tensors; row b holds ``counts[b]`` hits in the order of `fanrank.Hits`."""

    scores: torch.Tensor  # float64 [B, k], padding -inf
    documents: torch.Tensor  # int64 [B, k] document numbers in the namespace, padding -1
    counts: torch.Tensor  # int32 [B]


class TensorSearch:
    """Answers batches given as tensors, over snapshots whose segments are resident and derived."""

    def __init__(self, residency: Residency, verbs: Verbs) -> None:
        self.residency, self.verbs = residency, verbs
        self._frames: weakref.WeakKeyDictionary[Snapshot, OrderedDict[tuple[int, int, bool, int], Frame]] = (
            weakref.WeakKeyDictionary()
        )
        self._captured: weakref.WeakKeyDictionary[Snapshot, list[Frame]] = weakref.WeakKeyDictionary()

    def __call__(
        self, snapshot: Snapshot, terms: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, k: int
    ) -> TensorHits:
        """As `Engine.search_tensors`."""
        _check(terms, offsets, weights, k, self.residency.device)
        answer = self.answer(snapshot, terms, offsets, weights, k)
        scores = answer.scores.to(torch.float64) / SCALE
        return TensorHits(torch.where(answer.documents < 0, -torch.inf, scores), answer.documents, answer.counts)

    def answer(
        self,
        snapshot: Snapshot,
        terms: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None,
        k: int,
        frame: Frame | None = None,
    ) -> KernelAnswer:
        """The answer in quanta; arguments are not checked. `frame` is the shape's, where the caller keeps it."""
        queries, device = len(offsets) - 1, self.residency.device
        answer = make_answer(queries, k, device)
        if not k or not queries or not len(terms) or not snapshot.segments:
            answer.scores.zero_()
            answer.documents.fill_(-1)
            answer.counts.zero_()
            return answer
        if frame is None:
            frame = self._frame(snapshot, queries, len(terms), weights is not None, k)
        work = plan_on_device(snapshot, terms, offsets, weights, k, self.residency, frame)
        self.residency.reserve(CUT_BYTES * frame.cuts + CANDIDATE_BYTES * frame.candidates)
        thresholds = torch.full((queries,), UNBOUNDED if work.signed else 1, dtype=torch.int64, device=device)
        counts = torch.zeros(queries, dtype=torch.int32, device=device)
        buffers = make_buffers(frame.cuts, frame.candidates, work.any_wide, thresholds, counts)
        run(self.verbs, work, buffers, answer, DevicePhases(None, device))
        return answer

    def _frame(self, snapshot: Snapshot, queries: int, terms: int, weighted: bool, k: int) -> Frame:
        kept = self._frames.setdefault(snapshot, OrderedDict())
        shape = (queries, terms, weighted, k)
        frame = kept.pop(shape, None)
        capturing = self.residency.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if frame is None:
            if capturing:
                raise QueryError(
                    f"a graph can capture only a shape that was asked before: {queries} queries of {terms} terms "
                    f"{'with' if weighted else 'without'} weights, k = {k}; call once before the capture"
                )
            frame = make_frame(snapshot, *shape, self.residency, self.verbs)
        if capturing:
            # The graph reads the frame as long as it lives, which nobody tells; the snapshot's life bounds it.
            self._captured.setdefault(snapshot, []).append(frame)
        kept[shape] = frame
        while len(kept) > MAX_FRAMES:
            kept.popitem(last=False)
        return frame


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


@dataclass(frozen=True, eq=False)
class Frame:
    """What a launch over a whole snapshot needs and its shape alone decides. Made once for each shape, then reused."""

    table: SegmentTable
    tile_bits: int
    cuts: int
    candidates: int
    any_wide: bool
    no_decay: dict[str, torch.Tensor]
    block_offset: torch.Tensor
    unit_offset: torch.Tensor
    list_segment: torch.Tensor
    list_cuts: torch.Tensor
    unit_query: torch.Tensor
    unit_filter: torch.Tensor
    unit_low: torch.Tensor
    unit_high: torch.Tensor
    slot_list: torch.Tensor  # without deduplication: slot i reads list i
    slot_weight: torch.Tensor  # without weights: 1
    slot_base: torch.Tensor  # int64 [S, 1] the first list of each segment
    slot_end: torch.Tensor  # int64 [1]
    query_k: torch.Tensor
    query_wide: torch.Tensor  # where the device need not decide
    candidate_offset: torch.Tensor


def make_frame(
    snapshot: Snapshot, queries: int, terms: int, weighted: bool, k: int, residency: Residency, verbs: Verbs
) -> Frame:
    """The frame for batches of this shape; the snapshot's segments must be ready."""
    long = snapshot.long
    # A posting contributes at most this, so short batches are narrow for certain; for others the device decides.
    any_wide = long or weighted or snapshot.highest_bound * terms >= INT32_MAX
    tile_bits = verbs.tile_bits(any_wide)
    table = residency.table(snapshot, tile_bits)
    segments = len(table.tiles)
    units = queries * segments
    rows = np.array(table.tiles, dtype=np.int64) + 1
    firsts = np.cumsum(rows * terms) - rows * terms
    sizes = np.array([segment.size for segment in snapshot.segments], dtype=np.int32)
    room = sum(table.tiles) * min(k, 1 << tile_bits)
    arrays: list[npt.NDArray[Any]] = [
        np.cumsum([0, *table.tiles], dtype=np.int64) * queries,
        np.arange(segments + 1, dtype=np.int32) * np.int32(queries),
        np.repeat(np.arange(segments, dtype=np.int32), terms),
        (firsts[:, None] + rows[:, None] * np.arange(terms)).reshape(-1),
        np.tile(np.arange(queries, dtype=np.int32), segments),
        np.zeros(units, dtype=np.int32),
        np.repeat(sizes, queries),
        np.arange(segments * terms, dtype=np.int32),
        np.ones(segments * terms, dtype=np.int32),
        np.arange(segments, dtype=np.int64)[:, None] * terms,
        np.array([segments * terms], dtype=np.int64),
        np.full(queries, k, dtype=np.int32),
        np.full(queries, long, dtype=np.uint8),
        np.arange(queries + 1, dtype=np.int64) * room,
    ]
    tensors = residency.upload(arrays)
    tensors.insert(5, table.alive.repeat_interleave(queries))
    residency.settle()
    cuts, candidates, none = int((rows * terms).sum()), room * queries, no_decay(residency.device)
    return Frame(table, tile_bits, cuts, candidates, any_wide, none, *tensors)


def plan_on_device(
    snapshot: Snapshot,
    terms: torch.Tensor,  # [T] vocabulary ids
    offsets: torch.Tensor,  # [B + 1]
    weights: torch.Tensor | None,  # [T]
    k: int,
    residency: Residency,
    frame: Frame,
) -> Work:
    """The launch, made of device operations alone. A list of length 0 stands for what does not exist."""
    count, table, long = len(terms), frame.table, snapshot.long
    segments = len(table.tiles)
    distinct, slot_list = terms.to(torch.int64), frame.slot_list
    if count > DEDUPLICATED:
        # The distinct terms, at the front of `distinct`; the rest hold -1.
        ordered, order = torch.sort(distinct)
        rank = torch.zeros_like(ordered)
        torch.cumsum(ordered[1:] != ordered[:-1], 0, out=rank[1:])
        distinct = torch.full_like(ordered, -1).scatter_(0, rank, ordered)
        slots = torch.empty_like(rank).scatter_(0, order, rank)
        slot_list = (slots + frame.slot_base).to(torch.int32).view(-1)

    starts, lengths, idfs = [], [], []
    posting_bytes = residency.bytes_for(snapshot)
    for segment in snapshot.segments:
        resident = residency.resident_of(segment, long)
        segment_terms, ends = resident.terms, resident.postings.offsets
        if not len(segment_terms):
            starts.append(torch.zeros_like(distinct))
            lengths.append(torch.zeros_like(distinct))
            idfs.append(torch.zeros_like(distinct, dtype=torch.float64))
            continue
        position = torch.searchsorted(segment_terms, distinct.to(segment_terms.dtype)).clamp_(
            max=len(segment_terms) - 1
        )
        start = ends[position]
        starts.append(start)
        lengths.append((ends[position + 1] - start) * (segment_terms[position] == distinct))
        if posting_bytes < 8:
            idfs.append(resident.idf[position])
    slot_weight, query_wide = frame.slot_weight, frame.query_wide
    offsets = offsets.to(torch.int64)
    if weights is not None:
        weights = weights.to(torch.int64).clamp(1, MAX_WEIGHT)
        slot_weight = weights.to(torch.int32).repeat(segments)
    if frame.any_wide and not long:
        # Weights of a query's terms add up; their prefix sums turn that into a difference.
        weight = torch.ones_like(distinct) if weights is None else weights
        total = torch.nn.functional.pad(weight.cumsum(0), (1, 0))
        bound = (total[offsets[1:]] - total[offsets[:-1]]).to(torch.float64) * snapshot.highest_bound
        query_wide = (bound >= INT32_MAX).to(torch.uint8)
    return Work(
        tile_bits=frame.tile_bits,
        max_tiles=max(table.tiles),
        blocks=(len(offsets) - 1) * sum(table.tiles),
        width=k,
        signed=snapshot.bm25.signed,
        long_quanta=long,
        any_narrow=not long,
        any_wide=frame.any_wide,
        any_decay=False,
        words=table.words,
        quanta=table.quanta,
        sizes=table.sizes,
        firsts=table.firsts,
        block_offset=frame.block_offset,
        unit_offset=frame.unit_offset,
        list_segment=frame.list_segment,
        list_start=torch.cat(starts) if segments > 1 else starts[0],
        list_length=(torch.cat(lengths) if segments > 1 else lengths[0]).to(torch.int32),
        list_cuts=frame.list_cuts,
        unit_query=frame.unit_query,
        unit_slots=torch.cat([(offsets[:-1] + frame.slot_base).view(-1), frame.slot_end]),
        unit_filter=frame.unit_filter,
        unit_low=frame.unit_low,
        unit_high=frame.unit_high,
        slot_list=slot_list,
        slot_weight=slot_weight,
        query_k=frame.query_k,
        query_wide=query_wide,
        candidate_offset=frame.candidate_offset,
        **frame.no_decay,
        posting_bytes=posting_bytes,
        saturated=table.saturated if posting_bytes < 8 else None,
        list_idf=torch.cat(idfs) if posting_bytes < 8 else None,
    )
