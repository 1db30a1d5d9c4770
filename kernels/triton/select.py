"""The k best candidates of each query, in order.

Bisection finds a threshold that exactly k candidates reach: each step counts the candidates at or above the middle.
These k are gathered, and the rank of each is the number of better ones. Where there are few queries, several programs
first thin a query's candidates, a stripe each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..frame import Window, carve
from ..work import MAX_SELECTED, Buffers, Extent, KernelAnswer, Work
from .launching import compiled_once, launch_by_name

_LOW = tl.constexpr((1 << 32) - 1)
_INT64_MIN = tl.constexpr(-(1 << 63))
_INT64_MAX = tl.constexpr((1 << 63) - 1)


@dataclass(frozen=True)
class Settings:
    block: int = 1024  # candidates read at once
    ranked: int = 4  # candidates that the others are compared with at once; 8 at k 1,024 need 171 registers for 99
    warps: int = 8
    stripe: int = 4096  # candidates a program takes at least
    stripes: int = 16  # programs for a query at most


def _sizes(extent: Extent, settings: Settings, processors: int) -> tuple[int, int]:
    """(width of a list of the best, programs of a query that thin its candidates first: none if 1 or less)."""
    most = min(extent.candidates, extent.most_tiles * min(extent.width, 1 << extent.tile_bits))
    stripes = min(settings.stripes, processors // extent.queries, triton.cdiv(most, settings.stripe))
    return triton.next_power_of_2(min(max(extent.width, 1), MAX_SELECTED)), stripes


def scratch(extent: Extent, settings: Settings, processors: int) -> list[Window]:
    """Candidates as the best of each query, and of each stripe where there are any."""
    if not extent.queries:
        return []
    width, stripes = _sizes(extent, settings, processors)
    found = []
    for name, places in (("best", extent.queries * width), ("thin", extent.queries * stripes * width)):
        if name == "best" or stripes > 1:
            found.append(Window(f"{name}_keys", torch.int64, (places,)))
            documents = places if extent.wide or extent.decays else 0
            found.append(Window(f"{name}_documents", torch.int32, (documents,)))
    return found


def launch(work: Work, buffers: Buffers, answer: KernelAnswer, settings: Settings, processors: int) -> None:
    queries, extent = len(work.query_k), work.extent(buffers)
    if not queries:
        return
    width, stripes = _sizes(extent, settings, processors)
    keys, documents, options = buffers.keys, buffers.documents, {"num_warps": settings.warps}
    own = carve(buffers.scratch, scratch(extent, settings, processors))
    if stripes > 1:
        keys, documents = own["thin_keys"], own["thin_documents"]
        thinned = {"offsets": work.candidate_offset, "to_keys": keys, "to_documents": documents, "WIDTH": width}
        launch_by_name(_reduce_stripe, (queries, stripes), options, work, buffers, settings, **thinned)
    launch_by_name(
        _finish,
        (queries,),
        options,
        work,
        buffers,
        settings,
        keys=keys,
        documents=documents,
        offsets=work.candidate_offset,
        best_keys=own["best_keys"],
        best_documents=own["best_documents"],
        scores_out=answer.scores,
        documents_out=answer.documents,
        counts_out=answer.counts,
        stripes=stripes,
        STRIPED=stripes > 1,
        WIDTH=width,
        RANKED=min(settings.ranked, width),
    )


@triton.jit
def _low_half(documents, index, live):
    return tl.load(documents + index, mask=live, other=0).to(tl.int64) & _LOW


@triton.jit
def _gather(
    keys,  # [count] int64
    documents,  # [count] int32 if LONG_KEYS
    count,  # int32
    k,  # int32
    to_keys,  # [k] int64, written
    to_documents,  # [k] int32 if LONG_KEYS, written
    LONG_KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy the min(count, k) best of `count` candidates, in any order.

    Keys that hold their documents are distinct, so a threshold is reached by exactly k of them. Long ones may tie;
    then a second threshold, over the documents of those that do, decides.
    """
    threshold = tl.full((), _INT64_MIN, tl.int64)
    least = tl.full((), 0, tl.int64)
    if count > k:
        most = tl.full((), _INT64_MIN, tl.int64)
        threshold = tl.full((), _INT64_MAX, tl.int64)
        for start in range(0, count, BLOCK):
            index = start + tl.arange(0, BLOCK)
            live = index < count
            most = tl.maximum(most, tl.max(tl.load(keys + index, mask=live, other=_INT64_MIN)))
            threshold = tl.minimum(threshold, tl.min(tl.load(keys + index, mask=live, other=_INT64_MAX)))
        # `reached` candidates, at least k, are `threshold` or more; none is more than `most`.
        reached = count
        while (reached != k) & (threshold < most):
            # Halves first: the distance of two keys may leave int64.
            middle = (threshold >> 1) + (most >> 1) + ((threshold | most) & 1)
            above = tl.full((), 0, tl.int32)
            for start in range(0, count, BLOCK):
                index = start + tl.arange(0, BLOCK)
                key = tl.load(keys + index, mask=index < count, other=_INT64_MIN)
                above += tl.sum(((key >= middle) & (index < count)).to(tl.int32))
            threshold = tl.where(above >= k, middle, threshold)
            most = tl.where(above >= k, most, middle - 1)
            reached = tl.where(above >= k, above, reached)
        if LONG_KEYS:
            highest = tl.full((), _LOW, tl.int64)
            while (reached != k) & (least < highest):
                middle = (least + highest + 1) >> 1
                above = tl.full((), 0, tl.int32)
                for start in range(0, count, BLOCK):
                    index = start + tl.arange(0, BLOCK)
                    live = index < count
                    key = tl.load(keys + index, mask=live, other=_INT64_MIN)
                    tied = (key == threshold) & (_low_half(documents, index, live) >= middle)
                    above += tl.sum((live & ((key > threshold) | tied)).to(tl.int32))
                least = tl.where(above >= k, middle, least)
                highest = tl.where(above >= k, highest, middle - 1)
                reached = tl.where(above >= k, above, reached)
    copied = tl.full((), 0, tl.int32)
    for start in range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        live = index < count
        key = tl.load(keys + index, mask=live, other=_INT64_MIN)
        if LONG_KEYS:
            low_half = _low_half(documents, index, live)
            taken = live & ((key > threshold) | ((key == threshold) & (low_half >= least)))
        else:
            taken = live & (key >= threshold)
        target = copied + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        tl.store(to_keys + target, key, mask=taken)
        if LONG_KEYS:
            tl.store(to_documents + target, low_half.to(tl.int32), mask=taken)
        copied += tl.sum(taken.to(tl.int32))


@compiled_once
def _reduce_stripe(
    keys,  # [candidates] int64
    documents,  # [candidates] int32 if LONG_KEYS
    offsets,  # [Q + 1] int64, the query's candidates
    counts,  # [Q] int32
    query_k,  # [Q] int32
    query_wide,  # [Q] uint8
    to_keys,  # [Q, stripes, WIDTH] int64, written
    to_documents,  # [Q, stripes, WIDTH] int32 if LONG_KEYS, written
    WIDE: tl.constexpr,
    LONG_KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The k best of a stripe of a query's candidates, as candidates again; padded with keys below all others."""
    query = tl.program_id(0)
    if (tl.load(query_wide + query) != 0) == WIDE:
        count = tl.load(counts + query)
        k = tl.minimum(tl.load(query_k + query), WIDTH)
        stripe = tl.maximum((count + tl.num_programs(1) - 1) // tl.num_programs(1), STRIPE)
        begin = tl.program_id(1) * stripe
        length = tl.maximum(tl.minimum(count - begin, stripe), 0)
        target = (query.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * WIDTH
        if (length > 0) & (k > 0):
            start = tl.load(offsets + query) + begin
            _gather(
                keys + start, documents + start, length, k, to_keys + target, to_documents + target, LONG_KEYS, BLOCK
            )
        place = tl.arange(0, WIDTH)
        padding = place >= tl.minimum(length, k)
        tl.store(to_keys + target + place, tl.full((WIDTH,), _INT64_MIN, tl.int64), mask=padding)
        if LONG_KEYS:
            tl.store(to_documents + target + place, tl.zeros((WIDTH,), tl.int32), mask=padding)


@compiled_once
def _finish(
    keys,  # [candidates] int64, or [Q, stripes, WIDTH] if STRIPED
    documents,  # int32 beside them if LONG_KEYS
    offsets,  # [Q + 1] int64, the query's candidates
    counts,  # [Q] int32
    query_k,  # [Q] int32
    query_wide,  # [Q] uint8
    best_keys,  # [Q, WIDTH] int64, scratch
    best_documents,  # [Q, WIDTH] int32 if LONG_KEYS, scratch
    scores_out,  # [Q, width] int64, written
    documents_out,  # [Q, width] int64, written
    counts_out,  # [Q] int32, written
    width,  # int32
    stripes,  # int32
    WIDE: tl.constexpr,
    LONG_KEYS: tl.constexpr,
    STRIPED: tl.constexpr,
    WIDTH: tl.constexpr,
    RANKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    query = tl.program_id(0)
    if (tl.load(query_wide + query) != 0) == WIDE:
        count = tl.load(counts + query)
        selected = tl.minimum(tl.minimum(count, tl.load(query_k + query)), WIDTH)
        best_keys += query.to(tl.int64) * WIDTH
        best_documents += query.to(tl.int64) * WIDTH
        if selected > 0:
            if STRIPED:
                # A stripe kept its k best, so `selected` of these are no padding.
                start = query.to(tl.int64) * stripes * WIDTH
                count = stripes * WIDTH
            else:
                start = tl.load(offsets + query)
            _gather(keys + start, documents + start, count, selected, best_keys, best_documents, LONG_KEYS, BLOCK)
        tl.debug_barrier()
        index = tl.arange(0, WIDTH)
        live = index < selected
        key = tl.load(best_keys + index, mask=live, other=0)
        rank = tl.zeros((WIDTH,), tl.int32)
        low_half = _low_half(best_documents, index, live) if LONG_KEYS else key & _LOW
        for begin in range(0, selected, RANKED):
            other = begin + tl.arange(0, RANKED)
            present = other < selected
            other_key = tl.load(best_keys + other, mask=present, other=0)
            better = other_key[None, :] > key[:, None]
            if LONG_KEYS:
                other_low = _low_half(best_documents, other, present)
                better = better | ((other_key[None, :] == key[:, None]) & (other_low[None, :] > low_half[:, None]))
            rank += tl.sum((better & present[None, :]).to(tl.int32), axis=1)
        row = query.to(tl.int64) * width
        tl.store(scores_out + row + rank, key if LONG_KEYS else key >> 32, mask=live)
        tl.store(documents_out + row + rank, low_half ^ _LOW, mask=live)
        for begin in range(0, width, WIDTH):
            column = begin + index
            padding = (column >= selected) & (column < width)
            tl.store(scores_out + row + column, tl.zeros((WIDTH,), tl.int64), mask=padding)
            tl.store(documents_out + row + column, tl.full((WIDTH,), -1, tl.int64), mask=padding)
        tl.store(counts_out + query, selected)
