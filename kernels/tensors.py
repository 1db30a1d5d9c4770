"""Tensors in, tensors out: query terms as device tensors, hits as device tensors, planned on the device.

Nothing here waits for the device or reads from it, so calls compose with torch code on the caller's stream and can be
captured in a CUDA graph. What a batch needs must therefore be known from shapes alone.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch

from ..engine.errors import ParameterError, QueryError
from ..engine.index.bm25 import INT32_MAX, SCALE
from ..engine.index.snapshot import Snapshot
from .device import Residency, SegmentTable
from .frame import Frame, Shape, answer_in, answer_size, power_of_two
from .launch import run
from .timing import DevicePhases
from .work import MAX_SELECTED, KernelAnswer, TermBatch, Verbs

# Shapes whose arrays are kept, the least recently used let go.
MAX_FRAMES = 16
# Shapes that are remembered: only they may be captured.
MAX_ASKED = 1024
# Sums of 2**18 terms of this weight stay below 2**62.
MAX_WEIGHT = 1 << 20


@dataclass(frozen=True, eq=False)
class TensorHits:
    """The answer to B queries as device tensors; row b holds ``counts[b]`` hits in the order of `fanrank.Hits`."""

    scores: torch.Tensor  # float64 [B, k], padding -inf
    documents: torch.Tensor  # int64 [B, k] document numbers in the namespace, padding -1
    counts: torch.Tensor  # int32 [B]


class TensorSearch:
    """Answers batches given as tensors, over snapshots whose segments are resident and derived.

    The arrays of a shape are kept apart for each stream: calls on one stream run in order, and so may share them.
    """

    def __init__(self, residency: Residency, verbs: Verbs) -> None:
        self.residency, self.verbs = residency, verbs
        self._frames: OrderedDict[tuple[int, Shape], Frame] = OrderedDict()
        self._asked: OrderedDict[Shape, None] = OrderedDict()
        residency.account.add(lambda: sum(each.block.nbytes for each in list(self._frames.values())), self._drop)

    def __call__(
        self, snapshot: Snapshot, terms: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, k: int
    ) -> TensorHits:
        """As `Engine.search_tensors`."""
        runtime = self.residency.runtime
        _check(terms, offsets, weights, k, self.residency.device)
        queries = len(offsets) - 1
        answer = answer_in(runtime.empty(answer_size(queries, k), torch.int64), queries, k)
        scores = runtime.empty(queries * k, torch.float64).view(queries, k)
        try:
            if k and queries and len(terms) and snapshot.segments:
                self._answer(snapshot, terms, offsets, weights, k, answer)
            else:
                runtime.call(_match_nothing, answer)
            runtime.call(_write_scores, scores, answer)
        finally:
            # A call that fails may have launched already.
            self.residency.lifetimes.launched()
        return TensorHits(scores, answer.documents, answer.counts)

    def _answer(
        self,
        snapshot: Snapshot,
        terms: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None,
        k: int,
        answer: KernelAnswer,
    ) -> None:
        residency, runtime = self.residency, self.residency.runtime
        long = snapshot.long
        # A posting contributes at most `highest_bound`, so short batches are narrow for certain; for others the device
        # decides, query by query.
        may_be_wide = not long and (weights is not None or snapshot.highest_bound * len(terms) >= INT32_MAX)
        widest = snapshot.highest_bound if may_be_wide else None
        tables: dict[bool, SegmentTable] = {}
        for wide in (True,) if long else (False, True) if may_be_wide else (False,):
            tables[wide] = residency.table(snapshot, self.verbs.tile_bits(wide), self.verbs, on_device=True)
        given, starts = self._as_int64(terms), self._as_int64(offsets)
        counted = None
        if weights is not None:
            counted = runtime.empty(len(weights), torch.int32)
            runtime.call(_write_weights, counted, weights)
        for wide, table in tables.items():
            shape = Shape.of(
                self.verbs,
                snapshot,
                residency.bytes_for(snapshot),
                queries=len(offsets) - 1,
                terms=len(terms),
                k=k,
                segments=len(table.rows),
                tiles=power_of_two(table.tiles),
                wide=wide,
            )
            assert table.on_device is not None
            frame = self._frame(shape, table.on_device)
            batch = TermBatch(given, starts, counted, k, shape.tiles, shape.candidates, widest)
            work = replace(frame.work, segments=table.on_device)
            run(self.verbs, runtime, work, frame.buffers, answer, DevicePhases(None, residency.device), batch)

    def _as_int64(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.int64 and tensor.is_contiguous():
            return tensor
        moved = self.residency.runtime.empty(len(tensor), torch.int64)
        self.residency.runtime.copy(moved, tensor)
        return moved

    def _frame(self, shape: Shape, segments: torch.Tensor) -> Frame:
        runtime = self.residency.runtime
        if runtime.capturing():
            if shape not in self._asked:
                raise QueryError(
                    f"a graph can capture only a shape that was asked before: {shape.queries} queries of {shape.terms} "
                    f"terms, k = {shape.k}, over as many records; call once before the capture"
                )
            # Its memory is the graph's, so that replays and other calls do not share it.
            return Frame.over(runtime.empty(shape.bytes, torch.uint8), shape, segments)
        key = (runtime.current(), shape)
        frame = self._frames.get(key)
        if frame is None:
            self.residency.reserve(shape.bytes)
            # The frame outlives the table.
            none = torch.empty(0, dtype=torch.int64, device=runtime.device)
            frame = Frame.over(runtime.empty(shape.bytes, torch.uint8), shape, none)
        self._frames[key] = frame
        self._frames.move_to_end(key)
        self._asked[shape] = None
        while len(self._frames) > MAX_FRAMES:
            self.residency.lifetimes.retire([self._frames.popitem(last=False)[1].block])
        while len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)
        return frame

    def _drop(self) -> bool:
        """Let go all arrays."""
        dropped = [frame.block for frame in self._frames.values()]
        self._frames.clear()
        self.residency.lifetimes.retire(dropped)
        return bool(dropped) and self.residency.lifetimes.reclaim()


def _match_nothing(answer: KernelAnswer) -> None:
    answer.scores.zero_()
    answer.documents.fill_(-1)
    answer.counts.zero_()


def _write_scores(scores: torch.Tensor, answer: KernelAnswer) -> None:
    # Of integers divided by a number torch takes the quotient in float32.
    scores.copy_(answer.scores)
    scores.div_(SCALE).masked_fill_(answer.documents < 0, -torch.inf)


def _write_weights(target: torch.Tensor, weights: torch.Tensor) -> None:
    target.copy_(weights.clamp(1, MAX_WEIGHT))


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
