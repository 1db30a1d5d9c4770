"""Selection for a k beyond what the kernels take: every query's candidates sorted whole, with torch."""

from __future__ import annotations

import torch

from .work import MAX_SELECTED, Buffers, KernelAnswer, Work

_LOW = (1 << 32) - 1
_LEAST = torch.iinfo(torch.int64).min

# Of a place: keys, documents, the order of each and what torch sorts in, not all at once.
PLACE_BYTES = 56


def sorted_bytes(queries: int, most_candidates: int, width: int) -> int:
    """The bytes that `select_sorted` takes for a launch; 0 where the kernels select."""
    return PLACE_BYTES * queries * max(most_candidates, width) if width > MAX_SELECTED else 0


def select_sorted(work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
    """As `Verbs.select`, for any k, without reading from the device.

    Takes `PLACE_BYTES` for each place of `work.most_candidates`, times the queries.
    """
    offsets, emitted = work.candidate_offset, buffers.counts.to(torch.int64)
    width = answer.scores.shape[1]
    columns = torch.arange(max(work.most_candidates, width), device=offsets.device)
    present = columns < emitted[:, None]
    where = torch.where(present, offsets[:-1, None] + columns, 0)
    keys = torch.full(present.shape, _LEAST, dtype=torch.int64, device=offsets.device)
    if buffers.keys.numel():
        keys = torch.where(present, buffers.keys[where], keys)
    if work.long_keys:
        documents = torch.zeros_like(keys)
        if buffers.documents.numel():
            documents = torch.where(present, buffers.documents[where].to(torch.int64) & _LOW, -1)
        order = torch.sort(documents, dim=1, descending=True).indices
        keys, documents = keys.gather(1, order), documents.gather(1, order)
        scores, order = torch.sort(keys, dim=1, descending=True, stable=True)
        documents = documents.gather(1, order)
    else:
        keys = torch.sort(keys, dim=1, descending=True).values
        scores, documents = keys >> 32, keys & _LOW
    counts = torch.minimum(emitted, work.query_k.to(torch.int64))
    kept = columns[:width] < counts[:, None]
    rows = work.query_wide.bool() == work.wide
    # With a mask as an index torch would wait for the device, to count the rows.
    answer.scores.copy_(torch.where(rows[:, None], torch.where(kept, scores[:, :width], 0), answer.scores))
    numbers = torch.where(kept, _LOW - documents[:, :width], -1)
    answer.documents.copy_(torch.where(rows[:, None], numbers, answer.documents))
    answer.counts.copy_(torch.where(rows, counts.to(torch.int32), answer.counts))
