"""Words and vectors fused by z-scores, raised by what else agrees with the query: entities, a time, types of record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from .candidates import Candidates, Channel, Fused
from .fusion import check_channels, check_number, checked_table
from .score_rrf import SCALES
from .zscore import ZScore, standardize

BOOSTS: Mapping[str, float] = MappingProxyType({"graph": 0.5, "temporal": 1.0, "hints": 0.5})
"""The default boosts, in the unit of z-scores; a channel of another name has `OTHER_BOOST`. Each was tried from .25 to
2 on LoCoMo and on tool dialogues (docs/decisions.md). With types given at random a hint of .5 costs .15 points of
Hit@5, one of 2 costs 1.8."""
OTHER_BOOST = 0.5
K = 60.0


# Sources: D003, B050, B052.
@dataclass(frozen=True)
class Boosted(ZScore):
    """``alpha * z(first) + (1 - alpha) * z(second) + sum_i boost_i * weight_i * (1 - share_i) * worth_i``.

    z is that of `ZScore`, with mean and deviation over the candidates that `first` or `second` listed. A z below 0 is
    multiplied by `below`, as what a channel misses says less than what it finds: an exact identifier that the vectors
    do not see stays first. With `below` 1 and no other evidence the scores are those of `ZScore`, bit for bit.
    Each other channel i raises the candidates that it scored, by at most its boost, and lowers none. A candidate that
    only another channel listed is ranked by its own words and vector too.

    - ``weight``: of the channel (`Channel.weights`), such as .5 for a time at which a query only hints
    - ``share``: the share of the candidates of words and vectors that the channel scored; 0 if there are none. A name
      that all candidates bear tells nothing.
    - ``worth``: of graphs the score, in [0, 1]. Of time windows and type hints 1 at the first rank, and 61 / (60 +
      rank) beyond. Of other channels the score divided by the query's largest. These are the scales of `ScoreRRF`,
      without the root.

    `boosts` maps channels to boosts; one that it leaves out has that of `BOOSTS`, or .5.
    """

    name: ClassVar[str] = "boosted"

    alpha: float = 0.6
    below: float = 0.5
    boosts: Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("below", self.below, 0.0, 1.0)
        if self.boosts is not None:
            object.__setattr__(self, "boosts", checked_table("boosts", self.boosts))

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self.first, self.second, *(self.boosts or ())]))

    def __call__(self, candidates: Candidates) -> Fused:
        check_channels(self, candidates.channels)
        first, second = candidates.channels[self.first], candidates.channels[self.second]
        searched = first.listed | second.listed
        shares = {
            self.first: self.alpha * self._soften(standardize(first, candidates, searched)),
            self.second: (1.0 - self.alpha) * self._soften(standardize(second, candidates, searched)),
        }
        kept = searched.copy()
        counts = np.maximum(candidates.sums(searched), 1.0)
        for name, channel in candidates.channels.items():
            if name in shares:
                continue
            boost = (self.boosts or {}).get(name, BOOSTS.get(name, OTHER_BOOST))
            common = candidates.sums(searched & channel.scored) / counts
            worth = _worth(name, channel, candidates)
            if channel.weights is not None:
                worth = worth * channel.weights
            shares[name] = boost * (1.0 - common)[candidates.owners] * worth
            kept |= channel.listed
        return Fused.of(shares, kept)

    def _soften(self, z: Floats) -> Floats:
        return np.where(z < 0.0, self.below * z, z)


def _worth(name: str, channel: Channel, candidates: Candidates) -> Floats:
    """[candidates] in [0, 1], 0 where the channel did not score."""
    scale = SCALES.get(name, "max")
    if scale == "one":
        return np.where(channel.listed, (K + 1.0) / (K + np.maximum(channel.ranks, 1)), 0.0)
    scores = np.where(channel.scored, np.maximum(channel.scores, 0.0), 0.0)
    if scale == "clamp":
        return np.asarray(np.minimum(scores, 1.0))
    largest = candidates.extremes(scores, channel.scored)[1]
    return np.asarray(scores / np.where(largest > 0.0, largest, 1.0)[candidates.owners])
