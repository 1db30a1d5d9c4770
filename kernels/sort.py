"""Selection for a k beyond what the kernels take: every query's candidates sorted whole, with torch."""

from __future__ import annotations

import torch

from .work import Buffers, KernelAnswer, Work

_LOW = (1 << 32) - 1
_LEAST = torch.iinfo(torch.int64).min


def select_sorted(work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
    """As `Verbs.select`, for any k. Takes about 40 bytes for each place of the roomiest query, times the queries."""
    offsets, emitted = work.candidate_offset, buffers.counts.to(torch.int64)
    queries, width = answer.scores.shape
    room = int((offsets[1:] - offsets[:-1]).max()) if queries else 0
    columns = torch.arange(max(room, width), device=offsets.device)
    present = columns < emitted[:, None]
    where = torch.where(present, offsets[:-1, None] + columns, 0)
    if buffers.keys.numel():
        keys = torch.where(present, buffers.keys[where], _LEAST)
    else:
        keys = torch.full(present.shape, _LEAST, dtype=torch.int64, device=offsets.device)
    if work.long_keys:
        documents = torch.zeros_like(keys)
        if buffers.documents.numel():
            documents = torch.where(present, buffers.documents[where].to(torch.int64) & _LOW, -1)
        order = torch.sort(documents, dim=1, descending=True).indices
        keys, documents = keys.gather(1, order), documents.gather(1, order)
        keys, order = torch.sort(keys, dim=1, descending=True, stable=True)
        documents = documents.gather(1, order)
        scores = keys
    else:
        keys = torch.sort(keys, dim=1, descending=True).values
        scores, documents = keys >> 32, keys & _LOW
    counts = torch.minimum(emitted, work.query_k.to(torch.int64))
    kept = columns[:width] < counts[:, None]
    rows = work.query_wide.bool() == work.wide
    answer.scores[rows] = torch.where(kept, scores[:, :width], 0)[rows]
    answer.documents[rows] = torch.where(kept, _LOW - documents[:, :width], -1)[rows]
    answer.counts[rows] = counts.to(torch.int32)[rows]
