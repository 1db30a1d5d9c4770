"""Z-score fusion: two channels, each standardised by its mean and standard deviation, are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import Flags, Floats
from .candidates import Candidates, Channel, Fused
from .fusion import check_channels, check_number, check_pair

LEAST_SPREAD = 1e-9
"""Below this standard deviation the scores count as equal and all z are 0 (SPEC D003)."""


# Sources: D003, D002, D004, D013.
@dataclass(frozen=True)
class ZScore:
    """``alpha * z(first) + (1 - alpha) * z(second)``.

    z is ``(score - mean) / std`` over the query's candidates that the channel scored, with the population's standard
    deviation. A candidate that the channel did not score (an empty session) takes no part in mean and deviation, and
    gets the query's lowest z. The Lexical-Dense Fusion paper gives it the score -9 and so ranks it below all others; a
    z of 0 would rank it above half of them. All z are 0 where the channel scored no candidate.

    `fit_alpha` finds alpha. That paper's best values over all of LoCoMo are .40 (e5-large) and .60 (bge-base). With
    e5-large every alpha from .25 to .50 comes within 2 points of the best Hit@1.
    """

    name: ClassVar[str] = "zscore"

    alpha: float = 0.5
    first: str = "bm25"
    second: str = "dense"

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0.0, 1.0)
        check_pair(self.first, self.second)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.first, self.second

    def __call__(self, candidates: Candidates) -> Fused:
        check_channels(self, candidates.channels)
        first, second = candidates.channels[self.first], candidates.channels[self.second]
        shares = {
            self.first: self.alpha * standardize(first, candidates),
            self.second: (1.0 - self.alpha) * standardize(second, candidates),
        }
        return Fused.of(shares, first.listed | second.listed)


def standardize(channel: Channel, candidates: Candidates, among: Flags | None = None) -> Floats:
    """[candidates] z; the query's lowest z where the channel did not score.

    Mean, deviation and lowest z are those of the candidates in `among` (None: all) that the channel scored.
    """
    owners = candidates.owners
    counted = channel.scored if among is None else channel.scored & among
    counts = np.maximum(candidates.sums(counted), 1.0)
    means = candidates.sums(np.where(counted, channel.scores, 0.0)) / counts
    deviations = np.where(channel.scored, channel.scores - means[owners], 0.0)
    spreads = np.sqrt(candidates.sums(np.where(counted, deviations * deviations, 0.0)) / counts)
    flat = spreads < LEAST_SPREAD
    z = np.where(flat[owners], 0.0, deviations / np.where(flat, 1.0, spreads)[owners])
    return np.where(channel.scored, z, candidates.extremes(z, counted)[0][owners])
