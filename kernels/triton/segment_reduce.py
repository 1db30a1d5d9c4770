"""The cosines of a document's rows as one number, for all documents of a batch: `engine/vectors/segment_reduce.py`.

A program owns some segments of one query and reads their rows chunk by chunk: once for the maximum, once more for a sum
of exponentials, and once for each of the largest that `top` adds. All readings but the first come from the cache. So
`top` of any size takes no more registers and sorts nothing; equal values are told apart by their row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ...engine.vectors.interaction import Interaction
from .derive import float64_of, halves
from .launching import compiled_once

_KINDS = {"late": 0, "top": 1, "lse": 2, "lme": 3}
_LATE = tl.constexpr(0)
_TOP = tl.constexpr(1)
_LME = tl.constexpr(3)
_NOWHERE = tl.constexpr((1 << 63) - 1)


@dataclass(frozen=True)
class Settings:
    segments: int = 8  # of one program
    rows: int = 32  # of each of them, at a time
    warps: int = 4


# A program costs milliseconds in the interpreter.
INTERPRETED = Settings(segments=4096, rows=32)


def segment_reduce(
    cosines: torch.Tensor, offsets: torch.Tensor, interaction: Interaction, settings: Settings | None = None
) -> torch.Tensor:
    """As the CPU's: cosines float64 [B, rows], contiguous, and offsets int64 [S + 1] to float64 [B, S]."""
    if interaction.kind == "early":
        raise ValueError("early is no reduction of cosines; take the rows of Vectors.centroids")
    settings = settings or (INTERPRETED if cosines.device.type == "cpu" else Settings())
    queries, segments = len(cosines), len(offsets) - 1
    reduced = torch.empty((queries, segments), dtype=torch.float64, device=cosines.device)
    if not queries or not segments:
        return reduced
    block = min(settings.segments, triton.next_power_of_2(segments))
    _segment_reduce[(triton.cdiv(segments, block), queries)](
        cosines=cosines,
        offsets=offsets,
        reduced=reduced,
        segments=segments,
        rows=cosines.shape[1],
        largest=interaction.rows,
        numbers=halves(interaction.beta),
        KIND=_KINDS[interaction.kind],
        SEGMENTS=block,
        ROWS=settings.rows,
        num_warps=settings.warps,
        # A contracted multiply and add rounds once instead of twice.
        enable_fp_fusion=False,
    )
    return reduced


@compiled_once
def _segment_reduce(
    cosines,  # [Q, rows] float64
    offsets,  # [segments + 1] int64
    reduced,  # [Q, segments] float64, written
    segments,  # int32
    rows,  # int32
    largest,  # int32, of `top`
    numbers,  # `_halves` of beta
    KIND: tl.constexpr,
    SEGMENTS: tl.constexpr,
    ROWS: tl.constexpr,
):
    query = tl.program_id(1).to(tl.int64)
    segment = tl.program_id(0) * SEGMENTS + tl.arange(0, SEGMENTS)
    live = segment < segments
    begin = tl.load(offsets + segment, mask=live, other=0)
    length = tl.load(offsets + segment + 1, mask=live, other=0) - begin
    segment_rows = cosines + query * rows + begin[:, None]
    longest = tl.max(length)

    result = tl.full((SEGMENTS,), float("-inf"), tl.float64)
    if KIND == _TOP:
        total = tl.zeros((SEGMENTS,), tl.float64)
        last = tl.full((SEGMENTS,), float("inf"), tl.float64)
        last_row = tl.full((SEGMENTS,), -1, tl.int64)
        for number in range(0, tl.minimum(largest.to(tl.int64), longest)):
            best = tl.full((SEGMENTS,), float("-inf"), tl.float64)
            best_row = tl.full((SEGMENTS,), _NOWHERE, tl.int64)
            for start in range(0, longest, ROWS):
                row = (start + tl.arange(0, ROWS)[None, :]).to(tl.int64)
                value = tl.load(segment_rows + row, mask=row < length[:, None], other=float("-inf"))
                after = (value < last[:, None]) | ((value == last[:, None]) & (row > last_row[:, None]))
                value = tl.where(after, value, float("-inf"))
                top = tl.max(value, axis=1)
                top_row = tl.min(tl.where(after & (value == top[:, None]), row, _NOWHERE), axis=1)
                # Of equal values the first is kept: chunks come in order.
                better = top > best
                best = tl.where(better, top, best)
                best_row = tl.where(better, top_row, best_row)
            total = total + tl.where(number < length, best, 0.0)
            last = best
            last_row = best_row
        added = tl.maximum(tl.minimum(length, largest.to(tl.int64)), 1)
        result = total / added.to(tl.float64)
    else:
        for start in range(0, longest, ROWS):
            row = (start + tl.arange(0, ROWS)[None, :]).to(tl.int64)
            value = tl.load(segment_rows + row, mask=row < length[:, None], other=float("-inf"))
            result = tl.maximum(result, tl.max(value, axis=1))
        if KIND != _LATE:
            beta = float64_of(numbers, 0)
            # For an empty segment -inf - -inf would be NaN.
            shift = tl.where(length > 0, result, 0.0)
            total = tl.zeros((SEGMENTS,), tl.float64)
            for start in range(0, longest, ROWS):
                row = (start + tl.arange(0, ROWS)[None, :]).to(tl.int64)
                value = tl.load(segment_rows + row, mask=row < length[:, None], other=float("-inf"))
                total = total + tl.sum(tl.exp((value - shift[:, None]) * beta), axis=1)
            if KIND == _LME:
                total = total / tl.maximum(length, 1).to(tl.float64)
            result = shift + tl.log(tl.where(length > 0, total, 1.0)) / beta
    result = tl.where(length > 0, result, float("-inf"))
    tl.store(reduced + query * segments + segment, result, mask=live)
