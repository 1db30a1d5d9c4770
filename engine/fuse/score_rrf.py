"""Reciprocal ranks weighted by the scores they stand for."""

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
SCALES: dict[str, Scale] = {"dense": "clamp", "graph": "clamp", "temporal": "one"}
"""How the channels of these names reach [0, 1] unasked; all others by ``max``."""

GRAPH_WEIGHT, MULTI_HOP_WEIGHT = 1.0, 0.8
TEMPORAL_WEIGHT, SPECULATIVE_WEIGHT = 1.0, 0.5
"""SPEC B052: what is reached over edges counts .8, and a time that a query only hints at ("recent", "latest") .5. BM25
and dense channels count 1. Channels carry them as `Channel.weights`."""


# Sources: B050, B051, B007, X20.
@dataclass(frozen=True)
class ScoreRRF(RRF):
    """``sum_i w_i * sqrt(score_i) / (k + rank_i)`` over the channels that list a candidate.

    The Five Retrievers article takes lists of up to 100. Scores reach [0, 1], where their root is taken, by the
    channel's scale:

    ===== =========================================================================================
    clamp what is below 0 is 0, what is above 1 is 1: cosines
    max   divided by the query's largest, what is below 0 being 0: BM25, learned sparse
    ratio ``s / (s + 1)``, what is below 0 being 0: as max, but as sure of a poor best hit as it is
    one   1: lists without scores, time windows
    ===== =========================================================================================

    `scales` names channels; `SCALES` has those it leaves out, and the rest is ``max``. `weights` as in `RRF`.
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
