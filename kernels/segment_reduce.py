"""The cosines of a document's rows as one number in torch alone, where Triton is not."""

from __future__ import annotations

import torch

from ..engine.vectors.interaction import Interaction


def segment_reduce(cosines: torch.Tensor, offsets: torch.Tensor, interaction: Interaction) -> torch.Tensor:
    """As the CPU's: cosines float64 [B, rows] and offsets int64 [S + 1] to float64 [B, S].

    Segments of about one width are taken together, padded to a power of two. A segment's number depends on its own
    cosines alone: what is added is added by halves, element by element.
    """
    if interaction.kind == "early":
        raise ValueError("early is no reduction of cosines; take the rows of Vectors.centroids")
    counts = offsets.diff()
    reduced = torch.full((len(cosines), len(counts)), -torch.inf, dtype=torch.float64, device=cosines.device)
    longest = int(counts.max()) if len(counts) else 0
    width = 1
    while width < 2 * longest:
        members = torch.nonzero((counts > width // 2) & (counts <= width)).flatten()
        if len(members):
            length = counts[members, None]
            column = torch.arange(width, device=cosines.device)
            row = offsets[members, None] + torch.minimum(column, length - 1)
            padded = cosines[:, row].masked_fill(column >= length, -torch.inf)
            reduced[:, members] = _of_padded(padded, counts[members], interaction)
        width *= 2
    return reduced


def _of_padded(padded: torch.Tensor, counts: torch.Tensor, interaction: Interaction) -> torch.Tensor:
    """[B, segments] of values [B, segments, width], -inf past the counts [segments]."""
    largest = padded.amax(dim=2)
    if interaction.kind == "late":
        return largest
    if interaction.kind == "top":
        summed = counts.clamp(max=interaction.rows)
        values = padded.topk(min(interaction.rows, padded.shape[2]), dim=2).values
        total = values[:, :, 0].clone()
        for term in range(1, int(summed.max())):
            total += torch.where(term < summed, values[:, :, term], 0.0)
        return total / summed
    total = torch.exp((padded - largest[:, :, None]) * interaction.beta)
    while total.shape[2] > 1:
        half = total.shape[2] // 2
        total = total[:, :, :half] + total[:, :, half:]
    sums = total[:, :, 0]
    if interaction.kind == "lme":
        sums = sums / counts
    return largest + torch.log(sums) / interaction.beta
