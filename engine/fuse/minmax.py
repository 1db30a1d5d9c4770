"""Min-max fusion: one channel is scaled to [0, 1] and added to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError
from .candidates import Candidates, Channel, Fused
from .fusion import check_channels, check_number, check_pair


# Sources: E011, X30.
@dataclass(frozen=True)
class MinMax:
    """``(1 - weight) * second + weight * minmax(first)``; by default a tenth of BM25 and nine tenths of the cosine.

    minmax is ``(score - least) / (largest - least)`` over the query's candidates that the channel scored. For BM25
    these include the candidates without a match, which score 0. minmax is 0 where all scores are equal, and for a
    candidate that the channel did not score. The second channel's scores are used as they are, and are 0 where it did
    not score; with `normalize_dense` they go through minmax too. The Test-Time Compute paper finds weights of .05 to
    .20 equally good.
    """

    name: ClassVar[str] = "minmax"

    weight: float = 0.1
    first: str = "bm25"
    second: str = "dense"
    normalize_dense: bool = False

    def __post_init__(self) -> None:
        check_number("the weight of the first channel", self.weight, 0.0, 1.0)
        check_pair(self.first, self.second)
        if not isinstance(self.normalize_dense, bool):
            raise ParameterError(f"normalize_dense must be True or False, not {self.normalize_dense!r}")

    @property
    def reads(self) -> tuple[str, ...]:
        return self.first, self.second

    def __call__(self, candidates: Candidates) -> Fused:
        check_channels(self, candidates.channels)
        first, second = candidates.channels[self.first], candidates.channels[self.second]
        plain = _stretch(second, candidates) if self.normalize_dense else second.scores
        shares = {
            self.first: self.weight * _stretch(first, candidates),
            self.second: (1.0 - self.weight) * plain,
        }
        return Fused.of(shares, first.listed | second.listed)


def _stretch(channel: Channel, candidates: Candidates) -> Floats:
    low, high = candidates.extremes(channel.scores, channel.scored)
    span = high - low
    above = channel.scores - low[candidates.owners]
    some = channel.scored & (span > 0.0)[candidates.owners]
    return np.where(some, above / np.where(span > 0.0, span, 1.0)[candidates.owners], 0.0)
