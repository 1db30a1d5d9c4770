"""Reciprocal rank fusion, plain and weighted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError
from .candidates import Candidates, Channel, Fused
from .fusion import check_channels, check_number, checked_table


# Sources: A060, B054, D005, B053, A070, C021.
@dataclass(frozen=True)
class RRF:
    """``sum_i w_i / (k + rank_i)`` over the channels that list a candidate.

    Ranks count from `base`, 1 or 0. A list without the candidate adds 0. With k 60 the first of 50 ranks counts 1.80
    times as much as the last; with k 10 it is 5.45 times, with k 200 1.24 times. nDCG and recall hardly depend on k.
    The Recursive Light form is this fusion over lists of 10. `weights` maps channels to weights; a channel that it
    leaves out has weight 1, and a channel of weight 0 still lists its candidates.
    """

    name: ClassVar[str] = "rrf"

    k: float = 60.0
    base: int = 1
    weights: Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.base, bool) or self.base not in (0, 1):
            raise ParameterError(f"the rank base must be 0 or 1, not {self.base!r}")
        check_number("the k of reciprocal ranks", self.k, 0.0, above=self.base == 0)
        if self.weights is not None:
            object.__setattr__(self, "weights", checked_table("weights", self.weights))

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.weights or ())

    def __call__(self, candidates: Candidates) -> Fused:
        check_channels(self, candidates.channels)
        shares: dict[str, Floats] = {}
        kept = np.zeros(len(candidates.documents), dtype=np.bool_)
        for name, channel in candidates.channels.items():
            worth = (self.weights or {}).get(name, 1.0) * self._worth(name, channel, candidates)
            if channel.weights is not None:
                worth = worth * channel.weights
            places = np.maximum(channel.ranks, 1) - 1 + self.base
            shares[name] = np.where(channel.listed, worth / (self.k + places), 0.0)
            kept |= channel.listed
        return Fused.of(shares, kept)

    def _worth(self, name: str, channel: Channel, candidates: Candidates) -> float | Floats:
        """The numerator of the reciprocal rank: one number for all candidates, or one for each."""
        return 1.0
