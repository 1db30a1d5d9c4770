"""A weighted sum of channels' scores, with weights that labelled questions can fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError
from .candidates import Candidates, Channel, Fused
from .fusion import check_channels, check_name, check_number

MOST = 1e6
"""Weights lie in [-MOST, MOST]."""


@dataclass(frozen=True)
class Linear:
    """``sum_i weight_i * score_i`` over the channels that `weights` names, in the order of the strategy's channels.

    A weight may be negative: what such a channel scores is lowered. The scores of `relative` channels are divided by
    the query's largest among its candidates, where that is above 0, as BM25's scores grow with the memory and the
    query. The others count as they are. A candidate that a channel did not score, such as one without a vector, gets
    the query's lowest score of that channel; 0 where it scored none. Channels that `weights` leaves out only bring
    candidates: a candidate is kept if any channel listed it.

    `fanrank.evaluation.fit_weights` finds the weights. Raises `ParameterError` for weights that are no numbers in
    [-1e6, 1e6], none at all, and a relative channel without a weight.
    """

    name: ClassVar[str] = "linear"

    weights: Mapping[str, float] = field(default_factory=lambda: {"bm25": 1.0, "dense": 1.0}, hash=False)
    relative: tuple[str, ...] = ("bm25",)

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise ParameterError(f"weights must be a mapping of channels to numbers, not {self.weights!r}")
        for name, value in self.weights.items():
            check_name("a name in weights", name)
            check_number(f"weights[{name!r}]", value, -MOST, MOST)
        if isinstance(self.relative, str) or not isinstance(self.relative, Iterable):
            raise ParameterError(f"relative must be a list of channels, not {self.relative!r}")
        relative = tuple(self.relative)
        for name in relative:
            check_name("a name in relative", name)
            if name not in self.weights:
                raise ParameterError(f"relative names the channel {name!r}, which has no weight")
        object.__setattr__(self, "weights", dict(self.weights))
        object.__setattr__(self, "relative", relative)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.weights)

    def __call__(self, candidates: Candidates) -> Fused:
        check_channels(self, candidates.channels)
        # Not in the order of the weights: two that differ in it alone are equal, and JSON may sort them.
        shares = {
            name: self.weights[name] * self.scaled(name, candidates)
            for name in candidates.channels
            if name in self.weights
        }
        kept = np.zeros(len(candidates.documents), dtype=np.bool_)
        for channel in candidates.channels.values():
            kept |= channel.listed
        return Fused.of(shares, kept)

    def scaled(self, name: str, candidates: Candidates) -> Floats:
        """[candidates] what the weight of a channel multiplies."""
        channel: Channel = candidates.channels[name]
        low, high = (each[candidates.owners] for each in candidates.extremes(channel.scores, channel.scored))
        scores = np.where(channel.scored, channel.scores, low)
        return scores / np.where(high > 0.0, high, 1.0) if name in self.relative else scores
