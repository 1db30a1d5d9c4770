"""Decay: the scores of one channel, which fade exponentially with the age of the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError, QueryError
from .age import HOUR, ages_of, check_now, exponential
from .candidates import Candidates, Fused
from .fusion import check_channels, check_name, check_number


# Sources: C001, C003, X03, C004, X01.
@dataclass(frozen=True)
class Decay:
    """``score * exp(-rate * age)`` of one channel, the age in hours.

    `rate` is lambda for an hour: .01 halves a score in 69.3 hours, .001 in 28.9 days, .1 in 6.93 hours. The age is the
    time from the record's time to the query's `now`, and 0 for a record from the future. Fractions of an hour count
    unless `whole_hours` is set. A record without a time does not fade.

    Raises `QueryError` for a query without `now`, and for a query with a hit that scores below 0, because age would
    raise that score. BM25's variant `robertson` has such scores, and so have cosines.

    A strategy of BM25 alone with this fusion, such as `decay`, ranks all records by the formula. In any other strategy
    the decay applies to the candidates that the channel listed. `Query.half_life` fades BM25 itself, for any strategy,
    with ages rounded to 1/65,536 half-life.
    """

    name: ClassVar[str] = "decay"

    channel: str = "bm25"
    rate: float = 0.01
    whole_hours: bool = False

    def __post_init__(self) -> None:
        check_name("the channel that decays", self.channel)
        check_number("rate, the lambda an hour,", self.rate, 0.0)
        if not isinstance(self.whole_hours, bool):
            raise ParameterError(f"whole_hours must be True or False, not {self.whole_hours!r}")

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.channel,)

    def __call__(self, candidates: Candidates) -> Fused:
        check_channels(self, candidates.channels)
        check_now(candidates, np.ones(len(candidates), dtype=np.bool_), self.name)
        channel = candidates.channels[self.channel]
        negative = np.flatnonzero(channel.listed & (channel.scores < 0.0))
        if len(negative):
            raise QueryError(
                f"query {candidates.owners[negative[0]]}: the channel {self.channel!r} scores a hit "
                f"{channel.scores[negative[0]]:g}, and a score below 0 would rise with age; take a channel or a BM25 "
                "variant without such scores, or the fusion 'agent_rrf'"
            )
        faded = channel.scores * self.factors(ages_of(candidates))
        return Fused.of({self.channel: np.where(channel.listed, faded, 0.0)}, channel.listed)

    def factors(self, ages: Floats) -> Floats:
        """What scores are multiplied by, for ages in seconds; 1 where an age is NaN. Same shape."""
        hours = ages / HOUR
        hours = np.where(np.isnan(hours), 0.0, np.floor(hours) if self.whole_hours else hours)
        return exponential(-(self.rate * hours))
