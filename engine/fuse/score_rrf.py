"""Reciprocal rank fusion in which each rank is weighted by the root of its score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError
from .candidates import Candidates, Channel
from .fusion import check_name
from .rrf import RRF

Scale = Literal["clamp", "max", "ratio", "one"]
SCALES: dict[str, Scale] = {"dense": "clamp", "graph": "clamp", "temporal": "one", "hints": "one"}
"""The default scale of the channels of these names. All other channels have ``max``."""

GRAPH_WEIGHT, MULTI_HOP_WEIGHT = 1.0, 0.8
TEMPORAL_WEIGHT, SPECULATIVE_WEIGHT = 1.0, 0.5
"""SPEC B052: a memory that is reached over edges counts .8. A time at which a query only hints ("recent", "latest")
counts .5. BM25 and dense channels count 1. Channels carry these numbers as `Channel.weights`."""


# Sources: B050, B051, B007, X20.
@dataclass(frozen=True)
class ScoreRRF(RRF):
    """``sum_i w_i * sqrt(score_i) / (k + rank_i)`` over the channels that list a candidate.

    The Five Retrievers article takes lists of up to 100. The channel's scale maps its scores to [0, 1] before the root
    is taken. A score below 0 counts as 0.

    ===== =========================================================================================
    clamp a score above 1 is 1: for cosines
    max   the score divided by the query's largest: for BM25 and learned sparse weights
    ratio ``s / (s + 1)``: as max, but the best hit of a query does not always reach 1
    one   1: for lists without scores, such as time windows
    ===== =========================================================================================

    `scales` maps channels to scales. A channel that it leaves out has the scale of `SCALES`, or ``max``. `weights` are
    as in `RRF`.
    """

    name: ClassVar[str] = "score_rrf"

    scales: Mapping[str, Scale] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scales is None:
            return
        if not isinstance(self.scales, Mapping):
            raise ParameterError(f"scales must be a mapping of channels to scales, not {self.scales!r}")
        for name, scale in self.scales.items():
            check_name("a name in scales", name)
            if scale not in get_args(Scale):
                raise ParameterError(f"scales[{name!r}] must be one of {', '.join(get_args(Scale))}, not {scale!r}")
        object.__setattr__(self, "scales", dict(self.scales))

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(self.weights or ()), *(self.scales or ())]))

    def _worth(self, name: str, channel: Channel, candidates: Candidates) -> float | Floats:
        scale = (self.scales or {}).get(name) or SCALES.get(name, "max")
        if scale == "one":
            return 1.0
        scores = np.maximum(channel.scores, 0.0)
        if scale == "clamp":
            scores = np.minimum(scores, 1.0)
        elif scale == "ratio":
            scores = scores / (scores + 1.0)
        else:
            largest = candidates.extremes(scores, channel.scored)[1]
            scores = scores / np.where(largest > 0.0, largest, 1.0)[candidates.owners]
        return np.sqrt(scores)
